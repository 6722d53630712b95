"""Convolutions and pools: MLAS's working buffer, im2col columns, sums and transposed images.

X: [N, C, *D], W: [M, C/g, *K], Y: [N, M, *D'].

The MLAS rules hold for x86-64, with AVX2 as with AVX-512. On ARM, depthwise 3x3 kernels allocate
``width + 2`` floats instead, and builds with KleidiAI have other rules.
"""

from collections.abc import Iterator

from onnxmem.ops.spec import Dims
from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    ALWAYS,
    FLOAT_BYTES,
    Kernel,
    KernelCall,
    Packed,
    nothing,
    product,
    since,
)
from onnxmem.runtimes.onnxruntime.kernels.mlas import packed_8_bit_bytes, packs_weight

_MAX_MLAS_RANK = 3
_BUFFER_FLOATS = 128 * 128
"""MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD: MLAS_SGEMM_STRIDEN x MLAS_SGEMM_STRIDEK."""
_THREAD_COMPLEXITY = 64 * 1024
"""MLAS_SGEMM_THREAD_COMPLEXITY: multiply-adds per thread."""
_SAMPLE_BLOCK = 8
_THREAD_ALIGNMENT = 16
"""MLAS_SGEMM_STRIDEN_THREAD_ALIGN."""
_SUM = 4
"""Bytes of a 32-bit sum."""
_POINTER = 8
_WEIGHT = 3
_ZERO_POINT = 5
"""Indices of QLinearConv's inputs."""
_CHANNEL_BLOCK = 16
"""``FilterOutputChannelPackCount``; depthwise filters come in whole blocks alone."""
_GROUP_BLOCK_ON_ARM = 8
"""``GroupAlign`` of ``MlasConvSymPackWSize``."""
_FILTER_ALIGNMENT = {"avx512": 4, "avx2": 8, "arm64": 16}
"""``KernelOutputChannelAlignment`` by CPU; an ARM CPU has the dot product since ARMv8.4."""
_DEPTH_ALIGNMENT = 4
"""``KernelInputChannelAlignment``."""
_LEAST_DEPTH_ON_ARM = 64
_FILTER_RANK = 3


def _convolution(call: KernelCall) -> tuple[int, ...]:
    """MLAS's working buffer, or, beyond MLAS's ranks, the columns of one group of one image."""
    image, kernel, result = call.dims(0)[2:], call.dims(1)[2:], call.out_dims()[2:]
    # ``Compute`` returns before it allocates.
    if not product(call.out_dims()):
        return ()
    # ``Conv<float>::Compute`` gathers the columns itself; all groups and images use one buffer in
    # turn.
    if len(kernel) > _MAX_MLAS_RANK:
        return (FLOAT_BYTES * product(call.dims(1)[1:]) * product(result),)
    return (FLOAT_BYTES * _working_floats(call, image, kernel, result),)


def _working_floats(call: KernelCall, image: Dims, kernel: Dims, result: Dims) -> int:
    """core/mlas/lib/convolve.cpp: MlasConvPrepare, which selects one of the algorithms."""
    groups = call.integer("group", 1)
    filters, depth = call.dims(1)[0] // groups, product(call.dims(1)[1:])
    positions, parts = product(result), call.dims(0)[0] * groups
    # The checks are in MLAS's sequence: the first algorithm that applies is used.
    if _is_direct(call, image, kernel):  # MlasConvAlgorithmGemmDirect
        return 0
    if filters > positions:  # MlasConvAlgorithmExpandThenGemm: all columns of one group
        return positions * depth
    if groups > 1 and _is_depthwise_multiplier_2(call, image, kernel, filters):
        return 0
    # MlasConvAlgorithmExpandThenGemmSegmented: each thread has a buffer for a part of the columns.
    # Threads share images and groups if there are several, else output positions.
    if parts > 1:
        return min(call.info.threads, parts) * _BUFFER_FLOATS
    return _BUFFER_FLOATS * _segments(filters * positions * depth, positions, call.info.threads)


def _is_direct(call: KernelCall, image: Dims, kernel: Dims) -> bool:
    """Whether the input already is the matrix of the product, so that no columns are gathered."""
    if product(call.integers("strides", (1,))) != 1 or any(_pads(call, image, kernel)):
        return False
    if product(kernel) == 1:
        return True
    # With one channel per group, two kinds of windows already are the rows or columns of a matrix
    # in the image: those over its whole width, and single columns over its whole height.
    if len(kernel) > 2 or call.dims(1)[1] != 1 or product(call.integers("dilations", (1,))) != 1:  # noqa: PLR2004 - a line or an image
        return False
    height, width = ((1, *kernel), (1, *image)) if len(kernel) == 1 else (kernel, image)
    return height[1] == width[1] or (height[0] == width[0] and height[1] == 1)


