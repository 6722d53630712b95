"""Fusion of matrix products with the Add, bias, constant factor or Transpose beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Dim, Dims, Graph, Node, TensorType, walk
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    MICROSOFT,
    has_edges,
    has_kernel,
    has_single_reader,
    integer,
    integers,
    is_gemm_bias,
    is_op,
    number,
    other_operand,
    put,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_array,
    add_node,
    replace_chain,
)

# --------------------------------------------------------------------------------------------------
# A MatMul and the Add after it become a Gemm.
#
# onnxruntime/core/optimizer/matmul_add_fusion.cc (``MatMulAddFusion``). If the left side does not
# have two dims, Reshapes flatten it and restore it, if its shape is known. The products of an
# attention block wait for the extended level, because AttentionFusion, which runs before, would not
# find them any more.


_MATRIX = 2
_GEMM_TYPES = (FLOAT, FLOAT16, BFLOAT16)


def fuse_matmul_add(graph: Graph) -> bool:
    """The pass of the basic level, which leaves products of attention blocks alone."""
    return _fuse_all(graph, _AttentionBlocks())


def fuse_remaining_matmul_add(graph: Graph) -> bool:
    """The pass of the extended level, for the products that AttentionFusion left."""
    return _fuse_all(graph, None)


def _fuse_all(graph: Graph, blocks: "_AttentionBlocks | None") -> bool:
    changed: list[bool] = []
    apply = fuse_remaining_matmul_add if blocks is None else fuse_matmul_add
    for node in walk(graph, apply, changed):
        if not is_op(node, "MatMul", {1, 9, 13}) or not has_single_reader(graph, node):
            continue
        add = graph.children(node)[0]
        if is_op(add, "Add", {7, 13, 14}):
            changed.append(_fuse_matmul_add(graph, node, add, blocks))
    return any(changed)


@dataclass(slots=True)
class _AttentionBlocks:
    """The blocks found so far (``IsAttentionPattern``)."""

    norms: set[int] = field(default_factory=set)
    """Indices of LayerNormalizations with three products and a residual Add as readers."""
    sums: set[int] = field(default_factory=set)
    """Indices of the Adds at the end of such blocks."""

    def contains(self, graph: Graph, matmul: Node, add: Node) -> bool:
        """Whether a product is one of the three, or the last of a block seen before."""
        parent = graph.parent(matmul, 0)
        if add.index in self.sums or (parent is not None and parent.index in self.norms):
            return True
        if parent is None or parent.op_type != "LayerNormalization":
            return False
        # The norm feeds q, k and v and the residual; readers beyond these four may only be Shapes,
        # with which exporters compute the Reshapes of the heads.
        readers = graph.children(parent)
        kinds = [reader.op_type for reader in readers]
        if kinds.count("Add") != 1 or kinds.count("MatMul") != 3:  # noqa: PLR2004 - q, k, v
            return False
        if kinds.count("Shape") != len(kinds) - 4:
            return False
        residual = next(reader for reader in readers if reader.op_type == "Add")
        other = 1 if residual.inputs[0] == parent.outputs[0] else 0
        last = graph.parent(residual, other)
        if last is None or last.op_type != "Add":
            return False
        self.norms.add(parent.index)
        self.sums.add(last.index)
        return True


def _fuse_matmul_add(
    graph: Graph, matmul: Node, add: Node, blocks: _AttentionBlocks | None
) -> bool:
    left, right = (graph.dims_of(name) for name in matmul.inputs)
    elem_type = graph.elem_type_of(matmul.inputs[0])
    if elem_type != graph.elem_type_of(add.inputs[0]) or elem_type not in _GEMM_TYPES:
        return False
    if left is None or right is None or len(right) != _MATRIX:
        return False
    is_flat = len(left) == _MATRIX
    if not is_flat and blocks is not None and blocks.contains(graph, matmul, add):
        return False
    # The Reshapes around a Gemm have constant targets, so every dim must be a number.
    rows = _rows(left, right)
    if not is_flat and rows is None:
        return False
    bias = other_operand(add, matmul)
    if not _is_valid_bias(graph.dims_of(bias), left, right[1]):
        return False
    if is_flat or rows is None:
        _replace(graph, [matmul, add], [*matmul.inputs, bias], add.outputs)
    else:
        _reshape_around(graph, [matmul, add], bias, rows)
    return True


def _rows(left: Dims, right: Dims) -> int | None:
    """Rows of the flattened left side; ``None`` if a dim that a Reshape needs is unknown."""
    known = [dim for dim in left if isinstance(dim, int)]
    if len(known) != len(left) or not all(isinstance(dim, int) for dim in right):
        return None
    return prod(known[:-1])


def _is_valid_bias(bias: Dims | None, left: Dims, columns: Dim) -> bool:
    """Whether a Gemm can add a bias; if the left side is flattened, only a bias of (N)."""
    if bias is None or (len(left) != _MATRIX and len(bias) != 1):
        return False
    return is_gemm_bias(bias, (left[0] if left else None, columns))


def _replace(
    graph: Graph, old: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    # ``outputs`` may be the list of a node that is removed.
    names = list(outputs)
    name = f"{old[0].name}/MatMulAddFusion"
    gemm = add_node(graph, NewNode("Gemm", list(inputs), (), "", name))
    for node in old:
        graph.remove(node)
    graph.set_outputs(gemm, names)


def _reshape_around(graph: Graph, old: Sequence[Node], bias: str, rows: int) -> None:
    matmul, add = old
    elem_type = graph.elem_type_of(matmul.inputs[0])
    shape = [dim for dim in graph.dims_of(matmul.inputs[0]) or () if isinstance(dim, int)]
    inner, columns = (dim for dim in graph.dims_of(matmul.inputs[1]) or () if isinstance(dim, int))
    outputs = list(add.outputs)
    # Gemm takes matrices only: all leading dims become rows, and come back after the product.
    flat = _named(graph, "gemm_input", (rows, inner), elem_type)
    target = add_array(graph, graph.fresh_name("gemm_input_shape"), np.array([rows, inner]))
    add_node(
        graph, NewNode("Reshape", [matmul.inputs[0], target], [flat], "", "gemm_input_reshape")
    )
    product = _named(graph, "gemm_output", (rows, columns), elem_type)
    target = add_array(
        graph, graph.fresh_name("gemm_output_shape"), np.array([*shape[:-1], columns])
    )
    last = add_node(graph, NewNode("Reshape", [product, target], (), "", "gemm_output_reshape"))
    _replace(graph, old, [flat, matmul.inputs[1], bias], [product])
    graph.set_outputs(last, outputs)


def _named(graph: Graph, base: str, dims: Dims, elem_type: int) -> str:
    name = graph.fresh_name(f"{base}_reshape_arg")
    graph.types[name] = TensorType(elem_type, dims)
    return name


# --------------------------------------------------------------------------------------------------
# An Add of a vector after a MatMulNBits becomes its bias.
#
# onnxruntime/core/optimizer/matmul_nbits_fusion.cc (``BiasFusion``).


_BIAS: Final = 5


def fuse_matmul_nbits_bias(graph: Graph) -> bool:
    """Fuse an Add of a vector into the MatMulNBits before it."""
    changed: list[bool] = []
    for node in walk(graph, fuse_matmul_nbits_bias, changed):
        if is_op(node, "MatMulNBits", {1}, MICROSOFT) and has_kernel(graph, node):
            changed.append(_fuse_matmul_nbits_bias(graph, node))
    return any(changed)


def _fuse_matmul_nbits_bias(graph: Graph, product: Node) -> bool:
    has_bias = bool(product.input_at(_BIAS))
    if has_bias or integer(product, "weight_prepacked") or not has_single_reader(graph, product):
        return False
    (edge,) = graph.edges_of(product)
    add = edge.reader
    if not is_op(add, "Add", {7, 13, 14}) or not has_kernel(graph, add):
        return False
    bias = add.inputs[1 - edge.input]
    if graph.dims_of(bias) != (integer(product, "N"),):
        return False
    outputs = list(add.outputs)
    graph.remove(add)
    graph.set_input(product, _BIAS, bias)
    graph.set_outputs(product, outputs)
    return True


# --------------------------------------------------------------------------------------------------
# Constant factors before and after a matrix product become its ``alpha``.
#
# onnxruntime/core/optimizer/matmul_scale_fusion.cc (``MatMulScaleFusion``).


_ARITHMETIC = frozenset({7, 13, 14})
_TYPES = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)


def fuse_matmul_scale(graph: Graph) -> bool:
    """Replace each MatMul with a constant factor before or after it by FusedMatMul."""
    changed: list[bool] = []
    for node in walk(graph, fuse_matmul_scale, changed):
        if is_matmul(node) and has_kernel(graph, node):
            changed.append(_fuse_matmul_scale(graph, node))
    return any(changed)


def is_matmul(node: Node) -> bool:
    """Whether a node is MatMul or FusedMatMul."""
    return is_op(node, "MatMul", {9, 13}) or is_op(node, "FusedMatMul", {1}, MICROSOFT)


def _fuse_matmul_scale(graph: Graph, matmul: Node) -> bool:
    if graph.elem_type_of(matmul.inputs[0]) not in _TYPES:
        return False
    # A factor of an operand or of the result is one factor of the product: (aX)(bY)c = abc XY.
    scaled = [_scaled_input(graph, matmul, index) for index in range(2)]
    after = _scale_after(graph, matmul)
    if not any(scaled) and after is None:
        return False
    inputs = [
        matmul.inputs[index] if found is None else found[1] for index, found in enumerate(scaled)
    ]
    factors = [found[2] for found in (*scaled, after) if found is not None]
    fused = add_node(
        graph,
        NewNode(
            "FusedMatMul",
            inputs,
            (),
            MICROSOFT,
            f"{matmul.name}_FusedMatMulAndScale",
            dict(matmul.attributes),
        ),
    )
    put(fused, "alpha", number(matmul, "alpha", 1.0) * math.prod(factors))
    replace_chain(graph, [matmul] if after is None else [matmul, after[0]], fused)
    _drop_unread(graph, [found[0] for found in scaled if found is not None])
    return True


# A node that scales may have other readers: it goes only once the product was the last of them.
def _drop_unread(graph: Graph, nodes: Sequence[Node]) -> None:
    for node in dict.fromkeys(nodes):
        if has_edges(graph, node, 0):
            graph.remove(node)


_Scaled = tuple[Node, str, float]
"""The node that scales, the value that it scales, and the factor."""


def _scaled_input(graph: Graph, matmul: Node, input_index: int) -> _Scaled | None:
    producer = graph.parent(matmul, input_index)
    found = None if producer is None else _scale_of(graph, producer)
    return None if found is None or rank_of(graph, found[1]) is None else found


def _scale_after(graph: Graph, matmul: Node) -> _Scaled | None:
    if not has_single_reader(graph, matmul):
        return None
    found = _scale_of(graph, graph.children(matmul)[0])
    return found if found is not None and found[1] == matmul.outputs[0] else None


def _scale_of(graph: Graph, node: Node) -> _Scaled | None:
    if is_op(node, "Div", _ARITHMETIC):
        divisor = _factor(graph, node, 1)
        if divisor is None:
            return None
        return node, node.inputs[0], 1.0 / divisor if divisor else math.copysign(math.inf, divisor)
    if is_op(node, "Mul", _ARITHMETIC):
        for index in (0, 1):
            factor = _factor(graph, node, index)
            if factor is not None:
                return node, node.inputs[1 - index], factor
    return None


def _factor(graph: Graph, node: Node, input_index: int) -> float | None:
    """The only element of a constant operand whose rank is not higher than the other's."""
    name, other = node.inputs[input_index], node.inputs[1 - input_index]
    tensor, value = graph.constant(name), graph.array(name)
    if tensor is None or value is None or value.size != 1 or value.dtype.kind not in "fi":
        return None
    rank = rank_of(graph, other)
    if tensor.dims and (rank is None or rank < len(tensor.dims)):
        return None
    return float(value.ravel()[0])


