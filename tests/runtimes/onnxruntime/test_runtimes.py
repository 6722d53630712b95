"""What a runtime takes: predicted from its graph, asked for by settings, put into an analysis."""

import contextlib
import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import onnx
import pytest
from graphs import model_of
from measured_runs import MEASUREMENT
from models_on_disk import CONVNET, MYSTERY, write_model
from paths import DATA
from robustness.test_mutants import MODELS as MUTATED
from robustness.test_mutants import mutant
from session_graphs import GAP, GAP_SHAPES, gap_session, session_of

from onnxmem import Settings, analyze
from onnxmem.cli import main
from onnxmem.errors import Finding, OnnxmemError
from onnxmem.measuring import measuring
from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import BackendUnavailableError, MeasureSettings
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile, load
from onnxmem.runtimes import from_settings
from onnxmem.runtimes.assumed import ORT_CONTEXT
from onnxmem.runtimes.from_settings import advise, optimized_file, predict, runtime_memories
from onnxmem.runtimes.onnxruntime import memory, providers
from onnxmem.runtimes.onnxruntime.advice import combined_choices
from onnxmem.runtimes.onnxruntime.kernels.prepacking import Prepacked, Reserve, SessionFacts
from onnxmem.runtimes.onnxruntime.memory import VERIFIED, RuntimeMemory, SessionRequest
from onnxmem.runtimes.onnxruntime.prediction import Unknowns, arena_figures
from onnxmem.runtimes.onnxruntime.providers import CPU, CUDA, ArenaInitializers, CudaAssumptions
from onnxmem.runtimes.onnxruntime.session_graph import optimization
from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel
from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt, SessionConfig
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import RUNTIMES

MIB = 2**20
TRUTH = DATA / "onnxruntime"


# Replayed, computed by hand.


def test_the_arena_of_a_session_is_replayed() -> None:
    """Bytes: a and e 4036, c 8012, s, t and y 4; weights 16. e takes the place of a, t that of s.

    Chunks of 4096, 256 and 8192 bytes are in use at once, besides the weights, in one region of a
    MiB; the second run's block of 12,544 lies in it, and y behind.
    """
    figures, unknown = arena_figures(gap_session(), SessionOptions())
    told = [sample.requested_bytes - 16 for sample in figures.nodes]
    assert told == [4036, 4040, 12_052, 12_052, 4040, 4040]
    assert figures.base_bytes == 16
    assert figures.requested_peak_bytes == figures.with_scratch_peak_bytes == 12_052
    assert figures.pattern_block_bytes == 12_544
    assert figures.in_use_peak_bytes == 12_560
    assert figures.held_bytes == figures.held_steady_bytes == MIB + 16
    assert figures.resident_peak_bytes == 12_548
    assert figures.peak_node is figures.nodes[2].node
    assert unknown == Unknowns((), Counter(), ())
    assert list(unknown.findings()) == []
    alive = [(live.label, live.size_bytes) for live in figures.replay.live_set(figures.peak)]
    assert alive == [("c", 8012), ("a", 4036), ("s", 4)]
    assert figures.peak.node == figures.nodes[2].node.name
    assert figures.replay.reserved is not None
    assert figures.replay.reserved.peak_bytes == MIB + 16


def test_a_session_without_reuse_pattern_and_doubling_is_replayed() -> None:
    options = SessionOptions(
        enable_mem_reuse=False, enable_mem_pattern=False, arena_extend_strategy="kSameAsRequested"
    )
    figures, _ = arena_figures(gap_session(), options)
    told = [sample.requested_bytes - 16 for sample in figures.nodes]
    assert told == [4036, 4040, 8016, 8016, 4040, 4040]
    assert figures.requested_peak_bytes == 8016
    assert figures.in_use_peak_bytes == 16 + 256 + 8192
    assert figures.held_bytes == figures.held_steady_bytes == 16 + 4096 + 256 + 8192
    assert figures.pattern_block_bytes == 12_544  # of a session that has one


def test_scratch_of_a_kernel_is_added_at_its_node() -> None:
    """Softmax along another axis than the last: the input and the output once more."""
    text = "agraph (float[7,11] x) => (float[7,11] y) { h = Exp(x)  y = Softmax <axis = 0> (h) }"
    shapes = dict.fromkeys("xhy", (7, 11))
    figures, _ = arena_figures(session_of(text, shapes, {"x": (7, 11)}), SessionOptions())
    assert [sample.scratch_bytes for sample in figures.nodes] == [0, 616]
    assert figures.requested_peak_bytes == 616
    assert figures.with_scratch_peak_bytes == 616 + 616
    assert figures.in_use_peak_bytes == 4 * 512


