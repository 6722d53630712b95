"""The requests of a session, recorded at three batches, against runs of its plan at every batch."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from graphs import graph_of, model_of
from models_on_disk import CONVNET
from session_graphs import session_of

from onnxmem.allocators.bfc_arena import Arena
from onnxmem.analysis.fitting import Basis, FitRequest, fit, request_of
from onnxmem.analysis.fitting.answering import Footprints
from onnxmem.runtimes.onnxruntime.allocation.frames import Session
from onnxmem.runtimes.onnxruntime.allocation.opened import Opened
from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape, Planning, plan
from onnxmem.runtimes.onnxruntime.allocation.request_log import LoggedSession, Recorder
from onnxmem.runtimes.onnxruntime.memory import KERNELS
from onnxmem.runtimes.onnxruntime.prediction import Replay, ReplayError, arena_figures
from onnxmem.runtimes.onnxruntime.scratch import Scratch
from onnxmem.runtimes.onnxruntime.session_lines import SessionLines
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings

MIB = 2**20
MIXED = """agraph (float[7] x, string[3] s) => (w, y, e) <float[3] w> {
    a = Concat <axis = 0> (x, x)  b = Concat <axis = 0> (x, a)  u = Concat <axis = 0> (a, b)
    t = Identity(s)  e = Identity(t)  c = Exp(b)  d = Neg(c)  y = Exp(d)
}"""
"""A weight that is an output, a tensor that nobody reads, text, and buffers that die in turn."""
SCRATCH = Scratch((1009, 503, 2003), 1, (None, 2, None), per_pass=(307, 401), passes=2)
CHAIN = """agraph (float[N,17] x) => (y) {
    a = Concat <axis = 1> (x, x)  b = Concat <axis = 1> (x, a)  c = Relu(b)
    d = Concat <axis = 1> (a, c)  y = Neg(d)
}"""
CHAIN_SHAPES: Mapping[str, LoadShape | None] = {
    "x": ("N", 17), "a": ("N", 34), "b": ("N", 51), "c": ("N", 51), "d": ("N", 85), "y": ("N", 85)
}  # fmt: skip
DFT = """agraph (float[N,3,1] x) => (float[N,3,2] y) { y = DFT(x) }"""
"""Bluestein's algorithm takes two vectors for each line in turn."""


def mixed_session(arena: Arena, *, pattern: bool) -> Session:
    """A session of all that a plain run may request; every Exp takes scratch."""
    graph = graph_of(MIXED)
    made = plan(graph, Planning({name: tensor.shape for name, tensor in graph.tensors.items()}))
    none = Scratch()
    rule = {"Exp": SCRATCH}
    return Session(made, arena, lambda _, node: rule.get(node.op_type, none), pattern)


@pytest.mark.parametrize("pattern", [True, False])
def test_an_arena_is_the_same_by_the_log_and_by_the_plan(*, pattern: bool) -> None:
    recorder = Recorder()
    log = recorder.log_of(mixed_session(recorder, pattern=pattern))
    sizes_bytes = log.with_block(recorder.sizes_bytes)
    by_plan = mixed_session(Arena(), pattern=pattern)
    by_log = LoggedSession(Arena(), log, sizes_bytes)
    for number in range(3):
        samples = by_plan.run()
        by_log.run()
        assert by_log.arena.requested_peak_bytes == by_plan.arena.requested_peak_bytes
        assert by_log.arena.in_use_peak_bytes == by_plan.arena.in_use_peak_bytes
        assert by_log.arena.regions == by_plan.arena.regions
        assert by_log.arena.touched == by_plan.arena.touched
        assert by_log.arena.requested_bytes == 0
        if number == 0:
            most = max(sample.requested_bytes for sample in samples)
            assert log.requested_peak_bytes(sizes_bytes) == most
    if pattern:
        assert log.block is not None
        assert sizes_bytes[log.block] == by_plan.pattern_bytes > 0
    else:
        assert log.block is None
        assert not log.traced


