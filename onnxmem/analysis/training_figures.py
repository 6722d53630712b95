"""A training step with what allocators take for it, under the names that JSON has."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

from onnxmem.runtimes.torch.memory import CheckpointedBlocks, TrainingMemory

if TYPE_CHECKING:
    from onnxmem.runtimes.torch.cuda import TorchMemory
    from onnxmem.runtimes.torch.tensorflow import TensorflowMemory


@dataclass(frozen=True, kw_only=True)
class TrainingFigures(TrainingMemory):
    """The figures of a training step, and of two allocators that place it."""

    find_cuda: "Callable[[], TorchMemory | None]" = field(repr=False, compare=False)
    find_tensorflow: "Callable[[], TensorflowMemory | None]" = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        step: TrainingMemory,
        cuda: "Callable[[], TorchMemory | None]",
        tensorflow: "Callable[[], TensorflowMemory | None]",
    ) -> Self:
        """A step, with what replays it on PyTorch's and on TensorFlow's allocator."""
        values = {each.name: getattr(step, each.name) for each in fields(step)}
        return cls(**values, find_cuda=cuda, find_tensorflow=tensorflow)

    @property
    def cuda(self) -> "TorchMemory | None":
        """The step as replayed with PyTorch's caching allocator on CUDA."""
        return self.find_cuda()

    @property
    def tensorflow(self) -> "TensorflowMemory | None":
        """The step as replayed with TensorFlow's allocator, unmeasured."""
        return self.find_tensorflow()

    @property
    def live_by_kind(self) -> dict[str, int]:
        """Bytes at the peak by category."""
        return {each.value: size for each, size in self.live_by_category().items()}

    @property
    def checkpointed_blocks(self) -> tuple[CheckpointedBlocks, ...]:
        """The blocks that are computed again, in the order in which they run."""
        return self.checkpointed
