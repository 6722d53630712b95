"""What a training step wants at every batch of a range, from three batches.

A step is one program at every batch of the range, and its sizes are affine in the batch: so its
allocator is replayed without walking the model again. Both ends and a batch between them are
walked, and prove it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from onnxmem.analysis.fitting.searching import MOST_REPLAYS
from onnxmem.analysis.fitting.verdicts import Demand
from onnxmem.program import Affine, Program, Sizes, affine_sizes
from onnxmem.runtimes import torch
from onnxmem.runtimes.assumed import Assumed, workspace_of

if TYPE_CHECKING:
    from onnxmem.analysis.request import AnalysisRequest
    from onnxmem.analysis.stages import StageResults
    from onnxmem.runtimes.torch import TorchMemory, TorchSettings

_EVENTS: Final = 4_000_000
"""Allocations and releases that one search replays: some seconds."""
_FIRST: Final = (1, 2, 8)
"""Batches from which on the program may be the same: at batch 1 some copies are left out."""

_Walked = tuple[int, "StageResults"]


@dataclass(frozen=True, slots=True)
class StepDemands:
    """A training step on PyTorch's allocator at the batches at which its sizes hold."""

    program: Program
    sizes: Sizes
    settings: "TorchSettings"
    context: Assumed
    given_workspace_bytes: int | None
    workspace: Affine
    """The largest workspace that cuDNN may take."""

    @classmethod
    def up_to(cls, question: "AnalysisRequest", last: int) -> Self | None:
        """Find the sizes up to a batch; ``None``: they are not affine, or programs differ."""
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
        replays = [
            (batch, step.replay)
            for batch, step in steps
            if step and not step.checkpoints and not step.batchnorms.unknown
        ]
        if len(replays) < len(walked):
            return None
        sizes = affine_sizes(replays)
        highs = [(batch, question.workspace(terms).high_bytes) for batch, terms in walked]
        workspace = Affine.through(highs)
        if sizes is None or workspace is None:
            return None
        return cls(
            replays[0][1].program,
            sizes,
            question.torch_settings(walked[0][1]),
            question.torch_context,
            question.settings.cuda_workspace_bytes,
            workspace,
        )

    @property
    def most_replays(self) -> int:
        """Batches that one search may replay: most are steady after two or three steps."""
        return max(MOST_REPLAYS, _EVENTS // (3 * len(self.program.events) + 1))

    def holds_at(self, batch: int) -> bool:
        """Whether the sizes hold at a batch."""
        return self.sizes.holds_at(batch)

    def demand(self, batch: int) -> Demand:
        """What a step wants at a batch."""
        workspace = workspace_of(self.workspace.at(batch), self.given_workspace_bytes)
        settings = replace(self.settings, cudnn_workspace_bytes=workspace.size_bytes)
        sizes = self.sizes.at(batch)

        def replayed(capacity_bytes: int | None = None) -> "TorchMemory":
            return torch.torch_memory(self.program, sizes, settings, capacity_bytes=capacity_bytes)

        memory, context_bytes = replayed(), self.context.size_bytes
        return Demand(
            size_bytes=memory.total_bytes,
            more_bytes=self.context.more_bytes + workspace.more_bytes,
            least_bytes=memory.asked_peak_bytes + context_bytes,
            runs_in=lambda limit_bytes: (
                not replayed(max(limit_bytes - context_bytes, 0)).is_out_of_memory
            ),
        )