def test_a_log_says_what_is_requested_and_released_in_order() -> None:
    graph = graph_of("agraph (float[7] x) => (y) { a = Exp(x)  b = Neg(a)  y = Exp(b) }")
    recorder = Recorder()
    session = Session(plan(graph, Planning({})), recorder, lambda _, __: Scratch())
    log = recorder.log_of(session)
    # a and b lie in the pattern; y is the caller's; a later run requests the block and y.
    assert log.first == (0, 1, ~0, 2, ~1, ~2)
    assert log.node_ends == (1, 2, 4)
    assert log.traced == (("a", 0), ("b", 1), ("a", None), ("b", None))
    assert log.later == (3, 4, ~3, ~4)
    assert log.block == 3
    assert log.with_block([257, 0, 1, -1, 1]) == [257, 0, 1, 512, 1]
    assert log.with_block([257, 11, 1, -1, 1]) == [257, 11, 1, 768, 1]
    assert log.requested_peak_bytes([257, 11, 1, -1, 1]) == 268


def replay_of(
    text: str,
    shapes: Mapping[str, LoadShape | None],
    dims: tuple[int, ...],
    options: SessionOptions | None = None,
    runtime: str = "ort-cpu",
) -> Replay:
    session = session_of(text, shapes, {"x": dims})
    return Replay.of(session, options or SessionOptions(), KERNELS[runtime])


DEFAULT = SessionOptions()
OPTIONS = {
    "default": DEFAULT,
    "no pattern": SessionOptions(enable_mem_pattern=False),
    "as requested": SessionOptions(arena_extend_strategy="kSameAsRequested"),
}


