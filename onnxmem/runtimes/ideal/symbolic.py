"""Peaks as polynomials in the dynamic dims of a model: the maximum of a few pieces.

``max(256,000 x batch x sequence, 53,248 x batch x sequence + 4 x batch x sequence^2)``: the live
bytes of each step are a sum of sizes, each size is a polynomial in the dynamic dims, and the peak
is the maximum over steps. Only pieces that may be the largest somewhere are kept.

Sizes are fitted through the graph at two points (``Growth``), which does not prove that they are
polynomials where dims are computed (``computes_dims``): then a caller verifies them at more points.
With correct sizes, the pieces are valid because:

(a) lifetimes depend only on the nodes, which are the same at every point;
(b) which tensors share a buffer depends on the nodes, and on whether shapes are equal (definition
    4, c 5): two dims are equal as polynomials, or nowhere, or at a few points, which are listed and
    excluded.

Begin reading with ``symbolic_peaks``.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.ops.spec import Dims, known_dims
from onnxmem.program.polynomials import Growth, Polynomial, coefficients_of, constant, upper
from onnxmem.program.program import Program
from onnxmem.runtimes.ideal.activation_memory import ActivationMemory
from onnxmem.runtimes.ideal.lifetimes import ACTIVATION, candidates, shared_buffers, tensor_buffers

_HAS_BYTES: Final = frozenset({Role.INPUT, Role.ACTIVATION})


ExcludedPoint = Mapping[int, int]
"""The numbers, by the index of the symbol, at which two dims are equal that differ elsewhere."""


_SHAPE: Final = "Shape"
_SIZE: Final = "Size"
_MOVES_NUMBERS: Final = frozenset(
    {"Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"}
)
"""Operators that move the elements of their first input, Concat those of all."""
_TARGETS: Final[Mapping[str, int]] = MappingProxyType(
    {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1}
)
"""Operators that take the dims of their output from an input, and which one."""
_WHOLE_TYPES: Final = frozenset({TensorProto.INT32, TensorProto.INT64})


Growing = frozenset[tuple[int, int]]
"""Dims that differ between the two ends, as their two numbers."""


_NONE: Final[Growing] = frozenset()


class UnprovenError(ValueError):
    """There is no proof that pieces are the peak; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Ends:
    """A graph where every symbol is 1, and where each is a prime that divides none of its dims."""

    one: Graph
    far: Graph
    growth: Growth

    def shapes_of(self, name: str) -> tuple[Dims, Dims]:
        """The two shapes of a tensor of known shape."""
        one, far = (known_dims(each.tensors[name].shape) for each in (self.one, self.far))
        return one or (), far or ()


@dataclass(frozen=True)
class SizePolynomials:
    """The bytes of a graph's tensors as polynomials; many tensors have the same one."""

    polynomials: tuple[Polynomial, ...]
    indices: Mapping[str, int]
    """The index of the polynomial of each graph input and activation."""

    def total(self, tensors: Iterable[str], num_symbols: int) -> Polynomial:
        """The sum of tensors' bytes."""
        counts = Counter(map(self.indices.__getitem__, tensors))
        scaled = (self.polynomials[index].times(n) for index, n in counts.items())
        return sum(scaled, constant(0, num_symbols))

    def pieces(self, program: Program) -> tuple[Polynomial, ...]:
        """The polynomials whose maximum is the peak of a program."""
        # A difference array over steps, whose entries are polynomials: each allocation adds its
        # size where it starts and subtracts it where it stops; the running sum is what is live.
        columns, sizes = coefficients_of(self.polynomials, program.num_allocations)
        num_steps = len(program.steps)
        changes = np.zeros((num_steps + 1, len(columns)), dtype=sizes.dtype)
        starts, stops = program.lifetimes
        of_labels = sizes[[self.indices[label] for label in program.labels]]
        np.add.at(changes, starts, of_labels)
        np.subtract.at(changes, stops, of_labels)
        # No node runs in the first step: nothing is live there.
        return upper(columns, changes[1:num_steps].cumsum(axis=0))