def test_on_a_gpu_weights_are_in_the_arena_and_scratch_is_cudnns() -> None:
    text = """agraph (float[7,11] x) => (float[7,11] y) <float[7,11] v, float[11] w> {
        h = Add(x, v)  g = Mul(h, w)  y = Softmax <axis = 0> (g)
    }"""
    session = session_of(text, dict.fromkeys("xhgy", (7, 11)), {"x": (7, 11)})
    figures, unknown = arena_figures(session, SessionOptions(), CUDA)
    assert figures.base_bytes == 308 + 44  # each weight is requested by itself
    # The input is copied to the device, and its copy lives as long as the run.
    assert figures.requested_peak_bytes == figures.with_scratch_peak_bytes == 3 * 308
    assert figures.held_bytes == MIB
    assert not unknown.scratch
    apart, _ = arena_figures(session, SessionOptions(enable_mem_pattern=False), CUDA)
    assert (apart.base_bytes, apart.held_bytes) == (figures.base_bytes, MIB)


def test_unknown_sizes_are_left_out_and_reported() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
    agraph (float[7] x, int64 n, bool c) => (float[7] y, float[7] z) {
        h = acme.Mystery(x)
        k = acme.Mystery(h)
        y = Add(x, k)
        [turns] z = Loop(n, c, x) <
            body = turn (int64 i, bool o, float[7] v) => (bool p, float[7] u) {
                p = Identity(o)
                q = acme.Riddle(v)
                u = Add(v, q)
            }
        >
    }"""
    inputs = {"x": (7,), "n": (), "c": ()}
    _, unknown = arena_figures(session_of(text, {}, inputs), SessionOptions())
    assert unknown == Unknowns(
        ("h", "k", "turns/body/q"),
        Counter({"Mystery": 2, "Riddle": 1}),
        ("turns",),
        deciding={"turns": ("n", "c")},
    )
    told = "; --value n=VALUE --value c=VALUE would decide"
    assert [(finding.code, finding.message) for finding in unknown.findings()] == [
        (
            "unknown_runtime_tensors",
            "tensors of unknown size, left out: 'h', 'k', 'turns/body/q'",
        ),
        (
            "unknown_scratch",
            "operators whose scratch is unknown, counted as 0 bytes: 'Mystery', 'Riddle'",
        ),
        (
            "unknown_trips",
            f"counted once, because their number of iterations is unknown: 'turns'{told}",
        ),
    ]


def test_a_branch_that_depends_on_data_is_reported() -> None:
    text = """agraph (float[7] x, bool b) => (float[7] y) {
        [choose] y = If(b) <
            then_branch = one () => (float[7] t) { t = Exp(x) },
            else_branch = two () => (float[7] e) { p = Exp(x)  e = Exp(p) }
        >
    }"""
    figures, unknown = arena_figures(session_of(text, {}, {"x": (7,), "b": ()}), SessionOptions())
    assert unknown.branches == ("choose",)
    assert [sample.node.op_type for sample in figures.nodes] == ["Exp", "Exp", "If"]
    (finding,) = unknown.findings()
    assert finding == Finding(
        "unknown_branches",
        "the larger branch counts, because the condition is unknown: 'choose'; "
        "--value b=VALUE would decide",
    )


def test_an_empty_graph_takes_its_weights() -> None:
    text = (
        "agraph (float[7] x) => (float[3] y) { y = Constant <value_floats = [2.0, 3.0, 5.0]> () }"
    )
    figures, _ = arena_figures(session_of(text, {"y": (3,)}, {"x": (7,)}), SessionOptions())
    assert (figures.nodes, figures.peak_node) == ((), None)
    assert figures.requested_peak_bytes == figures.with_scratch_peak_bytes == 0
    assert figures.base_bytes == 12


# What of the weights lies in the arena.


def test_packed_weights_are_reserved_or_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = (
        Prepacked("one", "a", 101, is_reserved=True, drops_original=True),
        Prepacked("two", "b", 103, is_reserved=False, drops_original=True),
        Prepacked("three", "c", 107, is_reserved=True, drops_original=False),
    )
    small = (Reserve("d", 13),)
    graph = gap_session().graph
    seen = []

    def reserves(given: object, packs: object) -> tuple[Reserve, ...]:
        assert given is graph
        seen.append(packs)
        return small

    monkeypatch.setattr(providers, "prepacked", lambda *_: packed)
    monkeypatch.setattr(providers, "initializer_reserves", reserves)
    made = CPU.packing(graph, SessionOptions(), SessionFacts())
    assert made == ArenaInitializers((101, 107, 13), (103,))
    without = CPU.packing(graph, SessionOptions(disable_prepacking=True), SessionFacts())
    assert without == ArenaInitializers((13,), ())
    assert seen == [packed, ()]


def test_the_arena_starts_with_the_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = ArenaInitializers((101, 107), (2 * MIB + 1,))
    monkeypatch.setattr(type(CPU), "packing", lambda *_: packed)
    figures, _ = arena_figures(gap_session(), SessionOptions())
    assert figures.base_bytes == 208 + 2 * MIB + 1
    assert figures.requested_peak_bytes == 12_052
    # Doubled until the weight fits, which takes the whole region; the buffers get another.
    assert figures.held_bytes == 208 + 4 * MIB + 4 * MIB
    assert figures.in_use_peak_bytes == 208 + 4 * MIB + 12_544
    assert figures.pattern_block_bytes == 12_544


# A runtime's figures.


def gap_optimized(
    graph_optimizer: str = "onnxmem", findings: tuple[Finding, ...] = ()
) -> OptimizedModel:
    return OptimizedModel(
        model_of(GAP),
        {"": GAP_SHAPES},
        True,  # noqa: FBT003 - what is looked for
        "all",
        graph_optimizer,
        findings=findings,
    )


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[SessionConfig]:
    """Records the requested session configurations; every graph is that of ``GAP``."""
    asked: list[SessionConfig] = []

    def optimized_model(_: ModelAt, config: SessionConfig) -> OptimizedModel:
        asked.append(config)
        return gap_optimized()

    def optimized_together(
        model: ModelAt, together: Sequence[SessionConfig]
    ) -> dict[SessionConfig, OptimizedModel]:
        return {each: optimized_model(model, each) for each in together}

    monkeypatch.setattr(memory, "optimized_model", optimized_model)
    monkeypatch.setattr(memory, "optimized_together", optimized_together)
    monkeypatch.setattr(from_settings, "optimized_model", optimized_model)
    return asked


@pytest.fixture
def model() -> ModelAt:
    file = load(model_of(GAP))
    prepared = prepare(file)
    return ModelAt(file, prepared, build(prepared, Request()))


@pytest.mark.usefixtures("configs")
def test_figures_of_a_cpu_have_no_gpu_terms(model: ModelAt) -> None:
    found = memory.session_memory(memory.SessionGraphs(model, SessionRequest()))
    assert (found.name, found.graph, found.graph_optimizer) == ("ort-cpu", "ort-all", "onnxmem")
    assert (found.context_bytes, found.workspace_bytes) == (None, None)
    assert found.arena.requested_peak_bytes == 12_052
    assert found.own.resident_bytes == found.arena.resident_peak_bytes == 12_548
    assert found.own.options == SessionOptions(level="all")
    assert len(found.advice) == 8
    assert found.findings == ()


@pytest.mark.usefixtures("configs")
@pytest.mark.parametrize(
    ("cuda", "context_bytes", "workspace_bytes"),
    [(CudaAssumptions(), ORT_CONTEXT.size_bytes, None), (CudaAssumptions(3, 5), 3, 5)],
)
def test_terms_of_a_gpu_can_be_set(
    model: ModelAt, cuda: CudaAssumptions, context_bytes: int, workspace_bytes: int | None
) -> None:
    found = memory.session_memory(
        memory.SessionGraphs(model, SessionRequest(name="ort-cuda", cuda=cuda))
    )
    assert (found.context_bytes, found.workspace_bytes) == (context_bytes, workspace_bytes)
    assert found.arena.base_bytes == 16


def test_settings_of_the_session_are_replayed(model: ModelAt, configs: list[SessionConfig]) -> None:
    options = SessionOptions(enable_mem_reuse=False, fixed_dims=True)
    question = SessionRequest(graph="raw", options=options, asks_onnxruntime=False)
    found = memory.session_memory(memory.SessionGraphs(model, question))
    assert found.arena.requested_peak_bytes == 8016
    assert configs == [SessionConfig("off", fixed_dims=True, asks_onnxruntime=False)]
    assert found.own.options == replace(options, level="off")


@pytest.mark.parametrize(
    ("name", "graph", "level"),
    [
        ("ort-cpu", "raw", "off"),
        ("ort-cpu", "ort-basic", "basic"),
        ("ort-cpu", "ort-extended", "extended"),
        ("ort-cpu", "ort-all", "all"),
        ("ort-cuda", "raw", "off"),
        ("ort-cuda", "ort-extended", "extended"),
        ("ort-cuda", "ort-all", "all"),
    ],
)
def test_the_graph_of_a_session_depends_on_its_provider(name: str, graph: str, level: str) -> None:
    config = SessionConfig(level, provider="cuda" if name == "ort-cuda" else "cpu")
    assert SessionRequest(name=name, graph=graph).config() == config


@pytest.mark.parametrize(
    ("graph_optimizer", "verified"),
    [
        ("onnxmem", None),
        ("onnxruntime 1.29.0", None),
        ("onnxruntime 1.30.0", None),
        ("onnxruntime 1.31.1", None),
        ("onnxruntime 1.32.0", None),
        ("onnxruntime 1.28.1", "on 1.29 to 1.32"),
        ("onnxruntime 1.33.0", "up to 1.32"),
        ("onnxruntime 1.310.1", "up to 1.32"),
        ("onnxruntime 1.31.0.dev20260101001", "on 1.29 to 1.32"),
    ],
)
def test_a_version_without_verified_rules_is_reported(
    model: ModelAt, monkeypatch: pytest.MonkeyPatch, graph_optimizer: str, verified: str | None
) -> None:
    before = Finding("emulated_optimizer", "onnxruntime is not installed")
    proto = model_of(GAP.replace("y = ReduceMax(e)", "r = ReduceMax(e)  y = Relu(r)"))
    made = replace(gap_optimized(graph_optimizer, (before,)), proto=proto)
    monkeypatch.setattr(memory, "optimized_model", lambda *_: made)
    first, *others = memory.session_memory(memory.SessionGraphs(model, SessionRequest())).findings
    assert first == before
    text = f"{graph_optimizer} is installed; the rules of Relu were verified {verified}"
    assert others == ([Finding("unverified_runtime", text)] if verified else [])


def test_the_versions_are_those_that_were_compared() -> None:
    compared = json.loads((TRUTH / "versions.json").read_text())["versions"]
    assert sorted(version.rpartition(".")[0] for version in compared) == list(VERIFIED)


# Asked for by settings.


def questions_of(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[SessionRequest]:
    asked: list[SessionRequest] = []

    def session_memory(sessions: memory.SessionGraphs) -> str:
        asked.append(sessions.request)
        return sessions.request.name

    monkeypatch.setattr(from_settings, "session_memory", session_memory)
    file = load(model_of(GAP))
    bound = build(prepare(file), Request())
    names = tuple(map(str, runtime_memories(file, bound, settings)))
    assert names == settings.runtimes
    return asked


def test_each_requested_runtime_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(runtimes=("ort-cuda", "ort-cpu"))
    terms = CudaAssumptions()
    assert questions_of(settings, monkeypatch) == [
        SessionRequest(name="ort-cuda", cuda=terms),
        SessionRequest(name="ort-cpu", cuda=terms),
    ]
    settings = Settings(
        runtimes=("ort-cuda",),
        graph="ort-basic",
        fixed_dims=True,
        cuda_context_bytes=0,
        cuda_workspace_bytes=5,
        asks_onnxruntime=False,
    )
    assert questions_of(settings, monkeypatch) == [
        SessionRequest(
            name="ort-cuda",
            graph="ort-basic",
            options=SessionOptions(fixed_dims=True),
            cuda=CudaAssumptions(0, 5),
            asks_onnxruntime=False,
        )
    ]


def test_without_a_requested_runtime_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    file = load(model_of(GAP))
    bound = build(prepare(file), Request())
    monkeypatch.setattr(from_settings, "prepare", None)
    assert runtime_memories(file, bound, Settings()) == ()


def test_a_prediction_is_at_the_requested_dims(configs: list[SessionConfig]) -> None:
    file = load(model_of(GAP.replace("float[1] x", "float[N] x")))
    question = SessionRequest(graph="raw", asks_onnxruntime=False)
    found = predict(file, Request(shapes={"x": (1,)}), question)
    assert isinstance(found, RuntimeMemory)
    assert configs == [question.config()]


def test_a_graph_is_created_once_for_all_settings_that_share_it(
    configs: list[SessionConfig],
) -> None:
    file = load(model_of(GAP.replace("float[1] x", "float[N] x")))
    found = advise(file, Settings(runtimes=("ort-cpu",), asks_onnxruntime=False, dims={"N": 1}))
    levels = ("all", "off", "basic", "extended")
    others = {SessionConfig(level, asks_onnxruntime=False) for level in levels}
    fixed = SessionConfig("all", fixed_dims=True, asks_onnxruntime=False)
    assert set(configs) == {*others, fixed}
    assert len(configs) == 5
    names = [choice.changes for choice in found.singles]
    assert ("fixed dims",) in names
    assert found.runtime.own.resident_bytes == 12_548
    line = next(choice.lines for choice in found.singles if choice.changes == ("fixed dims",))
    assert line == ("options.add_free_dimension_override_by_name('N', 1)",)


def test_advice_for_a_gpu_is_on_graphs_of_cuda(configs: list[SessionConfig]) -> None:
    found = advise(load(model_of(GAP)), Settings(runtimes=("ort-cuda",)))
    assert {config.level for config in configs} == {"off", "basic", "extended", "all"}
    assert {config.provider for config in configs} == {"cuda"}
    own = next(choice for choice in found.singles if not choice.changes)
    assert own.options == found.runtime.own.options
    assert own.resident_bytes == found.runtime.own.resident_bytes


HUGE = "agraph (float[4000000000000000000] x) => (y) { a = Exp(x)  b = Exp(a)  y = Exp(b) }"


def test_a_model_too_large_for_an_arena_does_not_affect_other_figures() -> None:
    analysis = analyze(model_of(HUGE), runtimes=RUNTIMES, graph="raw", asks_onnxruntime=False)
    assert analysis.runtimes == ()
    assert analysis.total_bytes == 3 * 16 * 10**18
    assert analysis.findings == tuple(
        Finding(
            "runtime_failed",
            f"{name} failed: the buffers of a run exceed the address space",
        )
        for name in RUNTIMES
    )


def test_a_model_too_large_for_an_arena_is_partial_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "huge.onnx", HUGE)
    line = "huge.onnx --runtime ort-cpu --graph raw --emulate-optimizer --json"
    assert main(line.split()) == 3
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["models"]
    assert (row["status"], row["runtime"], row["runtimes"]) == ("partial", None, [])
    assert err.startswith("error: huge.onnx: runtime_failed: ort-cpu failed: ")
    assert err.count("\n") == 1
    assert main(["advise", *line.split()]) == 3
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["models"]
    assert (row["status"], row["error"]["code"]) == ("error", "replay")


RIDDLE = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
    agraph (float[7] x) => (float[7] y) { y = acme.Riddle(x) }"""


