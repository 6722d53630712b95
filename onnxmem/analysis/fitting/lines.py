"""What a training step wants at every batch of a stretch, read off three batches.

A step allocates and releases the same blocks in the same order at every batch of the stretch, and
each block's bytes are a line in the batch: so its allocator is replayed without walking the model
again. Both ends and a batch between them are walked, and prove it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from onnxmem.analysis.fitting.searching import MOST_REPLAYS
from onnxmem.analysis.fitting.verdicts import Demand
from onnxmem.runtimes import torch
from onnxmem.runtimes.assumed import Assumed, workspace_of
from onnxmem.runtimes.torch import StepLines

if TYPE_CHECKING:
    from onnxmem.analysis.request import AnalysisRequest
    from onnxmem.analysis.stages import StageResults
    from onnxmem.runtimes.torch import TorchMemory, TorchSettings

_EVENTS: Final = 4_000_000
"""Allocations and releases that one search replays: some seconds."""
_FIRST: Final = (1, 2, 8)
"""Batches from which on the order may be the same: at batch 1 some copies are left out."""

_Walked = tuple[int, "StageResults"]


@dataclass(frozen=True, slots=True)
class StepDemands:
    """A training step on PyTorch's allocator at the batches from the lines' first to the last."""

    lines: StepLines
    last: int
    settings: "TorchSettings"
    context: Assumed
    given_workspace_bytes: int | None
    workspace_fixed_bytes: int
    """Of the largest workspace that cuDNN may take: does not grow with the batch."""
    workspace_sample_bytes: int
    """Of the same: for each sample."""

    @classmethod
    def up_to(cls, question: "AnalysisRequest", last: int) -> Self | None:
        """Draw lines up to a batch; ``None`` where the step's order or a block is on none."""
        walked: dict[int, StageResults] = {}
        for first in _FIRST:
            batches = (first, (first + last) // 2, last)
            if len({*batches}) < len(batches) or first > last:
                return None
            for batch in batches:
                if batch not in walked:
                    walked[batch] = question.at(batch).results
            found = cls._through(question, [(batch, walked[batch]) for batch in batches])
            if found is not None:
                return found
        return None

    @classmethod
    def _through(cls, question: "AnalysisRequest", walked: Sequence[_Walked]) -> Self | None:
        steps = [(batch, terms.training) for batch, terms in walked if terms.is_whole]
        traces = [
            (batch, step.trace)
            for batch, step in steps
            if step and not step.checkpoints and not step.batchnorms.unknown
        ]
        if len(traces) < len(walked):
            return None
        first, middle, last = traces
        lines = StepLines.through(first, last)
        if lines is None or not lines.meet(*middle):
            return None
        high = {batch: question.workspace(terms).high_bytes for batch, terms in walked}
        slope, rest = divmod(high[last[0]] - high[first[0]], last[0] - first[0])
        fixed = high[first[0]] - slope * first[0]
        if rest or fixed + slope * middle[0] != high[middle[0]]:
            return None
        return cls(
            lines,
            last[0],
            question.torch_settings(walked[0][1]),
            question.torch_context,
            question.settings.cuda_workspace_bytes,
            fixed,
            slope,
        )

    @property
    def most_replays(self) -> int:
        """Batches that one search may replay: most are steady after two or three steps."""
        return max(MOST_REPLAYS, _EVENTS // (3 * len(self.lines.trace.log) + 1))

    def holds_at(self, batch: int) -> bool:
        """Whether the lines were drawn for a batch."""
        return self.lines.first <= batch <= self.last

    def demand(self, batch: int) -> Demand:
        """What a step wants at a batch."""
        high_bytes = self.workspace_fixed_bytes + self.workspace_sample_bytes * batch
        workspace = workspace_of(high_bytes, self.given_workspace_bytes)
        settings = replace(self.settings, cudnn_workspace_bytes=workspace.size_bytes)
        events, num_held = tuple(self.lines.events(batch)), self.lines.trace.num_held_events

        def replayed(capacity_bytes: int | None = None) -> "TorchMemory":
            return torch.replay(
                events[:num_held],
                events[num_held:],
                settings=settings,
                capacity_bytes=capacity_bytes,
            )

        memory, context_bytes = replayed(), self.context.size_bytes
        return Demand(
            size_bytes=memory.total_bytes,
            more_bytes=self.context.more_bytes + workspace.more_bytes,
            least_bytes=memory.asked_peak_bytes + context_bytes,
            runs_in=lambda limit_bytes: (
                not replayed(max(limit_bytes - context_bytes, 0)).is_out_of_memory
            ),
        )
