"""Passes that replace QDQ units by integer operators.

A unit is an operator, the DequantizeLinear nodes that produce its inputs and the QuantizeLinear
nodes that read its outputs. ``select_units`` replaces a unit by the operator that computes with
integers; ``fuse_scaled_products`` and ``fuse_dynamic_products`` fuse the integer products that
dynamic quantization writes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.optimizer.graph import (
    Graph,
    Node,
    walk,
)
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BYTES,
    FLOAT,
    FLOAT16,
    INT4,
    INT8,
    INT16,
    INT32,
    MICROSOFT,
    UINT4,
    UINT8,
    UINT16,
    child_of,
    clip_bounds,
    has_edges,
    has_kernel,
    has_single_reader,
    integer,
    is_constant,
    is_op,
    is_scalar,
    number,
    parent_of,
    put,
    text,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
    replace_chain,
)

# --------------------------------------------------------------------------------------------------
# QDQ units: an operator with the nodes that dequantize its inputs and quantize its outputs.
#
# onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc
# (``NodeGroupSelector``), shared/shared_utils.cc and qdq_util.cc.


_DOMAINS = ("", "com.microsoft")
SCALE, ZERO_POINT = 1, 2
_CLIPPING = frozenset({"Relu", "Clip"})
_INT32 = np.iinfo(np.int32)
RANGES = {2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767)}
"""Lowest and highest number of the element types of 8 and 16 bits."""


def is_dequantize(node: Node | None) -> bool:
    """Whether a node is DequantizeLinear."""
    return _is_scaled(node, "DequantizeLinear")


def is_quantize(node: Node | None) -> bool:
    """Whether a node is QuantizeLinear."""
    return _is_scaled(node, "QuantizeLinear")


def _is_scaled(node: Node | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and node.domain in _DOMAINS


@dataclass(frozen=True, slots=True)
class Unit:
    """An operator with the nodes around it (``NodeGroup``)."""

    node: Node
    dequantizers: tuple[Node, ...]
    """The DequantizeLinear nodes that produce its inputs, by index; other inputs are omitted."""
    quantizers: tuple[Node, ...]
    """The QuantizeLinear nodes that read its outputs, or the output of ``clip``."""
    clip: Node | None
    """A Relu or Clip in between that clips no more than the QuantizeLinear after it."""


def unit_of(graph: Graph, node: Node) -> Unit | None:
    """The unit around a node; ``None`` if a Relu or Clip after it clips more than quantization."""
    producers = [graph.producers.get(name) for name in node.inputs if name]
    dequantizers = tuple(
        producer for producer in producers if producer is not None and is_dequantize(producer)
    )
    clip = _clip_after(graph, node)
    readers = graph.children(node if clip is None else clip)
    quantizers = tuple(reader for reader in readers if is_quantize(reader))
    if clip is not None and not (quantizers and _is_clip_redundant(graph, clip, quantizers[0])):
        return None
    return Unit(node, dequantizers, quantizers, clip)


def _clip_after(graph: Graph, node: Node) -> Node | None:
    """The Relu or Clip that is the only reader of a node, if it has one reader itself."""
    readers = graph.children(node)
    if len(readers) != 1 or readers[0].op_type not in _CLIPPING:
        return None
    is_inner = graph.num_edges(readers[0]) == 1 and not graph.is_output(readers[0])
    return readers[0] if is_inner else None


def is_complete(
    graph: Graph, unit: Unit, num_dequantized: int | None = None, *, may_be_float: bool = False
) -> bool:
    """Whether all inputs and outputs of a unit are quantized (``CheckQDQNodes``).

    Each DequantizeLinear has one reader already (``qdq_pairs.ensure_unique_dequantize``).

    :param num_dequantized: how many inputs must be dequantized; ``None`` means all.
    :param may_be_float: whether the output may be a float.
    """
    node = unit.node
    expected = sum(map(bool, node.inputs)) if num_dequantized is None else num_dequantized
    if len(unit.dequantizers) != expected:
        return False
    if not unit.quantizers:
        return may_be_float
    # A reader that is no QuantizeLinear, or the caller, would need the float that goes.
    num_outputs = sum(map(bool, node.outputs))
    are_quantized = num_outputs == len(unit.quantizers) == graph.num_edges(node)
    return are_quantized and not graph.is_output(node)


def _is_clip_redundant(graph: Graph, clip: Node, quantize: Node) -> bool:
    """Whether a QuantizeLinear clips as much as a Relu or Clip (``IsClipMadeRedundantByQ``)."""
    scale, zero = graph.array(quantize.inputs[SCALE]), _constant_zero(graph, quantize)
    if scale is None or scale.ndim or scale.dtype != np.float32 or zero is None:
        return False
    origin, lowest, highest = zero
    if clip.op_type == "Relu":
        return origin == lowest
    bounds = clip_bounds(graph, clip)
    if bounds is None or not scale.item():
        return False
    low, high = (_to_int32(bound / scale.item(), graph.cpu) + origin for bound in bounds)
    return low <= lowest and high >= highest


def _constant_zero(graph: Graph, quantize: Node) -> tuple[int, int, int] | None:
    """The zero point of a QuantizeLinear, with the lowest and the highest number of its type."""
    name = quantize.input_at(ZERO_POINT)
    if not name:
        limits = RANGES.get(integer(quantize, "output_dtype") or UINT8)
        return None if limits is None else (0, *limits)
    zero, limits = graph.array(name), RANGES.get(graph.elem_type_of(name))
    if zero is None or zero.ndim or limits is None:
        return None
    return (int(zero.item()), *limits)


def _to_int32(number: float, cpu: Cpu) -> int:
    """C++'s conversion to int32, which is undefined for numbers outside its range.

    The instructions of x86 then give the lowest number, those of ARM the nearest.
    """
    if _INT32.min <= number <= _INT32.max:
        return round(number)
    return int(_INT32.max if cpu.is_arm and number > 0 else _INT32.min)


def same_quantization(graph: Graph, one: Node, other: Node) -> bool:
    """Whether two nodes have equal constant scales and zero points (``IsQDQPairSupported``).

    Two omitted zero points do not count as equal, as in onnxruntime.
    """
    pairs = [(one.input_at(index), other.input_at(index)) for index in (SCALE, ZERO_POINT)]
    return all(_same_scalar(graph, *pair) for pair in pairs)


def _same_scalar(graph: Graph, name: str, other: str) -> bool:
    if not is_scalar(graph, name) or not is_scalar(graph, other):
        return False
    if graph.elem_type_of(name) != graph.elem_type_of(other):
        return False
    value, second = graph.array(name), graph.array(other)
    return value is not None and second is not None and bool(value.item() == second.item())


def elem_type(graph: Graph, node: Node) -> int:
    """The quantized type that a DequantizeLinear reads or a QuantizeLinear writes."""
    return graph.elem_type_of(node.inputs[0] if is_dequantize(node) else node.outputs[0])


def has_positive_scale(graph: Graph, node: Node) -> bool:
    """Whether a scale is a constant scalar above 0 (``IsQOrDQScalePositiveConstantScalar``)."""
    name = node.inputs[SCALE]
    value = graph.array(name) if is_scalar(graph, name) else None
    return value is not None and value.item() > 0


# --------------------------------------------------------------------------------------------------
# A product with a dequantized constant matrix becomes MatMulNBits, whose weights stay packed.
#
# onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc
# (``DQMatMulNodeGroupSelector``, ``ValidateDQForMatMulNBits``, ``ValidateGemmForDQMatMulNBits``)
# and qdq_actions.cc (``DQMatMulToMatMulNBitsAction``). Not if several nodes read the weights or the
# scales: measured on onnxruntime 1.31.1.


_MATRIX = 2
# ``ValidateDQForMatMulNBits``: a block is a power of two, and at least 16. A scale for a whole
# column or matrix has no blocks: it is repeated for blocks of the default size.
_MIN_BLOCK, _DEFAULT_BLOCK = 16, 32
_BITS: Final = {INT4: 4, UINT4: 4, INT8: 8, UINT8: 8, 25: 2, 26: 2}
"""Bits by element type; 25 and 26 have 2 bits."""
_UNSIGNED: Final = frozenset({UINT4, UINT8, 25})
_ACCURACY_LEVEL = 4
"""int8 products, the default of the session."""
_BIAS, _NBITS_BIAS = 2, 5


@dataclass(frozen=True, slots=True)
class _Packing:
    """The sizes that the dims of packed weights follow from."""

    rows: int
    columns: int
    block: int
    """Elements of a column that share a scale."""
    bits: int

    @property
    def num_blocks(self) -> int:
        """Blocks of a column; the last one is padded."""
        return -(-self.rows // self.block)


def fuse_blocked_matmul(graph: Graph, unit: Unit) -> bool:
    """Replace a MatMul or Gemm whose right side is a dequantized constant matrix."""
    node = unit.node
    weight = graph.parent(node, 1)
    if unit.clip is not None or unit.quantizers or weight not in unit.dequantizers:
        return False
    allowed = {weight, graph.parent(node, _BIAS)} if node.op_type == "Gemm" else {weight}
    if weight is None or not allowed.issuperset(unit.dequantizers):
        return False
    packing = _packing(graph, weight) if has_single_reader(graph, weight) else None
    if packing is None or (node.op_type == "Gemm" and not _is_plain(graph, node, packing)):
        return False
    _replace_by_packed(graph, node, weight, packing)
    return True


def _is_plain(graph: Graph, gemm: Node, packing: _Packing) -> bool:
    """Whether a Gemm is a product without flags or factors, with at most a bias of one row."""
    if number(gemm, "alpha", 1.0) != 1.0 or integer(gemm, "transA") or integer(gemm, "transB"):
        return False
    bias = gemm.input_at(_BIAS)
    if not bias:
        return True
    return number(gemm, "beta", 1.0) == 1.0 and graph.dims_of(bias) == (packing.columns,)


def _packing(graph: Graph, node: Node) -> _Packing | None:
    """The packing of a matrix with one scale, one per column or one per block of a column."""
    names = [name for name in node.inputs if name]
    constants = [tensor for name in names if (tensor := graph.constant(name)) is not None]
    if len(constants) < len(names) or len(constants[0].dims) != _MATRIX:
        return None
    weight, *parameters = constants
    if weight.data_type not in _BITS or parameters[0].data_type not in (FLOAT, FLOAT16):
        return None
    # The weight and its scale are packed anew; another reader would need them as they are.
    if any(len(graph.readers(name)) != 1 for name in names[:ZERO_POINT]):
        return None
    rows, columns = weight.dims
    block = integer(node, "block_size") or _DEFAULT_BLOCK
    packing = _Packing(rows, columns, block, _BITS[weight.data_type])
    allowed = _scale_dims(node, packing)
    dims = {tuple(tensor.dims) for tensor in parameters}
    return packing if len(dims) == 1 and dims <= allowed else None


def _scale_dims(node: Node, packing: _Packing) -> set[tuple[int, ...]]:
    """The dims that the scales may have."""
    axis, block = integer(node, "axis", 1), packing.block
    if not integer(node, "block_size"):
        return {(), (packing.columns,)} if axis == 1 else {()}
    if axis or block < _MIN_BLOCK or block & (block - 1):
        return set()
    return {(packing.num_blocks, packing.columns)}


def _replace_by_packed(graph: Graph, node: Node, weight: Node, packing: _Packing) -> None:
    inputs = [node.inputs[0], *_packed(graph, weight, packing)]
    if bias := node.input_at(_BIAS):
        inputs += [""] * (_NBITS_BIAS - len(inputs)) + [bias]
    fused = add_node(graph, NewNode("MatMulNBits", inputs, (), MICROSOFT, node.name))
    values = {
        "K": packing.rows,
        "N": packing.columns,
        "bits": packing.bits,
        "block_size": packing.block,
        "accuracy_level": _ACCURACY_LEVEL,
    }
    for name, value in values.items():
        put(fused, name, value)
    # The partitioner has run before: the new node has the provider of the old one, or none.
    fused.is_unassigned = not has_kernel(graph, node)
    replace_chain(graph, [weight, node], fused)


def _packed(graph: Graph, node: Node, packing: _Packing) -> list[str]:
    """Weights, scales and zero points as MatMulNBits has them, with the blocks of each column.

    Unsigned weights without zero points get some: DequantizeLinear's default is 0, MatMulNBits' is
    the middle of the range.
    """
    kind, scale = (graph.elem_type_of(name) for name in node.inputs[:ZERO_POINT])
    num_bytes = packing.block * packing.bits // 8
    columns, num_blocks = packing.columns, packing.num_blocks
    packed = [
        _add(graph, node.inputs[0], UINT8, [columns, num_blocks, num_bytes]),
        _add(graph, node.inputs[SCALE], scale, [columns * num_blocks]),
    ]
    zero = node.input_at(ZERO_POINT)
    if zero or kind in _UNSIGNED:
        size = columns * -(-num_blocks * packing.bits // 8)
        packed.append(_add(graph, zero or "fused_DQ_MatMul_zero_point", UINT8, [size]))
    return packed


def _add(graph: Graph, base: str, elem_type: int, dims: list[int]) -> str:
    return add_absent(graph, graph.fresh_name(f"{base}_T"), elem_type, dims)


# --------------------------------------------------------------------------------------------------
# Operators that only move or select elements read and write the integers themselves.
#
# onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc
# (``DropQDQNodeGroupSelector``, ``SplitNodeGroupSelector``, ``DropDQNodeGroupSelector``) and
# qdq_actions.cc (``SplitReplacer``).


_WIDE = frozenset({INT16, UINT16})
_NARROW = frozenset({INT4, UINT4})


def drop_pair(graph: Graph, unit: Unit) -> bool:
    """Remove the pair around an operator, if its scales and zero points are equal."""
    if unit.clip is not None or not is_complete(graph, unit, 1):
        return False
    first, end = unit.dequantizers[0], unit.quantizers[0]
    if not same_quantization(graph, end, first):
        return False
    node = unit.node
    outputs = list(end.outputs)
    graph.remove(end)
    graph.set_input(node, node.inputs.index(first.outputs[0]), first.inputs[0])
    graph.set_outputs(node, outputs)
    graph.remove(first)
    return True


def drop_byte_pair(graph: Graph, unit: Unit) -> bool:
    """The same for operators without kernels for integers of 16 bits."""
    return not _input_types(graph, unit) & _WIDE and drop_pair(graph, unit)


def drop_resized_pair(graph: Graph, unit: Unit) -> bool:
    """The same for a Resize that selects elements and does not interpolate."""
    return text(unit.node, "mode") == "nearest" and drop_byte_pair(graph, unit)


def drop_ordered_pair(graph: Graph, unit: Unit) -> bool:
    """The same for operators that compare elements: a negative scale would reverse their order."""
    is_ordered = bool(unit.quantizers) and has_positive_scale(graph, unit.quantizers[0])
    return is_ordered and drop_byte_pair(graph, unit)


def drop_split(graph: Graph, unit: Unit) -> bool:
    """Replace a Split by a Split of integers, if all parts have the scale of the input."""
    if unit.clip is not None or not is_complete(graph, unit, 1):
        return False
    first = unit.dequantizers[0]
    # With one scale the integers of the parts are those of the input.
    if not all(same_quantization(graph, end, first) for end in unit.quantizers):
        return False
    node = unit.node
    ends = {end.inputs[0]: end for end in unit.quantizers}
    outputs = [ends[name].outputs[0] if name else "" for name in node.outputs]
    inputs = [first.inputs[0], *node.inputs[1:]]
    split = add_node(graph, NewNode("Split", inputs, (), "", node.name, dict(node.attributes)))
    for old in (node, *unit.quantizers, first):
        graph.remove(old)
    graph.set_outputs(split, outputs)
    return True


def drop_dequantizer(graph: Graph, unit: Unit) -> bool:
    """Remove the DequantizeLinear before an operator whose output is an index, as ArgMax's is."""
    if unit.clip is not None or len(unit.dequantizers) != 1:
        return False
    first = unit.dequantizers[0]
    parameters = [first.input_at(index) for index in (SCALE, ZERO_POINT)]
    if not all(is_scalar(graph, name) and is_constant(graph, name) for name in parameters):
        return False
    is_shared = graph.is_output(first) or graph.num_edges(first) != 1
    if is_shared or _input_types(graph, unit) & (_WIDE | _NARROW):
        return False
    graph.set_input(unit.node, 0, first.inputs[0])
    graph.remove(first)
    return True


