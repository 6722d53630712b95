"""A product with a matrix that is dequantised becomes MatMulNBits, which keeps it packed.

Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc
(``DQMatMulNodeGroupSelector``, ``ValidateDQForMatMulNBits``, ``ValidateGemmForDQMatMulNBits``) and
qdq_actions.cc (``DQMatMulToMatMulNBitsAction``). Weights and scales that several nodes read stay:
measured on onnxruntime 1.31.1.
"""

from dataclasses import dataclass
from typing import Final

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, number, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    FLOAT16,
    INT4,
    INT8,
    MICROSOFT,
    UINT4,
    UINT8,
    has_single_reader,
)
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import SCALE, ZERO_POINT, Unit
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_node,
    replace_chain,
)

_MATRIX = 2
_MIN_BLOCK, _DEFAULT_BLOCK = 16, 32
_BITS: Final = {INT4: 4, UINT4: 4, INT8: 8, UINT8: 8, 25: 2, 26: 2}
"""By element type; 25 and 26 are of 2 bits."""
_UNSIGNED: Final = frozenset({UINT4, UINT8, 25})
_ACCURACY_LEVEL = 4
"""Products of int8, the session's default."""
_BIAS, _BIAS_OF_MADE = 2, 5


@dataclass(frozen=True, slots=True)
class _Packing:
    """What tells the sizes of packed weights."""

    rows: int
    columns: int
    block: int
    """Elements of a column with a scale of their own."""
    bits: int

    @property
    def num_blocks(self) -> int:
        """Blocks of a column; the last is filled up."""
        return -(-self.rows // self.block)


def fuse_blocked_matmul(graph: Graph, unit: Unit) -> bool:
    """Replace a MatMul or Gemm whose right side is a constant matrix of few bits."""
    node = unit.node
    weight = graph.parent(node, 1)
    if unit.cut is not None or unit.quantisers or weight not in unit.dequantisers:
        return False
    allowed = {weight, graph.parent(node, _BIAS)} if node.op_type == "Gemm" else {weight}
    if weight is None or not allowed.issuperset(unit.dequantisers):
        return False
    packing = _packing(graph, weight) if has_single_reader(graph, weight) else None
    if packing is None or (node.op_type == "Gemm" and not _is_plain(graph, node, packing)):
        return False
    _replace(graph, node, weight, packing)
    return True


def _is_plain(graph: Graph, gemm: Node, packing: _Packing) -> bool:
    """Whether a Gemm is a product plus, at most, a row as long as the result's."""
    if number(gemm, "alpha", 1.0) != 1.0 or integer(gemm, "transA") or integer(gemm, "transB"):
        return False
    bias = gemm.input_at(_BIAS)
    if not bias:
        return True
    return number(gemm, "beta", 1.0) == 1.0 and graph.dims_of(bias) == (packing.columns,)


def _packing(graph: Graph, node: Node) -> _Packing | None:
    """How a matrix is packed that has one scale, one for each column, or for each block of one."""
    names = [name for name in node.inputs if name]
    constants = [tensor for name in names if (tensor := graph.constant(name)) is not None]
    if len(constants) < len(names) or len(constants[0].dims) != _MATRIX:
        return None
    weight, *parameters = constants
    if weight.data_type not in _BITS or parameters[0].data_type not in (FLOAT, FLOAT16):
        return None
    if any(len(graph.readers(name)) != 1 for name in names[:ZERO_POINT]):
        return None
    rows, columns = weight.dims
    block = integer(node, "block_size") or _DEFAULT_BLOCK
    packing = _Packing(rows, columns, block, _BITS[weight.data_type])
    wanted = _scale_dims(node, packing)
    dims = {tuple(tensor.dims) for tensor in parameters}
    return packing if len(dims) == 1 and dims <= wanted else None


def _scale_dims(node: Node, packing: _Packing) -> set[tuple[int, ...]]:
    """The dims that scales may have."""
    axis, block = integer(node, "axis", 1), packing.block
    if not integer(node, "block_size"):
        return {(), (packing.columns,)} if axis == 1 else {()}
    if axis or block < _MIN_BLOCK or block & (block - 1):
        return set()
    return {(packing.num_blocks, packing.columns)}


def _replace(graph: Graph, node: Node, weight: Node, packing: _Packing) -> None:
    inputs = [node.inputs[0], *_packed(graph, weight, packing)]
    if bias := node.input_at(_BIAS):
        inputs += [""] * (_BIAS_OF_MADE - len(inputs)) + [bias]
    made = add_node(graph, NewNode("MatMulNBits", inputs, (), MICROSOFT, node.name))
    values = {
        "K": packing.rows,
        "N": packing.columns,
        "bits": packing.bits,
        "block_size": packing.block,
        "accuracy_level": _ACCURACY_LEVEL,
    }
    for name, value in values.items():
        put(made, name, value)
    made.is_unassigned = not has_kernel(graph, node)
    replace_chain(graph, [weight, node], made)


def _packed(graph: Graph, node: Node, packing: _Packing) -> list[str]:
    """Weights, scales and zero points by column, the blocks of a column one after the other.

    Unsigned weights without zero points get some, for MatMulNBits takes another middle for them.
    """
    kind, scale = (graph.elem_type_of(name) for name in node.inputs[:ZERO_POINT])
    num_bytes = packing.block * packing.bits // 8
    columns, num_blocks = packing.columns, packing.num_blocks
    made = [
        _add(graph, node.inputs[0], UINT8, [columns, num_blocks, num_bytes]),
        _add(graph, node.inputs[SCALE], scale, [columns * num_blocks]),
    ]
    zero = node.input_at(ZERO_POINT)
    if zero or kind in _UNSIGNED:
        size = columns * -(-num_blocks * packing.bits // 8)
        made.append(_add(graph, zero or "fused_DQ_MatMul_zero_point", UINT8, [size]))
    return made


def _add(graph: Graph, base: str, elem_type: int, dims: list[int]) -> str:
    return add_absent(graph, graph.fresh_name(f"{base}_T"), elem_type, dims)
