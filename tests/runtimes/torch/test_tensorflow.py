"""A training step on TensorFlow's allocator with memory growth."""

import pytest
from paths import MODELS

from onnxmem import analyze
from onnxmem.runtimes.torch.tensorflow import TensorflowMemory

MIB = 2**20


def memory_of(name: str, batch: int) -> tuple[TensorflowMemory, int]:
    analysis = analyze(MODELS / f"{name}.onnx", batch=batch, train=True)
    assert analysis.tensorflow is not None
    assert analysis.training is not None
    assert analysis.training.peak_bytes is not None
    return analysis.tensorflow, analysis.training.peak_bytes


def test_regions_are_two_mebibytes_and_then_twice_the_one_before() -> None:
    """3.5 MiB are alive in a perceptron's step: regions of 2 and 4 MiB."""
    memory, peak_bytes = memory_of("mlp", 256)
    assert 2 * MIB < peak_bytes < 6 * MIB
    assert memory.reserved_bytes == (2 + 4) * MIB


@pytest.mark.parametrize(("name", "batch"), [("resnet50.train", 32), ("densenet121.train", 16)])
def test_regions_have_no_largest_size(name: str, batch: int) -> None:
    """2 + 4 + ... + 2,048 MiB: onnxruntime's arena would stop to double at 1 GiB."""
    memory, peak_bytes = memory_of(name, batch)
    assert memory.reserved_bytes == sum(2**power for power in range(1, 12)) * MIB
    assert peak_bytes <= memory.allocated_bytes <= memory.reserved_bytes


def test_the_total_counts_the_context_as_that_of_pytorch_does() -> None:
    analysis = analyze(MODELS / "mlp.onnx", batch=256, train=True)
    tensorflow, torch = analysis.tensorflow, analysis.torch
    assert tensorflow is not None
    assert torch is not None
    assert tensorflow.total_bytes - tensorflow.reserved_bytes == torch.context_bytes == 512 * MIB


def test_it_is_of_a_training_step_alone() -> None:
    analysis = analyze(MODELS / "mlp.onnx")
    assert analysis.tensorflow is None
    assert analysis.to_dict()["training"] is None
