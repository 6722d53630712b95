"""The heap of a step: references, peaks by phase, and what is written down of it."""

import pytest
from runtimes.torch.training_steps import CHAIN, found_before, happenings, sizes, step

from onnxmem.program.program import Allocation, Category
from onnxmem.program.replay import Replay
from onnxmem.runtimes.torch.memory import Heap, Phase


def phase_maxima(replay: Replay) -> dict[str, int]:
    """The largest sum of live bytes in each phase; what is alive as it begins counts."""
    program, live = replay.program, 0
    most: dict[str, int] = {}
    alive: set[int] = set()
    for phase, events in program.phase_ranges.items():
        most[phase] = live
        for event in program.events[events.start : events.stop].tolist():
            number = max(event, ~event)
            assert (number in alive) is (event < 0)
            alive ^= {number}
            live += replay.sizes.bytes_of(number) * (1 if event >= 0 else -1)
            assert live >= 0
            most[phase] = max(most[phase], live)
    return most


def test_the_last_reference_releases_an_allocation() -> None:
    heap = Heap.with_setup(())
    number = heap.allocate("a", Category.ACTIVATION, 7)
    heap.retain(number)
    assert not heap.is_unique(number)
    heap.release(number)
    assert (heap.num_events, heap.is_unique(number)) == (1, True)
    heap.release(number)
    assert heap.replay().program.events.tolist() == [0, ~0]
    assert heap.replay().live_bytes[-1] == 0


def test_a_phase_begins_with_what_is_alive() -> None:
    heap = Heap.with_setup(())
    first = heap.allocate("a", Category.ACTIVATION, 11)
    heap.release(heap.allocate("b", Category.TEMPORARY, 13))
    heap.enter_phase(Phase.BACKWARD)
    heap.release(first)
    heap.allocate("c", Category.GRADIENT, 5)
    peaks = heap.replay().phase_peaks
    assert {phase: peak.size_bytes for phase, peak in peaks.items()} == {
        Phase.FORWARD: 24,
        Phase.BACKWARD: 11,
    }


def test_the_setup_counts_in_the_forward_phase() -> None:
    held = [Allocation("w", Category.WEIGHT, 7), Allocation("none", Category.BUFFER, 0)]
    heap = Heap.with_setup(held)
    heap.enter_node("n")
    heap.allocate("a", Category.ACTIVATION, 3)
    found = heap.replay()
    assert found.program.num_setup_events == 1
    assert found.program.labels == ("w", "a")
    assert (found.peak.size_bytes, found.peak.node) == (10, "n")


def test_the_first_of_equal_peaks_counts() -> None:
    heap = Heap.with_setup(())
    for node in ("first", "second"):
        heap.enter_node(node)
        heap.release(heap.allocate("a", Category.TEMPORARY, 3))
    assert heap.replay().phase_peaks[Phase.FORWARD].node == "first"


def test_the_live_set_at_a_peak_is_sorted_by_size() -> None:
    heap = Heap.with_setup(())
    heap.release(heap.allocate("gone", Category.ACTIVATION, 2))
    heap.allocate("small", Category.ACTIVATION, 3)
    heap.allocate("large", Category.WEIGHT, 5)
    replay = heap.replay()
    assert replay.live_set(replay.phase_peaks[Phase.FORWARD]) == (
        Allocation("large", Category.WEIGHT, 5),
        Allocation("small", Category.ACTIVATION, 3),
    )


def test_an_allocation_may_be_relabeled() -> None:
    heap = Heap.with_setup(())
    number = heap.allocate("gradient inside", Category.ACTIVATION_GRADIENT, 3)
    heap.relabel(number, "gradient of w", Category.GRADIENT)
    assert [*heap.replay().allocations()] == [Allocation("gradient of w", Category.GRADIENT, 3)]


def test_a_step_has_every_allocation() -> None:
    """ReLU's input goes with ReLU, its output with the backward formula of ReLU."""
    found = step(CHAIN)
    assert happenings(found, Phase.FORWARD) == ["+h", "+r", "-h", "+y"]
    assert happenings(found) == [
        *("+gradient of y", "+gradient of v", "+gradient of r", "-gradient of y"),
        *("+gradient of h", "-gradient of r", "-r"),
        *("+gradient of w", "-gradient of h"),
    ]
    assert happenings(found, Phase.OPTIMIZER) == []


def test_the_peaks_of_a_chain() -> None:
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
    replay = found.replay
    peaks = {phase: peak.size_bytes for phase, peak in replay.phase_peaks.items()}
    assert peaks == phase_maxima(replay)
    for peak in replay.phase_peaks.values():
        assert sum(each.size_bytes for each in replay.live_set(peak)) == peak.size_bytes
    assert found.peak_bytes == max(peaks.values())


@pytest.mark.parametrize(
    ("loss", "more"), [("none", set()), ("cross-entropy", {"value of the loss of y", "targets"})]
)
def test_a_step_ends_with_its_setup_gradients_and_outputs(loss: str, more: set[str]) -> None:
    program = step(CHAIN, loss=loss).replay.program
    alive = {program.labels[each] for each in program.alive_after(len(program.events))}
    assert alive == {"x", "w", "v", "y", "gradient of w", "gradient of v"} | more


def test_setup_allocations_come_first() -> None:
    found = step(CHAIN, optimizer="momentum", loss="mse")
    assert found_before(found) == ["w", "v", "x", "targets", "state of w", "state of v"]


def test_bytes_at_the_peak_by_category() -> None:
    found = step(CHAIN, loss="mse", optimizer="momentum")
    held = found.live_by_category()
    assert sum(held.values()) == found.peak_bytes
    assert held[Category.WEIGHT] == held[Category.STATE] == found.weight_bytes == 4 * 50
    assert held[Category.INPUT] == found.input_bytes == 4 * (6 + 14)
    assert Category.BUFFER not in held


def test_setup_allocations_of_no_bytes_are_left_out() -> None:
    assert "targets" not in sizes(step(CHAIN))


def test_the_peak_may_be_in_the_optimizer() -> None:
    """Its peak is at no node."""
    found = step(CHAIN, optimizer="adam")
    assert (found.peak_phase, found.peak_node) == (Phase.OPTIMIZER, None)
    assert found.peak_bytes == found.optimizer_peak_bytes


def test_the_backward_pass_is_named_for_equal_peaks() -> None:
    """Nothing is trained: all phases have the same peak."""
    found = step("agraph (float[2,3] x) => (float[2,3] y) { y = Exp(x) }")
    assert found.forward_peak_bytes == found.backward_peak_bytes == found.optimizer_peak_bytes
    assert (found.peak_phase, found.peak_node) == (Phase.BACKWARD, None)
