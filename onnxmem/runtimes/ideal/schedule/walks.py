"""Orders by a depth-first walk from the leaves of a graph up to the producers."""

from collections.abc import Iterator, Sequence

from onnxmem.runtimes.ideal.schedule.problem import Problem


def reverse_dfs(leaves: Sequence[int], producers: Sequence[Sequence[int]]) -> Iterator[int]:
    """Post-order, a node after all that it reads; the last leaf and the last producer come first.

    Source: ``Graph::ReverseDFSFrom`` of onnxruntime's ``core/graph/graph.cc``. A node that comes up
    twice is left out the second time.
    """
    stack = [(place, False) for place in leaves]
    visited: set[int] = set()
    while stack:
        place, is_left = stack.pop()
        if is_left:
            yield place
        elif place not in visited:
            visited.add(place)
            stack.append((place, True))
            stack.extend((source, False) for source in producers[place] if source not in visited)


def onnxruntime_walk(problem: Problem) -> tuple[int, ...]:
    """As onnxruntime runs them by default: ``core/graph/graph_viewer.cc``, the constructor."""
    return tuple(reverse_dfs(_leaves(problem), [step.producers for step in problem.steps]))


def largest_first_walk(problem: Problem) -> tuple[int, ...]:
    """What makes the most bytes comes before what makes less."""
    made = [sum(problem.sizes[block] for block in step.makes) for step in problem.steps]
    by_bytes = [sorted(step.producers, key=made.__getitem__) for step in problem.steps]
    leaves = sorted(_leaves(problem), key=made.__getitem__)
    return tuple(reverse_dfs(leaves, by_bytes))


def _leaves(problem: Problem) -> list[int]:
    read = {source for step in problem.steps for source in step.producers}
    return [place for place in range(len(problem.steps)) if place not in read]
