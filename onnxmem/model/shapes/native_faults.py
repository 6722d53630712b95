"""Nodes on which onnx's own inference ends the process, or never ends.

Its C++ follows a null pointer, runs past a vector's end, writes out a rank of any length or stays
in a loop there (onnx 1.23), and no ``except`` stops that. Such a node stays with our own rules, and
the rest of its graph is walked.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

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
"""Operators whose inference reads the type of their first input, whether or not there is one."""
_CANDIDATES = frozenset({op_type for _, op_type in _NEED_A_TYPE} | {"Einsum", "Expand", "Split"})
_EXPAND_LIMITS_RANK = 13
"""Before this version Expand's output gets a dim for each element of its target."""

_TERM: Final = re.compile(rb"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def ends_the_process(
    nodes: Iterable[onnx.NodeProto],
    opsets: Mapping[str, int],
    types: Mapping[str, onnx.TypeProto] | None = None,
) -> bool:
    """Whether onnx's inference would not return, by these nodes or those inside them.

    ``types`` are those that onnx would be given; what it finds itself may be less than we think.
    """
    known = types or {}
    candidates = (node for node in nodes_in(nodes) if node.op_type in _CANDIDATES)
    return any(_is_fatal(node, opsets, known) for node in candidates)


def has_long_target(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Whether a Reshape's or Expand's target is longer than any rank, or of unknown length."""
    target = types.get(node.input[1]) if len(node.input) > 1 else None
    shape = shape_of(target) if target is not None else None
    return shape is None or any(dim is None or dim > MAX_RANK for dim in shape)


def may_be_long_list(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Whether a Concat may make a list that is longer than any rank: its elements are written out.

    It does not where one operand is known to be no list, or all to be short ones.
    """
    shapes = [shape_of(types[name]) if name in types else None for name in node.input]
    if any(shape is not None and len(shape) != 1 for shape in shapes):
        return False
    lengths = [None if shape is None else shape[0] for shape in shapes]
    known = [length for length in lengths if length is not None]
    return len(known) < len(lengths) or sum(known) > MAX_RANK


def has_odd_parts(node: onnx.NodeProto) -> bool:
    """Whether a Split says another number of parts than it has outputs.

    onnx makes a list of so many parts and fills as many as there are outputs.
    """
    return any(a.name == "num_outputs" and a.i != len(node.output) for a in node.attribute)


def has_odd_terms(node: onnx.NodeProto) -> bool:
    """Whether a term of an Einsum holds more than letters and one ellipsis, or may do.

    onnx stays at any other character for ever (``einsumShapeInference`` in ``math/utils.cc``). An
    attribute that refers to a call's is not known here.
    """
    return any(
        a.ref_attr_name or not all(map(_TERM.fullmatch, _terms_of(a.s)))
        for a in node.attribute
        if a.name == "equation"
    )


def _terms_of(equation: bytes) -> list[bytes]:
    return equation.replace(b" ", b"").partition(b"->")[0].split(b",")


def _is_fatal(
    node: onnx.NodeProto, opsets: Mapping[str, int], types: Mapping[str, onnx.TypeProto]
) -> bool:
    if (node.domain, node.op_type) in _NEED_A_TYPE:
        first = types.get(node.input[0]) if node.input else None
        return first is None or first.WhichOneof("value") is None
    if onnx_op(node) == "Einsum":
        return has_odd_terms(node)
    if onnx_op(node) == "Expand":
        return opsets.get("", 1) < _EXPAND_LIMITS_RANK and has_long_target(node, types)
    if onnx_op(node) == "Split":
        return has_odd_parts(node)
    return False
