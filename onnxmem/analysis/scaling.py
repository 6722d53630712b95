"""How figures grow with the batch and other dims: as a line, and as polynomials (closed form).

``find_closed_form`` finds what inference needs as polynomials in free dims, from a few walks of the
stages. ``BatchScaling`` finds which figures of a request are linear in the batch: it reads the line
off the closed form, or proves it at three batches.
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
"""The search ends here: what fits at this batch is reported to fit at every batch."""
LINEAR_UP_TO: Final = 128
"""Linearity in the batch is checked from batch 1 to this one at least."""
BATCH: Final = "batch"
Walk = Callable[[int | None, Mapping[str, int]], StageResults]
"""Walks the stages of inference at a batch and at dims."""
_LONGEST_BEND: Final = 10_000
"""If a piece is not linear in the batch, at most this many batches are compared with the line."""
_LAST_DIM: Final = 512
"""The pieces are valid from 1 to about this number at least, for each dim but the batch: encoders
have as many positions."""
_MOST_SYMBOLS: Final = 3
"""``_TRIED`` has a point to check for each."""
_FIRST_SPATIAL_AXIS: Final = 2
"""The height of an image or the time of audio: ``[N, C, H, W]``, ``[N, C, T]``."""
_TRIED: Final = (2, 100, 50)
"""Pieces with computed dims are checked near these numbers, above 1 and inside the range."""


@dataclass(frozen=True)
class ClosedForm:
    """What inference needs as polynomials in a model's free dims: the largest piece is the peak.

    It gives the bytes at every point where ``is_valid_at`` is true, without another walk of the
    stages; ``find_closed_form`` says how far they are proven. A point is one number per symbol, in
    the order of ``symbols``.
    """

    symbols: tuple[str, ...]
    """A free batch comes first and is called ``batch`` whatever its name in the file."""
    requested: tuple[int, ...]
    """The point of the request."""
    last: tuple[int, ...]
    """The pieces are valid from 1 to this number of each symbol."""
    fixed: Mapping[str, int]
    """The other dims, at their requested values."""
    peaks: SymbolicPeaks
    weights: Polynomial
    inputs: Polynomial

    def is_valid_at(self, numbers: Sequence[int]) -> bool:
        """Whether the pieces are valid at a point."""
        is_within = all(1 <= n <= last for n, last in zip(numbers, self.last, strict=True))
        return is_within and not self.peaks.excludes(numbers)

    def total_bytes(self, numbers: Sequence[int]) -> int:
        """Weights, inputs and in-place peak."""
        others = self.weights.at(numbers) + self.inputs.at(numbers)
        return others + largest(self.peaks.in_place_peak_pieces, numbers)

    @property
    def has_batch(self) -> bool:
        """Whether the batch is a symbol; it is the first then."""
        return self.symbols[:1] == (BATCH,)

    def at_batch(self, batch: int) -> tuple[int, ...]:
        """The point of a batch, the other dims as requested."""
        return (batch, *self.requested[1:])

    def is_valid_up_to(self, last: int) -> bool:
        """Whether the pieces are valid from batch 1 to the last, the other dims as requested."""
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
        """Start and slope of the total from batch 1 to the last; ``None`` if it is not a line."""
        others = (self.weights + self.inputs).along(0, self.requested)
        pieces = self.peaks.in_place_peak_pieces or (Polynomial(()),)
        lines = {piece.along(0, self.requested) + others for piece in pieces}
        bends = any(power > 1 for line in lines for (power,), _ in line.terms)
        first_bytes, last_bytes = (largest(lines, (n,)) for n in (1, last))
        slope, rest = divmod(last_bytes - first_bytes, last - 1)
        if rest or (bends and last > _LONGEST_BEND):
            return None
        start = first_bytes - slope
        # The largest of linear pieces is convex: if it meets the line through its ends at one batch
        # between them, it is that line everywhere. A piece of higher degree allows no such
        # conclusion, so then every batch is compared.
        between = range(2, last) if bends else ((1 + last) // 2,)
        return (start, slope) if _lies_on(lines, (start, slope), between) else None

    def to_dict(self) -> dict[str, object]:
        """The keys of ``activations`` in JSON."""
        return {"peak_rows": self._pieces(), "no_peak_rows": None}

    def _pieces(self) -> dict[str, object]:
        peaks, num_symbols = self.peaks, len(self.symbols)
        names = [printable(symbol) for symbol in self.symbols]
        return {
            "domain": {name: [1, last] for name, last in zip(names, self.last, strict=True)},
            "except": [
                {names[index]: n for index, n in each.items()} for each in peaks.excluded_points
            ],
            "fixed": {printable(name): number for name, number in self.fixed.items()},
            "naive": self._monomials(peaks.naive(num_symbols)),
            "naive_in_place": self._monomials(peaks.naive_in_place(num_symbols)),
            "peak": [self._monomials(row) for row in peaks.peak_pieces],
            "in_place_peak": [self._monomials(row) for row in peaks.in_place_peak_pieces],
        }

    def _monomials(self, row: Polynomial) -> dict[str, object]:
        """``{"monomials": {"batch*sequence^2": 4, "1": 32}}``."""
        return {"monomials": {self.monomial(powers, "*") or "1": n for powers, n in row.terms}}

    def monomial(self, powers: Sequence[int], times: str) -> str:
        """A product of symbols as text; empty for a constant."""
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
        """The keys of ``activations`` in JSON."""
        return {"peak_rows": None, "no_peak_rows": printable(self.reason)}


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of a batch that was tried; ``None`` if unknown or only a lower bound."""

    total_bytes: int | None
    training_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Growth:
    """How the figures of a request grow with the batch."""

    form: ClosedForm | NoClosedForm
    """Of inference."""
    step: tuple[Program, Sizes] | None = None
    """The program of a training step and its affine sizes; ``None``: not proven to be affine."""


