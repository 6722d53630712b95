"""Matrix products of floats, of 8 bits, and with blockwise quantized weights of 2, 4 or 8 bits.

MLAS has its own buffers and prepacks constant weights. The arena has only sums before they are
scaled, inputs that the kernel quantizes, and weights that MLAS cannot pack. Which blockwise
products MLAS supports depends on the CPU: the rules hold for x86-64 with AVX2 or better.
"""

from collections.abc import Iterator

from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    ALWAYS,
    FIRST,
    FLOAT_BYTES,
    HALF_BYTES,
    Kernel,
    KernelCall,
    Packed,
    PackingRule,
    nothing,
    product,
    since,
    unknown,
)
from onnxmem.runtimes.onnxruntime.kernels.mlas import (
    packed_8_bit_bytes,
    packed_blocks_bytes,
    packed_floats_bytes,
    packs_blocks,
    packs_weight,
)

_MATRIX = 2
"""Rank of the weights that a matrix product packs."""
_SUM = 4
"""Bytes of a 32-bit sum."""
_OUTPUT_SCALE = 7
"""Index of QGemm's ``y_scale``; without it the output is a float."""
_INT8_LEVEL = 4
"""``accuracy_level`` from which A is quantized to int8."""
_BLOCK_STATISTICS = 8
"""Bytes of the scale and the sum of a quantized block of A."""
_ALIGNMENT = 64


def _packed_floats(call: KernelCall) -> Iterator[Packed]:
    """B: [K, N], or [N, K] with ``transB``."""
    # GemmPackBFp32: a batch of matrices is read as it is.
    if not call.is_constant(1) or call.type(1) != "float32" or len(call.dims(1)) != _MATRIX:
        return
    rows, columns = call.dims(1)
    depth, width = (columns, rows) if call.integer("transB", 0) else (rows, columns)
    if rows and columns:
        yield Packed(1, packed_floats_bytes(depth, width))


def _packed_integers(index: int) -> PackingRule:
    """B: [K, N], or [N, K] with ``transB``; A is a float if the kernel quantizes it."""

    def packs(call: KernelCall) -> Iterator[Packed]:
        if not call.is_constant(index) or len(call.dims(index)) != _MATRIX:
            return
        rows, columns = call.dims(index)
        is_transposed = call.integer("transB", 0) != 0
        depth, width = (columns, rows) if is_transposed else (rows, columns)
        is_packed = packs_weight(is_input_signed=call.type(0) == "int8")
        is_signed = call.type(index) == "int8"
        # ``MlasGemmPackB`` reads [K, N] only: a transposed weight is written out in that order
        # first, before MLAS says that it does not pack it.
        if is_packed or is_transposed:
            yield Packed(
                index,
                packed_8_bit_bytes(depth, width, is_signed=is_signed) if is_packed else 0,
                drops_original=is_packed,
                transposed_bytes=rows * columns if is_transposed else 0,
            )

    return packs


def _sums(call: KernelCall) -> tuple[int, ...]:
    """Y: [*D, M, N]: a 32-bit sum per output element."""
    return (_SUM * product(call.out_dims()),)


def _gemm(call: KernelCall) -> tuple[int, ...]:
    """A: [M, K], B: [K, N], Y: [M, N]: copies of A, and of an unpacked B, if they are transposed;
    and the sums, if the output is quantized.
    """
    is_packed = call.is_constant(3) and packs_weight(is_input_signed=call.type(0) == "int8")
    transposed = (
        (0, call.integer("transA", 0) != 0),
        (3, call.integer("transB", 0) != 0 and not is_packed),
    )
    # MLAS's products of 8 bits take no transposed operands. A float output has the size of the
    # sums, which are computed in it.
    copies = (product(call.dims(index)) for index, is_transposed in transposed if is_transposed)
    return (*copies, *(_sums(call) if call.has(_OUTPUT_SCALE) else ()))


def _quantized_input(call: KernelCall) -> tuple[int, ...]:
    """A: [*D, M, K]: one byte per element."""
    return (product(call.dims(0)),)


