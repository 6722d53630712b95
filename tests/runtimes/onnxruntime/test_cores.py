"""Threads that take turns on the cores of a machine."""

from dataclasses import replace
from random import Random

import pytest
from graphs import model_of
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.decisions.simulate import ServedModel, node_seconds
from onnxmem.model.requests import listed_requests
from onnxmem.runtimes.onnxruntime.served import Cores, SessionGroup
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings


class Exact(Random):
    """Kernels take their mean time, and slices 3 ms."""

    def lognormvariate(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        del mu, sigma
        return 1.0

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def ends(count: int, times_ms: list[list[int]]) -> list[tuple[int, float]]:
    """Each event as it comes, with its thread and the time, of threads with these times."""
    cores, left = Cores(count, Exact()), [list(each) for each in times_ms]
    for number, own in enumerate(left):
        cores.compute(number, own.pop(0) / 1000)
    found = []
    while (thread := cores.next()) is not None:
        found.append((thread, round(cores.now * 1000, 6)))
        if left[thread]:
            cores.compute(thread, left[thread].pop(0) / 1000)
    return found


def test_a_thread_with_a_core_to_itself_never_waits() -> None:
    assert ends(2, [[2, 2], [3]]) == [(0, 2), (1, 3), (0, 4)]
    assert ends(1, [[5, 7]]) == [(0, 5), (0, 12)]


def test_a_thread_gives_its_core_to_those_that_wait_when_its_slice_is_over() -> None:
    """3 ms of the first, 3 ms of the second, 2 ms of the first, 1 ms of the second."""
    assert ends(1, [[5], [4]]) == [(0, 8), (1, 9)]


def test_a_thread_goes_on_within_its_slice() -> None:
    assert [thread for thread, _ in ends(1, [[1, 1], [1]])] == [0, 0, 1]


@given(
    st.integers(1, 5),
    st.lists(st.lists(st.integers(1, 17), min_size=1, max_size=4), min_size=1, max_size=6),
)
def test_no_core_idles_while_a_thread_waits(count: int, times_ms: list[list[int]]) -> None:
    found = ends(count, times_ms)
    assert len(found) == sum(map(len, times_ms))
    work_ms, longest_ms = sum(map(sum, times_ms)), max(map(sum, times_ms))
    last_ms = found[-1][1]
    assert max(work_ms / count, longest_ms) - 1e-6 <= last_ms
    # As of any schedule without idle cores (Graham 1966).
    assert last_ms <= work_ms / count + longest_ms * (1 - 1 / count) + 1e-6
    if count >= len(times_ms):
        assert last_ms == pytest.approx(longest_ms)


class Recorded(Cores):
    """Cores that keep the mean times that a thread is to compute."""

    def compute(self, thread: int, mean_seconds: float) -> None:
        means.append(mean_seconds)
        super().compute(thread, mean_seconds)


means: list[float] = []


def seconds_of_runs(options: SessionOptions, count: int) -> list[float]:
    """The time of each of equal requests, one after another."""
    text = """agraph (float[7,1009] x) => (float[7,1] y) {
        a = Concat <axis = 1> (x, x, x)
        y = ReduceMax <axes = [1]> (a)
    }"""
    request = request_of(model_of(text), Settings(runtimes=("ort-cpu",), asks_onnxruntime=False))
    served = ServedModel.of(request, listed_requests([{}]), options)
    means.clear()
    found: list[float] = []
    cores = Recorded(1, Random(0))  # noqa: S311 - a reproducible order
    for _ in SessionGroup.of(served.runs, 1).serve_at_once([()] * count, 1, cores):
        found.append(sum(means) - sum(found))
    return found


CONCATENATED = 4 * 7 * 3 * 1009


def test_memory_that_no_run_wrote_before_takes_time() -> None:
    first, second, third = seconds_of_runs(SessionOptions(enable_mem_pattern=False), 3)
    # The pause after a run's last event is before the next run.
    assert first - second + 1e-6 == pytest.approx((CONCATENATED + 4 * 7) / 2e9)
    assert second == pytest.approx(third)


@pytest.mark.parametrize(("threshold_bytes", "new_bytes"), [(None, 0), (65_536, CONCATENATED)])
def test_memory_that_a_shrink_returned_is_new_if_the_c_library_maps_it(
    threshold_bytes: int | None, new_bytes: int
) -> None:
    options = SessionOptions(
        enable_mem_pattern=False, arena_extend_strategy="kSameAsRequested", shrinks_arena=True
    )
    _, kept = seconds_of_runs(replace(options, shrinks_arena=False), 2)
    found = seconds_of_runs(replace(options, malloc_threshold_bytes=threshold_bytes), 3)
    assert found[1:] == pytest.approx([kept + new_bytes / 2e9] * 2)


def test_half_of_a_gru_is_done_before_its_second_direction_allocates() -> None:
    weights = "float[2,33,5] w, float[2,33,11] r"
    text = f"""agraph (float[7,3,5] x, {weights}) => (float[7,2,3,11] y) {{
        y = GRU <hidden_size = 11, direction = "bidirectional"> (x, w, r)
    }}"""
    request = request_of(model_of(text), Settings(runtimes=("ort-cpu",), asks_onnxruntime=False))
    served = ServedModel.of(request, listed_requests([{}]), SessionOptions())
    ((_, whole),) = node_seconds(served.graph).items()
    schedule = served.runs.schedule((), ())
    longest = sorted(zip(schedule.seconds, schedule.events, strict=True))[-2:]
    assert [seconds for seconds, _ in longest] == [pytest.approx(1e-6 + whole / 2)] * 2
    # The second direction has a reversed input and output beside its gates.
    reversed_bytes = {4 * 7 * 3 * 5, 4 * 7 * 3 * 11}
    (first, last) = sorted(schedule.events.index(event) for _, event in longest)
    between = {schedule.sizes[event] for event in schedule.events[first + 1 : last + 1]}
    assert reversed_bytes <= between