class BatchScaling:
    """Evaluates a request at each batch once and caches the figures, not the graphs."""

    def __init__(
        self,
        results: StageResults,
        at: Callable[[int], StageResults],
        symbolic: ClosedForm | NoClosedForm,
    ) -> None:
        self._results = results
        # No runtime accepts a model with conflicting types, so its growth means nothing.
        self._batch = None if results.type_conflicts else results.bound.binding.batch
        self._at = at
        self._growth = _Growth(symbolic) if results.training is None else None
        self._tried: dict[int, _Figures] = {}
        if self._batch is not None:
            self._tried[self._batch] = _figures(results)

    def affine_total_bytes(self) -> Affine | None:
        """Weights, inputs and in-place peak as a line in the batch; ``None`` if they are not."""
        if self._batch is None:
            return None
        last, form = max(self._batch, LINEAR_UP_TO), self._grown().form
        if isinstance(form, NoClosedForm) or not form.is_valid_up_to(last):
            return affine_in_batch(self._total_bytes, last)
        line = form.line_in_batch(last)
        return None if line is None else Affine(*line, 1, last)

    def affine_training_peak(self) -> Affine | None:
        """The training peak as a line in the batch; ``None`` if it is not one."""
        if self._batch is None or self._results.training is None:
            return None
        return affine_in_batch(self._affine_training_peak_bytes, max(self._batch, LINEAR_UP_TO))

    def _grown(self) -> _Growth:
        """The closed form and affine sizes; for training they are computed on first use."""
        if self._growth is None:
            self._growth = self._grown_in_training()
        return self._growth

    def _grown_in_training(self) -> _Growth:
        """Find the form of inference, and the affine sizes of the step from the same walks."""
        walked: dict[int, StageResults] = {}

        def walk(batch: int | None, _: object) -> StageResults:
            return walked.setdefault(batch or 1, self._at(batch or 1))

        form = find_closed_form(self._results, walk)
        step = self._results.training
        if isinstance(form, NoClosedForm) or step is None or not _may_be_affine(form, step):
            # Without affine sizes the line starts at batch 1, which the form has walked already.
            self._tried.update({1: _figures(walked[1])} if 1 in walked else {})
            return _Growth(form)
        walked[form.requested[0]] = self._results
        tried = {batch: walked[batch] for batch in _three(sorted(walked), form.requested[0])}
        self._note(form, tried)
        return _Growth(form, _affine_step(tried))

    def _note(self, form: ClosedForm, walked: dict[int, StageResults]) -> None:
        """Cache the figures of batches that were walked, where the form is valid."""
        for batch, results in walked.items():
            step = results.training
            is_whole = results.bound.follows_batch and step is not None and not step.unknown
            if is_whole and step is not None and form.is_valid_at((batch,)):
                figures = _Figures(form.total_bytes((batch,)), step.peak_bytes)
                self._tried.setdefault(batch, figures)

    def _affine_training_peak_bytes(self, batch: int) -> int | None:
        """The training peak, by a replay with affine sizes where they are valid."""
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
    """Find a closed form in the batch and dims, or in the batch alone if only that is proven.

    ``dims`` maps each free dim to whether it becomes a symbol; the others keep the requested value.

    The pieces are read off two walks, one where all symbols are 1 and one where each is a prime,
    and must agree with the walk of the request. If no dim is computed (``computes_dims``), that is
    a proof. Otherwise two more walks, or three for three symbols, must agree (``_between``): the
    pieces are then verified at those points only, and assumed to be valid between them.
    """
    refused = _refused(results)
    if refused:
        return NoClosedForm(refused)
    batch = results.bound.binding.batch
    reason = "no dim is free"
    dims = dims or {}
    tried = tuple(name for name, is_tried in dims.items() if is_tried)
    # All free dims first, then none of them: `fromkeys` drops the second try if there is no dim.
    for each in dict.fromkeys((tried, ())):
        symbols = (*((BATCH,) if batch is not None else ()), *each)
        if 0 < len(symbols) <= _MOST_SYMBOLS:
            try:
                return _PiecewiseFit(results, walk, symbols, last_batch).found(dims)
            except UnprovenError as fault:
                reason = str(fault)
            except ShapeError:
                # A dim beyond int64, or one that contradicts another dim of the model.
                reason = "the model cannot be analyzed at other dims"
    return NoClosedForm(reason)


