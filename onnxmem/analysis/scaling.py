"""How figures grow with the batch and other dims: laws, and the peak of inference in closed form.

``find_closed_form`` finds what inference needs as polynomials in free dims, from a few walks of the
stages. ``BatchScaling`` finds the laws over batches of one request: lines, read off the closed form
or proven at three batches.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.request import StageResults
from onnxmem.errors import ShapeError, printable
from onnxmem.model.binding import Binding, input_dims, names_in
from onnxmem.model.building import Prepared
from onnxmem.model.graph import Graph, Node
from onnxmem.program.polynomials import (
    Growth,
    Polynomial,
    constant,
    dims_of,
    largest,
    prime_above,
    prime_up_to,
)
from onnxmem.program.program import Program
from onnxmem.program.replay import affine_sizes, replay
from onnxmem.program.sizes import Affine, Sizes
from onnxmem.runtimes.ideal.symbolic import (
    Ends,
    SymbolicPeaks,
    UnprovenError,
    computes_dims,
    symbolic_peaks,
    verify_at,
    weight_polynomial,
)

if TYPE_CHECKING:
    from onnxmem.runtimes.torch.memory import TrainingMemory


BytesAt = Callable[[int], int | None]
"""Bytes at a batch; ``None`` where they are unknown."""
LARGEST_BATCH: Final = 2**31
"""Where the search ends: what fits at this batch is said to fit at every batch."""
LINEAR_UP_TO: Final = 128
"""A law is sought from batch 1 to this one at least."""
BATCH: Final = "batch"
Walk = Callable[[int | None, Mapping[str, int]], StageResults]
"""Walks the stages at a batch and at dims; training left out."""
_LONGEST_BEND: Final = 10_000
"""Batches that are looked at one by one for a line among pieces that bend."""
_LAST_DIM: Final = 512
"""Pieces hold from 1 to about this number at least, for each dim but the batch: encoders have as
many positions."""
_MOST_SYMBOLS: Final = 3
_FIRST_PLACE: Final = 2
"""The axis of an image's height, or of a sound's time, behind batch and channels."""
_TRIED: Final = (2, 100, 50)
"""About where pieces of computed dims are checked: a little above the ends' ones, and within."""


