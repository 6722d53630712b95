"""Memory over the steps on a page: the charts that Python draws, and the numbers for its script.

The timeline is drawn again by a script, at another batch too: where the same allocations are alive
in the same steps at three stops at least, and each grows linearly, live bytes at a step are a line
over the batch. A phase's peak is the highest of the lines of its steps, their upper envelope.
Further charts show what allocators reserve.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import shortened
from onnxmem.program.polynomials import Line, upper_lines
from onnxmem.program.replay import Replay
from onnxmem.program.sizes import Affine, Sizes
from onnxmem.report.charts.drawing import Frame, num_shared
from onnxmem.report.charts.steps import Mark, Series, area_svg, decimated
from onnxmem.report.page.markup import chart, section
from onnxmem.report.page.stops import Stops
from onnxmem.report.timelines import GROUPS, Lifetimes, lifetimes_of
from onnxmem.runtimes.base import RuntimeRun
from onnxmem.units import format_bytes, plural

_MOST_STEPS: Final = 1000
"""Steps that a script is given: more than a screen has columns for a chart."""
_MOST_LIVE: Final = 5
"""Tensors that are named at a step, the largest."""
_MOST_NAMED: Final = 600
"""The largest tensors, which can be searched for and are marked where they are selected."""
_MOST_LABELS: Final = 200
"""Steps up to which the chart names each."""
_MOST_FOLLOWED: Final = 200_000
"""Allocations and steps up to which the timeline is followed over batches."""
_MOST_EVENTS: Final = 200_000
"""Of a program whose allocator is replayed for a chart."""


def timeline_section(lifetimes: Lifetimes, stops: Stops) -> str:
    """The chart and where a script draws its own, with the fields by which it is searched."""
    series = lifetimes.series(lifetimes.sizes.fixed_bytes)
    if not lifetimes.num_steps or not series:
        return ""
    peak_step, peak_bytes = _peak(series)
    is_training = bool(lifetimes.marks)
    what = "the training step" if is_training else "inference"
    unit = "allocation or release" if is_training else "node"
    node = lifetimes.nodes[peak_step]
    at = f" at {shortened(node)}" if node else ""
    description = (
        f"{plural(lifetimes.num_steps, 'step')}; the most alive at once is"
        f" {format_bytes(peak_bytes)}{at}, step {peak_step + 1:,}."
    )
    svg = area_svg(
        series,
        Frame("onnxmem-timeline-svg", f"Live bytes over the steps of {what}", description),
        peak_step=peak_step,
        labels=[shortened(name) for name in lifetimes.nodes]
        if lifetimes.num_steps <= _MOST_LABELS
        else None,
        marks=lifetimes.marks,
        limit=budget_line(stops),
    )
    batch = "" if not stops.can_move else f" at batch {stops.requested.batch:,}"
    body = (
        '<div class="tools" id="onnxmem-timeline-tools" hidden>'
        '<div class="legend" id="onnxmem-legend" role="group" aria-label="categories shown"></div>'
        '<p class="search"><label>find a tensor or a node <input type="search" autocomplete="off"'
        ' id="onnxmem-search"></label></p>'
        '<ul class="matches" id="onnxmem-matches" aria-label="tensors and nodes found"></ul></div>'
        f'<figure><div class="wide" id="onnxmem-timeline" tabindex="0" role="group"'
        f' aria-label="memory timeline">{svg}</div>'
        '<p class="hint for-mouse" id="onnxmem-timeline-hint" hidden>Point at a step or use the'
        " arrow keys, click or press Enter to select what runs there; drag to zoom, double-click"
        " or Esc to see all.</p>"
        '<p class="hint for-touch" hidden>Tap a step, a tensor or a node to mark it everywhere on'
        " the page; tap a category to hide it.</p>"
        '<div class="readout" id="onnxmem-readout" hidden></div>'
        f"<figcaption>{plural(lifetimes.num_steps, 'step')}, each {unit} one. Peak"
        f' <span data-caption="peak">{format_bytes(peak_bytes)}</span>'
        f'<span data-caption="batch">{batch}</span>.</figcaption></figure>'
    )
    return section("timeline", f"Memory over {what}", body)


def budget_line(stops: Stops) -> tuple[str, int] | None:
    """The budget as the limit of a chart."""
    budget_bytes = stops.requested.analysis.settings.budget_bytes
    return None if budget_bytes is None else ("budget", budget_bytes)


def timeline_data(
    lifetimes: Lifetimes, stops: Stops, affine: Sizes | None
) -> Mapping[str, object] | None:
    """Steps, areas, the node of each step and the largest that are alive there."""
    series = lifetimes.series(lifetimes.sizes.fixed_bytes)
    if not lifetimes.num_steps or not series:
        return None
    slopes = None if affine is None else affine.slope_bytes
    steps = _shown_steps(series, lifetimes, None if affine is None else stops)
    named = _named(lifetimes, steps)
    budget = budget_line(stops)
    nodes = list(dict.fromkeys(lifetimes.nodes[step] for step in steps))
    node_of = {name: index for index, name in enumerate(nodes)}
    present = {
        index: [each.css_class for each in series].index(css_class)
        for index, css_class in enumerate(GROUPS.values())
        if any(each.css_class == css_class for each in series)
    }
    per = [0] * len(lifetimes.labels) if slopes is None else slopes.tolist()
    batch = stops.requested.batch if slopes is not None else 0
    growing = () if slopes is None else lifetimes.series(slopes)
    by_name = {each.name: each for each in growing}
    return {
        "steps": _deltas(steps),
        "marks": [[mark.start, mark.name] for mark in lifetimes.marks],
        "series": [_series_data(each, by_name.get(each.name), steps, batch) for each in series],
        "nodes": _front_coded([shortened(name) for name in nodes]),
        "node": [node_of[lifetimes.nodes[step]] for step in steps],
        "tensors": {
            "names": _front_coded([shortened(lifetimes.labels[number]) for number in named]),
            "groups": [present[int(lifetimes.groups[number])] for number in named],
            # The page adds the requested batch times `per` again.
            "fixed": [lifetimes.sizes.bytes_of(n) - batch * per[n] for n in named],
            "per": [per[number] for number in named],
            "starts": _deltas(int(lifetimes.starts[number]) for number in named),
            "lengths": [int(lifetimes.stops[n] - lifetimes.starts[n]) for n in named],
        },
        "budget": None if budget is None else budget[1],
        "batch": stops.requested.batch,
        "moves": None if affine is None else [affine.first, affine.last],
    }


def _series_data(
    series: Series, slope: Series | None, steps: Sequence[int], batch: int
) -> Mapping[str, object]:
    """Bytes at the shown steps as ``fixed + per x batch``, each where it changes."""
    per = [0] * len(steps) if slope is None else [slope.values[step] for step in steps]
    fixed = [series.values[step] - batch * more for step, more in zip(steps, per, strict=True)]
    return {
        "name": series.name,
        "css": series.css_class,
        "fixed": _changes(fixed),
        "per": _changes(per),
    }


def _changes(values: Sequence[int]) -> list[int]:
    """Where values change: each such index as the distance from the one before, and the change."""
    before, found = 0, list[int]()
    for index, change in enumerate(_deltas(values)):
        if change:
            found += [index - before, change]
            before = index
    return found


def _peak(series: Sequence[Series]) -> tuple[int, int]:
    sums = [sum(values) for values in zip(*(each.values for each in series), strict=True)]
    peak_bytes = max(sums)
    return sums.index(peak_bytes), peak_bytes


def _shown_steps(series: Sequence[Series], lifetimes: Lifetimes, stops: Stops | None) -> list[int]:
    """As few steps as a screen shows: the first, the last and every batch's peak among them."""
    steps, _ = decimated(series, _MOST_STEPS)
    shown = {*steps, 0, lifetimes.num_steps - 1}
    if stops is not None and len(steps) < lifetimes.num_steps:
        others = (lifetimes_of(stop.analysis) for stop in stops.all)
        # The peak may move with the batch: the steps at which it is then are drawn too.
        shown |= {_peak(each.series(each.sizes.fixed_bytes))[0] for each in others}
    return sorted(step for step in shown if step < lifetimes.num_steps)