def _input_types(graph: Graph, unit: Unit) -> set[int]:
    """The integer types of the dequantized inputs."""
    return {elem_type(graph, node) for node in unit.dequantizers}


# --------------------------------------------------------------------------------------------------
# Operators for which onnxruntime has another one that computes with integers.
#
# onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc and qdq_actions.cc.


_ABSOLUTE, _RELATIVE = 1e-6, 1e-2
"""Tolerances of the scale of a bias; measured on onnxruntime 1.31.1."""


def replace_elementwise(graph: Graph, unit: Unit) -> bool:
    """Replace an operator with one or two inputs, all of one byte type."""
    if not _has_one_byte_type(graph, unit, sum(map(bool, unit.node.inputs))):
        return False
    inputs = [*_operands(graph, unit), *_output(graph, unit)]
    fused = _replace_unit(graph, unit, f"QLinear{unit.node.op_type}", inputs, MICROSOFT)
    if unit.node.op_type == "Softmax":
        put(fused, "opset", unit.node.since_version)
    return True


def replace_concat(graph: Graph, unit: Unit) -> bool:
    """Replace a Concat; the scale and zero point of the result come first."""
    if not _has_one_byte_type(graph, unit, len(unit.node.inputs)):
        return False
    inputs = [*_output(graph, unit), *_operands(graph, unit)]
    _replace_unit(graph, unit, "QLinearConcat", inputs, MICROSOFT)
    return True


