"""A pod from simulated processes: the arithmetic, the three formats, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import assert_golden
from models_on_disk import write_model

from onnxmem.cli import main
from onnxmem.decisions.sizing import (
    ServedProcess,
    Sizing,
    kubernetes_patch,
    read_process,
    sizing_file,
    triton_groups,
)
from onnxmem.errors import UsageError
from onnxmem.runtimes.onnxruntime.process.sessions import FORKED_BYTES, SHARED_BYTES
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

Capture = pytest.CaptureFixture[str]
MIB = 1 << 20
ONE = ServedProcess(
    path="models/Tagger v2.onnx",
    runtime="ort-cpu",
    sessions=2,
    concurrency=3,
    options=SessionOptions(
        num_threads=5,
        enable_mem_reuse=False,
        trims_heap=True,
        malloc_threshold_bytes=131_072,
    ),
    steady_bytes=101 * MIB,
    most_bytes=107 * MIB,
    own_bytes=5 * MIB,
    is_complete=True,
    notes=(),
)
OTHER = replace(
    ONE,
    path="other.onnx",
    sessions=7,
    concurrency=1,
    options=SessionOptions(
        level="basic",
        shrinks_arena=True,
        enable_mem_pattern=False,
        malloc_threshold_bytes=131_072,
    ),
    is_complete=False,
    notes=("tensors of unknown size, left out: 'a\n\u2028b'",),
    steady_bytes=SHARED_BYTES + 11 * MIB,
    most_bytes=SHARED_BYTES + 13 * MIB,
    own_bytes=3 * MIB,
)
SIMULATED = "net.onnx --requests N=1..3 --num-requests 7 --emulate-optimizer".split()


def test_one_process_is_what_it_holds_and_the_most_with_the_error() -> None:
    pod = Sizing((ONE,))
    assert pod.request_bytes == 101 * MIB
    assert pod.limit_bytes == 115 * MIB  # 107 x 1.07 = 114.49
    assert pod.num_threads == 2 * (3 + 5 - 1)


def test_models_of_one_process_share_python_and_the_library() -> None:
    pod = Sizing((ONE, OTHER))
    assert pod.request_bytes == (101 + 11) * MIB
    assert pod.limit_bytes == 129 * MIB  # (107 + 13) x 1.07


def test_workers_share_nothing() -> None:
    pod = Sizing((ONE, OTHER), workers=3)
    assert pod.request_bytes == 3 * (101 + 11) * MIB
    assert pod.limit_bytes == 386 * MIB
    assert pod.num_threads == 3 * (14 + 7)


def test_forked_workers_share_what_no_run_writes() -> None:
    own_bytes = 3 * MIB + 5 * MIB
    loaded_bytes = (101 + 11) * MIB - own_bytes
    one = replace(ONE, options=replace(ONE.options, num_threads=1))
    pod = Sizing((one, OTHER), workers=4, is_forked=True)
    exact = loaded_bytes + 4 * (own_bytes + FORKED_BYTES)
    assert 0 <= pod.request_bytes - exact < MIB
    # The peaks of runs, 6 and 2 MiB above the last state, are each worker's own.
    most = loaded_bytes + 4 * (own_bytes + 8 * MIB + FORKED_BYTES)
    assert 0 <= pod.limit_bytes - 1.07 * most < 3 * MIB
    assert "# 4 workers, forked from" in kubernetes_patch(pod)
    assert json.loads(sizing_file(pod))["is_forked"] is True


def test_sessions_with_threads_are_not_forked() -> None:
    with pytest.raises(UsageError, match="do not survive a fork"):
        Sizing((replace(ONE, options=SessionOptions(num_threads=2)),), is_forked=True)


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
        ("350.onnx", "350"),
        ("true.onnx", "true"),
        ("0x1f.onnx", "0x1f"),
    ],
)
def test_a_container_has_a_name_that_kubernetes_takes(path: str, name: str) -> None:
    text = kubernetes_patch(Sizing((replace(ONE, path=path),)))
    assert f'\n        - name: "{name}"\n' in text
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


def test_one_process_has_one_malloc_threshold() -> None:
    for size_bytes in (None, 262_144):
        options = replace(OTHER.options, malloc_threshold_bytes=size_bytes)
        with pytest.raises(UsageError, match="the same --malloc-threshold"):
            Sizing((ONE, replace(OTHER, options=options)))


def test_a_pod_with_a_part_unknown_is_a_lower_bound() -> None:
    assert Sizing((ONE,)).is_complete
    assert not Sizing((ONE, OTHER)).is_complete


def test_what_is_left_out_of_a_simulation_is_said_of_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "agraph (float[N,7] x, int64[2] i) => (y) { n = Tile(x, i) y = Neg(n) }"
    write_model(Path("net.onnx"), text)
    write_model(Path("other.onnx"))
    assert main(["simulate", *SIMULATED, "-q", "--json", "-o", "saved.json"]) == 0
    left_out = "note: tensors of unknown size, left out: 'y'"
    for words in (SIMULATED, ["other.onnx", *SIMULATED[1:], "--beside", "saved.json"]):
        assert main(["simulate", *words, "--emit", "k8s"]) == 3
        lines, errors = (text.splitlines() for text in capsys.readouterr())
        assert "partial: the limit is a lower bound, and may end the pod" in errors[-1]
        assert f"#   {left_out}" in lines
        assert any(line.startswith("# lower bound: ") for line in lines)
        assert main(["simulate", *words, "--emit", "json"]) == 3
        row = json.loads(capsys.readouterr().out)
        assert [row["is_complete"], row["models"][-1]["is_complete"]] == [False, False]


SAVED: dict[str, object] = {
    "runtime": "ort-cpu",
    "arena_extend_strategy": "kNextPowerOfTwo",
    "sessions": 3,
    "concurrency": 5,
    "num_threads": 7,
}


def write_saved(settings: dict[str, object], steady_bytes: int, most_bytes: int) -> None:
    found = {"timeline": [{"process_bytes": steady_bytes}], "process_most_bytes": most_bytes}
    row = {"path": "net.onnx", "status": "ok", "settings": settings, "simulation": found}
    head = {"schema": "onnxmem.simulation", "schema_version": "1.0", "models": [row]}
    Path("saved.json").write_text(json.dumps(head))


@pytest.mark.parametrize(
    ("settings", "most_bytes", "reason"),
    [
        ({}, 10**400, "process_most_bytes: is more than"),
        ({}, 12, "process_most_bytes: is less than after the last request"),
        ({"sessions": 10**30}, 17, "sessions: is more than 1,024"),
        ({"concurrency": 1025}, 17, "concurrency: is more than 1,024"),
        ({"num_threads": 10**18}, 17, "num_threads: is more than 1,024"),
        ({"runtime": "ort-none"}, 17, "runtime: is not one of ort-cpu"),
        ({"malloc_threshold_bytes": 0}, 17, "malloc_threshold_bytes: a malloc threshold of 0 B"),
        ({"graph": "ort-most"}, 17, "graph: is not one of raw, ort-basic"),
        ({"weights": "lost"}, 17, "weights: is not one of inline, external"),
    ],
)
def test_a_saved_simulation_with_numbers_that_none_has_is_refused(
    settings: dict[str, object],
    most_bytes: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_saved(SAVED, 13, 17)
    assert read_process("saved.json").sessions == 3
    write_saved(SAVED | settings, 13, most_bytes)
    with pytest.raises(UsageError, match=reason):
        read_process("saved.json")


def test_a_limit_is_exact_however_large() -> None:
    most_bytes = (1 << 60) - MIB
    pod = Sizing((replace(ONE, most_bytes=most_bytes),))
    assert pod.limit_bytes == -(-most_bytes * 107 // (100 * MIB)) * MIB


def test_a_file_beside_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))
    write_saved(SAVED, 13, 17)
    before = Path("saved.json").read_bytes()
    words = ["--emit", "json", "--beside", "saved.json", "--force", "-o", "saved.json"]
    assert main(["simulate", *SIMULATED, *words]) == 2
    assert "choose another file for the result" in capsys.readouterr().err
    assert Path("saved.json").read_bytes() == before


def test_settings_that_triton_does_not_have_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))
    own = "--malloc-threshold 128KiB --malloc-trim --no-mem-reuse --weights external"
    words = [*own.split(), "--arena-extend-strategy", "kSameAsRequested", "--emit", "triton"]
    assert main(["simulate", *SIMULATED, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = "# counted, but not in this file: "
    assert [each.removeprefix(start) for each in lines if each.startswith(start)] == [
        "enable_mem_reuse 0",
        "arena_extend_strategy kSameAsRequested",
        "external weights",
        "malloc_trim(0) when the session is created",
        "MALLOC_MMAP_THRESHOLD_=131072 in the environment of tritonserver",
        "MALLOC_TRIM_THRESHOLD_=131072 in the environment of tritonserver",
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--workers 10001", "10,001 workers"),
        ("--beside missing.json", "missing.json: cannot be opened"),
        ("--beside .", ".: cannot be opened"),
    ],
)
def test_a_pod_is_refused_before_anything_is_simulated(
    words: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *SIMULATED, "--emit", "k8s", *words.split()]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "net.onnx" not in error
    if "beside" in words:
        assert error.endswith("onnxmem simulate MODEL --requests ... --json -o FILE\n")


def test_a_saved_simulation_is_the_process_that_was_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))
    own = ["--threads", "3", "--malloc-threshold", "128KiB", "--no-mem-pattern"]
    own += ["--graph", "ort-basic"]
    assert main(["simulate", *SIMULATED, *own, "-q", "--json", "-o", "saved.json"]) == 0
    assert main(["simulate", *SIMULATED, *own, "--emit", "json"]) == 0
    (direct,) = json.loads(capsys.readouterr().out)["models"]
    saved = read_process("saved.json")
    assert (saved.path, saved.options.num_threads) == ("net.onnx", 3)
    assert (saved.steady_bytes, saved.most_bytes) == (direct["steady_bytes"], direct["most_bytes"])
    assert saved.options.level == "basic"
    assert saved.options.variables == {
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "131072",
    }
    assert not saved.options.enable_mem_pattern


def test_a_pod_of_the_advised_settings_says_them_and_is_no_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))
    pods = []
    for words in ((), ("--advise",)):
        assert main(["simulate", *SIMULATED, "--emit", "json", *words]) == 0
        pods.append(json.loads(capsys.readouterr().out))
    own, advised = (each["models"][0] for each in pods)
    assert own["settings"] == []
    assert advised["settings"]
    assert advised["most_bytes"] <= own["most_bytes"]
    assert main(["simulate", *SIMULATED, "--emit", "k8s", "--advise"]) == 0
    assert f"#   with {', '.join(advised['settings'])}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--workers 2", "--workers: no effect without --emit"),
        ("--beside a.json", "--beside: no effect without --emit"),
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
        "settings": SAVED | {"sessions": 0},
        "simulation": {"timeline": [{"process_bytes": 5}], "process_most_bytes": 7},
    }
    Path("odd.json").write_text(json.dumps(head | {"models": [odd]}))
    assert main(["simulate", *SIMULATED, *words.split()]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
