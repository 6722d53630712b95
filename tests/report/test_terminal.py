"""The text report of one model: its layout, its names, and its timeline."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import assert_golden
from graphs import model_of
from hypothesis import given
from hypothesis import strategies as st
from models_on_disk import CONVNET, HOSTILE, MYSTERY, write_hostile_model, write_model
from paths import MODELS

import onnxmem
from onnxmem import analyze
from onnxmem.analysis.coverage import Coverage
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.errors import printable, shortened
from onnxmem.report.terminal import render, render_layers, timeline_lines
from onnxmem.report.text import colored, paragraph, prose
from onnxmem.report.timelines import run_timeline, step_timeline
from onnxmem.settings import TrainingConfig

RELU = """agraph (float[N,5] x) => (float[N,5] y) { [relu] y = Relu(x) }"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_report_of_inference_is_the_expected_text(folder: Path) -> None:
    assert_golden(render(analyze(write_model(folder / "net.onnx"))), "inference.txt")


def test_training_within_a_budget(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    analysis = analyze(path, batch=128, train=True, budget_bytes=8 * 2**20)
    assert_golden(render(analysis), "training.txt")


def test_a_model_with_an_unknown_operator(folder: Path) -> None:
    path = write_model(folder / "mystery.onnx", MYSTERY)
    assert_golden(render(analyze(path, budget_bytes=100)), "partial.txt")


def test_a_model_without_weights_and_a_budget_that_nothing_fits(folder: Path) -> None:
    path = write_model(folder / "relu.onnx", RELU)
    assert_golden(render(analyze(path, train=True, budget_bytes=20)), "no_weights.txt")


def test_a_shape_asked_for(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    text = render(analyze(path, shapes={"image": (7, 3, 16, 16)}))
    assert "batch 7 (N), input image of 7x3x16x16" in text


def test_dims_that_are_fixed_at_load_are_an_assumption(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    text = render(analyze(path, fixed_dims=True))
    assert "graph raw, sessions opened with fixed dims\n" in text


def test_the_table_of_nodes(folder: Path) -> None:
    assert_golden(render_layers(analyze(write_model(folder / "net.onnx"))), "layers.txt")


def test_the_table_of_nodes_with_unknown_shapes(folder: Path) -> None:
    path = write_model(folder / "mystery.onnx", MYSTERY)
    assert_golden(render_layers(analyze(path)), "layers_partial.txt")


def test_a_model_without_a_batch(folder: Path) -> None:
    text = "agraph (float[5] a, float[7] b) => (float[5] y, float[7] z) { y = Exp(a) z = Exp(b) }"
    report = render(analyze(write_model(folder / "net.onnx", text), budget_bytes=100))
    assert "assumes: inference, no batch, graph raw" in report
    assert re.search(r"Budget +100 B +100 B   fits: 4 B free", report)
    assert "largest batch that fits   unknown: the model has no batch" in report


def test_a_budget_without_a_limit_and_a_figure_that_is_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis = analyze(write_model(folder / "net.onnx"), budget_bytes=2**20)
    assert analysis.fit is not None
    reach = MaxBatch(None, 2**20, None, "bisection")
    endless = render(replace(analysis, fit=replace(analysis.fit, max_batch=reach)))
    assert "no limit: it fits up to 2,147,483,648" in endless
    monkeypatch.setattr(onnxmem.Analysis, "total_bytes", None)
    unknown = render(replace(analysis, fit=None))
    assert "unknown: the figure is not known; see Notes" in " ".join(unknown.split())
    assert re.search(r"(?m)^  unknown +42.8 KiB", unknown)


def test_what_is_many_is_listed_in_part_and_still_adds_up(folder: Path) -> None:
    branches = "".join(f"h{n} = Exp(x) " for n in range(12))
    names = ", ".join(f"h{n}" for n in range(12))
    text = f"agraph (float[N,5] x) => (float[N,60] y) {{ {branches} y = Concat<axis=1>({names}) }}"
    analysis = analyze(write_model(folder / "net.onnx", text))
    names_known = tuple(f"n{place}" for place in range(12))
    vars(analysis)["coverage"] = Coverage(13, names_known, ())
    report = render(analysis)
    assert re.search(r"100 B +100 B   5 more\n", report)
    assert _exact_bytes(report, "Live at the peak", "-") == (480, 480)
    assert "assumed nodes: n0, n1, n2, n3, n4, n5, n6, n7, 4 more" in report


@pytest.mark.parametrize(
    ("recipe", "phase"),
    [
        (TrainingConfig(optimizer="sgd"), "backward"),
        (TrainingConfig(optimizer="adam", loss="mse"), "optimizer"),
        (TrainingConfig(optimizer="sgd", zero_grad="before-backward"), "forward"),
    ],
)
def test_a_step_adds_up_in_whichever_phase_it_peaks(
    folder: Path, recipe: TrainingConfig, phase: str
) -> None:
    path = write_model(
        folder / "mlp.onnx",
        """agraph (float[N,61] x) => (float[N,3] y) <float[61,509] w, float[509,3] v> {
            [inner] h = MatMul(x, w)
            [outer] y = MatMul(h, v)
        }""",
    )
    analysis = analyze(path, train=True, recipe=recipe)
    report = render(analysis)
    total, terms = _exact_bytes(report, "Training step", until="peak at ")
    assert analysis.training is not None
    assert total == terms == analysis.training.peak_bytes
    assert analysis.training.peak_phase == phase


def test_the_ways_of_checkpointing_are_listed(folder: Path) -> None:
    analysis = analyze(
        write_model(folder / "net.onnx"), train=True, recipe=TrainingConfig(checkpoint="best")
    )
    assert re.search(r"(?m)^  peak .* B   \+ 0 GFLOPs a step, none$", render(analysis))


def _exact_bytes(text: str, heading: str, until: str) -> tuple[int, int]:
    """The figure of a section's heading, and the sum of its lines down to ``until``."""
    lines = text.split("\n")
    start = next(place for place, line in enumerate(lines) if line.startswith(heading))
    figures = []
    for line in lines[start:]:
        if not line or line.strip().startswith((until, "by phase")):
            break
        found = re.search(r"(-?[\d,]+) B(?: |$)", line[36:])
        figures.append(int(found[1].replace(",", "")) if found else 0)
    return figures[0], sum(figures[1:])


@pytest.mark.parametrize("batch", [1, 13, 1000])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_sums_add_up_to_the_byte(folder: Path, batch: int, optimizer: str) -> None:
    path = write_model(folder / "net.onnx")
    text = render(analyze(path, batch=batch, train=True, optimizer=optimizer))
    for heading, until in (
        ("Inference", "linear"),
        ("Live at the peak", "-"),
        ("Training step", "peak at "),
    ):
        total, terms = _exact_bytes(text, heading, until)
        assert total == terms > 0, heading


def test_a_long_ordinary_name_is_never_cut(folder: Path) -> None:
    name = "/encoder" + "/layer" * 30
    text = CONVNET.replace("h = Conv", f'"{name}" = Conv').replace("(h)", f'("{name}")')
    path = write_model(folder / "net.onnx", text)
    assert name in re.sub(r"\n *", "", render(analyze(path)))


@pytest.mark.parametrize("write", [render, render_layers])
def test_hostile_names_reach_no_terminal(folder: Path, write: Callable[..., str]) -> None:
    text = write(analyze(write_hostile_model(folder / "net.onnx"), batch=3, train=True))
    assert text.replace("\n", "").isprintable()
    assert HOSTILE not in text
    assert not any(line.startswith("RUN 1 B") for line in text.splitlines())
    assert r"\x1b[2Jb\u202ec\x0aRUN 1 B" in text


def test_color_changes_no_word(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    text = render(analyze(path, batch=128, train=True, budget_bytes=2**20))
    decorated = colored(text)
    assert decorated != text
    assert re.sub(r"\x1b\[[\d;]*m", "", decorated) == text


def test_a_paragraph_breaks_between_its_parts_only() -> None:
    parts = ["a" * 60, "b" * 60, "c"]
    assert paragraph("list: ", parts) == ["list: " + "a" * 60 + ",", "      " + "b" * 60 + ", c"]
    assert paragraph("list: ", []) == ["list:"]


def test_prose_breaks_at_spaces_and_a_word_only_where_no_line_can_hold_it() -> None:
    assert prose("- ", "x y" * 40) == ["- " + "x y" * 32 + "x", "  y" + "x y" * 7]
    assert prose("label" * 4, "x" * 90 + " y") == ["label" * 4, "    " + "x" * 90 + " y"]
    assert prose("- ", "x" * 120 + " y") == ["-", "    " + "x" * 96, "    " + "x" * 24 + " y"]
    assert prose("- ", "") == ["-"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/layer1/conv2d/Conv_output_0", "/layer1/conv2d/Conv_output_0"),
        ("größe/层/μ", "größe/层/μ"),
        ("a b", "a b"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\nb\tc\rd", r"a\x0ab\x09c\x0dd"),
        ("a\x9b31mb\x7f", r"a\x9b31mb\x7f"),
        ("a\u202eb\u2066c\u200b", r"a\u202eb\u2066c\u200b"),
        ("a\u2028b", r"a\u2028b"),
        ("a\U000e0001b", r"a\U000e0001b"),
        (b"caf\xe9.onnx".decode("utf-8", "surrogateescape"), r"caf\xe9.onnx"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_moves_hides_or_turns_text_is_written_out(name: str, text: str) -> None:
    assert printable(name) == text


@given(st.text())
def test_what_is_written_is_always_printable(name: str) -> None:
    assert printable(name).isprintable()
    assert printable(printable(name)) == printable(name)


def test_ordinary_names_are_never_cut() -> None:
    name = "x" * 200
    assert shortened(name) == name


def test_a_very_long_name_loses_its_middle_and_says_how_much() -> None:
    text = shortened("a" * 500 + "b" * 500)
    assert text == "a" * 100 + "...(800 more)..." + "b" * 100


def chain(length: int) -> bytes:
    """A row of ReLUs behind products: weights, so that it can be trained."""
    steps = "\n".join(f"h{n} = MatMul(h{n - 1}, w)\n" for n in range(1, length))
    text = f"""agraph (float[N,7] x) => (float[N,7] h{length - 1}) <float[7,7] w> {{
        h0 = Relu(x)
        {steps}
    }}"""
    return model_of(text).SerializeToString()


def analysis(text: str = CONVNET, **asked: object) -> onnxmem.Analysis:
    return onnxmem.analyze(model_of(text).SerializeToString(), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["unet", "lstm_classifier", "mobilenet_v2.train", "mlp"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_timelines_reach_run_and_train(name: str, optimizer: str) -> None:
    found = onnxmem.analyze(MODELS / f"{name}.onnx", batch=3, train=True, optimizer=optimizer)
    run = run_timeline(found)
    assert max(run.sums) == found.total_bytes
    assert len(run.labels) == len(found.graph.nodes)
    assert found.training is not None
    step = step_timeline(found.training.replay)
    assert max(step.sums) == found.training.peak_bytes
    assert step.peak_step == step.sums.index(max(step.sums))
    assert [mark.name for mark in step.marks] == ["forward", "backward", "optimizer"]
    for mark, stop in zip(step.marks, [*(m.start for m in step.marks[1:]), None], strict=True):
        peak = max(step.sums[mark.start : stop])
        assert peak == getattr(found.training, f"{mark.name}_peak_bytes")
        assert step.labels[mark.start] == mark.name
    saved = next(each for each in step.series if each.name == "saved for backward")
    assert saved.values[step.marks[1].start] == found.training.saved_activation_bytes


def test_each_kind_has_its_bytes_at_the_peak() -> None:
    found = analysis(train=True, batch=3).training
    assert found is not None
    step = step_timeline(found.replay)
    assert step.peak_step is not None
    held = {each.name: each.values[step.peak_step] for each in step.series}
    kinds = found.live_by_category()
    assert held["weights"] == kinds["weights"]  # type: ignore[index]
    assert held["optimizer state"] == kinds["optimizer state"]  # type: ignore[index]
    assert held["saved for backward"] + held["activations"] == kinds["activations"]  # type: ignore[index]
    assert sum(held.values()) == sum(kinds.values())


def test_a_kind_that_is_never_there_is_no_series() -> None:
    found = analysis(train=True, optimizer="sgd").training
    assert found is not None
    assert "optimizer state" not in {each.name for each in step_timeline(found.replay).series}


def test_a_tensor_of_unknown_size_counts_nothing() -> None:
    timeline = run_timeline(analysis(MYSTERY, batch=3))
    assert max(timeline.sums) == 4 * (5 * 7 + 3 * 5 + 3 * 7)


def test_a_graph_without_nodes_has_no_step() -> None:
    timeline = run_timeline(analysis("agraph (float[2] x) => (float[2] x) { }"))
    assert timeline.sums == ()
    assert timeline.peak_step is None


# In the text report.


@pytest.mark.parametrize("length", [9, 300])
def test_the_section_is_short_and_narrow(length: int) -> None:
    lines = timeline_lines(onnxmem.analyze(chain(length), batch=11, train=True))
    assert len(lines) == 4
    assert max(map(len, lines)) <= 100
    assert len(lines[1].split()[1]) == min(length, 84)
    parts = lines[2].removeprefix("  training step ").split("|")
    assert [len(part) for part in parts] == [len(part) for part in lines[3].strip().split("|")]
    assert "█" in "".join(parts)


def test_phases_are_named_as_far_as_there_is_room() -> None:
    last = timeline_lines(onnxmem.analyze(chain(200), train=True))[-1]
    assert last.split("|")[0].strip() == "forward"
    assert last.split("|")[1].strip() == "backward"
    assert last.split("|")[2] == "o"


def test_a_run_of_few_steps_has_no_section() -> None:
    assert timeline_lines(analysis()) == []
    assert timeline_lines(analysis("agraph (float[2] x) => (float[2] x) { }")) == []


def test_of_a_step_of_few_moments_nothing_is_drawn() -> None:
    found = analysis("agraph (float[N,2] x) => (float[N,2] y) { y = Relu(x) }", train=True)
    assert timeline_lines(found) == []


def test_blocks_are_colored_by_their_height() -> None:
    text = colored("▁▂ ▅ █")
    assert text == "\x1b[32m▁▂\x1b[0m \x1b[33m▅\x1b[0m \x1b[31m█\x1b[0m"
