"""Infer the output types of a single node: with onnx, then with our own rules.

On some nodes onnx's C++ code (onnx 1.23) dereferences a null pointer, reads past the end of a
vector, allocates a shape of any rank, or loops forever, and no ``except`` can stop that.
``ends_the_process`` recognizes these nodes beforehand; only our own rules apply to them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference

from onnxmem.model.constants import Array
from onnxmem.model.shapes.control_flow import control_flow_types
from onnxmem.model.shapes.corrections import corrected
from onnxmem.model.shapes.microsoft import (
    NCHWC,
    as_onnx,
    blocked_types,
    channel_block,
    microsoft_types,
)
from onnxmem.model.shapes.node_context import NodeSignature, node_signature
from onnxmem.model.shapes.onnx_rules import onnx_rule_types
from onnxmem.model.traversal import nodes_in, onnx_op, opset_versions, outer_reads, subgraphs
from onnxmem.model.value_types import is_complete, merged, shape_of

MAX_RANK = 1024
"""onnx's limit of ranks, where it has one."""

_NEED_A_TYPE = frozenset(
    {
        ("", "EyeLike"),
        ("", "RegexFullMatch"),
        ("ai.onnx.ml", "LabelEncoder"),
        ("ai.onnx.ml", "TreeEnsemble"),
    }
)
"""Operators whose inference reads the type of the first input without checking that it exists."""
_CANDIDATES = frozenset({op_type for _, op_type in _NEED_A_TYPE} | {"Einsum", "Expand", "Split"})
_EXPAND_LIMITS_RANK = 13
"""Before this version the output of Expand gets a dim for each element of its target, unchecked."""

_BROADCAST: Final = frozenset(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Not Or Sub Xor".split()
)
"""Operators whose output types no element of an input changes (onnx/defs/math/defs.cc and
logical/defs.cc, ``bidirectionalBroadcastShapeInference``): a counter of iterations is added up by
one."""
_TERM: Final = re.compile(rb"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def ends_the_process(
    nodes: Iterable[onnx.NodeProto],
    opsets: Mapping[str, int],
    types: Mapping[str, onnx.TypeProto] | None = None,
) -> bool:
    """Whether onnx's inference of these nodes and their subgraphs would crash or hang.

    ``types`` are those that are passed to onnx.
    """
    known = types or {}
    candidates = [node for node in nodes_in(nodes) if node.op_type in _CANDIDATES]
    return any(_is_fatal(node, opsets, known) for node in candidates)


def has_long_target(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Whether the target of a Reshape or Expand is too long, or of unknown length."""
    target = types.get(node.input[1]) if len(node.input) > 1 else None
    shape = shape_of(target) if target is not None else None
    return shape is None or any(dim is None or dim > MAX_RANK for dim in shape)


def may_be_long_list(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Whether the output of a Concat may be a list that is too long to be a shape.

    It is not if one operand is known to have another rank than 1, or if all are short.
    """
    shapes = [shape_of(types[name]) if name in types else None for name in node.input]
    if any(shape is not None and len(shape) != 1 for shape in shapes):
        return False
    # An unknown length may be any, and a Concat adds them up.
    lengths = [None if shape is None else shape[0] for shape in shapes]
    known = [length for length in lengths if length is not None]
    return len(known) < len(lengths) or sum(known) > MAX_RANK


def has_odd_parts(node: onnx.NodeProto) -> bool:
    """Whether the ``num_outputs`` of a Split differs from its number of outputs.

    onnx allocates a list by the former and fills it by the latter.
    """
    return any(a.name == "num_outputs" and a.i != len(node.output) for a in node.attribute)


def has_odd_terms(node: onnx.NodeProto) -> bool:
    """Whether a term of an Einsum may contain more than letters and one ellipsis.

    onnx loops forever on other characters (``einsumShapeInference`` in ``math/utils.cc``). An
    attribute that refers to one of a function call is unknown here.
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


@dataclass(slots=True)
class NodeInference:
    """Infers single nodes of one model, each distinct one once."""

    model: onnx.ModelProto
    opsets: Mapping[str, int] = field(init=False)
    block: int = 0
    """The channel block of onnxruntime's NCHWc operators; 0 until it is needed."""
    refused: dict[str, str] = field(default_factory=dict)
    """First outputs of nodes whose inputs are known and do not fit, and onnx's reason."""
    memo: dict[NodeSignature | None, Sequence[onnx.TypeProto | None]] = field(default_factory=dict)
    """Output types by signature: a large model repeats one block many times."""

    def __post_init__(self) -> None:
        self.opsets = opset_versions(self.model)

    def output_types(
        self,
        node: onnx.NodeProto,
        types: Mapping[str, onnx.TypeProto],
        values: Mapping[str, Array],
    ) -> dict[str, onnx.TypeProto]:
        """The types of a node's outputs, without outputs of unknown type."""
        read = {} if onnx_op(node) in _BROADCAST else values
        key = node_signature(node, types, read)
        if key in self.memo:
            pairs = zip(node.output, self.memo[key], strict=True)
            return {name: proto for name, proto in pairs if proto is not None}
        found = self._inferred(node, types, values)
        # Errors are not cached, because each node with one is named in a finding.
        if key is not None and self.refused.keys().isdisjoint(node.output[:1]):
            self.memo[key] = [found.get(name) for name in node.output]
        return found

    def _inferred(
        self,
        node: onnx.NodeProto,
        types: Mapping[str, onnx.TypeProto],
        values: Mapping[str, Array],
    ) -> dict[str, onnx.TypeProto]:
        found = self.onnx_types(node, types, values)
        if node.domain == NCHWC and not self.block:
            self.block = channel_block(self.model)
        # Each rule only completes the types found before it (``merged``), so onnx wins where it
        # knows a dim.
        for own in (
            control_flow_types(node, types, values),
            blocked_types(node, types, self.block),
            onnx_rule_types(node, types, values, self.opsets.get("", 1)),
            microsoft_types(node, types, values),
        ):
            for name, derived in own.items():
                found[name] = merged(found.get(name), derived)
        return found

    def onnx_types(
        self,
        node: onnx.NodeProto,
        types: Mapping[str, onnx.TypeProto],
        values: Mapping[str, Array],
    ) -> dict[str, onnx.TypeProto]:
        """The output types by onnx; empty if it does not know the operator, or would fail."""
        node = as_onnx(node, self.opsets.get("", 1))
        read = {*node.input, *(name for _, inner in subgraphs(node) for name in outer_reads(inner))}
        known = {name: types[name] for name in read if name in types}
        if ends_the_process([node], self.opsets, known):
            return {}
        # Small constants go along as data: shapes of Reshape, Slice and their like follow from
        # them.
        data = {n: onnx.numpy_helper.from_array(values[n]) for n in node.input if n in values}
        try:
            version = self.opsets.get(node.domain, 1)
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
            inferred = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                known,
                data,
                opset_imports=list(self.model.opset_import),
                ir_version=self.model.ir_version,
            )
        except onnx.shape_inference.InferenceError as refusal:
            # With all inputs known the refusal is the file's fault, which is reported; else it may
            # be that of an unknown shape.
            if all(is_complete(types.get(name)) for name in node.input if name):
                self.refused[node.output[0]] = str(refusal).strip().splitlines()[0]
            return {}
        except Exception:  # noqa: BLE001 - only the shapes of this node are lost
            return {}
        found = {name: proto for name, proto in inferred.items() if proto.WhichOneof("value")}
        return found | corrected(node, known, found)
