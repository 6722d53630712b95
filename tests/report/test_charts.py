"""Charts: what is drawn is what is given, adds up, overlaps nowhere, and holds hostile names."""

import re
import time
from collections.abc import Iterator, Sequence
from functools import cache
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.report.charts.drawing import (
    COLORS,
    CYCLE,
    FONT,
    LINE,
    WIDTH,
    Frame,
    byte_label,
    byte_ticks,
    cut,
    decades,
    distinct,
    round_ticks,
    step_ticks,
    text_width,
)
from onnxmem.report.charts.sizes import Axes, Bubble, bars_svg, bubbles_svg
from onnxmem.report.charts.steps import Mark, Series, Strip, area_svg, decimated, strips_svg
from onnxmem.report.text import legible, spark
from onnxmem.units import format_bytes

SVG = "{http://www.w3.org/2000/svg}"
MIB = 1024**2
SIZES = st.integers(0, 2**60)
HOSTILE = "</title></svg><script>alert(1)</script>\"'&\x1b[2J\u202e" + "x" * 1_000_000

STACKS = st.integers(1, 30).flatmap(
    lambda num_steps: st.lists(
        st.lists(SIZES, min_size=num_steps, max_size=num_steps).map(tuple), min_size=1, max_size=4
    )
)


def stack(*values: Sequence[int]) -> tuple[Series, ...]:
    classes = ("c-weights", "c-inputs", "c-activations", "c-unheard-of")
    return tuple(
        Series(f"series {n}", tuple(each), classes[n % 4]) for n, each in enumerate(values)
    )


def sums(series: Sequence[Series]) -> list[int]:
    return [sum(held) for held in zip(*(each.values for each in series), strict=True)]


def area(series: Sequence[Series], **others: object) -> str:
    total = sums(series)
    asked: dict[str, object] = {
        "frame": Frame("t", "Memory", "All of it."),
        "peak_step": total.index(max(total)) if total else None,
        "labels": None,
    }
    return area_svg(series, **{**asked, **others})  # type: ignore[arg-type]


def bubbles(models: Sequence[Bubble], lines: Sequence[tuple[str, int]] = (), **axis: bool) -> str:
    return bubbles_svg(
        models,
        Frame("u", "Models", "All of them."),
        lines=lines,
        axes=Axes("forward FLOPs", "memory of inference", **axis),
        groups=[("complete", "c-saved"), ("lower bound", "c-activations")],
    )


def strips(given_strips: Sequence[Strip], num_steps: int = 4, size_bytes: int = 7) -> str:
    return strips_svg(
        given_strips, Frame("s", "Arena", "Packed."), num_steps=num_steps, size_bytes=size_bytes
    )


def bars(items: Sequence[tuple[str, int]]) -> str:
    return bars_svg(items, Frame("b", "Live", "At the peak."))


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - our own, and without entities of its own


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in parsed(svg).iter(f"{SVG}text")]


def spots(svg: str) -> Iterator[tuple[float, float, float, float, str]]:
    """Where each line of words stands: left, top, right, bottom."""
    for each in parsed(svg).iter(f"{SVG}text"):
        text, x, y = each.text or "", float(each.get("x", "")), float(each.get("y", ""))
        width = text_width(text)
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[each.get("text-anchor", "start")]
        yield left, y - 0.7 * FONT, left + width, y, text


def assert_no_words_overlap(svg: str) -> None:
    placed = list(spots(svg))
    for number, (left, top, right, bottom, text) in enumerate(placed):
        assert left >= -1, text
        assert right <= WIDTH + 8, text
        for other in placed[:number]:
            apart = other[2] <= left or right <= other[0] or other[3] <= top or bottom <= other[1]
            assert apart, (text, other[4])


# Every chart.

ONE_OF_EACH = {
    "t": lambda: area(stack((3, 5), (0, 7)), labels=[HOSTILE, HOSTILE], marks=[Mark(0, HOSTILE)]),
    "b": lambda: bars([(HOSTILE, 3), (HOSTILE, 5)]),
    "s": lambda: strips([Strip(HOSTILE, 0, 2, 0, 3), Strip(HOSTILE, 1, 4, 3, 4)]),
    "u": lambda: bubbles([Bubble(HOSTILE, 11, 13, 17)], [(HOSTILE, 19)]),
}


@cache
def drawn(chart_id: str) -> str:
    """One of each: drawn when a test needs it, as their labels are a million characters long."""
    return ONE_OF_EACH[chart_id]()