def _dequantized_weight(call: KernelCall) -> tuple[int, ...]:
    """A: [*D, M, K], B: ceil(K * N / 2) bytes: the weight in floats."""
    return (FLOAT_BYTES * call.integer("K", 0) * call.integer("N", 0),)


# ``ComputeBPacked`` and ``ComputeBUnpacked`` of contrib_ops/cpu/quantization/matmul_nbits.cc, in
# whose order blocks are allocated. ``PrePack`` decides between them: it returns before it packs if
# there is a ``g_idx`` or the zero points are not in uint8 (``has_unquantized_zero_point_``), or if
# MLAS has no kernel (``MlasIsQNBitGemmAvailable``).
def _blocks(call: KernelCall) -> Iterator[int]:
    """With packed B: A quantized by blocks, or A in floats. Otherwise B in floats."""
    rows, depth, columns = product(call.dims(0)[:-1]), call.integer("K", 0), call.integer("N", 0)
    is_half = call.element_bytes() == HALF_BYTES
    scales_bytes, bias_bytes = (_converted_bytes(call, index) for index in (2, 5))
    # Without a kernel for the packed form, B is dequantized whole and a product of floats follows,
    # for which an fp16 kernel converts its operands.
    if not _is_packed(call):
        yield scales_bytes
        yield FLOAT_BYTES * depth * columns
        if is_half:
            yield FLOAT_BYTES * rows * depth
            yield FLOAT_BYTES * rows * columns
        yield bias_bytes
        return
    if _is_in_int8(call):
        block = call.integer("block_size", 0)
        # MlasQNBitGemmBatchWorkspaceSize: the kernel aligns the start of the workspace itself,
        # hence the alignment less one byte on top. It has to quantize A before the product, as each
        # column of B multiplies all of A.
        size = rows * -(-depth // block) * (block + _BLOCK_STATISTICS)
        yield -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT - 1
    elif is_half:
        yield FLOAT_BYTES * rows * depth
    yield scales_bytes
    yield bias_bytes


def _converted_bytes(call: KernelCall, index: int) -> int:
    """Bytes of an fp16 kernel's scales or bias in floats.

    Constant ones are converted when the session is created; since onnxruntime 1.32 only if B is
    constant too.
    """
    if not call.has(index) or call.element_bytes() != HALF_BYTES:
        return 0
    is_prepacked = call.is_constant(1) and call.is_constant(index)
    return 0 if is_prepacked else FLOAT_BYTES * product(call.dims(index))


def _is_packed(call: KernelCall) -> bool:
    """Whether MLAS prepacks B, which it does not with float zero points or a ``g_idx``."""
    has_float_zero_points = call.has(3) and call.type(3) != "uint8"
    return (
        call.is_constant(1)
        and not has_float_zero_points
        and not call.has(4)
        and packs_blocks(
            call.integer("bits", 4),
            call.integer("block_size", 0),
            in_int8=_is_in_int8(call),
        )
    )


def _is_in_int8(call: KernelCall) -> bool:
    return call.integer("accuracy_level", 0) >= _INT8_LEVEL


def _packed_blocks(call: KernelCall) -> Iterator[Packed]:
    """B: [N, ceil(K / block), block * bits / 8]; in fp16 also the scales and the bias in floats."""
    if _is_packed(call):
        depth, columns = call.integer("K", 0), call.integer("N", 0)
        bits, block = call.integer("bits", 4), call.integer("block_size", 0)
        size = packed_blocks_bytes(depth, columns, bits, block, in_int8=_is_in_int8(call))
        yield Packed(1, size)
    if not call.is_constant(1):  # onnxruntime 1.32: then nothing is converted in advance
        return
    for index in (2, 5):
        if call.is_constant(index) and call.element_bytes(0) == HALF_BYTES:
            size = FLOAT_BYTES * product(call.dims(index))
            yield Packed(index, size, drops_original=False, is_shared=False)


_FEW_ROWS = 16
"""Up to so many rows, a CUDA kernel multiplies by the packed matrix itself (``SmallMCap``)."""
_KERNEL_COLUMNS = 8
_CHUNK_ROWS, _CHUNKED_BYTES = 32768, 256 << 20


def _dequantized_blocks(call: KernelCall) -> Iterator[int]:
    """On CUDA: B in the type of A, or a part of it if all is large.

    contrib_ops/cuda/quantization/matmul_nbits.cc: ``ComputeInternal``; the number of few rows is
    that of onnxruntime 1.32, and was one in earlier releases.
    """
    rows, depth, columns = product(call.dims(0)[:-1]), call.integer("K", 0), call.integer("N", 0)
    is_even = not columns % _KERNEL_COLUMNS and not depth % _KERNEL_COLUMNS
    has_bytes = not call.has(3) or call.element_bytes(3) == 1
    if rows <= _FEW_ROWS and is_even and has_bytes and not call.has(4):
        return
    block = call.integer("block_size", 0)
    row_bytes = -(-depth // block) * block * call.element_bytes()
    is_chunked = columns * row_bytes > _CHUNKED_BYTES and columns > 2 * _CHUNK_ROWS
    yield row_bytes * (_CHUNK_ROWS if is_chunked and not call.has(4) else columns)


KERNELS = (
    Kernel(
        "com.microsoft.FusedGemm com.microsoft.FusedMatMul com.microsoft.TransposeMatMul",
        "core/providers/cpu/math/matmul.cc, gemm.cc: GemmPackBFp32",
        nothing,
        _packed_floats,
    ),
    Kernel(
        "Gemm",
        "core/providers/cpu/math/gemm.cc: GemmPackBFp32",
        nothing,
        _packed_floats,
        float16_on_arm=since(7),
    ),
    Kernel(
        "MatMul",
        "core/providers/cpu/math/matmul.cc; gemm.cc: GemmPackBFp32",
        nothing,
        _packed_floats,
        float16_on_arm=since(1),
    ),
    Kernel(
        "MatMulInteger com.microsoft.MatMulIntegerToFloat",
        "core/providers/cpu/quantization/matmul_integer_base.h: PrePack",
        nothing,
        _packed_integers(1),
    ),
    Kernel(
        "com.microsoft.DynamicQuantizeMatMul",
        "contrib_ops/cpu/quantization/dynamic_quantize_matmul.cc: Compute; "
        "core/providers/cpu/quantization/matmul_integer_base.h: PrePack",
        _quantized_input,
        _packed_integers(1),
    ),
    Kernel(
        "QLinearMatMul",
        "core/providers/cpu/math/quantize_linear_matmul.cc: Compute; "
        "core/providers/cpu/quantization/matmul_integer_base.h: PrePack",
        _sums,
        _packed_integers(3),
    ),
    Kernel(
        "com.microsoft.QGemm",
        "contrib_ops/cpu/quantization/quant_gemm.cc: Compute; "
        "core/providers/cpu/quantization/matmul_integer_base.h: PrePack",
        _gemm,
        _packed_integers(3),
    ),
    Kernel(
        "com.microsoft.MatMulBnb4",
        "contrib_ops/cpu/quantization/matmul_bnb4.cc: Compute",
        _dequantized_weight,
    ),
    Kernel(
        "com.microsoft.MatMulNBits",
        "contrib_ops/cpu/quantization/matmul_nbits.cc: Compute, PrePack; "
        "mlas: MlasQNBitGemmBatchWorkspaceSize",
        _blocks,
        _packed_blocks,
        cuda_scratch=_dequantized_blocks,
        float16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.MoE com.microsoft.ShardedMoE",
        "contrib_ops/cpu/moe; scratch unknown",
        cuda_may_inplace=FIRST,
    ),
    Kernel(
        "com.microsoft.QMoE",
        "contrib_ops/cpu/moe/moe_quantization_cpu.cc; scratch and packing unknown",
        packing=unknown,
        cuda_may_inplace=FIRST,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.MoEGroupRouter",
        "contrib_ops/cpu: Compute; measured only",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.MatMulFpQ4 com.microsoft.MatMulInteger16",
        "contrib_ops/cpu/matmul_fpq4.cc, quantization/matmul_integer16.cc: Compute",
        nothing,
    ),
)
