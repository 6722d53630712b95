"""Nodes that onnx's own inference cannot be asked about: it ends the whole process on them.

Its C++ follows a null pointer or runs past a vector's end there (onnx 1.21 to 1.23), and no
``except`` stops that. Such a node stays with our own rules, and the rest of its graph is walked.
"""

from collections.abc import Iterable, Mapping

import onnx

from onnxmem.model.traversal import nodes_in, onnx_op

_NEED_A_TYPE = frozenset(
    {
        ("", "EyeLike"),
        ("", "RegexFullMatch"),
        ("ai.onnx.ml", "LabelEncoder"),
        ("ai.onnx.ml", "TreeEnsemble"),
    }
)
"""Operators asked for the type of their first input, whether or not there is one."""


def ends_the_process(
    nodes: Iterable[onnx.NodeProto], types: Mapping[str, onnx.TypeProto] | None = None
) -> bool:
    """Whether onnx would be asked what it cannot survive, by these nodes or those inside them.

    ``types`` are those that onnx would be told of; what it finds itself may be less than we think.
    """
    known = types or {}
    return any(_is_fatal(node, known) for node in nodes_in(nodes))


def _is_fatal(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    if (node.domain, node.op_type) in _NEED_A_TYPE:
        first = types.get(node.input[0]) if node.input else None
        return first is None or first.WhichOneof("value") is None
    if onnx_op(node) == "Split":
        # It makes a list of this many parts and fills as many as there are outputs.
        return any(a.name == "num_outputs" and a.i != len(node.output) for a in node.attribute)
    return False
