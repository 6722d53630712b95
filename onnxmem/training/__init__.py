"""What a training step takes: weights, gradients, optimizer state, saved activations.

How a step is worked out is imported when one is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.training.lines import StepLines
    from onnxmem.training.losses import LOSSES
    from onnxmem.training.memory import TrainingMemory
    from onnxmem.training.optimizers import OPTIMIZERS
    from onnxmem.training.precision import PRECISIONS
    from onnxmem.training.step import training_memory

__all__ = [
    "LOSSES",
    "OPTIMIZERS",
    "PRECISIONS",
    "StepLines",
    "TrainingMemory",
    "training_memory",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.training.lines": ("StepLines",),
        "onnxmem.training.losses": ("LOSSES",),
        "onnxmem.training.memory": ("TrainingMemory",),
        "onnxmem.training.optimizers": ("OPTIMIZERS",),
        "onnxmem.training.precision": ("PRECISIONS",),
        "onnxmem.training.step": ("training_memory",),
    },
)
