"""Which inputs of a model may be a key-value cache: by the operators that read them, and by names.

An operator that has a cache as an operand shows that the graph input it reads and the graph output
it writes are one. A Concat onto a graph input that becomes a graph output may be a cache too, which
grows along the Concat's axis. A name with a word for past, and one for keys, values, a state or a
number, suggests a cache.

Most models have no candidate, and nothing else of the package is imported for them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import onnx

from onnxmem.model.building import Prepared
from onnxmem.model.traversal import Columns, subgraphs

_WORD: Final = re.compile(r"[a-z]+|[0-9]+")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BOTH_WORDS: Final = re.compile(r"key[_. ]?values?(?=[^a-z]|$)")
_PAST: Final = frozenset({"past", "cache", "caches", "kv", "pkv", "prev", "previous"})
_STATES: Final = frozenset({"state", "states"})
_RECURRENT: Final = frozenset({"conv", "ssm", "recurrent", "rnn", "mamba", "rwkv", "wkv"})
_PRESENT: Final = frozenset({"present", "new", "next", "updated", "out", "output", "outputs"})
_MARKS: Final = _PAST | _STATES | _PRESENT
_ASIDE: Final = _MARKS | {"in", "input", "inputs", "cur", "current"}
_ENCODER: Final = frozenset({"encoder", "cross"})
_SHORT: Final = {"k": "key", "v": "value", "keys": "key", "values": "value", "scales": "scale"}


class Contents(StrEnum):
    """What is in a tensor of the cache."""

    KEYS = "keys"
    VALUES = "values"
    BOTH = "keys and values"
    SCALES = "scales"
    """Of quantized keys or values."""
    STATE = "states"
    """Of a convolution or a recurrence: it does not grow."""
    UNKNOWN = "unnamed"
    """Keys or values: neither the name nor the operator shows which."""


@dataclass(frozen=True, slots=True)
class Label:
    """The words of a name."""

    words: tuple[str, ...]
    """Without those for past and present."""
    is_past: bool
    is_state: bool
    """A convolution's or a recurrence's."""
    is_marked: bool
    """Whether it has a word for past, present or state."""

    @property
    def layer(self) -> int | None:
        """The first number."""
        return next((int(word) for word in self.words if word.isdigit()), None)

    @property
    def is_encoders(self) -> bool:
        """Whether it names the encoder."""
        return bool(_ENCODER & {*self.words})

    @property
    def contents(self) -> Contents:
        """Keys, values, scales or a state, if it has a word for one of them."""
        if self.is_state:
            return Contents.STATE
        words = {*self.words}
        if "scale" in words:
            return Contents.SCALES
        if ("key" in words) == ("value" in words):
            return Contents.UNKNOWN
        return Contents.KEYS if "key" in words else Contents.VALUES

    @property
    def suggests_cache(self) -> bool:
        """Whether it is the name of a cache: past, and keys, values, a state or a number."""
        return self.is_past and (self.contents is not Contents.UNKNOWN or self.layer is not None)


@dataclass(frozen=True, slots=True)
class Slot:
    """One cache operand: its indices among inputs and outputs, and its axis of tokens."""

    past: int
    present: int
    contents: Contents
    length_axis: int | None
    """``None``: an attribute has it, or there is none."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A graph input that an operator reads as a cache, and the graph output that it becomes."""

    past: str
    present: str | None
    slot: Slot
    length_axis: int | None
    """May be negative; ``None`` where it is not known."""
    op_type: str
    query_heads: int | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An input that may be a cache."""

    value: onnx.ValueInfoProto
    label: Label
    flow: Flow | None
    present: str | None


def candidates(prepared: Prepared) -> Iterator[Candidate]:
    """Inputs that an operator reads as a cache, or that are named like one."""
    # A cache operator is better evidence than a Concat, and a Concat's output that other nodes read
    # (attention does) than one that only leaves the graph, unless the name suggests a cache.
    graph, columns = prepared.proto.graph, prepared.columns
    by_input: dict[str, Flow] = {}
    found = tuple(_flows(graph, columns))
    is_read = any(flow.op_type == "Concat" for flow in found)
    read = columns.all_inputs() if is_read else set()
    for flow in found:
        known = by_input.get(flow.past)
        is_joined = flow.op_type != "Concat" or flow.present in read
        if (known is None or known.op_type == "Concat") and (
            is_joined or label_of(flow.past).suggests_cache
        ):
            by_input[flow.past] = flow
    presents = _by_words(graph)
    for value in prepared.inputs:
        flow_of, label = by_input.get(value.name), label_of(value.name)
        if flow_of is not None or label.suggests_cache:
            present = flow_of.present if flow_of else None
            present = present or presents.get((label.words, label.is_state))
            yield Candidate(value, label, flow_of, present)


def _by_words(graph: onnx.GraphProto) -> Mapping[tuple[tuple[str, ...], bool], str]:
    """Outputs by their words, where only one output has them."""
    found: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for value in graph.output:
        label = label_of(value.name)
        if label.is_marked:
            found.setdefault((label.words, label.is_state), []).append(value.name)
    # Of several outputs with equal words none is known to be the present of an input.
    return {words: names[0] for words, names in found.items() if len(names) == 1}


def label_of(name: str) -> Label:
    """Split a name into words and set aside those for past and present.

    The others are the same for an input and its output. Names are as exporters write them:
    ``past_key_values.3.key`` and ``present.3.key`` (Optimum, onnxruntime-genai),
    ``past_key_values.3.encoder.value`` (encoder and decoder), ``past_3`` and ``present_3`` (GPT-2's
    keys and values in one), ``past_key_self_3`` (onnxruntime's tools),
    ``past_key_values.3.conv_state`` or ``past_conv.3`` (convolutions and recurrences).

    >>> label_of("past_key_values.3.key").words
    ('3', 'key')
    """
    text = _BOTH_WORDS.sub(" kv ", _CAMEL.sub(" ", name[:200]).lower())
    words = [_SHORT.get(word, word) for word in _WORD.findall(text)]
    found = {*words}
    is_recurrent = bool(found & _RECURRENT)
    return Label(
        tuple(word for word in words if word not in _ASIDE),
        bool(found & _PAST) or (is_recurrent and bool(found & _STATES)),
        is_recurrent and bool(found & _MARKS),
        bool(found & _MARKS),
    )


_MS: Final = "com.microsoft"


def _pair(past_key: int) -> tuple[Slot, Slot]:
    """Keys and, next to them, values; outputs 1 and 2."""
    return Slot(past_key, 1, Contents.KEYS, 2), Slot(past_key + 1, 2, Contents.VALUES, 2)


_STATE: Final = (Slot(3, 1, Contents.STATE, None),)
SLOTS: Final[Mapping[tuple[str, str], tuple[Slot, ...]]] = MappingProxyType(
    {
        ("", "Attention"): _pair(4),
        ("", "TensorScatter"): (Slot(0, 0, Contents.UNKNOWN, None),),
        ("", "Concat"): (Slot(0, 0, Contents.UNKNOWN, None),),
        ("", "LinearAttention"): _STATE,
        ("", "CausalConvWithState"): _STATE,
        (_MS, "LinearAttention"): _STATE,
        (_MS, "CausalConvWithState"): _STATE,
        (_MS, "GroupQueryAttention"): _pair(3),
        (_MS, "SparseAttention"): _pair(3),
        (_MS, "MultiHeadAttention"): _pair(6),
        (_MS, "DecoderMaskedMultiHeadAttention"): _pair(5),
        (_MS, "DecoderAttention"): _pair(6),
        (_MS, "Attention"): (Slot(4, 1, Contents.BOTH, 3),),
        (_MS, "DecoderMaskedSelfAttention"): (Slot(4, 1, Contents.BOTH, 3),),
        (_MS, "QAttention"): (Slot(8, 1, Contents.BOTH, 3),),
    }
)
"""The cache operands of each operator by its documentation: ONNX (Attention-23, TensorScatter-24,
LinearAttention and CausalConvWithState-27, Concat) and onnxruntime's ContribOperators.md. The
attention operators have ``[batch, kv_heads, tokens, head_size]``, com.microsoft's Attention
``[2, batch, heads, tokens, head_size]``."""
_CACHE_OPERATORS: Final = frozenset(op_type for _, op_type in SLOTS)
_AXIS_DEFAULT: Final = {"TensorScatter": -2}
_SHAPE_PRESERVING: Final = frozenset({"Identity", "Cast", "QuantizeLinear", "DequantizeLinear"})
"""Operators that may be between a cache operator and the graph's input or output."""


def _flows(graph: onnx.GraphProto, columns: Columns) -> Iterator[Flow]:
    """Every cache operand that is a graph input, the operators of subgraphs included.

    ``columns`` are those of the graph.
    """
    nodes = columns.of_types(_CACHE_OPERATORS)
    if not nodes:
        return
    links = _PassThrough(graph, columns)
    for node in nodes:
        for slot in SLOTS.get((node.domain, node.op_type), ()):
            past = links.origin(node.input[slot.past]) if slot.past < len(node.input) else None
            if past is None:
                continue
            written = node.output[slot.present] if slot.present < len(node.output) else ""
            present = links.destination(written)
            # Any graph has Concats: one counts only if its output leaves the graph.
            if node.op_type != "Concat" or present is not None:
                axis = _axis(node, slot)
                yield Flow(past, present, slot, axis, node.op_type, _query_heads(node))


class _PassThrough:
    """Follows tensors through nodes that do not change the cache's shape, and out of branches."""

    def __init__(self, graph: onnx.GraphProto, columns: Columns) -> None:
        self._inputs = {value.name for value in graph.input}
        self._outputs = {value.name for value in graph.output}
        self._before: dict[str, str] = {}
        self._after: defaultdict[str, list[str]] = defaultdict(list)
        # Upwards an output has one producer, so ``_before`` is a function; downwards a tensor may
        # have several readers, and both branches of an If write the same output.
        for node in columns.of_types(_SHAPE_PRESERVING | {"If"}):
            if node.op_type in _SHAPE_PRESERVING and not node.domain and node.input:
                self._before[node.output[0]] = node.input[0]
                self._after[node.input[0]].append(node.output[0])
            for _, branch in subgraphs(node) if node.op_type == "If" else ():
                for inner, outer in zip(branch.output, node.output, strict=False):
                    self._after[inner.name].append(outer)

    def origin(self, name: str) -> str | None:
        """The graph input that a tensor is a copy of, if any."""
        # Files may have cycles: `seen` ends them.
        seen: set[str] = set()
        while name not in self._inputs:
            if name in seen or name not in self._before:
                return None
            seen.add(name)
            name = self._before[name]
        return name

    def destination(self, name: str) -> str | None:
        """The graph output that is a copy of a tensor, if any."""
        seen: set[str] = set()
        stack = [name] if name else []
        while stack:
            current = stack.pop()
            if current in self._outputs:
                return current
            if current not in seen:
                seen.add(current)
                stack.extend(self._after.get(current, ()))
        return None


def _axis(node: onnx.NodeProto, slot: Slot) -> int | None:
    if slot.length_axis is not None or slot.contents is Contents.STATE:
        return slot.length_axis
    return _number(node, "axis", _AXIS_DEFAULT.get(node.op_type))


def _query_heads(node: onnx.NodeProto) -> int | None:
    name = "num_heads" if node.domain else "q_num_heads"
    return _number(node, name, None)


def _number(node: onnx.NodeProto, name: str, default: int | None) -> int | None:
    return next((entry.i for entry in node.attribute if entry.name == name), default)
