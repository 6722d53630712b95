"""The emulated optimizer for every CPU, on any machine, compared with onnxruntime 1.32.0 on each.

``tools/onnxruntime/cpus.py`` wrote the data: AVX-512 on such a machine, AVX2 with an onnxruntime
that does not detect AVX-512, ARM with the aarch64 packages on an emulated Neoverse N1. It has only
graphs that differ between CPUs.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from installed_runtime import cpu_of_onnxruntime
from paths import DATA, LIGHT, MODELS
from runtimes.onnxruntime.optimized_graphs import expressions, parsed

import onnxmem
from onnxmem.errors import UsageError
from onnxmem.model.binding import Request
from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile, load
from onnxmem.runtimes.from_settings import predict
from onnxmem.runtimes.onnxruntime import cpu as cpus
from onnxmem.runtimes.onnxruntime.cpu import ARM64, AVX2, AVX512, CPUS, cpu_named, native_cpu
from onnxmem.runtimes.onnxruntime.memory import SessionRequest
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized
from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures
from onnxmem.runtimes.onnxruntime.session_graph.optimization import SessionConfig
from onnxmem.settings import CPUS as NAMES

GRAPHS = DATA / "optimizer" / "cpus.json.gz"
EXPECTED = json.loads((MODELS / "expected.json").read_text())
FIGURES = json.loads((DATA / "onnxruntime" / "cpus.json").read_text())
ROWS = json.loads(gzip.decompress(GRAPHS.read_bytes()))["rows"]
HALF_ON_ARM = ("Conv(half, half_w)", "MaxPool<kernel_shape = [3, 3]>(half)", "Conv(image, kernel)")
"""A known gap: on ARM with half-precision arithmetic, float16 images have channels last."""
BLOCKWISE_ON_ARM = ("arm64", "tinyllama.int4")
"""Another one: the packed weight and the scratch of MatMulNBits on ARM."""
RESERVED = ("held_bytes", "held_steady_bytes")
HALF_PRODUCT = "c = Cast<to = 10>(m) sc = Mul(sa, sb)"
"""Another one: a dynamically quantized product with float16 scales is not fused."""


@pytest.mark.parametrize("name", CPUS)
def test_graphs_equal_those_of_onnxruntime_on_each_cpu(name: str) -> None:
    wrong = [row["text"] for row in ROWS if nodes_of(row, name) != row["nodes"][name]]
    known = (*HALF_ON_ARM, HALF_PRODUCT) if name == "arm64" else ()
    assert [text for text in wrong if not any(part in text for part in known)] == []
    assert len(wrong) == len(known)


def nodes_of(row: dict[str, Any], name: str) -> list[str]:
    prepared = prepare(ModelFile("<text>", parsed(row["text"], row["opset"]), 0)).proto
    model = optimized(prepared, row["level"], dims=row["dims"], cpu=CPUS[name])
    return sorted(expressions(model.graph))


def test_the_data_tells_the_cpus_apart() -> None:
    found = [{json.dumps(row["nodes"][name]) for row in ROWS} for name in CPUS]
    assert len(ROWS) > 200
    assert len({frozenset(each) for each in found}) == len(CPUS)


@pytest.mark.slow
def test_figures_equal_those_measured_on_each_cpu() -> None:
    """Models of ``models/`` and of the onnx package; other models are not available here."""
    errors = {
        (cpu, name, key): getattr(found, key) / taken[key] - 1
        for cpu, models in FIGURES.items()
        for name, taken in models.items()
        if (cpu, name) != BLOCKWISE_ON_ARM and (found := arena_of(name, cpu)) is not None
        for key in taken
        if getattr(found, key) != taken[key]
    }
    assert {key for _, _, key in errors} <= {"base_bytes", "in_use_peak_bytes", *RESERVED}
    assert len(errors) < 6
    assert max(map(abs, errors.values())) < 1e-4


def arena_of(name: str, cpu: str) -> ArenaFigures | None:
    """The prediction at batch 1, with the other dims of the measurement."""
    if name.startswith("light_"):
        return arena(LIGHT / f"{name}.onnx", cpu, {})
    facts = EXPECTED.get(f"{name}.onnx")
    if facts is None or name in {"greedy_translator", "whisper_tiny_encoder"}:
        return None
    dims = {**facts["dims"], **({facts["batch"]: 1} if isinstance(facts["batch"], str) else {})}
    return arena(MODELS / f"{name}.onnx", cpu, dims)


def arena(path: Path, cpu: str, dims: dict[str, int]) -> ArenaFigures:
    request = SessionRequest(cpu=cpu, asks_onnxruntime=False)
    return predict(load(path), Request(dims=dims), request).arena


@pytest.mark.measure
def test_the_native_cpu_is_the_one_that_onnxruntime_detects() -> None:
    pytest.importorskip("onnxruntime")
    assert native_cpu() == cpu_of_onnxruntime()


@pytest.mark.parametrize(
    ("machine", "features", "cpu"),
    [
        ("x86_64", {"AVX512_SKX": True, "AVX2": True, "FMA3": True}, AVX512),
        ("AMD64", {"AVX512_SKX": False, "AVX512F": True, "AVX2": True, "FMA3": True}, AVX2),
        ("x86_64", {"AVX2": True, "FMA3": True}, AVX2),
        ("x86_64", {"AVX2": True}, None),
        ("x86_64", {}, None),
        ("riscv64", {}, None),
        ("aarch64", {"ASIMD": True}, ARM64),
        ("arm64", {}, ARM64),
    ],
)
def test_a_cpu_is_detected_by_its_machine_and_features(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    features: dict[str, bool],
    cpu: cpus.Cpu | None,
) -> None:
    on(monkeypatch, machine, features)
    assert native_cpu() == cpu
    assert cpu_named("native") == (cpu or AVX512)
    native_cpu.cache_clear()


def on(monkeypatch: pytest.MonkeyPatch, machine: str, features: dict[str, bool]) -> None:
    """Pretend to be another machine."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(cpus, "_features", lambda: features)
    native_cpu.cache_clear()