def test_incomplete_figures_of_a_runtime_make_the_status_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is declared, so the graph's own figures are complete."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "riddle.onnx", RIDDLE)
    found = analyze(tmp_path / "riddle.onnx", runtimes=("ort-cpu",), asks_onnxruntime=False)
    assert (found.is_whole, found.partial_runtimes, found.status) == (True, RUNTIMES[:1], "partial")
    assert analyze(tmp_path / "riddle.onnx").status == "ok"
    line = "riddle.onnx --runtime ort-cpu --emulate-optimizer --strict"
    assert main(line.split()) == 3
    out, err = capsys.readouterr()
    told = "lower bounds: tensors or scratch of unknown size are left out"
    assert f" warning the figures of ort-cpu are {told} " in " ".join(out.split())
    assert "see Notes" in err


@pytest.mark.parametrize("place", range(len(MUTATED)))
def test_the_session_of_a_broken_model_is_replayed_or_rejected(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its graph, and without an optimizer, which has its own tests."""
    monkeypatch.setattr(optimization, "optimized", lambda proto, *_, **__: copy_of(proto))
    draw = random.Random(place)  # noqa: S311 - any fixed draw will do
    for _ in range(12):
        model = mutant(draw, MUTATED[place])
        with contextlib.suppress(OnnxmemError):
            found = analyze(model, runtimes=RUNTIMES, graph="raw", asks_onnxruntime=False)
            failed = [each for each in found.findings if each.code == "runtime_failed"]
            assert len(found.runtimes) + len(failed) in {0, 2}
            assert all(size >= 0 for each in found.runtimes for size in whole_numbers(each))


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def whole_numbers(runtime: RuntimeMemory) -> list[int]:
    arena = runtime.arena
    return [value for name in arena.__slots__ if isinstance(value := getattr(arena, name), int)]


@pytest.mark.parametrize("graph", [None, "raw"])
def test_figures_are_for_the_file_by_default(
    graph: str | None, configs: list[SessionConfig]
) -> None:
    file = load(model_of(GAP))
    assert optimized_file(file, Settings(graph=graph)) == (file, ())
    assert configs == []


def test_figures_can_be_for_the_optimized_graph(configs: list[SessionConfig]) -> None:
    file = ModelFile("net.onnx", model_of(GAP), 7919)
    settings = Settings(graph="ort-extended", fixed_dims=True, asks_onnxruntime=False)
    made, findings = optimized_file(file, settings)
    assert configs == [SessionConfig("extended", fixed_dims=True, asks_onnxruntime=False)]
    assert (made.path, made.file_bytes) == ("net.onnx", 7919)
    text = "figures are for the graph optimized by onnxmem at level all"
    assert findings == (Finding("optimized_graph", text),)


# In an analysis.

SYMBOLS = """agraph (float[N,7] x, float[M,7] z) => (float[1,1] y) <int64[2] m = {1, 1009}> {
    a = Exp(x)  s = ReduceMax(a)  c = Expand(s, m)  t = ReduceMax(c)  e = Add(z, t)
    y = ReduceMax(e)
}"""
"""``e`` is as large as ``a`` where N and M are one number, and known to be where they are fixed."""


@pytest.mark.parametrize(("fixed_dims", "peak_bytes"), [(False, 4 + 4036), (True, 140 + 4 + 4036)])
def test_symbols_of_equal_value_are_not_known_to_be_equal(
    peak_bytes: int, *, fixed_dims: bool
) -> None:
    analysis = analyze(
        model_of(SYMBOLS),
        dims={"N": 5, "M": 5},
        runtimes=("ort-cpu", "ort-cuda"),
        graph="raw",
        fixed_dims=fixed_dims,
        asks_onnxruntime=False,
    )
    cpu, cuda = analysis.runtimes
    assert (cpu.name, cuda.name) == ("ort-cpu", "ort-cuda")
    assert cpu.arena.requested_peak_bytes == peak_bytes
    assert cuda.arena.requested_peak_bytes == peak_bytes + 2 * 140  # with copies of the inputs
    assert cpu.arena.peak_node is not None
    assert cpu.arena.peak_node.op_type == "Expand"
    assert (cpu.arena.base_bytes, cuda.arena.base_bytes) == (16, 0)  # a shape is on the host
    assert (cpu.graph_optimizer, cpu.graph, cpu.findings) == ("onnxmem", "raw", ())
    assert analysis.settings.runtimes == ("ort-cpu", "ort-cuda")


def test_figures_of_a_runtime_are_the_same_if_its_graph_is_named() -> None:
    """Dims that are fixed at load stay fixed, though the optimized graph has no symbols left."""
    plain, named = (
        analyze(
            model_of(SYMBOLS),
            dims={"N": 5, "M": 5},
            runtimes=("ort-cpu",),
            graph=graph,
            fixed_dims=True,
            asks_onnxruntime=False,
        )
        for graph in (None, "ort-all")
    )
    figures = [each.runtimes[0].arena.requested_peak_bytes for each in (plain, named)]
    assert figures == [140 + 4 + 4036] * 2


def test_another_batch_scales_the_figures_of_a_runtime() -> None:
    text = "agraph (float[N,7] x) => (float[N,7] y) { h = Exp(x)  y = Exp(h) }"
    for batch in (3, 11):
        analysis = analyze(
            model_of(text), batch=batch, runtimes=("ort-cpu",), graph="raw", asks_onnxruntime=False
        )
        (runtime,) = analysis.runtimes
        assert runtime.arena.requested_peak_bytes == 2 * 28 * batch
        again = analysis.at(batch=5)
        assert again.runtimes[0].arena.requested_peak_bytes == 2 * 28 * 5


def test_figures_are_for_the_requested_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has three nodes; the placeholder for an optimizer leaves one."""
    model = model_of(
        "agraph (float[N,7] x) => (float[N,7] y) { a = Exp(x)  b = Exp(a)  y = Exp(b) }"
    )
    smaller = model_of("agraph (float[N,7] x) => (float[N,7] y) { y = Exp(x) }")

    def optimized_model(given: ModelAt, config: SessionConfig) -> OptimizedModel:
        assert [value.name for value in given.file.proto.graph.input] == ["x"]
        shapes: Mapping[str, tuple[str | int, ...]] = dict.fromkeys("xy", ("N", 7))
        proto = copy_of(smaller)
        return OptimizedModel(proto, {"": shapes}, True, config.level, "onnxruntime 1.31.1")  # noqa: FBT003

    monkeypatch.setattr(from_settings, "optimized_model", optimized_model)
    monkeypatch.setattr(optimization, "optimized_model", optimized_model)
    analysis = analyze(model, batch=3, graph="ort-basic", runtimes=("ort-cpu",))
    assert analysis.coverage.nodes == 1
    assert analysis.activations.naive_bytes == 84
    assert analysis.runtimes[0].arena.requested_peak_bytes == 84
    assert [finding.code for finding in analysis.findings] == ["optimized_graph"]
    plain = analyze(model, batch=3, runtimes=("ort-cpu",))
    assert plain.coverage.nodes == 3
    assert plain.runtimes[0].graph == "ort-all"
    assert plain.runtimes[0].arena.requested_peak_bytes == 84


# A run beside it.

EXP = "agraph (float[N,7] x) => (float[N,7] y) <float[7] w> { h = Add(x, w)  y = Exp(h) }"


@pytest.mark.parametrize(
    ("asked", "provider", "level", "fixed_dims"),
    [
        ({"measure": "cpu"}, "cpu", "all", False),
        ({"measure": "cuda", "fixed_dims": True}, "cuda", "all", True),
        ({"measure": "cpu", "graph": "raw"}, "cpu", "off", False),
    ],
)
def test_the_file_is_run_as_the_session_that_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    provider: str,
    level: str,
    *,
    fixed_dims: bool,
) -> None:
    seen: list[tuple[str, Request, MeasureSettings]] = []

    def run_measured(file: ModelFile, request: Request, chosen: MeasureSettings) -> Measurement:
        seen.append((file.path, request, chosen))
        return MEASUREMENT

    monkeypatch.setattr(measuring, "measure", run_measured)
    found = analyze(model_of(EXP), batch=3, **asked)
    options = SessionOptions(level=level, fixed_dims=fixed_dims)  # type: ignore[arg-type]
    settings = MeasureSettings(provider=provider, options=options)  # type: ignore[arg-type]
    assert seen == [("<ModelProto>", Request(3), settings)]
    assert found.measured is MEASUREMENT
    assert [finding.code for finding in found.findings] == ["made_up_weights"]


