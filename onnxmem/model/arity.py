"""What a node cannot be without: inputs, outputs and the graphs inside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import onnx
import onnx.defs

from onnxmem.errors import GraphError
from onnxmem.model.traversal import node_label, onnx_op, subgraphs

_AROUND_CARRIED = {"inputs": 2, "outputs": 1}
"""What a Loop's body has besides the carried values: trip and condition in, condition out."""


@dataclass(frozen=True, slots=True)
class _Least:
    inputs: int = 0
    outputs: int = 0
    single: tuple[str, ...] = ()
    """The inputs in order: the name of each that cannot be left out, ``""`` for any other."""
    graphs: frozenset[str] = frozenset()
    """Attributes that hold the graphs it runs."""


def refuse_unless_whole(
    node: onnx.NodeProto,
    operator: str,
    operands: tuple[Sequence[str], Sequence[str]],
    version: int,
) -> None:
    """Check one node of ONNX's own against the least that its operator has at a version.

    ``operator`` is the node's, ``""`` where it is not ONNX's own; ``operands`` are its inputs and
    its outputs.

    :raises GraphError: the node has less; it names the node and what it lacks.
    """
    inputs, outputs = operands
    least = _least(operator, version)
    # Few nodes are refused: what does it is not called for each.
    if len(inputs) < least.inputs or len(outputs) < least.outputs:
        _refuse_fewer(node, "inputs", len(inputs), least.inputs)
        _refuse_fewer(node, "outputs", len(outputs), least.outputs)
    if "" in inputs:
        _refuse_left_out(node, least)
    if least.graphs:
        _refuse_missing_graphs(node, least)


def _refuse_left_out(node: onnx.NodeProto, least: _Least) -> None:
    for name, place in zip(node.input, least.single, strict=False):
        if place and not name:
            message = (
                f"node {node_label(node)} leaves out {place}, which {node.op_type} needs; "
                "export the model again"
            )
            raise GraphError(message)


def _refuse_missing_graphs(node: onnx.NodeProto, least: _Least) -> None:
    inside = dict(subgraphs(node))
    for name in sorted(least.graphs - inside.keys()):
        message = (
            f"node {node_label(node)} has no {name}, the graph that {node.op_type} runs; "
            "export the model again"
        )
        raise GraphError(message)
    if onnx_op(node) == "Loop" and "body" in inside:
        body, num_carried = inside["body"], max(len(node.input) - 2, 0)
        for side, values in (("inputs", body.input), ("outputs", body.output)):
            _refuse_fewer(node, f"body {side}", len(values), num_carried + _AROUND_CARRIED[side])


def _refuse_fewer(node: onnx.NodeProto, what: str, count: int, least: int) -> None:
    if count < least:
        message = (
            f"node {node_label(node)} has {count} {what}, and {node.op_type} needs {least}; "
            "export the model again"
        )
        raise GraphError(message)


@cache
def _least(op_type: str, version: int) -> _Least:
    """The least that an operator has; nothing where the operator is not known.

    Where the version has no such operator its newest form is taken: the node means that one.
    """
    schema = _schema(op_type, version) or _schema(op_type, onnx.defs.onnx_opset_version())
    if schema is None:
        return _Least()
    graphs = frozenset(
        name
        for name, attribute in schema.attributes.items()
        if attribute.required and attribute.type == onnx.defs.OpSchema.AttrType.GRAPH
    )
    needed = onnx.defs.OpSchema.FormalParameterOption.Single
    single = tuple(slot.name if slot.option == needed else "" for slot in schema.inputs)
    return _Least(schema.min_input, schema.min_output, single, graphs)


def _schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return None
