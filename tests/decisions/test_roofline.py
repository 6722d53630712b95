"""The roofline bound, computed by hand on two layers."""

from dataclasses import replace

from graphs import model_of

from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.decisions.devices import Device
from onnxmem.decisions.roofline import Work, bound, work_of
from onnxmem.settings import Settings, TrainingConfig

TWO_LAYERS = """agraph (float[N,5] x) => (float[N,11] y) <float[5,7] v, float[7,11] w> {
    h = MatMul(x, v)  r = Relu(h)  y = MatMul(r, w) }"""
SLOW = Device(
    name="slow", kind="cpu", memory_bytes=1, bandwidth_bytes=1_000, fp32_flops=500, fp16_flops=4_000
)


def work(text: str = TWO_LAYERS, **requested: object) -> Work:
    settings = Settings(batch=3, **requested)  # type: ignore[arg-type]
    return work_of(request_of(model_of(text), settings).results)


def test_weights_and_inputs_are_read_once_and_activations_written_too() -> None:
    """Relu writes over h, so there are two buffers: 3 x 7 and 3 x 11 elements."""
    found = work()
    assert found.bytes_moved == 4 * (5 * 7 + 7 * 11 + 3 * 5 + 2 * (3 * 7 + 3 * 11))
    assert found.flops == 2 * 3 * (5 * 7 + 7 * 11) + 3 * 7
    assert found.is_whole
    assert not found.is_half


def test_a_step_moves_every_allocation_twice_and_computes_forward_and_backward() -> None:
    run, step = work(), work(train=True)
    assert step.flops is not None
    assert run.flops is not None
    assert step.flops > 2 * run.flops
    assert step.bytes_moved is not None
    # weights, gradients, two moments of adam
    assert step.bytes_moved > 2 * 4 * 4 * (5 * 7 + 7 * 11)


def test_gradient_accumulation_multiplies_the_compute() -> None:
    once, thrice = work(train=True), work(train=True, recipe=TrainingConfig(accumulate=3))
    assert once.flops is not None
    assert thrice.flops == 3 * once.flops


def test_the_slower_of_compute_and_memory_is_the_bound() -> None:
    found = bound(Work(1_000, 3_000, is_half=False, is_whole=True), SLOW)
    assert (found.compute_seconds, found.memory_seconds) == (2.0, 3.0)
    assert (found.seconds, found.limited_by) == (3.0, "memory")
    found = bound(Work(10_000, 3_000, is_half=False, is_whole=True), SLOW)
    assert (found.seconds, found.limited_by) == (20.0, "compute")


def test_half_weights_and_precisions_compute_at_the_half_peak() -> None:
    narrow = TWO_LAYERS.replace("float[", "float16[")
    assert work(narrow).is_half
    assert work(train=True, recipe=TrainingConfig(precision="mixed-fp16")).is_half
    assert bound(Work(8_000, None, is_half=True, is_whole=True), SLOW).seconds == 2.0
    without = replace(SLOW, fp16_flops=None)
    assert bound(Work(8_000, None, is_half=True, is_whole=True), without).seconds == 16.0


def test_a_bound_from_one_side_has_no_limiting_factor() -> None:
    blind = replace(SLOW, fp32_flops=None, fp16_flops=None)
    found = bound(Work(1_000, 3_000, is_half=False, is_whole=True), blind)
    assert (found.seconds, found.limited_by) == (3.0, None)
    nothing = bound(Work(None, None, is_half=False, is_whole=False), SLOW)
    assert nothing.seconds is None


def test_intensity_is_flops_per_byte() -> None:
    assert Work(6, 3, is_half=False, is_whole=True).flops_per_byte == 2.0
    assert Work(6, None, is_half=False, is_whole=True).flops_per_byte is None
