"""What a kernel takes from the arena for itself while it runs, as plain values."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onnxmem.runtimes.onnxruntime.kernel_use import Use


@dataclass(frozen=True, slots=True)
class Scratch:
    """The temporary allocations of one kernel, as it asks the arena for them: not rounded."""

    blocks: tuple[int, ...] = ()
    """Bytes of each allocation in the order taken; freed at the kernel's end at the latest."""
    num_before_outputs: int = 0
    """Blocks that are taken before the outputs are allocated, so that they lie below them."""
    freed_after: tuple[int | None, ...] = ()
    """For each block, how many have been taken when it is freed; ``None``: at the kernel's end.

    Empty: all are freed at the end. What goes with the last block goes before outputs and passes.
    """
    per_pass: tuple[int, ...] = ()
    """Blocks that are taken after ``blocks`` and freed again, in each pass."""
    passes: int = 0

    @property
    def size_bytes(self) -> int:
        """Every allocation: ``total_temp_allocations`` of onnxruntime's statistics file."""
        return sum(self.blocks) + self.passes * sum(self.per_pass)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are held at once."""
        stops = self.freed_after or (None,) * len(self.blocks)
        held = peak = 0
        for count, size in enumerate(self.blocks, start=1):
            held += size
            peak = max(peak, held)
            gone = zip(self.blocks, stops, strict=True)
            held -= sum(bytes_ for bytes_, stop in gone if stop == count)
        return max(peak, held + sum(self.per_pass)) if self.passes else peak

    def then(self, blocks: Iterable[int]) -> "Scratch":
        """The same, and more blocks that are held to the end."""
        more = tuple(blocks)
        stops = self.freed_after or (None,) * len(self.blocks)
        stops = (*stops, *(None,) * len(more))
        return Scratch((*self.blocks, *more), self.num_before_outputs, stops)


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
