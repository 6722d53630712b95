"""The largest number that fits.

Two cases:

1. Live bytes never fall as the number grows, so they cross a limit once. Sums of buffers are
   polynomials, of degree 1 in the batch and at most 2 in a sequence length (attention scores are
   [B, H, S, S]), and a peak follows one of them as long as the same node stays the peak. So the
   polynomial through three evaluated points predicts the crossing. The bytes at the predicted
   number and at the next one prove it; if they don't, galloping and bisection find the crossing.
2. What an allocator reserves may fall: PyTorch reserves less for ResNet-50 at batch 261 than at 260
   (docs/decisions/0017-one-verdict.md). Only the live bytes never fall, so they bound the search
   from above. Up to that bound every number is replayed, if there are few enough. If there are
   more, samples show how far the allocator is above the live bytes, and only numbers within its
   reach of the limit are candidates: some of them are replayed, and then those around the first
   that is tight, the first that fails, and every change of the verdict after it. If each replay may
   cost a second, as of a session with branches, bytes are taken never to fall: bisection.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import groupby, pairwise
from typing import Final

from onnxmem.analysis.fitting.verdicts import Accuracy, Comparison, Demand, Verdict, compared_bytes
from onnxmem.analysis.scaling import LARGEST_BATCH, BytesAt

DemandAt = Callable[[int], Demand | None]
"""What a run needs at a number; ``None`` if unknown."""
_POINTS: Final = (64, 96, 128)
"""The first three points of the polynomial; later ones are around its prediction."""
_ROUNDS: Final = 2
"""Predictions before bisection takes over."""
_STRIDE: Final = 64
"""The first step away from a guess is this fraction of it."""
_FEW_WALKS: Final = 16
"""Every number is tried up to this one, even if each costs a walk of the model."""
FEW_REPLAYS: Final = 128
"""Numbers up to which one search replays all; more for small models (``ReplayDemands``)."""
_SAMPLES: Final = 32
"""Evenly spaced numbers that show how far an allocator is above the live bytes."""
_REACHABLE: Final = 128
"""Evenly spaced numbers of those at which the allocator may reach the limit."""
_NEAR_FAILURE: Final = 64
"""Numbers right below the first that fails; these are always replayed."""
_NEAR_TIGHT: Final = 32
"""Numbers right below the first that is tight; these are always replayed."""
_BETWEEN: Final = 4
"""Evenly spaced numbers between the first bad number and the replayed one below it."""
_SUCCEEDS: Final = frozenset(verdict for verdict in Verdict if verdict.is_met)
_COMFORTABLE: Final = frozenset({Verdict.FITS})
_SPREAD: Final = Fraction(11, 10)
"""Between the samples an allocator is assumed to be at most a tenth farther above live bytes."""


def _nothing(_: int) -> int:
    """The default of ``Search.prepare``: nothing makes replays cheap."""
    return FEW_REPLAYS


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """The largest number up to which all fit: ``number`` does and ``number + 1`` does not."""

    number: int | None
    """0: not even 1 fits; ``None``: even ``LARGEST_BATCH`` fits."""
    num_bytes: int | None
    """Taken of the device at ``number``; ``None`` if that is 0."""
    over_bytes: int | None
    """At ``number + 1``; ``None`` if every number fits, or if it is unknown there."""
    method: str
    """``closed form``, ``bisection``, ``every number``, ``one evaluation`` if not even 1 fits, or
    ``replays`` if not every number is replayed."""
    is_stopped: bool = False
    """Whether the figures are unknown beyond ``number``, rather than too large."""
    comfortable: int | None = None
    """Up to here all fit and none is tight; ``None`` if every number fits."""
    above: tuple[tuple[int, int], ...] = ()
    """Ranges beyond ``number + 1`` that fit again: first and last number of each."""
    num_replayed: int = 0
    """How many numbers were replayed, if bytes may fall."""

    @property
    def batch(self) -> int | None:
        """The number, where it is a batch."""
        return self.number

    @property
    def peak_bytes(self) -> int | None:
        """Taken of the device at that batch."""
        return self.num_bytes


@dataclass(slots=True)
class Search:
    """One search: a limit, and what runs need at the numbers that were tried."""

    limit_bytes: int
    accuracy: Accuracy
    demand_at: DemandAt
    prepare: Callable[[int], int] = field(default=_nothing)
    """Called with the largest number that may be tried; returns up to which all are replayed."""
    _tried: dict[int, tuple[Comparison, Demand | None]] = field(default_factory=dict)

    def compared(self, number: int) -> Comparison:
        """The comparison at a number."""
        return self._at(number)[0]

    def verdict(self, number: int) -> Verdict:
        """The verdict at a number."""
        return self.compared(number).verdict

    def needed_at(self, number: int) -> int | None:
        """Bytes that a device must have at a number, with no retries of an allocator."""
        demand = self._at(number)[1]
        return None if demand is None else demand.needed_bytes(self.accuracy)

    def bytes_at(self, number: int) -> int | None:
        """Bytes that a run takes of this device; where it fails, those that it asks for."""
        return self.compared(number).num_bytes

    def least_at(self, number: int) -> int | None:
        """Bytes that every allocator needs at least; they never fall as the number grows."""
        demand = self._at(number)[1]
        return None if demand is None else demand.least_bytes

    def high_at(self, number: int) -> int | None:
        """Bytes at a number if assumed terms and the figure's error are at their high ends."""
        demand = self._at(number)[1]
        if demand is None:
            return None
        return self.accuracy.high_bytes(demand.size_bytes + demand.more_bytes)

    def numbers(self) -> tuple[int, ...]:
        """The numbers that were tried."""
        return tuple(self._tried)

    def _at(self, number: int) -> tuple[Comparison, Demand | None]:
        if number not in self._tried:
            demand = self.demand_at(number)
            if demand is None:
                self._tried[number] = compared_bytes(None, self.limit_bytes), None
            else:
                compared = demand.compared(self.limit_bytes, self.accuracy)
                # `taken_in` refers to a whole walk of the model: without it the cache keeps figures
                # only.
                self._tried[number] = compared, demand.without_run()
        return self._tried[number]