@pytest.mark.parametrize("chart_id", ONE_OF_EACH)
def test_a_chart_is_well_formed_small_and_holds_no_script_of_a_name(chart_id: str) -> None:
    svg = drawn(chart_id)
    root = parsed(svg)
    assert root.tag == f"{SVG}svg"
    assert {each.tag for each in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "desc", "text", "path", "g", "rect", "circle")
    }
    assert svg.isprintable()
    assert len(svg) < 20_000


@pytest.mark.parametrize("chart_id", ONE_OF_EACH)
def test_a_chart_has_a_text_alternative_and_ids_of_its_own(chart_id: str) -> None:
    root = parsed(drawn(chart_id))
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert ids == [chart_id, f"{chart_id}-title", f"{chart_id}-desc"]
    assert root.get("aria-labelledby") == " ".join(ids[1:])  # type: ignore[arg-type]
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")


@pytest.mark.parametrize("chart_id", ONE_OF_EACH)
def test_a_chart_needs_no_style_sheet_and_bows_to_one(chart_id: str) -> None:
    """A color is an attribute of the element that has the class; there is no inline style."""
    for each in parsed(drawn(chart_id)).iter():
        assert "style" not in each.attrib
        if (each.get("class") or "").startswith("c-"):
            assert re.fullmatch("#[0-9a-f]{6}", each.get("fill") or "")


def test_the_colors_of_a_stack_differ() -> None:
    stacked = "weights optimizer inputs saved activations gradients activation-gradients temporary"
    classes = [f"c-{name}" for name in stacked.split()]
    assert len({COLORS[name] for name in classes}) == len(classes)
    assert len({COLORS[name] for name in CYCLE}) == len(CYCLE)


# Steps that are kept.


@given(STACKS, st.integers(1, 40))
def test_decimation_keeps_the_peak_and_the_order(
    values: list[tuple[int, ...]], num_points: int
) -> None:
    series = stack(*values)
    steps, kept = decimated(series, num_points)
    assert len(steps) == min(len(values[0]), num_points)
    assert list(steps) == sorted(set(steps))
    assert max(sums(kept)) == max(sums(series))
    for before, after in zip(series, kept, strict=True):
        assert after.values == tuple(before.values[step] for step in steps)
        assert (after.name, after.css_class) == (before.name, before.css_class)


@given(st.lists(SIZES, min_size=1, max_size=60), st.integers(1, 60))
def test_each_kept_step_is_the_largest_of_its_neighbors(values: list[int], n: int) -> None:
    steps, _ = decimated(stack(values), n)
    edges = [number * len(values) // len(steps) for number in range(len(steps) + 1)]
    for step, start, stop in zip(steps, edges, edges[1:], strict=False):
        assert start <= step < stop
        assert values[step] == max(values[start:stop])


def test_no_series_has_no_step() -> None:
    assert decimated((), 3) == ((), ())


# Areas.


@given(STACKS, st.integers(0, 2**61))
def test_no_words_of_an_area_overlap(values: list[tuple[int, ...]], scale_bytes: int) -> None:
    series = stack(*values)
    assert_no_words_overlap(area(series, scale_bytes=scale_bytes))


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=300))
def test_an_area_is_as_high_as_its_bytes(values: list[int]) -> None:
    """The outline, followed command by command, is the values on one scale."""
    path = re.search(r'class="c-weights" fill="\S+" d="M(\d+) (\d+)([^"]*)z"', area(stack(values)))
    assert path is not None
    x, base = int(path[1]), int(path[2])
    y, heights = base, {}
    for command, number in re.findall(r"([hvV])(-?\d+)", path[3]):
        if command == "h":
            heights.update(dict.fromkeys(range(x, x + int(number)), base - y))
            x += int(number)
        else:
            y = int(number) + (y if command == "v" else 0)
    assert y == base
    wide = len(heights) / len(values)
    tall = max(heights.values())
    for number, value in enumerate(values):
        middle = min(heights) + int((number + 0.5) * wide)
        assert heights[middle] == pytest.approx(tall * value / max(values), abs=1.01)


def test_the_peak_is_named_inside_the_picture_at_either_end() -> None:
    for values in ((9, *(1,) * 20), (*(1,) * 20, 9)):
        svg = area(stack(values))
        assert f"peak 9 B, step {values.index(9) + 1}" in texts(svg)
        assert_no_words_overlap(svg)