@dataclass(frozen=True)
class SymbolicPeaks:
    """The peaks of one graph for all symbols from 1 on, except at a few points."""

    graph: Graph
    sizes: SizePolynomials
    program: Program
    """Of the buffers that tensors share."""
    excluded_points: tuple[ExcludedPoint, ...]
    """Points at which the pieces of shared buffers are not valid."""

    @cached_property
    def in_place_peak_pieces(self) -> tuple[Polynomial, ...]:
        """The in-place peak (definition 4)."""
        return self.sizes.pieces(self.program)

    @cached_property
    def peak_pieces(self) -> tuple[Polynomial, ...]:
        """The liveness peak (definition 3)."""
        return self.sizes.pieces(self._tensor_program)

    def naive(self, num_symbols: int) -> Polynomial:
        """The sum of all tensors (definition 2)."""
        return self.sizes.total(self._tensor_program.labels, num_symbols)

    def naive_in_place(self, num_symbols: int) -> Polynomial:
        """The sum of all buffers (definition 4)."""
        return self.sizes.total(self.program.labels, num_symbols)

    @cached_property
    def _tensor_program(self) -> Program:
        """The program in which every tensor is an allocation of its own."""
        return tensor_buffers(self.graph).program(self.graph.nodes)

    def excludes(self, numbers: Sequence[int]) -> bool:
        """Whether the pieces are not valid at a point."""
        return _is_excluded(self.excluded_points, numbers)


def symbolic_peaks(
    ends: Ends, requested: Graph, numbers: Sequence[int], memory: ActivationMemory
) -> SymbolicPeaks:
    """The peaks of a graph from its two ends, and from its memory at the requested numbers.

    :raises UnprovenError: a size is unknown or not a polynomial, or lifetimes depend on the dims.
    """
    # Each check is a premise of (a) or (b) in the module's docstring.
    if any(node.subgraphs for node in requested.nodes):
        message = "which subgraph is the largest depends on the dims"
        raise UnprovenError(message)
    if not _same_nodes(ends.one, ends.far):
        raise _other_nodes()
    sizes, excluded_points = size_polynomials(ends), tuple(_excluded_points(ends))
    if _is_excluded(excluded_points, ends.growth.primes):
        message = "which tensors share a buffer depends on the dims"
        raise UnprovenError(message)
    if not _same_nodes(ends.one, requested):
        raise _other_nodes()
    program = memory.replay.program
    # At an excluded point the requested graph shares other buffers than elsewhere.
    if _is_excluded(excluded_points, numbers):
        program = shared_buffers(ends.far).program(ends.far.nodes)
    return SymbolicPeaks(requested, sizes, program, excluded_points)


def verify_at(peaks: SymbolicPeaks, graph: Graph, numbers: Sequence[int]) -> None:
    """Compare the nodes and sizes with those of the graph at a point.

    :raises UnprovenError: one differs.
    """
    if not _same_nodes(peaks.graph, graph):
        raise _other_nodes()
    verify(peaks.sizes, graph, numbers)


def weight_polynomial(ends: Ends) -> Polynomial:
    """The bytes of the weights, of which constants with the batch in their shape grow.

    :raises UnprovenError: one is not a polynomial.
    """
    fixed, grown = 0, []
    for weight in ends.one.weights:
        later = ends.far.tensors[weight.name]
        if weight.shape == later.shape and weight.dtype is later.dtype:
            fixed += weight.size_bytes or 0
        else:
            grown.append(_size(ends, weight, later))
    return sum(grown, constant(fixed, len(ends.growth.primes)))