def _front_coded(names: Iterable[str]) -> list[int | str]:
    """Names, each as the number of letters that it shares with the one before, and its others."""
    before, found = "", list[int | str]()
    for name in names:
        shared = num_shared(before, name)
        found += [shared, name[shared:]]
        before = name
    return found


def _deltas(values: Iterable[int]) -> list[int]:
    """Each value as what it adds to the one before: short where little changes."""
    before, found = 0, []
    for value in values:
        found.append(value - before)
        before = value
    return found


def _named(lifetimes: Lifetimes, steps: Sequence[int]) -> list[int]:
    """The allocations that a script knows, in the order in which they begin.

    They are the largest at each shown step, and of the others the largest.
    """
    sizes_bytes = lifetimes.sizes.fixed_bytes
    named = {number for numbers in _largest_at(lifetimes, steps) for number in numbers}
    by_size = np.argsort(-sizes_bytes, kind="stable").tolist()
    named.update(by_size[:_MOST_NAMED])
    # One of unknown size has no bytes: where a whole group has none, the chart has no such area.
    named = {number for number in named if sizes_bytes[number]}
    return sorted(named, key=lambda number: (int(lifetimes.starts[number]), number))


def _largest_at(lifetimes: Lifetimes, steps: Sequence[int]) -> list[list[int]]:
    """The largest allocations alive at each shown step, largest first.

    Allocations are added from the largest on, to steps that do not have enough yet. The first such
    step from one on is found by a chain that only grows, as in a union of disjoint sets:
    ``next_open[n]`` is ``n`` while step ``n`` takes more, and later a step beyond it. So an
    allocation costs no more than the steps that it is added to.
    """
    live: list[list[int]] = [[] for _ in steps]
    next_open = list(range(len(steps) + 1))

    def first_open(index: int) -> int:
        # Path halving, as in a union-find: almost constant for each look-up.
        while next_open[index] != index:
            next_open[index] = next_open[next_open[index]]
            index = next_open[index]
        return index

    sizes, starts = lifetimes.sizes.fixed_bytes.tolist(), lifetimes.starts.tolist()
    stops = lifetimes.stops.tolist()
    for number in sorted(range(len(sizes)), key=lambda each: (-sizes[each], starts[each], each)):
        index = first_open(bisect_left(steps, starts[number]))
        while index < len(steps) and steps[index] < stops[number]:
            live[index].append(number)
            if len(live[index]) == _MOST_LIVE:
                next_open[index] = index + 1
            index = first_open(index + 1)
    return live


