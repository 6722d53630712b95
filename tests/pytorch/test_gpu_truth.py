"""``tools/training/gpu_truth.py``: one file for a stranger with a GPU, who sends what it prints."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paths import ROOT, script_module

SCRIPT = ROOT / "tools" / "training" / "gpu_truth.py"


@pytest.fixture
def script() -> ModuleType:
    pytest.importorskip("torch", reason="gpu_truth.py needs PyTorch: onnxmem[train]")
    return script_module(SCRIPT)


@pytest.fixture
def gpu(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A GPU of 1,000 bytes: each reading of its allocator has 10 bytes more than the one before."""
    import torch

    numbers = iter(range(10, 10**6, 10))
    peak, current = "requested_bytes.all.peak", "reserved_bytes.all.current"

    def stats(_: object) -> dict[str, int]:
        number = next(numbers)
        found = dict.fromkeys(script.PER_PHASE.values(), number)
        more = ("inactive_split_bytes.all.current", "segment.all.current")
        return found | dict.fromkeys(more, 3) | {peak: number - 1, current: number + 1}

    fake: dict[str, Any] = {
        "is_initialized": lambda: True,
        "mem_get_info": lambda _: (400, 1000),
        "memory_allocated": lambda _: 7,
        "memory_stats": stats,
        "reset_peak_memory_stats": lambda _: None,
        "synchronize": lambda _: None,
    }
    for name, function in fake.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(script, "CUDA", torch.device("cpu"))
    return script


def test_it_imports_nothing_but_torch() -> None:
    imported = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    roots = {name.partition(".")[0] for name in imported}
    assert roots - set(sys.stdlib_module_names) == {"torch"}


@pytest.mark.usefixtures("script")
def test_alone_in_a_folder_it_prints_and_writes_one_document(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "gpu_truth.py", "mlp", "tiny_transformer", "--cpu", "--steps", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert (tmp_path / "gpu_truth.json").read_text() == done.stdout
    document = json.loads(done.stdout)
    assert (document["schema"], document["schema_version"]) == ("onnxmem.gpu_truth", "1.0")
    assert set(document["about"]) >= {"torch", "cuda", "driver", "card"}
    keys = [(row["model"], row["optimizer"], row["batch"]) for row in document["rows"]]
    assert keys == [(n, o, 2) for n in ("mlp", "tiny_transformer") for o in ("sgd", "adam")]
    for row in document["rows"]:
        assert row["error"] is None
        assert list(row["phases"]) == ["forward", "backward", "optimizer"]
        assert set(row["phases"]["forward"].values()) == {None}
    assert {row["parameter_bytes"] for row in document["rows"]} == {525640, 2643968}


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("words", "message"),
    [([], "torch sees no GPU with CUDA"), (["--cpu", "mpl"], "no network mpl; there are mlp,")],
)
def test_a_usage_fault_is_one_line(words: list[str], message: str) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_each_phase_has_what_the_allocator_counts_in_it(gpu: ModuleType) -> None:
    found = gpu.measure(gpu.BY_NAME["mlp"], 2, "adam", 3)
    # Three phases a step: those of the third step are readings 7 to 9.
    assert [each["allocated_peak_bytes"] for each in found["phases"].values()] == [70, 80, 90]
    assert [each["requested_peak_bytes"] for each in found["phases"].values()] == [69, 79, 89]
    assert found["reserved_by_step_bytes"] == [31, 61, 91]
    assert (found["allocated_peak_bytes"], found["reserved_peak_bytes"]) == (90, 90)
    assert (found["held_bytes"], found["in_use_bytes"]) == (7, 600)
    assert found["context_at_end_bytes"] == 600 - 101
    assert found["parameter_bytes"] == 525640


def test_a_snapshot_has_the_requests(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    done: list[object] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: done.append("on"))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", done.append)
    gpu.record(gpu.BY_NAME["mlp"], 2, "sgd", 1, tmp_path / "s.pickle")
    assert done == ["on", str(tmp_path / "s.pickle")]


def test_a_row_that_fails_costs_no_other_its_row(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('no memory')"]
    assert script._row_of(failing, {"model": "mlp"}) == {"model": "mlp", "error": "no memory"}  # noqa: SLF001 - one row of many
    assert capsys.readouterr().err == "  failed: no memory\n"


def test_a_batch_that_does_not_fit_is_a_row(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def full(*_: object) -> None:
        message = "CUDA out of memory. Tried to allocate 2.00 GiB"
        raise torch.cuda.OutOfMemoryError(message)

    monkeypatch.setattr(script, "measure", full)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sys, "argv", ["gpu_truth.py", "mlp", "--here"])
    row = script._row_here(script._options())  # noqa: SLF001 - the part without processes
    assert (row["model"], row["batch"]) == ("mlp", 256)
    assert row["error"].startswith("CUDA out of memory")