def replace_where(graph: Graph, unit: Unit) -> bool:
    """Replace a Where; its condition is not quantized."""
    if not _has_one_byte_type(graph, unit, 2):
        return False
    inputs = [unit.node.inputs[0], *_operands(graph, unit), *_output(graph, unit)]
    _replace_unit(graph, unit, "QLinearWhere", inputs, MICROSOFT)
    return True


def _has_one_byte_type(graph: Graph, unit: Unit, num_dequantized: int) -> bool:
    kinds = {elem_type(graph, node) for node in (*unit.dequantizers, *unit.quantizers)}
    return len(kinds) == 1 and kinds <= BYTES and is_complete(graph, unit, num_dequantized)


def replace_conv(graph: Graph, unit: Unit) -> bool:
    """Replace a Conv; data must be uint8, or on ARM, if the weights are int8 too, int8."""
    if not is_complete(graph, unit):
        return False
    data, weight, *bias = unit.dequantizers
    kinds = {elem_type(graph, data), elem_type(graph, unit.quantizers[0])}
    if kinds != {UINT8} and not (graph.cpu.is_arm and kinds == {INT8}):
        return False
    if not _has_product_kernel(graph, data, weight):
        return False
    if bias and (elem_type(graph, bias[0]) != INT32 or not _bias_fits(graph, unit)):
        return False
    inputs = [*_operands(graph, unit, 2), *_output(graph, unit)]
    inputs += [node.inputs[0] for node in bias]
    _replace_unit(graph, unit, "QLinearConv", inputs, "")
    return True


