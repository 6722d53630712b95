"""A product of matrices and the sum after it become a Gemm.

Source: onnxruntime/core/optimizer/matmul_add_fusion.cc. A left side of more or fewer than two dims
is reshaped before and after, if its shape is known; around attention that waits for the extended
level, where AttentionFusion comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    has_single_reader,
    is_gemm_bias,
    is_op,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_array, add_node
from onnxmem.runtimes.onnxruntime.optimizer.value_types import Dim, Dims, TensorType

_MATRIX = 2
_GEMM_TYPES = (FLOAT, FLOAT16, BFLOAT16)


def fuse_matmul_add(graph: Graph) -> bool:
    """The basic level: products of attention blocks are left for AttentionFusion."""
    return _fuse_all(graph, _AttentionBlocks())


def fuse_left_matmul_add(graph: Graph) -> bool:
    """The extended level: what AttentionFusion left."""
    return _fuse_all(graph, None)


def _fuse_all(graph: Graph, blocks: "_AttentionBlocks | None") -> bool:
    changed: list[bool] = []
    apply = fuse_left_matmul_add if blocks is None else fuse_matmul_add
    for node in walk(graph, apply, changed):
        if not is_op(node, "MatMul", {1, 9, 13}) or not has_single_reader(graph, node):
            continue
        add = graph.children(node)[0]
        if is_op(add, "Add", {7, 13, 14}):
            changed.append(_fuse(graph, node, add, blocks))
    return any(changed)


@dataclass(slots=True)
class _AttentionBlocks:
    """Normalisations with three products and a residual, and the sums that close such blocks."""

    norms: set[int] = field(default_factory=set)
    sums: set[int] = field(default_factory=set)

    def holds(self, graph: Graph, matmul: Node, add: Node) -> bool:
        parent = graph.parent(matmul, 0)
        if add.index in self.sums or (parent is not None and parent.index in self.norms):
            return True
        if parent is None or parent.op_type != "LayerNormalization":
            return False
        readers = graph.children(parent)
        kinds = [reader.op_type for reader in readers]
        if kinds.count("Add") != 1 or kinds.count("MatMul") != 3:  # noqa: PLR2004 - q, k, v
            return False
        if kinds.count("Shape") != len(kinds) - 4:
            return False
        residual = next(reader for reader in readers if reader.op_type == "Add")
        place = 1 if residual.inputs[0] == parent.outputs[0] else 0
        closing = graph.parent(residual, place)
        if closing is None or closing.op_type != "Add":
            return False
        self.norms.add(parent.index)
        self.sums.add(closing.index)
        return True


def _fuse(graph: Graph, matmul: Node, add: Node, blocks: _AttentionBlocks | None) -> bool:
    left, right = (graph.dims_of(name) for name in matmul.inputs)
    elem_type = graph.elem_type_of(matmul.inputs[0])
    if elem_type != graph.elem_type_of(add.inputs[0]) or elem_type not in _GEMM_TYPES:
        return False
    if left is None or right is None or len(right) != _MATRIX:
        return False
    is_flat = len(left) == _MATRIX
    if not is_flat and blocks is not None and blocks.holds(graph, matmul, add):
        return False
    rows = _rows(left, right)
    if not is_flat and rows is None:
        return False
    bias = add.inputs[1 if matmul.outputs[0] == add.inputs[0] else 0]
    if not _is_valid_bias(graph.dims_of(bias), left, right[1]):
        return False
    if is_flat or rows is None:
        _replace(graph, [matmul, add], [*matmul.inputs, bias], add.outputs)
    else:
        _reshape_around(graph, [matmul, add], bias, rows)
    return True


def _rows(left: Dims, right: Dims) -> int | None:
    """Rows of the flattened left side, where every dim that a Reshape must name is known."""
    known = [dim for dim in left if isinstance(dim, int)]
    if len(known) != len(left) or not all(isinstance(dim, int) for dim in right):
        return None
    return prod(known[:-1])


def _is_valid_bias(bias: Dims | None, left: Dims, columns: Dim) -> bool:
    """What a Gemm adds, but of a flattened left side (N) alone."""
    if bias is None or (len(left) != _MATRIX and len(bias) != 1):
        return False
    return is_gemm_bias(bias, (left[0] if left else None, columns))


def _replace(
    graph: Graph, old: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    made = list(outputs)
    name = f"{old[0].name}/MatMulAddFusion"
    gemm = add_node(graph, NewNode("Gemm", list(inputs), (), "", name))
    for node in old:
        graph.remove(node)
    graph.set_outputs(gemm, made)


def _reshape_around(graph: Graph, old: Sequence[Node], bias: str, rows: int) -> None:
    matmul, add = old
    elem_type = graph.elem_type_of(matmul.inputs[0])
    shape = [dim for dim in graph.dims_of(matmul.inputs[0]) or () if isinstance(dim, int)]
    inner, columns = (dim for dim in graph.dims_of(matmul.inputs[1]) or () if isinstance(dim, int))
    outputs = list(add.outputs)
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
