"""The key-value cache of one model: its tensors, and the names of their dims.

The past cache is an input with the keys and values of earlier tokens, the present cache an output
to which the new tokens are added. Bytes per token are ``2 x layers x kv_heads x head_size x bytes
per element``, which is 2 x ``[batch, kv_heads, tokens, head_size]`` per layer (Pope et al. 2022,
arXiv:2211.05102, section 2.1; Ainslie et al. 2023, arXiv:2305.13245, for fewer key-value heads than
query heads).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Final

import onnx

from onnxmem.errors import Finding, shortened
from onnxmem.kv_cache.candidates import Candidate, Contents, Flow, Label, label_of
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
"""Operators that may have one buffer for past and present (onnxruntime's ContribOperators.md; ONNX,
TensorScatter-24).
"""
_NAMED: Final = "name and shape"
_MIN_CONCATS: Final = 2
_RANKS: Final = range(3, 6)
_STATE_RANKS: Final = range(2, 6)
_BYTE: Final = 8
_KEYS_AND_VALUES: Final = 2
"""The first dim where keys and values are stacked."""
_USUAL_LENGTH_AXIS: Final = 2
"""The token axis of ``[batch, kv_heads, tokens, head_size]``."""
_IDS: Final = re.compile(
    r"(?:.*[._/])?(?:decoder_)?(?:input_?ids|inputs?_?embeds|tokens?|ids)(?:[.:]\d+)?"
)
_MASK: Final = re.compile(r".*mask.*", re.IGNORECASE)


class LengthRule(StrEnum):
    """How the length of a cache tensor depends on the context."""

    GROWS = "grows"
    """The input has the past tokens, the output past and new ones."""
    BUFFER = "buffer"
    """As long as the longest context: input and output have the same length."""
    FIXED = "fixed"
    """A number of tokens that the file fixes: a window, or a static buffer."""
    ENCODER = "encoder"
    """As long as the encoder's sequence."""
    CONSTANT = "constant"
    """No token axis: a state."""