def _has_product_kernel(graph: Graph, data: Node, weight: Node) -> bool:
    """Whether a kernel multiplies these types: unsigned data, or on ARM both sides int8."""
    left, right = elem_type(graph, data), elem_type(graph, weight)
    if graph.cpu.is_arm and left == INT8:
        return right == INT8
    return left == UINT8 and right in BYTES


def _bias_fits(graph: Graph, unit: Unit) -> bool:
    """Whether a bias has the zero point 0, and the product of the other two scales as its scale.

    Measured on onnxruntime 1.31.1. Scales with absent elements are assumed to fit.
    """
    if not all(is_constant(graph, node.inputs[SCALE]) for node in unit.dequantizers):
        return False
    zero = graph.array(unit.dequantizers[_BIAS].input_at(ZERO_POINT))
    if zero is not None and zero.astype(np.int64).any():
        return False
    scales = [graph.array(node.inputs[SCALE]) for node in unit.dequantizers]
    data, weight, bias = (
        None if scale is None else scale.astype(np.float64).ravel() for scale in scales
    )
    if data is None or weight is None or bias is None:
        return True
    # The kernel adds the integers of the bias to its sums, which have the scale of a product.
    expected = data * weight
    return bool(np.all(np.abs(bias - expected) <= _ABSOLUTE + _RELATIVE * expected))


