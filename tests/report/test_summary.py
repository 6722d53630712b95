"""The report that a command prints by default: the answer first, in 25 lines, as wide as asked."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from golden_text import assert_golden
from models_on_disk import HOSTILE, MYSTERY, write_hostile_model, write_model
from paths import MODELS

from onnxmem import Analysis, analyze
from onnxmem.analysis.fitting.footprints import footprint_of
from onnxmem.analysis.fitting.verdicts import Basis, Verdict
from onnxmem.cli import main
from onnxmem.errors import Finding
from onnxmem.report.sections.section import Layout, Line, Section
from onnxmem.report.sections.summary import one_line, summary
from onnxmem.report.terminal import render, render_answer, render_line, session_rows
from onnxmem.units import format_bytes

RESNET = MODELS / "resnet50.onnx"


@pytest.fixture(scope="module")
def resnet() -> Analysis:
    return analyze(RESNET, batch=128, train=True, budget_bytes=24 * 2**30)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def section(analysis: Analysis, key: str) -> Section:
    return next(each for each in summary(analysis) if each.key == key)


def test_a_training_step_within_a_budget(resnet: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = render_answer(replace(resnet, path="resnet50.onnx"))
    assert_golden(text, "answer_train.txt")
    lines = text.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("Fits  24.0 GiB: takes 12.3 GiB at batch 128, 11.7 GiB free")


def test_an_answer_without_training_is_the_expected_text() -> None:
    assert_golden(render_answer(analyze(write_model(Path("net.onnx")))), "answer.txt")


def test_a_training_step_has_no_line_of_inference(resnet: Analysis) -> None:
    assert "Inference" in render(resnet)
    assert "Inference" not in render_answer(resnet)


@pytest.mark.parametrize("name", ["resnet50.onnx", "bert_base.onnx", "mlp.onnx", "unet.onnx"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("budget_bytes", [None, 2**30])
def test_the_terms_add_up_to_the_byte(name: str, *, train: bool, budget_bytes: int | None) -> None:
    analysis = analyze(MODELS / name, batch=3, train=train, budget_bytes=budget_bytes)
    terms = section(analysis, "terms")
    assert terms.layout is Layout.TERMS
    assert len(terms.lines) <= 7
    assert terms.total is not None
    assert terms.total.number == sum(line.number or 0 for line in terms.lines)
    if train:
        assert analysis.torch is not None
        assert terms.total.number == analysis.torch.total_bytes
    else:
        assert terms.total.number == analysis.total_bytes


def test_the_terms_of_a_session_add_up() -> None:
    path = write_model(Path("net.onnx"))
    for runtime in ("ort-cpu", "ort-cuda"):
        analysis = analyze(path, runtimes=(runtime,), asks_onnxruntime=False, budget_bytes=2**30)
        terms = section(analysis, "terms")
        assert terms.total is not None
        assert analysis.fit is not None
        assert terms.total.number == analysis.fit.footprint.total_bytes
        assert terms.total.number == sum(line.number or 0 for line in terms.lines)
        if runtime == "ort-cpu":
            parts = dict(analysis.runtimes[0].process_parts)
            shown = {line.label: line.number for line in terms.lines if line.label != "others"}
            assert shown == {name: parts[name] for name in shown}
            assert "Python and imports" in shown


@pytest.mark.parametrize(
    ("batch", "title", "words"),
    [
        (128, "Fits", " free"),
        (2**20, "Does not fit", " over"),
    ],
)
def test_the_verdict_is_the_title(batch: int, title: str, words: str) -> None:
    analysis = analyze(MODELS / "mlp.onnx", batch=batch, train=True, budget_bytes=2**31)
    answer = summary(analysis)[0]
    assert answer.title == title
    assert words in answer.summary
    assert analysis.fit is not None
    step = next(line.words for line in answer.lines if line.label == "next")
    assert ("--batch" in step) is (analysis.fit.verdict is Verdict.OVER)


def test_a_dim_without_a_value_is_a_warning_beside_the_verdict() -> None:
    path = MODELS / "bert_base.onnx"
    for analysis in (analyze(path), analyze(path, budget_bytes=2**30)):
        first = summary(analysis)[0].lines[0]
        assert first.label == "warning"
        assert "--dim sequence=512" in first.words
    assert summary(analysis)[0].title == "Unknown if it fits"
    assert "unbound_dims" not in render_answer(analyze(path)).partition("note: ")[2]


TOKENS = """
<ir_version: 8, opset_import: ["" : 17]>
tokens (int64[{batch}, 7] {name}, float[11, 5] table) => (float[{batch}, 7, 5] y)
{{
    y = Gather (table, {name})
}}
"""


@pytest.mark.parametrize(
    ("batch", "name", "options", "told"),
    [
        ("3", "input_ids", {}, " at batch 3, sequence 7 (both fixed in the file): "),
        ("N", "input_ids", {}, " at batch 1, sequence 7 (fixed in the file): "),
        ("3", "input_ids", {"batch": 2}, " at batch 2, sequence 7 (fixed in the file): "),
        ("3", "columns", {}, " at batch 3 (fixed in the file): "),
        ("N", "columns", {"batch": 2}, " at batch 2: "),
        ("3", "input_ids", {"shapes": {"input_ids": (2, 5)}}, " at batch 2: "),
    ],
)
def test_the_answer_names_the_batch_and_what_the_file_fixes(
    batch: str, name: str, options: dict[str, Any], told: str
) -> None:
    model = onnx.parser.parse_model(TOKENS.format(batch=batch, name=name))
    model.graph.initializer.append(
        onnx.helper.make_tensor("table", onnx.TensorProto.FLOAT, [11, 5], [0.0] * 55)
    )
    del model.graph.input[1]
    assert told in render_answer(analyze(model, **options))


def test_what_else_is_requested_is_there() -> None:
    cached = render_answer(analyze(MODELS / "smollm_cached.onnx", context=512, order="best"))
    assert re.search(r"(?m)^At 512 tokens", cached)
    assert re.search(r"(?m)^  Decode step +\d+\.\d\d MiB$", cached) or "Decode step" in cached
    assert "Order of execution" in cached


def test_notes_beyond_the_lines_are_counted() -> None:
    analysis = analyze(write_model(Path("mystery.onnx"), MYSTERY), batch=3, train=True)
    many = replace(analysis, findings=analysis.findings * 20)
    text = render_answer(many)
    assert re.search(r"(?m)^note: \d+ more: -v$", text)
    assert len(text.splitlines()) <= 26


def test_an_answer_in_one_line(resnet: Analysis) -> None:
    named = replace(resnet, path="r.onnx")
    assert render_line(named) == "r.onnx: fits: 12.3 GiB of 24.0 GiB, largest batch 284\n"
    net = replace(analyze(write_model(Path("net.onnx"))), path="n.onnx")
    assert one_line(net) == "n.onnx: takes 33.9 KiB"


def test_hostile_names_reach_no_terminal() -> None:
    path = write_hostile_model(Path("net.onnx"))
    for write in (render_answer, render_line):
        text = write(analyze(path, batch=3, train=True))
        assert text.replace("\n", "").isprintable()
        assert HOSTILE not in text


def test_flags_choose_how_much_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    write_model(Path("net.onnx"))
    analysis = analyze("net.onnx")
    for flags, write in (((), render_answer), (("-v",), render), (("-q",), render_line)):
        assert main(["net.onnx", *flags]) == 0
        assert capsys.readouterr().out == write(analysis)


def test_the_terms_of_a_session_on_a_gpu_name_its_assumed_workspace() -> None:
    analysis = analyze(RESNET, batch=3, runtimes=("ort-cuda",), asks_onnxruntime=False)
    terms = section(analysis, "terms")
    sizes = {line.label: line.number for line in terms.lines}
    overheads = footprint_of(analysis.request, Basis.ORT_CUDA)
    assert sizes["cuDNN workspace"] == overheads.workspace.size_bytes > 0
    assert sum(size or 0 for size in sizes.values()) == overheads.total_bytes
    assert "others" not in sizes
    given = analyze(
        RESNET, batch=3, runtimes=("ort-cuda",), asks_onnxruntime=False, cuda_workspace_bytes=7
    )
    expected = Line("cuDNN workspace", 7, "assumed; --cuda-workspace")
    assert section(given, "terms").lines[-1] == expected


def test_a_load_that_takes_more_than_the_runs_is_reported() -> None:
    """VGG's packed weights stand beside those of the file until the session is created."""
    vgg = analyze(MODELS / "vgg16.onnx", batch=1, runtimes=("ort-cpu",), asks_onnxruntime=False)
    runtime = vgg.runtimes[0]
    peak_bytes = runtime.process_parts[0][1] + (runtime.load_peak_bytes or 0)
    assert f"  while loading  {format_bytes(peak_bytes)}, part of it" in render_answer(vgg)
    lstm = analyze(
        MODELS / "lstm_classifier.onnx", batch=1, runtimes=("ort-cpu",), asks_onnxruntime=False
    )
    assert "while loading" not in render_answer(lstm)