# --------------------------------------------------------------------------------------------------
# Transposes before a matrix product become its flags.
#
# onnxruntime/core/optimizer/matmul_transpose_fusion.cc (``GetTransposeNodeFromOutput``). A Cast
# between the two is moved before the Transpose (``ReorderCastAndTranspose``).


_MIN_BATCHED = 3


@dataclass(frozen=True, slots=True)
class _Transposed:
    """A transposed operand: its Transpose, and the flags that replace it."""

    node: Node
    is_swapped: bool
    """``transA`` or ``transB``: the last two axes are swapped."""
    is_batched: bool
    """``transBatchA`` or ``transBatchB``: the first axis moves behind the batch axes."""


def fuse_matmul_transpose(graph: Graph) -> bool:
    """Replace each product of a transposed operand by FusedMatMul."""
    changed: list[bool] = []
    for node in walk(graph, fuse_matmul_transpose, changed):
        if is_matmul(node) and has_kernel(graph, node):
            changed.append(_fuse_matmul_transpose(graph, node))
    return any(changed)


def _fuse_matmul_transpose(graph: Graph, matmul: Node) -> bool:
    if any(graph.elem_type_of(name) not in _TYPES for name in matmul.inputs):
        return False
    operands = [
        _transposed(graph, graph.parent(matmul, index)) or _recast(graph, matmul, index)
        for index in range(2)
    ]
    # ``transBatch`` moves an axis of both sides alike, which only equal ranks allow; a swap of the
    # last two axes is free of that.
    if not _have_equal_ranks(graph, matmul, operands):
        operands = [None if found and found.is_batched else found for found in operands]
    if not any(operands):
        return False
    inputs = [
        matmul.inputs[index] if found is None else found.node.inputs[0]
        for index, found in enumerate(operands)
    ]
    name = f"{matmul.name}/MatmulTransposeFusion/"
    fused = add_node(graph, NewNode("FusedMatMul", inputs, (), MICROSOFT, name))
    for side, found in zip("AB", operands, strict=True):
        flipped = found is not None and found.is_swapped
        batched = found is not None and found.is_batched
        # A flag that the product has already and the Transpose undo each other.
        put(fused, f"trans{side}", integer(matmul, f"trans{side}") ^ int(flipped))
        put(fused, f"transBatch{side}", integer(matmul, f"transBatch{side}") ^ int(batched))
    put(fused, "alpha", number(matmul, "alpha", 1.0))
    replace_chain(graph, [matmul], fused)
    for node in dict.fromkeys(found.node for found in operands if found is not None):
        if has_edges(graph, node, 0):
            graph.remove(node)
    return True


