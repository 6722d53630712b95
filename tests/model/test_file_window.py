"""Bytes of a file by place, held to the same bytes in memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxmem.errors import ModelFileError
from onnxmem.model.files import FileWindow

NUM_BYTES = 3 * (1 << 14) + 17
"""Three windows and a bit."""

CONTENT = (bytes(range(251)) * (NUM_BYTES // 251 + 1))[:NUM_BYTES]
"""A period that divides no window."""

CUT = "truncated: the file became shorter while it was read; try again when it is whole"

places = st.one_of(
    st.integers(0, NUM_BYTES - 1),
    st.sampled_from([edge + off for edge in (1 << 14, 1 << 15, 3 << 14) for off in (-1, 0, 1)]),
)
bounds = st.one_of(st.none(), st.integers(-NUM_BYTES - 3, NUM_BYTES + 3))


@contextmanager
def window(file: Path) -> Iterator[FileWindow]:
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        yield FileWindow(descriptor, file.stat().st_size)
    finally:
        os.close(descriptor)


@pytest.fixture(name="file", scope="module")
def file_of_content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("window") / "content"
    file.write_bytes(CONTENT)
    return file


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(places, st.builds(slice, bounds, bounds)), max_size=30))
def test_reads_in_any_order_are_those_of_the_bytes(file: Path, reads: list[int | slice]) -> None:
    with window(file) as data:
        assert len(data) == NUM_BYTES
        for place in reads:
            assert data[place] == CONTENT[place]


def test_the_bytes_one_by_one_are_the_file(file: Path) -> None:
    with window(file) as data:
        assert bytes(data[place] for place in range(len(data))) == CONTENT


def test_a_byte_beyond_the_end_is_an_index_error(file: Path) -> None:
    with window(file) as data, pytest.raises(IndexError):
        data[NUM_BYTES]


def test_a_slice_stops_at_the_size_that_the_file_had(tmp_path: Path) -> None:
    file = tmp_path / "grows"
    file.write_bytes(b"abc")
    with window(file) as data:
        file.write_bytes(b"abcdef")
        assert data[1:6] == b"bc"
        assert data[2] == ord("c")
        with pytest.raises(IndexError):
            data[3]


@pytest.mark.parametrize("place", [11, slice(3, 13)], ids=["byte", "slice"])
def test_a_file_that_is_cut_meanwhile_is_refused(tmp_path: Path, place: int | slice) -> None:
    file = tmp_path / "shrinks"
    file.write_bytes(b"0123456789abc")
    with window(file) as data:
        os.truncate(file, 7)
        with pytest.raises(ModelFileError) as caught:
            data[place]
    assert str(caught.value) == CUT


def test_a_run_that_the_system_returns_in_parts_is_put_together(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, count: whole(descriptor, min(count, 1000)))
    with window(file) as data:
        assert data[5:7919] == CONTENT[5:7919]