def test_warnings_of_a_measurement_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(EXP)
    own = analyze(model, dims={"S": 3}, one_of_several=True).findings
    run = replace(MEASUREMENT, findings=(*own, *MEASUREMENT.findings))
    monkeypatch.setattr(measuring, "measure", lambda *_: run)
    found = analyze(model, dims={"S": 3}, measure="cpu", one_of_several=True)
    assert own
    assert found.findings == (*own, *MEASUREMENT.findings)


def test_a_failed_measurement_does_not_affect_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Finding("measure_crash", "the run crashed")

    def unavailable(*_: object) -> Measurement:
        message = "onnxruntime finds no GPU here"
        raise BackendUnavailableError(message)

    plain = analyze(model_of(EXP), batch=3)
    absent = Finding("measure_no_backend", "onnxruntime finds no GPU here")
    for run, finding in ((lambda *_: crash, crash), (unavailable, absent)):
        monkeypatch.setattr(measuring, "measure", run)
        found = analyze(model_of(EXP), batch=3, measure="cuda")
        assert found.measured == finding
        assert found.findings == (finding,)
        assert found.status == "ok"
        assert found.total_bytes == plain.total_bytes
        assert found.to_dict()["measured"] is None


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("fixed_dims", [False, True])
def test_requests_equal_those_of_onnxruntime(*, fixed_dims: bool) -> None:
    pytest.importorskip("onnxruntime")
    analysis = analyze(
        model_of(SYMBOLS),
        dims={"N": 5, "M": 5},
        runtimes=("ort-cpu",),
        graph="raw",
        fixed_dims=fixed_dims,
        measure="cpu",
    )
    row = analysis.to_dict()
    predicted, measured = row["runtime"], row["measured"]
    assert isinstance(predicted, dict)
    assert isinstance(measured, dict)
    assert predicted["graph_optimizer"].startswith("onnxruntime ")
    assert measured["error_percent"] == 0.0
    for name in (
        *("base_bytes", "requested_peak_bytes", "with_scratch_peak_bytes", "pattern_block_bytes"),
        *("in_use_peak_bytes", "held_bytes", "held_steady_bytes"),
    ):
        assert predicted[name] == measured[name], name


