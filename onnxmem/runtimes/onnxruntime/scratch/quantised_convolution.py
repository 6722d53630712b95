"""Convolutions in 8 bits: columns, transposed images and the 32-bit sums."""

from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.scratch.convolution import is_pointwise
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_SUM = 4
_POINTER = 8
_WEIGHT = 3
_ZERO_POINT = 5
_CHANNEL_BLOCK = 16
_CHANNEL_BLOCK_ON_ARM = 8
_DEPTH_ALIGNMENT = 4


def _integer(use: Use) -> tuple[int, ...]:
    """X: [N, C, *D], W: [M, C/g, *K]: the columns of one image's group, a byte each."""
    image, kernel, result = use.dims(0)[2:], use.dims(1)[2:], use.out_dims()[2:]
    if is_pointwise(use, image, kernel):
        return ()
    return (product(use.dims(1)[1:]) * product(result),)


def _linear(use: Use) -> tuple[int, ...]:
    """X: [N, C, *D] or [N, *D, C], W: [M, C/g, *K].

    A weight that the session could not pack is reordered. The sums of the products in 32 bits,
    but where MLAS has a symmetric kernel, which needs none. One image with its channels last, in
    and out, where they are not. The columns of a group, of all groups beyond images; in their place
    a pointer to each position where the kernel is symmetric or the convolution depthwise.
    """
    is_last = use.integer("channels_last", 0) == 1
    whole, made, kernel = use.dims(0), use.out_dims(), use.dims(_WEIGHT)[2:]
    image, result = (whole[1:-1], made[1:-1]) if is_last else (whole[2:], made[2:])
    outputs = use.dims(_WEIGHT)[0] * product(result)
    is_symmetric = symmetric_pack_bytes(use) > 0
    blocks = [] if use.is_constant(_WEIGHT) else [product(use.dims(_WEIGHT))]
    if not is_symmetric:
        blocks.append(_SUM * outputs)
    if not is_last:
        blocks += [product(whole[1:]), outputs]
    if is_depthwise(use) or (is_symmetric and not is_pointwise(use, image, kernel)):
        images = whole[0] if is_symmetric and is_last else 1
        blocks.append(_POINTER * product(kernel) * product(result) * images)
    elif not is_pointwise(use, image, kernel):
        groups = use.integer("group", 1) if len(kernel) > 2 else 1  # noqa: PLR2004 - an image
        blocks.append(product(use.dims(_WEIGHT)[1:]) * product(result) * groups)
    return tuple(blocks)


def is_depthwise(use: Use) -> bool:
    """W: [M, C/g, *K]: one input and one output channel a group."""
    return use.dims(_WEIGHT)[1] == 1 and use.dims(_WEIGHT)[0] == use.integer("group", 1)


def symmetric_pack_bytes(use: Use) -> int:
    """W: [M, C/g, *K] in int8, zero point 0, X in uint8: bytes of the weight packed for MLAS's
    symmetric kernel; 0 where it has none.

    core/mlas/lib/convsym.cpp: MlasConvSymPackWSize, on x86-64 with AVX2 or better; on ARM a
    pointwise convolution is a matrix product. Zero points that are not at hand are taken to be 0,
    as quantisers write them for int8 weights.
    """
    is_packed = all(use.is_constant(place) for place in (2, _WEIGHT, _ZERO_POINT))
    zero_point = use.call.input_at(_ZERO_POINT)
    is_symmetric = zero_point is not None and not any(zero_point.value or ())
    types = (use.type(0), use.type(_WEIGHT))
    if not is_packed or not is_symmetric or types != ("uint8", "int8"):
        return 0
    filters, depth, *kernel = use.dims(_WEIGHT)
    if use.integer("group", 1) > 1:
        step = _CHANNEL_BLOCK_ON_ARM if use.site.cpu.is_arm else _CHANNEL_BLOCK
        fits = is_depthwise(use) and filters % step == 0
        return filters * product(kernel) if fits else 0
    if use.site.cpu.is_arm and product(kernel) == 1:
        return 0
    if filters < _CHANNEL_BLOCK or depth % _DEPTH_ALIGNMENT:
        return 0
    return -(-filters // _CHANNEL_BLOCK) * _CHANNEL_BLOCK * depth * product(kernel)


RULES = (
    Rule("ConvInteger", "", _integer, "core/providers/cpu/nn/conv_integer.cc: Compute"),
    *(
        Rule("QLinearConv", domain, _linear, "core/providers/cpu/nn/qlinearconv.cc: Compute")
        for domain in ("", "com.microsoft")
    ),
)
