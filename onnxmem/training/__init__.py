"""What a training step takes: weights, gradients, optimizer state, saved activations."""

from onnxmem.training.losses import LOSSES
from onnxmem.training.memory import TrainingMemory
from onnxmem.training.optimizers import OPTIMIZERS
from onnxmem.training.precision import PRECISIONS
from onnxmem.training.step import training_memory

__all__ = ["LOSSES", "OPTIMIZERS", "PRECISIONS", "TrainingMemory", "training_memory"]