def replace_matmul(graph: Graph, unit: Unit) -> bool:
    """Replace a MatMul of two dequantized sides by QLinearMatMul or MatMulIntegerToFloat.

    Without a QuantizeLinear after it, the result is a float, and the DequantizeLinear nodes may
    have other readers. On x86 the left side must be unsigned.
    """
    kinds = [elem_type(graph, node) for node in unit.dequantizers]
    if len(kinds) != len(unit.node.inputs) or not _has_product_kernel(graph, *unit.dequantizers):
        return False
    if not unit.quantizers:
        a, b = (_triple(graph, node) for node in unit.dequantizers)
        inputs = [name for pair in zip(a, b, strict=True) for name in pair]
        _replace_unit(graph, unit, "MatMulIntegerToFloat", inputs, MICROSOFT)
        return True
    if not is_complete(graph, unit) or elem_type(graph, unit.quantizers[0]) != kinds[0]:
        return False
    if not _scales_fit_matmul(graph, unit):
        return False
    inputs = [*_operands(graph, unit), *_output(graph, unit)]
    _replace_unit(graph, unit, "QLinearMatMul", inputs, "")
    return True


def _scales_fit_matmul(graph: Graph, unit: Unit) -> bool:
    """Whether QLinearMatMul supports the scales: one per tensor, or per column of a matrix.

    Measured on onnxruntime 1.32.0; earlier releases replaced the node whatever the scales were.
    """
    data, weight = unit.dequantizers
    if not all(is_scalar(graph, node.inputs[SCALE]) for node in (data, *unit.quantizers)):
        return False
    if is_scalar(graph, weight.inputs[SCALE]):
        return True
    dims, scales = (graph.dims_of(name) for name in weight.inputs[:ZERO_POINT])
    if dims is None or len(dims) != _MATRIX or integer(weight, "axis", 1) not in {1, -1}:
        return False
    return isinstance(dims[1], int) and scales == (dims[1],)


