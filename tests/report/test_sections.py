"""Sections: the same lines in the text and on the page, a function per topic."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from closed_forms import ATTENTION, SQUARE, TWO_PIECES, closed_form_of
from golden_text import assert_golden
from graphs import model_of
from measured_runs import MEASUREMENT
from models_on_disk import HOSTILE, write_model
from pages import read
from paths import MODELS
from predicted_runtimes import FIGURES, NODE, OWN, choice_of, runtime_of

import onnxmem
from onnxmem import Analysis, analyze
from onnxmem.allocators.packed import BEST, QUICK, Blocks, Effort, Packing
from onnxmem.cli import main
from onnxmem.errors import Finding
from onnxmem.program.polynomials import polynomial
from onnxmem.report.page.model_page import render_page, section_html
from onnxmem.report.sections.listing import batch_sections, packing_text, peak_pieces, sections
from onnxmem.report.sections.runtimes import runtime_sections
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.report.terminal import render
from onnxmem.report.text import figure, laid_out, section_lines
from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory
from onnxmem.settings import TrainingConfig

NOT_IN_JSON = re.compile(r"runtimes\.\d\.growth_bytes")


def trained() -> Analysis:
    recipe = TrainingConfig(checkpoint="sqrt")
    return analyze(MODELS / "mlp.onnx", batch=3, train=True, recipe=recipe, budget_bytes=2**30)


def run() -> Analysis:
    found = analyze(
        MODELS / "mlp.onnx", batch=3, runtimes=("ort-cpu", "ort-cuda"), asks_onnxruntime=False
    )
    return replace(found, measured=MEASUREMENT)


def decoded() -> Analysis:
    return analyze(MODELS / "smollm_cached.onnx", context=512, order="best")


@pytest.fixture(scope="module", params=[trained, run, decoded])
def analysis(request: pytest.FixtureRequest) -> Analysis:
    found: Analysis = request.param()
    return found


def in_json(row: Any, path: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    for key in path.split("."):
        row = row[int(key)] if isinstance(row, list) else row.get(key, 0)
    return row


@pytest.mark.parametrize(
    ("size_bytes", "effort", "text"),
    [
        (11, QUICK, "optimal"),
        (13, QUICK, "fragmentation 15.4 %; --pack best searches further"),
        (13, BEST, "fragmentation 15.4 %"),
    ],
)
def test_a_packed_block_above_its_bound_says_so(size_bytes: int, effort: Effort, text: str) -> None:
    assert packing_text(Packing(size_bytes, 11, effort=effort)) == text


def test_a_page_is_packed_by_the_longest_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    efforts: list[Effort] = []

    def packed(blocks: Blocks, effort: Effort) -> tuple[int, list[int], int]:
        efforts.append(effort)
        return blocks.peak_bytes, [0] * len(blocks.sizes), blocks.peak_bytes

    monkeypatch.setattr("onnxmem.allocators.packed.pack_blocks", packed)
    model, page = str(MODELS / "mlp.onnx"), tmp_path / "mlp.html"
    for options, expected in (
        (["--json"], QUICK),
        (["--json", "--pack", "best"], BEST),
        (["-o", str(page)], BEST),
        (["-o", str(page), "--force", "--pack", "quick"], QUICK),
    ):
        efforts.clear()
        assert main([model, *options]) == 0
        assert {*efforts} == {expected}


def test_a_number_with_a_key_is_the_one_of_the_json_report(analysis: Analysis) -> None:
    row = analysis.to_dict()
    lines = [line for each in sections(analysis) for line in each.all_lines() if line.key]
    assert len(lines) > 20
    for line in lines:
        if not NOT_IN_JSON.fullmatch(line.key):
            assert line.number == in_json(row, line.key), line.key


def test_a_key_stands_for_one_number_and_each_section_is_there_once(analysis: Analysis) -> None:
    found = sections(analysis)
    keys = [each.key for each in found]
    assert len(keys) == len(set(keys))
    lines = [line for each in found for line in each.all_lines() if line.key]
    assert len({(line.key, line.number) for line in lines}) == len({line.key for line in lines})


def test_what_moves_is_found_at_every_batch(analysis: Analysis) -> None:
    keyed = {line.key for each in sections(analysis) for line in each.all_lines()}
    moving = {line.key for each in batch_sections(analysis) for line in each.all_lines()}
    assert keyed == moving


def test_text_and_page_say_the_same_words(analysis: Analysis) -> None:
    def squeezed(text: str) -> str:
        return re.sub(r"\s+", "", text)

    text = squeezed(render(analysis))
    page = squeezed("".join(read(render_page(analysis)).text))
    for section in sections(analysis):
        assert squeezed(section.title) in text
        if section.layout is not Layout.BARS:
            assert squeezed(section.title) in page or section.key == "fits"
            for line in section.lines:
                if not line.drops_zero:
                    assert squeezed(line.label) in text
                    assert squeezed(line.label) in page
                assert squeezed(line.words) in page
                if line.number or not line.drops_zero:
                    assert squeezed(line.words) in text


# One line in each form.


def text_of(line: Line) -> list[str]:
    return laid_out((line,))


def test_a_line_in_columns() -> None:
    line = Line("a", 1031, "b")
    assert text_of(line) == [f"  {'a':<24}{'1.01 KiB':>10}   b"]
    assert laid_out((line,), figure) == [f"  {'a':<24}{'1.01 KiB':>10}{'1,031 B':>20}   b"]
    assert text_of(Line("a", None)) == [f"  {'a':<24}{'unknown':>10}"]
    assert text_of(Line("a", text="b", depth=2)) == [f"    {'a':<22}  b"]
    assert text_of(Line("a", 0, drops_zero=True)) == []
    two = Line("a", text="", parts=(Line("b", 13), Line("c", 17)))
    assert text_of(two) == [f"  {'a':<24}  b 13 B, c 17 B"]
    assert text_of(Line("a", 13, "b", unit="count")) == [
        f"  {'a':<24}  13        13",
        f"  {'':<24}  b",
    ]


def test_a_label_that_is_too_long_stands_above_its_words() -> None:
    long = Line("a" * 35, text="b")
    assert text_of(long) == [f"  {'a' * 35}", f"{'':<28}b"]


def test_a_number_of_a_page_moves_by_its_key() -> None:
    lines = (
        Line("a", 13, "<b>", key="x.y", words_key="x.words"),
        Line("c", 0, key="x.z", drops_zero=True),
        Line("d", 17, depth=2),
    )
    page = section_html(Section(key="k", title="T", lines=lines))
    assert '<span data-figure="x.y" data-as="bytes"><span class="size">13 B</span>' in page
    assert '<span class="name" data-text="x.words">&lt;b&gt;</span>' in page
    assert '<tr data-drops="x.z" hidden>' in page
    assert '<tr class="deep"><th scope="row">d</th><td class="num"><span class="size">17' in page


def test_multiples_are_those_of_the_reference() -> None:
    section = Section(
        key="k",
        title="T",
        remark="as multiples of R",
        layout=Layout.MULTIPLES,
        reference=Line("R", 4, key="r"),
        lines=(Line("a", 6, key="x"), Line("b", None, key="y")),
    )
    head, first, second = section_lines(section)
    assert head == "T, as multiples of R (4 B)"
    assert first.startswith("  1.50 x ")
    assert second.startswith("  unknown ")
    page = section_html(section)
    assert '<span data-ratio="x" data-to="r">1.50 x</span>' in page
    assert '<span data-ratio="y" data-to="r">unknown</span>' in page


def test_notes_stand_behind_their_labels() -> None:
    notes = (Note("a", "b c"), Note("d", parts=("e", "f")))
    section = Section(key="k", title="T", summary="s", notes=notes)
    assert section_lines(section) == ["T  s", "  a: b c", "  d: e, f"]
    assert "<li><code>d</code>: e, f</li>" in section_html(section)


def rows_section(analysis: onnxmem.Analysis) -> list[str]:
    found = peak_pieces(analysis)
    return [] if found is None else section_lines(found)


CHAIN = "agraph (float[batch, 3] x) => (float[batch, 3] y) { a = Neg(x) y = Relu(a) }"


def test_the_report_says_where_each_row_leads() -> None:
    lines = rows_section(onnxmem.analyze(model_of(ATTENTION), batch=2, dims={"sequence": 999}))
    head = "piecewise: the peak is the largest piece, for batch 1 to 131, sequence 1 to"
    assert lines == [
        f"Peak formula  {head} 999; the",
        "              range in which each is the largest at batch 2",
        "  sequence 1 to 4           72 B x batch x sequence + 308 B",
        "  sequence 5 to 999         4 B x batch x sequence^2 + 88 B x batch x sequence",
    ]


def test_one_line_in_the_batch_needs_no_block() -> None:
    assert "Peak formula" not in render(onnxmem.analyze(model_of(CHAIN)))
    assert "Peak formula" not in render(onnxmem.analyze(model_of(SQUARE.replace("Mat", ""))))


def test_the_report_names_dims_that_stay() -> None:
    text = TWO_PIECES.replace(
        "float[batch, 3] x", "float[batch, 3] x, float[1, 1, q] u, float[r] v"
    )
    text = text.replace(
        "a = Relu(w)", "p = MaxPool<kernel_shape = [2], strides = [2]>(u) a = Relu(w)"
    )
    lines = rows_section(onnxmem.analyze(model_of(text), dims={"q": 701}))
    assert "q 701" in " ".join(lines)


def test_what_leads_nowhere_along_the_line_leads_elsewhere_and_many_are_cut() -> None:
    terms = closed_form_of(model_of(ATTENTION))
    rows = tuple(polynomial([((1, 1), n), ((0, 0), -n * n)]) for n in range(1, 11))
    peaks = replace(terms.peaks, excluded_points=({1: 4},))
    vars(peaks)["in_place_peak_pieces"] = rows
    far = replace(terms, peaks=peaks, last=(131, 20_000))
    analysis = cast("onnxmem.Analysis", SimpleNamespace(symbolic=far))
    text = "\n".join(rows_section(analysis))
    assert "sequence 1 to 20,000, not" in " ".join(text.split())
    assert text.endswith("2 more: --json")
    assert "elsewhere" not in text  # where each leads is not computed so far
    assert "\n                            1 B x batch x sequence - 1 B\n" in text


def test_a_row_that_leads_nowhere_else_is_left_out_and_one_of_two_dims_may_lead_elsewhere() -> None:
    terms = closed_form_of(model_of(ATTENTION))
    rows = (polynomial([((1, 1), 5)]), polynomial([((1, 1), 3), ((0, 0), 1)]))
    peaks = replace(terms.peaks)
    vars(peaks)["in_place_peak_pieces"] = rows
    both = cast("onnxmem.Analysis", SimpleNamespace(symbolic=replace(terms, peaks=peaks)))
    assert rows_section(both)[-2:] == [
        "  sequence 1 to 509         5 B x batch x sequence",
        "  elsewhere, if anywhere    3 B x batch x sequence + 1 B",
    ]
    one = closed_form_of(model_of(TWO_PIECES))
    beaten = tuple(polynomial([((1,), n)]) for n in (3, 5))
    peaks = replace(one.peaks)
    vars(peaks)["in_place_peak_pieces"] = beaten
    alone = cast("onnxmem.Analysis", SimpleNamespace(symbolic=replace(one, peaks=peaks)))
    assert rows_section(alone)[1:] == ["  batch 1 to 131            5 B x batch"]


def test_a_label_that_is_too_long_stands_above_its_row() -> None:
    name = "sequence_length_of_all_prompts"
    text = ATTENTION.replace("sequence", name)
    lines = "\n".join(rows_section(onnxmem.analyze(model_of(text), batch=2))).split("\n")
    assert lines[-5:] == [
        f"  {name} 1 to 4",
        f"                            72 B x batch x {name} + 308 B",
        f"  {name} 5 to 509",
        f"                            4 B x batch x {name}^2 + 88 B x batch x",
        f"                            {name}",
    ]
    assert max(map(len, lines)) <= 100


def test_why_there_are_no_rows_is_said_where_dims_are_free() -> None:
    text = "agraph (int4[batch, %s] x) => (int4[batch, %s] y) { y = Identity(x) }"
    free = onnxmem.analyze(model_of(text % ("time", "time")))
    assert rows_section(free) == [
        "Peak formula  none: the size of x is not a polynomial of the dims"
    ]
    assert rows_section(onnxmem.analyze(model_of(text % (3, 3)))) == []
    step = onnxmem.analyze(model_of(ATTENTION), train=True)
    assert rows_section(step) == [
        "Peak formula  none: the formula is of inference; run without --train"
    ]


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
def session_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analysis:
    monkeypatch.chdir(tmp_path)
    return analyze(write_model(tmp_path / "net.onnx"))


def sessions_text(analysis: Analysis) -> str:
    written = map(section_lines, runtime_sections(analysis))
    return "\n\n".join(map("\n".join, written)) + "\n"


def test_two_runtimes_side_by_side_with_what_a_run_took(session_analysis: Analysis) -> None:
    full = replace(session_analysis, runtimes=(CPU, CUDA), measured=MEASUREMENT)
    assert_golden(sessions_text(full), "runtimes.txt")
    report = render(full)
    assert sessions_text(full) in report
    heads = ("Inference ", "Live at", "onnxruntime, CPU", "Rules of thumb", "Compute", "Coverage")
    places = [report.index(f"\n{head}") for head in heads]
    assert places == sorted(places)


def test_a_model_without_runtimes_has_no_such_section(session_analysis: Analysis) -> None:
    assert list(runtime_sections(session_analysis)) == []


def test_the_words_are_within_a_hundred_columns(session_analysis: Analysis) -> None:
    text = sessions_text(replace(session_analysis, runtimes=(CPU, CUDA), measured=MEASUREMENT))
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_without_a_prediction_for_it_is_told_alone(session_analysis: Analysis) -> None:
    for runtimes in ((), (CUDA,)):
        text = sessions_text(replace(session_analysis, runtimes=runtimes, measured=MEASUREMENT))
        assert re.search(r"(?m)^Measured$", text)
        assert "predicted" not in text
        assert re.search(r"peak requested by kernels +1.91 MiB +2,000,000 B", text)


def test_a_run_on_a_gpu_is_held_against_what_was_said_of_it(session_analysis: Analysis) -> None:
    measured = replace(MEASUREMENT, backend="onnxruntime-cuda", base_bytes=5_000_011)
    text = sessions_text(replace(session_analysis, runtimes=(CPU, CUDA), measured=measured))
    assert re.search(r"(?m)^  arena initializers +5,000,011 B +5,000,011 B +\+0.0 %", text)


def test_a_run_that_came_to_nothing_is_a_finding_alone(session_analysis: Analysis) -> None:
    finding = Finding("measure_crash", "the run crashed")
    failed = replace(session_analysis, runtimes=(CPU,), measured=finding, findings=(finding,))
    assert "Measured" not in sessions_text(failed)
    assert "\n  measure_crash: the run crashed\n" in render(failed)


@pytest.mark.parametrize(
    ("held_bytes", "growth"), [(3_000_017, "0 B"), (2_999_999, "0 B"), (3_000_018, "1 B")]
)
def test_growth_is_what_is_held_beyond_use(
    session_analysis: Analysis, held_bytes: int, growth: str
) -> None:
    runtime = runtime_of(arena=replace(FIGURES, held_steady_bytes=held_bytes))
    text = sessions_text(replace(session_analysis, runtimes=(runtime,)))
    assert re.search(rf"(?m)^  arena growth +{growth} +{growth}   reserved", text)


@pytest.mark.parametrize(
    ("workspace_bytes", "words"), [(None, "unknown"), (32 * 2**20, "32.0 MiB +33,554,432 B")]
)
def test_terms_of_a_gpu_stand_with_the_gpu_alone(
    session_analysis: Analysis, workspace_bytes: int | None, words: str
) -> None:
    cuda = replace(CUDA, workspace_bytes=workspace_bytes)
    alone = sessions_text(replace(session_analysis, runtimes=(cuda,)))
    assert re.search(rf"(?m)^  cuDNN workspace +{words} +assumed, or --cuda-workspace$", alone)
    assert "what cuDNN takes in the arena is not in it" in alone
    assert "cuDNN" not in sessions_text(replace(session_analysis, runtimes=(CPU,)))
    both = sessions_text(replace(session_analysis, runtimes=(CPU, cuda)))
    assert re.search(r"(?m)^  CUDA context +0 B +500 MiB +\+500 MiB$", both)
    assert re.search(rf"(?m)^  cuDNN workspace +0 B +{words[:8]}", both)


def test_a_figure_that_is_alike_has_no_line_side_by_side(session_analysis: Analysis) -> None:
    text = sessions_text(replace(session_analysis, runtimes=(CPU, CUDA)))
    table = text[text.index("CPU compared with onnxruntime, CUDA") :]
    assert "peak requested" not in table
    assert re.search(r"(?m)^  arena initializers +1009 B +4.77 MiB +\+4.77 MiB$", table)
    assert re.search(
        r"(?m)^  arena reserved \(steady state\) +7.63 MiB +1.91 MiB +-5.72 MiB$", table
    )
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
    session_analysis: Analysis, advice: tuple[object, ...], *, is_said: bool
) -> None:
    text = sessions_text(replace(session_analysis, runtimes=(runtime_of(advice=advice),)))
    assert ("  lower with   " in text) is is_said


def test_hostile_names_reach_no_terminal(session_analysis: Analysis) -> None:
    hostile = runtime_of(
        arena=replace(FIGURES, peak_node=replace(NODE, name=HOSTILE, op_type=HOSTILE)),
        findings=(Finding("unknown_scratch", HOSTILE),),
    )
    text = sessions_text(replace(session_analysis, runtimes=(hostile,)))
    assert text.replace("\n", "").isprintable()
    assert not any(line.startswith("RUN 1 B") for line in text.splitlines())


def test_the_same_runtime_twice_differs_in_nothing(session_analysis: Analysis) -> None:
    twice: tuple[RuntimeMemory, ...] = (CPU, CPU)
    assert len(list(runtime_sections(replace(session_analysis, runtimes=twice)))) == 2
    assert "against" not in render(replace(session_analysis, runtimes=twice))