def _is_depthwise_multiplier_2(call: KernelCall, image: Dims, kernel: Dims, filters: int) -> bool:
    """Whether it is the one depthwise convolution for which x86-64 has its own kernel."""
    return (
        kernel == (7, 7)
        and (filters, call.dims(1)[1]) == (2, 1)
        and _pads(call, image, kernel) == (3, 3, 3, 3)
        and call.integers("strides", (1, 1)) == (2, 2)
        and call.integers("dilations", (1, 1)) == (1, 1)
    )


def _segments(complexity: int, positions: int, threads: int) -> int:
    """The number of threads that share the output positions, each with its own buffer."""
    count = min(complexity // _THREAD_COMPLEXITY + 1, threads)
    if count == 1:
        return 1
    # MlasConvTryMultithread: parts are equal and rounded up to the alignment, so that the last
    # thread may have nothing to do; it then gets no buffer.
    stride = -(-positions // count)
    stride = -(-stride // _THREAD_ALIGNMENT) * _THREAD_ALIGNMENT
    if stride >= positions:
        return 1
    return count - 1 if stride * (count - 1) >= positions else count


def _transposed(call: KernelCall) -> tuple[int, ...]:
    """X: [N, C, *D], W: [C, M/g, *K]: the columns of one group of one image."""
    return (FLOAT_BYTES * product(call.dims(1)[1:]) * product(call.dims(0)[2:]),)


def _packed_transposed(call: KernelCall) -> Iterator[Packed]:
    """W: [C, M/g, *K]: transposed, unless that moves no element; allocated in an arena region."""
    if not call.is_constant(1):
        return
    depth, width = call.dims(1)[0] // call.integer("group", 1), product(call.dims(1)[1:])
    if depth > 1 and width > 1:
        yield Packed(1, FLOAT_BYTES * product(call.dims(1)), is_reserved=False)


def _sampled(call: KernelCall) -> tuple[int, ...]:
    """X: [N, C, *D], W: [M, C/g, *K], offset: [N, o * 2 * prod(K), *D'], with ``o`` offset groups.

    Four 32-bit indices and four weights per sample, for its corners, with the positions padded to
    blocks of eight; and the columns of one image.
    """
    positions = product(call.out_dims()[2:])
    taps = product(call.dims(1)[2:])
    groups = call.integer("offset_group", 1)
    padded = -(-positions // _SAMPLE_BLOCK) * _SAMPLE_BLOCK
    corners = groups * taps * padded * 4 * (FLOAT_BYTES + call.element_bytes())
    return (corners, call.element_bytes() * call.dims(0)[1] * taps * positions)


def _integer(call: KernelCall) -> tuple[int, ...]:
    """X: [N, C, *D], W: [M, C/g, *K]: the columns of one group of one image, in bytes."""
    image, kernel, result = call.dims(0)[2:], call.dims(1)[2:], call.out_dims()[2:]
    if _is_pointwise(call, image, kernel):
        return ()
    return (product(call.dims(1)[1:]) * product(result),)


def _quantized(call: KernelCall) -> tuple[int, ...]:
    """X: [N, C, *D] or [N, *D, C], W: [M, C/g, *K].

    In sequence: the reordered weight, if it was not prepacked; the 32-bit sums of products, which
    MLAS's symmetric kernel does not need; one image with channels last, input and output, if they
    are not; and the columns of one group (of all groups for more than two spatial axes), or instead
    a pointer to each position for a symmetric kernel or a depthwise convolution.
    """
    is_last = call.integer("channels_last", 0) == 1
    whole, output, kernel = call.dims(0), call.out_dims(), call.dims(_WEIGHT)[2:]
    image, result = (whole[1:-1], output[1:-1]) if is_last else (whole[2:], output[2:])
    outputs = call.dims(_WEIGHT)[0] * product(result)
    is_symmetric = _symmetric_pack_bytes(call) > 0
    # ReorderFilter: from [M, C/g, K] to [K, C/g, M], the layout in which the products read it.
    blocks = [] if call.is_constant(_WEIGHT) else [product(call.dims(_WEIGHT))]
    if not is_symmetric:
        blocks.append(_SUM * outputs)
    if not is_last:
        blocks += [product(whole[1:]), outputs]
    # A pointer costs 8 bytes for a position whatever its number of channels, and pixels outside the
    # image point to one padding row; columns would copy all channels.
    if _is_depthwise(call) or (is_symmetric and not _is_pointwise(call, image, kernel)):
        images = whole[0] if is_symmetric and is_last else 1
        blocks.append(_POINTER * product(kernel) * product(result) * images)
    elif not _is_pointwise(call, image, kernel):
        groups = call.integer("group", 1) if len(kernel) > 2 else 1  # noqa: PLR2004 - an image
        blocks.append(product(call.dims(_WEIGHT)[1:]) * product(result) * groups)
    return tuple(blocks)


def _symmetric_pack_bytes(call: KernelCall) -> int:
    """W: [M, C/g, *K] in int8, zero point 0, X in uint8, on ARM also in int8: bytes of the weight
    packed for MLAS's symmetric kernel; 0 if it has none for the convolution.

    core/mlas/lib/convsym.cpp: MlasConvSymPackWSize and the table of each CPU
    (``MLAS_CONV_SYM_DISPATCH``); on ARM a pointwise convolution is a matrix product. Absent zero
    points are assumed to be 0, as quantizers write them for int8 weights.
    """
    is_packed = all(call.is_constant(index) for index in (2, _WEIGHT, _ZERO_POINT))
    zero_point = call.op_call.input_at(_ZERO_POINT)
    is_symmetric = zero_point is not None and not any(zero_point.value or ())
    cpu = call.info.cpu
    # ``ConvSymS8S8Dispatch`` is set on ARM alone.
    inputs = {"uint8", "int8"} if cpu.is_arm else {"uint8"}
    is_8_bit = call.type(0) in inputs and call.type(_WEIGHT) == "int8"
    if not is_packed or not is_symmetric or not is_8_bit:
        return 0
    filters, depth, *kernel = call.dims(_WEIGHT)
    if call.integer("group", 1) > 1:
        step = _GROUP_BLOCK_ON_ARM if cpu.is_arm else _CHANNEL_BLOCK
        fits = _is_depthwise(call) and filters % step == 0
        return filters * product(kernel) if fits else 0
    if cpu.is_arm and (product(kernel) == 1 or depth < _LEAST_DEPTH_ON_ARM):
        return 0
    if (
        filters < _CHANNEL_BLOCK
        or filters % _FILTER_ALIGNMENT[cpu.name]
        or depth % _DEPTH_ALIGNMENT
    ):
        return 0
    return -(-filters // _CHANNEL_BLOCK) * _CHANNEL_BLOCK * depth * product(kernel)


def _is_depthwise(call: KernelCall) -> bool:
    """W: [M, C/g, *K]: whether each group has one input channel and one output channel."""
    return call.dims(_WEIGHT)[1] == 1 and call.dims(_WEIGHT)[0] == call.integer("group", 1)


def _packed_quantized(call: KernelCall) -> Iterator[Packed]:
    """W: [M, C/g, *K]: packed for the symmetric kernel, in an arena region; else the panels of each
    group; else the reordered elements.
    """
    if not call.is_constant(_WEIGHT) or len(call.dims(_WEIGHT)) < _FILTER_RANK:
        return
    if symmetric := _symmetric_pack_bytes(call):
        # Tried first, and without regard to ``PrePackedWeights``: equal weights of two nodes are
        # packed twice.
        yield Packed(_WEIGHT, symmetric, is_reserved=False, is_shared=False)
    elif not _is_depthwise(call) and packs_weight(is_input_signed=call.type(0) == "int8"):
        groups, filters = call.integer("group", 1), call.dims(_WEIGHT)[0]
        depth = product(call.dims(_WEIGHT)[1:])
        is_signed = call.type(_WEIGHT) == "int8"
        group_bytes = packed_8_bit_bytes(depth, filters // groups, is_signed=is_signed)
        yield Packed(_WEIGHT, groups * group_bytes)
    else:
        yield Packed(_WEIGHT, product(call.dims(_WEIGHT)))


def _is_pointwise(call: KernelCall, image: Dims, kernel: Dims) -> bool:
    """Whether every output position reads the same input position only."""
    return (
        product(kernel) == 1
        and product(call.integers("strides", (1,))) == 1
        and not any(_pads(call, image, kernel))
    )


def _pads(call: KernelCall, image: Dims, kernel: Dims) -> Dims:
    """The padding at the start of each axis, then at the end of each, as the kernel computes it."""
    rank = len(kernel)
    auto = call.text("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return call.integers("pads", (0,) * 2 * rank)
    if auto == "VALID":
        return (0,) * 2 * rank
    strides = call.integers("strides", (1,) * rank)
    dilations = call.integers("dilations", (1,) * rank)
    # core/providers/common.h, ComputePad: the output has ceil(size / stride) positions; what the
    # last window needs beyond the image is padding, and an odd element of it goes to the side that
    # the name of the mode says.
    needed = [
        max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
        for size, stride, dilation, width in zip(image, strides, dilations, kernel, strict=True)
    ]
    smaller, larger = [size // 2 for size in needed], [size - size // 2 for size in needed]
    first, last = (larger, smaller) if auto == "SAME_LOWER" else (smaller, larger)
    return (*first, *last)


def _average(call: KernelCall) -> tuple[int, ...]:
    """X: [N, C, *D]: the input in floats."""
    return (FLOAT_BYTES * product(call.dims(0)),)


def _channels_last(call: KernelCall) -> tuple[int, ...]:
    """Y: [N, *D, C]: a pointer to each position in each window of one image."""
    return (_POINTER * product(call.integers("kernel_shape")) * product(call.out_dims()[1:-1]),)


_CONV = "core/providers/cpu/nn/conv.cc: Conv<float>::Compute; core/mlas: MlasConvPrepare (x86-64)"
_POOL = "core/providers/cpu/nn/pool.cc: Compute"

KERNELS = (
    Kernel("Conv", _CONV, _convolution, float16_on_arm=since(11)),
    Kernel("com.microsoft.FusedConv", _CONV, _convolution, float16_on_arm=ALWAYS),
    Kernel(
        "ConvTranspose",
        "core/providers/cpu/nn/conv_transpose.cc: DoConvTranspose, PrePack",
        _transposed,
        _packed_transposed,
    ),
    Kernel(
        "com.microsoft.ConvTransposeWithDynamicPads",
        "contrib_ops/cpu/conv_transpose_with_dynamic_pads.h: Compute; "
        "core/providers/cpu/nn/conv_transpose.cc: PrePack",
        _transposed,
        _packed_transposed,
    ),
    Kernel("DeformConv", "core/providers/cpu/nn/deform_conv.cc: Compute", _sampled),
    Kernel("ConvInteger", "core/providers/cpu/nn/conv_integer.cc: Compute", _integer),
    Kernel(
        "QLinearConv com.microsoft.QLinearConv",
        "core/providers/cpu/nn/qlinearconv.cc: Compute, PrePack",
        _quantized,
        _packed_quantized,
    ),
    Kernel("AveragePool", _POOL, nothing, float16_on_arm=since(11)),
    Kernel("MaxPool", _POOL, nothing, float16_on_arm=since(8)),
    Kernel("GlobalAveragePool", _POOL, nothing, float16_on_arm=since(1)),
    Kernel("GlobalLpPool GlobalMaxPool LpPool", _POOL, nothing),
    Kernel("MaxUnpool", "core/providers/cpu/nn/unpool.cc: Compute", nothing),
    Kernel(
        "com.microsoft.MaxpoolWithMask",
        "contrib_ops/cpu/maxpool_with_mask.h: Compute",
        nothing,
    ),
    Kernel(
        "MaxRoiPool NonMaxSuppression RoiAlign",
        "core/providers/cpu/nn/roi_pool.cc, object_detection: Compute",
        nothing,
    ),
    Kernel(
        "com.microsoft.QLinearAveragePool",
        "contrib_ops/cpu/quantization/qlinear_pool.cc: Compute",
        _average,
    ),
    Kernel(
        "com.microsoft.QLinearGlobalAveragePool",
        "contrib_ops/cpu/quantization/qlinear_global_average_pool.cc: Compute",
        nothing,
    ),
    Kernel(
        "com.microsoft.NhwcMaxPool",
        "contrib_ops/cpu/quantization/nhwc_max_pool.cc: Compute",
        _channels_last,
    ),
    Kernel(
        "com.microsoft.nchwc.AveragePool com.microsoft.nchwc.Conv"
        " com.microsoft.nchwc.GlobalAveragePool com.microsoft.nchwc.GlobalMaxPool"
        " com.microsoft.nchwc.MaxPool com.microsoft.nchwc.ReorderInput"
        " com.microsoft.nchwc.ReorderOutput com.microsoft.nchwc.Upsample",
        "contrib_ops/cpu/nchwc_ops.cc: Compute",
        nothing,
    ),
    Kernel(
        "com.microsoft.CausalConvWithState",
        "contrib_ops/cpu/bert/causal_conv_with_state.cc: Compute; its windows are outside the"
        " arena",
        nothing,
    ),
    Kernel(
        "com.microsoft.VarlenCausalConvWithState",
        "contrib_ops/cpu: Compute; measured only",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
)
