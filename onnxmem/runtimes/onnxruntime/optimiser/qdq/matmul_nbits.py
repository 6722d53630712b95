"""A product with a matrix that is dequantised in blocks becomes MatMulNBits.

Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc
(``DQMatMulNodeGroupSelector``) and qdq_actions.cc (``DQMatMulToMatMulNBitsAction``).
"""

from collections.abc import Sequence

from onnxmem.runtimes.onnxruntime.optimiser.attributes import integer, put
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimiser.matching import (
    FLOAT,
    FLOAT16,
    INT4,
    MICROSOFT,
    UINT4,
    UINT8,
    has_single_reader,
)
from onnxmem.runtimes.onnxruntime.optimiser.qdq.units import (
    SCALE,
    ZERO_POINT,
    is_dequantise,
)
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import (
    NewNode,
    add_absent,
    add_node,
    replace_chain,
)

_MATRIX = 2
_MIN_BLOCK = 16
_BITS = 4
_ACCURACY_LEVEL = 4
"""Products of int8, the session's default."""


def fuse_blocked_matmul(graph: Graph, node: Node) -> bool:
    """Replace a MatMul whose right side is a constant 4-bit matrix in blocks of its rows."""
    dequantise = graph.parent(node, 1) if node.op_type == "MatMul" else None
    if dequantise is None or not is_dequantise(dequantise):
        return False
    if is_dequantise(graph.parent(node, 0)) or not has_single_reader(graph, dequantise):
        return False
    if not _is_blocked(graph, dequantise):
        return False
    weight = graph.constant(dequantise.inputs[0])
    if weight is None:
        return False
    rows, columns = weight.dims
    block = integer(dequantise, "block_size")
    num_blocks = -(-rows // block)
    inputs = [node.inputs[0], *_packed(graph, dequantise, (columns, num_blocks, block))]
    made = add_node(graph, NewNode("MatMulNBits", inputs, (), MICROSOFT, node.name))
    values = {
        "K": rows,
        "N": columns,
        "bits": _BITS,
        "block_size": block,
        "accuracy_level": _ACCURACY_LEVEL,
    }
    for name, value in values.items():
        put(made, name, value)
    made.is_unassigned = not has_kernel(graph, node)
    replace_chain(graph, [dequantise, node], made)
    return True


def _is_blocked(graph: Graph, node: Node) -> bool:
    constants = [graph.constant(name) for name in node.inputs if name]
    weight = constants[0]
    if weight is None or None in constants or len(weight.dims) != _MATRIX:
        return False
    if weight.data_type not in (INT4, UINT4) or integer(node, "axis", 1) != 0:
        return False
    if graph.elem_type_of(node.inputs[SCALE]) not in (FLOAT, FLOAT16):
        return False
    block = integer(node, "block_size")
    return block >= _MIN_BLOCK and block & (block - 1) == 0


def _packed(graph: Graph, node: Node, sizes: Sequence[int]) -> list[str]:
    """Weights, scales and zero points, transposed and packed two to a byte."""
    columns, num_blocks, block = sizes
    made = [
        add_absent(
            graph,
            graph.fresh_name(f"{node.inputs[0]}_T"),
            UINT8,
            [columns, num_blocks, block * _BITS // 8],
        ),
        add_absent(
            graph,
            graph.fresh_name(f"{node.inputs[SCALE]}_T"),
            graph.elem_type_of(node.inputs[SCALE]),
            [columns * num_blocks],
        ),
    ]
    is_signed = graph.elem_type_of(node.inputs[0]) == INT4
    if node.input_at(ZERO_POINT) or is_signed:
        base = node.input_at(ZERO_POINT) or f"{node.inputs[0]}_zero_point"
        size = columns * -(-num_blocks // 2)
        made.append(add_absent(graph, graph.fresh_name(f"{base}_T"), UINT8, [size]))
    return made
