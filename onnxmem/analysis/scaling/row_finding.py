"""Finding what inference needs as polynomials in free dims, from a few walks of the stages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from onnxmem.analysis.scaling.capacity import LAW_BATCH
from onnxmem.analysis.scaling.symbolic_terms import BATCH, NoRows, SymbolicTerms
from onnxmem.analysis.stages import StageResults
from onnxmem.errors import ShapeError
from onnxmem.model.binding import Binding, input_dims, names_in
from onnxmem.model.building import Prepared
from onnxmem.model.graph import Graph, Node
from onnxmem.program.polynomials import Growth, constant, dims_of, prime_above, prime_up_to
from onnxmem.runtimes.ideal.symbolic import (
    Ends,
    UnprovenError,
    computes_dims,
    symbolic_peaks,
    verify_at,
    weight_polynomial,
)

Walk = Callable[[int | None, Mapping[str, int]], StageResults]
"""Walks the stages at a batch and at dims; training left out."""

_LAST_DIM: Final = 512
"""Rows hold from 1 to about this number at least, for each dim but the batch: encoders have as
many places."""
_MOST_SYMBOLS: Final = 3
_FIRST_PLACE: Final = 2
"""The axis of an image's height, or of a sound's time, behind batch and channels."""
_TRIED: Final = (2, 100, 50)
"""About where rows of computed dims are tried: a little above the ends' ones, and well within."""


def symbolic_terms(
    terms: StageResults,
    walk: Walk,
    dims: Mapping[str, bool] | None = None,
    last_batch: int = LAW_BATCH,
) -> SymbolicTerms | NoRows:
    """Find rows in the batch and in dims; in the batch alone where those in the dims are unproven.

    ``dims`` says of each that is free whether it is tried; others stay as asked for.

    They are read off two walks, where all symbols are 1 and at primes, and hold what the walk asked
    for says. Where no dim is computed (``computes_dims``) that is all they need. Elsewhere two more
    walks, three of three symbols, must say the same (``_between``): the rows are shown at these
    points, at the ends and at the one asked for, and taken to hold between.
    """
    refused = _refused(terms)
    if refused:
        return NoRows(refused)
    batch = terms.bound.binding.batch
    reason = "no dim is free"
    dims = dims or {}
    tried = tuple(name for name, is_tried in dims.items() if is_tried)
    for each in dict.fromkeys((tried, ())):
        symbols = (*((BATCH,) if batch is not None else ()), *each)
        if 0 < len(symbols) <= _MOST_SYMBOLS:
            try:
                return _Search(terms, walk, symbols, last_batch).found(dims)
            except UnprovenError as fault:
                reason = str(fault)
            except ShapeError:
                # Past the largest dim that ONNX can write, or one that fits no other.
                reason = "the model cannot be worked out at other dims"
    return NoRows(reason)


def _refused(terms: StageResults) -> str:
    """What leaves no hope, before anything else is walked."""
    if terms.order != "file":
        return "in the order asked for, steps may change places with the dims"
    if not terms.bound.follows_batch:
        return "the model does not follow the batch"
    if terms.type_conflicts:
        return "the types of some tensors do not agree"
    if any(node.subgraphs for node in terms.bound.graph.nodes):
        return "what a subgraph takes depends on the run"
    return "the sizes of some tensors are unknown" if terms.activations.unknown_tensors else ""


