"""The cache of one model: its tensors, which inputs they are, what the file calls their dims.

A cache is handed in with what earlier tokens left and handed out with the new ones added. Its bytes
are the product of its dims, as of any tensor: for keys and values ``2 x layers x kv_heads x
head_size x bytes per element`` a token, which is 2 x ``[batch, kv_heads, tokens, head_size]`` a
layer (Pope et al. 2022, arXiv:2211.05102, section 2.1; Ainslie et al. 2023, arXiv:2305.13245, for
fewer key-value heads than query heads).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Final

import onnx

from onnxmem.errors import Finding, shortened
from onnxmem.kv_cache.candidates import Candidate, Flow, Holds, Label, label_of
from onnxmem.model.binding import Dims, evaluated, input_dims, names_in, required_inputs
from onnxmem.model.building import Prepared
from onnxmem.model.graph import DType, dtype_of
from onnxmem.model.traversal import outer_reads, subgraphs

_IN_PLACE: Final = frozenset(
    {
        *("GroupQueryAttention", "SparseAttention", "DecoderMaskedMultiHeadAttention"),
        *("DecoderMaskedSelfAttention", "TensorScatter"),
    }
)
"""Operators that may have one buffer for past and present, as their documents say (onnxruntime's
ContribOperators.md; ONNX, TensorScatter-24).
"""
_NAMED: Final = "name and shape"
_FEW: Final = 2
_RANKS: Final = range(3, 6)
_STATE_RANKS: Final = range(2, 6)
_BYTE: Final = 8
_CONVENTION: Final = 2
"""The axis of tokens in ``[batch, kv_heads, tokens, head_size]``."""
_IDS: Final = re.compile(
    r"(?:.*[._/])?(?:decoder_)?(?:input_?ids|inputs?_?embeds|tokens?|ids)(?:[.:]\d+)?"
)
_MASK: Final = re.compile(r".*mask.*", re.IGNORECASE)


class Course(StrEnum):
    """How its length follows the context."""

    GROWS = "grows"
    """Past tokens come in, past and new ones go out."""
    BUFFER = "buffer"
    """A buffer as long as the longest context: past and present have the same length."""
    FIXED = "fixed"
    """A number of tokens that the file fixes: a window, or a static buffer."""
    ENCODER = "encoder"
    """As long as the encoder's sequence."""
    CONSTANT = "constant"
    """No length at all: a state."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor that is handed in, and the one that is handed out for it."""

    name: str
    output: str | None
    """``None``: it is only read, as an encoder's."""
    holds: Holds
    course: Course
    layer: int | None
    dims: Dims
    dtype: DType
    length_axis: int | None
    """The axis of tokens; ``None`` where there is none."""
    batch_axis: int
    present_length: str | int | None
    """What the file writes for the tokens that go out."""
    found_by: str
    """The operator that reads and writes it, or ``name and shape``."""
    query_heads: int | None = None
    """Of the attention that reads it, where the operator says."""
    is_layout_assumed: bool = False
    """Whether the axis of tokens is a convention's, and nothing in the file says so."""

    @property
    def past_length(self) -> str | int | None:
        """What the file writes for the tokens that come in."""
        return None if self.length_axis is None else self.dims[self.length_axis]

    @property
    def follows_context(self) -> bool:
        """Whether a longer context makes it larger."""
        return self.course in {Course.GROWS, Course.BUFFER}

    @property
    def can_share(self) -> bool:
        """Whether past and present may be one buffer: they are equally long, or the operator
        writes new tokens behind the old ones in place.
        """
        if self.output is None or self.course is Course.ENCODER:
            return False
        return self.found_by in _IN_PLACE or (
            self.course is not Course.GROWS and self.present_length == self.past_length
        )

    @property
    def layout(self) -> str | None:
        """Order of batch, heads, tokens and head size, as in ``bnsh``; ``None`` at other ranks."""
        if len(self.dims) - self._stacked != 4 or self.length_axis is None:  # noqa: PLR2004
            return None
        letters = {self.batch_axis: "b", self.length_axis: "s"}
        others = iter("nh")
        axes = range(self._stacked, len(self.dims))
        return "".join(letters.get(axis) or next(others) for axis in axes)

    @property
    def kv_heads(self) -> int | None:
        """Heads of keys and values."""
        return self._size_of("n")

    @property
    def head_size(self) -> int | None:
        """Elements of a head."""
        return self._size_of("h")

    @property
    def _stacked(self) -> int:
        """1 where keys and values are stacked on a first axis: ``[2, batch, ...]``."""
        return int(self.holds is Holds.BOTH and self.dims[0] == 2)  # noqa: PLR2004 - two

    def _size_of(self, letter: str) -> int | None:
        layout = self.layout
        if layout is None or letter not in layout:
            return None
        dim = self.dims[layout.index(letter) + self._stacked]
        return dim if isinstance(dim, int) else None

    def size_bytes(self, numbers: Mapping[str, int], tokens: int | None = None) -> int | None:
        """``ceil(elements x bits / 8)``; ``tokens``: of a context, where its length follows that.

        ``None`` where a dim has no number.
        """
        dims: list[str | int] = list(self.dims)
        if tokens is not None and self.length_axis is not None and self.follows_context:
            dims[self.length_axis] = tokens
        sizes = [dim if isinstance(dim, int) else evaluated(dim, numbers) for dim in dims]
        known = [size for size in sizes if size is not None]
        bits = self.dtype.bits
        if len(known) < len(sizes) or bits is None:
            return None
        return -(-prod(known) * bits // 8)


@dataclass(frozen=True, slots=True)
class Symbols:
    """What the file calls the dims of a step; an expression stands as it is written."""

    batch: tuple[str, ...]
    past: tuple[str, ...]
    buffer: tuple[str, ...]
    sequence: tuple[str, ...]
    total: tuple[str, ...]
    fixed_sequence: int | None = None
    """The number of new tokens, where the file fixes it."""


@dataclass(frozen=True, slots=True)
class KvCache:
    """The cache of one model."""

    parts: tuple[Part, ...]
    symbols: Symbols
    prepared: Prepared
    """The model that it was found in, no dim bound."""
    assumptions: tuple[str, ...] = ()
    """What names alone say."""

    @property
    def num_layers(self) -> int:
        """Layers that have a cache: numbers in names, or tensors of keys."""
        numbers = {part.layer for part in self.parts if part.layer is not None}
        keys = [part for part in self.parts if part.holds in {Holds.KEYS, Holds.BOTH}]
        return len(numbers) or len(keys) or -(-len(self.parts) // 2)

    @property
    def shared(self) -> tuple[Part, ...]:
        """Parts of which a caller may bind past and present to one buffer."""
        return tuple(part for part in self.parts if part.can_share)


@dataclass(frozen=True, slots=True)
class _Pair:
    """An input, and the output that may be its present."""

    dims: Dims
    present: Dims | None
    dtype: DType
    holds: Holds
    length_axis: int | None
    """As an operator says."""


@dataclass(frozen=True, slots=True)
class _CacheAxes:
    """A shape that is a cache's."""

    batch_axis: int
    length_axis: int | None
    is_assumed: bool = False


def find_cache(
    prepared: Prepared, candidates: Iterable[Candidate]
) -> tuple[KvCache | None, tuple[Finding, ...]]:
    """The cache of a model among the inputs that may be it, and what is only named like one.

    1. What a cache operator takes from a graph input and hands to a graph output; a bare Concat
       counts where its length is a symbol, its output is read on, and there are two or more, for
       images are joined too.
    2. What is named as a cache, has an output named as its present, and shapes that fit
       (``_shaped``).
    3. What is named as an encoder's cache beside such, and is only read.

    A name whose shapes do not fit is a remark, and counts nowhere.
    """
    graph = prepared.proto.graph
    outputs = {value.name: value for value in graph.output}
    parts: list[Part] = []
    remarks: list[Finding] = []
    for candidate in candidates:
        found = _part(candidate, outputs, prepared.batch_symbols)
        if isinstance(found, Part):
            parts.append(found)
        elif candidate.label.suggests_cache and candidate.label.holds is not Holds.UNKNOWN:
            name = shortened(candidate.value.name)
            text = f"{name} is named as a cache is, and not counted as one: {found}"
            remarks.append(Finding("no_cache", text))
    kept = _kept(parts)
    if not kept:
        return None, tuple(remarks)
    symbols, assumptions = _symbols_of(graph, kept, prepared.batch_symbols)
    assumptions = (*assumptions, *_assumptions(graph, kept))
    return KvCache(kept, symbols, prepared, assumptions), tuple(remarks)


def _assumptions(graph: onnx.GraphProto, parts: tuple[Part, ...]) -> Iterator[str]:
    if any(part.is_layout_assumed for part in parts):
        yield "of four dims, all of them numbers, the third is taken for that of tokens"
    names = {part.name for part in parts}
    branches = [
        inner for node in graph.node if node.op_type == "If" for _, inner in subgraphs(node)
    ]
    if any(outer_reads(inner) & names for inner in branches):
        yield "of an If the branch that takes more counts, in every step"


def _part(
    candidate: Candidate, outputs: Mapping[str, onnx.ValueInfoProto], batch: frozenset[str]
) -> Part | str:
    """The candidate as a part of the cache, or why it is none."""
    value, label, flow = candidate.value, candidate.label, candidate.flow
    dims, dtype = input_dims(value), dtype_of(value.type.tensor_type.elem_type)
    if dims is None or dtype is None:
        return "its shape or element type is not said"
    present = None if candidate.present is None else outputs[candidate.present]
    if present is None and not label.is_encoders and (flow is None or flow.op_type == "Concat"):
        return "no output is named as its present"
    holds = _holds(label, flow, dims)
    axis = None if flow is None else flow.length_axis
    pair = _Pair(dims, _present_dims(present), dtype, holds, axis)
    fit = _shaped(pair, tuple(batch))
    return fit if isinstance(fit, str) else _made(candidate, pair, fit)


def _present_dims(present: onnx.ValueInfoProto | None) -> Dims | None:
    return None if present is None else input_dims(present)


def _holds(label: Label, flow: Flow | None, dims: Dims) -> Holds:
    if flow is not None and flow.slot.holds is not Holds.UNKNOWN:
        return flow.slot.holds
    if label.holds is Holds.UNKNOWN and dims and dims[0] == 2:  # noqa: PLR2004 - keys and values
        return Holds.BOTH
    return label.holds


def _made(candidate: Candidate, pair: _Pair, fit: _CacheAxes) -> Part:
    flow, label, axis = candidate.flow, candidate.label, fit.length_axis
    past = None if axis is None else pair.dims[axis]
    present = None if axis is None or pair.present is None else pair.present[axis]
    return Part(
        name=candidate.value.name,
        output=candidate.present,
        holds=pair.holds,
        course=_course(label, past, present),
        layer=label.layer if label.suggests_cache else None,
        dims=pair.dims,
        dtype=pair.dtype,
        length_axis=axis,
        batch_axis=fit.batch_axis,
        present_length=present,
        found_by=_NAMED if flow is None else flow.op_type,
        query_heads=None if flow is None else flow.query_heads,
        is_layout_assumed=fit.is_assumed,
    )


def _course(label: Label, past: str | int | None, present: str | int | None) -> Course:
    if past is None:
        return Course.CONSTANT
    if label.is_encoders:
        return Course.ENCODER
    if isinstance(past, int):
        return Course.FIXED
    return Course.BUFFER if past == present else Course.GROWS


def _kept(parts: list[Part]) -> tuple[Part, ...]:
    """Without what a bare Concat alone says, unless two or more say so of open lengths."""
    bare = [part for part in parts if part.found_by == "Concat" and not _is_named(part)]
    growing = [part for part in bare if part.course is Course.GROWS]
    drops = {part.name for part in (bare if len(growing) < _FEW else set(bare) - set(growing))}
    kept = tuple(part for part in parts if part.name not in drops)
    return kept if any(part.course is not Course.ENCODER for part in kept) else ()


def _is_named(part: Part) -> bool:
    return label_of(part.name).suggests_cache


def _shaped(pair: _Pair, batch: Sequence[str]) -> _CacheAxes | str:
    """The axes of a cache, or why it is none.

    1. Elements are floats, or integers of at most 8 bits: ids, masks and lengths are no cache.
    2. Input and output have the same rank and differ along one axis at most, that of tokens.
       Symbols of two names may still be one number, so two numbers that differ count, and of
       symbols those that occur in each other: ``past`` and ``past + sequence``.
    3. The axis of tokens is the operator's; else the one whose symbol differs; else the input's one
       symbol that is not the batch; else the one whose number differs; else, of four numbers, the
       third by convention, and that is said.
    """
    fault = _fault(pair)
    if fault is not None:
        return fault
    numbers, batch_axis = _numbers_that_differ(pair), _batch_axis(pair, batch)
    if pair.holds is Holds.STATE:
        return "its output has another shape" if numbers else _CacheAxes(batch_axis, None)
    length_axis, is_assumed = _length_axis(pair, batch, batch_axis)
    if length_axis is None or length_axis == batch_axis:
        return "no one axis is that of tokens"
    if any(axis != length_axis for axis in numbers):
        return f"its output is {_text(pair.present or ())}, and it is {_text(pair.dims)}"
    return _CacheAxes(batch_axis, length_axis, is_assumed)


def _fault(pair: _Pair) -> str | None:
    """What no cache has: elements of another kind, another number of dims."""
    rank = len(pair.dims)
    if not (pair.dtype.is_floating or (pair.dtype.is_integer and _is_narrow(pair.dtype))):
        return f"its elements are {pair.dtype.value}"
    if rank not in (_STATE_RANKS if pair.holds is Holds.STATE else _RANKS):
        return f"it has {rank} dims"
    if pair.present is not None and len(pair.present) != rank:
        return f"it has {rank} dims, its output {len(pair.present)}"
    return None


def _is_narrow(dtype: DType) -> bool:
    return dtype.bits is not None and dtype.bits <= _BYTE


def _text(dims: Dims) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def _numbers_that_differ(pair: _Pair) -> list[int]:
    return [
        axis
        for axis, (one, other) in enumerate(zip(pair.dims, pair.present or (), strict=False))
        if isinstance(one, int) and isinstance(other, int) and one != other
    ]


def _batch_axis(pair: _Pair, batch: Sequence[str]) -> int:
    """Where the batch stands, alone or in a product; else first, after what is stacked."""
    for axis, dim in enumerate(pair.dims):
        if isinstance(dim, str) and (dim in batch or names_in(dim) & {*batch}):
            return axis
    return int(pair.holds is Holds.BOTH and pair.dims[0] == 2)  # noqa: PLR2004 - keys and values


def _length_axis(pair: _Pair, batch: Sequence[str], batch_axis: int) -> tuple[int | None, bool]:
    """The axis of tokens, and whether it is only a convention's."""
    rank, dims = len(pair.dims), pair.dims
    if pair.length_axis is not None and -rank <= pair.length_axis < rank:
        return pair.length_axis % rank, False
    open_axes = [
        axis
        for axis, dim in enumerate(dims)
        if isinstance(dim, str) and axis != batch_axis and dim not in batch
    ]
    differing = [axis for axis in open_axes if _grows(dims, pair.present, axis)]
    for found in (differing, open_axes, _numbers_that_differ(pair)):
        if len(found) == 1:
            return found[0], False
    if open_axes or rank != 4:  # noqa: PLR2004 - of four dims
        return None, False
    return _CONVENTION, True


def _grows(dims: Dims, present: Dims | None, axis: int) -> bool:
    """Whether the output's dim is another symbol than the input's."""
    if present is None:
        return False
    return isinstance(present[axis], str) and present[axis] != dims[axis]


def _symbols_of(
    graph: onnx.GraphProto, parts: Sequence[Part], batch: frozenset[str]
) -> tuple[Symbols, tuple[str, ...]]:
    """What a file calls the tokens of a step (past, new, and both together), and what is assumed.

    1. Past: the axis of tokens of what grows. A buffer's: its whole length.
    2. New tokens: what a present length adds to the past (``past + sequence``); else the second
       axis of the ids or embeddings that are handed in; else, as an assumption, the one symbol
       that is left.
    3. Both together: inputs' dims that read as a present length does; else the last axis of a
       mask, which its name alone says: an assumption.
    """
    caches = {part.name for part in parts}
    declared = {value.name: input_dims(value) for value in required_inputs(graph)}
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
