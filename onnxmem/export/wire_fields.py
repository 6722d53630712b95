"""Fields of a protobuf message in place, for a file that is read to be written again.

Wire format: https://protobuf.dev/programming-guides/encoding/ . The file was read whole when the
model was loaded, which refuses what is unsound: nothing is checked a second time.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from onnxmem.model.wire import ByteSource, Piece

__all__ = ["Field", "Piece", "bytes_field", "fields", "num_bytes"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_CONTINUED: Final = 0x80


class Field(NamedTuple):
    """A field of a message."""

    number: int
    whole: slice
    """With its tag and length."""
    content: slice


def fields(data: ByteSource, start: int, end: int) -> Iterator[Field]:
    """The fields of the message between two places, in order.

    :raises IndexError: the bytes end before the message.
    """
    while start < end:
        tag, content = _varint(data, start)
        kind = tag & 7
        if kind == _BYTES:
            length, content = _varint(data, content)
            stop = content + length
        elif kind == _VARINT:
            stop = _varint(data, content)[1]
        else:
            stop = content + _FIXED_SIZES[kind]
        if stop > end:
            raise IndexError
        yield Field(tag >> 3, slice(start, stop), slice(content, stop))
        start = stop


def bytes_field(number: int, content: Iterable[Piece]) -> list[Piece]:
    """A field of a message, a text or bytes: its tag, its length, its content."""
    pieces = list(content)
    head = _written((number << 3) | _BYTES) + _written(num_bytes(pieces))
    if all(isinstance(piece, bytes) for piece in pieces):
        return [head + b"".join(piece for piece in pieces if isinstance(piece, bytes))]
    return [head, *pieces]


def num_bytes(pieces: Iterable[Piece]) -> int:
    """Bytes of pieces."""
    return sum(
        len(piece) if isinstance(piece, bytes) else piece.stop - piece.start for piece in pieces
    )


def _varint(data: ByteSource, place: int) -> tuple[int, int]:
    """An integer, and where it ends."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & (_CONTINUED - 1)) << shift
        if byte < _CONTINUED:
            return value, place
        shift += 7


def _written(value: int) -> bytes:
    out = bytearray()
    while value >= _CONTINUED:
        out.append(value & (_CONTINUED - 1) | _CONTINUED)
        value >>= 7
    out.append(value)
    return bytes(out)