@dataclass(frozen=True)
class _Search:
    """Rows in the making."""

    terms: StageResults
    walk: Walk
    symbols: tuple[str, ...]
    last_batch: int

    def found(self, dims: Iterable[str]) -> SymbolicTerms:
        """Walk the ends, and other points where these prove too little.

        :raises UnprovenError: the rows cannot be shown to hold.
        :raises ShapeError: the model takes no such dims.
        """
        terms, asked = self.terms, self.asked
        ones = (1,) * len(asked)
        one = terms if asked == ones else self.at(ones)
        far_numbers = self.primes(one)
        far = self.at(far_numbers)
        ends = Ends(one.bound.graph, far.bound.graph, Growth(far_numbers))
        peaks = symbolic_peaks(ends, terms.bound.graph, asked, terms.activations)
        weights = (
            constant(one.weight_bytes or 0, len(asked))
            if one.weight_bytes == far.weight_bytes
            else weight_polynomial(ends)
        )
        numbers = terms.bound.binding.dims
        found = SymbolicTerms(
            symbols=self.symbols,
            asked=asked,
            last=tuple(map(max, far_numbers, asked)),
            fixed={name: numbers[name] for name in dims if name not in self.symbols},
            peaks=peaks,
            weights=weights,
            inputs=peaks.sizes.total(ends.one.inputs, len(asked)),
        )
        self.hold(found, asked, terms)
        for point in self.further(found, far_numbers, computes=computes_dims(ends)):
            self.hold(found, point, self.at(point))
        return found

    def further(
        self, found: SymbolicTerms, far: tuple[int, ...], *, computes: bool
    ) -> Iterator[tuple[int, ...]]:
        """The points at which rows are tried besides the ends and the one asked for."""
        if found.last not in {far, found.asked}:
            yield found.last
        if computes:
            yield from _between(far)

    def hold(self, found: SymbolicTerms, numbers: Sequence[int], terms: StageResults) -> None:
        """Hold rows against the walk of a point.

        :raises UnprovenError: they say otherwise.
        """
        verify_at(found.peaks, terms.bound.graph, numbers)
        # What stands in no tensor's size shows in the total.
        if found.speaks_of(numbers) and found.total_bytes(numbers) != terms.total_bytes:
            message = "the total at some dims is not what the rows say"
            raise UnprovenError(message)

    @cached_property
    def asked(self) -> tuple[int, ...]:
        """The point that is asked for."""
        binding = self.terms.bound.binding
        return tuple(
            (binding.batch or 1) if symbol == BATCH else binding.dims[symbol]
            for symbol in self.symbols
        )

    def at(self, numbers: Sequence[int]) -> StageResults:
        """Walk the stages at a point.

        :raises UnprovenError: the model does not follow.
        """
        dims = dict(zip(self.symbols, numbers, strict=True))
        batch = dims.pop(BATCH, None)
        terms = self.walk(batch, dims)
        if not terms.bound.follows_batch:
            message = "the model does not follow the batch"
            raise UnprovenError(message)
        return terms

    def primes(self, one: StageResults) -> tuple[int, ...]:
        """A prime for each symbol, none of them in the dims of the graph of ones."""
        known, primes = dims_of(one.bound.graph), []
        for symbol, number in zip(self.symbols, self.asked, strict=True):
            if symbol == BATCH:
                prime = prime_above(max(number, self.last_batch), known)
            else:
                prime = prime_up_to(max(number, _LAST_DIM), known)
            primes.append(prime)
            known.add(prime)
        return tuple(primes)


def _between(far: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Points at which what is no polynomial shows: two at least, and one for each symbol.

    Both ends are odd, so all numbers are even at first, then all but one, and so on: the rest of a
    division by 2 shows, of any sum of symbols. The symbol that is largest at the far point is the
    least: so does a maximum.
    """
    order = sorted(range(len(far)), key=far.__getitem__, reverse=True)
    for place, least in enumerate(_TRIED[: max(len(far), 2)]):
        odd = order[: min(place, len(far) - 1)]
        yield tuple(least + 2 * order.index(at) + 2 + (at in odd) for at in range(len(far)))


def free_dims(prepared: Prepared, binding: Binding, graph: Graph) -> dict[str, bool]:
    """The symbols besides the batch that no other decides, and whether rows may speak of them.

    Height and width go by a stride to rounded numbers, which are no polynomials.
    """
    symbols = {*binding.dims}
    free = [
        symbol
        for symbol in binding.dims
        if symbol not in prepared.batch_symbols
        and symbol != BATCH
        and not (names_in(symbol) and names_in(symbol) <= symbols)
    ]
    inputs = prepared.given if free else ()
    places = {dim for value in inputs for dim in (input_dims(value) or ())[_FIRST_PLACE:]}
    if places.isdisjoint(free) or not any(map(_strides, graph.nodes)):
        places = set()
    return {symbol: symbol not in places for symbol in free}


def _strides(node: Node) -> bool:
    strides = node.attributes.get("strides")
    return isinstance(strides, tuple) and any(isinstance(n, int) and n > 1 for n in strides)