def largest_fitting(search: Search, *, is_rising: bool) -> MaxBatch | None:
    """Find the largest number up to which all fit; ``None`` if bytes are unknown at 1.

    ``is_rising``: bytes never fall as the number grows, so they cross the limit once.
    """
    if search.bytes_at(1) is None:
        return None
    if is_rising:
        max_batch = crossing(search.needed_at, search.limit_bytes)
        return None if max_batch is None else _with_comfort(search, _as_counted(search, max_batch))
    # Above `top` the live bytes alone exceed the limit, whatever the allocator does.
    top = crossing(search.least_at, search.limit_bytes)
    if top is None:
        return None
    if top.number is None:
        return MaxBatch(None, search.bytes_at(LARGEST_BATCH), None, "bisection")
    num_replayed = search.prepare(top.number + 1)
    if not num_replayed and top.number > _FEW_WALKS:
        return _walked(search, top.number)
    return _replayed(search, top.number, num_replayed, is_stopped=top.is_stopped)


def crossing(bytes_at: BytesAt, limit_bytes: int) -> MaxBatch | None:
    """Where bytes that never fall cross a limit; ``None`` if they are unknown at 1."""
    at = cache(bytes_at)

    def fits(number: int) -> bool:
        num_bytes = at(number)
        return num_bytes is not None and num_bytes <= limit_bytes

    one = at(1)
    if one is None:
        return None
    if one > limit_bytes:
        return MaxBatch(0, None, one, "one evaluation")
    guess = 1
    for guess in _guesses(at, limit_bytes):
        # Bytes never fall, so two neighbors on either side of the limit are the crossing.
        if fits(guess) and not fits(guess + 1):
            return _max_batch(at, guess, "closed form")
    ends = _around(fits, guess)
    if ends is None:
        return MaxBatch(None, at(LARGEST_BATCH), None, "bisection")
    return _max_batch(at, _narrowed(at, limit_bytes, *ends), "bisection")


def _max_batch(at: BytesAt, number: int, method: str) -> MaxBatch:
    over = at(number + 1)
    return MaxBatch(number, at(number), over, method, is_stopped=over is None)


def _as_counted(search: Search, max_batch: MaxBatch) -> MaxBatch:
    """Report the predicted bytes in place of those needed, which include an open range."""
    if max_batch.number is None:
        return replace(max_batch, num_bytes=search.bytes_at(LARGEST_BATCH))
    return replace(
        max_batch,
        num_bytes=search.bytes_at(max_batch.number) if max_batch.number else None,
        over_bytes=None if max_batch.over_bytes is None else search.bytes_at(max_batch.number + 1),
    )


def _with_comfort(search: Search, max_batch: MaxBatch) -> MaxBatch:
    """Find by bisection where *tight* begins: bytes never fall, so no verdict improves after it."""
    number = max_batch.number
    if number is None:
        return max_batch
    comfortable = 0
    if number and search.verdict(number) is Verdict.FITS:
        # Nothing below it is tight. So it is of figures that have no error.
        comfortable = number
    elif number and search.verdict(1) is Verdict.FITS:
        comfortable = _bisected(lambda each: search.verdict(each) is Verdict.FITS, 1, number + 1)
    return replace(max_batch, comfortable=comfortable)


