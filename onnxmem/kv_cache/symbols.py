"""What a file calls the tokens of a step: past, new, and both together.

1. Past: the axis of tokens of what grows. A buffer's: its whole length.
2. New tokens: what a present length adds to the past (``past + sequence``); else the second axis of
   the ids or embeddings that are handed in; else, as an assumption, the one symbol that is left.
3. Both together: inputs' dims that read as a present length does; else the last axis of a mask,
   which its name alone says: an assumption.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx

from onnxmem.errors import shortened
from onnxmem.kv_cache.cache import Course, Part, Symbols
from onnxmem.model.binding import Dims, given_inputs, input_dims, names_in

_IDS: Final = re.compile(
    r"(?:.*[._/])?(?:decoder_)?(?:input_?ids|inputs?_?embeds|tokens?|ids)(?:[.:]\d+)?"
)
_MASK: Final = re.compile(r".*mask.*", re.IGNORECASE)


def symbols_of(
    graph: onnx.GraphProto, parts: Sequence[Part], batch: frozenset[str]
) -> tuple[Symbols, tuple[str, ...]]:
    """What each role is called, and what is assumed of it."""
    caches = {part.name for part in parts}
    declared = {value.name: input_dims(value) for value in given_inputs(graph)}
    inputs = {name: dims for name, dims in declared.items() if dims and name not in caches}
    past = _lengths(parts, Course.GROWS)
    buffer = _lengths(parts, Course.BUFFER)
    symbols = {dim for dims in inputs.values() for dim in dims if isinstance(dim, str)}
    sequence, fixed = _sequence(inputs, parts, {*batch, *past, *buffer})
    taken = {*batch, *past, *buffer, *sequence}
    presents = {part.present_length for part in parts if part.course is Course.GROWS} - taken
    total = [symbol for symbol in symbols if symbol in presents]
    masks = dict(_masks(inputs, taken | {*total}))
    assumptions = tuple(
        f"{shortened(symbol)} is past and new tokens: the last axis of {shortened(name)}"
        for symbol, name in masks.items()
        if not names_in(symbol) & taken
    )
    encoders = {*_lengths(parts, Course.ENCODER)}
    left = sorted(symbols - taken - encoders - {*total, *masks})
    if not sequence and fixed is None and len(left) == 1:
        sequence = (left[0],)
        text = f"{shortened(left[0])} is new tokens: no other dim of the inputs is left open"
        assumptions = (*assumptions, text)
    return (
        Symbols(
            batch=tuple(sorted(batch)),
            past=past,
            buffer=buffer,
            sequence=sequence,
            total=tuple(sorted({*total, *masks})),
            fixed_sequence=fixed,
        ),
        assumptions,
    )


def _lengths(parts: Sequence[Part], course: Course) -> tuple[str, ...]:
    lengths = (part.past_length for part in parts if part.course is course)
    return tuple(dict.fromkeys(length for length in lengths if isinstance(length, str)))


def _sequence(
    inputs: Mapping[str, Dims], parts: Sequence[Part], taken: set[str]
) -> tuple[tuple[str, ...], int | None]:
    """The symbols of the new tokens; else their number, where the file fixes it."""
    symbols = {dim for dims in inputs.values() for dim in dims if isinstance(dim, str)}
    added: set[str] = set()
    for part in parts:
        if part.course is Course.GROWS and isinstance(part.present_length, str):
            added |= (names_in(part.present_length) - taken) & symbols
    ids = [_token_dim(dims) for name, dims in inputs.items() if _IDS.fullmatch(name.lower())]
    found = {*added, *(dim for dim in ids if isinstance(dim, str) and dim not in taken)}
    if found:
        return tuple(sorted(found)), None
    return (), next((dim for dim in ids if isinstance(dim, int)), None)


def _token_dim(dims: Dims) -> str | int:
    """The axis of tokens of ids ``[batch, tokens]`` and of embeddings; of a flat list, the one."""
    return dims[1] if len(dims) > 1 else dims[0]


def _masks(inputs: Mapping[str, Dims], taken: set[str]) -> Iterator[tuple[str, str]]:
    for name, dims in inputs.items():
        last = dims[-1]
        if _MASK.fullmatch(name) and isinstance(last, str) and last not in taken:
            yield last, name
