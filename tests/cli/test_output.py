"""Results written piece by piece: who reads them may go, and a disk may be full."""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxmem.cli.output import write_pieces
from onnxmem.errors import UsageError


class Pipe(io.StringIO):
    """A stream on a descriptor, which fails at the second piece."""

    def __init__(self, fault: OSError, descriptor: int) -> None:
        super().__init__()
        self._fault = fault
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        if self.getvalue():
            raise self._fault
        return super().write(text)

    def fileno(self) -> int:
        return self._descriptor


@pytest.fixture
def descriptor() -> Iterator[int]:
    """One that may be turned into another file."""
    number = os.open(os.devnull, os.O_WRONLY)
    yield number
    os.close(number)


def test_a_reader_that_goes_ends_the_work(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def pieces() -> Iterator[str]:
        for number in range(10):
            made.append(number)
            yield str(number)

    monkeypatch.setattr(sys, "stdout", Pipe(BrokenPipeError(), descriptor))
    write_pieces(pieces(), None, quiet=False)
    assert made == [0, 1]


def test_a_full_disk_is_reported(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = OSError(28, "No space left on device")
    monkeypatch.setattr(sys, "stdout", Pipe(fault, descriptor))
    with pytest.raises(UsageError, match="stdout: cannot be written: No space left on device"):
        write_pieces(["one", "two"], None, quiet=False)


def test_names_that_the_terminal_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    under = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(under, encoding="ascii"))
    write_pieces(["größe\n"], None, quiet=False)
    assert under.getvalue() == rb"gr\xf6\xdfe" + b"\n"


def test_a_file_is_named_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows"
    write_pieces(["a\n", "ö\n"], str(path), quiet=True)
    assert path.read_bytes() == "a\nö\n".encode()
    assert capsys.readouterr().err == ""
    write_pieces([], str(path), quiet=False)
    assert capsys.readouterr().err == f"Wrote {path}\n"
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        write_pieces([], str(tmp_path), quiet=False)
