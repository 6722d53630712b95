"""The memory timeline: a chart that Python draws, and the numbers for a script to draw it again."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from onnxmem.errors import shortened
from onnxmem.report.charts.steps import Mark, Series, area_svg, decimated
from onnxmem.report.page.markup import section
from onnxmem.report.page.spans import Course, Moving, Span, course_of, moved
from onnxmem.report.page.stops import Stops
from onnxmem.units import format_bytes, plural

_MOST_STEPS: Final = 1000
"""Steps that a script is given: more than a screen has columns for a chart."""
_MOST_LIVE: Final = 5
"""Tensors that are named at a step, the largest."""


def timeline_section(course: Course, stops: Stops) -> str:
    """The chart and where a script draws its own."""
    series = course.series()
    if not course.num_steps or not series:
        return ""
    peak_step, peak_bytes = _peak(series)
    is_step = bool(course.marks)
    what = "training step" if is_step else "run"
    unit = "allocation or release" if is_step else "node"
    place = course.nodes[peak_step]
    at = f" at {shortened(place)}" if place else ""
    description = (
        f"{plural(course.num_steps, 'step')}; the most alive at once is"
        f" {format_bytes(peak_bytes)}{at}, step {peak_step + 1:,}."
    )
    svg = area_svg(
        series,
        chart_id="onnxmem-timeline-svg",
        title=f"Live bytes over the steps of the {what}",
        description=description,
        peak_step=peak_step,
        labels=[shortened(name) for name in course.nodes] if course.num_steps <= 200 else None,  # noqa: PLR2004
        marks=[Mark(name=name, start=step) for step, name in course.marks],
    )
    batch = "" if not stops.can_move else f" at batch {stops.requested.batch:,}"
    body = (
        f'<figure><div class="wide" id="onnxmem-timeline" tabindex="0" role="group"'
        f' aria-label="memory timeline">{svg}</div>'
        '<p class="hint" id="onnxmem-timeline-hint" hidden>Point at a step or use the arrow keys;'
        " drag to zoom, double-click or Esc to see all.</p>"
        '<div class="readout" id="onnxmem-readout" hidden></div>'
        f"<figcaption>{plural(course.num_steps, 'step')}, each {unit} one. Peak"
        f' <span data-caption="peak">{format_bytes(peak_bytes)}</span>'
        f'<span data-caption="batch">{batch}</span>.</figcaption></figure>'
    )
    return section("timeline", f"Memory over the {what}", body)


def timeline_data(
    course: Course, stops: Stops, moving: Moving | None
) -> Mapping[str, object] | None:
    """Steps, areas, the node of each step and the largest that are alive there."""
    series = course.series()
    if not course.num_steps or not series:
        return None
    steps = _kept(series, course, stops if moving else None)
    spans = _largest_at(course, steps)
    named = sorted({number for each in spans for number in each})
    place_of = {number: place for place, number in enumerate(named)}
    slopes = None if moving is None else moved(course, moving)
    nodes = list(dict.fromkeys(course.nodes[step] for step in steps))
    node_of = {name: place for place, name in enumerate(nodes)}
    by_name = {} if slopes is None else {each.name: each for each in slopes}
    return {
        "steps": _deltas(steps),
        "marks": [[step, name] for step, name in course.marks],
        "series": [_row(each, by_name.get(each.name), steps) for each in series],
        "nodes": [shortened(name) for name in nodes],
        "node": [node_of[course.nodes[step]] for step in steps],
        "tensors": [_tensor(course.spans[number], number, moving) for number in named],
        "live": [[place_of[number] for number in each] for each in spans],
        "batch": stops.requested.batch,
        "moves": None if moving is None else [moving.first, moving.last],
    }


def _row(series: Series, slope: Series | None, steps: Sequence[int]) -> Mapping[str, object]:
    return {
        "name": series.name,
        "css": series.css_class,
        "at": _deltas(series.values[step] for step in steps),
        "per": None if slope is None else _deltas(slope.values[step] for step in steps),
    }


def _tensor(span: Span, number: int, moving: Moving | None) -> list[object]:
    slope = 0 if moving is None else moving.per_sample[number]
    return [shortened(span.name), span.size_bytes, slope]


def _peak(series: Sequence[Series]) -> tuple[int, int]:
    sums = [sum(values) for values in zip(*(each.values for each in series), strict=True)]
    peak_bytes = max(sums)
    return sums.index(peak_bytes), peak_bytes


def _kept(series: Sequence[Series], course: Course, stops: Stops | None) -> list[int]:
    """As few steps as a screen shows, the first, the last and every batch's peak among them."""
    steps, _ = decimated(series, _MOST_STEPS)
    kept = {*steps, 0, course.num_steps - 1}
    if stops is not None and len(steps) < course.num_steps:
        kept |= {_peak(course_of(stop.analysis).series())[0] for stop in stops.all}
    return sorted(step for step in kept if step < course.num_steps)


def _deltas(values: Iterable[int]) -> list[int]:
    """Each value as what it adds to the one before: short where little changes."""
    before, found = 0, []
    for value in values:
        found.append(value - before)
        before = value
    return found


def _largest_at(course: Course, steps: Sequence[int]) -> list[list[int]]:
    """The largest spans alive at each kept step, largest first.

    Spans are dealt out from the largest on to the steps that have room; steps that are full are
    skipped by a chain that only grows, so that a span costs what it adds.
    """
    live: list[list[int]] = [[] for _ in steps]
    room = list(range(len(steps) + 1))

    def with_room(place: int) -> int:
        while room[place] != place:
            room[place] = room[room[place]]
            place = room[place]
        return place

    order = ((-span.size_bytes, span.start, n) for n, span in enumerate(course.spans))
    by_size = [n for _, _, n in sorted(order)]
    for number in by_size:
        span = course.spans[number]
        place = with_room(bisect_left(steps, span.start))
        while place < len(steps) and steps[place] < span.stop:
            live[place].append(number)
            if len(live[place]) == _MOST_LIVE:
                room[place] = place + 1
            place = with_room(place + 1)
    return live
