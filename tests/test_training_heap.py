"""The heap of a step: references, peaks by phase, and what is written down of it."""

import pytest
from training_steps import happenings, sizes, step

from onnxmem.runtimes.torch.heap import Block, Heap, Kind, Phase, StepTrace

CHAIN = """
    agraph (float[2,3] x) => (float[2,7] y) <float[3,5] w, float[5,7] v> {
        h = MatMul(x, w)
        r = Relu(h)
        y = MatMul(r, v)
    }"""


def replayed(trace: StepTrace) -> dict[Phase, int]:
    """The largest sum of live bytes in each phase; what is alive as it begins counts."""
    live, most = 0, dict.fromkeys(Phase, 0)
    alive: set[int] = set()
    phase = Phase.FORWARD
    for event, (block, change) in zip(trace.events, trace.sizes(), strict=True):
        if event.phase is not phase:
            most[event.phase] = live
        phase = event.phase
        live += change
        assert live >= 0
        assert (block in alive) is not event.is_allocation
        alive ^= {block}
        most[phase] = max(most[phase], live)
    return {each: size_bytes or live for each, size_bytes in most.items()}


def test_the_last_reference_frees_a_block() -> None:
    heap = Heap()
    number = heap.allocate("a", Kind.ACTIVATION, 7)
    heap.retain(number)
    assert not heap.is_unique(number)
    heap.release(number)
    assert (heap.live_bytes, heap.is_unique(number)) == (7, True)
    heap.release(number)
    assert heap.live_bytes == 0
    assert [event.is_allocation for event in heap.trace().events] == [True, False]


def test_a_phase_begins_with_what_is_alive() -> None:
    heap = Heap()
    first = heap.allocate("a", Kind.ACTIVATION, 11)
    heap.release(heap.allocate("b", Kind.TEMPORARY, 13))
    heap.enter(Phase.BACKWARD)
    heap.release(first)
    heap.allocate("c", Kind.GRADIENT, 5)
    peaks = heap.trace().peaks
    assert peaks[Phase.FORWARD].size_bytes == 24
    assert peaks[Phase.BACKWARD].size_bytes == 11
    assert Phase.OPTIMIZER not in peaks


def test_the_first_of_equal_peaks_counts() -> None:
    heap = Heap()
    for heap.node in ("first", "second"):
        heap.release(heap.allocate("a", Kind.TEMPORARY, 3))
    assert heap.trace().peaks[Phase.FORWARD].node == "first"


def test_what_is_alive_at_a_peak_is_listed_largest_first() -> None:
    heap = Heap()
    heap.release(heap.allocate("gone", Kind.ACTIVATION, 2))
    heap.allocate("small", Kind.ACTIVATION, 3)
    heap.allocate("large", Kind.WEIGHT, 5)
    trace = heap.trace()
    alive = trace.live_at(trace.peaks[Phase.FORWARD])
    assert alive == (Block("large", Kind.WEIGHT, 5), Block("small", Kind.ACTIVATION, 3))


def test_a_block_may_become_something_else() -> None:
    heap = Heap()
    number = heap.allocate("gradient inside", Kind.ACTIVATION_GRADIENT, 3)
    heap.relabel(number, "gradient of w", Kind.GRADIENT)
    assert heap.trace().blocks == (Block("gradient of w", Kind.GRADIENT, 3),)


def test_a_step_tells_every_allocation() -> None:
    """ReLU's input goes with ReLU, its output with the backward formula of ReLU."""
    found = step(CHAIN)
    assert happenings(found, Phase.FORWARD) == ["+h", "+r", "-h", "+y"]
    assert happenings(found) == [
        *("+gradient of y", "+gradient of v", "+gradient of r", "-gradient of y"),
        *("+gradient of h", "-gradient of r", "-r"),
        *("+gradient of w", "-gradient of h"),
    ]
    assert happenings(found, Phase.OPTIMIZER) == []


def test_the_peaks_of_a_chain_by_hand() -> None:
    """Of rows 2: h and r of 5, y of 7 elements; w has 15 elements and v 35."""
    found = step(CHAIN)
    held = 4 * (15 + 35 + 6)
    assert found.forward_peak_bytes == held + 4 * max(10 + 10, 10 + 14)
    at_v = 14 + 10 + 14 + 35 + 10  # y, r, the gradients of y, of v and of r
    at_relu = 14 + 10 + 35 + 10 + 10  # the gradient of y is gone
    at_w = 14 + 35 + 10 + 15  # r is gone
    assert found.backward_peak_bytes == held + 4 * max(at_v, at_relu, at_w)
    assert found.optimizer_peak_bytes == held + 4 * (14 + 35 + 15)
    assert (found.peak_phase, found.peak_node) == (Phase.BACKWARD, "MatMul_2")


@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "none"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("checkpoint", ["none", "every=1", "sqrt"])
def test_peaks_are_the_maxima_of_the_events(optimizer: str, loss: str, checkpoint: str) -> None:
    found = step(CHAIN, optimizer=optimizer, loss=loss, checkpoint=checkpoint)
    most = replayed(found.trace)
    for phase, peak in found.trace.peaks.items():
        assert peak.size_bytes == most[phase]
        assert sum(block.size_bytes for block in found.trace.live_at(peak)) == peak.size_bytes
    assert found.peak_bytes == max(peak.size_bytes for peak in found.trace.peaks.values())


@pytest.mark.parametrize(
    ("loss", "more"), [("none", set()), ("cross-entropy", {"value of the loss of y", "targets"})]
)
def test_a_step_ends_with_what_it_holds_gradients_and_outputs(loss: str, more: set[str]) -> None:
    trace = step(CHAIN, loss=loss).trace
    alive: set[str] = set()
    for event in trace.events:
        (alive.add if event.is_allocation else alive.remove)(trace.blocks[event.block].label)
    assert alive == {"x", "w", "v", "y", "gradient of w", "gradient of v"} | more


def test_what_is_held_before_the_step_comes_first() -> None:
    found = step(CHAIN, optimizer="momentum", loss="mse")
    trace = found.trace
    before = [trace.blocks[event.block].label for event in trace.events[: trace.num_held_events]]
    assert before == ["w", "v", "state of w", "state of v", "x", "targets"]


def test_bytes_at_the_peak_by_what_they_hold() -> None:
    found = step(CHAIN, loss="mse", optimizer="momentum")
    kinds = found.live_by_kind()
    assert sum(kinds.values()) == found.peak_bytes
    assert kinds[Kind.WEIGHT] == kinds[Kind.STATE] == found.weight_bytes == 4 * 50
    assert kinds[Kind.INPUT] == found.input_bytes == 4 * (6 + 14)
    assert Kind.BUFFER not in kinds


def test_blocks_of_no_bytes_are_left_out_of_what_is_held() -> None:
    assert "targets" not in sizes(step(CHAIN))


def test_the_optimizer_is_where_the_step_peaks_if_it_holds_most() -> None:
    """Its peak is at no node."""
    found = step(CHAIN, optimizer="adam")
    assert (found.peak_phase, found.peak_node) == (Phase.OPTIMIZER, None)
    assert found.peak_bytes == found.optimizer_peak_bytes


def test_of_equal_peaks_the_backward_pass_counts() -> None:
    """Nothing is trained: all phases hold the same."""
    found = step("agraph (float[2,3] x) => (float[2,3] y) { y = Exp(x) }")
    assert found.forward_peak_bytes == found.backward_peak_bytes == found.optimizer_peak_bytes
    assert (found.peak_phase, found.peak_node) == (Phase.BACKWARD, None)