def test_cpu_names_of_the_command_line_are_known() -> None:
    assert ("native", *CPUS) == NAMES
    with pytest.raises(UsageError, match="cpu 'z80' is not known; choose one of native, avx512"):
        cpu_named("z80")


@pytest.mark.parametrize(
    ("cpu", "level", "is_of_this_machine"),
    [
        ("native", "all", True),
        ("avx2", "all", True),
        ("avx512", "all", False),
        ("avx512", "extended", True),
        ("arm64", "all", False),
        ("arm64", "extended", False),
    ],
)
def test_onnxruntime_runs_only_if_this_cpu_gives_the_same_graph(
    monkeypatch: pytest.MonkeyPatch, cpu: str, level: str, *, is_of_this_machine: bool
) -> None:
    on(monkeypatch, "x86_64", {"AVX2": True, "FMA3": True})
    assert SessionConfig(level, cpu=cpu).is_of_this_machine() == is_of_this_machine
    native_cpu.cache_clear()


CONV = """<ir_version: 10, opset_import: ["" : 21]>
  agraph (float[1,16,7,7] x) => (float[1,24,7,7] y) <float[24,16,1,1] w> { y = Conv(x, w) }
"""


@pytest.mark.parametrize(
    ("cpu", "peak_floats"),
    [("avx512", 32 * 49 + 24 * 49), ("avx2", 24 * 49 + 24 * 49), ("arm64", 24 * 49)],
)
def test_figures_depend_on_the_cpu(cpu: str, peak_floats: int) -> None:
    model = parsed(CONV, 21)
    found = onnxmem.analyze(model, runtimes=("ort-cpu",), cpu=cpu, asks_onnxruntime=False)
    (runtime,) = found.runtimes
    assert runtime.cpu == cpu
    assert runtime.arena.requested_peak_bytes == 4 * peak_floats
    codes = [finding.code for finding in runtime.findings]
    assert ("unverified_cpu" in codes) == (cpu == "arm64")
    assert found.settings.cpu == cpu


