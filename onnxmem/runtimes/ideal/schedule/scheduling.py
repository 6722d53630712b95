"""The order of execution with the least peak that is found, and whether it is proven least.

1. No order takes less than the node whose own blocks take the most: an order that takes no more
   is best.
2. Each segment keeps the best of the file's order, two depth-first walks and beams of 1, 4 and 32.
3. What is still above the floor is searched exactly, the segment with the highest peak first; a
   segment's least peak is a floor of the whole.
4. A segment whose file order is no higher than the whole's peak keeps that order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from onnxmem.runtimes.ideal.schedule.problem import Problem
from onnxmem.runtimes.ideal.schedule.running import Segment, segment_of
from onnxmem.runtimes.ideal.schedule.schedule import Schedule
from onnxmem.runtimes.ideal.schedule.searching import Work, beam, exact
from onnxmem.runtimes.ideal.schedule.segments import idle_nodes, segments, with_idle
from onnxmem.runtimes.ideal.schedule.sources import contracted
from onnxmem.runtimes.ideal.schedule.walks import largest_first_walk, onnxruntime_walk

_BEAM_WORK = 150_000
"""Jobs that all beams together may try: about a second."""

_EXACT_WORK = 200_000
"""The same of exact search, some 100 MiB of states at the worst."""

_MAX_JOBS = 10_000
"""Of a segment that is searched: its sets of jobs take as many bits."""

_WIDTHS = (1, 4, 32)


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment and the best order of it so far."""

    nodes: tuple[int, ...]
    """In the file's order."""
    start_bytes: int
    file_peak_bytes: int
    peak_bytes: int
    order: tuple[int, ...]
    """Of the nodes by their places among them."""

    def better(self, segment: Segment, order: Sequence[int]) -> "_Part":
        """With another order, if that is better."""
        peak_bytes = segment.peak_bytes(order)
        if peak_bytes >= self.peak_bytes:
            return self
        return replace(self, peak_bytes=peak_bytes, order=tuple(order))

    def settled(self, peak_bytes: int) -> "_Part":
        """In the file's order, where that costs the whole nothing."""
        if self.file_peak_bytes > peak_bytes:
            return self
        file_order = tuple(range(len(self.order)))
        return replace(self, peak_bytes=self.file_peak_bytes, order=file_order)


def best_schedule(problem: Problem) -> Schedule:
    """Search for the order with the least peak; never above the file's."""
    file_order = tuple(range(len(problem.steps)))
    file_peak_bytes = problem.peak_bytes(file_order)
    floor_bytes = problem.floor_bytes()
    if file_peak_bytes <= floor_bytes:
        return Schedule(file_order, file_peak_bytes, file_peak_bytes, floor_bytes)
    small = contracted(problem)
    floor_bytes = max(floor_bytes, small.problem.floor_bytes())
    idle = idle_nodes(small.problem)
    parts = list(_parts(small.problem, idle))
    parts = _tried(small.problem, parts, floor_bytes)
    parts, floor_bytes = _searched(small.problem, parts, floor_bytes)
    peak_bytes = max((part.peak_bytes for part in parts), default=0)
    if peak_bytes >= file_peak_bytes:
        return Schedule(file_order, file_peak_bytes, file_peak_bytes, floor_bytes)
    parts = [part.settled(peak_bytes) for part in parts]
    order = [part.nodes[job] for part in parts for job in part.order]
    whole = tuple(small.whole_order(with_idle(small.problem, order, idle)))
    return Schedule(whole, problem.peak_bytes(whole), file_peak_bytes, floor_bytes)


def _parts(problem: Problem, idle: frozenset[int]) -> Iterator[_Part]:
    """The segments in the file's order, and what they take in it."""
    found = list(segments(problem, idle))
    runs = problem.runs(node for nodes in found for node in nodes)
    start_bytes = 0
    for nodes in found:
        highs = list(islice(runs, len(nodes)))
        peak_bytes = max(high_bytes for high_bytes, _ in highs)
        order = tuple(range(len(nodes)))
        yield _Part(tuple(nodes), start_bytes, peak_bytes, peak_bytes, order)
        start_bytes = highs[-1][1]


def _tried(problem: Problem, parts: Sequence[_Part], floor_bytes: int) -> list[_Part]:
    """Every part with the best of the quick orders; one at the floor is tried no more."""
    if all(part.peak_bytes <= floor_bytes for part in parts):
        return list(parts)
    walks = [_places(walk(problem)) for walk in (onnxruntime_walk, largest_first_walk)]
    work = Work(_BEAM_WORK)
    return [
        part
        if part.peak_bytes <= floor_bytes or len(part.nodes) > _MAX_JOBS
        else _tried_part(
            segment_of(problem, part.nodes, part.start_bytes), part, walks, floor_bytes, work
        )
        for part in parts
    ]


def _tried_part(
    segment: Segment,
    part: _Part,
    walks: Sequence[dict[int, int]],
    floor_bytes: int,
    work: Work,
) -> _Part:
    tries = [partial(_walked, segment, walk) for walk in walks]
    tries += [partial(beam, segment, width, floor_bytes, work) for width in _WIDTHS]
    for attempt in tries:
        if part.peak_bytes <= floor_bytes:
            break
        order = attempt()
        if order is not None:
            part = part.better(segment, order)
    return part


def _places(order: Sequence[int]) -> dict[int, int]:
    return {node: place for place, node in enumerate(order)}


def _walked(segment: Segment, places: dict[int, int]) -> tuple[int, ...] | None:
    """A segment's jobs as they come in an order of all nodes."""
    nodes = segment.nodes
    return tuple(sorted(range(len(nodes)), key=lambda job: places[nodes[job]]))


def _searched(
    problem: Problem, parts: Sequence[_Part], floor_bytes: int
) -> tuple[list[_Part], int]:
    """Search exactly what is above the floor, and the floor after it."""
    found = list(parts)
    work = Work(_EXACT_WORK)
    for place in sorted(range(len(found)), key=lambda i: -found[i].peak_bytes):
        part = found[place]
        if part.peak_bytes <= floor_bytes or work.left < 0 or len(part.nodes) > _MAX_JOBS:
            continue
        segment = segment_of(problem, part.nodes, part.start_bytes)
        order, is_whole = exact(segment, floor_bytes, part.peak_bytes, work)
        if order is not None:
            found[place] = part = part.better(segment, order)
        if is_whole:
            floor_bytes = max(floor_bytes, part.peak_bytes)
    return found, floor_bytes
