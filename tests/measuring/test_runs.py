"""Runs in onnxruntime itself: figures by hand, hostile models, and that nothing stays behind."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from graphs import model_of
from models_on_disk import CONVNET, write_model
from numpy.typing import NDArray
from paths import LIGHT
from without_children import work_without_children

from onnxmem.children.running import JSON, ChildFault, ChildLimits, run_in_child
from onnxmem.errors import Finding
from onnxmem.measuring import measuring
from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import BackendUnavailableError, MeasureSettings, measure
from onnxmem.measuring.run_request import Feed, RunRequest, StoredInput, read_inputs, store_inputs
from onnxmem.model.binding import Request
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.measure

RAW = MeasureSettings(options=SessionOptions(level="off"))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of temporary files, which every test leaves empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _is_left_empty(temporary: Path) -> object:
    yield
    assert not any(temporary.iterdir())


def measured(
    source: str | Path | onnx.ModelProto,
    request: Request | None = None,
    settings: MeasureSettings | None = None,
) -> Measurement:
    found = measure(source, request, settings)
    assert isinstance(found, Measurement), found
    return found


def failed(
    text: str, settings: MeasureSettings | None = None, request: Request | None = None
) -> Finding:
    found = measure(model_of(text), request, settings)
    assert isinstance(found, Finding), found
    return found


CHAIN = """agraph (float[N,7] x) => (float[N,7] d) {
    [a] a = Abs(x)
    [b] b = Neg(a)
    [c] c = Relu(b)
    [d] d = Neg(c)
}"""


def test_a_chain_takes_what_it_does_by_hand() -> None:
    found = measured(model_of(CHAIN), Request(batch=11), RAW)
    size = 11 * 7 * 4
    # a; then b beside a; Relu in place of b; then d, the output, beside c. Neg frees its input
    assert [node.requested_bytes for node in found.nodes] == [size, 2 * size, size, 2 * size]
    assert found.requested_peak_bytes == 2 * size
    assert found.with_scratch_peak_bytes == 2 * size
    # a and b: the output has no place in it; each part is rounded up to 256 bytes
    assert found.pattern_block_bytes == 2 * 512
    assert found.base_bytes == 0
    assert found.in_use_peak_bytes == 2 * 512
    assert found.held_bytes == found.held_steady_bytes == 2**20
    assert [node.name for node in found.nodes] == ["a", "b", "c", "d"]
    assert found.nodes[0].output_shapes == ((11, 7),)
    assert len(found.seconds_per_run) == found.runs == 3


@pytest.mark.usefixtures("without_children")
def test_scratch_is_that_of_the_kernel() -> None:
    """A Softmax along another axis than the last works on a transposed copy, and back."""
    text = "agraph (float[3,5] x) => (float[3,5] y) { y = Softmax <axis = 0> (x) }"
    found = measured(model_of(text), None, RAW)
    assert [node.scratch_bytes for node in found.nodes] == [2 * 3 * 5 * 4]
    assert found.requested_peak_bytes == 3 * 5 * 4
    assert found.with_scratch_peak_bytes == 3 * 3 * 5 * 4


MANY = 1_000_003


@pytest.fixture(scope="module")
def many() -> Measurement:
    """A run in a process of its own whose tensors are large beside what varies of one."""
    return measured(model_of(CHAIN), Request(batch=MANY), RAW)


def test_the_process_is_larger_than_its_arena(many: Measurement) -> None:
    found = many
    size = MANY * 7 * 4
    assert found.process_baseline_bytes is not None
    assert found.process_peak_bytes is not None
    assert found.process_steady_bytes is not None
    assert found.load_peak_bytes is not None
    assert found.process_peak_bytes > found.process_baseline_bytes + 2 * size
    assert found.process_peak_bytes >= found.process_steady_bytes
    assert found.load_peak_bytes < found.process_peak_bytes


@pytest.mark.usefixtures("without_children")
def test_made_up_weights_are_prepacked_each() -> None:
    """Two equal matrices of zeros would share one packed copy."""
    text = """agraph (float[1,512] x) => (float[1,512] z) <float[512,512] v, float[512,512] w> {
        y = MatMul(x, v)
        z = MatMul(y, w)
    }"""
    found = measured(model_of(text))
    assert found.base_bytes is not None
    assert found.base_bytes >= 2 * 512 * 512 * 4
    assert found.num_filled == 2


@pytest.mark.usefixtures("without_children")
def test_a_model_at_another_batch_than_its_own() -> None:
    found = measured(LIGHT / "light_squeezenet.onnx", Request(batch=8))
    sizes = (
        found.requested_peak_bytes,
        found.with_scratch_peak_bytes,
        found.pattern_block_bytes,
        found.base_bytes,
    )
    assert sizes == (31_428_608, 31_428_608, 31_428_608, 128)
    assert found.num_filled == 0


@pytest.mark.parametrize(
    "options",
    [
        SessionOptions(level="basic", enable_mem_reuse=False, disable_prepacking=True),
        SessionOptions(enable_mem_pattern=False, shrinks_arena=True, fixed_dims=True),
        SessionOptions(arena_extend_strategy="kSameAsRequested", num_threads=2),
        SessionOptions(level="extended", config={"session.set_denormal_as_zero": "1"}),
    ],
)
def test_every_option_opens_a_session(
    options: SessionOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / write_model(tmp_path / "net.onnx", CONVNET)
    if not options.config:  # which changes how the process computes
        work_without_children(monkeypatch, tmp_path)
    found = measured(path, Request(batch=3), MeasureSettings(options=options, runs=2))
    assert found.held_steady_bytes is not None
    assert (found.pattern_block_bytes == 0) is (not options.enable_mem_pattern)


@pytest.mark.usefixtures("without_children")
def test_an_arena_that_grows_by_requested_bytes_reserves_no_more() -> None:
    options = SessionOptions(level="off", arena_extend_strategy="kSameAsRequested")
    found = measured(model_of(CHAIN), Request(batch=11), MeasureSettings(options=options))
    assert found.held_bytes == found.in_use_peak_bytes == 2 * 512


def test_a_shrunk_arena_is_read_before_the_next_run_extends_it() -> None:
    """The memory-pattern buffer of a next run is allocated before its first node."""
    options = SessionOptions(level="off", shrinks_arena=True)
    found = measured(model_of(CHAIN), Request(batch=MANY), MeasureSettings(options=options))
    assert found.held_steady_bytes is not None
    assert found.pattern_block_bytes is not None
    # No weight is copied: what stays is the region in which the output lay.
    assert found.held_steady_bytes < found.pattern_block_bytes


def test_without_an_arena_the_process_is_still_measured() -> None:
    options = SessionOptions(enable_cpu_mem_arena=False)
    found = measured(model_of(CHAIN), None, MeasureSettings(options=options))
    assert found.requested_peak_bytes is None
    assert found.process_peak_bytes is not None


@pytest.mark.usefixtures("without_children")
def test_inputs_of_every_kind_are_made_up() -> None:
    text = """agraph (string[3] s, bool[2] b, int32[4] i, float16[5] h, bfloat16[2,2] f, float x) =>
        (string[3] t, bool[2] c, int32[4] j, float16[5] k, float[2,2] g, float y) {
        t = Identity(s)
        c = Not(b)
        j = Add(i, i)
        k = Neg(h)
        g = Cast <to = 1> (f)
        y = Neg(x)
    }"""
    assert len(measured(model_of(text), None, RAW).nodes) >= 6


@pytest.mark.usefixtures("without_children")
def test_real_inputs_are_fed(tmp_path: Path) -> None:
    """The random lengths, ones, do not add up to the length of the axis."""
    text = """agraph (float[5] x, int64[2] parts) => (float[A] y, float[B] z) {
        y, z = Split(x, parts)
    }"""
    assert "--inputs" in failed(text).message
    arrays = {"x": np.ones(5, np.float32), "parts": np.array([2, 3])}
    np.savez(tmp_path / "in.npz", **arrays)  # type: ignore[arg-type]
    settings = MeasureSettings(inputs_npz=str(tmp_path / "in.npz"))
    assert measured(model_of(text), None, settings).requested_peak_bytes == 20


def test_weights_beside_the_model_are_used_in_place(tmp_path: Path) -> None:
    path = tmp_path / write_model(tmp_path / "net.onnx", CONVNET)
    (tmp_path / "absent.weights").write_bytes(bytes(20480))
    found = measured(path, Request(batch=2))
    assert found.num_filled == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "absent.weights",
        "net.onnx",
        "temporary",
    ]


# Hostile models.


def test_a_loop_without_end_runs_into_its_time() -> None:
    text = """agraph (float[2] x) => (float[2] y)
        <int64 n = {4611686018427387904}, bool c = {1}> {
        y = Loop (n, c, x) <body = body (int64 i, bool on, float[2] a) => (bool o, float[2] b) {
            o = Identity(on)
            b = Add(a, a)
        }>
    }"""
    found = failed(text, MeasureSettings(seconds=2.0))
    assert found.code == "measure_timeout"
    assert "2 s" in found.message


def test_half_a_terabyte_is_not_to_be_had() -> None:
    text = """agraph () => (float[M] y) <int64[1] s = {137438953472}> {
        z = ConstantOfShape(s)
        y = Add(z, z)
    }"""
    found = failed(text, MeasureSettings(memory_bytes=2**31))
    assert found.code == "measure_memory"
    assert "the run needed more than 2.00 GiB" in found.message


def test_a_limit_below_the_runtimes_own_size_is_no_crash() -> None:
    found = failed(CHAIN, MeasureSettings(memory_bytes=300 * 2**20), Request(batch=20_000_003))
    assert found.code == "measure_memory"


@pytest.mark.usefixtures("without_children")
def test_a_node_that_fails_is_named() -> None:
    text = """agraph (float[2] x) => (float[M] y) <int64 five = {5}> {
        n = Shape(x)
        m = Mul(n, five)
        [odd] y = Reshape(x, m)
    }"""
    found = failed(text)
    assert found.code == "measure_failed"
    assert "Name:'odd'" in found.message
    assert "\n" not in found.message


@pytest.mark.usefixtures("without_children")
def test_custom_operators_are_not_loaded() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
    agraph (float[2] x) => (float[2] y) { y = acme.Mystery(x) }"""
    found = failed(text)
    assert found.code == "measure_failed"
    assert "acme:Mystery" in found.message


