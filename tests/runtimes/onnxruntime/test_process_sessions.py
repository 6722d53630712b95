"""Several sessions in a process: what is there once, and what each adds."""

from dataclasses import replace

import pytest
from graphs import model_of

from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.decisions.simulate import ServedModel, Serving
from onnxmem.model.requests import listed_requests
from onnxmem.runtimes.onnxruntime.process.baselines import NEWEST
from onnxmem.runtimes.onnxruntime.process.loading import arena_regions
from onnxmem.runtimes.onnxruntime.process.sessions import (
    CALLERS,
    HELD,
    SHARED_BYTES,
    SessionsMemory,
)
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings

LAYER = """agraph (float[N,1009] x) => (float[N,2003] y) <float[1009,2003] w> {
    y = MatMul(x, w)
}"""
WEIGHT_BYTES = 4 * 1009 * 2003
ROWS = listed_requests([{"N": 3}])


def memory(
    num_sessions: int, *, shares: bool = False, concurrency: int = 1, text: str = LAYER
) -> SessionsMemory:
    request = request_of(model_of(text), Settings(runtimes=("ort-cpu",), asks_onnxruntime=False))
    options = SessionOptions(shares_arena=shares)
    model = ServedModel.of(request, ROWS, options)
    serving = Serving(sessions=num_sessions, concurrency=concurrency, options=options)
    sessions = model.memory(serving, [(("N", 3),)]).sessions
    assert sessions is not None
    return sessions


def test_one_session_is_that_of_the_process_of_one() -> None:
    one = memory(1)
    regions = arena_regions(one.host.session.loaded_arena())
    resident = replace(one.host.resident, feed_bytes=0)
    assert one.total_bytes((regions,)) == resident.total_bytes(regions)
    assert sum(size for _, size in one.parts((regions,))) == one.total_bytes((regions,))
    assert one.load_peak_bytes == NEWEST.process_bytes + one.host.load_peak_bytes


def test_a_further_session_adds_its_records_and_its_packed_weights() -> None:
    """It packs the weight in the place that the first load freed, and nothing else is new."""
    totals = [memory(count).total_bytes(((),) * count) for count in (1, 2, 3)]
    parts = [dict(memory(count).parts(((),) * count)) for count in (1, 2)]
    packed = "prepacked weights"
    assert parts[1][packed] == 2 * parts[0][packed] > 2 * WEIGHT_BYTES
    assert WEIGHT_BYTES < totals[2] - totals[1] < 1.1 * WEIGHT_BYTES
    assert totals[0] > SHARED_BYTES


def test_sessions_that_share_their_weights_keep_one_packed_copy() -> None:
    """The program holds the weight; each load packs it, and all but the first free the copy."""
    # So large that the C library maps each block and returns it: no heap keeps what is freed.
    large = LAYER.replace("1009", "4099").replace("2003", "2053")
    large_bytes = 4 * 4099 * 2053
    for count in (1, 5):
        own = memory(count, text=large)
        shared = replace(own, shares_weights=True)
        arenas = ((),) * count
        before, after = dict(own.parts(arenas)), dict(shared.parts(arenas))
        packed = "prepacked weights"
        assert before[packed] == count * after[packed] == count * own.shared_packed_bytes
        assert HELD not in before
        assert after[HELD] == large_bytes
        saved_bytes = (count - 1) * own.shared_packed_bytes - large_bytes
        measured_bytes = own.total_bytes(arenas) - shared.total_bytes(arenas)
        assert measured_bytes == pytest.approx(saved_bytes, abs=count << 14)
        least_bytes = own.host.baseline.process_bytes + large_bytes + own.shared_packed_bytes
        assert least_bytes < shared.load_peak_bytes < own.load_peak_bytes + large_bytes


def test_a_weight_that_the_optimizer_made_is_packed_by_each_session() -> None:
    text = LAYER.replace("MatMul(x, w)", "MatMul(x, t)\n t = Neg(w)")
    assert memory(2).shared_packed_bytes > WEIGHT_BYTES
    assert memory(2, text=text).shared_packed_bytes == 0


def test_each_thread_that_runs_a_session_has_a_part_beside_the_main_one() -> None:
    alone, at_once = memory(2), memory(2, concurrency=3)
    arenas = ((), ())
    named = dict(at_once.parts(arenas))
    assert CALLERS not in dict(alone.parts(arenas))
    # Six threads, and one node in each run.
    assert named[CALLERS] == 6 * (NEWEST.thread_bytes + NEWEST.thread_node_bytes)
    assert at_once.total_bytes(arenas) - alone.total_bytes(arenas) == named[CALLERS]


def test_an_arena_that_all_sessions_share_is_counted_once() -> None:
    regions = arena_regions(memory(1).host.session.loaded_arena())
    for count in (2, 5):
        parts = dict(memory(count, shares=True).parts((regions,)))
        assert sum(parts.values()) == memory(count, shares=True).total_bytes((regions,))
        assert parts["nodes and kernels"] == count * memory(1).host.loaded[1].records_bytes


@pytest.mark.parametrize("shares", [False, True])
def test_many_sessions_grow_by_what_the_last_simulated_one_adds(*, shares: bool) -> None:
    totals = [
        memory(count, shares=shares).total_bytes(((),) * (1 if shares else count))
        for count in (7, 8, 9, 1000)
    ]
    step = totals[1] - totals[0]
    assert step > 0
    assert totals[2] - totals[1] == step
    assert totals[3] - totals[1] == 992 * step
    peaks = [memory(count, shares=shares).load_peak_bytes for count in (7, 8, 1000)]
    assert peaks == sorted(peaks)
