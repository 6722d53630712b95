"""Search for the order of execution with the least peak, and whether it is proven optimal.

1. No order has a peak below the node whose own blocks take the most (the floor): an order with that
   peak is optimal.
2. A node without live inputs is joined to the only node that reads it (``contracted``), and the
   rest is cut into segments whose orders are independent (``segments``).
3. Each segment gets the best of the file's order, two depth-first walks and beams of 1, 4 and 32.
4. Segments still above the floor are searched exactly, the one with the highest peak first; a
   segment's least peak is a floor of the whole.
5. A segment whose peak in the file's order is not above the whole peak keeps that order.

Work is counted in jobs that are tried, not in seconds: a model has the same order on every machine.
Begin reading with ``schedule_of``; the module is imported only where another order is requested.
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
"""With so many jobs, operations on their bits take as long as everything else in a try."""


_BEAM_WORK = 150_000
"""Jobs that all beams together may try: about one second."""


_EXACT_WORK = 200_000
"""Jobs that exact search may try: at most about 100 MiB of states."""


_MAX_JOBS = 10_000
"""The longest segment that is searched: a set of jobs takes as many bits."""


_WIDTHS = (1, 4, 32)


@dataclass(frozen=True, slots=True)
class Contracted:
    """A problem in which a node and the sources that only it reads are one node."""

    problem: Problem
    nodes: tuple[tuple[int, ...], ...]
    """The original nodes of each node, in the file's order."""

    def whole_order(self, order: Iterable[int]) -> list[int]:
        """The order of the original nodes."""
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
    """A set of jobs that have run, in the best order found for it."""

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
    file_in_place_peak_bytes: int
    peak_bytes: int
    order: tuple[int, ...]
    """Indices into ``nodes``."""

    def better(self, segment: Segment, order: Sequence[int]) -> "_Part":
        """The part with another order, if that has a lower peak."""
        peak_bytes = segment.peak_bytes(order)
        if peak_bytes >= self.peak_bytes:
            return self
        return replace(self, peak_bytes=peak_bytes, order=tuple(order))

    def in_file_order(self, peak_bytes: int) -> "_Part":
        """The part in the file's order, if its peak is not above that of the whole."""
        if self.file_in_place_peak_bytes > peak_bytes:
            return self
        file_order = tuple(range(len(self.order)))
        return replace(self, peak_bytes=self.file_in_place_peak_bytes, order=file_order)


def schedule_of(graph: Graph, order: str) -> Schedule:
    """The order of that name: ``best`` or ``onnxruntime``."""
    problem = problem_of(graph)
    return best_schedule(problem) if order == "best" else onnxruntime_schedule(problem)


def in_order(graph: Graph, schedule: Schedule) -> Graph:
    """A graph with its nodes in another order."""
    return replace(graph, nodes=tuple(graph.nodes[index] for index in schedule.order))


def onnxruntime_schedule(problem: Problem) -> Schedule:
    """The order in which onnxruntime runs the file's nodes; its peak may be above the file's."""
    order = onnxruntime_walk(problem)
    return Schedule(
        order,
        problem.peak_bytes(order),
        problem.peak_bytes(range(len(order))),
        problem.floor_bytes(),
    )


def best_schedule(problem: Problem) -> Schedule:
    """Search for the order with the least peak, which is never above that of the file's order."""
    # Each stage returns early where the peak is at the floor. Contraction and cuts preserve the
    # optimum, so that exact search of the segments proves it for the whole.
    file_order = tuple(range(len(problem.steps)))
    file_in_place_peak_bytes = problem.peak_bytes(file_order)
    floor_bytes = problem.floor_bytes()
    if file_in_place_peak_bytes <= floor_bytes:
        return Schedule(file_order, file_in_place_peak_bytes, file_in_place_peak_bytes, floor_bytes)
    small = contracted(problem)
    floor_bytes = max(floor_bytes, small.problem.floor_bytes())
    idle = idle_nodes(small.problem)
    parts = list(_parts(small.problem, idle))
    parts = _with_quick_orders(small.problem, parts, floor_bytes)
    parts, floor_bytes = _with_exact_orders(small.problem, parts, floor_bytes)
    peak_bytes = max((part.peak_bytes for part in parts), default=0)
    if peak_bytes >= file_in_place_peak_bytes:
        return Schedule(file_order, file_in_place_peak_bytes, file_in_place_peak_bytes, floor_bytes)
    parts = [part.in_file_order(peak_bytes) for part in parts]
    order = [part.nodes[job] for part in parts for job in part.order]
    whole = tuple(small.whole_order(with_idle(small.problem, order, idle)))
    return Schedule(whole, problem.peak_bytes(whole), file_in_place_peak_bytes, floor_bytes)