def _walked(search: Search, top: int) -> MaxBatch:
    """Where bytes cross the limit below ``top``, if each number costs a walk of the model.

    They are taken never to fall, and few numbers are tried.
    """
    number = _crossed(search, search.bytes_at, top)
    over_bytes = search.bytes_at(number + 1)
    return MaxBatch(
        number,
        search.bytes_at(number) if number else None,
        over_bytes,
        "bisection",
        is_stopped=over_bytes is None,
        comfortable=_crossed(search, search.high_at, number),
        num_replayed=len(search.numbers()),
    )


def _crossed(search: Search, bytes_at: BytesAt, top: int) -> int:
    """The last number within the limit, above which all but those up to ``top`` are beyond it."""
    limit_bytes = search.limit_bytes

    def fits(number: int) -> bool:
        num_bytes = bytes_at(number)
        return num_bytes is not None and num_bytes <= limit_bytes

    if not top or fits(top):
        return top
    if not fits(1):
        return 0
    tried = [number for number in search.numbers() if number <= top]
    high = min(number for number in tried if not fits(number))
    return _narrowed(bytes_at, limit_bytes, max(n for n in tried if n < high), high)


def _replayed(search: Search, top: int, most: int, *, is_stopped: bool) -> MaxBatch:
    """Replay the numbers up to ``top``, above which none fits: all of up to ``most``, or samples
    and the changes.
    """
    if top <= max(most, _FEW_WALKS):
        met = {number: search.verdict(number) for number in range(1, top + 1)}
    else:
        met = _sampled(search, top)
    # `failed` is the smallest number known to fail. It is the answer once every number below it
    # that could fail was replayed.
    failed = _first_without(met, _SUCCEEDS) or top + 1
    number = failed - 1
    tight = _first_without(met, _COMFORTABLE) or failed
    over_bytes = search.bytes_at(failed)
    return MaxBatch(
        number,
        search.bytes_at(number) if number else None,
        over_bytes,
        "every number" if len(met) >= top else "replays",
        is_stopped=over_bytes is None or (is_stopped and failed > top),
        comfortable=min(tight - 1, number),
        above=tuple(_stretches(met, failed)),
        num_replayed=len(met),
    )


def _sampled(search: Search, top: int) -> dict[int, Verdict]:
    """The verdicts at samples up to ``top``, and around the numbers where they change."""
    met = {number: search.verdict(number) for number in _chosen(search, top)}
    # What stays true: the first bad number of `met` is bad, and every smaller one in `met` is good.
    # Each round tries numbers that are not in `met` yet, so it ends.
    for good, near in ((_SUCCEEDS, _NEAR_FAILURE), (_COMFORTABLE, _NEAR_TIGHT)):
        while new := _in_doubt(met, _first_without(met, good) or top + 1, near):
            met |= {number: search.verdict(number) for number in new}
    failed = _first_without(met, _SUCCEEDS)
    if failed is None:
        return met
    met |= {number: search.verdict(number) for number in _apart(failed, top, _SAMPLES)}
    while new := _between_changes(met, failed):
        met |= {number: search.verdict(number) for number in new}
    return met


def _first_without(met: Mapping[int, Verdict], good: AbstractSet[Verdict]) -> int | None:
    """The smallest number whose verdict is none of ``good``; ``None``: all are good."""
    return min((number for number in met if met[number] not in good), default=None)


def _in_doubt(met: Mapping[int, Verdict], bad: int, near: int) -> AbstractSet[int]:
    """Numbers below the first bad one that may be bad too, and were not tried.

    These are the ``near`` numbers right below it, and some ever farther away.
    """
    below = max((number for number in met if number < bad), default=0)
    far = (bad - (1 << power) for power in range(bad.bit_length()))
    between = _apart(below + 1, bad - 1, _BETWEEN)
    return {n for n in (*range(bad - near, bad), *far, *between) if n > 0} - met.keys()


def _between_changes(met: Mapping[int, Verdict], failed: int) -> AbstractSet[int]:
    """The middle of every gap above the first failure at whose ends success differs."""
    tried = sorted(number for number in met if number >= failed)
    return {
        (low + high) // 2
        for low, high in pairwise(tried)
        if high - low > 1 and met[low].is_met != met[high].is_met
    }


def _chosen(search: Search, top: int) -> Sequence[int]:
    """Samples of the whole range, and the numbers at which the allocator may reach the limit."""
    spread = sorted({*(1 << power for power in range(top.bit_length())), *_apart(1, top, _SAMPLES)})
    # Numbers at which `worst` times the live bytes are below the limit fit without a replay. The
    # live bytes never fall, so the first number for which that is not so is found by bisection.
    worst = max(filter(None, (_above_least(search, number) for number in spread)), default=1)
    reachable = bisect_left(
        range(1, top + 1),
        True,  # noqa: FBT003 - what is looked for
        key=lambda number: (search.least_at(number) or 0) * worst * _SPREAD > search.limit_bytes,
    )
    return sorted({*spread, *_apart(reachable + 1, top, _REACHABLE)})