@dataclass(frozen=True)
class ClosedForm:
    """What inference needs as polynomials in a model's free dims: piecewise, the largest counts.

    Bytes at every point that ``is_valid_at`` admits, without another walk of the stages; how far
    they are proven is what ``find_closed_form`` says. A point is a number for each symbol, in their
    order.
    """

    symbols: tuple[str, ...]
    """The batch, where it is free, is ``batch`` whatever the file calls it; others by name."""
    requested: tuple[int, ...]
    last: tuple[int, ...]
    """The pieces hold from 1 to this number of each symbol."""
    fixed: Mapping[str, int]
    """The other dims, which stay as asked."""
    peaks: SymbolicPeaks
    weights: Polynomial
    inputs: Polynomial

    def is_valid_at(self, numbers: Sequence[int]) -> bool:
        """Whether the pieces hold at a point."""
        is_within = all(1 <= n <= last for n, last in zip(numbers, self.last, strict=True))
        return is_within and not self.peaks.excludes(numbers)

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
        return (batch, *self.requested[1:])

    def is_valid_up_to(self, last: int) -> bool:
        """Whether the pieces hold from batch 1 to the last, at the other dims asked for."""
        if not self.has_batch or not self.is_valid_at(self.at_batch(last)):
            return False
        # An excluded point names some symbols by index and covers every value of the others, so it
        # matters where its other dims are the requested ones and its batch, if named, is in range.
        return not any(
            point.get(0, 1) <= last
            and all(self.requested[axis] == n for axis, n in point.items() if axis)
            for point in self.peaks.excluded_points
        )

    def line_in_batch(self, last: int) -> tuple[int, int] | None:
        """Start and slope of the total from batch 1 to the last; ``None`` where it is no line.

        Where no piece bends, the largest of them meets the line through its ends halfway only if it
        is that line all along: it is convex. Where one does, every batch is looked at, or none.
        """
        others = (self.weights + self.inputs).along(0, self.requested)
        pieces = self.peaks.in_place_peak_rows or (Polynomial(()),)
        lines = {piece.along(0, self.requested) + others for piece in pieces}
        bends = any(power > 1 for line in lines for (power,), _ in line.terms)
        first_bytes, last_bytes = (largest(lines, (n,)) for n in (1, last))
        slope, rest = divmod(last_bytes - first_bytes, last - 1)
        if rest or (bends and last > _LONGEST_BEND):
            return None
        start = first_bytes - slope
        between = range(2, last) if bends else ((1 + last) // 2,)
        return (start, slope) if _lies_on(lines, (start, slope), between) else None

    def to_dict(self) -> dict[str, object]:
        """What ``activations`` says of them in JSON."""
        return {"peak_rows": self._pieces(), "no_peak_rows": None}

    def _pieces(self) -> dict[str, object]:
        peaks, num_symbols = self.peaks, len(self.symbols)
        names = [printable(symbol) for symbol in self.symbols]
        return {
            "domain": {name: [1, last] for name, last in zip(names, self.last, strict=True)},
            "except": [{names[at]: n for at, n in each.items()} for each in peaks.excluded_points],
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
class NoClosedForm:
    """Why there is no closed form."""

    reason: str

    def to_dict(self) -> dict[str, object]:
        """What ``activations`` says of it in JSON."""
        return {"peak_rows": None, "no_peak_rows": printable(self.reason)}


@dataclass(frozen=True, slots=True)
class _Figures:
    """What is kept of a batch that was tried; ``None`` where it is unknown or leaves some out."""

    total_bytes: int | None
    training_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Growth:
    """How what a request is of grows with the batch."""

    form: ClosedForm | NoClosedForm
    """Of a run."""
    step: tuple[Program, Sizes] | None = None
    """Of a training step, its sizes affine, where the form holds; ``None``: unproven."""


class BatchScaling:
    """The batches of a request, each evaluated once, of which only the figures are kept."""

    def __init__(
        self,
        results: StageResults,
        at: Callable[[int], StageResults],
        symbolic: ClosedForm | NoClosedForm,
    ) -> None:
        self._results = results
        # Where types do not agree there is no run, and so no law that other batches would show.
        self._batch = None if results.type_conflicts else results.bound.binding.batch
        self._at = at
        self._growth = _Growth(symbolic) if results.training is None else None
        self._tried: dict[int, _Figures] = {}
        if self._batch is not None:
            self._tried[self._batch] = _figures(results)

    def affine_total_bytes(self) -> Affine | None:
        """The law of weights, inputs and in-place peak.

        It is read off the closed form where that is valid up to the last batch.
        """
        if self._batch is None:
            return None
        last, form = max(self._batch, LINEAR_UP_TO), self._grown().form
        if isinstance(form, NoClosedForm) or not form.is_valid_up_to(last):
            return affine_in_batch(self._total_bytes, last)
        line = form.line_in_batch(last)
        return None if line is None else Affine(*line, 1, last)

    def affine_training_peak(self) -> Affine | None:
        """The law of the training peak."""
        if self._batch is None or self._results.training is None:
            return None
        return affine_in_batch(self._affine_training_peak_bytes, max(self._batch, LINEAR_UP_TO))

    def _grown(self) -> _Growth:
        """The closed form and affine sizes; in training they are found when first read."""
        if self._growth is None:
            self._growth = self._grown_in_training()
        return self._growth

    def _grown_in_training(self) -> _Growth:
        """Find the form of a run, and sizes of a step from the batches that are walked for them."""
        walked: dict[int, StageResults] = {}

        def walk(batch: int | None, _: object) -> StageResults:
            return walked.setdefault(batch or 1, self._at(batch or 1))

        form = find_closed_form(self._results, walk)
        step = self._results.training
        if isinstance(form, NoClosedForm) or step is None or not _may_be_affine(form, step):
            # Without affine sizes the law is sought from one sample on.
            self._tried.update({1: _figures(walked[1])} if 1 in walked else {})
            return _Growth(form)
        walked[form.requested[0]] = self._results
        tried = {batch: walked[batch] for batch in _three(sorted(walked), form.requested[0])}
        self._note(form, tried)
        return _Growth(form, _affine_step(tried))

    def _note(self, form: ClosedForm, walked: dict[int, StageResults]) -> None:
        """Take the figures of batches that were walked, where the form holds."""
        for batch, results in walked.items():
            step = results.training
            is_whole = results.bound.follows_batch and step is not None and not step.unknown
            if is_whole and step is not None and form.is_valid_at((batch,)):
                figures = _Figures(form.total_bytes((batch,)), step.peak_bytes)
                self._tried.setdefault(batch, figures)

    def _affine_training_peak_bytes(self, batch: int) -> int | None:
        """The training peak, by the affine sizes where they hold."""
        step = self._grown().step
        if step is None or batch < step[1].first:
            return self._training_peak_bytes(batch)
        program, sizes = step
        return replay(program, sizes.at(batch)).peak_bytes

    def _total_bytes(self, batch: int) -> int | None:
        form = self._grown().form
        if isinstance(form, ClosedForm) and form.has_batch and batch not in self._tried:
            numbers = form.at_batch(batch)
            if form.is_valid_at(numbers):
                return form.total_bytes(numbers)
        return self._figures_at(batch).total_bytes

    def _training_peak_bytes(self, batch: int) -> int | None:
        return self._figures_at(batch).training_peak_bytes

    def _figures_at(self, batch: int) -> _Figures:
        if batch not in self._tried:
            self._tried[batch] = _figures(self._at(batch))
        return self._tried[batch]


def find_closed_form(
    results: StageResults,
    walk: Walk,
    dims: Mapping[str, bool] | None = None,
    last_batch: int = LINEAR_UP_TO,
) -> ClosedForm | NoClosedForm:
    """Find a closed form in the batch and dims; in the batch alone where the dims' is unproven.

    ``dims`` says of each that is free whether it is tried; others stay as asked for.

    The pieces are read off two walks, where all symbols are 1 and at primes, and hold what the walk
    requested says. Where no dim is computed (``computes_dims``) that is all they need. Elsewhere
    two more walks, three of three symbols, must say the same (``_between``): the pieces are shown
    at these points, at the ends and at the one requested, and taken to hold between.
    """
    refused = _refused(results)
    if refused:
        return NoClosedForm(refused)
    batch = results.bound.binding.batch
    reason = "no dim is free"
    dims = dims or {}
    tried = tuple(name for name, is_tried in dims.items() if is_tried)
    for each in dict.fromkeys((tried, ())):
        symbols = (*((BATCH,) if batch is not None else ()), *each)
        if 0 < len(symbols) <= _MOST_SYMBOLS:
            try:
                return _PiecewiseFit(results, walk, symbols, last_batch).found(dims)
            except UnprovenError as fault:
                reason = str(fault)
            except ShapeError:
                # Past the largest dim that ONNX can write, or one that fits no other.
                reason = "the model cannot be worked out at other dims"
    return NoClosedForm(reason)


def free_dims(prepared: Prepared, binding: Binding, graph: Graph) -> dict[str, bool]:
    """The symbols besides the batch that no other decides, and whether pieces may have them.

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
    inputs = prepared.inputs if free else ()
    image_dims = {dim for value in inputs for dim in (input_dims(value) or ())[_FIRST_PLACE:]}
    if image_dims.isdisjoint(free) or not any(map(_strides, graph.nodes)):
        image_dims = set()
    return {symbol: symbol not in image_dims for symbol in free}


def affine_in_batch(bytes_at: BytesAt, largest: int) -> Affine | None:
    """Find the affine law that holds from batch 1 to ``largest``; ``None`` where none does.

    A law takes a function from a batch to live bytes and knows no stage. Each buffer's bytes are
    affine in the batch; a peak is the largest of several sums of buffers, hence convex. So three
    evaluated points prove the law: a convex function that meets a line at both ends of a stretch
    and once between them is that line all along. Up to batch 2 two points are the whole stretch,
    and a single point has no law.
    """
    if largest <= 1:
        return None
    ends = bytes_at(1), bytes_at(largest)
    if ends[0] is None or ends[1] is None:
        return None
    law = Affine.through([(1, ends[0]), (largest, ends[1])])
    middle = (1 + largest) // 2
    return law if law is not None and bytes_at(middle) == law.at(middle) else None


def _lies_on(pieces: Iterable[Polynomial], line: tuple[int, int], batches: Iterable[int]) -> bool:
    """Whether the largest of pieces in the batch is on a line at all of some batches."""
    start, slope = line
    return all(largest(pieces, (batch,)) == start + slope * batch for batch in batches)


def _refused(results: StageResults) -> str:
    """What leaves no hope, before anything else is walked."""
    if results.order != "file":
        return "in the order asked for, steps may change places with the dims"
    if not results.bound.follows_batch:
        return "the model does not follow the batch"
    if results.type_conflicts:
        return "the types of some tensors do not agree"
    if any(node.subgraphs for node in results.bound.graph.nodes):
        return "what a subgraph takes depends on the run"
    return "the sizes of some tensors are unknown" if results.activations.unknown_tensors else ""


@dataclass(frozen=True)
class _PiecewiseFit:
    """A closed form in the making: a few walks of the stages, and the checks that prove it."""

    results: StageResults
    walk: Walk
    symbols: tuple[str, ...]
    last_batch: int

    def found(self, dims: Iterable[str]) -> ClosedForm:
        """Walk the ends, and other points where these prove too little.

        :raises UnprovenError: the pieces cannot be shown to hold.
        :raises ShapeError: the model takes no such dims.
        """
        results, requested = self.results, self.requested
        ones = (1,) * len(requested)
        one = results if requested == ones else self.at(ones)
        far_numbers = self.primes(one)
        far = self.at(far_numbers)
        ends = Ends(one.bound.graph, far.bound.graph, Growth(far_numbers))
        peaks = symbolic_peaks(ends, results.bound.graph, requested, results.activations)
        weights = (
            constant(one.weight_bytes or 0, len(requested))
            if one.weight_bytes == far.weight_bytes
            else weight_polynomial(ends)
        )
        numbers = results.bound.binding.dims
        found = ClosedForm(
            symbols=self.symbols,
            requested=requested,
            last=tuple(map(max, far_numbers, requested)),
            fixed={name: numbers[name] for name in dims if name not in self.symbols},
            peaks=peaks,
            weights=weights,
            inputs=peaks.sizes.total(ends.one.inputs, len(requested)),
        )
        self.check(found, requested, results)
        for point in self.further(found, far_numbers, computes=computes_dims(ends)):
            self.check(found, point, self.at(point))
        return found

    def further(
        self, found: ClosedForm, far: tuple[int, ...], *, computes: bool
    ) -> Iterator[tuple[int, ...]]:
        """The points at which pieces are checked besides the ends and the one asked for."""
        if found.last not in {far, found.requested}:
            yield found.last
        if computes:
            yield from _between(far)

    def check(self, found: ClosedForm, numbers: Sequence[int], results: StageResults) -> None:
        """Check the pieces against the walk of a point.

        :raises UnprovenError: they say otherwise.
        """
        verify_at(found.peaks, results.bound.graph, numbers)
        # What stands in no tensor's size shows in the total.
        if found.is_valid_at(numbers) and found.total_bytes(numbers) != results.total_bytes:
            message = "the total at some dims is not what the rows say"
            raise UnprovenError(message)

    @cached_property
    def requested(self) -> tuple[int, ...]:
        """The point that is asked for."""
        binding = self.results.bound.binding
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
        results = self.walk(batch, dims)
        if not results.bound.follows_batch:
            message = "the model does not follow the batch"
            raise UnprovenError(message)
        return results

    def primes(self, one: StageResults) -> tuple[int, ...]:
        """A prime for each symbol, none of them in the dims of the graph of ones."""
        known, primes = dims_of(one.bound.graph), []
        for symbol, number in zip(self.symbols, self.requested, strict=True):
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


def _strides(node: Node) -> bool:
    strides = node.attributes.get("strides")
    return isinstance(strides, tuple) and any(isinstance(n, int) and n > 1 for n in strides)


def _three(batches: Sequence[int], requested: int) -> tuple[int, ...]:
    """The batches at which a step is walked: both ends of the range, and one that proves the line.

    That is the one asked for, whose step is walked already, or the second where it is an end.
    """
    between = requested if requested in batches[1:-1] else batches[1]
    return tuple(dict.fromkeys((batches[0], between, batches[-1])))


def _may_be_affine(form: ClosedForm, step: "TrainingMemory") -> bool:
    """Whether the sizes of a step may be affine in the batch.

    They are the tensors of a run, their gradients and copies, and what formulas make of these: not
    affine where a tensor has the batch in more than one dim, or bytes choose the schedule.
    """
    if step.unknown or step.checkpoints:
        return False
    sizes = form.peaks.sizes.polynomials
    return all(sum(powers) <= 1 for size in sizes for powers, _ in size.terms)


def _affine_step(walked: Mapping[int, StageResults]) -> tuple[Program, Sizes] | None:
    """The program of the last of some batches and its sizes, from the first like it on.

    ``None``: there is none, sizes at a batch between are others, or a step leaves sizes out.
    """
    steps = [(batch, walked[batch].training) for batch in sorted(walked)]
    replays = [(batch, step.replay) for batch, step in steps if step and not step.unknown]
    if len(replays) < len(steps):
        return None
    *others, last = replays
    for index, first in enumerate(others):
        if affine_sizes([first, last]) is not None:
            sizes = affine_sizes([*others[index:], last])
            return None if sizes is None else (last[1].program, sizes)
    return None


def _figures(results: StageResults) -> _Figures:
    if not results.is_whole:
        return _Figures(None, None)
    return _Figures(results.total_bytes, results.training_peak_bytes)
