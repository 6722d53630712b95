"""Transposes before a product of matrices become its flags.

Source: onnxruntime/core/optimizer/matmul_transpose_fusion.cc. A Cast between the two is moved
before the Transpose (``ReorderCastAndTranspose``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, integers, number, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    MICROSOFT,
    has_single_reader,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.passes.matmul_scale import is_matmul
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

_TYPES = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)
_MIN_BATCHED = 3


@dataclass(frozen=True, slots=True)
class _Transposed:
    """A transposed operand: the node, and which flags stand for it."""

    node: Node
    is_swapped: bool
    """The last two dims change places."""
    is_batched: bool
    """The first dim goes behind the batch dims."""


def fuse_matmul_transpose(graph: Graph) -> bool:
    """Replace each product of a transposed operand by FusedMatMul."""
    changed: list[bool] = []
    for node in walk(graph, fuse_matmul_transpose, changed):
        if is_matmul(node) and has_kernel(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, matmul: Node) -> bool:
    if any(graph.elem_type_of(name) not in _TYPES for name in matmul.inputs):
        return False
    operands = [
        _transposed(graph, graph.parent(matmul, place)) or _recast(graph, matmul, place)
        for place in range(2)
    ]
    if not _have_equal_ranks(graph, matmul, operands):
        operands = [None if found and found.is_batched else found for found in operands]
    if not any(operands):
        return False
    inputs = [
        matmul.inputs[place] if found is None else found.node.inputs[0]
        for place, found in enumerate(operands)
    ]
    name = f"{matmul.name}/MatmulTransposeFusion/"
    made = add_node(graph, NewNode("FusedMatMul", inputs, (), MICROSOFT, name))
    for side, found in zip("AB", operands, strict=True):
        flipped = found is not None and found.is_swapped
        batched = found is not None and found.is_batched
        put(made, f"trans{side}", integer(matmul, f"trans{side}") ^ int(flipped))
        put(made, f"transBatch{side}", integer(matmul, f"transBatch{side}") ^ int(batched))
    put(made, "alpha", number(matmul, "alpha", 1.0))
    replace_chain(graph, [matmul], made)
    for node in dict.fromkeys(found.node for found in operands if found is not None):
        if has_single_reader(graph, node, 0):
            graph.remove(node)
    return True


def _have_equal_ranks(graph: Graph, matmul: Node, operands: Sequence[_Transposed | None]) -> bool:
    """Whether both sides, before any Transpose, are known to have as many dims."""
    pairs = zip(matmul.inputs, operands, strict=True)
    ranks = {rank_of(graph, found.node.inputs[0] if found else name) for name, found in pairs}
    return len(ranks) == 1 and None not in ranks


def _recast(graph: Graph, matmul: Node, place: int) -> _Transposed | None:
    """Swap the Transpose and the Cast behind it that make an operand."""
    cast = graph.parent(matmul, place)
    if cast is None or cast.op_type != "Cast" or cast.domain:
        return None
    old = graph.parent(cast, 0)
    found = _transposed(graph, old)
    if old is None or found is None:
        return None
    target, source = cast.outputs[0], old.inputs[0]
    name = graph.fresh_name(f"{target}_transformed")
    graph.types[name] = TensorType(graph.elem_type_of(target), graph.dims_of(source))
    graph.remove(cast)
    add_node(graph, NewNode("Cast", [source], [name], "", cast.name, dict(cast.attributes)))
    made = add_node(
        graph, NewNode("Transpose", [name], [target], "", old.name, dict(old.attributes))
    )
    if has_single_reader(graph, old, 0):
        graph.remove(old)
    return replace(found, node=made)


def _transposed(graph: Graph, node: Node | None) -> _Transposed | None:
    """What a Transpose of the last two dims, or of the first and the last ones, does."""
    is_used = node is not None and node.op_type == "Transpose" and not node.domain
    if node is None or not is_used or graph.is_output(node):
        return None
    order = _order(graph, node)
    rank = len(order)
    if rank <= 1:
        return None
    if order == [*range(rank - 2), rank - 1, rank - 2]:
        return _Transposed(node, is_swapped=True, is_batched=False)
    if rank < _MIN_BATCHED or order[: rank - 2] != list(range(1, rank - 1)):
        return None
    return _Transposed(node, is_swapped=order[-1] == 0, is_batched=True)


def _order(graph: Graph, node: Node) -> list[int]:
    """The dims in their new order: the other way round where it isn't said."""
    order = integers(node, "perm")
    return list(range(rank_of(graph, node.inputs[0]) or 0))[::-1] if order is None else order