def test_data_outside_the_folder_is_not_opened(tmp_path: Path) -> None:
    model = model_of(CONVNET)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "../secret"
    (tmp_path / "secret").write_bytes(bytes(20480))
    (tmp_path / "model").mkdir()
    onnx.save(model, tmp_path / "model" / "net.onnx")
    found = measure(tmp_path / "model" / "net.onnx")
    assert isinstance(found, Finding)
    assert "outside the model's folder: '../secret'; the model was not loaded" in found.message


# The child's side, in this process.


def request_of(folder: Path, text: str, **more: object) -> dict[str, object]:
    """A request as it arrives in a child, whose folder is the working one."""
    model = model_of(text)
    onnx.save(model, folder / "m.onnx")
    feeds = stored(folder, Feed("x", "float32", 1, (11, 7), 1))
    options = SessionOptions(**more)  # type: ignore[arg-type]
    request = RunRequest(str(folder / "m.onnx"), *feeds, {"N": 11}, options, "cpu", 2)
    plain: dict[str, object] = json.loads(json.dumps(asdict(request)))
    return plain


def stored(
    folder: Path, *feeds: Feed, inputs_npz: str | None = None
) -> tuple[str, tuple[StoredInput, ...]]:
    """The file of these inputs, and the offset of each."""
    path = str(folder / "inputs.bin")
    output = store_inputs([asdict(feed) for feed in feeds], inputs_npz, path)
    return path, read_inputs(json.loads(json.dumps(output["inputs"])))


