"""``onnxmem diff MODEL --snapshot FILE``: what it prints and what it refuses."""

from pathlib import Path

import pytest
from models_on_disk import write_model
from recorded_snapshots import changed, document, written

from onnxmem.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))
    written(Path("run.pickle"), document("2.6"))


def test_a_run_and_its_prediction_are_beside_each_other(capsys: Capture) -> None:
    assert main("diff net.onnx --train --batch 2 --snapshot run.pickle".split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "run         run.pickle  8 allocations recorded" in lines
    by_label = {line[:20].strip(): line.split()[4:6] for line in lines[:8]}
    assert by_label["requested, peak"] == ["26.0", "MiB"]
    assert by_label["reserved, peak"] == ["42.0", "MiB"]
    assert "peak of the run           allocation 4 of 8, step (/home/user/train.py:31)" in lines
    assert "  requests                  8 of 8 requests reserve as much as in the run" in lines
    assert "  segments at the end       the same: 4 segments of 42.0 MiB" in lines
    assert "              18.0 MiB  step (/home/user/train.py:31)" in lines


def test_what_makes_the_replay_no_proof_is_said(capsys: Capture) -> None:
    late = changed("2.6", lambda found: found["device_traces"][0].__delitem__(slice(0, 4)))
    written(Path("late.pickle"), late)
    assert main("diff net.onnx --train --snapshot late.pickle".split()) == 0
    assert "no proof" in capsys.readouterr().out
    blocks = changed("2.6", lambda found: found.pop("device_traces"))
    written(Path("blocks.pickle"), blocks)
    assert main("diff net.onnx --train --snapshot blocks.pickle".split()) == 0
    printed = capsys.readouterr().out
    assert "no events: blocks at the end only; record with _record_memory_history()" in printed
    assert "not replayed: the snapshot has no events" in printed


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("net.onnx net.onnx", "2 models; name one with --snapshot"),
        ("net.onnx --b-batch 4", "--b-batch: no effect with --snapshot"),
        ("net.onnx --budget 1GiB", "--budget: no effect with --snapshot"),
        ("net.onnx --fail-on-growth 5%", "--fail-on-growth: no effect with --snapshot"),
        ("net.onnx --html page.html", "--html: no effect with --snapshot"),
        ("net.onnx --basis tensors", "--basis"),
        ("net.onnx --optimizer sgd", "--optimizer: no effect without a training step"),
        ("net.onnx --dim nothing=3", "nothing"),
        ("missing.onnx", "no such file"),
    ],
)
def test_what_has_no_meaning_beside_a_run_is_refused(
    words: str, reason: str, capsys: Capture
) -> None:
    assert main(["diff", *words.split(), "--snapshot", "run.pickle"]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
