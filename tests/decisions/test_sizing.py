"""A pod from simulated processes: the arithmetic, the three formats, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import assert_golden
from models_on_disk import write_model

from onnxmem.cli import main
from onnxmem.decisions.simulate import SHARED_BYTES
from onnxmem.decisions.sizing import (
    ServedProcess,
    Sizing,
    kubernetes_patch,
    read_process,
    sizing_file,
    triton_groups,
)
from onnxmem.errors import UsageError

Capture = pytest.CaptureFixture[str]
MIB = 1 << 20
ONE = ServedProcess(
    path="models/Tagger v2.onnx",
    runtime="ort-cpu",
    sessions=2,
    concurrency=3,
    num_threads=5,
    enable_mem_pattern=True,
    shrinks_arena=False,
    variables={"MALLOC_MMAP_THRESHOLD_": "131072"},
    steady_bytes=101 * MIB,
    most_bytes=107 * MIB,
)
OTHER = replace(
    ONE,
    path="other.onnx",
    sessions=7,
    concurrency=1,
    num_threads=1,
    variables={},
    shrinks_arena=True,
    enable_mem_pattern=False,
    steady_bytes=SHARED_BYTES + 11 * MIB,
    most_bytes=SHARED_BYTES + 13 * MIB,
)
SIMULATED = "net.onnx --requests N=1..3 --num-requests 7 --emulate-optimizer".split()


def test_one_process_is_what_it_holds_and_the_most_with_the_error() -> None:
    pod = Sizing((ONE,))
    assert pod.request_bytes == 101 * MIB
    assert pod.limit_bytes == 113 * MIB  # 107 x 1.05 = 112.35
    assert pod.num_threads == 2 * (3 + 5 - 1)


def test_models_of_one_process_share_python_and_the_library() -> None:
    pod = Sizing((ONE, OTHER))
    assert pod.request_bytes == (101 + 11) * MIB
    assert pod.limit_bytes == 126 * MIB  # (107 + 13) x 1.05


def test_workers_share_nothing() -> None:
    pod = Sizing((ONE, OTHER), workers=3)
    assert pod.request_bytes == 3 * (101 + 11) * MIB
    assert pod.limit_bytes == 378 * MIB
    assert pod.num_threads == 3 * (14 + 7)


def test_sizes_are_whole_mebibytes_rounded_up() -> None:
    pod = Sizing((replace(ONE, steady_bytes=101 * MIB + 1),))
    assert pod.request_bytes == 102 * MIB


def test_the_patch_of_a_deployment() -> None:
    assert_golden(kubernetes_patch(Sizing((ONE, OTHER), workers=3)), "sizing/pod.yaml")


def test_the_instance_groups_of_triton() -> None:
    one = replace(ONE, concurrency=1)
    assert_golden(triton_groups(Sizing((one, OTHER))), "sizing/config.pbtxt")


def test_the_same_as_json() -> None:
    assert_golden(sizing_file(Sizing((ONE, OTHER), workers=3)), "sizing/pod.json")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Tagger v2.onnx", "tagger-v2"),
        ("...onnx", "model"),
        (f"{'x' * 70}.onnx", "x" * 63),
        ("Ümläut_(1).onnx", "ml-ut-1"),
        ("a\nb: {evil}.onnx", "a-b-evil"),
    ],
)
def test_a_container_has_a_name_that_kubernetes_takes(path: str, name: str) -> None:
    text = kubernetes_patch(Sizing((replace(ONE, path=path),)))
    assert f"\n        - name: {name}\n" in text
    assert all(line.startswith(("#", "spec:", " ")) for line in text.splitlines())


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (Sizing((ONE,)), "use --sessions 6 --concurrency 1"),
        (Sizing((OTHER,), workers=2), "Triton is one process"),
    ],
)
def test_triton_has_no_concurrent_runs_and_no_workers(pod: Sizing, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        triton_groups(pod)


def test_a_gpu_has_no_pod() -> None:
    with pytest.raises(UsageError, match="unknown for a GPU"):
        kubernetes_patch(Sizing((replace(ONE, runtime="ort-cuda"),)))
    with pytest.raises(UsageError, match="size each runtime by itself"):
        Sizing((ONE, replace(OTHER, runtime="ort-cuda")))


def test_a_saved_simulation_is_the_process_that_was_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))
    own = ["--threads", "3", "--malloc-threshold", "128KiB", "--no-mem-pattern"]
    assert main(["simulate", *SIMULATED, *own, "-q", "--json", "-o", "saved.json"]) == 0
    assert main(["simulate", *SIMULATED, *own, "--emit", "json"]) == 0
    (direct,) = json.loads(capsys.readouterr().out)["models"]
    saved = read_process("saved.json")
    assert (saved.path, saved.num_threads) == ("net.onnx", 3)
    assert (saved.steady_bytes, saved.most_bytes) == (direct["steady_bytes"], direct["most_bytes"])
    assert saved.variables == {
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "131072",
    }
    assert not saved.enable_mem_pattern


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--workers 2", "--workers: no effect without --emit"),
        ("--beside a.json", "--beside: no effect without --emit"),
        ("--emit k8s --advise", "--advise: no effect with --emit k8s"),
        ("--emit k8s --json", "two forms of one result"),
        ("--emit k8s --workers 10001", "10,001 workers; it is between 1 and 10,000"),
        ("--emit k8s --beside net.onnx", "net.onnx: is not JSON"),
        ("--emit k8s --beside missing.json", "missing.json: cannot be opened"),
        ("--emit k8s --beside report.json", "schema: is not onnxmem.simulation"),
        ("--emit k8s --beside empty.json", "has not the simulation of one model"),
        ("--emit k8s --beside odd.json", "is not a positive count"),
        ("--emit k8s --runtime ort-cuda", "unknown for a GPU"),
    ],
)
def test_what_is_no_pod_is_refused(
    words: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))
    head: dict[str, object] = {"schema": "onnxmem.simulation", "schema_version": "1.0"}
    Path("report.json").write_text('{"schema": "onnxmem.report"}')
    Path("empty.json").write_text(json.dumps(head | {"models": []}))
    odd = {
        "settings": {"sessions": 0},
        "simulation": {"timeline": [{"process_bytes": 5}], "process_most_bytes": 7},
    }
    Path("odd.json").write_text(json.dumps(head | {"models": [odd]}))
    assert main(["simulate", *SIMULATED, *words.split()]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