@pytest.mark.parametrize(("spread", "most"), [(2, 1), (64, 63)])
def test_inputs_of_other_runs_vary(tmp_path: Path, spread: int, most: int) -> None:
    """Their level is drawn, so that what they decide is not the same in all runs."""
    feeds = [
        Feed("f", "float32", 1, (97,), 1),
        Feed("b", "bool", 9, (97,), 1),
        Feed("i", "int64", 7, (97,), 1),
        Feed("index", "int64", 7, (97,), 0),
        Feed("pixels", "uint8", 2, (97,), 1),
        Feed("n", "int64", 7, (), 1, (5,)),
    ]
    drawn: dict[str, list[NDArray[Any]]] = {feed.name: [] for feed in feeds}
    for seed in range(1, 9):
        path = str(tmp_path / f"{seed}.bin")
        plain = store_inputs([asdict(feed) for feed in feeds], None, path, seed, spread)
        for each in read_inputs(json.loads(json.dumps(plain["inputs"]))):
            content = Path(path).read_bytes()[each.offset :]
            count = max(int(np.prod(each.shape)), 1)
            drawn[each.name].append(np.frombuffer(content, each.dtype, count))
    means = {
        name: {round(float(each.mean()), 1) for each in arrays} for name, arrays in drawn.items()
    }
    assert len(means["f"]) > 4
    assert len(means["b"]) > 4
    assert min(each.min() for each in drawn["f"]) < 0
    assert {int(each.max()) for each in drawn["i"]} <= set(range(most + 1))
    assert len({tuple(each) for each in drawn["i"]}) > 4
    assert means["index"] == {0.0}
    assert means["n"] == {5.0}
    assert max(each.max() for each in drawn["pixels"]) <= (255 if most > 1 else 1)


