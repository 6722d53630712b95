"""What a runtime takes at one batch after another, from its program at a few of them.

Where a runtime makes one program at every batch of a range, and its sizes are affine in the batch,
its allocator is replayed without walking the model again. That it does is checked at both ends and
at batches between them; a batch beyond the range is walked, and widens it where it is alike.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from onnxmem.analysis.fitting.searching import FEW_REPLAYS, MOST_REPLAYS
from onnxmem.analysis.fitting.verdicts import Demand
from onnxmem.errors import OnnxmemError
from onnxmem.runtimes.base import AffineRun, RuntimeRun

RunAt = Callable[[int], RuntimeRun | None]
"""A runtime's run at a batch; ``None``: something is left out of it, or the batch decides more."""

_EVENTS: Final = 4_000_000
"""Allocations and releases that one search replays: some seconds."""
_FIRST: Final = (1, 2, 8)
"""Batches from which on the program may be the same: at batch 1 some copies are left out."""
_LEAST: Final = 3
"""Batches that show sizes to be affine: two ends, and one between."""
_MOST_WALKED: Final = 16
"""Batches that are walked at most to find lines; of a runtime that draws none no more are."""
_BETWEEN: Final = 15
"""Batches between the ends of a range at which a runtime of the caller's own is checked: nothing is
known of how its sizes grow."""


def demand_of(run: RuntimeRun) -> Demand:
    """What a run wants of a device."""
    replayed = run.replay()
    return Demand(
        size_bytes=replayed.total_bytes,
        more_bytes=run.overheads.more_bytes,
        least_bytes=replayed.least_bytes,
        runs_in=None if run.made.is_paged else run.runs_in,
    )


@dataclass(slots=True)
class ReplayDemands:
    """The runs of a runtime by batch, and the range in which they are known without a walk."""

    run_at: RunAt
    is_own: bool
    """Whether the caller made the runtime: no line is drawn then before a range is checked."""
    _affine: AffineRun | None = None
    _walked: dict[int, RuntimeRun | None] = field(default_factory=dict)

    def run(self, batch: int) -> RuntimeRun | None:
        """The run at a batch; ``None``: it is to be worked out in full.

        :raises OnnxmemError: the runtime does not run the model at the batch.
        """
        affine = self._affine
        if affine is not None and affine.holds_at(batch):
            return affine.at(batch)
        if self.is_own or len(self._walked) >= _MOST_WALKED or None in self._walked.values():
            return None
        run = self._known(batch)
        if run is not None:
            self._widen(batch)
        return run

    def draw_lines(self, last: int) -> int:
        """Find the runs up to a batch, where they are alike: how many replays a search may take."""
        with suppress(OnnxmemError):
            if any(self._draws(first, last) for first in _FIRST) and self._affine is not None:
                return max(MOST_REPLAYS, _EVENTS // (self._affine.run.made.num_events + 1))
        return FEW_REPLAYS

    def _draws(self, first: int, last: int) -> bool:
        """Whether the runs from one batch to another are alike, at both and at those between."""
        parts = 1 + (_BETWEEN if self.is_own else 1)
        batches = sorted({first + (last - first) * part // parts for part in range(parts + 1)})
        if first >= last or len(batches) < _LEAST:
            return False
        runs = [(batch, run) for batch in batches if (run := self._known(batch)) is not None]
        found = AffineRun.through(runs) if len(runs) == len(batches) else None
        if found is not None:
            self._affine = self._joined(found)
        return found is not None

    def _joined(self, found: AffineRun) -> AffineRun:
        """Lines that were found with those that were drawn farther, which they lie on."""
        drawn = self._affine
        if drawn is None or not drawn.holds_at(found.last) or drawn.last == found.last:
            return found
        batches = (found.first, found.last)
        points = [*((n, found.at(n)) for n in batches), (drawn.last, drawn.at(drawn.last))]
        return AffineRun.through(points) or found

    def _known(self, batch: int) -> RuntimeRun | None:
        """The run by the lines, or walked once."""
        if self._affine is not None and self._affine.holds_at(batch):
            return self._affine.at(batch)
        if batch not in self._walked:
            self._walked[batch] = self.run_at(batch)
        return self._walked[batch]

    def _widen(self, batch: int) -> None:
        """Draw the lines on to a batch that was walked, or through it where there are none yet."""
        affine = self._affine
        runs = [
            (number, run)
            for number, run in sorted(self._walked.items())
            if run is not None and (affine is None or affine.holds_at(number) or number == batch)
        ]
        for index in range(len(runs) - _LEAST + 1):
            found = AffineRun.through(runs[index:])
            if found is not None and found.holds_at(batch):
                self._affine = found
                return
