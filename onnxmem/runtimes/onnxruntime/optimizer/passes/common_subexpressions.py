"""Nodes that compute the same of the same values become one.

Source: onnxruntime/core/optimizer/common_subexpression_elimination.cc: value numbering in
execution order; a node with a graph among its attributes equals no other.
"""

from collections.abc import Hashable

import onnx
import onnx.defs

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import has_single_reader
from onnxmem.runtimes.onnxruntime.optimizer.operators import is_deterministic
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order, walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import redirect

_COMPARED = frozenset(
    {
        onnx.AttributeProto.FLOAT,
        onnx.AttributeProto.INT,
        onnx.AttributeProto.STRING,
        onnx.AttributeProto.FLOATS,
        onnx.AttributeProto.INTS,
        onnx.AttributeProto.STRINGS,
        onnx.AttributeProto.TENSOR,
    }
)


def merge_equal_nodes(graph: Graph) -> bool:
    """Make the readers of a repeated node read the first one."""
    changed: list[bool] = []
    numbers: dict[str, Hashable] = {}
    chosen: dict[Hashable, str] = {}
    for node in walk(graph, merge_equal_nodes, changed):
        inputs = tuple(numbers.get(name, name) for name in node.inputs)
        for place, name in enumerate(node.outputs):
            key = _key(node, inputs, place)
            number: Hashable = (chosen[key], "output") if key in chosen else (name, "output")
            chosen.setdefault(key, name)
            numbers[name] = number
    return _merge(graph, numbers) or any(changed)


def _merge(graph: Graph, numbers: dict[str, Hashable]) -> bool:
    changed = False
    for node in execution_order(graph):
        is_replaced = False
        for name in node.outputs:
            number = numbers.get(name)
            first = number[0] if isinstance(number, tuple) else name
            if name and first != name and name not in graph.outputs:
                redirect(graph, name, str(first))
                is_replaced = True
        if is_replaced:
            changed = True
            if has_single_reader(graph, node, 0):
                graph.remove(node)
    return changed


def _key(node: Node, inputs: tuple[Hashable, ...], place: int) -> Hashable:
    attributes = _attributes(node)
    if attributes is None or node.bodies or not _is_compared(node):
        return (node.index, place)
    kept = list(inputs)
    while kept and kept[-1] == "":
        kept.pop()
    return (node.op_type, node.domain, tuple(kept), attributes, place)


def _is_compared(node: Node) -> bool:
    """Each QDQ unit keeps a DequantizeLinear of its own."""
    is_unit = node.op_type == "DequantizeLinear"
    return is_deterministic(node.domain, node.op_type) and not is_unit


def _attributes(node: Node) -> Hashable | None:
    """Attributes with the schema's defaults; ``None`` where one cannot be compared."""
    values: dict[str, bytes] = {}
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        pass
    else:
        for name, attribute in schema.attributes.items():
            if attribute.default_value.name:
                values[name] = _bytes(attribute.default_value)
    for name, given in node.attributes.items():
        if given.type not in _COMPARED:
            return None
        values[name] = _bytes(given)
    return tuple(sorted(values.items()))


def _bytes(attribute: onnx.AttributeProto) -> bytes:
    plain = onnx.AttributeProto()
    plain.CopyFrom(attribute)
    plain.ClearField("doc_string")
    return plain.SerializeToString(deterministic=True)
