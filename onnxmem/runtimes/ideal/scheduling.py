"""The order of execution with the least peak that is found, and whether it is proven least.

1. No order takes less than the node whose own blocks take the most: an order that takes no more
   is best.
2. Nodes that wait for no bytes are joined to the node that alone reads them (``contracted``), and
   the rest is cut into segments whose orders have nothing to do with each other (``segments``).
3. Each segment keeps the best of the file's order, two depth-first walks and beams of 1, 4 and 32.
4. What is still above the floor is searched exactly, the segment with the highest peak first; a
   segment's least peak is a floor of the whole.
5. A segment whose file order is no higher than the whole's peak keeps that order.

Work is counted in nodes that are tried, not in seconds: a model has the same order on every
machine. Begin reading with ``schedule_of``; it is imported only where another order is requested.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from onnxmem.model.graph import Graph
from onnxmem.runtimes.ideal.schedules import (
    Problem,
    Schedule,
    Segment,
    Step,
    largest_first_walk,
    onnxruntime_walk,
    problem_of,
    segment_of,
)

_WIDE_JOBS = 5_000
"""Bits of so many jobs take as long again as the rest of a try."""


_BEAM_WORK = 150_000
"""Jobs that all beams together may try: about a second."""


_EXACT_WORK = 200_000
"""The same of exact search, some 100 MiB of states at the worst."""


_MAX_JOBS = 10_000
"""Of a segment that is searched: its sets of jobs take as many bits."""


_WIDTHS = (1, 4, 32)


@dataclass(frozen=True, slots=True)
class Contracted:
    """A problem in which a node and the sources that it alone reads are one."""

    problem: Problem
    nodes: tuple[tuple[int, ...], ...]
    """Of each node its nodes in the whole problem, in the file's order."""

    def whole_order(self, order: Iterable[int]) -> list[int]:
        """An order of the whole problem's nodes."""
        return [node for index in order for node in self.nodes[index]]


