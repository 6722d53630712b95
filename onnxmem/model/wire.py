"""Read and write the protobuf wire format of a model without loading its weights.

``without_payloads`` reads only tags and lengths and skips the bytes of large tensors, so a 3 GiB
file takes a few reads. The result is the serialized model without these payloads: names, dims and
types stay, and so do small tensors that shapes depend on. ``fields`` and ``bytes_field`` serve
writers that copy a file piece by piece.

Wire format: https://protobuf.dev/programming-guides/encoding/ ; field numbers: onnx.proto3.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, overload

from onnxmem.errors import ModelFileError
from onnxmem.units import plural


class ByteSource(Protocol):
    """Bytes by offset: ``bytes``, a ``memoryview``, or a ``FileWindow``."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, offset: int, /) -> int: ...

    @overload
    def __getitem__(self, offset: slice, /) -> bytes | memoryview: ...


Piece = bytes | slice
"""New bytes, or a range of the source."""


class Field(NamedTuple):
    """A field of a message, as ranges of the source."""

    number: int
    whole: slice
    """The field with its tag and length."""
    content: slice


LIMIT_BYTES = 2**31 - 1
"""Protobuf's limit of the size of a message, so no runtime reads a larger one
(https://protobuf.dev/programming-guides/proto-limits/)."""

_KEEP_BYTES = 512
"""Messages up to this size are copied as they are."""
_KEEP_INTEGER_BYTES = 8192
"""Integer tensors up to this size keep their payload: shapes, axes, indices, splits."""
# ``CodedInputStream::default_recursion_limit_`` (google/protobuf/io/coded_stream.cc).
_MAX_DEPTH = 100
"""Protobuf's limit of nested messages."""
_VARINT_BITS = 70

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}

_TENSOR_DATA_TYPE = 2
_TENSOR_PAYLOADS = frozenset({4, 5, 6, 7, 9, 10, 11, 12})  # and its doc_string, 12
_INTEGER_TYPES = frozenset({2, 3, 4, 5, 6, 7, 9, 12, 13, 21, 22, 25, 26})


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    """The fields of a message type that may contain tensors: field number -> message type."""

    name: str
    fields: Mapping[int, "_Message"]
    dropped: frozenset[int] = frozenset()
    """What nothing reads: the ``doc_string``, which may be the largest part, and others."""


_TENSOR = _Message("TensorProto", {})
_SPARSE = _Message("SparseTensorProto", {1: _TENSOR, 2: _TENSOR})
_attribute_fields: dict[int, _Message] = {5: _TENSOR, 10: _TENSOR, 22: _SPARSE, 23: _SPARSE}
_ATTRIBUTE = _Message("AttributeProto", _attribute_fields, dropped=frozenset({13}))
_NODE = _Message("NodeProto", {5: _ATTRIBUTE}, dropped=frozenset({6}))
_VALUE = _Message("ValueInfoProto", {}, dropped=frozenset({3}))
_GRAPH = _Message(
    "GraphProto",
    {1: _NODE, 5: _TENSOR, 11: _VALUE, 12: _VALUE, 13: _VALUE, 15: _SPARSE},
    dropped=frozenset({10}),
)
_attribute_fields.update({6: _GRAPH, 11: _GRAPH})
_FUNCTION = _Message(
    "FunctionProto", {7: _NODE, 11: _ATTRIBUTE, 12: _VALUE}, dropped=frozenset({8})
)
_TRAINING_INFO = 20  # graphs of a training algorithm: no part of inference
_MODEL = _Message("ModelProto", {7: _GRAPH, 25: _FUNCTION}, dropped=frozenset({6, _TRAINING_INFO}))


def without_payloads(data: ByteSource) -> bytes:
    """Serialize the model without the payloads of its large tensors.

    :raises ModelFileError: the file is truncated, is not a protobuf message, or has over 2 GiB
        without the weights.
    """
    pieces = _message_pieces(data, 0, len(data), _MODEL, 0)
    if num_bytes(pieces) > LIMIT_BYTES:
        message = "the model has over 2 GiB without its weights; no runtime reads such a model"
        raise ModelFileError(message)
    return b"".join(piece if isinstance(piece, bytes) else bytes(data[piece]) for piece in pieces)


def fields(data: ByteSource, start: int, end: int) -> Iterator[Field]:
    """The fields of the message between two offsets, in order.

    :raises ModelFileError: the message is truncated, or the bytes are not a protobuf message.
    """
    while start < end:
        number, content, stop = _next_field(data, start, end, _MODEL)
        yield Field(number, slice(start, stop), slice(content, stop))
        start = stop


def bytes_field(number: int, content: Iterable[Piece]) -> list[Piece]:
    """A length-delimited field (a message, a string or bytes): its tag, length and content."""
    # The length is the sum of the pieces, so a message is only written after all its submessages.
    pieces = list(content)
    head = _varint((number << 3) | _BYTES) + _varint(num_bytes(pieces))
    if all(isinstance(piece, bytes) for piece in pieces):
        return [head + b"".join(piece for piece in pieces if isinstance(piece, bytes))]
    return [head, *pieces]