def test_the_timeline_of_a_session_is_of_the_nodes_that_it_runs() -> None:
    analysis = analyze(RESNET, batch=3, runtimes=("ort-cpu",), asks_onnxruntime=False)
    (row,) = session_rows(analysis)
    drawn = row[len("  session       ") :]
    assert len(drawn) == len(analysis.runtimes[0].arena.replay.step_bytes)
    text = render_answer(analysis)
    assert row in text
    assert "activations  " not in text


@pytest.mark.parametrize("train", [False, True])
def test_tensors_that_are_not_listed_are_counted(*, train: bool) -> None:
    analysis = analyze(MODELS / "bert_base.onnx", dims={"sequence": 7}, train=train)
    live = (
        analysis.activations.live_at_peak
        if analysis.training is None
        else analysis.training.live_at_peak()
    )
    shown = section(analysis, "largest")
    times = [re.search(r", (\d+) times$", line.label) for line in shown.lines]
    num_listed = sum(int(each[1]) if each else 1 for each in times)
    if train:
        assert len(times) == 3
        said = f"the {num_listed:,} largest of {len(live):,} tensors (more: -v)"
    else:
        assert num_listed == len(live) == 5
        said = "5 tensors, at "
    assert shown.summary.startswith(said)
    full = render(analysis)
    assert f"and {len(live) - 50:,} more: onnxmem export" in full or not train


def test_a_few_tensors_are_all_listed_unless_notes_need_the_lines() -> None:
    analysis = analyze(MODELS / "bert_base.onnx", dims={"sequence": 7})
    note = Finding("note", "a message")
    for num_notes, said in ((0, "5 tensors, "), (9, "the 3 largest of 5 tensors (more: -v), ")):
        text = render_answer(replace(analysis, findings=(note,) * num_notes))
        assert f"Live at the peak  {said}" in text
        assert text.count("note: note: a message") == num_notes
        assert len(text.splitlines()) <= 25
