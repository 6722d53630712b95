"""Sections: what the text report and the page both say, written once."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from measured_runs import MEASUREMENT
from pages import read
from paths import MODELS

from onnxmem import Analysis, analyze
from onnxmem.report.page.model_page import render_page, section_html
from onnxmem.report.sections.listing import batch_sections, sections
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.report.terminal import render
from onnxmem.report.text import laid_out, section_lines
from onnxmem.settings import Recipe

NOT_IN_JSON = re.compile(r"runtimes\.\d\.growth_bytes")


def analyses() -> Iterator[Analysis]:
    recipe = Recipe(checkpoint="best")
    yield analyze(MODELS / "mlp.onnx", batch=3, train=True, recipe=recipe, budget_bytes=2**30)
    run = analyze(
        MODELS / "mlp.onnx", batch=3, runtimes=("ort-cpu", "ort-cuda"), asks_onnxruntime=False
    )
    yield replace(run, measured=MEASUREMENT)
    yield analyze(MODELS / "smollm_cached.onnx", context=512, order="best")


@pytest.fixture(scope="module", params=range(3))
def analysis(request: pytest.FixtureRequest) -> Analysis:
    found: Analysis = list(analyses())[request.param]
    return found


def in_json(row: Any, path: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    for key in path.split("."):
        row = row[int(key)] if isinstance(row, list) else row.get(key, 0)
    return row


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
    assert text_of(Line("a", 1031, "b")) == [f"  {'a':<22}{'1.01 KiB':>10}{'1,031 B':>23}   b"]
    assert text_of(Line("a", None)) == [f"  {'a':<22}{'unknown':>10}"]
    assert text_of(Line("a", text="b", depth=2)) == [f"    {'a':<20}  b"]
    assert text_of(Line("a", 0, drops_zero=True)) == []
    two = Line("a", text="", parts=(Line("b", 13), Line("c", 17)))
    assert text_of(two) == [f"  {'a':<22}  b 13 B, c 17 B"]
    assert text_of(Line("a", 13, "b", unit="count")) == [
        f"  {'a':<22}  13        13",
        f"  {'':<22}  b",
    ]


def test_a_label_that_is_too_long_stands_above_its_words() -> None:
    long = Line("a" * 31, text="b", wraps=True)
    assert text_of(long) == [f"  {'a' * 31}", f"{'':<26}b"]


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
