"""Which weights of a file hold the same elements, read from the file itself.

The analysis leaves payloads where they are. Here two of them are compared, where element type and
dims (as they are, or turned around) make that possible: a sample of each first, then all of it, a
piece at a time. Weights outside the file are not opened, and nothing is said of them.

Wire format: https://protobuf.dev/programming-guides/encoding/ ; field numbers: onnx.proto3.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx

_LEAST_BYTES: Final = 1024
"""Smaller weights are not worth a change of the file."""
_SAMPLE_BYTES: Final = 4096
_SAMPLED_ROWS: Final = 16
_PIECE_BYTES: Final = 1 << 22
_GRAPH, _INITIALIZER, _NAME, _RAW = 7, 5, 8, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TABLE_RANK: Final = 2


@dataclass(frozen=True, slots=True)
class Twin:
    """A weight whose elements another one holds too."""

    name: str
    first: str
    """The one that is kept."""
    size_bytes: int
    is_turned: bool
    """Whether rows of one are columns of the other."""


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    size_bytes: int


def twins(path: str, graph: onnx.GraphProto) -> tuple[Twin, ...]:
    """Every weight that repeats another one of the file; none where there is no such file."""
    if not Path(path).is_file():
        return ()
    groups: dict[tuple[int, tuple[int, ...], int], list[onnx.TensorProto]] = defaultdict(list)
    try:
        with Path(path).open("rb", buffering=0) as file:
            spans = dict(_payloads(file.fileno()))
            for tensor in graph.initializer:
                span = spans.get(tensor.name)
                if span is not None and span.size_bytes >= _LEAST_BYTES:
                    key = (tensor.data_type, tuple(sorted(tensor.dims)), span.size_bytes)
                    groups[key].append(tensor)
            found = (_twins_in(file.fileno(), group, spans) for group in groups.values())
            return tuple(twin for group in found for twin in group)
    except (OSError, ValueError):
        return ()


def _twins_in(
    descriptor: int, group: list[onnx.TensorProto], spans: Mapping[str, _Span]
) -> Iterator[Twin]:
    """Those of one element type and size that repeat one before them."""
    firsts: list[onnx.TensorProto] = []
    samples: dict[str, bytes] = {}
    for tensor in group if len(group) > 1 else ():
        span = spans[tensor.name]
        sampled_bytes = min(_SAMPLE_BYTES, span.size_bytes)
        samples[tensor.name] = _read(descriptor, sampled_bytes, span.start)
        for first in firsts:
            other = spans[first.name]
            if tuple(first.dims) == tuple(tensor.dims):
                is_twin = samples[first.name] == samples[tensor.name] and (
                    _digest(descriptor, other) == _digest(descriptor, span)
                )
            else:
                is_twin = _is_turned(descriptor, (first, other), (tensor, span))
            if is_twin:
                is_turned = tuple(first.dims) != tuple(tensor.dims)
                yield Twin(tensor.name, first.name, span.size_bytes, is_turned)
                break
        else:
            firsts.append(tensor)


def _digest(descriptor: int, span: _Span) -> bytes:
    total = hashlib.blake2b()
    for start in range(0, span.size_bytes, _PIECE_BYTES):
        length = min(_PIECE_BYTES, span.size_bytes - start)
        total.update(_read(descriptor, length, span.start + start))
    return total.digest()


def _is_turned(
    descriptor: int,
    one: tuple[onnx.TensorProto, _Span],
    other: tuple[onnx.TensorProto, _Span],
) -> bool:
    """Whether one table is the other with rows for columns, of whole bytes an element."""
    rows, columns = tuple(one[0].dims), tuple(other[0].dims)
    elements = int(np.prod(rows))
    width, rest = divmod(one[1].size_bytes, elements) if elements else (0, 1)
    if len(rows) != _TABLE_RANK or rows != columns[::-1] or rest:
        return False
    column = b"".join(
        _read(descriptor, width, other[1].start + place * columns[1] * width)
        for place in range(min(columns[0], _SAMPLED_ROWS))
    )
    if _read(descriptor, len(column), one[1].start) != column:
        return False
    tables = []
    for shape, span in ((rows, one[1]), (columns, other[1])):
        pieces = [
            _read(descriptor, min(_PIECE_BYTES, span.size_bytes - start), span.start + start)
            for start in range(0, span.size_bytes, _PIECE_BYTES)
        ]
        tables.append(np.frombuffer(b"".join(pieces), np.dtype((np.void, width))).reshape(shape))
    return bool(tables[0].tobytes() == tables[1].T.tobytes())


def _payloads(descriptor: int) -> Iterator[tuple[str, _Span]]:
    """Where the raw data of each initializer of the main graph lies.

    :raises ValueError: the bytes are no protobuf; a model that was read before is.
    """
    end = os.fstat(descriptor).st_size
    for number, start, stop in _fields(descriptor, 0, end):
        if number != _GRAPH:
            continue
        for inner, tensor_start, tensor_stop in _fields(descriptor, start, stop):
            if inner == _INITIALIZER:
                yield from _payload(descriptor, tensor_start, tensor_stop)


def _payload(descriptor: int, start: int, stop: int) -> Iterator[tuple[str, _Span]]:
    name, span = "", None
    for number, content, end in _fields(descriptor, start, stop):
        if number == _NAME:
            name = _read(descriptor, end - content, content).decode(errors="surrogateescape")
        if number == _RAW:
            span = _Span(content, end - content)
    if name and span is not None:
        yield name, span


def _fields(descriptor: int, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field's number, where its content starts and where it stops."""
    while position < end:
        head = _read(descriptor, 20, position)
        tag, place = _varint(head, 0)
        content, wire_type = position + place, tag & 7
        if wire_type == _BYTES:
            length, place = _varint(head, place)
            content = position + place
            stop = content + length
        elif wire_type == _VARINT:
            stop = position + _varint(head, place)[1]
        elif wire_type in {_FIXED64, _FIXED32}:
            stop = content + (8 if wire_type == _FIXED64 else 4)
        else:
            raise ValueError(wire_type)
        yield tag >> 3, content, stop
        position = stop


def _varint(data: bytes, start: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[start:], start=start):
        value |= (byte & 0x7F) << 7 * (place - start)
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return value, place + 1
    raise ValueError(start)


def _read(descriptor: int, num_bytes: int, start: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, num_bytes)
