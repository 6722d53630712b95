"""Nodes that wait for no bytes, such as casts of weights, run right before the one that reads them.

A source is a node without live inputs, or one whose inputs sources alone make, that takes no more
while it runs than it leaves. Run later it adds less to what others take, and what reads it has its
bytes live in any case. So where one node alone reads it, some best order runs it right before.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from onnxmem.runtimes.ideal.schedule.problem import Problem, Step


@dataclass(frozen=True, slots=True)
class Contracted:
    """A problem in which a node and the sources that it alone reads are one."""

    problem: Problem
    nodes: tuple[tuple[int, ...], ...]
    """Of each node its nodes in the whole problem, in the file's order."""

    def whole_order(self, order: Iterable[int]) -> list[int]:
        """An order of the whole problem's nodes."""
        return [node for place in order for node in self.nodes[place]]


def contracted(problem: Problem) -> Contracted:
    """Put every source into the node that alone reads it."""
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
    for place, step in enumerate(problem.steps):
        for source in step.producers:
            consumers[source].add(place)
    groups: dict[int, tuple[int, ...]] = {}
    sources: set[int] = set()
    for place, step in enumerate(problem.steps):
        own = [each for each in step.producers if each in sources and len(consumers[each]) == 1]
        group = tuple(sorted({place, *(node for each in own for node in groups.pop(each))}))
        groups[place] = group
        waits = set(step.producers).difference(own)
        if not waits and _is_source(problem, group):
            sources.add(place)
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
