"""Which limits of ``--max`` change what a run takes at most.

A dim that data decide counts only where tensors that have it are live at the peak. So each
candidate is tried: the figures are computed again with that dim, or that number of iterations, at
its lower end.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.model.graph import Graph
from onnxmem.model.intervals.walk import UpperGraph
from onnxmem.program.program import Allocation

_MOST_TRIALS: Final = 3
"""Candidates that are tried, the most bytes at the peak first: each costs a walk of the graph."""
_EXAMPLE: Final = 100
"""The number at which dims without a bound are compared."""


@dataclass(frozen=True, slots=True)
class UpperEnds:
    """What a run takes at most within some limits."""

    upper: UpperGraph | None
    size_bytes: int | None
    """Of inference, and of a training step if one is requested; ``None``: without a bound."""
    live: Sequence[Allocation] = ()
    """What is live at the peak of inference."""

    def is_like(self, other: "UpperEnds") -> bool:
        """Whether both have the same ends."""
        unbounded = [() if each.upper is None else each.upper.unbounded for each in (self, other)]
        return self.size_bytes == other.size_bytes and unbounded[0] == unbounded[1]


Within = Callable[[Mapping[str, int]], UpperEnds]
"""The ends within more limits than those of the user."""


def deciding_limits(upper: UpperGraph, within: Within) -> tuple[str, ...]:
    """The names for ``--max`` that lower what a run takes at most, the most bytes first.

    Where dims have no upper end, all that need one: of a Loop without an end its iterations, from
    which what grows in its body follows.
    """
    if upper.unbounded:
        endless = [f"{loop}:iterations" for loop, most in upper.iterations.items() if most is None]
        names = endless or list(upper.unbounded)
        # Any finite limits show which of them counts most; with one name there is nothing to order.
        weights = {} if len(names) == 1 else _weights(within(dict.fromkeys(names, _EXAMPLE)))
        return tuple(sorted(names, key=lambda name: -weights.get(name, 0)))
    now = within({})
    weights = _weights(now)
    # Each trial computes all figures anew, so only the heaviest are tried.
    tried = sorted(weights, key=lambda name: -weights[name])[:_MOST_TRIALS]
    lowest = lowest_limits(tried, upper)
    most_bytes = now.size_bytes or 0
    saved = {name: most_bytes - (within({name: lowest[name]}).size_bytes or 0) for name in tried}
    if len(tried) > 1 and not any(saved.values()):
        # Several steps may have the same peak, which falls where all of their dims do.
        return tuple(tried) if (within(lowest).size_bytes or 0) < most_bytes else ()
    return tuple(sorted((name for name in tried if saved[name] > 0), key=lambda n: -saved[n]))


def lowest_limits(names: Iterable[str], upper: UpperGraph | None) -> dict[str, int]:
    """The least that each limit may be: no less than its dim is in any run, nor than 1."""
    least = {} if upper is None else upper.least
    return {name: max(least.get(name, 1), 1) for name in names}


def _weights(ends: UpperEnds) -> dict[str, int]:
    """The bytes that are live at the peak, by the dims and the Loops that may decide them."""
    found: dict[str, int] = {}
    upper = ends.upper
    if upper is None:
        return found
    loops = {
        name: f"{node.name}:iterations"
        for node in upper.graph.all_nodes()
        if node.name in upper.iterations
        for name in (*node.writes, *(each for _, body in node.subgraphs for each in _made(body)))
    }
    for each in ends.live:
        tensor = upper.graph.tensors.get(each.label)
        if tensor is None or not any(tensor.dynamic):
            continue
        names = {name for name in tensor.dynamic if name in upper.least}
        for name in (*names, loops.get(each.label)):
            if name is not None:
                found[name] = found.get(name, 0) + each.size_bytes
    return found


def _made(body: Graph) -> Iterator[str]:
    return (name for node in body.all_nodes() for name in node.writes)
