"""What runtimes take, in the text report: golden texts, and what is left out where."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import assert_golden
from measured_runs import MEASUREMENT
from models_on_disk import HOSTILE, write_model
from predicted_runtimes import FIGURES, NODE, OWN, choice_of, runtime_of

from onnxmem import Analysis, analyze
from onnxmem.errors import Finding
from onnxmem.report.sections.runtimes import runtime_sections
from onnxmem.report.terminal import render
from onnxmem.report.text import section_lines
from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory

LESS = choice_of(3_000_017, "enable_mem_reuse=False", "kSameAsRequested")
CPU = runtime_of(
    advice=(LESS, OWN),
    findings=(
        Finding("unverified_runtime", "onnxruntime 1.99.0 is at hand; the rules were verified"),
    ),
)
CUDA = runtime_of(
    name="ort-cuda",
    arena=replace(FIGURES, base_bytes=5_000_011, held_steady_bytes=2_000_003, peak_node=None),
    load_peak_bytes=None,
    process_bytes=None,
    context_bytes=524_288_000,
)


@pytest.fixture
def analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analysis:
    monkeypatch.chdir(tmp_path)
    return analyze(write_model(tmp_path / "net.onnx"))


def text_of(analysis: Analysis) -> str:
    written = map(section_lines, runtime_sections(analysis))
    return "\n\n".join(map("\n".join, written)) + "\n"


def test_two_runtimes_side_by_side_with_what_a_run_took(analysis: Analysis) -> None:
    full = replace(analysis, runtimes=(CPU, CUDA), measured=MEASUREMENT)
    assert_golden(text_of(full), "runtimes.txt")
    report = render(full)
    assert text_of(full) in report
    heads = ("RUN ", "LIVE AT PEAK", "ONNXRUNTIME, CPU", "RULES OF THUMB", "COMPUTE", "COVERAGE")
    places = [report.index(f"\n{head}") for head in heads]
    assert places == sorted(places)


def test_a_model_without_runtimes_has_no_such_section(analysis: Analysis) -> None:
    assert list(runtime_sections(analysis)) == []


def test_the_words_are_within_a_hundred_columns(analysis: Analysis) -> None:
    text = text_of(replace(analysis, runtimes=(CPU, CUDA), measured=MEASUREMENT))
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_without_a_prediction_for_it_is_told_alone(analysis: Analysis) -> None:
    for runtimes in ((), (CUDA,)):
        text = text_of(replace(analysis, runtimes=runtimes, measured=MEASUREMENT))
        assert re.search(r"(?m)^MEASURED$", text)
        assert "predicted" not in text
        assert re.search(r"requested peak +1.91 MiB +2,000,000 B", text)


def test_a_run_on_a_gpu_is_held_against_what_was_said_of_it(analysis: Analysis) -> None:
    measured = replace(MEASUREMENT, backend="onnxruntime-cuda", base_bytes=5_000_011)
    text = text_of(replace(analysis, runtimes=(CPU, CUDA), measured=measured))
    assert re.search(r"(?m)^  base +5,000,011 B +5,000,011 B +\+0.0 %", text)


def test_a_run_that_came_to_nothing_is_a_finding_alone(analysis: Analysis) -> None:
    finding = Finding("measure_crash", "the run crashed")
    failed = replace(analysis, runtimes=(CPU,), measured=finding, findings=(finding,))
    assert "MEASURED" not in text_of(failed)
    assert "\n  measure_crash: the run crashed\n" in render(failed)


@pytest.mark.parametrize(
    ("held_bytes", "growth"), [(3_000_017, "0 B"), (2_999_999, "0 B"), (3_000_018, "1 B")]
)
def test_growth_is_what_is_held_beyond_use(
    analysis: Analysis, held_bytes: int, growth: str
) -> None:
    runtime = runtime_of(arena=replace(FIGURES, held_steady_bytes=held_bytes))
    text = text_of(replace(analysis, runtimes=(runtime,)))
    assert re.search(rf"(?m)^  arena growth +{growth} +{growth}   reserved", text)


@pytest.mark.parametrize(
    ("workspace_bytes", "words"), [(None, "unknown"), (32 * 2**20, "32.0 MiB +33,554,432 B")]
)
def test_terms_of_a_gpu_stand_with_the_gpu_alone(
    analysis: Analysis, workspace_bytes: int | None, words: str
) -> None:
    cuda = replace(CUDA, workspace_bytes=workspace_bytes)
    alone = text_of(replace(analysis, runtimes=(cuda,)))
    assert re.search(rf"(?m)^  cuDNN workspace +{words} +as --cuda-workspace says$", alone)
    assert "no GPU has confirmed these" in alone
    assert "cuDNN" not in text_of(replace(analysis, runtimes=(CPU,)))
    both = text_of(replace(analysis, runtimes=(CPU, cuda)))
    assert re.search(r"(?m)^  CUDA context +0 B +500 MiB +\+500 MiB$", both)
    assert re.search(rf"(?m)^  cuDNN workspace +0 B +{words[:8]}", both)


def test_a_figure_that_is_alike_has_no_line_side_by_side(analysis: Analysis) -> None:
    text = text_of(replace(analysis, runtimes=(CPU, CUDA)))
    table = text[text.index("CPU against ONNXRUNTIME, CUDA") :]
    assert "requested peak" not in table
    assert re.search(r"(?m)^  base +1009 B +4.77 MiB +\+4.77 MiB$", table)
    assert re.search(r"(?m)^  held, steady +7.63 MiB +1.91 MiB +-5.72 MiB$", table)
    assert re.search(r"(?m)^  load peak +19.1 MiB +unknown$", table)


@pytest.mark.parametrize(
    ("advice", "is_said"),
    [
        ((OWN,), False),
        ((choice_of(5_700_011, "a"), OWN), False),  # 95 %
        ((choice_of(5_700_010, "a"), OWN), True),
    ],
)
def test_advice_is_given_where_it_saves_a_twentieth(
    analysis: Analysis, advice: tuple[object, ...], *, is_said: bool
) -> None:
    text = text_of(replace(analysis, runtimes=(runtime_of(advice=advice),)))
    assert ("  less with   " in text) is is_said


def test_hostile_names_reach_no_terminal(analysis: Analysis) -> None:
    hostile = runtime_of(
        arena=replace(FIGURES, peak_node=replace(NODE, name=HOSTILE, op_type=HOSTILE)),
        findings=(Finding("unknown_scratch", HOSTILE),),
    )
    text = text_of(replace(analysis, runtimes=(hostile,)))
    assert text.replace("\n", "").isprintable()
    assert not any(line.startswith("RUN 1 B") for line in text.splitlines())


def test_the_same_runtime_twice_differs_in_nothing(analysis: Analysis) -> None:
    twice: tuple[RuntimeMemory, ...] = (CPU, CPU)
    assert len(list(runtime_sections(replace(analysis, runtimes=twice)))) == 2
    assert "against" not in render(replace(analysis, runtimes=twice))