def replace_gemm(graph: Graph, unit: Unit) -> bool:
    """Replace a Gemm, whose result may be a float or quantized."""
    if not is_complete(graph, unit, may_be_float=True):
        return False
    data, weight, *bias = unit.dequantizers
    left, right = elem_type(graph, data), elem_type(graph, weight)
    if not {left, right} <= BYTES or (left == INT8 and right != INT8):
        return False
    if any(elem_type(graph, end) != left for end in unit.quantizers):
        return False
    if bias and (elem_type(graph, bias[0]) != INT32 or not _is_plain_sum(unit.node)):
        return False
    if not _scales_fit_gemm(graph, unit):
        return False
    inputs = [*_operands(graph, unit, 2), bias[0].inputs[0] if bias else ""]
    inputs += _output(graph, unit) if unit.quantizers else []
    # QGemm has no ``beta``: a bias was accepted with 1 only.
    gemm = _replace_unit(graph, unit, "QGemm", inputs, MICROSOFT)
    gemm.attributes.pop("beta", None)
    return True


def _is_plain_sum(gemm: Node) -> bool:
    return number(gemm, "alpha", 1.0) == 1.0 == number(gemm, "beta", 1.0)


def _scales_fit_gemm(graph: Graph, unit: Unit) -> bool:
    """Whether QGemm supports the scales of the weight: one, or one per column.

    Measured on onnxruntime 1.31.1.
    """
    data, weight = unit.dequantizers[:2]
    if not all(node.input_at(ZERO_POINT) for node in (data, weight)):
        return False
    if not all(is_scalar(graph, node.inputs[SCALE]) for node in (data, *unit.quantizers)):
        return False
    if is_scalar(graph, weight.inputs[SCALE]):
        return True
    dims = graph.dims_of(weight.inputs[0])
    columns = 1 - integer(unit.node, "transB")
    return dims is not None and graph.dims_of(weight.inputs[SCALE]) == (dims[columns],)


