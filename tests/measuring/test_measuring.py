"""Measuring, seen from the parent: what children say, and what becomes of their faults."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from graphs import model_of
from models_on_disk import CONVNET, write_model

from onnxmem.children.running import JSON, ChildFault, ChildLimits
from onnxmem.errors import Finding, UsageError
from onnxmem.measuring import measuring
from onnxmem.measuring.inputs import InputsFileError
from onnxmem.measuring.measurement import MeasuredNode, Measurement
from onnxmem.measuring.measuring import STEPS, BackendUnavailableError, MeasureSettings, measure
from onnxmem.model.binding import Request
from onnxmem.model.files import ModelFile
from onnxmem.runtimes.onnxruntime import session_files
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

SAID: dict[str, dict[str, JSON]] = {
    "trace_first_run": {
        "onnxruntime_version": "1.31.1",
        "base_bytes": 3,
        "requested_peak_bytes": 5,
        "with_scratch_peak_bytes": 7,
        "in_use_peak_bytes": 11,
        "held_bytes": 13,
        "nodes": [["a", "Conv", "CPU", [[1, 2], []], 17, 19, 23, 29, 31]],
        "num_steps": 1,
        "first_order": "a",
    },
    "trace_steady_runs": {
        "held_steady_bytes": 37,
        "pattern_block_bytes": 41,
        "steady_order": "a",
    },
    "run_plain": {
        "load_peak_bytes": 43,
        "process_floor_bytes": 45,
        "process_baseline_bytes": 47,
        "process_peak_bytes": 53,
        "process_steady_bytes": 59,
        "device_baseline_bytes": None,
        "device_peak_bytes": None,
        "device_steady_bytes": None,
        "device_utilization_percent": 61,
        "device_utilization_peak_percent": 67,
        "seconds_per_run": [0.5, 0.25],
    },
}
STORED: dict[str, JSON] = {
    "name": "x",
    "dtype": "<f4",
    "shape": [5, 3],
    "offset": 0,
    "elem_type": None,
}
MODEL = "agraph (float[N,3] x) => (float[N,3] y) { [relu] y = Relu(x) }"


class Children:
    """Children with prepared replies that record their requests."""

    def __init__(self) -> None:
        self.said: dict[str, dict[str, JSON] | ChildFault] = {**SAID}
        self.asked: dict[str, Mapping[str, JSON]] = {}
        self.stored: dict[str, JSON] | ChildFault = {"inputs": [STORED]}
        self.limits: ChildLimits | None = None
        self.uninitialized: Sequence[str] = ()
        self.variables: Mapping[str, str] = {}

    def run(
        self,
        function: str,
        arguments: Mapping[str, JSON],
        limits: ChildLimits,
        uninitialized: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, JSON] | ChildFault:
        name = function.partition(":")[2]
        self.asked[name], self.limits, self.uninitialized = arguments, limits, uninitialized
        self.variables = variables
        if name == "store_inputs":
            return self.stored
        if name == "write_runnable":
            folder = Path(str(arguments["folder"]))
            (folder / "weights.bin").write_bytes(bytes(61))
            return {"path": str(folder / "model.onnx"), "num_filled": 2}
        return self.said[name]

    def request(self, name: str = "run_plain") -> Mapping[str, JSON]:
        request = self.asked[name]["request"]
        assert isinstance(request, dict)
        return request


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Children:
    """No process is started, and temporary files have their own folder."""
    fake = Children()
    monkeypatch.setattr(measuring, "run_in_child", fake.run)
    monkeypatch.setattr(session_files, "run_in_child", fake.run)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(measuring, "available_bytes", lambda: 1_000_000)
    return fake


def measured(*arguments: object, **more: object) -> Measurement:
    found = measure(*arguments, **more)  # type: ignore[arg-type]
    assert isinstance(found, Measurement)
    return found


def on_disk(folder: Path, text: str = MODEL) -> str:
    return str(folder / write_model(folder / "net.onnx", text))


def test_what_the_children_say_is_the_measurement(children: Children, tmp_path: Path) -> None:
    assert measured(on_disk(tmp_path), Request(batch=5)) == Measurement(
        backend="onnxruntime-cpu",
        requested_peak_bytes=5,
        with_scratch_peak_bytes=7,
        pattern_block_bytes=41,
        base_bytes=3,
        in_use_peak_bytes=11,
        held_bytes=13,
        held_steady_bytes=37,
        load_peak_bytes=43,
        process_floor_bytes=45,
        process_baseline_bytes=47,
        process_peak_bytes=53,
        process_steady_bytes=59,
        device_baseline_bytes=None,
        device_peak_bytes=None,
        device_steady_bytes=None,
        device_utilization_percent=61,
        device_utilization_peak_percent=67,
        runs=2,
        seconds_per_run=(0.5, 0.25),
        onnxruntime_version="1.31.1",
        num_filled=0,
        nodes=(MeasuredNode("a", "Conv", "CPU", ((1, 2), ()), 17, 19, 23, 29, 31),),
        findings=(),
    )
    feed = {
        "name": "x",
        "dtype": "float32",
        "elem_type": 1,
        "shape": (5, 3),
        "number": 1,
        "elements": (),
    }
    assert children.asked["store_inputs"]["feeds"] == [feed]
    assert children.request()["inputs"] == (STORED | {"shape": (5, 3)},)
    assert children.request()["inputs_file"] == children.asked["store_inputs"]["path"]
    assert children.request()["overrides"] == {}


def test_malloc_thresholds_are_in_the_environment_of_the_measured_process(
    children: Children, tmp_path: Path
) -> None:
    options = SessionOptions(malloc_threshold_bytes=131_072)
    measured(on_disk(tmp_path), settings=MeasureSettings(options=options))
    assert children.variables == {
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "131072",
    }
    measured(on_disk(tmp_path))
    assert children.variables == {}


def test_what_the_process_has_is_its_floor_and_what_the_model_adds(
    children: Children, tmp_path: Path
) -> None:
    found = measured(on_disk(tmp_path))
    assert found.process_added_bytes == 59 - 45
    assert children.uninitialized == ("onnxmem", "onnxmem.measuring")
    assert replace(found, process_floor_bytes=None).process_added_bytes is None


@pytest.mark.parametrize(
    ("kind", "code"), [("memory", "measure_memory"), ("error", "measure_failed")]
)
def test_inputs_that_cannot_be_stored_give_a_finding(
    children: Children, tmp_path: Path, kind: str, code: str
) -> None:
    children.stored = ChildFault(kind, "no")  # type: ignore[arg-type]
    found = measure(on_disk(tmp_path))
    assert isinstance(found, Finding)
    assert found.code == code
    assert "(opening the model)" in found.message


@pytest.mark.usefixtures("children")
def test_every_step_is_reported_as_progress(tmp_path: Path) -> None:
    reported: list[str] = []
    measured(on_disk(tmp_path), None, MeasureSettings(progress=reported.append))
    assert tuple(reported) == STEPS


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("crash", "measure_crash", "the run crashed (further runs): SIGSEGV"),
        (
            "timeout",
            "measure_timeout",
            "the run did not finish within 300 s (further runs); --timeout sets another limit",
        ),
        ("memory", "measure_memory", "the run needed more than 977 KiB (further runs): SIGSEGV"),
        ("error", "measure_failed", "onnxruntime refused the model (further runs): SIGSEGV"),
    ],
)
def test_a_child_that_fails_gives_a_finding(
    children: Children, tmp_path: Path, kind: str, code: str, message: str
) -> None:
    children.said["trace_steady_runs"] = ChildFault(kind, "SIGSEGV")  # type: ignore[arg-type]
    assert measure(on_disk(tmp_path)) == Finding(code, message)
    assert not any((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("onnxruntime", r"pip install 'onnxmem\[measure\]'"),
        ("CUDAExecutionProvider", "finds no GPU here"),
        ("numpy", "numpy is not installed"),
    ],
)
def test_what_is_not_installed_is_no_fault_of_the_model(
    children: Children, tmp_path: Path, missing: str, message: str
) -> None:
    children.said["trace_first_run"] = ChildFault("missing", missing)
    with pytest.raises(BackendUnavailableError, match=message):
        measure(on_disk(tmp_path))


def test_onnxruntimes_messages_lose_their_noise(children: Children, tmp_path: Path) -> None:
    text = (
        "Fail: [ONNXRuntimeError] : 1 : FAIL : Error while running Add node: "
        "/onnxruntime_src/core/bfc.cc:360 void* F::Alloc(size_t) No shape {2}"
    )
    children.said["trace_first_run"] = ChildFault("error", text)
    found = measure(on_disk(tmp_path))
    assert isinstance(found, Finding)
    assert found.message == (
        "onnxruntime refused the model (one run, node by node): Error while running Add node: "
        "No shape {2}; the inputs were random; --inputs FILE.npz sets real ones"
    )


def test_absent_weights_are_random_and_reported(children: Children, tmp_path: Path) -> None:
    found = measured(on_disk(tmp_path, CONVNET))
    assert found.num_filled == 2
    assert [finding.code for finding in found.findings] == ["unbound_dims", "made_up_weights"]
    # bytes mapped from a file need no memory
    assert children.limits == ChildLimits(300.0, 1_000_061)


def test_a_model_that_has_all_is_run_where_it_is(children: Children, tmp_path: Path) -> None:
    path = on_disk(tmp_path)
    measured(path)
    assert "write_runnable" not in children.asked
    assert children.request()["model"] == path


def test_a_large_model_without_names_is_run_where_it_is(children: Children, tmp_path: Path) -> None:
    path = on_disk(tmp_path, CONVNET.replace("[conv]", "").replace("[relu]", ""))
    (tmp_path / "absent.weights").write_bytes(bytes(20480))
    assert measured(path).num_filled == 0
    assert "write_runnable" not in children.asked
    sizes = 4 * (8 * 3 * 3 * 3 + 8 + 10 * 512 + 10)
    assert children.limits == ChildLimits(300.0, 1_000_000 + sizes)


def test_a_model_without_names_is_copied(children: Children, tmp_path: Path) -> None:
    measured(on_disk(tmp_path, MODEL.replace("[relu]", "")))
    assert children.asked["write_runnable"]["batches"] == []


def test_another_batch_than_the_files_takes_a_copy(children: Children, tmp_path: Path) -> None:
    measured(on_disk(tmp_path, MODEL.replace("N", "2")), Request(batch=5))
    assert children.asked["write_runnable"]["batches"] == [2, 5]
    assert children.asked["write_runnable"]["shapes"] == {"x": (5, 3)}


@pytest.mark.parametrize("is_bytes", [True, False])
def test_a_model_without_a_file_gets_one(children: Children, *, is_bytes: bool) -> None:
    model = model_of(MODEL)
    measured(model.SerializeToString() if is_bytes else model)
    assert Path(str(children.request()["model"])).name == "source.onnx"


@pytest.mark.usefixtures("children")
def test_of_a_model_read_from_bytes_the_weights_are_gone() -> None:
    assert measured(ModelFile("<bytes>", model_of(MODEL), 0)).num_filled == 2


def test_a_model_read_from_a_path_is_run_there(children: Children, tmp_path: Path) -> None:
    path = on_disk(tmp_path)
    measured(ModelFile(path, onnx.load(path), 0))
    assert children.request()["model"] == path


def test_fixed_dims_reach_the_session(children: Children, tmp_path: Path) -> None:
    options = SessionOptions(fixed_dims=True)
    measured(on_disk(tmp_path), Request(batch=5), MeasureSettings(options=options))
    assert children.request()["overrides"] == {"N": 5}


def test_real_inputs_bring_their_shapes(children: Children, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((7, 3), np.float32))
    inputs = MeasureSettings(inputs_npz=str(tmp_path / "in.npz"))
    measured(on_disk(tmp_path), None, inputs)
    assert children.asked["store_inputs"]["inputs_npz"] == str(tmp_path / "in.npz")
    with pytest.raises(InputsFileError, match=r"is \(8, 3\), the inputs file has \(7, 3\)"):
        measure(on_disk(tmp_path), Request(shapes={"x": (8, 3)}), inputs)


def test_what_cannot_run_is_not_run(children: Children, tmp_path: Path) -> None:
    found = measure(on_disk(tmp_path), Request(shapes={"x": (5, 4)}))
    message = "the file fixes dim 1 of 'x' at 3; onnxruntime does not accept 4 there"
    assert found == Finding("measure_failed", message)
    assert children.asked == {}


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        ({"num_steps": 9}, "nodes_left_out", "of 9 nodes that ran, the first 1 are listed"),
        ({"first_order": "b"}, "order_varies", "differed between two processes"),
        (
            {"requested_peak_bytes": None},
            "no_arena_figures",
            "onnxruntime 1.31.1 does not write memory",
        ),
        (
            {"requested_peak_bytes": None, "num_steps": 0, "nodes": []},
            "no_arena_figures",
            "no node ran",
        ),
        (
            {"requested_peak_bytes": None, "num_steps": None, "nodes": []},
            "no_arena_figures",
            "too small for all nodes",
        ),
    ],
)
def test_what_a_reader_should_know_is_a_finding(
    children: Children, tmp_path: Path, said: dict[str, JSON], code: str, message: str
) -> None:
    children.said["trace_first_run"] = SAID["trace_first_run"] | said
    (finding,) = measured(on_disk(tmp_path), Request(batch=5)).findings
    assert finding.code == code
    assert message in finding.message


def test_without_the_arena_its_figures_are_unknown(children: Children, tmp_path: Path) -> None:
    children.said["trace_first_run"] = SAID["trace_first_run"] | {"requested_peak_bytes": None}
    options = SessionOptions(enable_cpu_mem_arena=False)
    found = measured(on_disk(tmp_path), Request(5), MeasureSettings(options=options))
    assert "without its arena" in found.findings[0].message


def test_cuda_has_no_limit_of_address_space(children: Children, tmp_path: Path) -> None:
    found = measured(on_disk(tmp_path), Request(5), MeasureSettings(provider="cuda"))
    assert found.backend == "onnxruntime-cuda"
    assert [finding.code for finding in found.findings] == ["cuda_unconfirmed"]
    assert children.limits == ChildLimits(300.0, None)


@pytest.mark.parametrize(("runs", "seconds"), [(0, 1.0), (1, 0.0)])
def test_a_measurement_takes_a_run_and_time(runs: int, seconds: float) -> None:
    with pytest.raises(UsageError, match="at least one run"):
        MeasureSettings(runs=runs, seconds=seconds)


def test_the_parent_does_not_import_onnxruntime() -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import onnxmem.measuring.measuring;"
        "print('onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