def free_dims(prepared: Prepared, binding: Binding, graph: Graph) -> dict[str, bool]:
    """The independent symbols besides the batch, and whether each may become a symbol of a form.

    A strided convolution divides height and width and rounds, which is not a polynomial.
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
    image_dims = {
        dim for value in inputs for dim in (input_dims(value) or ())[_FIRST_SPATIAL_AXIS:]
    }
    if image_dims.isdisjoint(free) or not any(map(_strides, graph.nodes)):
        image_dims = set()
    return {symbol: symbol not in image_dims for symbol in free}


def affine_in_batch(bytes_at: BytesAt, largest: int) -> Affine | None:
    """The line that live bytes follow from batch 1 to ``largest``; ``None`` if there is none.

    Each buffer's bytes are affine in the batch and a peak is the maximum of several sums of
    buffers, hence convex. So three points are a proof: a convex function that meets a line at both
    ends of a range and once between them is that line on the whole range.
    """
    if largest <= 1:
        return None
    ends = bytes_at(1), bytes_at(largest)
    if ends[0] is None or ends[1] is None:
        return None
    line = Affine.through([(1, ends[0]), (largest, ends[1])])
    middle = (1 + largest) // 2
    return line if line is not None and bytes_at(middle) == line.at(middle) else None


def _lies_on(pieces: Iterable[Polynomial], line: tuple[int, int], batches: Iterable[int]) -> bool:
    """Whether the largest piece is on a line at each of these batches."""
    start, slope = line
    return all(largest(pieces, (batch,)) == start + slope * batch for batch in batches)


def _refused(results: StageResults) -> str:
    """Why there cannot be a closed form, found before any other walk; empty if there may be one."""
    if results.order != "file":
        return "with --order, the order of the nodes may change with the dims"
    if not results.bound.follows_batch:
        return "the batch size is fixed in this model"
    if results.type_conflicts:
        return "some tensors have contradictory types"
    if any(node.subgraphs for node in results.bound.graph.nodes):
        return "the memory of subgraphs depends on the run"
    return "the sizes of some tensors are unknown" if results.activations.unknown_tensors else ""


@dataclass(frozen=True)
class _PiecewiseFit:
    """Fits a closed form by a few walks of the stages and checks it."""

    results: StageResults
    """At the requested point."""
    walk: Walk
    symbols: tuple[str, ...]
    last_batch: int

    def found(self, dims: Iterable[str]) -> ClosedForm:
        """Walk both ends, and more points if these do not prove the pieces.

        :raises UnprovenError: the pieces cannot be verified.
        :raises ShapeError: the model does not accept such dims.
        """
        results, requested = self.results, self.requested
        ones = (1,) * len(requested)
        one = results if requested == ones else self.at(ones)
        # The prime factors of a dim of the far graph tell which symbols it is a product of: the
        # primes differ, and none of them divides a dim of the graph of ones (``Growth``).
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
        """The points at which pieces are checked besides the ends and the request."""
        if found.last not in {far, found.requested}:
            yield found.last
        if computes:
            yield from _between(far)

    def check(self, found: ClosedForm, numbers: Sequence[int], results: StageResults) -> None:
        """Compare the pieces with a walk at a point.

        :raises UnprovenError: they differ.
        """
        verify_at(found.peaks, results.bound.graph, numbers)
        # Sizes can agree while the total differs: weights that grow, or buffers shared otherwise.
        if found.is_valid_at(numbers) and found.total_bytes(numbers) != results.total_bytes:
            message = "the total at some dims differs from the polynomials"
            raise UnprovenError(message)

    @cached_property
    def requested(self) -> tuple[int, ...]:
        """The point of the request."""
        binding = self.results.bound.binding
        return tuple(
            (binding.batch or 1) if symbol == BATCH else binding.dims[symbol]
            for symbol in self.symbols
        )

    def at(self, numbers: Sequence[int]) -> StageResults:
        """Walk the stages at a point.

        :raises UnprovenError: the batch of the graph is not the batch of the point.
        """
        dims = dict(zip(self.symbols, numbers, strict=True))
        batch = dims.pop(BATCH, None)
        results = self.walk(batch, dims)
        if not results.bound.follows_batch:
            message = "the batch size is fixed in this model"
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
    """Points that expose sizes which are not polynomials: one per symbol, and two at least."""
    # Functions that look like polynomials at both ends must differ from them here. Both ends are
    # odd, so a halved and rounded sum of symbols shows when its parity changes: all numbers are
    # even in the first point, all but one in the second, and so on. A maximum of two symbols shows
    # when their order changes: the symbol that is largest at the far end is the smallest here.
    order = sorted(range(len(far)), key=far.__getitem__, reverse=True)
    for number, least in enumerate(_TRIED[: max(len(far), 2)]):
        odd = order[: min(number, len(far) - 1)]
        yield tuple(least + 2 * order.index(at) + 2 + (at in odd) for at in range(len(far)))


def _strides(node: Node) -> bool:
    """Whether a node has a stride above 1."""
    strides = node.attributes.get("strides")
    return isinstance(strides, tuple) and any(isinstance(n, int) and n > 1 for n in strides)


def _three(batches: Sequence[int], requested: int) -> tuple[int, ...]:
    """The batches at which a step is compared: both ends of the range, and one between them.

    The one between is the requested batch, whose step is computed already, unless that is an end.
    """
    between = requested if requested in batches[1:-1] else batches[1]
    return tuple(dict.fromkeys((batches[0], between, batches[-1])))


def _may_be_affine(form: ClosedForm, step: "TrainingMemory") -> bool:
    """Whether the sizes of a training step may be affine in the batch."""
    # Checkpoint schedules are chosen by bytes, so they may change with the batch.
    if step.unknown or step.checkpoints:
        return False
    # A step allocates the tensors of inference, their gradients and copies. A tensor with the batch
    # in two dims, as B B^T has, grows with its square, and so do they.
    sizes = form.peaks.sizes.polynomials
    return all(sum(powers) <= 1 for size in sizes for powers, _ in size.terms)


def _affine_step(walked: Mapping[int, StageResults]) -> tuple[Program, Sizes] | None:
    """The program of the last batch and its affine sizes, from the first batch that shares it.

    ``None``: no other batch shares it, sizes between are not affine, or some size is unknown.
    """
    steps = [(batch, walked[batch].training) for batch in sorted(walked)]
    replays = [(batch, step.replay) for batch, step in steps if step and not step.unknown]
    if len(replays) < len(steps):
        return None
    *others, last = replays
    # The program of batch 1 may differ from that of all others: some copies are left out there.
    for index, first in enumerate(others):
        if affine_sizes([first, last]) is not None:
            sizes = affine_sizes([*others[index:], last])
            return None if sizes is None else (last[1].program, sizes)
    return None


def _figures(results: StageResults) -> _Figures:
    if not results.is_whole:
        return _Figures(None, None)
    return _Figures(results.total_bytes, results.training_peak_bytes)
