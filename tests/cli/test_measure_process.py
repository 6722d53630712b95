"""``onnxmem measure --pid``: a process that runs already, beside its prediction."""

import json
import os
import sys
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from models_on_disk import write_model

from onnxmem import TrainingConfig, analyze
from onnxmem.cli import main

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
Capture = pytest.CaptureFixture[str]
OWN = ("measure", "--pid", str(os.getpid()))


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=False))


def test_a_line_for_the_process_and_its_peak(capsys: Capture) -> None:
    assert main(OWN) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"process {os.getpid()} (")
    assert lines[0].endswith("read once")
    assert lines[2].split() == ["process", "RSS", "peak", "RSS", "PSS"]
    assert lines[-1].startswith("peak  RSS ")


def test_the_json_has_every_process(capsys: Capture) -> None:
    assert main([*OWN, "--json", "--seconds", "0.2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["models"]) == ("onnxmem.measurement", [])
    row = document["process"]
    assert (row["pid"], row["ended"], row["predicted"]) == (os.getpid(), False, None)
    assert row["readings"] >= 2
    assert row["peak_rss_bytes"] >= row["rss_bytes"] > 2**20
    assert row["rss_bytes"] == sum(each["rss_bytes"] for each in row["processes"])
    assert row["gpu_bytes"] is None


def test_a_training_loop_is_beside_its_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    net = write_model(tmp_path / "net.onnx")
    on_gpu = {0: {os.getpid(): 2**29}}
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True, processes=on_gpu))
    assert main([*OWN, net, "--train", "--optimizer", "sgd", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["process"]
    found = row["predicted"]
    step = analyze(net, train=True, recipe=TrainingConfig(optimizer="sgd")).torch
    assert step is not None
    assert found["figure"] == "training.cuda.total_bytes"
    assert (found["bytes"], found["measured_bytes"]) == (step.total_bytes, 2**29)
    assert found["error_percent"] == 100 * (step.total_bytes / 2**29 - 1)
    assert row["gpu_utilization_peak_percent"] == 37
    assert main([*OWN, net, "--train"]) == 0
    out = capsys.readouterr().out
    assert "GPU" in out.splitlines()[2]
    assert "GPU utilization 37 % on average, 37 % at most" in " ".join(out.split())
    assert f"{net}, predicted  GPU memory of a training loop" in out
    assert "% of GPU" in out


def test_a_session_is_beside_its_prediction(tmp_path: Path, capsys: Capture) -> None:
    net = write_model(tmp_path / "net.onnx")
    assert main([*OWN, net, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["process"]["predicted"]
    (session,) = analyze(net, runtimes=["ort-cpu"]).runtimes
    assert (found["figure"], found["bytes"]) == ("runtime.process_bytes", session.process_bytes)


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    write_model(tmp_path / "net.onnx")
    assert main([*OWN, "nett.onnx"]) == 2
    line = "error: nett.onnx: missing_file: no such file; did you mean net.onnx?\n"
    assert capsys.readouterr() == ("", line)


def test_a_training_loop_without_a_gpu_is_not_compared(tmp_path: Path, capsys: Capture) -> None:
    net = write_model(tmp_path / "net.onnx")
    assert main([*OWN, net, "--train"]) == 0
    assert capsys.readouterr().out.endswith("not compared: unknown GPU\n")


def test_a_process_that_ended_is_one_line(capsys: Capture) -> None:
    assert main(["measure", "--pid", "999999999"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: unreadable_process: process 999999999: there is no such process\n",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "name a model to run, or a process that runs already: --pid PID"),
        ("m.onnx --seconds 3", "--seconds: no effect without a running process: add --pid PID"),
        ("m.onnx --train", "add --pid PID; or from Python: onnxmem.torch.measure(module, inputs)"),
        ("m.onnx --optimizer sgd", "--optimizer: no effect without a training step; add --train"),
        ("--pid 1 --runs 5", "--runs: no effect without a run: --pid reads a process"),
        ("--pid 1 --memory-limit 1GiB", "--memory-limit: no effect without a run"),
        ("--pid 1 --batch 5", "--batch: no effect without a model beside --pid"),
        ("--pid 1 --dim N=5", "--dim: no effect without a model beside --pid"),
        ("--pid 1 --train", "--train: no effect without a model beside --pid"),
        ("m.onnx --pid 1 --train --device cuda", "--device: no effect without a session"),
        ("m.onnx n.onnx --pid 1", "--pid compares one model with the process, not 2"),
        ("--pid 0", "argument --pid: '0' is not a positive integer"),
        ("--pid -5", "argument --pid: "),
        ("--pid x", "argument --pid: 'x' is not a positive integer"),
        ("--pid 1 --seconds 0", "argument --seconds: '0' is not a time"),
    ],
)
def test_what_has_no_effect_is_refused(line: str, message: str, capsys: Capture) -> None:
    assert main(["measure", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