def _operands(graph: Graph, unit: Unit, count: int | None = None) -> Iterator[str]:
    """The quantized inputs, each followed by its scale and zero point."""
    for node in unit.dequantizers[:count]:
        yield from _triple(graph, node)


def _output(graph: Graph, unit: Unit) -> list[str]:
    """The scale and zero point of the result."""
    return _triple(graph, unit.quantizers[0])[SCALE:]


def _triple(graph: Graph, node: Node) -> list[str]:
    """A node's value, scale and zero point; an omitted zero point becomes a constant 0.

    Source: qdq_actions.cc, ``SetOptionalZeroPoint``: all nodes share one constant of each type.
    """
    zero = node.input_at(ZERO_POINT)
    if not zero:
        is_signed = is_dequantize(node) and elem_type(graph, node) == INT8
        dtype = np.dtype(np.int8 if is_signed else np.uint8)
        zero = f"init_optional_zero_point_{dtype}"
        if not graph.has_value(zero):
            add_array(graph, zero, np.zeros((), dtype))
    return [*node.inputs[:ZERO_POINT], zero]


def _replace_unit(
    graph: Graph, unit: Unit, op_type: str, inputs: Sequence[str], domain: str
) -> Node:
    node = unit.node
    end = unit.quantizers[0] if unit.quantizers else node
    outputs = list(end.outputs)
    fused = add_node(
        graph,
        NewNode(
            op_type, _without_trailing_empty(inputs), (), domain, node.name, dict(node.attributes)
        ),
    )
    for old in (node, unit.clip, *unit.quantizers):
        if old is not None:
            graph.remove(old)
    graph.set_outputs(fused, outputs)
    # Last, as a DequantizeLinear that another node or a graph output reads stays.
    for producer in dict.fromkeys(unit.dequantizers):
        if not graph.num_edges(producer) and not graph.is_output(producer):
            graph.remove(producer)
    return fused


def _without_trailing_empty(inputs: Sequence[str]) -> list[str]:
    """The inputs without omitted ones at the end."""
    present = list(inputs)
    while present and not present[-1]:
        present.pop()
    return present


# --------------------------------------------------------------------------------------------------
# The table of selectors and actions by operator, and the pass that applies them.
#
# onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selector_action_transformer.cc
# (``QDQSelectorActionTransformer``).


_MOVING: Final = (
    "Expand Flatten Gather GatherElements Reshape Slice Squeeze Tile Transpose Unsqueeze".split()
)
_ORDERED: Final = ("MaxPool", "ReduceMax", "ReduceMin")
_ELEMENTWISE: Final = "Add AveragePool GlobalAveragePool LeakyRelu Mul Sigmoid Softmax".split()
_FIRST_MAX_POOL: Final = 12


def select_units(graph: Graph) -> bool:
    """Replace every QDQ unit for which there is an integer operator."""
    changed: list[bool] = []
    for node in walk(graph, select_units, changed):
        rules = () if node.domain else _RULES.get(node.op_type, ())
        if graph.provider == "cuda":
            rules = tuple(rule for rule in rules if rule in _CUDA_RULES)
        if node.op_type == "MaxPool" and node.since_version != _FIRST_MAX_POOL:
            continue
        unit = unit_of(graph, node) if rules else None
        if unit is not None:
            # ``any`` ends with the first rule that replaces the unit.
            changed.append(any(rule(graph, unit) for rule in rules))
    return any(changed)


