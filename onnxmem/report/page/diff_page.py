"""The page of a difference: both timelines on one scale, why the peaks moved, the layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import islice
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.decisions.diff import (
    Change,
    Difference,
    LayerChange,
    PeakChange,
    Snapshot,
    labelled,
)
from onnxmem.errors import shortened
from onnxmem.report.charts.drawing import Frame
from onnxmem.report.charts.sizes import bars_svg
from onnxmem.report.charts.steps import area_svg
from onnxmem.report.diff import budget_lines, notes
from onnxmem.report.page.markup import (
    Cell,
    bytes_cell,
    document,
    filter_box,
    name,
    on_both,
    prose,
    section,
    table,
)
from onnxmem.report.text import percent
from onnxmem.report.timelines import StackedTimeline, run_timeline, step_timeline
from onnxmem.units import format_bytes, format_ends, plural

_MOST_ROWS: Final = 5000
_LETTERS: Final = ("A", "B")


@dataclass(frozen=True, slots=True)
class SideTimelines:
    """The timelines of one side."""

    run: StackedTimeline
    step: StackedTimeline | None
    """``None``: there is no training step."""


def side_timelines(analysis: Analysis) -> SideTimelines:
    """The timelines of an analysis."""
    step = analysis.training
    return SideTimelines(
        run_timeline(analysis), None if step is None else step_timeline(step.replay)
    )


def diff_page(difference: Difference, sides: Sequence[SideTimelines | None]) -> str:
    """A whole page; a side is ``None`` where it is a saved report, which has no timeline."""
    is_training = difference.training is not None
    runs = [None if each is None else each.run for each in sides]
    steps = [None if each is None else each.step for each in sides]
    activations, at_most = difference.activations, ""
    if difference.activations_at_most is not None:
        activations, at_most = difference.activations_at_most, " at most"
    sections = [
        section("sides", "What is compared", _sides(difference)),
        section("figures", "Figures", _figures(difference.figures)),
        *_budget(difference),
        *_timelines("step", "Memory over the training step", steps),
        *_why(
            "training",
            "Why the peak of the training step changed",
            "optimizer",
            difference.training,
        ),
        *_timelines("run", "Memory over inference", runs, is_open=not is_training),
        *_why(
            "activations",
            f"Why the peak of activations{at_most} changed",
            "no node",
            activations,
            is_open=not is_training,
        ),
        *(
            each
            for number, (name, change) in enumerate(difference.runtimes.items())
            for each in _why(
                f"runtime-{number}", f"Why the peak of {name} changed", "no node", change
            )
        ),
        _layers(difference),
        *_notes(difference),
    ]
    before, after = (shortened(each.path, 60) for each in (difference.before, difference.after))
    title = before if before == after else f"{before} and {after}"
    return document(f"Difference: {title}", sections)


def _sides(difference: Difference) -> str:
    heads = [("side", False), ("model", False), ("batch", True), ("training step", False)]
    rows = (
        (
            Cell(letter),
            Cell(name(side.path)),
            Cell("" if side.batch is None else f"{side.batch:,}", side.batch, is_number=True),
            Cell(name(side.step)),
            Cell(_known(side)),
        )
        for letter, side in zip(_LETTERS, (difference.before, difference.after), strict=True)
    )
    return table("sides-table", [*heads, ("known", False)], rows)


def _known(side: Snapshot) -> str:
    known = "complete" if side.status == "ok" else "lower bound"
    if side.inference_ends is not None:
        known = f"inference {format_ends(*side.inference_ends)}"
    return f"{known}, a saved report" if side.is_saved else known


def _figures(changes: Sequence[Change]) -> str:
    heads = [("figure", False), ("A", True), ("B", True), ("change", True), ("share", True)]
    rows = (
        (
            Cell(name(label)),
            bytes_cell(change.before_bytes),
            bytes_cell(change.after_bytes),
            _change_cell(change.change_bytes),
            Cell(percent(change.change_percent), change.change_percent, is_number=True),
        )
        for label, change in labelled(changes)
    )
    return table("figures-table", heads, rows)


def _budget(difference: Difference) -> Iterator[str]:
    text = "\n".join(map(escape, budget_lines(difference)))
    if text:
        yield section("budget", "Budget", f'<pre class="verdict-terms">{text}</pre>')


def _notes(difference: Difference) -> Iterator[str]:
    """What the figures of each side assume or leave out."""
    found = "".join(
        f"<li><b>{which}</b> <code>{escape(each.code)}</code> {prose(each.message)}</li>"
        for which, each in notes(difference)
    )
    if found:
        yield section("notes", "Notes", f'<ul class="findings">{found}</ul>')


def _timelines(
    section_id: str,
    title: str,
    timelines: Sequence[StackedTimeline | None],
    *,
    is_open: bool = True,
) -> Iterator[str]:
    """One under the other, with one scale of bytes."""
    known = [each for each in timelines if each is not None and each.labels]
    if not known:
        return
    scale_bytes = max(max(each.sums) for each in known)
    scale_steps = max(len(each.labels) for each in known)
    figures = []
    for letter, timeline in zip(_LETTERS, timelines, strict=True):
        if timeline is None or not timeline.labels:
            figures.append(f"<p>{letter}: a saved report has no timeline, or there is none.</p>")
            continue
        picture = _Picture(timeline, scale_bytes, scale_steps, f"{section_id}-{letter.lower()}")
        drawn = on_both(partial(_draw, picture, f"{title}: {letter}"), f"timeline of {letter}")
        figures.append(f"<figure><figcaption>{letter}</figcaption>{drawn}</figure>")
    yield section(section_id, title, "".join(figures), "Both on the same scales.", is_open=is_open)


@dataclass(frozen=True, slots=True)
class _Picture:
    timeline: StackedTimeline
    scale_bytes: int
    scale_steps: int
    chart_id: str


def _draw(picture: _Picture, title: str, width: int, suffix: str) -> str:
    timeline = picture.timeline
    num_steps = len(timeline.labels)
    return area_svg(
        timeline.series,
        Frame(
            f"onnxmem-{picture.chart_id}{suffix}",
            title,
            f"{plural(num_steps, 'step')}, peak {format_bytes(max(timeline.sums))}.",
            width,
        ),
        peak_step=timeline.peak_step,
        labels=timeline.labels,
        marks=timeline.marks,
        scale_bytes=picture.scale_bytes,
        scale_steps=picture.scale_steps,
    )


def _why(
    section_id: str, title: str, elsewhere: str, change: PeakChange | None, *, is_open: bool = True
) -> Iterator[str]:
    """Bars and a table of the allocations that add up to the change of a peak."""
    if change is None or not change.blocks:
        return
    items = [(block.name, block.change_bytes or 0) for block in change.blocks]
    nodes = [shortened(each.node or elsewhere) for each in (change.before, change.after)]
    where = (
        f"at {shortened(nodes[0])}" if nodes[0] == nodes[1] else " to ".join(map(shortened, nodes))
    )
    description = f"{change.change_bytes:+,} B from {plural(len(items), 'block')}."

    def draw(width: int, suffix: str) -> str:
        chart_id = f"onnxmem-{section_id}-bars{suffix}"
        return bars_svg(items, Frame(chart_id, title, description, width))

    heads = [("block", False), ("kind", False), ("A", True), ("B", True), ("change", True)]
    rows = (
        (
            Cell(name(block.name)),
            Cell(name(block.category or "")),
            bytes_cell(block.before_bytes),
            bytes_cell(block.after_bytes),
            _change_cell(block.change_bytes),
        )
        for block in islice(change.blocks, _MOST_ROWS)
    )
    body = (
        f"<figure>{on_both(draw, 'bars')}</figure>"
        f"<details><summary>{plural(len(items), 'block')}, to the byte</summary>"
        f"{table(f'{section_id}-table', heads, rows)}</details>"
    )
    same = f"; {change.unchanged_tensors:,} the same in both" if change.unchanged_tensors else ""
    remark = f"{change.change_bytes:+,} B, {where}{same}."
    yield section(section_id, title, body, remark, is_open=is_open)


def _layers(difference: Difference) -> str:
    changes = difference.layers
    if changes is None:
        remark = "Unknown: the saved report has none; save it with --layers."
        return section("layers", "Layers", "", remark)
    heads = [("what", False), ("operator", False), ("node", False)]
    heads += [("A", True), ("B", True), ("change", True)]
    rows = map(_layer_row, islice(changes, _MOST_ROWS))
    remark = f"{plural(len(changes), 'layer')} changed, {difference.unchanged_layers:,} unchanged."
    if len(changes) > _MOST_ROWS:
        remark += f" The {_MOST_ROWS:,} that changed the most."
    body = filter_box("layers-table", "filter") + table("layers-table", heads, rows)
    return section("layers", "Layers", body if changes else "", remark, is_open=False)


def _layer_row(change: LayerChange) -> tuple[Cell, ...]:
    layer = change.after or change.before
    sizes = [None if each is None else each.size_bytes for each in (change.before, change.after)]
    is_there = [each is not None for each in (change.before, change.after)]
    return (
        Cell(change.what),
        Cell("" if layer is None else name(layer.op_type)),
        Cell("" if layer is None else name(layer.node), attributes={"class": "name"}),
        *(
            bytes_cell(number) if is_in_side else Cell("", is_number=True)
            for number, is_in_side in zip(sizes, is_there, strict=True)
        ),
        _change_cell(change.change_bytes),
    )


def _change_cell(change_bytes: int | None) -> Cell:
    text = "unknown" if change_bytes is None else f"{change_bytes:+,} B"
    return Cell(text, change_bytes, is_number=True)
