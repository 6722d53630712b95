"""Gemm takes in the sum and the transposes around it; Where takes in a Not.

Source: onnxruntime/core/optimizer/gemm_sum_fusion.cc, gemm_transpose_fusion.cc and
not_where_fusion.cc.
"""

from onnxmem.runtimes.onnxruntime.optimiser.attributes import integer, integers, put
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import has_single_reader, is_op
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import NewNode, add_node, replace_chain
from onnxmem.runtimes.onnxruntime.optimiser.rules.effect import Effect

_GEMM = frozenset({7, 9, 11, 13})


def fuse_gemm_sum(graph: Graph, node: Node) -> Effect:
    """A Gemm without addend and a Sum of two become one Gemm."""
    has_addend = bool(node.input_at(2))
    if not is_op(node, "Gemm", _GEMM) or has_addend or not has_single_reader(graph, node):
        return Effect.NONE
    total = graph.children(node)[0]
    if not is_op(total, "Sum", {1, 6, 8, 13}) or len(total.inputs) != 2:  # noqa: PLR2004 - a pair
        return Effect.NONE
    addend = total.inputs[1 if total.inputs[0] == node.outputs[0] else 0]
    if not _broadcasts(graph, addend, node.outputs[0]):
        return Effect.NONE
    made = add_node(
        graph,
        NewNode("Gemm", [*node.inputs[:2], addend], (), "", "", dict(node.attributes)),
    )
    replace_chain(graph, [node, total], made)
    return Effect.REMOVED


def _broadcasts(graph: Graph, addend: str, product: str) -> bool:
    """Whether every dim of the addend is 1 or that of the product."""
    some, full = graph.dims_of(addend), graph.dims_of(product)
    if some is None or full is None or len(some) > len(full):
        return False
    last = full[len(full) - len(some) :]
    return all(a == 1 or (a == b and a is not None) for a, b in zip(some, last, strict=True))


def fuse_gemm_transposes(graph: Graph, node: Node) -> Effect:
    """A Gemm reads the input of a Transpose of a matrix and sets its own flag instead."""
    if not is_op(node, "Gemm", _GEMM):
        return Effect.NONE
    transposes = [graph.parent(node, place) for place in (0, 1)]
    fused = [parent if _is_matrix_transpose(parent) else None for parent in transposes]
    if not any(fused):
        return Effect.NONE
    inputs = list(node.inputs)
    made = add_node(graph, NewNode("Gemm", inputs, (), "", node.name, dict(node.attributes)))
    for place, (parent, flag) in enumerate(zip(fused, ("transA", "transB"), strict=True)):
        if parent is not None:
            graph.set_input(made, place, parent.inputs[0])
            put(made, flag, 1 - integer(node, flag))
    replace_chain(graph, [node], made)
    for parent in dict.fromkeys(fused):
        if parent is not None and has_single_reader(graph, parent, 0):
            graph.remove(parent)
    return Effect.REMOVED


def _is_matrix_transpose(node: Node | None) -> bool:
    if node is None or not is_op(node, "Transpose", {1, 13, 21, 23, 24}):
        return False
    return integers(node, "perm") in (None, [1, 0])


def fuse_not_where(graph: Graph, node: Node) -> Effect:
    """A Where on a Not chooses the other way round."""
    if not is_op(node, "Where", {9, 16}):
        return Effect.NONE
    negation = graph.parent(node, 0)
    if negation is None or not is_op(negation, "Not", {1}) or graph.is_output(negation):
        return Effect.NONE
    readers = graph.readers(negation.outputs[0])
    if any(
        reader.op_type != "Where" or reader.inputs[0] != negation.outputs[0] for reader in readers
    ):
        return Effect.NONE
    for reader in readers:
        graph.set_inputs(reader, [negation.inputs[0], reader.inputs[2], reader.inputs[1]])
    graph.remove(negation)
    return Effect.CHANGED