def test_two_areas_can_have_one_scale() -> None:
    low, high = (area(stack((size,)), scale_bytes=8 * MIB) for size in (MIB, 8 * MIB))
    ticks = [text for text in texts(low) if text.endswith("MiB")]
    assert ticks[:-1] == [text for text in texts(high) if text.endswith("MiB")][:-1]


def test_the_words_of_a_peak_stand_beside_the_line_of_a_phase() -> None:
    marks = [Mark(0, "forward"), Mark(50, "backward")]
    svg = area(stack((*range(52), *(3,) * 50)), marks=marks)
    line = re.search(r'd="M([\d.]+) [\d.]+L[^"]*" stroke="currentColor" stroke-dasharray', svg)
    assert line is not None
    (peak,) = (spot for spot in spots(svg) if spot[4].startswith("peak"))
    assert peak[0] > float(line[1])
    assert_no_words_overlap(svg)


def test_phases_have_names_where_there_is_room() -> None:
    marks = [Mark(0, "forward"), Mark(40, "backward"), Mark(99, "optimizer")]
    shown = texts(area(stack(range(100)), marks=marks))
    assert {"forward", "backward"} <= set(shown)
    assert "optimizer" not in shown


def test_few_steps_say_what_they_are_and_many_do_not() -> None:
    few = area(stack((2, 3)), labels=["conv", "relu"])
    assert "<title>step 2: relu, 3 B</title>" in few
    many = area(stack(range(201)), labels=["conv"] * 201)
    assert "conv" not in many


@pytest.mark.parametrize("series", [(), stack(()), stack((0, 0))])
def test_nothing_is_drawn_of_nothing(series: tuple[Series, ...]) -> None:
    svg = area(series)
    parsed(svg)
    assert '<path class="c-' not in svg


def test_a_hundred_thousand_steps_are_drawn_fast_and_small() -> None:
    num_steps = 100_000
    values = [(step * 7919) % 100_003 for step in range(num_steps)]
    values[77_777] = 1_000_003
    started = time.perf_counter()
    svg = area(stack(*[values] * 6), labels=["node"] * num_steps)
    assert time.perf_counter() - started < 2
    assert len(svg) < 100_000
    assert f"peak {format_bytes(6 * 1_000_003)}, step 77,778" in texts(svg)


# Bars.


@given(st.lists(st.tuples(st.text(max_size=9), st.integers(-(2**50), 2**50)), max_size=60))
def test_bars_begin_where_the_one_above_ends_and_end_at_the_sum(
    items: list[tuple[str, int]],
) -> None:
    svg = bars(items)
    assert_no_words_overlap(svg)
    total = sum(size for _, size in items)
    last = texts(svg)[-1]
    assert last.removeprefix("+") == format_bytes(total)
    told = re.findall(r": (-?[\d,]+) B</title>", svg)
    assert sum(int(number.replace(",", "")) for number in told) == total
    assert len(told) <= 25


def test_bars_below_0_have_a_color_of_their_own() -> None:
    svg = bars([("gone", -3), ("new", 5)])
    assert svg.index("c-less") < svg.index("c-more")
    assert texts(svg) == ["gone", "-3 B", "new", "+5 B", "total", "+2 B"]


# Strips.


def test_a_strip_says_its_steps_and_its_address() -> None:
    svg = strips([Strip("a", 0, 2, 0, 3), Strip("b", 1, 4, 3, 4)])
    assert "<title>b: 4 B at 3, steps 2 to 4</title>" in svg
    assert_no_words_overlap(svg)


def test_strips_cover_their_share_of_the_plot() -> None:
    """The whole arena over all steps is the whole plot, less what parts neighbors."""
    (path,) = re.findall(r' d="M(\d+ \d+v-\d+h\d+v\d+)z"', strips([Strip("a", 0, 4, 0, 7)]))
    assert path == "720 3100v-2995h6355v2995"


def test_of_very_many_strips_the_largest_are_drawn() -> None:
    many = [Strip(f"n{n}", n, n + 1, 0, 1) for n in range(5000)]
    svg = strips([*many, Strip("large", 0, 5000, 1, 6)], num_steps=5000)
    assert "large: 6 B" in svg
    assert "1,001 buffers too small to be drawn" in texts(svg)
    assert len(svg) < 200_000
    assert_no_words_overlap(svg)


# Bubbles.