ONES = ", ".join(["1"] * 24 * 24)
POOLS = """agraph (float[1,24,13,17] x) => (float[1,24,5,7] y) {
    a = MaxPool <kernel_shape = [3, 3]> (x)  b = MaxPool <kernel_shape = [3, 3]> (a)
    y = MaxPool <kernel_shape = [5, 5]> (b)
}"""
BRANCH = f"""agraph (float[1,24,13,17] x, bool c) => (float[1,24,13,17] y) {{
    y = If(c) <
        then_branch = one () => (float[1,24,13,17] p) <float[24,24,1,1] w = {{{ONES}}}> {{
            p = Conv(x, w)
        }},
        else_branch = two () => (float[1,24,13,17] q) {{ q = Neg(x) }}
    >
}}"""


@pytest.mark.parametrize(
    ("text", "cpu", "peak_floats"),
    [
        (POOLS, "avx2", 24 * 13 * 17 + 24 * 11 * 15),
        (POOLS, "avx512", 24 * 11 * 15 + 24 * 9 * 13),
        (BRANCH, "avx2", 3 * 24 * 13 * 17),
        (BRANCH, "avx512", (32 + 32 + 24) * 13 * 17),
    ],
)
def test_block_size_of_channels_depends_on_the_cpu_without_filters(
    text: str, cpu: str, peak_floats: int
) -> None:
    model = parsed(text, 21)
    found = onnxmem.analyze(model, runtimes=("ort-cpu",), cpu=cpu, asks_onnxruntime=False)
    assert found.runtimes[0].arena.requested_peak_bytes == 4 * peak_floats
    graph = onnxmem.analyze(model, graph="ort-all", cpu=cpu, asks_onnxruntime=False)
    assert graph.activations.peak_bytes == 4 * peak_floats


WEIGHTS = "float[20,16,3,3] v, float[20,16,3,3] w"


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize(
    ("outputs", "body", "named"),
    [
        ("y", "a = Conv(x, v) b = Conv(x, w) y = Concat <axis = 1> (a, b)", 2),
        ("a, b", "a = Conv(x, v) b = Conv(x, w)", 2),
        (
            "y",
            "a = Conv(x, v) b = Conv(x, w) d = Erf(a) e = Erf(b) y = Concat <axis = 1> (d, e)",
            0,
        ),
        ("y, a", "a = Conv(x, v) y = Erf(a)", 0),
        ("y", "a = Conv(x, v) y = Mul(a, a)", 0),
    ],
    ids=["parents", "outputs", "apart", "read", "one"],
)
@pytest.mark.parametrize("asks", [False, pytest.param(True, marks=pytest.mark.measure)])
def test_an_order_that_depends_on_addresses_is_reported(
    outputs: str, body: str, named: int, *, asks: bool
) -> None:
    if asks:
        pytest.importorskip("onnxruntime")
    typed = ", ".join(f"float[] {name}" for name in outputs.split(", "))
    model = parsed(f"agraph (float[1,16,13,17] x) => ({typed}) <{WEIGHTS}> {{ {body} }}", 21)
    cpu = "native" if asks else "avx512"
    found = onnxmem.analyze(model, runtimes=("ort-cpu", "ort-cuda"), cpu=cpu, asks_onnxruntime=asks)
    ours, cuda = found.runtimes
    reported = [each.message for each in ours.findings if each.code == "order_varies"]
    assert len(reported) == (named > 0 and ours.cpu != "arm64")
    assert all(message.count("'") == 2 * named for message in reported)
    assert "order_varies" not in {each.code for each in cuda.findings}


def test_an_unknown_cpu_is_assumed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "riscv64", {})
    found = onnxmem.analyze(parsed(CONV, 21), runtimes=("ort-cpu",), asks_onnxruntime=False)
    (finding,) = found.runtimes[0].findings
    assert finding.code == "assumed_cpu"
    assert finding.message == (
        "this machine's CPU is not one of avx512, avx2, arm64; assuming avx512, see --cpu"
    )
    native_cpu.cache_clear()


def test_another_cpu_is_emulated_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "x86_64", {"AVX2": True, "FMA3": True})
    found = onnxmem.analyze(parsed(CONV, 21), runtimes=("ort-cpu",), cpu="avx512")
    (runtime,) = found.runtimes
    assert (runtime.graph_optimizer, runtime.cpu) == ("onnxmem", "avx512")
    (finding,) = runtime.findings
    assert finding.message == (
        "onnxruntime creates another graph on this CPU (avx2) than on avx512; onnxmem's emulation "
        "of its graph optimizer was used instead"
    )
    native_cpu.cache_clear()
