"""What a kernel takes from the arena for itself while it runs, as plain values."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onnxmem.runtimes.onnxruntime.kernel_use import Use


@dataclass(frozen=True, slots=True)
class Scratch:
    """The temporary allocations of one kernel, as it asks the arena for them: not rounded."""

    blocks: tuple[int, ...] = ()
    """Bytes of each allocation in the order taken; freed at the kernel's end at the latest."""
    before_outputs: bool = False
    """The blocks are taken before the outputs are allocated, so they lie below them."""
    freed_after: tuple[int, ...] | None = None
    """For each block, how many blocks have been taken when it is freed; ``None``: all stay."""
    per_pass: tuple[int, ...] = ()
    """Blocks that are taken while all ``blocks`` are held, and freed again, in each pass."""
    passes: int = 0

    @property
    def size_bytes(self) -> int:
        """Every allocation: ``total_temp_allocations`` of onnxruntime's statistics file."""
        return sum(self.blocks) + self.passes * sum(self.per_pass)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are held at once."""
        return self._held_bytes + (sum(self.per_pass) if self.passes else 0)

    @property
    def _held_bytes(self) -> int:
        if self.freed_after is None:
            return sum(self.blocks)
        spans = tuple(zip(self.blocks, range(len(self.blocks)), self.freed_after, strict=True))
        held = (
            sum(size for size, start, stop in spans if start <= step < stop)
            for step in range(len(spans))
        )
        return max(held, default=0)


Blocks = Callable[[Use], Iterable[int] | Scratch]
"""The blocks in the order taken; a ``Scratch`` where more must be said of them.

A rule reads shapes through ``Use``, which ends it where one is unknown.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """The scratch of one operator's CPU kernel."""

    op_type: str
    domain: str
    blocks: Blocks
    source: str
    """onnxruntime's file and function."""
