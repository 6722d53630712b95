"""A session through three batches, against one that is simulated at every batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from graphs import model_of
from models_on_disk import CONVNET
from session_graphs import session_of

from onnxmem.analysis.fitting.assessing import DemandCurve, FitRequest, fit
from onnxmem.analysis.fitting.footprints import footprint_of, request_of
from onnxmem.analysis.fitting.verdicts import Basis
from onnxmem.runtimes.assumed import NO_TERM, Assumed
from onnxmem.runtimes.base import AffineRun, Overheads, Runtime, RuntimeFailedError, RuntimeRun
from onnxmem.runtimes.onnxruntime.allocation.frames import FrameBinding, Session
from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession, arena_figures
from onnxmem.runtimes.onnxruntime.process.figures import HostProcess
from onnxmem.runtimes.onnxruntime.process.loading import arena_regions
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS
from onnxmem.runtimes.onnxruntime.session import SessionProgram, SessionRuntime
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings

MIB = 2**20
CHAIN = """agraph (float[N,17] x) => (y) {
    a = Concat <axis = 1> (x, x)  b = Concat <axis = 1> (x, a)  c = Relu(b)
    d = Concat <axis = 1> (a, c)  y = Neg(d)
}"""
CHAIN_SHAPES: Mapping[str, LoadShape | None] = {
    "x": ("N", 17), "a": ("N", 34), "b": ("N", 51), "c": ("N", 51), "d": ("N", 85), "y": ("N", 85)
}  # fmt: skip
DFT = """agraph (float[N,3,1] x) => (float[N,3,2] y) { y = DFT(x) }"""
"""Bluestein's algorithm takes two vectors for each line in turn."""


def test_the_block_follows_from_the_sizes_of_the_first_run() -> None:
    # a lies in the block while b and c do, which are one buffer; d takes the gap behind them.
    walked = [(batch, session_at(CHAIN, CHAIN_SHAPES, (batch, 17))) for batch in (2, 7, 13)]
    affine = affine_through(walked)
    assert affine is not None
    for batch, full in walked:
        runs = made_at(affine, batch).runs
        assert runs.pattern_bytes == full.recorded.runs.pattern_bytes > 0
        assert runs.later.program.labels == ("memory-pattern buffer", "y")
        assert runs.later.sizes.fixed_bytes.tolist() == [runs.pattern_bytes, 4 * 85 * batch]
        first, found = full.recorded.runs.plain, runs.plain
        assert found.sizes.fixed_bytes.tolist() == first.sizes.fixed_bytes.tolist()


def runtime_of(planned: PlannedSession) -> SessionRuntime:
    recorded = planned.recorded
    return SessionRuntime(
        name=next(name for name, each in PROVIDERS.items() if each == recorded.provider),
        optimized=recorded.graph.optimized,
        options=planned.options,
        context=NO_TERM,
        workspace=NO_TERM,
    )


def run_of(planned: PlannedSession) -> RuntimeRun:
    """The session of a file that is its own optimized graph."""
    recorded = planned.recorded
    process = HostProcess(recorded.graph.graph, 0, planned)
    resident = process.resident if recorded.provider.is_host else None
    made = SessionProgram.of(planned, recorded.runs, resident)
    return RuntimeRun(runtime_of(planned), made, Overheads())


def affine_through(walked: Sequence[tuple[int, PlannedSession]]) -> AffineRun | None:
    return AffineRun.through([(batch, run_of(planned)) for batch, planned in walked])


def made_at(affine: AffineRun, batch: int) -> SessionProgram:
    made = affine.at(batch).runtime_program
    assert isinstance(made, SessionProgram)
    return made


def session_at(
    text: str,
    shapes: Mapping[str, LoadShape | None],
    dims: tuple[int, ...],
    options: SessionOptions | None = None,
    runtime: str = "ort-cpu",
) -> PlannedSession:
    session = session_of(text, shapes, {"x": dims})
    return PlannedSession.of(session, options or SessionOptions(), PROVIDERS[runtime])


DEFAULT = SessionOptions()
OPTIONS = {
    "default": DEFAULT,
    "no pattern": SessionOptions(enable_mem_pattern=False),
    "as requested": SessionOptions(arena_extend_strategy="kSameAsRequested"),
}