def _parts(problem: Problem, idle: frozenset[int]) -> Iterator[_Part]:
    """The segments in the file's order, with their peaks in it."""
    found = list(segments(problem, idle))
    live_bytes = problem.live_bytes(node for nodes in found for node in nodes)
    start_bytes = 0
    for nodes in found:
        of_nodes = list(islice(live_bytes, len(nodes)))
        peak_bytes = max(high_bytes for high_bytes, _ in of_nodes)
        order = tuple(range(len(nodes)))
        yield _Part(tuple(nodes), start_bytes, peak_bytes, peak_bytes, order)
        start_bytes = of_nodes[-1][1]


def _with_quick_orders(problem: Problem, parts: Sequence[_Part], floor_bytes: int) -> list[_Part]:
    """Every part with the best of the walks and beams, which stop at the floor."""
    if all(part.peak_bytes <= floor_bytes for part in parts):
        return list(parts)
    walks = [_positions(walk(problem)) for walk in (onnxruntime_walk, largest_first_walk)]
    # One budget for the beams of all parts: more parts must not take longer.
    work = Work(_BEAM_WORK)
    return [
        part
        if part.peak_bytes <= floor_bytes or len(part.nodes) > _MAX_JOBS
        else _with_quick_order(
            segment_of(problem, part.nodes, part.start_bytes), part, walks, floor_bytes, work
        )
        for part in parts
    ]


def _with_quick_order(
    segment: Segment,
    part: _Part,
    walks: Sequence[dict[int, int]],
    floor_bytes: int,
    work: Work,
) -> _Part:
    # The cheapest first: the walks are known already, and each beam is wider than the one before.
    # At the floor nothing is left to gain.
    searches = [partial(_walked, segment, walk) for walk in walks]
    searches += [partial(beam, segment, width, floor_bytes, work) for width in _WIDTHS]
    for search in searches:
        if part.peak_bytes <= floor_bytes:
            break
        order = search()
        if order is not None:
            part = part.better(segment, order)
    return part


def _positions(order: Sequence[int]) -> dict[int, int]:
    return {node: index for index, node in enumerate(order)}


def _walked(segment: Segment, indices: dict[int, int]) -> tuple[int, ...] | None:
    """A segment's jobs in the order that they have among all nodes."""
    nodes = segment.nodes
    return tuple(sorted(range(len(nodes)), key=lambda job: indices[nodes[job]]))


def _with_exact_orders(
    problem: Problem, parts: Sequence[_Part], floor_bytes: int
) -> tuple[list[_Part], int]:
    """Search exactly the parts above the floor; return them and the raised floor."""
    # Highest peak first: its optimum raises the floor, and parts below that need no search.
    found = list(parts)
    work = Work(_EXACT_WORK)
    for index in sorted(range(len(found)), key=lambda i: -found[i].peak_bytes):
        part = found[index]
        if part.peak_bytes <= floor_bytes or work.left < 0 or len(part.nodes) > _MAX_JOBS:
            continue
        segment = segment_of(problem, part.nodes, part.start_bytes)
        order, is_complete = exact(segment, floor_bytes, part.peak_bytes, work)
        if order is not None:
            found[index] = part = part.better(segment, order)
        if is_complete:
            floor_bytes = max(floor_bytes, part.peak_bytes)
    return found, floor_bytes


def segments(problem: Problem, idle: Collection[int]) -> Iterator[list[int]]:
    """The nodes between cuts, in the file's order; each cut ends a segment."""
    # A cut is a node that every other node depends on or is a dependency of. Every order runs the
    # same nodes before it, so that the nodes between two cuts can be ordered by themselves.
    indices = [index for index in range(len(problem.steps)) if index not in idle]
    producers = {
        index: [source for source in problem.steps[index].producers if source not in idle]
        for index in indices
    }
    consumers: dict[int, list[int]] = {index: [] for index in indices}
    for index, sources in producers.items():
        for source in sources:
            consumers[source].append(index)
    # All remaining nodes depend on a node that is ready alone; on the reversed graph, it on them.
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
    """Nodes that write and read no bytes, and depend only on such: constants, views of weights."""
    found: set[int] = set()
    for index, step in enumerate(problem.steps):
        blocks = (*step.writes, *step.reads)
        has_bytes = step.inner_bytes or any(problem.sizes[block] for block in blocks)
        if not has_bytes and found.issuperset(step.producers):
            found.add(index)
    return frozenset(found)


def _alone(
    indices: Sequence[int],
    producers: dict[int, list[int]],
    consumers: dict[int, list[int]],
) -> dict[int, int]:
    """The nodes that are the only ready one at some time, and how many nodes remain after each."""
    # A topological sort. If a node is the only ready one, every remaining node depends on it.
    num_pending = {index: len(producers[index]) for index in indices}
    ready = [index for index in indices if not num_pending[index]]
    heapify(ready)
    found: dict[int, int] = {}
    num_left = len(indices)
    while ready:
        is_alone = len(ready) == 1
        index = heappop(ready)
        num_left -= 1
        if is_alone:
            found[index] = num_left
        for consumer in consumers[index]:
            num_pending[consumer] -= 1
            if not num_pending[consumer]:
                heappush(ready, consumer)
    return found