def _have_equal_ranks(graph: Graph, matmul: Node, operands: Sequence[_Transposed | None]) -> bool:
    """Whether both sides, before any Transpose, have the same known rank."""
    pairs = zip(matmul.inputs, operands, strict=True)
    ranks = {rank_of(graph, found.node.inputs[0] if found else name) for name, found in pairs}
    return len(ranks) == 1 and None not in ranks


def _recast(graph: Graph, matmul: Node, input_index: int) -> _Transposed | None:
    """Swap the Transpose and the Cast after it that produce an operand."""
    cast = graph.parent(matmul, input_index)
    if cast is None or cast.op_type != "Cast" or cast.domain:
        return None
    old = graph.parent(cast, 0)
    found = _transposed(graph, old)
    if old is None or found is None:
        return None
    # A Cast is elementwise, so the order of both does not matter; now the Transpose is next to the
    # product, where it can become a flag.
    target, source = cast.outputs[0], old.inputs[0]
    name = graph.fresh_name(f"{target}_transformed")
    graph.types[name] = TensorType(graph.elem_type_of(target), graph.dims_of(source))
    graph.remove(cast)
    add_node(graph, NewNode("Cast", [source], [name], "", cast.name, dict(cast.attributes)))
    transpose = add_node(
        graph, NewNode("Transpose", [name], [target], "", old.name, dict(old.attributes))
    )
    if has_edges(graph, old, 0):
        graph.remove(old)
    return replace(found, node=transpose)


def _transposed(graph: Graph, node: Node | None) -> _Transposed | None:
    """The flags for a Transpose of the last two axes, or of the first and the last ones."""
    is_transpose = node is not None and node.op_type == "Transpose" and not node.domain
    if node is None or not is_transpose or graph.is_output(node):
        return None
    perm = _perm(graph, node)
    rank = len(perm)
    if rank <= 1:
        return None
    if perm == [*range(rank - 2), rank - 1, rank - 2]:
        return _Transposed(node, is_swapped=True, is_batched=False)
    if rank < _MIN_BATCHED or perm[: rank - 2] != list(range(1, rank - 1)):
        return None
    return _Transposed(node, is_swapped=perm[-1] == 0, is_batched=True)


def _perm(graph: Graph, node: Node) -> list[int]:
    """The permutation of a Transpose; without the attribute it reverses the axes."""
    perm = integers(node, "perm")
    return list(range(rank_of(graph, node.inputs[0]) or 0))[::-1] if perm is None else perm
