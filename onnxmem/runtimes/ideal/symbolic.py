"""Peaks as polynomials in the dims of a model: the largest of a few rows.

``max(256,000 x batch x sequence, 53,248 x batch x sequence + 4 x batch x sequence^2)``: each step's
live bytes are a sum of sizes, each size is a polynomial in the dims that are free, and the peak is
the largest of the steps'. Only rows that may be largest somewhere are kept.

Sizes are read off the graph at two points (``growth``), which prove no polynomial where dims are
computed: who asks holds them against more then. Where sizes are as read, the rows hold because:

(a) which tensor is live when depends on the nodes alone, which are the same at every point;
(b) which tensors share a buffer depends on the nodes, and on shapes that are equal (definition 4,
    c 5): two dims are equal as polynomials, or nowhere, or at a few points, which are listed and
    of which no row speaks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from onnxmem.model.graph import Graph, Role
from onnxmem.ops.spec import Dims
from onnxmem.program import Program
from onnxmem.program.growth import Growth
from onnxmem.program.polynomials import Polynomial
from onnxmem.runtimes.ideal.activation_memory import ActivationMemory
from onnxmem.runtimes.ideal.lifetimes import tensor_buffers
from onnxmem.runtimes.ideal.sharing import candidates, shared_buffers
from onnxmem.runtimes.ideal.sizes import (
    Ends,
    SizePolynomials,
    UnprovenError,
    size_polynomials,
    verify,
)

# An enum's member takes twice as long to look up as a name of the module.
_ACTIVATION: Final = Role.ACTIVATION

Meeting = Mapping[int, int]
"""Symbols by their place, and the numbers at which two dims are equal that are not elsewhere."""


@dataclass(frozen=True)
class SymbolicPeaks:
    """The peaks of one graph wherever its symbols are 1 or more, but for a few points."""

    graph: Graph
    sizes: SizePolynomials
    program: Program
    """Of the buffers that tensors share."""
    meetings: tuple[Meeting, ...]
    """Points of which the rows of buffers that are shared do not speak."""

    @cached_property
    def in_place_peak_rows(self) -> tuple[Polynomial, ...]:
        """Of the in-place peak (definition 4)."""
        return self.sizes.rows(self.program)

    @cached_property
    def peak_rows(self) -> tuple[Polynomial, ...]:
        """Of the liveness peak (definition 3)."""
        return self.sizes.rows(self._alone)

    def naive(self, num_symbols: int) -> Polynomial:
        """All tensors kept (definition 2)."""
        return self.sizes.total(self._alone.labels, num_symbols)

    def naive_in_place(self, num_symbols: int) -> Polynomial:
        """All buffers kept (definition 4)."""
        return self.sizes.total(self.program.labels, num_symbols)

    @cached_property
    def _alone(self) -> Program:
        """Of tensors, each an allocation of its own."""
        return tensor_buffers(self.graph).program(self.graph.nodes)

    def meets_at(self, numbers: Sequence[int]) -> bool:
        """Whether a point is one of those of which the rows do not speak."""
        return _meets(self.meetings, numbers)


def symbolic_peaks(
    ends: Ends, asked: Graph, numbers: Sequence[int], memory: ActivationMemory
) -> SymbolicPeaks:
    """Find the rows of a graph from its two ends, and from what it takes at the numbers asked.

    :raises UnprovenError: a size is unknown or no polynomial, or lifetimes depend on the dims.
    """
    if any(node.subgraphs for node in asked.nodes):
        message = "which subgraph takes most depends on the dims"
        raise UnprovenError(message)
    if not _same_nodes(ends.one, ends.far):
        raise _other_nodes()
    sizes, meetings = size_polynomials(ends), tuple(_meetings(ends))
    if _meets(meetings, ends.growth.primes):
        message = "which tensors share a buffer depends on the dims"
        raise UnprovenError(message)
    if not _same_nodes(ends.one, asked):
        raise _other_nodes()
    program = memory.replay.program
    if _meets(meetings, numbers):
        program = shared_buffers(ends.far).program(ends.far.nodes)
    return SymbolicPeaks(asked, sizes, program, meetings)


def verify_at(peaks: SymbolicPeaks, graph: Graph, numbers: Sequence[int]) -> None:
    """Hold sizes against those of the graph at a point.

    :raises UnprovenError: one differs, or the nodes do.
    """
    if not _same_nodes(peaks.graph, graph):
        raise _other_nodes()
    verify(peaks.sizes, graph, numbers)


def _other_nodes() -> UnprovenError:
    return UnprovenError("the nodes depend on the dims")


def _same_nodes(one: Graph, other: Graph) -> bool:
    if one.nodes is other.nodes:
        return True
    seams = ([(node.inputs, node.outputs) for node in each.nodes] for each in (one, other))
    return next(seams) == next(seams) and one.tensors.keys() == other.tensors.keys()


def _meets(meetings: Iterable[Meeting], numbers: Sequence[int]) -> bool:
    return any(all(numbers[at] == n for at, n in meeting.items()) for meeting in meetings)


def _meetings(ends: Ends) -> Iterator[Meeting]:
    """Where a tensor may be written over another whose shape differs elsewhere."""
    tensors, far = ends.one.tensors, ends.far.tensors
    # A large graph has few shapes: one pair of names stands for all pairs of the same shapes.
    pairs = {
        (tensors[source].shape, far[source].shape, tensors[output].shape, far[output].shape): pair
        for pair in candidates(ends.one)
        for source, output in (pair,)
        if tensors[source].role is _ACTIVATION
    }
    shapes = {(ends.shapes_of(source), ends.shapes_of(output)) for source, output in pairs.values()}
    for (one, one_far), (other, other_far) in shapes:
        if len(one) == len(other) and (one, one_far) != (other, other_far):
            meeting = _meeting(ends.growth, (one, one_far), (other, other_far))
            if meeting is not None:
                yield meeting


def _meeting(growth: Growth, one: tuple[Dims, Dims], other: tuple[Dims, Dims]) -> Meeting | None:
    """The point at which two shapes are equal; ``None``: nowhere.

    :raises UnprovenError: it is more than one point.
    """
    numbers: dict[int, int] = {}
    for a, a_far, b, b_far in zip(*one, *other, strict=True):
        dim, other_dim = growth.dim(a, a_far), growth.dim(b, b_far)
        if dim is None or other_dim is None:
            message = f"a dim that is {a:,} and {a_far:,} is no polynomial of the dims"
            raise UnprovenError(message)
        apart = dim + other_dim.times(-1)
        if not apart.terms:
            continue
        root = _root(apart)
        if root is None or numbers.setdefault(*root) != root[1]:
            return None
    return numbers


def _root(apart: Polynomial) -> tuple[int, int] | None:
    """The one symbol's number at which a difference is 0; ``None``: nowhere from 1 on.

    :raises UnprovenError: it is more than one point.
    """
    from_one = apart.from_one().terms
    signs = {coefficient > 0 for _, coefficient in from_one}
    if len(signs) == 1 and not any(from_one[0][0]):
        return None
    places = {at for exponents, _ in apart.terms for at, power in enumerate(exponents) if power}
    if len(places) > 1 or max(sum(exponents) for exponents, _ in apart.terms) > 1:
        message = "where two shapes are equal is more than a few points"
        raise UnprovenError(message)
    (place,) = places
    slope = apart.terms[-1][1]
    fixed = apart.terms[0][1] if len(apart.terms) > 1 else 0
    number, rest = divmod(-fixed, slope)
    return (place, number) if rest == 0 and number > 0 else None