_RULES: Final[Mapping[str, tuple[Callable[[Graph, Unit], bool], ...]]] = {
    **dict.fromkeys(_MOVING, (drop_pair,)),
    **dict.fromkeys(_ORDERED, (drop_ordered_pair,)),
    **dict.fromkeys(_ELEMENTWISE, (replace_elementwise,)),
    "ArgMax": (drop_dequantizer,),
    "Concat": (replace_concat,),
    "Conv": (replace_conv,),
    "Gemm": (replace_gemm, fuse_blocked_matmul),
    "MatMul": (replace_matmul, fuse_blocked_matmul),
    "DepthToSpace": (drop_byte_pair,),
    "Resize": (drop_resized_pair,),
    "Split": (drop_split,),
    "Where": (replace_where,),
}
_CUDA_RULES: Final = frozenset({fuse_blocked_matmul})
"""Those that qdq_selector_action_transformer.cc registers for CUDA too."""


# --------------------------------------------------------------------------------------------------
# Integer products that are scaled back to floats become one operator.
#
# onnxruntime/core/optimizer/matmul_integer_to_float.cc (``MatMulIntegerToFloatFusion``) and
# dynamic_quantize_matmul_fusion.cc (``DynamicQuantizeMatMulFusion``).


_DYNAMIC_EDGES = 3
"""Edges of a DynamicQuantizeLinear: its value, its scale and its zero point."""
_B, _A_SCALE, _B_SCALE, _A_ZERO, _B_ZERO, _SCALED_BIAS = 1, 2, 3, 4, 5, 6
"""Indices of the inputs of MatMulIntegerToFloat."""


def fuse_scaled_products(graph: Graph) -> bool:
    """Replace MatMulInteger, Cast, Mul by both scales and Add of a bias by MatMulIntegerToFloat."""
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
    # A, B, both scales, both zero points, then the bias: the order of the fused operator.
    add = _bias_after(graph, mul)
    inputs = [*product.inputs[:2], *scales.inputs[:2], product.input_at(2), product.input_at(3)]
    removed = [product, cast, scales, mul]
    if add is not None:
        inputs.append(next(name for name in add.inputs if name not in mul.outputs))
        removed.append(add)
    outputs = list(removed[-1].outputs)
    fused = add_node(graph, NewNode("MatMulIntegerToFloat", inputs, (), MICROSOFT, product.name))
    for node in removed:
        graph.remove(node)
    graph.set_outputs(fused, outputs)
    return True


def _bias_after(graph: Graph, mul: Node) -> Node | None:
    """The Add of a constant row, if it is the only reader of a product."""
    add = child_of(graph, mul, "Add") if has_single_reader(graph, mul) else None
    rows = [] if add is None else [name for name in add.inputs if is_constant(graph, name)]
    if not rows:
        return None
    *leading, columns = graph.dims_of(rows[-1]) or (1,)
    is_row = all(dim == 1 for dim in leading) and isinstance(columns, int) and columns > 1
    return add if is_row else None


def fuse_dynamic_products(graph: Graph) -> bool:
    """Replace DynamicQuantizeLinear and its only MatMulIntegerToFloat by DynamicQuantizeMatMul."""
    changed: list[bool] = []
    for node in walk(graph, fuse_dynamic_products, changed):
        if is_op(node, "MatMulIntegerToFloat", {1}, MICROSOFT):
            changed.append(_fuse_dynamic(graph, node))
    return any(changed)


def _fuse_dynamic(graph: Graph, node: Node) -> bool:
    quantize = graph.parent(node, 0)
    if quantize is None or quantize.op_type != "DynamicQuantizeLinear":
        return False
    if any(graph.parent(node, index) is not quantize for index in (_A_SCALE, _A_ZERO)):
        return False
    if not has_edges(graph, quantize, _DYNAMIC_EDGES):
        return False
    others = (_B, _B_SCALE, _B_ZERO, _SCALED_BIAS)
    inputs = [quantize.inputs[0], *(node.input_at(index) for index in others)]
    outputs = list(node.outputs)
    name = quantize.name
    fused = add_node(graph, NewNode("DynamicQuantizeMatMul", inputs, (), MICROSOFT, name))
    graph.remove(node)
    graph.remove(quantize)
    graph.set_outputs(fused, outputs)
    return True
