"""Convolutions in floats: MLAS's working buffer, and the columns of those outside MLAS.

X: [N, C, *D], W: [M, C/g, *K], Y: [N, M, *D'].

The MLAS rules hold on x86-64: on ARM, depthwise 3x3 kernels take ``width + 2`` floats instead, and
builds with KleidiAI choose for themselves. The instruction set (AVX2, AVX-512) changes nothing.
"""

from onnxmem.ops.spec import Dims
from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_FLOAT = 4
_MAX_MLAS_RANK = 3
_BUFFER_FLOATS = 128 * 128
"""MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD: MLAS_SGEMM_STRIDEN x MLAS_SGEMM_STRIDEK."""
_THREAD_COMPLEXITY = 64 * 1024
"""MLAS_SGEMM_THREAD_COMPLEXITY: multiply-adds that are worth a thread."""
_SAMPLE_BLOCK = 8
_THREAD_ALIGNMENT = 16
"""MLAS_SGEMM_STRIDEN_THREAD_ALIGN."""


def pads_of(use: Use, image: Dims, kernel: Dims) -> Dims:
    """The padding of every side, at the start and at the end, as the kernel works it out."""
    rank = len(kernel)
    auto = use.text("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return use.integers("pads", (0,) * 2 * rank)
    if auto == "VALID":
        return (0,) * 2 * rank
    strides = use.integers("strides", (1,) * rank)
    dilations = use.integers("dilations", (1,) * rank)
    needed = [
        max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
        for size, stride, dilation, width in zip(image, strides, dilations, kernel, strict=True)
    ]
    smaller, larger = [size // 2 for size in needed], [size - size // 2 for size in needed]
    first, last = (larger, smaller) if auto == "SAME_LOWER" else (smaller, larger)
    return (*first, *last)


def is_pointwise(use: Use, image: Dims, kernel: Dims) -> bool:
    """Whether every output element reads one position, and all positions are read in order."""
    return (
        product(kernel) == 1
        and product(use.integers("strides", (1,))) == 1
        and not any(pads_of(use, image, kernel))
    )


def _convolution(use: Use) -> tuple[int, ...]:
    """MLAS's working buffer, or the columns of one image's group where MLAS has no such rank."""
    image, kernel, result = use.dims(0)[2:], use.dims(1)[2:], use.out_dims()[2:]
    if not product(use.out_dims()):
        return ()
    if len(kernel) > _MAX_MLAS_RANK:
        return (_FLOAT * product(use.dims(1)[1:]) * product(result),)
    return (_FLOAT * _working_floats(use, image, kernel, result),)


def _working_floats(use: Use, image: Dims, kernel: Dims, result: Dims) -> int:
    """core/mlas/lib/convolve.cpp: MlasConvPrepare."""
    groups = use.integer("group", 1)
    filters, depth = use.dims(1)[0] // groups, product(use.dims(1)[1:])
    positions, parts = product(result), use.dims(0)[0] * groups
    if _is_direct(use, image, kernel):
        return 0
    if filters > positions:
        return positions * depth
    if groups > 1 and _is_depthwise_multiplier_2(use, image, kernel, filters):
        return 0
    if parts > 1:
        return min(use.site.threads, parts) * _BUFFER_FLOATS
    return _BUFFER_FLOATS * _segments(filters * positions * depth, positions, use.site.threads)


def _is_direct(use: Use, image: Dims, kernel: Dims) -> bool:
    """Whether the input is a matrix already, so that no columns are gathered."""
    if product(use.integers("strides", (1,))) != 1 or any(pads_of(use, image, kernel)):
        return False
    if product(kernel) == 1:
        return True
    if len(kernel) > 2 or use.dims(1)[1] != 1 or product(use.integers("dilations", (1,))) != 1:  # noqa: PLR2004 - a line or an image
        return False
    height, width = ((1, *kernel), (1, *image)) if len(kernel) == 1 else (kernel, image)
    return height[1] == width[1] or (height[0] == width[0] and height[1] == 1)


def _is_depthwise_multiplier_2(use: Use, image: Dims, kernel: Dims, filters: int) -> bool:
    """The one depthwise convolution that x86-64 has a kernel of its own for."""
    return (
        kernel == (7, 7)
        and (filters, use.dims(1)[1]) == (2, 1)
        and pads_of(use, image, kernel) == (3, 3, 3, 3)
        and use.integers("strides", (1, 1)) == (2, 2)
        and use.integers("dilations", (1, 1)) == (1, 1)
    )


def _segments(complexity: int, positions: int, threads: int) -> int:
    """Threads that share the output positions, each with a buffer."""
    count = min(complexity // _THREAD_COMPLEXITY + 1, threads)
    if count == 1:
        return 1
    stride = -(-positions // count)
    stride = -(-stride // _THREAD_ALIGNMENT) * _THREAD_ALIGNMENT
    if stride >= positions:
        return 1
    return count - 1 if stride * (count - 1) >= positions else count


def _transposed(use: Use) -> tuple[int, ...]:
    """X: [N, C, *D], W: [C, M/g, *K]: the columns of one image's group."""
    return (_FLOAT * product(use.dims(1)[1:]) * product(use.dims(0)[2:]),)


def _sampled(use: Use) -> tuple[int, ...]:
    """X: [N, C, *D], W: [M, C/g, *K], offset: [N, o * 2 * prod(K), *D'], of ``o`` offset groups.

    The corners of each sample, four 32-bit places and four weights, the positions in blocks of
    eight; and the columns of one image.
    """
    positions = product(use.out_dims()[2:])
    taps = product(use.dims(1)[2:])
    groups = use.integer("offset_group", 1)
    padded = -(-positions // _SAMPLE_BLOCK) * _SAMPLE_BLOCK
    corners = groups * taps * padded * 4 * (_FLOAT + use.element_bytes())
    return (corners, use.element_bytes() * use.dims(0)[1] * taps * positions)


_CONV = "core/providers/cpu/nn/conv.cc: Conv<float>::Compute; core/mlas: MlasConvPrepare (x86-64)"

RULES = (
    Rule("Conv", "", _convolution, _CONV),
    Rule("FusedConv", "com.microsoft", _convolution, _CONV),
    Rule(
        "ConvTranspose", "", _transposed, "core/providers/cpu/nn/conv_transpose.cc: DoConvTranspose"
    ),
    Rule(
        "ConvTransposeWithDynamicPads",
        "com.microsoft",
        _transposed,
        "contrib_ops/cpu/conv_transpose_with_dynamic_pads.h: Compute",
    ),
    Rule("DeformConv", "", _sampled, "core/providers/cpu/nn/deform_conv.cc: Compute"),
)
