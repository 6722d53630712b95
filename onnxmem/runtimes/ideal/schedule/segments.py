"""Parts of a graph whose orders have nothing to do with each other.

Every order runs the same nodes before a node that stands above or below every other one (a cut), so
each part between two cuts is ordered by itself. Nodes without bytes that wait for nothing are
idle: they are left out, and put back before the first that reads them.
"""

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush

from onnxmem.runtimes.ideal.schedule.problem import Problem


def idle_nodes(problem: Problem) -> frozenset[int]:
    """Nodes that make and read no bytes and wait for no others: constants, weights' makers."""
    found: set[int] = set()
    for place, step in enumerate(problem.steps):
        blocks = (*step.makes, *step.reads)
        has_bytes = step.inner_bytes or any(problem.sizes[block] for block in blocks)
        if not has_bytes and found.issuperset(step.producers):
            found.add(place)
    return frozenset(found)


def segments(problem: Problem, idle: Collection[int]) -> Iterator[list[int]]:
    """The nodes between cuts, in the file's order; each cut ends one."""
    places = [place for place in range(len(problem.steps)) if place not in idle]
    producers = {
        place: [source for source in problem.steps[place].producers if source not in idle]
        for place in places
    }
    consumers: dict[int, list[int]] = {place: [] for place in places}
    for place, sources in producers.items():
        for source in sources:
            consumers[source].append(place)
    # A node that is alone when it may run has all that are left below it; run backwards, above.
    below = _alone(places, producers, consumers)
    above = _alone(places, consumers, producers)
    segment: list[int] = []
    for place in places:
        segment.append(place)
        if below.get(place, 0) + above.get(place, 0) == len(places) - 1:
            yield segment
            segment = []
    if segment:
        yield segment


def _alone(
    places: Sequence[int],
    producers: dict[int, list[int]],
    consumers: dict[int, list[int]],
) -> dict[int, int]:
    """Nodes that are at some time the only one that may run, and how many are left after each."""
    waits = {place: len(producers[place]) for place in places}
    ready = [place for place in places if not waits[place]]
    heapify(ready)
    found: dict[int, int] = {}
    left = len(places)
    while ready:
        is_alone = len(ready) == 1
        place = heappop(ready)
        left -= 1
        if is_alone:
            found[place] = left
        for consumer in consumers[place]:
            waits[consumer] -= 1
            if not waits[consumer]:
                heappush(ready, consumer)
    return found


def with_idle(problem: Problem, order: Sequence[int], idle: Collection[int]) -> tuple[int, ...]:
    """Put idle nodes back, each right before the first that reads it, or at the end."""
    ends = len(order)
    when = {place: i for i, place in enumerate(order)}
    # In the file's order a node's readers come after it.
    for place in reversed(range(len(problem.steps))):
        for source in problem.steps[place].producers:
            if source in idle:
                when[source] = min(when.get(source, ends), when.get(place, ends))
    places = range(len(problem.steps))
    key = [(when.get(place, ends), place not in idle, place) for place in places]
    return tuple(sorted(places, key=key.__getitem__))
