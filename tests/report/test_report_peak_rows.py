"""The rows of the in-place peak in a text report."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from graphs import model_of
from walked_rows import ATTENTION, SQUARE, TWO_ROWS, rows_of

import onnxmem
from onnxmem.program.polynomials import polynomial
from onnxmem.report.sections.listing import peak_pieces
from onnxmem.report.terminal import render
from onnxmem.report.text import section_lines


def rows_section(analysis: onnxmem.Analysis) -> list[str]:
    found = peak_pieces(analysis)
    return [] if found is None else section_lines(found)


CHAIN = "agraph (float[batch, 3] x) => (float[batch, 3] y) { a = Neg(x) y = Relu(a) }"


def test_the_report_says_where_each_row_leads() -> None:
    lines = rows_section(onnxmem.analyze(model_of(ATTENTION), batch=2, dims={"sequence": 999}))
    head = "the in-place peak is the largest of them, at batch 1 to 131, sequence 1 to"
    assert lines == [
        f"PEAK ROWS  {head} 999; where",
        "           each leads at batch 2",
        "  sequence 1 to 4         72 B x batch x sequence + 308 B",
        "  sequence 5 to 999       4 B x batch x sequence^2 + 88 B x batch x sequence",
    ]


def test_one_line_in_the_batch_needs_no_block() -> None:
    assert "PEAK ROWS" not in render(onnxmem.analyze(model_of(CHAIN)))
    assert "PEAK ROWS" not in render(onnxmem.analyze(model_of(SQUARE.replace("Mat", ""))))


def test_the_report_names_dims_that_stay() -> None:
    text = TWO_ROWS.replace("float[batch, 3] x", "float[batch, 3] x, float[1, 1, q] u, float[r] v")
    text = text.replace(
        "a = Relu(w)", "p = MaxPool<kernel_shape = [2], strides = [2]>(u) a = Relu(w)"
    )
    lines = rows_section(onnxmem.analyze(model_of(text), dims={"q": 701}))
    assert "q 701" in " ".join(lines)


def test_what_leads_nowhere_along_the_line_leads_elsewhere_and_many_are_cut() -> None:
    terms = rows_of(model_of(ATTENTION))
    rows = tuple(polynomial([((1, 1), n), ((0, 0), -n * n)]) for n in range(1, 11))
    peaks = replace(terms.peaks, excluded_points=({1: 4},))
    vars(peaks)["in_place_peak_rows"] = rows
    far = replace(terms, peaks=peaks, last=(131, 20_000))
    analysis = cast("onnxmem.Analysis", SimpleNamespace(symbolic=far))
    text = "\n".join(rows_section(analysis))
    assert "sequence 1 to 20,000, not" in text
    assert text.endswith("2 more: --json")
    assert "elsewhere" not in text  # where each leads is not worked out so far
    assert "\n                          1 B x batch x sequence - 1 B\n" in text


def test_a_row_that_leads_nowhere_else_is_left_out_and_one_of_two_dims_may_lead_elsewhere() -> None:
    terms = rows_of(model_of(ATTENTION))
    rows = (polynomial([((1, 1), 5)]), polynomial([((1, 1), 3), ((0, 0), 1)]))
    peaks = replace(terms.peaks)
    vars(peaks)["in_place_peak_rows"] = rows
    both = cast("onnxmem.Analysis", SimpleNamespace(symbolic=replace(terms, peaks=peaks)))
    assert rows_section(both)[-2:] == [
        "  sequence 1 to 509       5 B x batch x sequence",
        "  elsewhere, if at all    3 B x batch x sequence + 1 B",
    ]
    one = rows_of(model_of(TWO_ROWS))
    beaten = tuple(polynomial([((1,), n)]) for n in (3, 5))
    peaks = replace(one.peaks)
    vars(peaks)["in_place_peak_rows"] = beaten
    alone = cast("onnxmem.Analysis", SimpleNamespace(symbolic=replace(one, peaks=peaks)))
    assert rows_section(alone)[1:] == ["  batch 1 to 131          5 B x batch"]


def test_a_label_that_is_too_long_stands_above_its_row() -> None:
    name = "sequence_length_of_all_prompts"
    text = ATTENTION.replace("sequence", name)
    lines = "\n".join(rows_section(onnxmem.analyze(model_of(text), batch=2))).split("\n")
    assert lines[-5:] == [
        f"  {name} 1 to 4",
        f"                          72 B x batch x {name} + 308 B",
        f"  {name} 5 to 509",
        f"                          4 B x batch x {name}^2 + 88 B x batch x",
        f"                          {name}",
    ]
    assert max(map(len, lines)) <= 100


def test_why_there_are_no_rows_is_said_where_dims_are_free() -> None:
    text = "agraph (int4[batch, %s] x) => (int4[batch, %s] y) { y = Identity(x) }"
    free = onnxmem.analyze(model_of(text % ("time", "time")))
    assert rows_section(free) == ["PEAK ROWS  none: the size of x is no polynomial of the dims"]
    assert rows_section(onnxmem.analyze(model_of(text % (3, 3)))) == []
    step = onnxmem.analyze(model_of(ATTENTION), train=True)
    assert rows_section(step) == ["PEAK ROWS  none: rows are of a run: ask without --train"]
