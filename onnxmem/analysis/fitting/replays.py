"""What a runtime takes at every batch of a range, from its program at a few batches.

Where a runtime makes one program at every batch of the range, and its sizes are affine in the
batch, its allocator is replayed without walking the model again. That it does is checked at both
ends and at batches between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from onnxmem.analysis.fitting.searching import MOST_REPLAYS
from onnxmem.analysis.fitting.verdicts import Demand
from onnxmem.runtimes.base import AffineRun, RuntimeRun

RunAt = Callable[[int], RuntimeRun | None]
"""A runtime's run at a batch; ``None``: something is left out of it, or the batch decides more."""

_EVENTS: Final = 4_000_000
"""Allocations and releases that one search replays: some seconds."""
_FIRST: Final = (1, 2, 8)
"""Batches from which on the program may be the same: at batch 1 some copies are left out."""


def demand_of(run: RuntimeRun) -> Demand:
    """What a run wants of a device."""
    replayed = run.replay()
    return Demand(
        size_bytes=replayed.total_bytes,
        more_bytes=run.overheads.more_bytes,
        least_bytes=replayed.least_bytes,
        runs_in=None if run.made.is_paged else run.runs_in,
    )


@dataclass(frozen=True, slots=True)
class ReplayDemands:
    """A runtime's demands at the batches at which its sizes hold."""

    affine: AffineRun

    @classmethod
    def up_to(cls, run_at: RunAt, last: int, num_between: int = 1) -> Self | None:
        """Find the sizes up to a batch; ``None``: they are not affine, or programs differ.

        ``num_between`` batches between the ends are checked.
        """
        walked: dict[int, RuntimeRun | None] = {}
        for first in _FIRST:
            parts = num_between + 1
            batches = [first + (last - first) * part // parts for part in range(parts + 1)]
            if first >= last or len({*batches}) < min(len(batches), 3):
                return None
            batches = sorted({*batches})
            for batch in batches:
                if batch not in walked:
                    walked[batch] = run_at(batch)
            runs = [(batch, run) for batch in batches if (run := walked[batch]) is not None]
            affine = AffineRun.through(runs) if len(runs) == len(batches) else None
            if affine is not None:
                return cls(affine)
        return None

    @property
    def most_replays(self) -> int:
        """Batches that one search may replay."""
        return max(MOST_REPLAYS, _EVENTS // (self.affine.run.made.num_events + 1))

    def holds_at(self, batch: int) -> bool:
        """Whether the sizes hold at a batch."""
        return self.affine.holds_at(batch)

    def demand(self, batch: int) -> Demand:
        """What the runtime wants at a batch.

        :raises RuntimeFailedError: it does not run on a device of any size.
        """
        return demand_of(self.affine.at(batch))