def num_bytes(pieces: Iterable[Piece]) -> int:
    """The total size of pieces."""
    return sum(
        len(piece) if isinstance(piece, bytes) else piece.stop - piece.start for piece in pieces
    )


def _message_pieces(
    data: ByteSource, start: int, end: int, kind: _Message, depth: int
) -> list[Piece]:
    """Cut a message into the pieces that stay, with smaller submessages in between."""
    # Invariant: everything before ``kept_from`` is in ``pieces`` already, and the bytes from there
    # to ``position`` stay as they are. So a long run of untouched fields is one slice, and nothing
    # of it is read but tags and lengths.
    if depth > _MAX_DEPTH:
        message = f"messages are nested over {_MAX_DEPTH} deep; no runtime reads such a model"
        raise ModelFileError(message)
    pieces: list[Piece] = []
    kept_from = position = start
    while position < end:
        field_start = position
        number, content, position = _next_field(data, position, end, kind)
        inner = kind.fields.get(number)
        if number in kind.dropped:
            replacement: list[Piece] = []
        elif inner is None or position - content <= _KEEP_BYTES:
            continue
        else:
            replacement = _smaller(data, number, (content, position), inner, depth)
        pieces.append(slice(kept_from, field_start))
        pieces.extend(replacement)
        kept_from = position
    pieces.append(slice(kept_from, end))
    return pieces


def _smaller(
    data: ByteSource, number: int, span: tuple[int, int], kind: _Message, depth: int
) -> list[Piece]:
    """A length-delimited field with its content reduced."""
    if kind is _TENSOR:
        content = _tensor_pieces(data, *span)
    else:
        content = _message_pieces(data, *span, kind, depth + 1)
    return bytes_field(number, content)


def _tensor_pieces(data: ByteSource, start: int, end: int) -> list[Piece]:
    """Remove the payload fields of a tensor, unless shapes may depend on its elements."""
    # The element type may come after the payload: protobuf does not order fields. So the decision
    # is made at the end.
    pieces: list[Piece] = []
    elem_type = 0
    kept_from = position = start
    while position < end:
        field_start = position
        number, content, position = _next_field(data, position, end, _TENSOR)
        # Of a number that is written twice the last counts, as protobuf reads it.
        if number == _TENSOR_DATA_TYPE:
            elem_type = _read_varint(data, content, end)[0]
        if number in _TENSOR_PAYLOADS:
            pieces.append(slice(kept_from, field_start))
            kept_from = position
    if elem_type in _INTEGER_TYPES and end - start <= _KEEP_INTEGER_BYTES:
        return [slice(start, end)]
    pieces.append(slice(kept_from, end))
    return pieces


def _next_field(data: ByteSource, position: int, end: int, kind: _Message) -> tuple[int, int, int]:
    """The number of the field at a position, the start of its content, and its end."""
    # The field is checked against ``end`` before anyone uses its length: a length in a damaged or
    # hostile file may point anywhere.
    tag, content = _read_varint(data, position, end)
    number, wire_type = tag >> 3, tag & 7
    if wire_type == _BYTES:
        length, content = _read_varint(data, content, end)
        stop = content + length
    elif wire_type == _VARINT:
        stop = _read_varint(data, content, end)[1]
    # Groups (3 and 4) are refused with the rest: onnx.proto3 has none.
    elif wire_type in _FIXED_SIZES:
        stop = content + _FIXED_SIZES[wire_type]
    else:
        raise ModelFileError(_invalid(f"byte {position} is not a field of a {kind.name}"))
    if number == 0:
        raise ModelFileError(_invalid(f"byte {position} is field 0 of a {kind.name}"))
    if stop > end:
        raise ModelFileError(_truncated(position, stop - end, kind))
    return number, content, stop


def _read_varint(data: ByteSource, position: int, end: int) -> tuple[int, int]:
    """Read a base-128 integer; returns its value and end."""
    # Seven bits a byte, the lowest first; the high bit says that another follows. Ten bytes hold 64
    # bits, and more is refused: a file of 0x80 alone would otherwise be one number without an end.
    value = shift = 0
    while position < end and shift < _VARINT_BITS:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return value, position
        shift += 7
    if position >= end:
        raise ModelFileError(_truncated(position, 1, _MODEL))
    raise ModelFileError(_invalid(f"the integer at byte {position - shift // 7} is too long"))


def _invalid(what: str) -> str:
    return f"not an ONNX model: {what}; export or download it again"


def _truncated(position: int, missing_bytes: int, kind: _Message) -> str:
    return (
        f"truncated: the {kind.name} field at byte {position} is {plural(missing_bytes, 'byte')} "
        "longer than the file; copy or download the file again"
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
