"""Element-wise operators, activations and reductions.

Most allocate nothing. Kernels with three or more inputs broadcast two at a time, Where selects from
each side first, and activations with a bias store the biased input. Reductions and TopK work in
vectors outside the arena.
"""

from collections.abc import Iterator
from itertools import accumulate, zip_longest

from onnxmem.ops.spec import Dims
from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    ALWAYS,
    FIRST,
    Kernel,
    KernelCall,
    Scratch,
    UnknownError,
    nothing,
    product,
    since,
)

_ACCUMULATED_BYTES = {"float16": 4, "float32": 4, "bfloat16": 4, "float64": 8}
"""Of a sum, by the type of its elements."""
# core/providers/cuda/reduction/reduction_functions.cu: ``MAX_NUM_ELEMENTS_PER_THREAD`` of each
# thread of a warp, ``MAX_NUM_WARPS_PER_BLOCK`` and ``MAX_NUM_BLOCKS_IN_GRID_ROW``.
_WARP_ELEMENTS = 4 * 32
_MOST_WARPS, _MOST_BLOCKS = 8, 256
"""In a block, and in a row."""
# An int that counts the blocks of a row that are done, and ``alignof(max_align_t) - 1`` bytes, in
# which the kernel aligns the buffer itself.
_COUNTER_BYTES, _PADDING_BYTES = 4, 15
_TABLE_BYTES = 256
"""A result for each of the 256 values of a byte."""


def _variadic(call: KernelCall) -> Scratch:
    """in_0, ..., in_n: all partial results except the last, which is the output.

    A partial result is freed once the next one is computed; all come before the output.
    """
    indices = range(len(call.op_call.inputs))
    partial = tuple(accumulate((call.dims(index) for index in indices), _broadcast))[1:-1]
    blocks = tuple(product(dims) * call.element_bytes() for dims in partial)
    # UntypedBroadcastVariadic: a result replaces the one before it once it is computed. The last
    # result is written into the output.
    stops = (*range(2, len(blocks) + 1), *(None,) * (len(blocks) > 0))
    return Scratch(blocks, len(blocks), stops)


def _where(call: KernelCall) -> Scratch:
    """C, X, Y: what the condition selects from X, then from Y, before the output is allocated.

    For strings it is unknown, because their elements have no fixed size.
    """
    if not call.has(1):
        raise UnknownError
    # UntypedSelect makes both selections, with a default where the condition selects the other
    # side; UntypedMerge then allocates the output with the shape of both.
    blocks = tuple(_selections(call, 1, 2))
    return Scratch(blocks, len(blocks))


def _quantized_where(call: KernelCall) -> tuple[int, ...]:
    """C, X, x_scale, x_zero, Y, y_scale, y_zero: two lookup tables, then both selections."""
    tables = tuple(_TABLE_BYTES for index in (2, 5) if not call.is_constant(index))
    return (*tables, *_selections(call, 1, 4))


def _selections(call: KernelCall, *indices: int) -> Iterator[int]:
    for index in indices:
        yield product(_broadcast(call.dims(0), call.dims(index))) * call.element_bytes(index)


def _broadcast(left: Dims, right: Dims) -> Dims:
    """The shape that two shapes broadcast to."""
    pairs = zip_longest(reversed(left), reversed(right), fillvalue=1)
    return tuple(b if a == 1 else a for a, b in pairs)[::-1]