def with_idle(problem: Problem, order: Sequence[int], idle: Collection[int]) -> tuple[int, ...]:
    """Insert idle nodes into an order, each right before its first reader, or at the end."""
    end = len(order)
    positions = {index: i for i, index in enumerate(order)}
    # Backwards in the file's order, so that a node's readers have their positions before it.
    for index in reversed(range(len(problem.steps))):
        for source in problem.steps[index].producers:
            if source in idle:
                positions[source] = min(positions.get(source, end), positions.get(index, end))
    indices = range(len(problem.steps))
    key = [(positions.get(index, end), index not in idle, index) for index in indices]
    return tuple(sorted(indices, key=key.__getitem__))


def contracted(problem: Problem) -> Contracted:
    """Join every source with the only node that reads it."""
    # A source, such as a cast of a weight, is a node without live inputs, or one whose inputs only
    # sources write, which takes no more bytes while it runs than after it. Running it later lowers
    # what is live meanwhile, and its reader has its bytes live in any case. So if only one node
    # reads it, some optimal order runs it right before that node.
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
    """The nodes of each group by its last one, which is the only one that others read."""
    consumers: list[set[int]] = [set() for _ in problem.steps]
    for index, step in enumerate(problem.steps):
        for source in step.producers:
            consumers[source].add(index)
    groups: dict[int, tuple[int, ...]] = {}
    sources: set[int] = set()
    for index, step in enumerate(problem.steps):
        # Nodes come in topological order, so the groups of producers are complete; a group that
        # joins its reader is taken out of ``groups``.
        own = [each for each in step.producers if each in sources and len(consumers[each]) == 1]
        group = tuple(sorted({index, *(node for each in own for node in groups.pop(each))}))
        groups[index] = group
        others = set(step.producers).difference(own)
        if not others and _is_source(problem, group):
            sources.add(index)
    return groups


def _is_source(problem: Problem, group: tuple[int, ...]) -> bool:
    """Whether a group, run where nothing else is live, has its peak after its last node."""
    live_bytes = list(problem.live_bytes(group))
    return max(high_bytes for high_bytes, _ in live_bytes) == live_bytes[-1][1]


def _merged(problem: Problem, group: tuple[int, ...], numbers: dict[int, int]) -> Step:
    """One step for a group: it writes what is live when its last node runs."""
    if len(group) == 1:
        step = problem.steps[group[0]]
        return replace(step, producers=tuple(sorted({numbers[each] for each in step.producers})))
    last = problem.steps[group[-1]]
    inside = set(group)
    written = [block for node in group for block in problem.steps[node].writes]
    # What only the group itself reads, its last node excepted, is free by then.
    live = tuple(
        block
        for block in written
        if block in problem.outputs
        or block in last.writes
        or not inside.difference(group[-1:]).issuperset(problem.readers[block])
    )
    producers = {source for node in group for source in problem.steps[node].producers} - inside
    return Step(
        producers=tuple(sorted({numbers[each] for each in producers})),
        writes=live,
        reads=last.reads,
        overwrites=last.overwrites,
        inner_bytes=last.inner_bytes,
    )


def beam(segment: Segment, width: int, floor_bytes: int, work: Work) -> tuple[int, ...] | None:
    """Extend the ``width`` best states by one job at a time; ``None`` where work ran out."""
    # States with the same set of jobs have the same future: only the lowest peak of each is kept.
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
        states = sorted(found.values(), key=_rank)[:width]
    return _unrolled(states[0].order)


def exact(
    segment: Segment, floor_bytes: int, ceiling_bytes: int, work: Work
) -> tuple[tuple[int, ...] | None, bool]:
    """An order with the least peak, if below the ceiling; and whether the search is complete.

    As Serenity does it (Ahn et al., "Ordering Chaos", 2020).
    """
    # Dijkstra's algorithm on sets of jobs, with the peak so far as the distance: states are taken
    # up lowest peak first, so that the first complete one is optimal. Orders of the same jobs leave
    # the same bytes live, so that a set needs only its lowest peak (`seen`). Of equal peaks the
    # longer order is taken up first, which reaches the end sooner.
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
    """The states after one more job, or only the state after a forced job."""
    # A job is forced if it does not raise the live bytes and stays within the peak so far: an order
    # that runs it later can run it now instead, and no job between then sees more bytes live.
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


def _rank(state: _State) -> tuple[int, int]:
    return state.peak_bytes, state.live_bytes


def _unrolled(link: _Link | None) -> tuple[int, ...]:
    order: list[int] = []
    while link is not None:
        order.append(link.job)
        link = link.before
    return tuple(reversed(order))