def computes_dims(ends: Ends) -> bool:
    """Whether a dim may be something other than a number or a symbol that nodes pass on."""
    # Two points cannot show that: at two odd numbers `n % 2` is 1, and a maximum is the symbol that
    # is larger at both. Dims may be computed if a node reads the numbers of a shape and does more
    # than move them; if a node writes a growing dim that it has read neither as a dim nor as a
    # number (a sum, a product, a stride); if an input declares such a dim; and if a weight has
    # another shape at the far end.
    far = ends.far.tensors
    if any(node.onnx_op == _SIZE for node in ends.one.nodes):
        return True
    if any(weight.shape != far[weight.name].shape for weight in ends.one.weights):
        return True
    symbols = {(1, prime) for prime in ends.growth.primes}
    are_symbols = all(_growing(ends, name) <= symbols for name in ends.one.inputs)
    return not are_symbols or _nodes_compute_dims(ends)


def verify(sizes: SizePolynomials, graph: Graph, numbers: Sequence[int]) -> None:
    """Compare the sizes with those of the graph at a point.

    :raises UnprovenError: one differs.
    """
    # Of tensors with the same polynomial and the same dims one is enough: all agree, or none does.
    seen = {
        (index, tensor.shape, tensor.dtype): name
        for name, index in sizes.indices.items()
        for tensor in (graph.tensors[name],)
    }
    for (index, *_), name in seen.items():
        if sizes.polynomials[index].at(numbers) != graph.tensors[name].size_bytes:
            raise _no_polynomial(name)


def size_polynomials(ends: Ends) -> SizePolynomials:
    """The bytes of graph inputs and activations.

    :raises UnprovenError: one is unknown, or not a polynomial.
    """
    # A large graph has few shapes: each pair of shapes is fitted once.
    polynomials: dict[Polynomial, int] = {}
    known: dict[tuple[object, ...], int] = {}
    indices = {}
    for name, one in ends.one.tensors.items():
        if one.role in _HAS_BYTES:
            far = ends.far.tensors[name]
            key = (one.shape, far.shape, one.dtype, far.dtype)
            if key not in known:
                known[key] = polynomials.setdefault(_size(ends, one, far), len(polynomials))
            indices[name] = known[key]
    return SizePolynomials(tuple(polynomials), indices)


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
    return UnprovenError(f"the size of {name} is not a polynomial of the dims")


def _other_nodes() -> UnprovenError:
    return UnprovenError("the nodes depend on the dims")


def _same_nodes(one: Graph, other: Graph) -> bool:
    if one.nodes is other.nodes:
        return True
    seams = ([(node.inputs, node.outputs) for node in each.nodes] for each in (one, other))
    return next(seams) == next(seams) and one.tensors.keys() == other.tensors.keys()


def _is_excluded(excluded_points: Iterable[ExcludedPoint], numbers: Sequence[int]) -> bool:
    return any(all(numbers[at] == n for at, n in point.items()) for point in excluded_points)


def _excluded_points(ends: Ends) -> Iterator[ExcludedPoint]:
    """The points at which a tensor may overwrite another one whose shape differs elsewhere."""
    tensors, far = ends.one.tensors, ends.far.tensors
    # A large graph has few shapes: one pair of names is enough for each pair of shapes.
    pairs = {
        (tensors[source].shape, far[source].shape, tensors[output].shape, far[output].shape): pair
        for pair in candidates(ends.one)
        for source, output in (pair,)
        if tensors[source].role is ACTIVATION
    }
    shapes = {(ends.shapes_of(source), ends.shapes_of(output)) for source, output in pairs.values()}
    for (one, one_far), (other, other_far) in shapes:
        if len(one) == len(other) and (one, one_far) != (other, other_far):
            point = _excluded_point(ends.growth, (one, one_far), (other, other_far))
            if point is not None:
                yield point


def _excluded_point(
    growth: Growth, one: tuple[Dims, Dims], other: tuple[Dims, Dims]
) -> ExcludedPoint | None:
    """The point at which two shapes are equal; ``None`` if there is none.

    :raises UnprovenError: there are several.
    """
    # Shapes are equal where the differences of all dims are 0 at once.
    numbers: dict[int, int] = {}
    for a, a_far, b, b_far in zip(*one, *other, strict=True):
        dim, other_dim = growth.dim(a, a_far), growth.dim(b, b_far)
        if dim is None or other_dim is None:
            message = f"a dim that is {a:,} and {a_far:,} is not a polynomial of the dims"
            raise UnprovenError(message)
        difference = dim + other_dim.times(-1)
        if not difference.terms:
            continue
        root = _root(difference)
        if root is None or numbers.setdefault(*root) != root[1]:
            return None
    return numbers


