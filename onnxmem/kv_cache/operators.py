"""Operators that take a cache in and hand it out, and the graph inputs and outputs they do it for.

Places and axes are those of the operators' documents: ONNX (Attention-23, TensorScatter-24,
LinearAttention and CausalConvWithState-27, Concat) and onnxruntime's ContribOperators.md. The
attention operators have ``[batch, kv_heads, tokens, head_size]``, com.microsoft's Attention
``[2, batch, heads, tokens, head_size]``. A Concat onto a graph input that becomes a graph output
is a cache too, which grows along the Concat's axis.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import onnx

from onnxmem.kv_cache.holds import Holds
from onnxmem.model.traversal import Columns, subgraphs

_MS: Final = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Slot:
    """One cache operand: its places among inputs and outputs, and its axis of tokens."""

    past: int
    present: int
    holds: Holds
    length_axis: int | None
    """``None``: an attribute says so, or there is none."""


def _pair(past_key: int) -> tuple[Slot, Slot]:
    """Keys and, next to them, values; outputs 1 and 2."""
    return Slot(past_key, 1, Holds.KEYS, 2), Slot(past_key + 1, 2, Holds.VALUES, 2)


_STATE: Final = (Slot(3, 1, Holds.STATE, None),)

SLOTS: Final[Mapping[tuple[str, str], tuple[Slot, ...]]] = MappingProxyType(
    {
        ("", "Attention"): _pair(4),
        ("", "TensorScatter"): (Slot(0, 0, Holds.UNKNOWN, None),),
        ("", "Concat"): (Slot(0, 0, Holds.UNKNOWN, None),),
        ("", "LinearAttention"): _STATE,
        ("", "CausalConvWithState"): _STATE,
        (_MS, "LinearAttention"): _STATE,
        (_MS, "CausalConvWithState"): _STATE,
        (_MS, "GroupQueryAttention"): _pair(3),
        (_MS, "SparseAttention"): _pair(3),
        (_MS, "MultiHeadAttention"): _pair(6),
        (_MS, "DecoderMaskedMultiHeadAttention"): _pair(5),
        (_MS, "DecoderAttention"): _pair(6),
        (_MS, "Attention"): (Slot(4, 1, Holds.BOTH, 3),),
        (_MS, "DecoderMaskedSelfAttention"): (Slot(4, 1, Holds.BOTH, 3),),
        (_MS, "QAttention"): (Slot(8, 1, Holds.BOTH, 3),),
    }
)
"""The cache operands of each."""

_TAKERS: Final = frozenset(op_type for _, op_type in SLOTS)
_AXIS_DEFAULT: Final = {"TensorScatter": -2}
_PASSING: Final = frozenset({"Identity", "Cast", "QuantizeLinear", "DequantizeLinear"})
"""They hand a cache on with its axes as they are."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A graph input that an operator takes as a cache, and the graph output it becomes."""

    past: str
    present: str | None
    slot: Slot
    length_axis: int | None
    """May count from the end; ``None`` where it is not known."""
    op_type: str
    query_heads: int | None


def flows(graph: onnx.GraphProto, columns: Columns) -> Iterator[Flow]:
    """Every cache operand that is a graph input, the operators of subgraphs included.

    ``columns`` are those of the graph.
    """
    takers = columns.of_types(_TAKERS)
    if not takers:
        return
    ways = _Ways(graph, columns)
    for node in takers:
        for slot in SLOTS.get((node.domain, node.op_type), ()):
            past = ways.origin(node.input[slot.past]) if slot.past < len(node.input) else None
            if past is None:
                continue
            made = node.output[slot.present] if slot.present < len(node.output) else ""
            present = ways.destination(made)
            if node.op_type != "Concat" or present is not None:
                axis = _axis(node, slot)
                yield Flow(past, present, slot, axis, node.op_type, _query_heads(node))


class _Ways:
    """How names of a graph follow from each other, through nodes that only hand a tensor on."""

    def __init__(self, graph: onnx.GraphProto, columns: Columns) -> None:
        self._inputs = {value.name for value in graph.input}
        self._outputs = {value.name for value in graph.output}
        self._before: dict[str, str] = {}
        self._after: defaultdict[str, list[str]] = defaultdict(list)
        for node in columns.of_types(_PASSING | {"If"}):
            if node.op_type in _PASSING and not node.domain and node.input:
                self._before[node.output[0]] = node.input[0]
                self._after[node.input[0]].append(node.output[0])
            for _, branch in subgraphs(node) if node.op_type == "If" else ():
                for inner, outer in zip(branch.output, node.output, strict=False):
                    self._after[inner.name].append(outer)

    def origin(self, name: str) -> str | None:
        """The graph input that a name is, if it is one."""
        seen: set[str] = set()
        while name not in self._inputs:
            if name in seen or name not in self._before:
                return None
            seen.add(name)
            name = self._before[name]
        return name

    def destination(self, name: str) -> str | None:
        """The graph output that a name becomes, if it does."""
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
    if slot.length_axis is not None or slot.holds is Holds.STATE:
        return slot.length_axis
    return _number(node, "axis", _AXIS_DEFAULT.get(node.op_type))


def _query_heads(node: onnx.NodeProto) -> int | None:
    name = "num_heads" if node.domain else "q_num_heads"
    return _number(node, name, None)


def _number(node: onnx.NodeProto, name: str, default: int | None) -> int | None:
    return next((entry.i for entry in node.attribute if entry.name == name), default)
