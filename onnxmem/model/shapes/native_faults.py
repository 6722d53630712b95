"""Nodes that onnx's own inference cannot be asked about: it ends the process or fills the memory.

Its C++ follows a null pointer, runs past a vector's end or writes out a rank of any length there
(onnx 1.23), and no ``except`` stops that. Such a node stays with our own rules, and the rest of its
graph is walked.
"""

from collections.abc import Iterable, Mapping

import onnx

from onnxmem.model.traversal import nodes_in, onnx_op
from onnxmem.model.value_types import shape_of

MAX_RANK = 1024
"""onnx's own limit of a rank that it writes out, where it has one."""

_NEED_A_TYPE = frozenset(
    {
        ("", "EyeLike"),
        ("", "RegexFullMatch"),
        ("ai.onnx.ml", "LabelEncoder"),
        ("ai.onnx.ml", "TreeEnsemble"),
    }
)
"""Operators asked for the type of their first input, whether or not there is one."""
_ASKED = frozenset({op_type for _, op_type in _NEED_A_TYPE} | {"Expand", "Split"})
_EXPAND_LIMITS_RANK = 13
"""Before this version Expand's output gets a dim for each element of its target."""


def ends_the_process(
    nodes: Iterable[onnx.NodeProto],
    opsets: Mapping[str, int],
    types: Mapping[str, onnx.TypeProto] | None = None,
) -> bool:
    """Whether onnx would be asked what it cannot survive, by these nodes or those inside them.

    ``types`` are those that onnx would be told of; what it finds itself may be less than we think.
    """
    known = types or {}
    asked = (node for node in nodes_in(nodes) if node.op_type in _ASKED)
    return any(_is_fatal(node, opsets, known) for node in asked)


def has_long_target(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Whether a Reshape's or Expand's target is longer than any rank, or of unknown length."""
    target = types.get(node.input[1]) if len(node.input) > 1 else None
    shape = shape_of(target) if target is not None else None
    return shape is None or any(dim is None or dim > MAX_RANK for dim in shape)


def has_odd_parts(node: onnx.NodeProto) -> bool:
    """Whether a Split says another number of parts than it has outputs.

    onnx makes a list of so many parts and fills as many as there are outputs.
    """
    return any(a.name == "num_outputs" and a.i != len(node.output) for a in node.attribute)


def _is_fatal(
    node: onnx.NodeProto, opsets: Mapping[str, int], types: Mapping[str, onnx.TypeProto]
) -> bool:
    if (node.domain, node.op_type) in _NEED_A_TYPE:
        first = types.get(node.input[0]) if node.input else None
        return first is None or first.WhichOneof("value") is None
    if onnx_op(node) == "Expand":
        return opsets.get("", 1) < _EXPAND_LIMITS_RANK and has_long_target(node, types)
    if onnx_op(node) == "Split":
        return has_odd_parts(node)
    return False
