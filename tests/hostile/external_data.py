"""Weights that lie outside, where nothing may be opened: sizes follow from their dims."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import onnx
from graphs import model_of

from hostile.hostile_file import ANALYZED, HostileFile
from hostile.special_files import fifo

TEXT: Final = "agraph (float[2,1024] x) => (y) <float[1024,1024] w> { y = MatMul(x, w) }"
SPARSE_BYTES: Final = 20 * 2**30


def kept_at(**place: str) -> Callable[[Path], None]:
    """Set a location of the weight; ``{self}`` is replaced by the file's name."""
    return lambda path: _write(path, place)


def _write(path: Path, place: Mapping[str, str]) -> None:
    model = model_of(TEXT)
    weight = model.graph.initializer[0]
    del weight.external_data[:]
    for key, value in place.items():
        weight.external_data.add(key=key, value=value.replace("{self}", path.name))
    onnx.save(model, path)


def beside(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Put something else where the weights should be."""

    def write(path: Path) -> None:
        bait = path.with_suffix(".weights")
        make(bait)
        _write(path, {"location": bait.name})

    return write


def hard_link(path: Path) -> None:
    """Give a file a second name."""
    secret = path.with_suffix(".secret")
    secret.write_bytes(b"secret")
    os.link(secret, path)


def sparse(path: Path) -> None:
    """Make 20 GiB of zeros that take no space on the disk."""
    path.touch()
    os.truncate(path, SPARSE_BYTES)


PLACES: Final = {
    "up and out": kept_at(location="../../../../etc/passwd"),
    "absolute": kept_at(location="/etc/passwd"),
    "device": kept_at(location="/dev/zero"),
    "url": kept_at(location="http://127.0.0.1:1/weights"),
    "windows": kept_at(location="C:\\Windows\\win.ini"),
    "itself": kept_at(location="{self}"),
    "missing": kept_at(location="nowhere.weights"),
    "no place": kept_at(),
    "empty place": kept_at(location=""),
    "nul": kept_at(location="a\0b"),
    "long": kept_at(location="a" * 2**20),
    "negative offset": kept_at(location="w", offset="-1", length="4194304"),
    "huge offset": kept_at(location="w", offset=str(2**63), length="4194304"),
    "negative length": kept_at(location="w", offset="0", length="-4194304"),
    "petabyte": kept_at(location="w", offset="0", length=str(10**15)),
    "short": kept_at(location="w", offset="0", length="16"),
    "no number": kept_at(location="w", offset="zero", length="many"),
    "number of a million digits": kept_at(location="w", offset="0", length="9" * 10**6),
    "dunder": kept_at(location="w", __class__="x", __dict__="y", tensor="z"),
    "checksum": kept_at(location="w", checksum="not it"),
    "fifo": beside(fifo),
    "folder": beside(Path.mkdir),
    "link": beside(lambda path: path.symlink_to("/etc/passwd")),
    "hard link": beside(hard_link),
    "20 GiB": beside(sparse),
}

FILES: Final = tuple(
    HostileFile("external", name, write, ANALYZED) for name, write in PLACES.items()
)
