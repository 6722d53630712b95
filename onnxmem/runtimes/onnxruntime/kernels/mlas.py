"""Sizes of weights that MLAS, onnxruntime's library of CPU kernels, has packed.

They hold for x86-64 with AVX2 or better, measured with AVX-512 VNNI. A packed float matrix is equal
for AVX2 and AVX-512; each function states what differs on other CPUs.
"""

_FLOAT = 4
_COLUMNS = 16
"""Packed columns come in panels of 16: MlasGemmPackBSize, ``MLAS_SGEMM_PACKED_N``."""
_DEPTH_OF_SIGNED = 4
_DEPTH_OF_UNSIGNED = 2
"""Rows of an 8-bit panel that a kernel multiplies at once: uint8 by int8, and uint8 by uint8."""
_BUFFER_ALIGNMENT = 64
_BLOCKS_2_BIT = 4
"""The number of blocks in a row of a 2-bit weight is a multiple of it."""
_BITS_PER_BYTE = 8


def aligned(count: int, step: int) -> int:
    """Round up to a multiple of ``step``."""
    return -(-count // step) * step


def packed_floats_bytes(depth: int, columns: int) -> int:
    """B: [K, N] in floats.

    core/mlas/lib/sgemm.cpp: MlasGemmPackBSize. Builds with KleidiAI on ARM have another layout.
    """
    return aligned(_FLOAT * depth * aligned(columns, _COLUMNS), _BUFFER_ALIGNMENT)


def packs_weight(*, is_input_signed: bool) -> bool:
    """Whether MLAS prepacks an 8-bit weight: on x86-64 only for unsigned inputs.

    core/mlas/lib/qgemm.h: MlasGemmQuantGetDispatch, MlasGemmPackBSize. ARM packs for both.
    """
    return not is_input_signed


def packed_8_bit_bytes(depth: int, columns: int, *, is_signed: bool) -> int:
    """B: [K, N] in 8 bits: a 32-bit sum per column, then the panels.

    core/mlas/lib/qgemm.cpp: MlasGemmPackBSize; qgemm_kernel_avx2.cpp: ``PackedK``. AMX has another
    layout.
    """
    width = aligned(columns, _COLUMNS)
    rows = aligned(depth, _DEPTH_OF_SIGNED if is_signed else _DEPTH_OF_UNSIGNED)
    # A column sum in int32 and K padded elements for each padded column.
    size = _FLOAT * width + width * rows
    return aligned(size, _BUFFER_ALIGNMENT)


def packs_blocks(bits: int, block_size: int, *, in_int8: bool) -> bool:
    """Whether MLAS has a kernel for a blockwise quantized weight in packed form.

    core/mlas/lib/qnbitgemm.cpp: MlasIsQNBitGemmAvailable, on x86-64: in floats for 4 bits only;
    in int8 for 4 and 8 bits, for 2 bits from blocks of 32 on.
    """
    if not in_int8:
        return bits == 4  # noqa: PLR2004 - bits of an element
    return bits in (4, 8) or (bits == 2 and block_size >= 32)  # noqa: PLR2004 - the same


def packed_blocks_bytes(
    depth: int, columns: int, bits: int, block_size: int, *, in_int8: bool
) -> int:
    """B: [N, ceil(K / block), block * bits / 8].

    For int8 kernels: the elements, a scale per block, and the sums of blocks in panels of columns;
    the last two parts are aligned within the buffer. For float kernels: the elements only.

    core/mlas/lib/qnbitgemm.cpp: MlasQNBitGemmPackQuantBDataSize, on x86-64.
    """
    blocks = -(-depth // block_size)
    if not in_int8:
        return columns * blocks * block_size * bits // _BITS_PER_BYTE
    if bits == 2:  # noqa: PLR2004 - bits of an element
        blocks = aligned(blocks, _BLOCKS_2_BIT)
    elements = columns * blocks * block_size * bits // _BITS_PER_BYTE
    scales = _FLOAT * columns * blocks
    sums = _FLOAT * aligned(columns, _COLUMNS) * blocks
    return elements + scales + sums + 2 * (_BUFFER_ALIGNMENT - 1)
