"""A copy of a model file in which pieces are changed or moved, a megabyte in memory at a time."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from onnxmem.errors import UsageError, shortened
from onnxmem.model.files import FileWindow
from onnxmem.model.wire import Piece

_CHUNK_BYTES: Final = 1 << 20


def write_copy(pieces: Iterable[Piece], window: FileWindow, target: Path) -> None:
    """Write the copy beside its place first: a failure leaves no half of a model there.

    :raises UsageError: the place cannot be written to.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as copy:
            try:
                copy.writelines(_contents(pieces, window))
                copy.close()
                _take_place(Path(copy.name), target)
            finally:
                Path(copy.name).unlink(missing_ok=True)
    except OSError as fault:
        message = f"{shortened(str(target))}: cannot be written: {fault.strerror}"
        raise UsageError(message) from fault


def _contents(pieces: Iterable[Piece], window: FileWindow) -> Iterator[bytes]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
            continue
        for start in range(piece.start, piece.stop, _CHUNK_BYTES):
            yield window[start : min(start + _CHUNK_BYTES, piece.stop)]


def _take_place(copy: Path, target: Path) -> None:
    """A temporary file is its owner's alone; a result is as readable as any new file."""
    mask = os.umask(0)
    os.umask(mask)
    copy.chmod(0o666 & ~mask)
    copy.replace(target)