MODELS = st.builds(
    Bubble,
    st.text("abcdefgh/_.", min_size=1, max_size=40),
    st.integers(0, 10**18),
    st.integers(0, 2**50),
    st.integers(0, 10**12),
)
BUDGETS = st.lists(st.tuples(st.text("GIB ", max_size=9), st.integers(1, 2**50)), max_size=5)


@given(st.lists(MODELS, max_size=25), BUDGETS, st.booleans())
def test_no_names_of_bubbles_overlap(
    models: list[Bubble],
    lines: list[tuple[str, int]],
    is_log: bool,
) -> None:
    svg = bubbles(models, lines, is_log=is_log)
    names = {cut(model.name, 130) for model in models}
    placed = [spot for spot in spots(svg) if spot[4] in names]
    for number, (left, top, right, bottom, text) in enumerate(placed):
        for other in placed[:number]:
            apart = other[2] <= left or right <= other[0] or other[3] <= top or bottom <= other[1]
            assert apart, (text, other[4])
    circles = list(parsed(svg).iter(f"{SVG}circle"))
    assert len(circles) == len(models)
    for circle in circles:
        assert 71 <= float(circle.get("cx", "")) <= WIDTH
        assert 0 < float(circle.get("cy", "")) < 400


def test_area_is_as_the_parameters() -> None:
    svg = bubbles([Bubble("small", 10, 10, 25), Bubble("large", 1000, 1000, 100)])
    radii = [float(each.get("r", "")) for each in parsed(svg).iter(f"{SVG}circle")]
    assert radii[0] == pytest.approx(2 * radii[1])


def test_budgets_that_tell_no_models_apart_are_one_line() -> None:
    lines = [(f"{size} MiB", size * MIB) for size in (1, 2, 8, 40, 64, 100)]
    shown = texts(bubbles([Bubble("a", 1, 4 * MIB, 1), Bubble("b", 1, 32 * MIB, 1)], lines))
    drawn = [name for name, _ in lines if name in ", ".join(shown[2:])]
    assert "2 MiB" in drawn
    assert "8 MiB" in drawn
    assert "40 MiB" in drawn
    assert "100 MiB" not in drawn


def test_budgets_that_are_close_share_a_line_of_words() -> None:
    lines = [("one", 4 * MIB), ("other", 4 * MIB + 7)]
    models = [Bubble("a", 1, MIB, 1), Bubble("b", 1, 64 * MIB, 1)]
    assert "other, one" in texts(bubbles(models, lines))


# Axes.


@given(st.integers(0, 2**62))
def test_ticks_of_bytes_are_round_few_and_within(top_bytes: int) -> None:
    ticks = byte_ticks(top_bytes)
    assert ticks[0] == 0
    assert ticks[-1] <= top_bytes
    assert len(ticks) <= 7
    assert len(ticks) >= 2 or top_bytes == 0
    labels = [byte_label(tick, top_bytes) for tick in ticks]
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"0|\d{1,4}(\.\d{1,3})? [KMGTPE]?i?B", label) for label in labels)


@pytest.mark.parametrize(
    ("top_bytes", "labels"),
    [
        (0, ["0"]),
        (5, ["0", "1 B", "2 B", "3 B", "4 B", "5 B"]),
        (1300 * MIB, ["0", "0.25 GiB", "0.5 GiB", "0.75 GiB", "1 GiB", "1.25 GiB"]),
        (900 * MIB, ["0", "200 MiB", "400 MiB", "600 MiB", "800 MiB"]),
    ],
)
def test_ticks_are_in_the_unit_of_the_largest(top_bytes: int, labels: list[str]) -> None:
    assert [byte_label(tick, top_bytes) for tick in byte_ticks(top_bytes)] == labels


@given(st.integers(1, 10**9))
def test_ticks_of_steps_begin_at_1(num_steps: int) -> None:
    ticks = step_ticks(num_steps)
    assert ticks[0] == 1
    assert list(ticks) == sorted(set(ticks))
    assert len(ticks) <= 9
    assert ticks[-1] <= num_steps


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9))
def test_ticks_of_an_accuracy_are_round(low: float, span: float) -> None:
    ticks = round_ticks(low, low + span)
    assert len(ticks) <= 8
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    assert round_ticks(low, low) == (low,)


@given(st.integers(0, 10**18), st.integers(0, 10**18))
def test_decades_hold_both_ends(one: int, other: int) -> None:
    low, high = sorted((one, other))
    powers = decades(low, high)
    assert powers[0] <= max(low, 1)
    assert powers[-1] >= high
    assert len(powers) >= 2


