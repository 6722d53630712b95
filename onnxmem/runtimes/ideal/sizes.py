"""The bytes of a graph's tensors as polynomials in its free dims, and what they add up to."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from onnxmem.model.graph import Graph, Role, Tensor
from onnxmem.ops.spec import Dims, known_dims
from onnxmem.program import Program
from onnxmem.program.growth import Growth
from onnxmem.program.polynomials import Polynomial, as_rows, constant, upper

_HAS_BYTES: Final = frozenset({Role.INPUT, Role.ACTIVATION})


class UnprovenError(ValueError):
    """No rows can be shown to be the peak; the message says why."""


@dataclass(frozen=True, slots=True)
class Ends:
    """A graph where every symbol is 1, and where each is a prime that divides no dim of it."""

    one: Graph
    far: Graph
    growth: Growth

    def shapes_of(self, name: str) -> tuple[Dims, Dims]:
        """The two shapes of a tensor of known shape."""
        one, far = (known_dims(each.tensors[name].shape) for each in (self.one, self.far))
        return one or (), far or ()


@dataclass(frozen=True)
class SizePolynomials:
    """The bytes of a graph's tensors as polynomials, of which there are few."""

    polynomials: tuple[Polynomial, ...]
    places: Mapping[str, int]
    """Graph input or activation to its polynomial's place."""

    def total(self, tensors: Iterable[str], num_symbols: int) -> Polynomial:
        """The sum of tensors' bytes."""
        counts = Counter(map(self.places.__getitem__, tensors))
        scaled = (self.polynomials[place].times(n) for place, n in counts.items())
        return sum(scaled, constant(0, num_symbols))

    def rows(self, program: Program) -> tuple[Polynomial, ...]:
        """The polynomials of which the largest is the peak of a program.

        A difference array of rows: each allocation adds its size where it is made and takes it away
        where it is released, and a running sum turns changes into what is live.
        """
        columns, sizes = as_rows(self.polynomials, program.num_allocations)
        num_steps = len(program.steps)
        changes = np.zeros((num_steps + 1, len(columns)), dtype=sizes.dtype)
        starts, stops = program.lifetimes
        of_labels = sizes[[self.places[label] for label in program.labels]]
        np.add.at(changes, starts, of_labels)
        np.subtract.at(changes, stops, of_labels)
        # No node runs in the first step: nothing is live there.
        return upper(columns, changes[1:num_steps].cumsum(axis=0))


def verify(sizes: SizePolynomials, graph: Graph, numbers: Sequence[int]) -> None:
    """Hold sizes against those of the graph at a point.

    :raises UnprovenError: one differs.
    """
    seen = {
        (place, tensor.shape, tensor.dtype): name
        for name, place in sizes.places.items()
        for tensor in (graph.tensors[name],)
    }
    for (place, *_), name in seen.items():
        if sizes.polynomials[place].at(numbers) != graph.tensors[name].size_bytes:
            raise _no_polynomial(name)


def weight_polynomial(ends: Ends) -> Polynomial:
    """The bytes of the weights: a constant that the batch is written into grows with it.

    :raises UnprovenError: one is no polynomial.
    """
    fixed, grown = 0, []
    for weight in ends.one.weights:
        later = ends.far.tensors[weight.name]
        if weight.shape == later.shape and weight.dtype is later.dtype:
            fixed += weight.size_bytes or 0
        else:
            grown.append(_size(ends, weight, later))
    return sum(grown, constant(fixed, len(ends.growth.primes)))


def size_polynomials(ends: Ends) -> SizePolynomials:
    """The bytes of graph inputs and activations; a large graph has few shapes.

    :raises UnprovenError: one is unknown, or no polynomial.
    """
    polynomials: dict[Polynomial, int] = {}
    known: dict[tuple[object, ...], int] = {}
    places = {}
    for name, one in ends.one.tensors.items():
        if one.role in _HAS_BYTES:
            far = ends.far.tensors[name]
            key = (one.shape, far.shape, one.dtype, far.dtype)
            if key not in known:
                known[key] = polynomials.setdefault(_size(ends, one, far), len(polynomials))
            places[name] = known[key]
    return SizePolynomials(tuple(polynomials), places)


def _size(ends: Ends, one: Tensor, far: Tensor) -> Polynomial:
    dims, later = known_dims(one.shape), known_dims(far.shape)
    if dims is None or later is None or one.dtype is None or one.dtype is not far.dtype:
        message = f"the size of {one.name} is unknown"
        raise UnprovenError(message)
    size = ends.growth.size_bytes(dims, later, one.dtype)
    if size is None:
        raise _no_polynomial(one.name)
    return size


def _no_polynomial(name: str) -> UnprovenError:
    return UnprovenError(f"the size of {name} is no polynomial of the dims")
