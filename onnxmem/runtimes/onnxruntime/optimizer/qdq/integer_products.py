"""Integer products that are scaled back to floats become one operator.

Source: onnxruntime/core/optimizer/matmul_integer_to_float.cc and dynamic_quantize_matmul_fusion.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    MICROSOFT,
    child_of,
    has_single_reader,
    is_constant,
    is_op,
    parent_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node

_DYNAMIC_USES = 3
"""Of a DynamicQuantizeLinear: its value, its scale, its zero point."""
_B, _A_SCALE, _B_SCALE, _A_ZERO, _B_ZERO, _BIAS = 1, 2, 3, 4, 5, 6
"""Places of the inputs of MatMulIntegerToFloat."""


def fuse_scaled_products(graph: Graph) -> bool:
    """MatMulInteger, Cast, Mul by both scales, Add of a bias: MatMulIntegerToFloat."""
    changed: list[bool] = []
    for node in walk(graph, fuse_scaled_products, changed):
        if is_op(node, "Mul", {7, 13, 14}) and has_kernel(graph, node):
            changed.append(_fuse_scaled(graph, node))
    return any(changed)


def _fuse_scaled(graph: Graph, mul: Node) -> bool:
    cast, scales = parent_of(graph, mul, "Cast"), parent_of(graph, mul, "Mul")
    product = None if cast is None else parent_of(graph, cast, "MatMulInteger")
    if cast is None or scales is None or product is None:
        return False
    if not all(has_single_reader(graph, node) for node in (cast, scales, product)):
        return False
    add = _bias_after(graph, mul)
    inputs = [*product.inputs[:2], *scales.inputs[:2], product.input_at(2), product.input_at(3)]
    removed = [product, cast, scales, mul]
    if add is not None:
        inputs.append(next(name for name in add.inputs if name not in mul.outputs))
        removed.append(add)
    outputs = list(removed[-1].outputs)
    made = add_node(graph, NewNode("MatMulIntegerToFloat", inputs, (), MICROSOFT, product.name))
    for node in removed:
        graph.remove(node)
    graph.set_outputs(made, outputs)
    return True


def _bias_after(graph: Graph, mul: Node) -> Node | None:
    """The Add of a constant row after a product, where nothing else reads it."""
    add = child_of(graph, mul, "Add") if has_single_reader(graph, mul) else None
    rows = [] if add is None else [name for name in add.inputs if is_constant(graph, name)]
    if not rows:
        return None
    *leading, columns = graph.dims_of(rows[-1]) or (1,)
    is_row = all(dim == 1 for dim in leading) and isinstance(columns, int) and columns > 1
    return add if is_row else None


def fuse_dynamic_products(graph: Graph) -> bool:
    """DynamicQuantizeLinear with its only MatMulIntegerToFloat: DynamicQuantizeMatMul."""
    changed: list[bool] = []
    for node in walk(graph, fuse_dynamic_products, changed):
        if is_op(node, "MatMulIntegerToFloat", {1}, MICROSOFT):
            changed.append(_fuse_dynamic(graph, node))
    return any(changed)


def _fuse_dynamic(graph: Graph, node: Node) -> bool:
    quantise = graph.parent(node, 0)
    if quantise is None or quantise.op_type != "DynamicQuantizeLinear":
        return False
    if any(graph.parent(node, place) is not quantise for place in (_A_SCALE, _A_ZERO)):
        return False
    if not has_single_reader(graph, quantise, _DYNAMIC_USES):
        return False
    places = (_B, _B_SCALE, _B_ZERO, _BIAS)
    inputs = [quantise.inputs[0], *(node.input_at(place) for place in places)]
    outputs = list(node.outputs)
    name = quantise.name
    made = add_node(graph, NewNode("DynamicQuantizeMatMul", inputs, (), MICROSOFT, name))
    graph.remove(node)
    graph.remove(quantise)
    graph.set_outputs(made, outputs)
    return True
