"""What a training step takes: weights, gradients, optimizer state, saved activations.

How a step is worked out is imported when one is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.training.batchnorm_peaks import batchnorm_range, range_finding
    from onnxmem.training.lines import StepLines
    from onnxmem.training.losses import LOSSES
    from onnxmem.training.memory import PeakRange, TrainingMemory
    from onnxmem.training.optimizers import OPTIMIZERS
    from onnxmem.training.precision import PRECISIONS
    from onnxmem.training.step import training_memory

__all__ = [
    "LOSSES",
    "OPTIMIZERS",
    "PRECISIONS",
    "PeakRange",
    "StepLines",
    "TrainingMemory",
    "batchnorm_range",
    "range_finding",
    "training_memory",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.training.batchnorm_peaks": ("batchnorm_range", "range_finding"),
        "onnxmem.training.lines": ("StepLines",),
        "onnxmem.training.losses": ("LOSSES",),
        "onnxmem.training.memory": ("PeakRange", "TrainingMemory"),
        "onnxmem.training.optimizers": ("OPTIMIZERS",),
        "onnxmem.training.precision": ("PRECISIONS",),
        "onnxmem.training.step": ("training_memory",),
    },
)
