"""MatMulNBits: weights of 2, 4 or 8 bits in blocks with a scale each.

A: [*D, M, K], B: [N, ceil(K / block), block * bits / 8]. Which products MLAS takes on the packed
weight depends on the processor: the rule is that of x86-64 with AVX2 or better.
"""

from collections.abc import Iterator

from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.mlas import packs_blocks
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_FLOAT = 4
_HALF = 2
INT8_LEVEL = 4
"""``accuracy_level`` from which A is quantised to 8 bits."""
_BLOCK_STATISTICS = 8
"""Scale and sum of a quantised block of A, in floats."""
_ALIGNMENT = 64


def _blocks(use: Use) -> Iterator[int]:
    """Packed: A quantised block by block, or nothing but A in floats. Else all of B in floats."""
    rows, depth, columns = product(use.dims(0)[:-1]), use.integer("K", 0), use.integer("N", 0)
    is_half = use.element_bytes() == _HALF
    scales_bytes, bias_bytes = (_converted_bytes(use, index) for index in (2, 5))
    if not _is_packed(use):
        yield scales_bytes
        yield _FLOAT * depth * columns
        if is_half:
            yield _FLOAT * rows * depth
            yield _FLOAT * rows * columns
        yield bias_bytes
        return
    if use.integer("accuracy_level", 0) >= INT8_LEVEL:
        block = use.integer("block_size", 0)
        size = rows * -(-depth // block) * (block + _BLOCK_STATISTICS)
        yield -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT - 1
    elif is_half:
        yield _FLOAT * rows * depth
    yield scales_bytes
    yield bias_bytes


def _converted_bytes(use: Use, index: int) -> int:
    """Scales or a bias of a kernel in fp16, in floats.

    Those that are constant are converted when the session is made; since onnxruntime 1.32 only
    where B is constant too.
    """
    if not use.has(index) or use.element_bytes() != _HALF:
        return 0
    is_prepacked = use.is_constant(1) and use.is_constant(index)
    return 0 if is_prepacked else _FLOAT * product(use.dims(index))


def _is_packed(use: Use) -> bool:
    has_float_zero_points = use.has(3) and use.type(3) != "uint8"
    return (
        use.is_constant(1)
        and not has_float_zero_points
        and not use.has(4)
        and packs_blocks(
            use.integer("bits", 4),
            use.integer("block_size", 0),
            in_int8=use.integer("accuracy_level", 0) >= INT8_LEVEL,
        )
    )


RULES = (
    Rule(
        "MatMulNBits",
        "com.microsoft",
        _blocks,
        "contrib_ops/cpu/quantization/matmul_nbits.cc; mlas: MlasQNBitGemmBatchWorkspaceSize",
    ),
)