def test_the_first_run_is_reported_node_by_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxmem.measuring.tracing import trace_first_run

    monkeypatch.chdir(tmp_path)
    output = trace_first_run(request_of(tmp_path, CHAIN, level="off"))
    size = 11 * 7 * 4
    assert output["requested_peak_bytes"] == output["with_scratch_peak_bytes"] == 2 * size
    assert output["num_steps"] == 4


def test_further_runs_take_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxmem.measuring import tracing

    monkeypatch.chdir(tmp_path)
    request = request_of(tmp_path, CHAIN, level="off", disable_prepacking=True)
    output = tracing.trace_steady_runs(request)
    assert (output["held_steady_bytes"], output["pattern_block_bytes"]) == (2**20, 2 * 512)
    monkeypatch.setattr(tracing, "runs", lambda _: [])  # the profile breaks off
    assert tracing.trace_steady_runs(request) == {}
    broken = tracing.trace_first_run(request)
    assert (broken["requested_peak_bytes"], broken["num_steps"]) == (None, None)


def test_plain_runs_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxmem.measuring import process_run

    monkeypatch.setattr(process_run, "restart_peak", lambda: False)
    options = {"shrinks_arena": True, "config": {"session.disable_prepacking": "0"}}
    output = process_run.run_plain(request_of(tmp_path, CHAIN, **options))
    assert isinstance(output["seconds_per_run"], list)
    assert len(output["seconds_per_run"]) == 2
    assert output["load_peak_bytes"] is None
    assert output["device_peak_bytes"] is None


