"""Live bytes at each step, and their peak.

The peak is a lower bound of any arena: it counts live bytes, and assumes an allocator that neither
pads nor fragments.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from onnxmem.model.records import record


@record
class Buffer:
    """Bytes that one or more tensors share."""

    tensors: tuple[str, ...]
    """In the order in which they are written; the first names the buffer."""
    size_bytes: int | None
    """``None``: unknown."""


@record
class Lifetime:
    """The steps in which a buffer is live: half-open, ``[start, stop)``."""

    buffer: Buffer
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes at each step."""

    live_bytes: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes live at one step; 0 where there is no step."""
        return max(self.live_bytes, default=0)

    @property
    def peak_step(self) -> int | None:
        """The first step at the peak; ``None`` where there is no step."""
        return self.live_bytes.index(self.peak_bytes) if self.live_bytes else None


def timeline(lifetimes: Iterable[Lifetime], num_steps: int) -> Timeline:
    """Sum the bytes of every live buffer at each of ``num_steps`` steps.

    Buffers of unknown size are left out: with any of them each figure is a lower bound.

    Runs in O(buffers + steps) by a difference array: each lifetime adds its bytes where it starts
    and takes them away where it stops, and a running sum turns changes into totals.
    """
    change_bytes = [0] * (num_steps + 1)
    for lifetime in lifetimes:
        size_bytes = lifetime.buffer.size_bytes
        if size_bytes:
            change_bytes[lifetime.start] += size_bytes
            change_bytes[lifetime.stop] -= size_bytes
    return Timeline(live_bytes=tuple(accumulate(change_bytes[:num_steps])))
