"""What is asked of one runtime, batch or figure is answered of it."""

import re
from pathlib import Path

import pytest
from models_on_disk import write_model

from onnxmem import Analysis, analyze
from onnxmem.cli import main
from onnxmem.decisions.explain.topics import commands_for, topic_named
from onnxmem.settings import Settings

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    return tmp_path


def explained(words: list[str], capsys: Capture) -> str:
    assert main(["explain", *words, "--emulate-optimizer"]) == 0
    return capsys.readouterr().out


def session(name: str) -> Analysis:
    return analyze("net.onnx", runtimes=(name,), asks_onnxruntime=False)


@pytest.mark.parametrize("question", ["which tensor takes the memory", "peak"])
def test_tensors_are_those_of_the_session_that_is_requested(question: str, capsys: Capture) -> None:
    text = explained([question, "net.onnx", "--runtime", "ort-cuda"], capsys)
    arena = session("ort-cuda").runtimes[0].arena
    assert "peak requested by kernels" in text
    for each in arena.replay.live_set(arena.peak)[:3]:
        assert re.search(rf"B +(\d.* B +)?{re.escape(each.label)}$", text, re.MULTILINE)
    assert "peak activation memory   " not in text
    assert "peak activation memory   " in explained([question, "net.onnx"], capsys)


def test_a_question_about_growth_is_of_the_device_on_cuda(capsys: Capture) -> None:
    question = "why does memory grow between runs"
    text = explained([question, "net.onnx", "--runtime", "ort-cuda"], capsys)
    assert "unknown" not in text
    assert not re.search(r"^process", text, re.MULTILINE)
    assert "onnxmem advise net.onnx --runtime ort-cuda" in text
    assert "--runtime ort-cpu" not in text
    assert re.search(r"^process  ", explained([question, "net.onnx"], capsys), re.MULTILINE)


def test_commands_have_the_runtime_that_is_requested() -> None:
    topic = topic_named("which tensor or layer")
    assert topic is not None
    commands = commands_for(topic, "", Settings(runtimes=("ort-cuda",)))
    assert commands == tuple(f"{each} --runtime ort-cuda" for each in topic.commands)
    assert commands_for(topic, "", Settings()) == topic.commands


def test_the_workspace_of_cudnn_is_of_the_run_that_is_requested(capsys: Capture) -> None:
    keys = "runtime.workspace_bytes", "training.cuda.cudnn_workspace_bytes"
    for flag, shown, hidden in (("--batch=1", *keys), ("--train", *reversed(keys))):
        text = explained(["cudnn workspace", "net.onnx", flag], capsys)
        assert shown in text
        assert hidden not in text


def matmul(rows: int, inner: int, columns: int) -> str:
    """A product with a weight, in ONNX text."""
    return (
        f"agraph (float[{rows},{inner}] x) => (float[{rows},{columns}] y) "
        f"<float[{inner},{columns}] w> {{ y = MatMul(x, w) }}"
    )


@pytest.mark.parametrize(
    "words", [["explain", "flops"], ["explain", "how many FLOPs"], ["analyze", "-v"]], ids=str
)
def test_flops_of_a_batch_are_told_for_a_sample_too(words: list[str], capsys: Capture) -> None:
    """A matrix of 7 by 11 takes 2 x 77 FLOPs for a row."""
    write_model(Path("fixed.onnx"), matmul(3, 7, 11))
    assert main([*words, "fixed.onnx"]) == 0
    text = capsys.readouterr().out
    assert "462" in text
    assert "at batch 3, 154 per sample" in text
    assert main([*words, "fixed.onnx", "--batch", "1"]) == 0
    assert "154 per sample" not in capsys.readouterr().out


def test_a_message_says_nothing_of_its_batch_and_tensors_name_theirs(capsys: Capture) -> None:
    size = 2 * analyze("net.onnx").activations.live_at_peak[0].size_bytes
    message = f"Failed to allocate memory for requested buffer of size {size}"
    text = explained([message, "net.onnx"], capsys)
    assert (
        "  at batch 1                no tensor has that size; the message names no batch\n" in text
    )
    assert "of that size; --batch 2 compares the message with that run\n" in text
    assert text.count("    at batch 2  ") == 1


def test_advice_on_weights_stands_apart_from_advice_on_the_figure(capsys: Capture) -> None:
    write_model(Path("heavy.onnx"), matmul(1, 331, 307))
    assert main(["advise", "heavy.onnx", "--runtime", "ort-cuda"]) == 0
    text = capsys.readouterr().out
    weights = 4 * 331 * 307
    before, heading, after = text.partition(
        f"\nAdvice on another figure: weights, {weights / 1024:.0f} KiB now\n"
    )
    assert heading
    assert "int8_weights" in after
    assert "_weights" not in before


def test_each_of_several_models_has_a_verdict_before_all_together(capsys: Capture) -> None:
    write_model(Path("wide.onnx"), matmul(5, 331, 307))
    assert main(["fit", "net.onnx", "wide.onnx", "--device", "400KiB"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("2 models  on 400KiB\nassumes: inference, each at its own batch\n")
    assert "\nEach alone                  1 fit, 1 do not fit\n" in text
    assert re.search(r"^ +[\d.]+ KiB  fits          net.onnx$", text, re.MULTILINE)
    assert re.search(r"^ +[\d.]+ KiB  does not fit  wide.onnx$", text, re.MULTILINE)
    assert text.index("Each alone") < text.index("All together                does not fit: ")
    assert "unknown: the models have different batches; --batch N sets one" in text
    assert main(["fit", "net.onnx", "net.onnx", "--device", "400KiB"]) == 0
    assert re.search(r"largest batch that fits +\d", capsys.readouterr().out)


def test_several_models_without_a_batch_have_no_different_ones(capsys: Capture) -> None:
    for name in ("one.onnx", "other.onnx"):
        write_model(Path(name), "agraph (float x) => (float y) { y = Relu(x) }")
    assert main(["fit", "one.onnx", "other.onnx", "--device", "400KiB"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 models  on 400KiB\nassumes: inference, no batch\n")
    assert "unknown: the model has no batch" in text