@dataclass(frozen=True, slots=True)
class Part:
    """One input of the cache, and the output that is its present."""

    name: str
    output: str | None
    """``None``: it is only read, as an encoder's."""
    contents: Contents
    length_rule: LengthRule
    layer: int | None
    dims: Dims
    dtype: DType
    length_axis: int | None
    """The token axis; ``None`` where there is none."""
    batch_axis: int
    present_length: str | int | None
    """The output's dim of the token axis, as the file has it."""
    found_by: str
    """The operator that reads and writes it, or ``name and shape``."""
    query_heads: int | None = None
    """Of the attention that reads it, where the operator has them as an attribute."""
    is_layout_assumed: bool = False
    """Whether the token axis is the usual one, which nothing in the file shows."""

    @property
    def past_length(self) -> str | int | None:
        """The input's dim of the token axis, as the file has it."""
        return None if self.length_axis is None else self.dims[self.length_axis]

    @property
    def follows_context(self) -> bool:
        """Whether a longer context makes it larger."""
        return self.length_rule in {LengthRule.GROWS, LengthRule.BUFFER}

    @property
    def can_share(self) -> bool:
        """Whether past and present may be one buffer: they are equally long, or the operator
        writes new tokens behind the old ones in place.
        """
        if self.output is None or self.length_rule is LengthRule.ENCODER:
            return False
        return self.found_by in _IN_PLACE or (
            self.length_rule is not LengthRule.GROWS and self.present_length == self.past_length
        )

    @property
    def layout(self) -> str | None:
        """Order of batch, heads, tokens and head size, as in ``bnsh``; ``None`` at other ranks."""
        # Batch and tokens are known by their dims; of the two axes left, heads come first.
        if len(self.dims) - self._stacked != 4 or self.length_axis is None:  # noqa: PLR2004 - batch, heads, tokens, size
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
        return int(self.contents is Contents.BOTH and self.dims[0] == _KEYS_AND_VALUES)

    def _size_of(self, letter: str) -> int | None:
        layout = self.layout
        if layout is None or letter not in layout:
            return None
        dim = self.dims[layout.index(letter) + self._stacked]
        return dim if isinstance(dim, int) else None

    def size_bytes(self, numbers: Mapping[str, int], tokens: int | None = None) -> int | None:
        """``ceil(elements x bits / 8)``; its length is ``tokens`` where it follows the context.

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
    """The symbols and expressions of a step's dims by their role, as the file has them."""

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
    """The model that it was found in, with no dim bound."""
    assumptions: tuple[str, ...] = ()
    """What only names suggest."""

    @property
    def num_layers(self) -> int:
        """Layers that have a cache: numbers in names, or tensors of keys."""
        numbers = {part.layer for part in self.parts if part.layer is not None}
        keys = [part for part in self.parts if part.contents in {Contents.KEYS, Contents.BOTH}]
        return len(numbers) or len(keys) or -(-len(self.parts) // 2)

    @property
    def shared(self) -> tuple[Part, ...]:
        """Parts whose past and present a caller may bind to one buffer."""
        return tuple(part for part in self.parts if part.can_share)


@dataclass(frozen=True, slots=True)
class _Pair:
    """An input, and the output that may be its present."""

    dims: Dims
    present: Dims | None
    dtype: DType
    contents: Contents
    length_axis: int | None
    """As an operator has it."""


@dataclass(frozen=True, slots=True)
class _CacheAxes:
    """The axes of a shape that fits a cache."""

    batch_axis: int
    length_axis: int | None
    is_assumed: bool = False


def find_cache(
    prepared: Prepared, candidates: Iterable[Candidate]
) -> tuple[KvCache | None, tuple[Finding, ...]]:
    """The cache of a model among its candidates, and warnings on inputs that are only named so."""
    # 1. What a cache operator reads from a graph input and writes to a graph output; a Concat
    #    counts where its length is a symbol, its output is read, and there are two or more, for
    #    images are concatenated too.
    # 2. What is named like a cache, has an output named like its present, and shapes that fit
    #    (`_cache_axes`).
    # 3. What is named like an encoder's cache beside such, and is only read.
    # A name whose shapes do not fit is a warning, and counts nowhere.
    graph = prepared.proto.graph
    outputs = {value.name: value for value in graph.output}
    parts: list[Part] = []
    findings: list[Finding] = []
    for candidate in candidates:
        found = _part(candidate, outputs, prepared.batch_symbols)
        if isinstance(found, Part):
            parts.append(found)
        elif candidate.label.suggests_cache and candidate.label.contents is not Contents.UNKNOWN:
            name = shortened(candidate.value.name)
            text = f"{name} is named like a cache but not counted as one: {found}"
            findings.append(Finding("no_cache", text))
    confirmed = _without_lone_concats(parts)
    if not confirmed:
        return None, tuple(findings)
    symbols, assumptions = _symbols_of(graph, confirmed, prepared.batch_symbols)
    assumptions = (*assumptions, *_assumptions(graph, confirmed))
    return KvCache(confirmed, symbols, prepared, assumptions), tuple(findings)


def _assumptions(graph: onnx.GraphProto, parts: tuple[Part, ...]) -> Iterator[str]:
    if any(part.is_layout_assumed for part in parts):
        yield "the third of four dims, all of them numbers, is assumed to be the token axis"
    names = {part.name for part in parts}
    branches = [
        inner for node in graph.node if node.op_type == "If" for _, inner in subgraphs(node)
    ]
    if any(outer_reads(inner) & names for inner in branches):
        yield "the larger branch of an If is counted in every step"


def _part(
    candidate: Candidate, outputs: Mapping[str, onnx.ValueInfoProto], batch: frozenset[str]
) -> Part | str:
    """The candidate as a part of the cache, or the reason why it is not one."""
    value, label, flow = candidate.value, candidate.label, candidate.flow
    dims, dtype = input_dims(value), dtype_of(value.type.tensor_type.elem_type)
    if dims is None or dtype is None:
        return "its shape or element type is unknown"
    present = None if candidate.present is None else outputs[candidate.present]
    if present is None and not label.is_encoders and (flow is None or flow.op_type == "Concat"):
        return "no output is named like its present"
    contents = _contents(label, flow, dims)
    axis = None if flow is None else flow.length_axis
    pair = _Pair(dims, _present_dims(present), dtype, contents, axis)
    axes = _cache_axes(pair, tuple(batch))
    return axes if isinstance(axes, str) else _part_with(candidate, pair, axes)


def _present_dims(present: onnx.ValueInfoProto | None) -> Dims | None:
    return None if present is None else input_dims(present)


def _contents(label: Label, flow: Flow | None, dims: Dims) -> Contents:
    if flow is not None and flow.slot.contents is not Contents.UNKNOWN:
        return flow.slot.contents
    if label.contents is Contents.UNKNOWN and dims and dims[0] == _KEYS_AND_VALUES:
        return Contents.BOTH
    return label.contents


def _part_with(candidate: Candidate, pair: _Pair, axes: _CacheAxes) -> Part:
    flow, label, axis = candidate.flow, candidate.label, axes.length_axis
    past = None if axis is None else pair.dims[axis]
    present = None if axis is None or pair.present is None else pair.present[axis]
    return Part(
        name=candidate.value.name,
        output=candidate.present,
        contents=pair.contents,
        length_rule=_length_rule(label, past, present),
        layer=label.layer if label.suggests_cache else None,
        dims=pair.dims,
        dtype=pair.dtype,
        length_axis=axis,
        batch_axis=axes.batch_axis,
        present_length=present,
        found_by=_NAMED if flow is None else flow.op_type,
        query_heads=None if flow is None else flow.query_heads,
        is_layout_assumed=axes.is_assumed,
    )


def _length_rule(label: Label, past: str | int | None, present: str | int | None) -> LengthRule:
    if past is None:
        return LengthRule.CONSTANT
    if label.is_encoders:
        return LengthRule.ENCODER
    if isinstance(past, int):
        return LengthRule.FIXED
    return LengthRule.BUFFER if past == present else LengthRule.GROWS


def _without_lone_concats(parts: list[Part]) -> tuple[Part, ...]:
    """Parts without those that only a Concat suggests, unless two or more of these grow.

    Empty where only an encoder's parts are left.
    """
    unnamed = [part for part in parts if part.found_by == "Concat" and not _is_named(part)]
    growing = [part for part in unnamed if part.length_rule is LengthRule.GROWS]
    accepted = set(growing) if len(growing) >= _MIN_CONCATS else set()
    rejected = {part.name for part in unnamed if part not in accepted}
    confirmed = tuple(part for part in parts if part.name not in rejected)
    has_decoder = any(part.length_rule is not LengthRule.ENCODER for part in confirmed)
    return confirmed if has_decoder else ()


def _is_named(part: Part) -> bool:
    return label_of(part.name).suggests_cache


def _cache_axes(pair: _Pair, batch: Sequence[str]) -> _CacheAxes | str:
    """The axes of a cache, or the reason why the shapes do not fit one."""
    # 1. Elements are floats, or integers of at most 8 bits: ids, masks and lengths are not a cache.
    # 2. Input and output have the same rank and differ in at most one axis, that of tokens. Two
    #    symbols may be one number, so that only two different numbers are a difference.
    # 3. The token axis is the operator's; else the one whose symbol differs; else the input's one
    #    symbol that is not the batch; else the one whose number differs; else, of four numbers, the
    #    usual third, which is reported as an assumption.
    mismatch = _mismatch(pair)
    if mismatch is not None:
        return mismatch
    numbers, batch_axis = _numbers_that_differ(pair), _batch_axis(pair, batch)
    if pair.contents is Contents.STATE:
        return "its output has another shape" if numbers else _CacheAxes(batch_axis, None)
    length_axis, is_assumed = _length_axis(pair, batch, batch_axis)
    if length_axis is None or length_axis == batch_axis:
        return "it has no single token axis"
    if any(axis != length_axis for axis in numbers):
        return f"its shape is {_text(pair.dims)}, that of its output {_text(pair.present or ())}"
    return _CacheAxes(batch_axis, length_axis, is_assumed)


def _mismatch(pair: _Pair) -> str | None:
    """Why a tensor cannot be a cache: by its element type or the number of its dims."""
    rank = len(pair.dims)
    if not (pair.dtype.is_floating or (pair.dtype.is_integer and _is_narrow(pair.dtype))):
        return f"its elements are {pair.dtype.value}"
    if rank not in (_STATE_RANKS if pair.contents is Contents.STATE else _RANKS):
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
    """The axis of the batch, alone or in a product; else the first that is not a stack."""
    for axis, dim in enumerate(pair.dims):
        if isinstance(dim, str) and (dim in batch or names_in(dim) & {*batch}):
            return axis
    return int(pair.contents is Contents.BOTH and pair.dims[0] == _KEYS_AND_VALUES)


def _length_axis(pair: _Pair, batch: Sequence[str], batch_axis: int) -> tuple[int | None, bool]:
    """The token axis, and whether it is only assumed."""
    rank, dims = len(pair.dims), pair.dims
    # From the surest to the weakest sign: the axis of the Concat; an axis whose symbol is another
    # one in the output; the only free symbol; the number that differs. Two of a kind prove nothing.
    if pair.length_axis is not None and -rank <= pair.length_axis < rank:
        return pair.length_axis % rank, False
    symbolic_axes = [
        axis
        for axis, dim in enumerate(dims)
        if isinstance(dim, str) and axis != batch_axis and dim not in batch
    ]
    differing = [axis for axis in symbolic_axes if _grows(dims, pair.present, axis)]
    for found in (differing, symbolic_axes, _numbers_that_differ(pair)):
        if len(found) == 1:
            return found[0], False
    if symbolic_axes or rank != 4:  # noqa: PLR2004 - of four dims
        return None, False
    return _USUAL_LENGTH_AXIS, True


def _grows(dims: Dims, present: Dims | None, axis: int) -> bool:
    """Whether the output's dim is a symbol other than the input's."""
    if present is None:
        return False
    return isinstance(present[axis], str) and present[axis] != dims[axis]


def _symbols_of(
    graph: onnx.GraphProto, parts: Sequence[Part], batch: frozenset[str]
) -> tuple[Symbols, tuple[str, ...]]:
    """The symbols of a step's tokens (past, new, and total), and the assumptions about them."""
    # 1. Past: the token axis of what grows. Of a buffer: its whole length.
    # 2. New: what a present length adds to the past (`past + sequence`); else the second axis of
    #    the ids or embeddings; else, as an assumption, the one symbol without a role.
    # 3. Total: inputs' dims with the symbol of a present length; else, as an assumption, the last
    #    axis of a mask, which only its name shows.
    # `taken` has the symbols with a role so far: no symbol gets two.
    caches = {part.name for part in parts}
    declared = {value.name: input_dims(value) for value in required_inputs(graph)}
    inputs = {name: dims for name, dims in declared.items() if dims and name not in caches}
    past = _lengths(parts, LengthRule.GROWS)
    buffer = _lengths(parts, LengthRule.BUFFER)
    symbols = {dim for dims in inputs.values() for dim in dims if isinstance(dim, str)}
    sequence, fixed = _sequence(inputs, parts, {*batch, *past, *buffer})
    taken = {*batch, *past, *buffer, *sequence}
    growing = [part for part in parts if part.length_rule is LengthRule.GROWS]
    presents = {part.present_length for part in growing} - taken
    total = [symbol for symbol in symbols if symbol in presents]
    masks = dict(_masks(inputs, taken | {*total}))
    assumptions = tuple(
        f"{shortened(symbol)} is past and new tokens: the last axis of {shortened(name)}"
        for symbol, name in masks.items()
        if not names_in(symbol) & taken
    )
    encoders = {*_lengths(parts, LengthRule.ENCODER)}
    others = sorted(symbols - taken - encoders - {*total, *masks})
    if not sequence and fixed is None and len(others) == 1:
        sequence = (others[0],)
        text = f"{shortened(others[0])} is new tokens: the inputs have no other dynamic dim"
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


def _lengths(parts: Sequence[Part], rule: LengthRule) -> tuple[str, ...]:
    lengths = (part.past_length for part in parts if part.length_rule is rule)
    return tuple(dict.fromkeys(length for length in lengths if isinstance(length, str)))


def _sequence(
    inputs: Mapping[str, Dims], parts: Sequence[Part], taken: set[str]
) -> tuple[tuple[str, ...], int | None]:
    """The symbols of the new tokens; else their number, where the file fixes it."""
    symbols = {dim for dims in inputs.values() for dim in dims if isinstance(dim, str)}
    added: set[str] = set()
    for part in parts:
        if part.length_rule is LengthRule.GROWS and isinstance(part.present_length, str):
            # A present length names what it adds: ``past + sequence``.
            added |= (names_in(part.present_length) - taken) & symbols
    ids = [_token_dim(dims) for name, dims in inputs.items() if _IDS.fullmatch(name.lower())]
    found = {*added, *(dim for dim in ids if isinstance(dim, str) and dim not in taken)}
    if found:
        return tuple(sorted(found)), None
    return (), next((dim for dim in ids if isinstance(dim, int)), None)


def _token_dim(dims: Dims) -> str | int:
    """The dim of tokens in ids ``[batch, tokens]`` or ``[tokens]``, and in embeddings."""
    return dims[1] if len(dims) > 1 else dims[0]


def _masks(inputs: Mapping[str, Dims], taken: set[str]) -> Iterator[tuple[str, str]]:
    for name, dims in inputs.items():
        last = dims[-1]
        if _MASK.fullmatch(name) and isinstance(last, str) and last not in taken:
            yield last, name
