"""From the bytes that a tensor asks for to the bytes that are taken from the device.

The constants are those of c10/core/AllocatorConfig.h.
"""

MIN_BLOCK_BYTES = 512
"""kMinBlockSize: every block is a multiple of it."""
SMALL_BYTES = 2**20
"""kSmallSize: the largest request that the small pool serves."""
SMALL_SEGMENT_BYTES = 2 * 2**20
"""kSmallBuffer: a segment, or a page, of the small pool."""
MIN_LARGE_BYTES = 10 * 2**20
"""kMinLargeAlloc: requests from here on get a segment of their own size."""
LARGE_SEGMENT_BYTES = 20 * 2**20
"""large_segment_size, before it kLargeBuffer: what smaller requests of the large pool share."""
LARGE_STEP_BYTES = 2 * 2**20
"""kRoundLarge: a segment of a request's own size is a multiple of it."""


def rounded_bytes(size_bytes: int, power2_divisions: int = 0) -> int:
    """Bytes of the block that a request needs (DeviceCachingAllocator::round_size)."""
    if power2_divisions > 1 and size_bytes > MIN_BLOCK_BYTES * power2_divisions:
        return _up_to_division(size_bytes, power2_divisions)
    return max(round_up(size_bytes, MIN_BLOCK_BYTES), MIN_BLOCK_BYTES)


def segment_bytes(block_bytes: int) -> int:
    """Bytes asked of the device where no block is free (get_allocation_size)."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(block_bytes, LARGE_STEP_BYTES)


def round_up(size_bytes: int, step_bytes: int) -> int:
    """The first multiple of a step from a size on."""
    return -(-size_bytes // step_bytes) * step_bytes


def _up_to_division(size_bytes: int, divisions: int) -> int:
    """The first of the equal parts between two powers of 2 (roundup_power2_next_division)."""
    floor = 1 << (size_bytes.bit_length() - 1)
    if floor == size_bytes:
        return size_bytes
    # The source shifts by the whole bits of `divisions`: 5, 6 and 7 count as 4.
    part = floor >> (divisions.bit_length() - 1)
    return round_up(size_bytes, part) if part else floor * 2