# Words.


@given(st.text(max_size=80), st.integers(30, 400))
def test_a_cut_name_fits(text: str, width: int) -> None:
    shown = cut(text, width)
    assert text_width(shown) <= width
    assert shown.isprintable()


def test_a_cut_name_keeps_both_ends() -> None:
    shown = cut("/layers/0/" + "x" * 90 + "/output", 150)
    assert shown.startswith("/layers/")
    assert shown.endswith("/output")


def test_a_legend_takes_as_many_rows_as_it_needs() -> None:
    series = tuple(Series("n" * 30, (1,), "c-weights") for _ in range(8))
    svg = area(series)
    assert_no_words_overlap(svg)
    rows = {spot[3] for spot in spots(svg) if spot[4].startswith("nnn")}
    assert len(rows) == 4
    assert max(rows) - min(rows) == 3 * LINE


# Blocks.


@given(st.lists(SIZES, max_size=300), st.integers(1, 100))
def test_a_row_of_blocks_shows_the_peak_in_its_place(values: list[int], width: int) -> None:
    row = spark(values, width)
    assert len(row) == min(len(values), width)
    if any(values):
        bucket = next(
            n
            for n in range(len(row))
            if (n + 1) * len(values) // len(row) > values.index(max(values))
        )
        assert row[bucket] == "█"
        assert row.index("█") <= bucket
    else:
        assert not row.strip()


def test_blocks_can_have_the_scale_of_another_row() -> None:
    assert spark([1, 2], 2, top=8) == "▁▂"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "no such encoding"])
def test_an_encoding_without_blocks_has_other_characters(encoding: str) -> None:
    assert legible("peak ▁▂▃▄▅▆▇█", encoding) == "peak _.-=+*#@"


def test_blocks_stay_where_they_can_be_written() -> None:
    assert legible("▁█ é", "utf-8") == "▁█ é"
    assert legible("▁█ é", None) == "▁█ é"


def test_names_that_differ_are_cut_so_that_they_still_do() -> None:
    names = [
        f"/layers/layers.{n}/downsample/{n % 3}/BatchNormalization_output_0" for n in range(40)
    ]
    shown = distinct(names, 130)
    assert len(set(shown)) == 40
    assert all(text_width(text) <= 130 for text in shown)
    assert distinct(["short", "short", "other"], 130) == ["short", "short", "other"]


def test_every_large_bubble_has_its_name() -> None:
    """In a crowd too: those of the largest area are named, if need be away from their bubbles."""
    crowd = [Bubble(f"model_{n}", 10**9 + n * 10**8, 2**30 + n, 10**8) for n in range(8)]
    crowd += [Bubble(f"dot_{n}", 10**9 + n, 2**30 + n, 10) for n in range(30)]
    for width in (366, 720, 1060):
        shown = texts(
            bubbles_svg(
                crowd,
                Frame("u", "Models", "All.", width),
                lines=(),
                axes=Axes("forward FLOPs", "memory of inference"),
            )
        )
        assert {f"model_{n}" for n in range(8)} <= set(shown)
        assert {"forward FLOPs", "memory of inference", "circle area = parameters"} <= set(shown)


def test_a_bubble_leads_where_its_model_has_a_page() -> None:
    svg = bubbles([Bubble("a", 10, 10, 25, link="a.html"), Bubble("b", 1000, 1000, 100)])
    links = parsed(svg).findall(".//{*}a")
    assert [(each.get("href"), each.get("aria-label")) for each in links] == [("a.html", "a")]


@pytest.mark.parametrize("times", [2, 3])
def test_a_limit_is_a_line_unless_it_is_far_above(times: int) -> None:
    svg = area(stack((4 * MIB, 2 * MIB)), limit=("budget", times * 4 * MIB))
    text = f"budget {times * 4}.0{'0' if times == 2 else ''} MiB"
    above = ", above this chart"
    assert (f"{text}{above}" in texts(svg)) == (times == 3)
    assert (text in texts(svg)) == (times == 2)


def test_two_charts_share_both_scales() -> None:
    one = area(stack((1, 2)), scale_bytes=8, scale_steps=9)
    other = area(stack((*range(1, 9), 8)))
    axis = [text for text in texts(one) if text.isdecimal()]
    assert axis == [text for text in texts(other) if text.isdecimal()]
