"""A training step on TensorFlow's GPU allocator, which Keras uses on that backend.

The step is PyTorch's: which tensors there are, and when each is allocated and released. The
allocator is TensorFlow's, from ``tensorflow/core/common_runtime/bfc_allocator.cc``: the arena that
onnxruntime's is derived from, whose first region is 2 MiB and whose next one doubles without a
limit. That is what ``tf.config.experimental.set_memory_growth`` (``allow_growth``) gives. By
default TensorFlow instead reserves the whole GPU at its start but what it leaves to the system
(``MinSystemMemory`` of ``gpu_device.cc``: 500 MiB to 1.8 GiB by compute capability), whatever the
model. TensorFlow's own graph optimizations, the order of its threads and cuDNN's workspaces are
left out: no figure here was measured.
"""

from dataclasses import dataclass
from typing import Final

from onnxmem.allocators.bfc_arena import ArenaOptions, BfcArena
from onnxmem.program.replay import MAX_ITERATIONS
from onnxmem.runtimes.base import RuntimeProgram
from onnxmem.runtimes.torch.memory import TrainingMemory

_FIRST_REGION_BYTES: Final = 2 << 20
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class TensorflowMemory:
    """What the arena takes for a step, in bytes."""

    allocated_bytes: int
    """The peak of allocated chunks: ``tf.config.experimental.get_memory_info`` has it."""
    reserved_bytes: int
    """Regions with memory growth, which are never given back."""
    context_bytes: int
    """The CUDA context, as assumed of PyTorch."""

    @property
    def total_bytes(self) -> int:
        """What the process takes of the GPU, as the figure of PyTorch counts it."""
        return self.reserved_bytes + self.context_bytes


def tensorflow_memory(step: TrainingMemory, context_bytes: int) -> TensorflowMemory:
    """Replay a step on the arena until its state repeats."""
    arena = BfcArena(ArenaOptions(initial_bytes=_FIRST_REGION_BYTES, max_growth_bytes=_NO_LIMIT))
    replayed = step.replay
    program = RuntimeProgram(replayed.program, replayed.sizes, (), MAX_ITERATIONS)
    program.serve_with(arena)
    return TensorflowMemory(
        arena.in_use_peak_bytes, arena.reserved_peak_bytes, context_bytes=context_bytes
    )