@pytest.mark.parametrize("runtime", ["ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_each_batch_is_as_one_that_is_worked_out_in_full(
    runtime: str, options: SessionOptions
) -> None:
    def replay_at(batch: int) -> Replay:
        return replay_of(CHAIN, CHAIN_SHAPES, (1009 * batch, 17), options, runtime)

    lines = SessionLines.through([(batch, replay_at(batch)) for batch in (1, 31, 61)])
    assert lines is not None
    for batch in range(1, 62, 3):
        full = replay_at(batch)
        figures, _ = arena_figures(full.graph, options, KERNELS[runtime])
        session = lines.at(batch)
        steady = session.steady()
        assert steady.held_bytes == figures.held_steady_bytes
        assert steady.regions == figures.steady_regions
        requested_peak_bytes = figures.base_bytes + figures.requested_peak_bytes
        assert steady.requested_peak_bytes == requested_peak_bytes
        for capacity_bytes in range(0, steady.held_bytes + MIB, 1 + steady.held_bytes // 7):
            is_out_of_memory = full.pressure(capacity_bytes).is_out_of_memory
            assert session.runs_in(capacity_bytes) is not is_out_of_memory


def masked(batch: int, runtime: str = "ort-cuda", options: SessionOptions = DEFAULT) -> Replay:
    """A session with a constant that follows the batch, and one of which the bytes do not."""
    text = f"""agraph (float[{batch},1009] x) => (y)
        <float[{batch},1009] mask, float[{1 + batch % 5},7] odd> {{
        a = Mul(x, mask) b = Neg(odd) y = Exp(a) }}"""
    shapes: dict[str, LoadShape | None] = {
        **dict.fromkeys("xay", (batch, 1009)), "b": (1 + batch % 5, 7)
    }  # fmt: skip
    return replay_of(text, shapes, (batch, 1009), options, runtime)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_constants_that_follow_the_batch_are_lines_on_cuda(options: SessionOptions) -> None:
    lines = SessionLines.through([(n, masked(n, options=options)) for n in (6, 26, 56)])
    assert lines is not None
    for batch in range(6, 57, 5):
        full = masked(batch, options=options)
        figures, _ = arena_figures(full.graph, options, KERNELS["ort-cuda"])
        assert lines.at(batch).steady().held_bytes == figures.held_steady_bytes


def test_constants_on_no_line_draw_none() -> None:
    assert SessionLines.through([(n, masked(n)) for n in (6, 26, 59)]) is None
    on_cpu = [(n, masked(n, "ort-cpu")) for n in (6, 26, 56)]
    assert on_cpu[0][1].packed == on_cpu[1][1].packed
    assert SessionLines.through(on_cpu) is not None


def test_a_kernel_that_goes_over_its_lines_once_at_batch_1_has_another_log_there() -> None:
    shapes: dict[str, LoadShape | None] = {"x": ("N", 3, 1), "y": ("N", 3, 2)}
    walked = [(batch, replay_of(DFT, shapes, (batch, 3, 1))) for batch in (1, 2, 7, 13)]
    assert SessionLines.through([walked[each] for each in (0, 2, 3)]) is None
    lines = SessionLines.through(walked[1:])
    assert lines is not None
    figures, _ = arena_figures(walked[2][1].graph, SessionOptions())
    assert lines.at(7).steady().held_bytes == figures.held_steady_bytes


UNLIKE: dict[str, Callable[[int], Replay]] = {
    "a size on no line": lambda batch: replay_of(
        "agraph (float[N,17] x) => (y) { t = Transpose(x)  a = MatMul(x, t)  y = Exp(a) }",
        {"x": ("N", 17), "t": (17, "N"), "a": ("N", "N"), "y": ("N", "N")},
        (batch, 17),
    ),
    "an unknown size": lambda batch: replay_of(
        "agraph (float[N,17] x) => (y) { y = NonZero(x) }",
        {"x": ("N", 17), "y": (2, None)},
        (batch, 17),
    ),
    "another plan": lambda batch: replay_of(
        CHAIN, {**CHAIN_SHAPES, "b": (batch, 51) if batch == 3 else ("N", 51)}, (batch, 17)
    ),
}  # fmt: skip


@pytest.mark.parametrize("replay_at", UNLIKE.values(), ids=UNLIKE)
def test_no_lines_are_drawn_where_they_would_not_hold(
    replay_at: Callable[[int], Replay],
) -> None:
    assert SessionLines.through([(batch, replay_at(batch)) for batch in (3, 5, 11)]) is None


def test_an_arena_that_does_not_get_by_says_so() -> None:
    options = SessionOptions(gpu_mem_limit_bytes=MIB)
    walked = [
        (batch, replay_of(CHAIN, CHAIN_SHAPES, (batch, 17), options, "ort-cuda"))
        for batch in (1, 500, 9001)
    ]
    lines = SessionLines.through(walked)
    assert lines is not None
    assert lines.at(500).steady().held_bytes == MIB
    with pytest.raises(ReplayError, match="does not get by with 1,048,576 bytes"):
        lines.at(9001).steady()


@pytest.mark.parametrize(
    ("basis", "memory_bytes"), [(Basis.ORT_CUDA, 540 * MIB), (Basis.ORT_CPU, 80 * MIB)]
)
def test_a_search_runs_the_plan_at_a_few_batches_and_replays_the_others_by_their_requests(
    basis: Basis, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    open_frame = Session.open

    def open_counted(self: Session, graph: Opened) -> object:
        opened.append(self)
        return open_frame(self, graph)

    monkeypatch.setattr(Session, "open", open_counted)
    question = request_of(model_of(CONVNET), Settings(asks_onnxruntime=False, cpu="avx512"))
    setup = FitRequest(memory_bytes=memory_bytes, basis=basis)
    reach = fit([question], setup).reach
    assert reach is not None
    assert len(opened) < 100 < reach.num_replayed
    holdings = Footprints((question,), setup)
    holdings.draw_lines(401)
    for batch in (1, 131, 400):
        held = holdings.at(batch)
        assert held is not None
        assert holdings.demand(batch) == replace(held.demand, runs_in=None)