@pytest.mark.measure
@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (EXP, 0, "Measured                               predicted"),
        pytest.param(MYSTERY, 3, "measure_failed: onnxruntime", marks=pytest.mark.slow),
    ],
)
def test_a_complete_analysis_leaves_no_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    code: int,
    words: str,
) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx", text)
    line = "net.onnx --batch 3 --graph ort-all --runtime ort-cpu --measure cpu -v"
    assert main(line.split()) == code
    out, err = capsys.readouterr()
    assert words in out
    assert ("figures are for the graph optimized by onnxruntime" in out) is (code == 0)
    assert err.count("\n") == (code != 0)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["net.onnx", "temporary"]


LEAVES = """agraph (float[N,7] x, bool b) => (float[N,7] y, float[N,7] z) <float[7,7] w> {
    a = Exp(x)
    c = MatMul(a, w)
    d = Relu(c)
    z = If(b) <
        then_branch = one () => (float[N,7] t) { p = Softmax <axis = 0> (d)  t = Add(p, a) },
        else_branch = two () => (float[N,7] e) { e = Add(d, a) }
    >
    f = Add(d, a)
    y = Sqrt(f)
}"""
"""A run is fed true, and the replay takes the branch that makes more: the same."""


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("graph", ["raw", "ort-extended"])
def test_requests_of_every_node_equal_those_of_onnxruntime(graph: str) -> None:
    pytest.importorskip("onnxruntime")
    found = analyze(model_of(LEAVES), batch=11, runtimes=("ort-cpu",), graph=graph, measure="cpu")
    assert isinstance(found.measured, Measurement)
    predicted = found.runtimes[0].arena.nodes
    assert [(sample.node.op_type, sample.requested_bytes) for sample in predicted] == [
        (node.op_type, node.requested_bytes) for node in found.measured.nodes
    ]


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
def test_fused_operators_are_one_node() -> None:
    pytest.importorskip("onnxruntime")
    found = analyze(model_of(CONVNET), batch=5, graph="ort-extended")
    told = [node.op_type for node in found.graph.nodes]
    assert told == ["FusedConv", "MaxPool", "Flatten", "Gemm"]
    assert found.status == "ok"
    assert found.activations.naive_in_place_bytes == 4 * 5 * (8 * 16 * 16 + 8 * 8 * 8 + 10)
    (finding,) = found.findings
    assert finding.message.startswith("figures are for the graph optimized by onnxruntime ")


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("num_parts", [127, 131, pytest.param(1031, marks=pytest.mark.slow)])
def test_sizes_follow_from_the_constants_of_a_split_with_many_parts(
    num_parts: int,
) -> None:
    """Onnxruntime replaces the Gathers of an unrolled recurrent network by one Split."""
    pytest.importorskip("onnxruntime")
    places = range(num_parts)
    gathers = " ".join(f"g{place} = Gather <axis = 0> (x, i{place})" for place in places)
    constants = ", ".join(f"int64 i{place} = {{{place}}}" for place in places)
    parts = ", ".join(f"g{place}" for place in places)
    text = f"""agraph (float[{num_parts},7,11] x) => (float[7,11] y) <{constants}> {{
        {gathers}  y = Sum({parts})
    }}"""
    asked, emulated = (
        analyze(model_of(text), runtimes=("ort-cpu",), asks_onnxruntime=requests_of)
        for requests_of in (True, False)
    )
    assert asked.runtimes[0].graph_optimizer.startswith("onnxruntime ")
    assert asked.runtimes[0].arena.nodes[0].node.op_type == "Split"
    assert asked.runtimes[0].unknown.tensors == ()
    assert asked.runtimes[0].arena.requested_peak_bytes == 4 * 77 * (num_parts + 1)
    assert emulated.runtimes[0].arena.requested_peak_bytes == 4 * 77 * (num_parts + 1)