def _summed_rows(call: KernelCall) -> Iterator[int]:
    """On CUDA: a sum of each block of a row, and a counter of each row, if axes at the end go.

    core/providers/cuda/reduction: ``get_applicable_matrix_reduction``, and
    ``compute_reduce_matrix_columns_intermediate_buffer_size``. Axes at the beginning need nothing,
    and what else there is goes to cuDNN.
    """
    dims = call.dims(0)
    if call.type(0) not in _ACCUMULATED_BYTES or 0 in dims:
        return
    axes = call.values(1) if call.has(1) else call.integers("axes")
    reduced = {int(axis) % len(dims) for axis in axes}
    # Dims of 1 are of no account.
    is_reduced = [axis in reduced for axis, dim in enumerate(dims) if dim != 1]
    num_kept = is_reduced.index(True) if True in is_reduced else 0
    if not num_kept or not all(is_reduced[num_kept:]):
        return
    columns = product(dim for axis, dim in enumerate(dims) if axis in reduced)
    rows = product(dims) // columns
    warps = min(_MOST_WARPS, max(1, columns // _WARP_ELEMENTS))
    blocks = min(_MOST_BLOCKS, max(1, columns // (_WARP_ELEMENTS * warps)))
    yield rows * (blocks * _ACCUMULATED_BYTES[call.type(0)] + _COUNTER_BYTES) + _PADDING_BYTES


def _biased(call: KernelCall) -> tuple[int, ...]:
    """X, bias: as many bytes as the output has, if there is a bias."""
    return (call.size_bytes(0),) if call.has(1) else ()


_MATH = "core/providers/cpu/math, activation: element-wise kernels"
_BROADCAST = "core/providers/cpu/math/element_wise_ops.cc: UntypedBroadcastVariadic"
_BIAS_GELU = "contrib_ops/cpu/bert/bias_gelu.cc: Compute"

KERNELS = (
    Kernel(
        "Abs Acos Acosh And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr"
        " BitwiseXor Ceil Cos Cosh DynamicQuantizeLinear Equal Exp Floor Greater GreaterOrEqual"
        " Less LessOrEqual Log Neg Not Or PRelu Pow Reciprocal Scale Sin Sinh Sqrt Tan Xor",
        _MATH,
        nothing,
    ),
    Kernel("Celu", _MATH, nothing, float16=since(28), bfloat16=since(28)),
    Kernel("Add Div Mul Sub", _MATH, nothing, float16_on_arm=since(14)),
    Kernel("Erf", _MATH, nothing, float16_on_arm=since(13)),
    Kernel("Mod Round", _MATH, nothing, float16=since(1)),
    Kernel("Clip", _MATH, nothing, float16=since(12)),
    Kernel("DequantizeLinear QuantizeLinear", _MATH, nothing, float16=since(19)),
    Kernel("IsInf", _MATH, nothing, float16=since(20), bfloat16=since(20)),
    Kernel("IsNaN", _MATH, nothing, float16=since(1), bfloat16=since(20)),
    # Later versions of Dropout have no kernel for float16.
    Kernel("Dropout", "core/providers/cpu/nn/dropout_op.h: Compute", nothing, float16=range(12)),
    Kernel("BitCast Cast Sign", _MATH, nothing, float16=ALWAYS, bfloat16=ALWAYS),
    Kernel("Shrink", _MATH, nothing, float16=ALWAYS, bfloat16=ALWAYS, cuda_may_inplace=FIRST),
    Kernel(
        "Elu HardSigmoid Selu Sigmoid Softplus Softsign Tanh ThresholdedRelu",
        "core/providers/cpu/activation/activations.cc: Compute",
        nothing,
        cuda_may_inplace=FIRST,
    ),
    Kernel(
        "LeakyRelu Relu",
        "core/providers/cpu/activation/activations.cc: Compute",
        nothing,
        cuda_may_inplace=FIRST,
        float16_on_arm=since(6),
    ),
    Kernel(
        "Gelu",
        "core/providers/cpu/tensor/gelu.cc: Compute",
        nothing,
        cuda_may_inplace=FIRST,
        float16_on_arm=since(20),
    ),
    Kernel(
        "com.microsoft.Gelu com.microsoft.QuickGelu",
        "contrib_ops/cpu/activations.h: Compute",
        nothing,
        cuda_may_inplace=FIRST,
    ),
    Kernel(
        "Affine ParametricSoftplus ScaledTanh",
        "contrib_ops/cuda/activation/activations.cc; CPU kernels unknown",
        cuda_may_inplace=FIRST,
    ),
    Kernel(
        "com.microsoft.DequantizeLinear com.microsoft.QLinearAdd com.microsoft.QLinearLeakyRelu"
        " com.microsoft.QLinearMul com.microsoft.QLinearSigmoid com.microsoft.QuantizeLinear",
        "contrib_ops/cpu/activations.h, quantization: Compute",
        nothing,
    ),
    Kernel(
        "com.microsoft.HyperConnectionPostMix com.microsoft.HyperConnectionPreMix"
        " com.microsoft.ScaledSiLU",
        "contrib_ops/cpu/bert/hyper_connection_post_mix.cc, hyper_connection_pre_mix.cc,"
        " scaled_silu.cc: Compute",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.EngramGate com.microsoft.GatedAdd",
        "contrib_ops/cpu/bert/engram_gate.cc, gated_add.cc: Compute",
        nothing,
        float16=ALWAYS,
    ),
    Kernel("com.microsoft.BiasGelu com.microsoft.FastGelu", _BIAS_GELU, _biased),
    Kernel("Mean Sum", _BROADCAST, _variadic),
    Kernel("Max Min", _BROADCAST, _variadic, float16=since(12)),
    Kernel("Where", "core/providers/cpu/tensor/where_op.cc: Compute, Select", _where),
    Kernel(
        "com.microsoft.QLinearWhere",
        "contrib_ops/cpu/quantization/qlinear_where.cc: Compute",
        _quantized_where,
    ),
    Kernel(
        "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin"
        " ReduceProd ReduceSumSquare",
        "core/providers/cpu/reduction/reduction_ops.cc: Compute",
        nothing,
    ),
    Kernel(
        "ReduceMean ReduceSum",
        "core/providers/cpu/reduction/reduction_ops.cc: Compute",
        nothing,
        cuda_scratch=_summed_rows,
    ),
    Kernel(
        "CumProd CumSum Det TopK",
        "core/providers/cpu/math: their buffers are outside the arena",
        nothing,
    ),
    Kernel("com.microsoft.CDist", "contrib_ops/cpu/cdist.h: Compute", nothing),
    Kernel("com.microsoft.Inverse", "contrib_ops/cpu/inverse.cc: Compute", nothing, float16=ALWAYS),
)
