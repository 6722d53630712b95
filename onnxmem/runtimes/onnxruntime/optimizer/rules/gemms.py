"""Gemm takes in the sum and the transposes around it; Where takes in a Not.

Source: onnxruntime/core/optimizer/gemm_sum_fusion.cc, gemm_transpose_fusion.cc and
not_where_fusion.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, integers, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    has_single_reader,
    is_gemm_bias,
    is_op,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect

_GEMM = frozenset({7, 9, 11, 13})
_ADDS_NOTHING = frozenset({11, 13})
"""Versions that need no addend."""
_PAIR = 2


def fuse_gemm_sum(graph: Graph, node: Node) -> Effect:
    """A Gemm without addend and a Sum of two become one Gemm."""
    has_addend = bool(node.input_at(2))
    if not is_op(node, "Gemm", _ADDS_NOTHING) or has_addend or not has_single_reader(graph, node):
        return Effect.NONE
    total = graph.children(node)[0]
    if not is_op(total, "Sum", {1, 6, 8, 13}) or len(total.inputs) != _PAIR:
        return Effect.NONE
    addend = total.inputs[1 if total.inputs[0] == node.outputs[0] else 0]
    bias, product = graph.dims_of(addend), graph.dims_of(node.outputs[0])
    if bias is None or product is None or not is_gemm_bias(bias, product):
        return Effect.NONE
    made = add_node(
        graph,
        NewNode("Gemm", [*node.inputs[:2], addend], (), "", "", dict(node.attributes)),
    )
    replace_chain(graph, [node, total], made)
    return Effect.REMOVED


def fuse_gemm_transposes(graph: Graph, node: Node) -> Effect:
    """A Gemm does the work of the Transposes before and behind it by its own flags."""
    if not is_op(node, "Gemm", _GEMM) or graph.num_edges(node) > 1:
        return Effect.NONE
    before = [_transpose_before(graph, node, place) for place in (0, 1)]
    behind = _transpose_behind(graph, node)
    if not any(before) and behind is None:
        return Effect.NONE
    inputs = [
        name if maker is None else maker.inputs[0]
        for name, maker in zip(node.inputs, before, strict=False)
    ]
    flags = [
        integer(node, flag) ^ (maker is not None)
        for flag, maker in zip(("transA", "transB"), before, strict=True)
    ]
    if behind is not None:
        inputs, flags = inputs[::-1], [1 - flag for flag in flags[::-1]]
    attributes = dict(node.attributes)
    made = add_node(
        graph, NewNode("Gemm", [*inputs, *node.inputs[2:]], (), "", node.name, attributes)
    )
    put(made, "transA", flags[0])
    put(made, "transB", flags[1])
    replace_chain(graph, [node] if behind is None else [node, behind], made)
    for maker in dict.fromkeys(before):
        if maker is not None and has_single_reader(graph, maker, 0):
            graph.remove(maker)
    return Effect.REMOVED


def _transpose_before(graph: Graph, gemm: Node, place: int) -> Node | None:
    """The Transpose that makes an operand, if only Gemms read it."""
    node = graph.parent(gemm, place)
    if node is None or not _is_matrix_transpose(graph, node) or graph.is_output(node):
        return None
    return node if all(reader.op_type == "Gemm" for reader in graph.children(node)) else None


def _transpose_behind(graph: Graph, gemm: Node) -> Node | None:
    """The Transpose that alone reads the result of a Gemm that adds nothing: (AB)' is B'A'."""
    adds_nothing = is_op(gemm, "Gemm", _ADDS_NOTHING) and len(gemm.inputs) == _PAIR
    if not adds_nothing or not has_single_reader(graph, gemm):
        return None
    reader = graph.children(gemm)[0]
    return reader if _is_matrix_transpose(graph, reader) else None


def _is_matrix_transpose(graph: Graph, node: Node) -> bool:
    if not is_op(node, "Transpose", {1, 13, 21, 23, 24, 25}):
        return False
    rank, order = rank_of(graph, node.inputs[0]), integers(node, "perm")
    return rank == _PAIR if order is None else rank in (None, _PAIR) and order == [1, 0]


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
