"""Why a process takes more than the file: the sum of its parts, and the settings that lower it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from paths import MODELS
from predicted_runtimes import runtime_of

import onnxmem
from onnxmem.analysis.analysis import Analysis
from onnxmem.cli import main
from onnxmem.decisions.advise.proposals import Objective, Subject, bytes_of
from onnxmem.decisions.explain.process import ExplainedProcess, explained_process, stored_bytes
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.units import format_bytes

Capture = pytest.CaptureFixture[str]
MIB: Final = 2**20
RESNET = MODELS / "resnet50.onnx"


def resnet(batch: int, graph: str | None = None) -> Analysis:
    return onnxmem.analyze(
        RESNET, batch=batch, runtimes=("ort-cpu",), graph=graph, asks_onnxruntime=False
    )


@pytest.fixture(scope="module")
def at_16() -> ExplainedProcess:
    found = explained_process(resnet(16))
    assert found is not None
    return found


def test_the_parts_add_up_and_none_is_empty(at_16: ExplainedProcess) -> None:
    assert sum(size for _, size in at_16.parts) == at_16.total_bytes
    assert min(size for _, size in at_16.parts) > 0


def test_the_file_counts_with_its_external_weights(at_16: ExplainedProcess) -> None:
    weights = resnet(16).weight_bytes or 0
    assert weights <= at_16.file_bytes < 1.01 * weights + RESNET.stat().st_size


def test_a_suggested_setting_saves_what_an_analysis_with_it_shows(
    at_16: ExplainedProcess,
) -> None:
    by_id = {each.suggestion.id: each for each in at_16.settings}
    half = explained_process(resnet(8))
    assert half is not None
    assert by_id["batch"].saved_bytes == at_16.total_bytes - half.total_bytes


def test_the_optimization_level_is_suggested_if_another_graph_takes_less() -> None:
    found, plain = explained_process(resnet(1)), explained_process(resnet(1, "ort-extended"))
    assert found is not None
    assert plain is not None
    (best,) = (each for each in found.settings if each.suggestion.group == "level")
    assert best.after_bytes == plain.total_bytes < found.total_bytes


def test_settings_that_save_nothing_are_not_suggested() -> None:
    analysis = onnxmem.analyze(MODELS / "mlp.onnx", runtimes=("ort-cpu",), asks_onnxruntime=False)
    found = explained_process(analysis)
    assert found is not None
    assert found.settings == ()


SHRUNK: Final = {
    ("unet", 1): (238.4, 214.4),
    ("vit_tiny", 8): (142.3, 88.4),
    ("densenet121", 8): (289.2, 176.5),
    ("resnet50", 16): (404.9, 294.8),
    ("mobilenet_v2", 16): (245.5, 141.3),
    ("convnext_tiny", 4): (277.8, 174.4),
}
"""By model and batch: MiB of the process after three runs, measured without and with
``memory.enable_memory_arena_shrinkage`` (onnxruntime 1.32 on a CPU with AVX-512, glibc 2.36)."""


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        pytest.param(
            *each, marks=pytest.mark.slow if each[0] in {"densenet121", "vit_tiny"} else ()
        )
        for each in SHRUNK
    ],
)
def test_arena_shrinkage_saves_what_was_measured(name: str, batch: int) -> None:
    analysis = onnxmem.analyze(MODELS / f"{name}.onnx", batch=batch, cpu="avx512")
    before, after = (
        bytes_of(Objective.PROCESS, Subject(analysis.request, SessionOptions(shrinks_arena=each)))
        for each in (False, True)
    )
    assert before is not None
    assert after is not None
    measured = SHRUNK[name, batch]
    saved_percent = 100 * (before - after) / (measured[0] - measured[1]) / MIB - 100
    assert abs(saved_percent) < 1


GROWN: Final = {
    ("mobilenet_v2", 16): (214.6, 245.3),
    ("resnet50", 4): (223.8, 251.3),
    ("whisper_tiny_encoder", 1): (181.0, 234.5),
}
"""By model and batch: MiB of the process after run 1 and after later ones, measured."""


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize(("name", "batch"), GROWN)
def test_the_second_run_adds_what_was_measured(name: str, batch: int) -> None:
    analysis = onnxmem.analyze(
        MODELS / f"{name}.onnx", batch=batch, cpu="avx512", runtimes=("ort-cpu",)
    )
    (runtime,) = analysis.runtimes
    total, first = runtime.process_bytes, runtime.process_first_run_bytes
    assert total is not None
    assert first is not None
    measured_first, measured = GROWN[name, batch]
    assert (total - first) / MIB == pytest.approx(measured - measured_first, rel=0.01)
    # Which outcome of the heap a process takes is not known, only that it is one of them.
    least, most = runtime.process_range or (total, total)
    assert 0.975 * least <= measured * MIB <= 1.025 * most


def test_a_process_on_cuda_is_not_explained() -> None:
    analysis = onnxmem.analyze(MODELS / "mlp.onnx", runtimes=("ort-cuda",), asks_onnxruntime=False)
    assert explained_process(analysis) is None


def test_the_text_ends_its_sum_with_the_total_and_names_two_settings(capsys: Capture) -> None:
    words = ["process", str(RESNET), "--batch", "16", "--emulate-optimizer"]
    assert main(["explain", *words]) == 0
    text = capsys.readouterr().out
    for reported in ("prepacked weights", "freed but kept", "malloc_trim", "the model", "+-7 %"):
        assert reported in text
    first = " ".join(text.partition("\nModel")[0].split())
    whole = r"Process \d+ MiB [\d.]+ x the model; 5\d\.\d MiB are Python and onnxruntime, "
    assert re.fullmatch(f"{whole}whatever the model", first)
    assert text.index("   arenas") < text.index("= process, predicted")
    assert text.count("\n  saves ") == 2


def test_json_has_the_suggested_settings(capsys: Capture) -> None:
    words = ["process", str(RESNET), "--batch", "16", "--emulate-optimizer", "--json"]
    assert main(["explain", *words]) == 0
    (row,) = json.loads(capsys.readouterr().out)["explained"]
    assert sum(part["bytes"] for part in row["parts"]) == row["value"]
    assert [each["id"] for each in row["lowered_by"]] == ["session_shrinkage", "batch"]


@pytest.mark.measure
def test_the_sum_ends_with_the_measured_total_if_requested(capsys: Capture) -> None:
    pytest.importorskip("onnxruntime")
    words = ["process", str(MODELS / "mlp.onnx"), "--measure", "cpu", "--json"]
    assert main(["explain", *words]) == 0
    (row,) = json.loads(capsys.readouterr().out)["explained"]
    assert row["measured_bytes"] == pytest.approx(row["value"], rel=0.25)


@pytest.mark.parametrize("words", [["held", str(RESNET)], ["process"], ["OM301"]])
def test_a_measurement_that_is_not_shown_is_rejected(words: list[str], capsys: Capture) -> None:
    assert main(["explain", *words, "--measure", "cpu"]) == 2
    assert "--measure" in capsys.readouterr().err


def test_the_last_word_is_the_model_if_such_a_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "arena", "reserved"]) == 0
    assert "runtime.held_bytes" in capsys.readouterr().out
    assert main(["explain", "arena", "reserved", "gone.onnx"]) == 2
    assert "gone.onnx" in capsys.readouterr().err
    Path("model").write_bytes(RESNET.read_bytes())
    assert main(["explain", "total", "model"]) == 0
    assert "model" in capsys.readouterr().out


def test_a_dim_that_counts_as_1_is_named(capsys: Capture) -> None:
    given = [str(MODELS / "lstm_classifier.onnx"), "--emulate-optimizer"]
    for words in ("process", "peak", "why is memory higher than the file"):
        assert main(["explain", words, *given]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "'time' counts as 1; set --dim time=512" in text
    assert main(["explain", "process", *given, "--dim", "time=7"]) == 0
    assert "counts as 1" not in capsys.readouterr().out


@pytest.mark.usefixtures("without_children")
def test_the_load_peak_has_the_whole_process_the_file_and_its_error(capsys: Capture) -> None:
    path = MODELS / "mlp.onnx"
    analysis = onnxmem.analyze(path, runtimes=("ort-cpu",), asks_onnxruntime=False)
    (runtime,) = analysis.runtimes
    whole = runtime.process_while_loading_bytes
    assert whole is not None
    assert main(["explain", "load peak", str(path), "--emulate-optimizer"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    before = format_bytes(whole - (runtime.load_peak_bytes or 0))
    parts = f"+ Python and imports {before} before it = process, loading {format_bytes(whole)}"
    assert parts in text
    growth = f"growth {(runtime.load_peak_bytes or 0) / stored_bytes(analysis):.2f} x the file"
    assert growth in text
    stored = stored_bytes(analysis)
    # The biases are in the file.
    assert stored == path.stat().st_size + 4 * (1000 * 100 + 3 * 100 * 100 + 100 * 10)
    assert f"{whole / stored:.2f} x the file and the weights outside it" in text
    assert "accuracy +-12 %: 90 % of 153 files" in text


@pytest.mark.usefixtures("without_children")
def test_the_topic_of_the_file_adds_the_weights_outside_it(capsys: Capture) -> None:
    path = MODELS / "resnet50.onnx"
    analysis = onnxmem.analyze(path, runtimes=("ort-cpu",), asks_onnxruntime=False)
    assert main(["explain", "more than the file", str(path), "--emulate-optimizer"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    stored, inside = stored_bytes(analysis), path.stat().st_size
    assert f"file {format_bytes(inside)} weights outside it {format_bytes(stored - inside)}" in text
    process_bytes = analysis.runtimes[0].process_bytes
    assert process_bytes is not None
    assert f"multiple {process_bytes / stored:.2f} x the file and the weights outside it" in text


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize("words", ["elements", "elements and bytes"])
def test_elements_say_once_what_is_not_counted(words: str, capsys: Capture) -> None:
    path = str(MODELS / "mlp.onnx")
    assert main(["explain", words, path, "--batch", "256"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("not counted weights (131,410 parameters); outputs in place") == 1
    assert "inputs and activations twice" in text
    assert "(definition" not in text


def test_the_peak_of_a_process_is_the_most_of_load_and_runs() -> None:
    runtime = runtime_of()
    parts = (("before", 7), ("rest", 6))
    at = replace(runtime, process_parts=parts, process_bytes=13, process_first_run_bytes=11)
    assert replace(at, load_peak_bytes=5).process_peak_bytes == 13
    assert replace(at, load_peak_bytes=10).process_peak_bytes == 17
    assert replace(at, load_peak_bytes=None).process_peak_bytes is None


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize("asked", ["process", "memory while a model loads"])
def test_a_figure_of_inference_says_what_answers_for_training(asked: str, capsys: Capture) -> None:
    model = str(MODELS / "mlp.onnx")
    line = ["explain", asked, model, "--batch", "3"]
    assert main([*line, "--train", "--optimizer", "sgd"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--train no effect: it is of onnxruntime's inference" in shown
    assert f"of a training step: onnxmem {model} --train --batch 3 --optimizer sgd" in shown
    assert main(line) == 0
    assert "no effect" not in capsys.readouterr().out


@pytest.mark.usefixtures("without_children")
def test_the_next_command_has_the_dims_that_were_given(capsys: Capture) -> None:
    model = str(MODELS / "lstm_classifier.onnx")
    dims = ["--dim", "time=7"]
    assert main(["explain", "process", model, "--batch", "3", *dims]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"onnxmem advise {model} --batch 3 --dim time=7 lists" in shown
    message = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 300.00 MiB total capacity)"
    assert main(["explain", message, model, *dims, "--train", "--optimizer", "sgd"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    flags = "--train --dim time=7 --optimizer sgd"
    assert f"onnxmem fit {model} --device 300MiB {flags} " in shown