def _above_least(search: Search, number: int) -> Fraction | None:
    """Reserved bytes as a multiple of the live bytes; ``None`` if unknown."""
    num_bytes, least_bytes = search.compared(number).unlimited_bytes, search.least_at(number)
    return Fraction(num_bytes, least_bytes) if num_bytes and least_bytes else None


def _apart(first: int, last: int, count: int) -> list[int]:
    """``count`` evenly spaced numbers, both ends among them; all if there are no more."""
    if last - first < count:
        return list(range(first, last + 1))
    return [first + (last - first) * index // (count - 1) for index in range(count)]


def _stretches(met: dict[int, Verdict], failed: int) -> Iterator[tuple[int, int]]:
    """The ranges above the first failure that fit: first and last replayed number of each."""
    tried = sorted(number for number in met if number > failed)
    for is_met, run in groupby(tried, key=lambda each: met[each].is_met):
        row = list(run)
        if is_met:
            yield row[0], row[-1]


def _guesses(at: BytesAt, limit_bytes: int) -> Iterator[int]:
    """Predict the crossing from three points, each time from points nearer to it."""
    points = _POINTS
    for _ in range(_ROUNDS):
        # The largest first: it widens the range of affine sizes, within which the others are read
        # off without a walk (`ReplayDemands`).
        known = {point: at(point) for point in reversed(points)}
        guess = _solved(known, limit_bytes)
        if guess is None:
            return
        yield guess
        points = (max(1, guess // 2), max(2, 3 * guess // 4), max(3, guess))


def _solved(known: dict[int, int | None], limit_bytes: int) -> int | None:
    """The largest number at which the polynomial through three points is within a limit.

    ``None`` if the bytes at a point are unknown, or if the polynomial never exceeds the limit.
    """
    (x0, y0), (x1, y1), (x2, y2) = sorted(known.items())
    if y0 is None or y1 is None or y2 is None:
        return None
    # Newton's divided differences, exact: y0 + first (x - x0) + bend (x - x0) (x - x1).
    first, second = Fraction(y1 - y0, x1 - x0), Fraction(y2 - y1, x2 - x1)
    bend = (second - first) / (x2 - x0)
    if bend < 0:
        # A peak is a maximum of sums of buffers, hence convex. A rule that picks an algorithm by
        # size may still bend down; the line through the outer points is the better guess there.
        first, bend = Fraction(y2 - y0, x2 - x0), Fraction(0)

    def within(x: int) -> bool:
        return y0 + first * (x - x0) + bend * (x - x0) * (x - x1) <= limit_bytes

    if not within(1):
        return None
    high = 2
    while within(high):
        high *= 2
        if high > LARGEST_BATCH:
            return None
    return _bisected(within, high // 2, high)


def _around(fits: Callable[[int], bool], guess: int) -> tuple[int, int] | None:
    """Gallop from a guess until the limit is between two numbers; ``None`` if all fit."""
    # 1 is known to fit, so the first loop ends; then `low` fits, and the second moves `high` up.
    low, high, stride = guess, guess, max(1, guess // _STRIDE)
    while not fits(low):
        high, low, stride = low, max(1, low - stride), 2 * stride
    while high == low or fits(high):
        if high >= LARGEST_BATCH:
            return None
        low, high, stride = high, min(high + stride, LARGEST_BATCH), 2 * stride
    return low, high


def _narrowed(at: BytesAt, limit_bytes: int, low: int, high: int) -> int:
    """Move the ends together until they are neighbors, by their secant and by halves in turn."""
    # `low` fits and `high` does not. Secants are fast on smooth bytes; every second step halves the
    # range, which bounds the number of evaluations whatever the bytes do.
    by_line = True
    while high - low > 1:
        guess = _on_line(at, limit_bytes, low, high) if by_line else (low + high) // 2
        by_line = not by_line
        num_bytes = at(guess)
        if num_bytes is not None and num_bytes <= limit_bytes:
            low = guess
        else:
            high = guess
    return low


def _on_line(at: BytesAt, limit_bytes: int, low: int, high: int) -> int:
    """Where the line through two numbers meets the limit; the middle if a value is unknown."""
    low_bytes, high_bytes = at(low), at(high)
    if low_bytes is None or high_bytes is None or high_bytes <= low_bytes:
        return (low + high) // 2
    crossing = low + (limit_bytes - low_bytes) * (high - low) // (high_bytes - low_bytes)
    return min(max(crossing, low + 1), high - 1)


def _bisected(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Halve between a number that fits and one that does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