@dataclass(slots=True)
class Work:
    """Mutable: jobs that may still be tried."""

    left: int

    def spend(self, tries: int, segment: Segment) -> None:
        """Count tries; those in a long segment count more."""
        self.left -= tries * (1 + len(segment.jobs) // _WIDE_JOBS)


class _Link(NamedTuple):
    """The last job of an order, and the jobs before it."""

    job: int
    before: "_Link | None"


class _State(NamedTuple):
    """Jobs that have run, and what that takes."""

    peak_bytes: int
    live_bytes: int
    done: int
    ready: tuple[int, ...]
    order: _Link | None
    num_done: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment and the best order of it so far."""

    nodes: tuple[int, ...]
    """In the file's order."""
    start_bytes: int
    file_peak_bytes: int
    peak_bytes: int
    order: tuple[int, ...]
    """Indices into ``nodes``."""

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


def schedule_of(graph: Graph, order: str) -> Schedule:
    """The order of that name: ``onnxruntime``, or else ``best``."""
    problem = problem_of(graph)
    return best_schedule(problem) if order == "best" else onnxruntime_schedule(problem)


def in_order(graph: Graph, schedule: Schedule) -> Graph:
    """A graph with its nodes in another order."""
    return replace(graph, nodes=tuple(graph.nodes[index] for index in schedule.order))


def onnxruntime_schedule(problem: Problem) -> Schedule:
    """The order in which onnxruntime runs the file's nodes, which may take more than the file's."""
    order = onnxruntime_walk(problem)
    return Schedule(
        order,
        problem.peak_bytes(order),
        problem.peak_bytes(range(len(order))),
        problem.floor_bytes(),
    )


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
    walks = [_positions(walk(problem)) for walk in (onnxruntime_walk, largest_first_walk)]
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


def _positions(order: Sequence[int]) -> dict[int, int]:
    return {node: index for index, node in enumerate(order)}


def _walked(segment: Segment, indices: dict[int, int]) -> tuple[int, ...] | None:
    """A segment's jobs as they come in an order of all nodes."""
    nodes = segment.nodes
    return tuple(sorted(range(len(nodes)), key=lambda job: indices[nodes[job]]))


def _searched(
    problem: Problem, parts: Sequence[_Part], floor_bytes: int
) -> tuple[list[_Part], int]:
    """Search exactly what is above the floor, and the floor after it."""
    found = list(parts)
    work = Work(_EXACT_WORK)
    for index in sorted(range(len(found)), key=lambda i: -found[i].peak_bytes):
        part = found[index]
        if part.peak_bytes <= floor_bytes or work.left < 0 or len(part.nodes) > _MAX_JOBS:
            continue
        segment = segment_of(problem, part.nodes, part.start_bytes)
        order, is_whole = exact(segment, floor_bytes, part.peak_bytes, work)
        if order is not None:
            found[index] = part = part.better(segment, order)
        if is_whole:
            floor_bytes = max(floor_bytes, part.peak_bytes)
    return found, floor_bytes


def segments(problem: Problem, idle: Collection[int]) -> Iterator[list[int]]:
    """The nodes between cuts, in the file's order; each cut ends one.

    Every order runs the same nodes before a node that stands above or below every other one (a
    cut), so each part between two cuts is ordered by itself.
    """
    indices = [index for index in range(len(problem.steps)) if index not in idle]
    producers = {
        index: [source for source in problem.steps[index].producers if source not in idle]
        for index in indices
    }
    consumers: dict[int, list[int]] = {index: [] for index in indices}
    for index, sources in producers.items():
        for source in sources:
            consumers[source].append(index)
    # A node that is alone when it may run has all that are left below it; run backwards, above.
    below = _alone(indices, producers, consumers)
    above = _alone(indices, consumers, producers)
    segment: list[int] = []
    for index in indices:
        segment.append(index)
        if below.get(index, 0) + above.get(index, 0) == len(indices) - 1:
            yield segment
            segment = []
    if segment:
        yield segment


def idle_nodes(problem: Problem) -> frozenset[int]:
    """Nodes that make and read no bytes and wait for no others: constants, weights' makers."""
    found: set[int] = set()
    for index, step in enumerate(problem.steps):
        blocks = (*step.makes, *step.reads)
        has_bytes = step.inner_bytes or any(problem.sizes[block] for block in blocks)
        if not has_bytes and found.issuperset(step.producers):
            found.add(index)
    return frozenset(found)


def _alone(
    indices: Sequence[int],
    producers: dict[int, list[int]],
    consumers: dict[int, list[int]],
) -> dict[int, int]:
    """Nodes that are at some time the only one that may run, and how many are left after each."""
    waits = {index: len(producers[index]) for index in indices}
    ready = [index for index in indices if not waits[index]]
    heapify(ready)
    found: dict[int, int] = {}
    left = len(indices)
    while ready:
        is_alone = len(ready) == 1
        index = heappop(ready)
        left -= 1
        if is_alone:
            found[index] = left
        for consumer in consumers[index]:
            waits[consumer] -= 1
            if not waits[consumer]:
                heappush(ready, consumer)
    return found


def with_idle(problem: Problem, order: Sequence[int], idle: Collection[int]) -> tuple[int, ...]:
    """Put idle nodes back, each right before the first that reads it, or at the end."""
    ends = len(order)
    when = {index: i for i, index in enumerate(order)}
    # In the file's order a node's readers come after it.
    for index in reversed(range(len(problem.steps))):
        for source in problem.steps[index].producers:
            if source in idle:
                when[source] = min(when.get(source, ends), when.get(index, ends))
    indices = range(len(problem.steps))
    key = [(when.get(index, ends), index not in idle, index) for index in indices]
    return tuple(sorted(indices, key=key.__getitem__))


def contracted(problem: Problem) -> Contracted:
    """Put every source into the node that alone reads it.

    A source, as a cast of a weight, is a node without live inputs, or one whose inputs sources
    alone make, that takes no more while it runs than it leaves. Run later it adds less to what
    others take, and what reads it has its bytes live in any case. So where one node alone reads
    it, some best order runs it right before.
    """
    groups = _groups(problem)
    heads = sorted(groups)
    numbers = {node: i for i, head in enumerate(heads) for node in groups[head]}
    steps = tuple(_merged(problem, groups[head], numbers) for head in heads)
    readers = tuple(
        tuple(dict.fromkeys(sorted(numbers[node] for node in nodes))) for nodes in problem.readers
    )
    small = replace(problem, steps=steps, readers=readers)
    return Contracted(small, tuple(groups[head] for head in heads))


def _groups(problem: Problem) -> dict[int, tuple[int, ...]]:
    """The nodes of each group by its last one, which alone is read from outside."""
    consumers: list[set[int]] = [set() for _ in problem.steps]
    for index, step in enumerate(problem.steps):
        for source in step.producers:
            consumers[source].add(index)
    groups: dict[int, tuple[int, ...]] = {}
    sources: set[int] = set()
    for index, step in enumerate(problem.steps):
        own = [each for each in step.producers if each in sources and len(consumers[each]) == 1]
        group = tuple(sorted({index, *(node for each in own for node in groups.pop(each))}))
        groups[index] = group
        waits = set(step.producers).difference(own)
        if not waits and _is_source(problem, group):
            sources.add(index)
    return groups


def _is_source(problem: Problem, group: tuple[int, ...]) -> bool:
    """Whether a group, run where nothing else is live, takes no more than it leaves."""
    runs = list(problem.runs(group))
    return max(high_bytes for high_bytes, _ in runs) == runs[-1][1]


def _merged(problem: Problem, group: tuple[int, ...], numbers: dict[int, int]) -> Step:
    """One step of a group: it makes what is live when its last node runs."""
    if len(group) == 1:
        step = problem.steps[group[0]]
        return replace(step, producers=tuple(sorted({numbers[each] for each in step.producers})))
    last = problem.steps[group[-1]]
    inside = set(group)
    made = [block for node in group for block in problem.steps[node].makes]
    live = tuple(
        block
        for block in made
        if block in problem.kept
        or block in last.makes
        or not inside.difference(group[-1:]).issuperset(problem.readers[block])
    )
    producers = {source for node in group for source in problem.steps[node].producers} - inside
    return Step(
        producers=tuple(sorted({numbers[each] for each in producers})),
        makes=live,
        reads=last.reads,
        overwrites=last.overwrites,
        inner_bytes=last.inner_bytes,
    )


def beam(segment: Segment, width: int, floor_bytes: int, work: Work) -> tuple[int, ...] | None:
    """Run job after job and keep the ``width`` best states; ``None`` where work ran out."""
    states = [_first(segment, floor_bytes)]
    for _ in segment.jobs:
        found: dict[int, _State] = {}
        for state in states:
            for after in _followers(segment, state, work):
                known = found.get(after.done)
                if known is None or after.peak_bytes < known.peak_bytes:
                    found[after.done] = after
        if work.left < 0:
            return None
        states = sorted(found.values(), key=_merit)[:width]
    return _unrolled(states[0].order)


def exact(
    segment: Segment, floor_bytes: int, ceiling_bytes: int, work: Work
) -> tuple[tuple[int, ...] | None, bool]:
    """An order with the least peak, if below the ceiling; and whether all that matters was tried.

    States are taken up lowest peak first, so that the first one that has run all jobs is best.
    Orders that have run the same jobs leave the same bytes live: of those the one with the least
    peak stays (Serenity, Ahn et al., "Ordering Chaos", 2020).
    """
    first = _first(segment, floor_bytes)
    heap = [(first.peak_bytes, 0, 0, first)]
    seen = {0: first.peak_bytes}
    num_found = 0
    while heap:
        state = heappop(heap)[-1]
        if state.num_done == len(segment.jobs):
            return _unrolled(state.order), True
        if work.left < 0:
            return None, False
        for after in _followers(segment, state, work):
            known = seen.get(after.done, ceiling_bytes)
            if after.peak_bytes < known:
                seen[after.done] = after.peak_bytes
                num_found += 1
                heappush(heap, (after.peak_bytes, -after.num_done, num_found, after))
    return None, True


def _first(segment: Segment, floor_bytes: int) -> _State:
    return _State(floor_bytes, segment.start_bytes, 0, segment.ready_first(), None, 0)


def _followers(segment: Segment, state: _State, work: Work) -> Iterator[_State]:
    """The states after one more job, or after the forced one alone.

    A job is forced where it lowers the live bytes and takes no more than the peak so far: any order
    that runs it later can run it now, and what comes between takes no more for it.
    """
    tried = []
    for job in state.ready:
        high_bytes, after_bytes = segment.run(job, state.done, state.live_bytes)
        tried.append((job, high_bytes, after_bytes))
        if high_bytes <= state.peak_bytes and after_bytes <= state.live_bytes:
            tried = tried[-1:]
            break
    work.spend(len(state.ready), segment)
    for job, high_bytes, after_bytes in tried:
        done = state.done | 1 << job
        yield _State(
            max(state.peak_bytes, high_bytes),
            after_bytes,
            done,
            segment.ready_after(job, done, state.ready),
            _Link(job, state.order),
            state.num_done + 1,
        )


def _merit(state: _State) -> tuple[int, int]:
    return state.peak_bytes, state.live_bytes


def _unrolled(link: _Link | None) -> tuple[int, ...]:
    order: list[int] = []
    while link is not None:
        order.append(link.job)
        link = link.before
    return tuple(reversed(order))
