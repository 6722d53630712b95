"""The bytes of a graph's tensors as polynomials in its free dims, and what they add up to."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from onnxmem.model import Graph, Role, Tensor
from onnxmem.ops.spec import Dims, known_dims
from onnxmem.program.growth import Growth
from onnxmem.program.polynomials import Polynomial, as_rows, constant, upper

_HAS_BYTES: Final = frozenset({Role.INPUT, Role.ACTIVATION})

Life = tuple[int, int, int]
"""The step from which a tensor is live, the step before which it is, and its size's place."""


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
class Sizes:
    """The bytes of a graph's tensors as polynomials, of which there are few."""

    polynomials: tuple[Polynomial, ...]
    places: Mapping[str, int]
    """Graph input or activation to its polynomial's place."""

    def total(self, places: Iterable[int], num_symbols: int) -> Polynomial:
        """The sum of tensors' bytes, each by its size's place."""
        scaled = (self.polynomials[place].times(n) for place, n in Counter(places).items())
        return sum(scaled, constant(0, num_symbols))

    def rows(self, lives: Sequence[Life], num_steps: int) -> tuple[Polynomial, ...]:
        """The polynomials of which the largest is the peak of tensors that are live so long.

        A difference array of rows: each life adds its size where it starts and takes it away where
        it stops, and a running sum turns changes into what is live.
        """
        found = np.array(lives, dtype=np.int64).reshape(-1, 3)
        columns, sizes = as_rows(self.polynomials, len(found))
        changes = np.zeros((num_steps + 1, len(columns)), dtype=sizes.dtype)
        starts, stops, places = found.T
        np.add.at(changes, starts, sizes[places])
        np.subtract.at(changes, np.minimum(stops, num_steps), sizes[places])
        return upper(columns, changes[:num_steps].cumsum(axis=0))


def verify(sizes: Sizes, graph: Graph, numbers: Sequence[int]) -> None:
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


def sizes_of(ends: Ends) -> Sizes:
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
    return Sizes(tuple(polynomials), places)


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
