"""What inference needs as polynomials in a model's free dims, from a few walks of its stages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from onnxmem.collecting import without_collection
from onnxmem.errors import ShapeError
from onnxmem.escaping import printable
from onnxmem.memory.growth import Growth
from onnxmem.memory.polynomials import Polynomial, constant, largest
from onnxmem.memory.primes import dims_of, prime_above, prime_up_to
from onnxmem.memory.sizes import Ends, UnprovenError, concatenated, verify, weight_polynomial
from onnxmem.memory.symbolic import SymbolicPeaks, symbolic_peaks
from onnxmem.model import Graph, Node, Prepared
from onnxmem.model.binding import Binding, given_inputs, input_dims
from onnxmem.model.dim_expressions import names_in
from onnxmem.terms import Terms

BATCH: Final = "batch"
Walk = Callable[[int | None, Mapping[str, int]], Terms]
"""Walks the stages at a batch and at dims; training left out."""

_LAST_BATCH: Final = 128
"""Rows hold from batch 1 to this one at least."""
_LAST_DIM: Final = 512
"""Rows hold from 1 to about this number at least, for each other dim: encoders have as many
places."""
_MOST_SYMBOLS: Final = 3
_FIRST_PLACE: Final = 2
"""The axis of an image's height, or of a sound's time, behind batch and channels."""


@dataclass(frozen=True)
class SymbolicTerms:
    """Bytes at every point that ``speaks_of`` admits, without another walk of the stages.

    A point is a number for each symbol, in their order.
    """

    symbols: tuple[str, ...]
    """The batch, where it is free, is ``batch`` whatever the file calls it; others by name."""
    asked: tuple[int, ...]
    last: tuple[int, ...]
    """The rows hold from 1 to this number of each symbol."""
    fixed: Mapping[str, int]
    """The other dims, which stay as asked."""
    peaks: SymbolicPeaks
    weights: Polynomial
    inputs: Polynomial

    def speaks_of(self, numbers: Sequence[int]) -> bool:
        """Whether the rows hold at a point."""
        is_within = all(1 <= n <= last for n, last in zip(numbers, self.last, strict=True))
        return is_within and not self.peaks.meets_at(numbers)

    def total_bytes(self, numbers: Sequence[int]) -> int:
        """Weights, inputs and in-place peak."""
        others = self.weights.at(numbers) + self.inputs.at(numbers)
        return others + largest(self.peaks.in_place_peak_rows, numbers)

    @property
    def has_batch(self) -> bool:
        """Whether the batch is a symbol; it is the first then."""
        return self.symbols[:1] == (BATCH,)

    def at_batch(self, batch: int) -> tuple[int, ...]:
        """The point of a batch at the other dims asked for."""
        return (batch, *self.asked[1:])

    def speaks_of_batches(self, last: int) -> bool:
        """Whether the rows hold from batch 1 to the last, at the other dims asked for."""
        if not self.has_batch or not self.speaks_of(self.at_batch(last)):
            return False
        return not any(
            meeting.get(0, 1) <= last
            and all(self.asked[at] == n for at, n in meeting.items() if at)
            for meeting in self.peaks.meetings
        )

    def line_in_batch(self, last: int) -> tuple[int, int] | None:
        """Start and slope of the total from batch 1 to the last; ``None`` where it bends."""
        for row in self.peaks.in_place_peak_rows or (Polynomial(()),):
            line = (self.weights + self.inputs + row).along(0, self.asked)
            if all(line.at((n,)) == self.total_bytes(self.at_batch(n)) for n in (1, last)):
                return line.at((0,)), line.at((1,)) - line.at((0,))
        return None

    def to_dict(self) -> dict[str, object]:
        """What ``activations`` says of them in JSON."""
        return {"peak_rows": self._rows(), "no_peak_rows": None}

    def _rows(self) -> dict[str, object]:
        peaks, num_symbols = self.peaks, len(self.symbols)
        names = [printable(symbol) for symbol in self.symbols]
        return {
            "domain": {name: [1, last] for name, last in zip(names, self.last, strict=True)},
            "except": [{names[at]: n for at, n in each.items()} for each in peaks.meetings],
            "fixed": {printable(name): number for name, number in self.fixed.items()},
            "naive": self._monomials(peaks.naive(num_symbols)),
            "naive_in_place": self._monomials(peaks.naive_in_place(num_symbols)),
            "peak": [self._monomials(row) for row in peaks.peak_rows],
            "in_place_peak": [self._monomials(row) for row in peaks.in_place_peak_rows],
        }

    def _monomials(self, row: Polynomial) -> dict[str, object]:
        """``{"monomials": {"batch*sequence^2": 4, "1": 32}}``."""
        return {"monomials": {self.monomial(powers, "*") or "1": n for powers, n in row.terms}}

    def monomial(self, powers: Sequence[int], times: str) -> str:
        """A product of symbols, written out; nothing where there is none."""
        return times.join(
            printable(name) + (f"^{power}" if power > 1 else "")
            for name, power in zip(self.symbols, powers, strict=True)
            if power
        )


@dataclass(frozen=True, slots=True)
class NoRows:
    """Why there are no rows."""

    reason: str

    def to_dict(self) -> dict[str, object]:
        """What ``activations`` says of it in JSON."""
        return {"peak_rows": None, "no_peak_rows": printable(self.reason)}


@without_collection()
def symbolic_terms(
    terms: Terms,
    walk: Walk,
    dims: Mapping[str, bool] | None = None,
    last_batch: int = _LAST_BATCH,
) -> SymbolicTerms | NoRows:
    """Find rows in the batch and in dims; in the batch alone where those in the dims are unproven.

    ``dims`` says of each that is free whether it is tried; others stay as asked for.

    They are exact by construction from two walks, where all symbols are 1 and at primes, and hold
    what the walk asked for says of each tensor; where a dim is a sum, that of one more walk too.
    Between the two ends nothing else is tried: what is rounded or capped shows at the ends.
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
                return _Finding(terms, walk, symbols, last_batch).found(dims)
            except UnprovenError as fault:
                reason = str(fault)
            except ShapeError:
                # Past the largest dim that ONNX can write, or one that fits no other.
                reason = "the model cannot be worked out at other dims"
    return NoRows(reason)