def run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for a GPU open a session on the CPU."""
    from onnxmem.measuring import process_run

    open_session = process_run.open_session

    def on_the_cpu(request: RunRequest, native: object) -> object:
        on_cpu = SimpleNamespace(**{**vars(request), "provider": "cpu"})
        return open_session(cast("RunRequest", on_cpu), native)

    monkeypatch.setattr(process_run, "open_session", on_the_cpu)


def test_the_gpu_is_watched_while_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxmem.measuring import process_run

    sizes = iter([3])
    monkeypatch.setattr(process_run, "device_reader", lambda: lambda: next(sizes, 13))
    run_on_the_cpu(monkeypatch)
    percents = iter([90, 90])
    monkeypatch.setattr(process_run, "utilization_reader", lambda: lambda: next(percents, 17))
    output = process_run.run_plain(request_of(tmp_path, CHAIN) | {"provider": "cuda"})
    assert output["device_baseline_bytes"] == 3
    assert output["device_peak_bytes"] == output["device_steady_bytes"] == 13
    assert isinstance(output["device_utilization_percent"], int)
    assert isinstance(output["device_utilization_peak_percent"], int)
    mean, peak = output["device_utilization_percent"], output["device_utilization_peak_percent"]
    assert 17 <= mean <= peak <= 90


def test_a_gpu_that_does_not_tell_how_busy_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxmem.measuring import process_run

    monkeypatch.setattr(process_run, "device_reader", lambda: lambda: 13)
    monkeypatch.setattr(process_run, "utilization_reader", lambda: None)
    run_on_the_cpu(monkeypatch)
    output = process_run.run_plain(request_of(tmp_path, CHAIN) | {"provider": "cuda"})
    assert output["device_peak_bytes"] == 13
    assert output["device_utilization_percent"] is None
    assert output["device_utilization_peak_percent"] is None


def test_stored_inputs_are_mapped_as_they_are(tmp_path: Path) -> None:
    from onnxmem.measuring import process_run

    feeds = (
        Feed("x", "float16", 10, (3, 5), 1),
        Feed("none", "float32", 1, (0, 4), 1),
        Feed("scalar", "int64", 7, (), 2),
        Feed("given", "bool", 9, (4,), 1, (True, False)),
        Feed("text", "string", 8, (2,), 1),
        Feed("stand_in", "bfloat16", 16, (2, 2), 1),
    )
    path, inputs = stored(tmp_path, *feeds)
    assert all(each.offset % 64 == 0 for each in inputs)
    request = RunRequest("m.onnx", path, inputs, {}, SessionOptions(), "cpu", 1)
    found: dict[str, Any] = process_run.mapped_feeds(request)
    noise = np.random.default_rng(0).random((3, 5), np.float32)
    assert found["x"].dtype == np.float16
    assert (found["x"] == noise.astype(np.float16)).all()
    assert found["none"].shape == (0, 4)
    assert (found["scalar"].shape, found["scalar"].item()) == ((), 2)
    assert found["given"].tolist() == [True, False, True, False]
    assert found["text"].tolist() == ["a", "a"]
    assert (found["stand_in"].shape(), found["stand_in"].element_type()) == ([2, 2], 16)


def test_the_arrays_of_a_file_of_inputs_are_stored(tmp_path: Path) -> None:
    arrays = {"x": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))}
    np.savez(tmp_path / "in.npz", **arrays)  # type: ignore[arg-type]
    feed = Feed("x", "float32", 1, (2, 3), 1)
    path, (found,) = stored(tmp_path, feed, inputs_npz=str(tmp_path / "in.npz"))
    assert found == StoredInput("x", "<f4", (2, 3), 0)
    assert Path(path).read_bytes()[:24] == arrays["x"].tobytes()


# The process that is measured, and what it carries.

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="its memory is read from /proc")
LOADED = "import json, sys; import numpy, onnxruntime; modules = sorted(sys.modules)"
OWN_MODULES = {
    "onnxmem",
    "onnxmem.measuring",
    "onnxmem.measuring.memory",
    "onnxmem.measuring.process_run",
}
"""Of the package, in the process that is measured; of the first two only the names."""
HEAVY = {"dataclasses", "numpy.random", "pathlib", "psutil", "tempfile", "threading", "zipfile"}


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modules of the measured process after the measurement."""
    path = tmp_path / "modules.json"

    def spying(
        function: str,
        arguments: Mapping[str, JSON],
        limits: ChildLimits,
        uninitialized: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, JSON] | ChildFault:
        module, _, name = function.partition(":")
        if name != "run_plain":
            return run_in_child(function, arguments, limits, uninitialized, variables)
        code = f"""
import json, sys
from {module} import {name}
reply = {name}(**{arguments!r})
open({str(path)!r}, "w").write(json.dumps([reply, sorted(sys.modules)]))"""
        run_in_child("timeit:timeit", {"stmt": code, "number": 1}, limits, uninitialized)
        reply: dict[str, JSON] = json.loads(path.read_text())[0]
        return reply

    monkeypatch.setattr(measuring, "run_in_child", spying)
    measured(model_of(CHAIN), Request(batch=11))
    return set(json.loads(path.read_text())[1])