SUMMED = """agraph (float[3,37,5,53] x, float[3,71,5,53] w) => (float[3,5,37,71] y) {
    a = Neg(x)  b = Neg(w)  c = Einsum <equation = "bihd,bjhd->bhij"> (a, b)  y = Relu(c)
}"""
BROADCAST = """agraph (float[3,37,41,53] x, float[37,43,53] w) => (float[3,37,41,43] y) {
    y = Einsum <equation = "bhwc,hkc->bhwk"> (x, w)
}"""
NO_PRESENT = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
agraph (float[3,137,224] q, float[3,137,32] k, float[3,137,32] v) => (float[3,137,224] y)
<int32[3] n = {136, 136, 136}, int32 total = {137}, float[256,8] c, float[256,8] s> {
    a = Neg(q)  b = Neg(k)  d = Neg(v)
    y = com.microsoft.GroupQueryAttention <num_heads = 14, kv_num_heads = 2, do_rotary = DO> (
        a, b, d, , , n, total, c, s)
}"""


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize(
    "text",
    [SUMMED, BROADCAST, NO_PRESENT.replace("DO", "1"), NO_PRESENT.replace("DO", "0")],
    ids=["einsum", "einsum_batched", "rotated", "plain"],
)
def test_chunks_are_allocated_in_the_order_of_the_kernel(text: str) -> None:
    """Scratch before and after the output of an Einsum; attention without a cache."""
    pytest.importorskip("onnxruntime")
    found = analyze(model_of(text), runtimes=("ort-cpu",), graph="raw", measure="cpu")
    assert isinstance(found.measured, Measurement)
    predicted, measured = found.runtimes[0].arena, found.measured
    assert predicted.with_scratch_peak_bytes == measured.with_scratch_peak_bytes
    assert predicted.in_use_peak_bytes == measured.in_use_peak_bytes
    assert predicted.held_bytes == measured.held_bytes


def test_a_report_and_its_verdict_read_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    configs_used: list[SessionConfig] = []
    make = optimization._optimized  # noqa: SLF001 - what every way to open a model goes through

    def counted(given: ModelAt, how: SessionConfig) -> OptimizedModel:
        configs_used.append(how)
        return make(given, how)

    monkeypatch.setattr(optimization, "_optimized", counted)
    analysis = analyze(
        model_of("agraph (float[N,7] x) => (float[N,7] y) { y = Exp(x) }"),
        batch=3,
        runtimes=("ort-cpu",),
        asks_onnxruntime=False,
        budget_bytes=2**30,
    )
    assert analysis.fit is not None
    assert analysis.fit.footprint.total_bytes == analysis.runtimes[0].process_bytes
    assert len(configs_used) == 1


@pytest.mark.parametrize(("option", "num_calls"), [("-q", 0), ("--json", 0), ("-v", 1)])
def test_other_settings_are_replayed_only_where_they_are_shown(
    option: str,
    num_calls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted = Mock(wraps=combined_choices)
    monkeypatch.setattr(memory, "combined_choices", counted)
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx", EXP)
    line = f"net.onnx --batch 3 --runtime ort-cpu --emulate-optimizer {option}"
    assert main(line.split()) == 0
    assert "net.onnx" in capsys.readouterr().out
    assert counted.call_count == num_calls