def affine_sizes(lifetimes: Lifetimes, stops: Stops) -> Sizes | None:
    """The sizes of all allocations as linear in the batch; ``None`` where they are not known so."""
    num_allocations = len(lifetimes.labels)
    if not num_allocations or num_allocations + lifetimes.num_steps > _MOST_FOLLOWED:
        return None
    others = [(stop.batch, lifetimes_of(stop.analysis)) for stop in stops.all]
    points = [
        (batch, other.sizes) for batch, other in others if lifetimes.has_same_lifetimes(other)
    ]
    # Two points prove nothing: any two are on a line.
    return Sizes.through(points) if len(points) > 2 else None  # noqa: PLR2004 - see above


def peak_lines(lifetimes: Lifetimes, affine: Sizes | None) -> Mapping[str, tuple[Affine, ...]]:
    """The peaks of all phases and of a training step, piecewise, by their keys."""
    if affine is None or affine.slope_bytes is None or affine.last is None or not lifetimes.marks:
        return {}
    columns = (affine.slope_bytes, affine.fixed_bytes)
    totals = (lifetimes.live_bytes(column).sum(axis=0).tolist() for column in columns)
    lines: list[Line] = list(zip(*totals, strict=True))
    starts = [mark.start for mark in lifetimes.marks]
    # What is alive as a phase begins counts in its peak.
    ranges = zip([max(start - 1, 0) for start in starts], [*starts[1:], len(lines)], strict=True)
    found = {
        f"training.{mark.name}_peak_bytes": envelope(lines[start:stop], affine.first, affine.last)
        for mark, (start, stop) in zip(lifetimes.marks, ranges, strict=True)
    }
    return {**found, "training.peak_bytes": envelope(lines, affine.first, affine.last)}


def envelope(lines: Sequence[Line], first: int, last: int) -> tuple[Affine, ...]:
    """The highest line at each batch from one to another, piecewise; nothing without lines."""
    highest = upper_lines(lines, first)
    if not highest:
        return ()
    # A line is no lower than the one before it from this batch on, a quotient rounded up.
    begins = [-((new[1] - old[1]) // (new[0] - old[0])) for old, new in pairwise(highest)]
    pieces = (
        Affine(fixed, slope, begin, min(after - 1, last))
        for (slope, fixed), (begin, after) in zip(
            highest, pairwise([first, *begins, last + 1]), strict=True
        )
    )
    return tuple(piece for piece in pieces if piece.first <= piece.last)


def reserved_sections(analysis: Analysis) -> Iterator[str]:
    """PyTorch's allocator on a training step, and those of runtimes given as objects."""
    run = analysis.request.torch_run() if analysis.torch is not None else None
    if run is not None and analysis.training is not None:
        yield _reserved_section("pytorch", "PyTorch's allocator", run, analysis.training.replay)
    for number, each in enumerate(analysis.replays):
        yield _reserved_section(
            f"replay-{number}", f"the allocator of {each.name}", each.run, each.replay
        )


def _reserved_section(key: str, whose: str, run: RuntimeRun, replay: Replay) -> str:
    """Live bytes and what is reserved beyond them, over the steps of the first iteration."""
    program = replay.program
    if not 0 < len(program.events) <= _MOST_EVENTS:
        return ""
    reserved = run.reserved_by_step()
    if not reserved:
        return ""
    live = replay.step_bytes.tolist()
    beyond = [max(most - size, 0) for most, size in zip(reserved, live, strict=True)]
    peak_bytes = max(reserved)
    starts = [
        (program.event_steps[min(start, len(program.events) - 1)], phase)
        for phase, start in program.phase_starts.items()
    ]
    whose = shortened(whose)
    svg = area_svg(
        (
            Series("alive", tuple(live), "c-activations"),
            Series("reserved beyond that", tuple(beyond), "c-temporary"),
        ),
        Frame(
            f"onnxmem-reserved-{key}",
            f"What {whose} reserves",
            f"At most {format_bytes(peak_bytes)} in the first iteration.",
        ),
        peak_step=reserved.index(peak_bytes),
        labels=None,
        marks=[Mark(name=phase, start=int(step)) for step, phase in starts],
    )
    body = (
        f"<figure>{chart(svg, 'reserved')}"
        "<figcaption>The first iteration, from an empty device: what is alive, and what the"
        " allocator has taken from the device beyond that: free blocks, rounding, workspaces. At"
        f" most {format_bytes(peak_bytes)}.</figcaption></figure>"
    )
    return section(f"reserved-{key}", f"What {whose} reserves", body, is_open=False)
