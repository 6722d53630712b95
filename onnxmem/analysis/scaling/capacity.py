"""The law by which live bytes grow with the batch.

A law takes a function from a batch to live bytes and knows no stage. Each buffer's bytes are
affine in the batch; a peak is the largest of several sums of buffers, hence convex.
"""

from collections.abc import Callable
from typing import Final

from onnxmem.program.sizes import Affine

BytesAt = Callable[[int], int | None]
"""Bytes at a batch; ``None`` where they are unknown."""

LARGEST_BATCH: Final = 2**31
"""Where the search ends: what fits at this batch is said to fit at every batch."""

LAW_BATCH: Final = 128
"""A law is sought from batch 1 to this one at least."""


def batch_law(bytes_at: BytesAt, largest: int) -> Affine | None:
    """Find the affine law that holds from batch 1 to ``largest``; ``None`` where none does.

    Three evaluated points prove it: a convex function that meets a line at both ends of a stretch
    and once between them is that line all along. Up to batch 2 two points are the whole stretch,
    and a single point has no law.
    """
    if largest <= 1:
        return None
    ends = bytes_at(1), bytes_at(largest)
    if ends[0] is None or ends[1] is None:
        return None
    law = Affine.through([(1, ends[0]), (largest, ends[1])])
    middle = (1 + largest) // 2
    return law if law is not None and bytes_at(middle) == law.at(middle) else None
