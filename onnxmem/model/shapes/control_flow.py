"""Shapes of control flow: the inputs of bodies, and the outputs of If and Loop.

If the condition of an If is known, its outputs are those of the branch that runs. A carried value
of a Loop keeps its shape if one iteration does not change it, and scan outputs stack iterations.
"""

from collections.abc import Mapping

import onnx

from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.control_flow import LoopBody, Scalar
from onnxmem.model.shapes.node_context import Found, Types
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, dims_of, is_complete, shape_of

Body = tuple[onnx.GraphProto, Mapping[str, Array]]
"""A subgraph, and the known values of its tensors."""
_SCAN_WITHOUT_BATCH = 9
"""Before this version Scan had a batch axis and lengths."""


def control_flow_types(node: onnx.NodeProto, types: Types, values: Mapping[str, Array]) -> Found:
    """The types of the outputs of an If or a Loop; empty for other nodes."""
    if onnx_op(node) == "If":
        return _if(node, values)
    if onnx_op(node) == "Loop":
        return _loop(node, types, values)
    return {}


def body_inputs(node: onnx.NodeProto, types: Types, opsets: Mapping[str, int]) -> Found:
    """The types of the inputs of the body of a Loop or Scan in its first iteration."""
    body = _body(node)
    if body is None:
        return {}
    passed: list[onnx.TypeProto | None] = []
    if onnx_op(node) == "Loop":
        passed = [dense_type(onnx.TensorProto.INT64, ()), dense_type(onnx.TensorProto.BOOL, ())]
        passed += [types.get(name) for name in node.input[2:]]
    elif onnx_op(node) == "Scan" and opsets.get("", 1) >= _SCAN_WITHOUT_BATCH:
        passed = _slices(node, types)
    return {
        value.name: known
        for value, known in zip(body.input, passed, strict=False)
        if known is not None
    }


def values_of_branch(
    node: onnx.NodeProto, values: Mapping[str, Array], bodies: Mapping[str, Body]
) -> dict[str, Array]:
    """The values of an If's outputs, if the branch that runs and its values are known."""
    branch = _branch(node, values) if onnx_op(node) == "If" else ""
    if branch not in bodies:
        return {}
    graph, inside = bodies[branch]
    pairs = zip(node.output, graph.output, strict=False)
    return {name: inside[value.name] for name, value in pairs if name and value.name in inside}


def _slices(node: onnx.NodeProto, types: Types) -> list[onnx.TypeProto | None]:
    """The types of a Scan's states, and of its scanned inputs without the scan axis."""
    settings = {attribute.name: attribute for attribute in node.attribute}
    declared = settings["num_scan_inputs"].i if "num_scan_inputs" in settings else 0
    # A file may declare any number and any axes: what is not there is not read.
    num_scanned = min(max(declared, 0), len(node.input))
    num_states = len(node.input) - num_scanned
    axes = list(settings["scan_input_axes"].ints) if "scan_input_axes" in settings else []
    axes += [0] * (num_scanned - len(axes))
    slices: list[onnx.TypeProto | None] = [types.get(name) for name in node.input[:num_states]]
    for name, axis in zip(node.input[num_states:], axes, strict=False):
        known = types.get(name)
        shape = shape_of(known) if known is not None and is_complete(known) else None
        if known is None or shape is None or not -len(shape) <= axis < len(shape):
            slices.append(None)
            continue
        dims = [dim for each, dim in enumerate(shape) if each != axis % len(shape)]
        slices.append(dense_type(known.tensor_type.elem_type, [dim or 0 for dim in dims]))
    return slices


def _loop(node: onnx.NodeProto, types: Types, values: Mapping[str, Array]) -> Found:
    """The outputs of a Loop, by the types of its body's outputs after one iteration."""
    # If one iteration does not change the shape of a carried value, no iteration does, because the
    # body was inferred with that shape (by induction).
    body = _body(node)
    if body is None:
        return {}
    num_carried = max(len(node.input) - 2, 0)
    results = [value.type for value in body.output[1:]]
    found = {}
    for name, initial, after in zip(node.output, node.input[2:], results, strict=False):
        known = types.get(initial)
        if known is not None and is_complete(known) and shape_of(known) == shape_of(after):
            found[name] = known
    trips = _trip_count(node, body, values)
    for name, each in zip(node.output[num_carried:], results[num_carried:], strict=False):
        dims = dims_of(each)
        if trips is not None and is_complete(each) and dims is not None:
            found[name] = dense_type(each.tensor_type.elem_type, (trips, *dims))
    return found


def _trip_count(
    node: onnx.NodeProto, body: onnx.GraphProto, values: Mapping[str, Array]
) -> int | None:
    """The number of iterations of a Loop, if constants and a counter decide it."""
    limit, condition = (*node.input, "", "")[:2]
    most = _scalar(values.get(limit))
    going = _scalar(values.get(condition)) if condition else True
    if (limit and not isinstance(most, int)) or going is None:
        return None
    # Constants of the body, then all other nodes as scalar operations: the counter of a loop is a
    # few of them.
    constants = [(each.name, each) for each in body.initializer]
    constants += [(n.output[0], t) for n in body.node if (t := constant_tensor(n)) is not None]
    inside = {name: constant_value(tensor) for name, tensor in constants}
    scalars = LoopBody(
        [value.name for value in body.input],
        [value.name for value in body.output],
        [(onnx_op(n), n.input, n.output[0]) for n in body.node if n.output[0] not in inside],
        lambda name: _scalar(inside[name] if name in inside else values.get(name)),
    )
    first = [_scalar(values.get(name)) for name in node.input[2:]]
    return scalars.trips(max(int(most), 0) if most is not None else None, going, first)


def _scalar(value: Array | None) -> Scalar | None:
    """The value of an integer or boolean scalar; ``None`` for any other value."""
    if value is None or value.size != 1 or value.dtype.kind not in "iub":
        return None
    element: Scalar = value.item()
    return element


def _body(node: onnx.NodeProto) -> onnx.GraphProto | None:
    return next((attribute.g for attribute in node.attribute if attribute.name == "body"), None)


def _branch(node: onnx.NodeProto, values: Mapping[str, Array]) -> str:
    """The attribute of the branch that runs; empty if the condition is unknown."""
    condition = values.get(node.input[0])
    if condition is None or condition.size != 1:
        return ""
    return "then_branch" if condition.item() else "else_branch"


def _if(node: onnx.NodeProto, values: Mapping[str, Array]) -> Found:
    """The outputs of an If: those of the branch that runs, if that is known."""
    branch = _branch(node, values)
    graph = next((a.g for a in node.attribute if a.name == branch), None)
    if graph is None:
        return {}
    known = [value.type for value in graph.output]
    return {
        name: proto
        for name, proto in zip(node.output, known, strict=False)
        if name and proto.WhichOneof("value")
    }