def _root(difference: Polynomial) -> tuple[int, int] | None:
    """The index of the one symbol, and the number from 1 on at which a difference is 0, if any.

    :raises UnprovenError: there are several.
    """
    # In powers of (symbol - 1), coefficients of one sign with a constant term have no root from 1
    # on. Otherwise only a linear polynomial in one symbol has a root that can be listed.
    from_one = difference.from_one().terms
    signs = {coefficient > 0 for _, coefficient in from_one}
    if len(signs) == 1 and not any(from_one[0][0]):
        return None
    terms = difference.terms
    indices = {at for exponents, _ in terms for at, power in enumerate(exponents) if power}
    if len(indices) > 1 or max(sum(exponents) for exponents, _ in terms) > 1:
        message = "two shapes are equal at more than a few points"
        raise UnprovenError(message)
    (index,) = indices
    slope = terms[-1][1]
    fixed = terms[0][1] if len(terms) > 1 else 0
    number, rest = divmod(-fixed, slope)
    return (index, number) if rest == 0 and number > 0 else None


def _nodes_compute_dims(ends: Ends) -> bool:
    """Whether a node writes a growing dim that it has read neither as a dim nor as a number."""
    growing = _growing_dims(ends)
    # What tensors hold as elements: the growing numbers of shapes that were moved there.
    held: dict[str, Growing] = {}
    for node in ends.one.nodes:
        dims = _union(growing, node.reads)
        is_shape = node.onnx_op == _SHAPE
        numbers = dims if is_shape else _union(held, node.reads) if held else _NONE
        if numbers and not is_shape and not _passes_on(node, held):
            return True
        if numbers and (is_shape or _holds_numbers(node, held)):
            held[node.outputs[0]] = numbers
        read = dims | numbers
        if not all(growing.get(name, _NONE) <= read for name in node.outputs):
            return True
    return False


def _growing_dims(ends: Ends) -> dict[str, Growing]:
    """The growing dims of each tensor that has any."""
    far = ends.far.tensors
    known: dict[tuple[object, object], Growing] = {}
    growing: dict[str, Growing] = {}
    for name, tensor in ends.one.tensors.items():
        # A large graph has few shapes.
        shapes = tensor.shape, far[name].shape
        if shapes not in known:
            known[shapes] = _growing(ends, name)
        if known[shapes]:
            growing[name] = known[shapes]
    return growing


def _passes_on(node: Node, held: Container[str]) -> bool:
    """Whether the numbers of shapes that a node reads become elements or dims as they are."""
    if node.onnx_op == "Concat":
        return True
    # Other types hold no large number exactly, or only 0 and 1.
    if node.onnx_op == "Cast" and node.attributes.get("to") not in _WHOLE_TYPES:
        return False
    allowed = {_TARGETS.get(node.onnx_op), 0 if node.onnx_op in _MOVES_NUMBERS else None}
    return all(index in allowed for index, name in enumerate(node.inputs) if name in held)


def _holds_numbers(node: Node, held: Container[str]) -> bool:
    """Whether the elements of a node's output are those of an input that holds numbers."""
    is_of_first = node.inputs[0] in held or node.onnx_op == "Concat"
    return is_of_first and node.onnx_op in _MOVES_NUMBERS


def _union(growing: Mapping[str, Growing], names: Iterable[str]) -> Growing:
    """The growing dims of several tensors together."""
    found = [growing[name] for name in names if name in growing]
    return found[0] if len(found) == 1 else _NONE.union(*found)


def _growing(ends: Ends, name: str) -> Growing:
    one, far = ends.shapes_of(name)
    return frozenset(dims for dims in zip(one, far, strict=True) if dims[0] != dims[1])
