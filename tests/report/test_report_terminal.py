"""The text report: golden texts, sums that add up, names that stay names."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import assert_golden
from models_on_disk import CONVNET, HOSTILE, MYSTERY, write_hostile_model, write_model

import onnxmem
from onnxmem import analyze
from onnxmem.analysis.coverage import Coverage
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.report.terminal import render, render_layers
from onnxmem.report.text import colored, paragraph, prose
from onnxmem.settings import Recipe

RELU = """agraph (float[N,5] x) => (float[N,5] y) { [relu] y = Relu(x) }"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_inference(folder: Path) -> None:
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
    assert re.search(r"FITS +100 B +100 B   fits: 4 B free", report)
    assert "largest batch           unknown: the model has no batch" in report


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
    assert "unknown: the figure cannot be had; see FINDINGS" in unknown
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
    assert _exact_bytes(report, "LIVE AT PEAK", "-") == (480, 480)
    assert "assumed nodes: n0, n1, n2, n3, n4, n5, n6, n7, 4 more" in report


@pytest.mark.parametrize(
    ("recipe", "phase"),
    [
        (Recipe(optimizer="sgd"), "backward"),
        (Recipe(optimizer="adam", loss="mse"), "optimizer"),
        (Recipe(optimizer="sgd", zero_grad="before-backward"), "forward"),
    ],
)
def test_a_step_adds_up_in_whichever_phase_it_peaks(
    folder: Path, recipe: Recipe, phase: str
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
    total, terms = _exact_bytes(report, "TRAIN", until="at ")
    assert analysis.training is not None
    assert total == terms == analysis.training.peak_bytes
    assert analysis.training.peak_phase == phase


def test_the_ways_of_checkpointing_are_listed(folder: Path) -> None:
    analysis = analyze(
        write_model(folder / "net.onnx"), train=True, recipe=Recipe(checkpoint="best")
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
        found = re.search(r"(-?[\d,]+) B(?: |$)", line[34:])
        figures.append(int(found[1].replace(",", "")) if found else 0)
    return figures[0], sum(figures[1:])


@pytest.mark.parametrize("batch", [1, 13, 1000])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_sums_add_up_to_the_byte(folder: Path, batch: int, optimizer: str) -> None:
    path = write_model(folder / "net.onnx")
    text = render(analyze(path, batch=batch, train=True, optimizer=optimizer))
    for heading, until in (("RUN", "formula"), ("LIVE AT PEAK", "-"), ("TRAIN", "at ")):
        total, terms = _exact_bytes(text, heading, until)
        assert total == terms > 0, heading


def test_the_words_are_within_a_hundred_columns(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    text = render(analyze(path, batch=128, train=True, budget_bytes=2**30))
    assert max(map(len, text.splitlines())) <= 100


def test_a_long_ordinary_name_is_never_cut(folder: Path) -> None:
    name = "/encoder" + "/layer" * 30
    text = CONVNET.replace("h = Conv", f'"{name}" = Conv').replace("(h)", f'("{name}")')
    path = write_model(folder / "net.onnx", text)
    assert name in render(analyze(path))


@pytest.mark.parametrize("write", [render, render_layers])
def test_hostile_names_reach_no_terminal(folder: Path, write: Callable[..., str]) -> None:
    text = write(analyze(write_hostile_model(folder / "net.onnx"), batch=3, train=True))
    assert text.replace("\n", "").isprintable()
    assert HOSTILE not in text
    assert not any(line.startswith("RUN 1 B") for line in text.splitlines())
    assert r"\x1b[2Jb\u202ec\x0aRUN 1 B" in text


def test_colour_changes_no_word(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    text = render(analyze(path, batch=128, train=True, budget_bytes=2**20))
    decorated = colored(text)
    assert decorated != text
    assert re.sub(r"\x1b\[[\d;]*m", "", decorated) == text


def test_a_paragraph_breaks_between_its_parts_only() -> None:
    parts = ["a" * 60, "b" * 60, "c"]
    assert paragraph("list: ", parts) == ["list: " + "a" * 60 + ",", "      " + "b" * 60 + ", c"]
    assert paragraph("list: ", []) == ["list:"]


def test_prose_breaks_at_spaces_only() -> None:
    assert prose("- ", "x" * 120 + " y") == ["- " + "x" * 120, "  y"]
    assert prose("- ", "") == ["-"]