def test_the_measured_process_carries_python_numpy_and_onnxruntime_alone(loaded: set[str]) -> None:
    plain = set(json.loads(printed(f"{LOADED}; print(json.dumps(modules))")))
    more = loaded - plain
    assert {name for name in more if name.split(".")[0] == "onnxmem"} == OWN_MODULES
    assert not more & HEAVY
    others = {name.split(".")[0] for name in more if name.split(".")[0] != "onnxmem"}
    assert others <= {*sys.stdlib_module_names, "numpy", "onnxruntime"}


@LINUX
def test_the_floor_is_that_of_a_process_that_imports_the_same(many: Measurement) -> None:
    status = "next(x for x in open('/proc/self/status') if x.startswith('VmRSS:'))"
    plain = int(printed(f"import numpy, onnxruntime; print({status}.split()[1])")) * 1024
    assert many.process_floor_bytes == pytest.approx(plain, rel=0.03)


@LINUX
def test_inputs_are_resident_before_the_model_is_opened(many: Measurement) -> None:
    assert many.process_floor_bytes is not None
    assert many.process_baseline_bytes is not None
    size = MANY * 7 * 4
    added = many.process_baseline_bytes - many.process_floor_bytes
    assert added == pytest.approx(size, rel=0.05)


def printed(code: str) -> str:
    """The output of an isolated Python with one numpy thread, as in a measurement."""
    environment = {"OPENBLAS_NUM_THREADS": "1", "PATH": os.defpath}
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


# CUDA, on a machine that has none.


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")
def test_without_a_gpu_there_is_one_clear_line() -> None:
    with pytest.raises(BackendUnavailableError, match="onnxruntime finds no GPU here"):
        measure(model_of(CHAIN), None, MeasureSettings(provider="cuda"))


def request_on(provider: str, **options: object) -> RunRequest:
    chosen = SessionOptions(**options)  # type: ignore[arg-type]
    return RunRequest("m.onnx", "inputs.bin", (), {}, chosen, provider, 1)  # type: ignore[arg-type]


class FakeRuntime(SimpleNamespace):
    """An onnxruntime whose sessions fall back to the CPU because the GPU fails."""

    def __init__(self, *, falls_back: bool) -> None:
        super().__init__(falls_back=falls_back, providers=[])

    def get_available_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def InferenceSession(  # noqa: N802 - onnxruntime's own name
        self, model: str, options: object, providers: list[tuple[str, dict[str, str]]]
    ) -> SimpleNamespace:
        assert (model, options) == ("m.onnx", None)
        self.providers = providers
        names = [name for name, _ in providers[int(self.falls_back) :]]
        return SimpleNamespace(get_providers=lambda: names)


def test_cuda_gets_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxmem.measuring import process_run

    runtime = FakeRuntime(falls_back=False)
    monkeypatch.setattr(process_run, "ort", runtime)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    process_run.open_session(request_on("cuda", gpu_mem_limit_bytes=2**30), None)
    assert runtime.providers == [
        (
            "CUDAExecutionProvider",
            {
                "arena_extend_strategy": "kNextPowerOfTwo",
                "cudnn_conv_algo_search": "EXHAUSTIVE",
                "cudnn_conv_use_max_workspace": "1",
                "gpu_mem_limit": str(2**30),
            },
        ),
        ("CPUExecutionProvider", {}),
    ]


def test_a_session_that_falls_back_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxmem.measuring import process_run

    monkeypatch.setattr(process_run, "ort", FakeRuntime(falls_back=True))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    with pytest.raises(ModuleNotFoundError) as caught:
        process_run.open_session(request_on("cuda"), None)
    assert caught.value.name == "CUDAExecutionProvider"