def _refused(terms: Terms) -> str:
    """What leaves no hope, before anything else is walked."""
    if terms.order != "file":
        return "the order of execution depends on the dims"
    if not terms.bound.follows_batch:
        return "the model does not follow the batch"
    if any(node.subgraphs for node in terms.bound.graph.nodes):
        return "what a subgraph takes depends on its run"
    return "sizes are unknown" if terms.activations.unknown_tensors else ""


@dataclass(frozen=True)
class _Finding:
    """Rows in the making."""

    terms: Terms
    walk: Walk
    symbols: tuple[str, ...]
    last_batch: int

    def found(self, dims: Iterable[str]) -> SymbolicTerms:
        """Walk the ends, and a third point where a dim is a sum.

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
        sums = peaks.sizes.sums - self.declared(one, far)
        if sums and not sums <= {*concatenated(ends)}:
            middle = self.middle(one, far_numbers)
            verify(peaks.sizes, self.at(middle).bound.graph, middle)
        weights = (
            constant(one.weight_bytes or 0, len(asked))
            if one.weight_bytes == far.weight_bytes
            else weight_polynomial(ends)
        )
        numbers, places = terms.bound.binding.dims, peaks.sizes.places
        found = SymbolicTerms(
            symbols=self.symbols,
            asked=asked,
            last=tuple(map(max, far_numbers, asked)),
            fixed={name: numbers[name] for name in dims if name not in self.symbols},
            peaks=peaks,
            weights=weights,
            inputs=peaks.sizes.total(map(places.__getitem__, ends.one.inputs), len(asked)),
        )
        # What stands in no tensor's size would show at the numbers asked for.
        if found.speaks_of(asked) and found.total_bytes(asked) != terms.total_bytes:
            message = "the rows do not meet the peak"
            raise UnprovenError(message)
        return found

    @cached_property
    def asked(self) -> tuple[int, ...]:
        """The point that is asked for."""
        binding = self.terms.bound.binding
        return tuple(
            (binding.batch or 1) if symbol == BATCH else binding.dims[symbol]
            for symbol in self.symbols
        )

    def at(self, numbers: Sequence[int]) -> Terms:
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

    def declared(self, one: Terms, far: Terms) -> frozenset[tuple[int, int]]:
        """Both ends of the dims that inputs declare as expressions (``past + sequence``)."""
        ends = one.bound.binding.dims, far.bound.binding.dims
        return frozenset((ends[0][name], ends[1][name]) for name in ends[0] if names_in(name))

    def primes(self, one: Terms) -> tuple[int, ...]:
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

    def middle(self, one: Terms, far: Sequence[int]) -> tuple[int, ...]:
        """Other primes, about half of those."""
        known, primes = dims_of(one.bound.graph) | set(far), []
        for number in far:
            primes.append(prime_up_to(number // 2 + 1, known))
            known.add(primes[-1])
        return tuple(primes)


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
    inputs = given_inputs(prepared.proto.graph) if free else ()
    places = {dim for value in inputs for dim in (input_dims(value) or ())[_FIRST_PLACE:]}
    if places.isdisjoint(free) or not any(map(_strides, graph.nodes)):
        places = set()
    return {symbol: symbol not in places for symbol in free}


def _strides(node: Node) -> bool:
    strides = node.attributes.get("strides")
    return isinstance(strides, tuple) and any(isinstance(n, int) and n > 1 for n in strides)