@pytest.mark.parametrize("runtime", ["ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_each_batch_equals_a_full_computation(runtime: str, options: SessionOptions) -> None:
    def planned_at(batch: int) -> PlannedSession:
        return session_at(CHAIN, CHAIN_SHAPES, (1009 * batch, 17), options, runtime)

    affine = affine_through([(batch, planned_at(batch)) for batch in (1, 31, 61)])
    assert affine is not None
    for batch in range(1, 62, 3):
        full = planned_at(batch)
        figures, _ = arena_figures(full.recorded.graph, options, PROVIDERS[runtime])
        run, made, whole = affine.at(batch), made_at(affine, batch), run_of(full)
        arena = made.session.loaded_arena()
        assert made.serve_with(arena).out_of_memory_at is None
        assert arena.reserved_bytes == figures.held_steady_bytes
        assert arena_regions(arena) == figures.steady_regions
        replayed = run.replay()
        total_bytes = made.total_bytes(figures.held_steady_bytes, figures.steady_regions)
        assert replayed.total_bytes == total_bytes == whole.replay().total_bytes
        assert replayed.least_bytes == figures.base_bytes + figures.requested_peak_bytes
        for capacity_bytes in range(0, arena.reserved_bytes + MIB, 1 + arena.reserved_bytes // 7):
            assert run.taken_in(capacity_bytes) == whole.taken_in(capacity_bytes)


def masked(
    batch: int, runtime: str = "ort-cuda", options: SessionOptions = DEFAULT
) -> PlannedSession:
    """A session with a constant that scales with the batch, and one whose bytes do not."""
    text = f"""agraph (float[{batch},1009] x) => (y)
        <float[{batch},1009] mask, float[{1 + batch % 5},7] odd> {{
        a = Mul(x, mask) b = Neg(odd) y = Exp(a) }}"""
    shapes: dict[str, LoadShape | None] = {
        **dict.fromkeys("xay", (batch, 1009)), "b": (1 + batch % 5, 7)
    }  # fmt: skip
    return session_at(text, shapes, (batch, 1009), options, runtime)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_constants_that_scale_with_the_batch_are_affine_on_cuda(options: SessionOptions) -> None:
    affine = affine_through([(n, masked(n, options=options)) for n in (6, 26, 56)])
    assert affine is not None
    for batch in range(6, 57, 5):
        full = masked(batch, options=options)
        figures, _ = arena_figures(full.recorded.graph, options, PROVIDERS["ort-cuda"])
        assert affine.at(batch).replay().total_bytes == figures.held_steady_bytes


def test_constants_that_are_not_affine_are_rejected() -> None:
    assert affine_through([(n, masked(n)) for n in (6, 26, 59)]) is None
    on_cpu = [(n, masked(n, "ort-cpu")) for n in (6, 26, 56)]
    assert on_cpu[0][1].packed == on_cpu[1][1].packed
    assert affine_through(on_cpu) is not None


def test_a_kernel_with_one_pass_at_batch_1_has_another_program_there() -> None:
    shapes: dict[str, LoadShape | None] = {"x": ("N", 3, 1), "y": ("N", 3, 2)}
    walked = [(batch, session_at(DFT, shapes, (batch, 3, 1))) for batch in (1, 2, 7, 13)]
    assert affine_through([walked[each] for each in (0, 2, 3)]) is None
    affine = affine_through(walked[1:])
    assert affine is not None
    figures, _ = arena_figures(walked[2][1].recorded.graph, SessionOptions())
    total_bytes = made_at(affine, 7).total_bytes(figures.held_steady_bytes, figures.steady_regions)
    assert affine.at(7).replay().total_bytes == total_bytes


UNLIKE: dict[str, Callable[[int], PlannedSession]] = {
    "a size on no line": lambda batch: session_at(
        "agraph (float[N,17] x) => (y) { t = Transpose(x)  a = MatMul(x, t)  y = Exp(a) }",
        {"x": ("N", 17), "t": (17, "N"), "a": ("N", "N"), "y": ("N", "N")},
        (batch, 17),
    ),
    "an unknown size": lambda batch: session_at(
        "agraph (float[N,17] x) => (y) { y = NonZero(x) }",
        {"x": ("N", 17), "y": (2, None)},
        (batch, 17),
    ),
    "another plan": lambda batch: session_at(
        CHAIN, {**CHAIN_SHAPES, "b": (batch, 51) if batch == 3 else ("N", 51)}, (batch, 17)
    ),
}  # fmt: skip


@pytest.mark.parametrize("planned_at", UNLIKE.values(), ids=UNLIKE)
def test_a_session_that_is_not_affine_is_rejected(
    planned_at: Callable[[int], PlannedSession],
) -> None:
    assert affine_through([(batch, planned_at(batch)) for batch in (3, 5, 11)]) is None


def test_a_session_beyond_its_own_limit_is_reported() -> None:
    options = SessionOptions(gpu_mem_limit_bytes=MIB)
    walked = [
        (batch, session_at(CHAIN, CHAIN_SHAPES, (batch, 17), options, "ort-cuda"))
        for batch in (1, 500, 9001)
    ]
    affine = affine_through(walked)
    assert affine is not None
    assert affine.at(500).replay().total_bytes == MIB
    with pytest.raises(RuntimeFailedError, match="out of memory on a device without a limit"):
        affine.at(9001).replay()


@pytest.mark.parametrize("name", ["ort-cpu", "ort-cuda"])
def test_a_session_as_a_runtime_equals_the_compared_figure(name: str) -> None:
    settings = Settings(batch=7, asks_onnxruntime=False, cpu="avx512")
    request = request_of(model_of(CONVNET), settings)
    session, graph = request.session(name)
    runtime: Runtime = session
    run = RuntimeRun.of(runtime, graph)
    held = footprint_of(request, Basis(name))
    replayed = run.replay()
    assert replayed.total_bytes == held.total_bytes
    assert replayed.least_bytes == held.least_bytes
    assert runtime.allocator(7) is not None
    if name == "ort-cuda":
        assert run.taken_in(held.total_bytes) == held.total_bytes
        assert run.taken_in(held.least_bytes - 1) is None


def test_the_workspace_is_outside_the_arena() -> None:
    planned = session_at(CHAIN, CHAIN_SHAPES, (7, 17), runtime="ort-cuda")
    overheads = replace(runtime_of(planned), workspace=Assumed.exactly(101)).overheads(
        planned.recorded.graph.graph
    )
    assert overheads.served_bytes == ()
    assert overheads.outside_bytes == 101


@pytest.mark.parametrize(
    ("basis", "memory_bytes"), [(Basis.ORT_CUDA, 540 * MIB), (Basis.ORT_CPU, 80 * MIB)]
)
def test_a_search_plans_a_few_batches_and_replays_the_others(
    basis: Basis, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[object] = []
    open_frame = Session.open

    def open_counted(self: Session, graph: FrameBinding) -> object:
        sessions.append(self)
        return open_frame(self, graph)

    monkeypatch.setattr(Session, "open", open_counted)
    question = request_of(model_of(CONVNET), Settings(asks_onnxruntime=False, cpu="avx512"))
    setup = FitRequest(memory_bytes=memory_bytes, basis=basis)
    reach = fit([question], setup).max_batch
    assert reach is not None
    assert len(sessions) < 100 < reach.num_replayed
    curve = DemandCurve((question,), setup)
    curve.draw_lines(401)
    for batch in (1, 131, 400):
        held = curve.at(batch)
        assert held is not None
        assert curve.demand(batch) == replace(held.demand, taken_in=None)


GROUPED = """agraph (float[1,32,16,16,16] x, float[32,4,3,3,3] w) => (float[1,32,16,16,16] y) {
    y = Conv <group = 8, pads = [1, 1, 1, 1, 1, 1]> (x, w)
}"""


@pytest.mark.parametrize(("threads", "scratch_bytes"), [(1, 65_536), (2, 131_072), (8, 524_288)])
def test_each_thread_of_the_session_has_its_scratch(threads: int, scratch_bytes: int) -> None:
    """Measured with onnxruntime 1.32: 589,824, 655,360 and 1,048,576 B with the output."""
    shapes = {"x": (1, 32, 16, 16, 16), "w": (32, 4, 3, 3, 3), "y": (1, 32, 16, 16, 16)}
    inputs = {name: shapes[name] for name in ("x", "w")}
    figures, _ = arena_figures(
        session_of(GROUPED, shapes, inputs), SessionOptions(num_threads=threads)
    )
    assert figures.with_scratch_peak_bytes == 4 * 32 * 16**3 + scratch_bytes
