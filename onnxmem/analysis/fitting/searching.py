"""The largest number that fits.

Sums of buffers are polynomials of a dim, of degree 1 in the batch and at most 2 in a sequence (its
attention is a square); a peak is the largest of several, so it follows one polynomial where one
moment of the run stays the peak. The polynomial through three evaluated points says where the
limit is crossed, and the bytes there and at the next number, evaluated in full, prove it: peaks
of live bytes do not fall, and cross a limit once. Where they do not prove it, galloping from the
guess and bisection find the crossing.

What an allocator takes does fall here and there. Of it only the live bytes under it do not, which
ends the search above: below, every number is replayed, as many as there may be. Where there are
more, numbers far enough below the limit are told by those among them that are replayed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import groupby
from typing import Final

from onnxmem.analysis.fitting.verdicts import Accuracy, Demand, Verdict
from onnxmem.analysis.scaling import LARGEST_BATCH, BytesAt

DemandAt = Callable[[int], Demand | None]
"""What a run wants at a number; ``None`` where it is unknown."""
_POINTS: Final = (64, 96, 128)
"""Where the polynomial is taken first; then around what it says."""
_ROUNDS: Final = 2
_STRIDE: Final = 64
"""The first step away from a guess is this part of it."""


MOST_REPLAYS: Final = 1024
"""Numbers that one search replays, where that is cheap; of small models it may be more."""
FEW_REPLAYS: Final = 128
"""The same where each is a walk of the whole model."""
_NEAR: Final = 128
"""Numbers right below the first that fails, which are replayed in any case."""
_SAMPLES: Final = 48
"""Numbers, evenly apart, that tell how far an allocator is above the live bytes."""
_PARTS: Final = 8
"""A round near the limit replays at most this part of what a search may."""
_SPREAD: Final = Fraction(11, 10)
"""It is taken to be farther by a tenth elsewhere than where it was replayed."""


def _nothing(_: int) -> int:
    """Prepare nothing."""
    return FEW_REPLAYS


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """The largest number up to which all fit: ``number`` does and ``number + 1`` does not."""

    number: int | None
    """0 where not even 1 fits; ``None`` where even the largest tried does."""
    num_bytes: int | None
    """At ``number``; ``None`` where that is 0."""
    over_bytes: int | None
    """At ``number + 1``; ``None`` where there is no limit, or nothing is known of it there."""
    method: str
    """``closed form``, ``bisection``, ``every number``, ``one evaluation`` where not even 1 fits,
    or ``replays`` where not every number is replayed."""
    is_stopped: bool = False
    """Whether the model cannot be worked out beyond ``number``, rather than be too large."""
    comfortable: int | None = None
    """Up to here all fit and none is tight; ``None`` where there is no limit."""
    above: tuple[tuple[int, int], ...] = ()
    """Stretches of numbers beyond ``number + 1`` that fit again: first and last."""
    num_replayed: int = 0
    """Numbers that were replayed, where bytes may fall."""


@dataclass(slots=True)
class Search:
    """One search: a limit, and what runs want at the numbers that were tried."""

    limit_bytes: int
    accuracy: Accuracy
    demand_at: DemandAt
    prepare: Callable[[int], int] = field(default=_nothing)
    """Called with the largest number that may be tried, before many are: how many may be."""
    _tried: dict[int, tuple[Verdict, Demand | None]] = field(default_factory=dict)

    def verdict(self, number: int) -> Verdict:
        """The verdict at a number."""
        return self._at(number)[0]

    def needed_at(self, number: int) -> int | None:
        """Bytes at a number of which a device has to have all."""
        demand = self._at(number)[1]
        return None if demand is None else demand.needed_bytes(self.accuracy)

    def bytes_at(self, number: int) -> int | None:
        """Bytes at a number on a device that is large enough."""
        demand = self._at(number)[1]
        return None if demand is None else demand.size_bytes

    def least_at(self, number: int) -> int | None:
        """Bytes that no allocator gets by without; they do not fall."""
        demand = self._at(number)[1]
        return None if demand is None else demand.least_bytes

    def _at(self, number: int) -> tuple[Verdict, Demand | None]:
        if number not in self._tried:
            demand = self.demand_at(number)
            if demand is None:
                self._tried[number] = Verdict.UNKNOWN, None
            else:
                verdict = demand.verdict(self.limit_bytes, self.accuracy)
                # What replays it holds a whole walk of the model: only the figures are kept.
                self._tried[number] = verdict, demand.without_run()
        return self._tried[number]


def largest_fitting(search: Search, *, is_rising: bool) -> MaxBatch | None:
    """Find the largest number up to which all fit; ``None`` where bytes are unknown at 1.

    ``is_rising`` says that bytes do not fall: then the limit is crossed once.
    """
    if search.bytes_at(1) is None:
        return None
    if is_rising:
        max_batch = crossing(search.needed_at, search.limit_bytes)
        return None if max_batch is None else _with_comfort(search, _as_counted(search, max_batch))
    top = crossing(search.least_at, search.limit_bytes)
    if top is None:
        return None
    if top.number is None:
        return MaxBatch(None, search.bytes_at(LARGEST_BATCH), None, "bisection")
    return _replayed(search, top.number, is_stopped=top.is_stopped)


def crossing(bytes_at: BytesAt, limit_bytes: int, *, by_formula: bool = True) -> MaxBatch | None:
    """Where bytes that do not fall cross a limit; ``None`` where they are unknown at 1.

    ``by_formula`` off bisects alone.
    """
    at = cache(bytes_at)

    def fits(number: int) -> bool:
        num_bytes = at(number)
        return num_bytes is not None and num_bytes <= limit_bytes

    one = at(1)
    if one is None:
        return None
    if one > limit_bytes:
        return MaxBatch(0, None, one, "one evaluation")
    guesses = _guesses(at, limit_bytes) if by_formula else iter(())
    guess = None
    for guess in guesses:
        if fits(guess) and not fits(guess + 1):
            return _max_batch(at, guess, "closed form")
    ends = _around(fits, guess or 1)
    if ends is None:
        return MaxBatch(None, at(LARGEST_BATCH), None, "bisection")
    low = _narrowed(at, limit_bytes, *ends) if by_formula else _bisected(fits, *ends)
    return _max_batch(at, low, "bisection")


def _max_batch(at: BytesAt, number: int, method: str) -> MaxBatch:
    over = at(number + 1)
    return MaxBatch(number, at(number), over, method, is_stopped=over is None)


def _as_counted(search: Search, max_batch: MaxBatch) -> MaxBatch:
    """The bytes that figures count, where those needed are more."""
    if max_batch.number is None:
        return replace(max_batch, num_bytes=search.bytes_at(LARGEST_BATCH))
    return replace(
        max_batch,
        num_bytes=search.bytes_at(max_batch.number) if max_batch.number else None,
        over_bytes=None if max_batch.over_bytes is None else search.bytes_at(max_batch.number + 1),
    )


def _with_comfort(search: Search, max_batch: MaxBatch) -> MaxBatch:
    """Of bytes that do not fall: where *tight* begins, found by bisection."""
    number = max_batch.number
    if number is None:
        return max_batch
    comfortable = 0
    if number and search.verdict(1) is Verdict.FITS:
        comfortable = _bisected(lambda each: search.verdict(each) is Verdict.FITS, 1, number + 1)
    return replace(max_batch, comfortable=comfortable)


def _replayed(search: Search, top: int, *, is_stopped: bool) -> MaxBatch:
    """Replay numbers up to ``top``, above which none fits: all, or those near the limit."""
    most = search.prepare(top + 1)
    numbers = range(1, top + 1) if top <= most else _chosen(search, top, min(most, MOST_REPLAYS))
    met = {number: search.verdict(number) for number in numbers}
    failed = next((number for number in numbers if not met[number].is_met), top + 1)
    if top > most:
        failed = _first_failing(search, met, failed, max(most // _PARTS, 1))
    number = failed - 1
    tight = next((each for each in sorted(met) if met[each] is not Verdict.FITS), failed)
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


def _chosen(search: Search, top: int, most: int) -> Sequence[int]:
    """Numbers all over, and all those, or as many as may be, from where the limit is in reach."""
    spread = sorted({*(1 << power for power in range(top.bit_length())), *_apart(1, top, _SAMPLES)})
    worst = max(filter(None, (_above_least(search, number) for number in spread)), default=1)
    reachable = bisect_left(
        range(1, top + 1),
        True,  # noqa: FBT003 - what is looked for
        key=lambda number: (search.least_at(number) or 0) * worst * _SPREAD > search.limit_bytes,
    )
    return sorted({*spread, *_apart(reachable + 1, top, most - _SAMPLES)})


def _above_least(search: Search, number: int) -> Fraction | None:
    """How many times the live bytes an allocator takes."""
    num_bytes, least_bytes = search.bytes_at(number), search.least_at(number)
    return Fraction(num_bytes, least_bytes) if num_bytes and least_bytes else None


def _apart(first: int, last: int, count: int) -> list[int]:
    """Numbers evenly apart, both ends among them; all where they are no more than ``count``."""
    if last - first < count:
        return list(range(first, last + 1))
    return [first + (last - first) * index // (count - 1) for index in range(count)]


def _first_failing(search: Search, met: dict[int, Verdict], failed: int, most: int) -> int:
    """Replay what lies right below the first number found to fail, until none of it fails.

    ``most`` is how many there may be in one round, where each is a walk of the whole model.
    """
    while True:
        below = max((number for number in met if number < failed), default=0)
        near = range(max(1, failed - min(_NEAR, most)), failed)
        between = [*_apart(below + 1, failed - 1, max(min(_SAMPLES, most), 2)), *near]
        new = sorted({number for number in between if number not in met})
        if not new:
            return failed
        met |= {number: search.verdict(number) for number in new}
        failed = next((number for number in new if not met[number].is_met), failed)


def _stretches(met: dict[int, Verdict], failed: int) -> Iterator[tuple[int, int]]:
    """Numbers above the first that fails, as first and last of those with none failing between."""
    tried = sorted(number for number in met if number > failed)
    for is_met, run in groupby(tried, key=lambda each: met[each].is_met):
        row = list(run)
        if is_met:
            yield row[0], row[-1]


def _guesses(at: BytesAt, limit_bytes: int) -> Iterator[int]:
    """Where the polynomial through three points crosses the limit, each time nearer to it."""
    points = _POINTS
    for _ in range(_ROUNDS):
        # The largest first: between batches that were walked others may need no walk.
        known = {point: at(point) for point in reversed(points)}
        guess = _solved(known, limit_bytes)
        if guess is None:
            return
        yield guess
        points = (max(1, guess // 2), max(2, 3 * guess // 4), max(3, guess))


def _solved(known: dict[int, int | None], limit_bytes: int) -> int | None:
    """The largest number at which the polynomial through three points is within a limit.

    ``None`` where it is unknown at a point, or never leaves the limit.
    """
    (x0, y0), (x1, y1), (x2, y2) = sorted(known.items())
    if y0 is None or y1 is None or y2 is None:
        return None
    first, second = Fraction(y1 - y0, x1 - x0), Fraction(y2 - y1, x2 - x1)
    bend = (second - first) / (x2 - x0)
    if bend < 0:  # no sum of buffers bends down, but what rules pick by size may
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
    """Gallop away from a guess until the limit lies between two numbers; ``None`` if all fit."""
    low, high, stride = guess, guess, max(1, guess // _STRIDE)
    while not fits(low):
        high, low, stride = low, max(1, low - stride), 2 * stride
    while high == low or fits(high):
        if high >= LARGEST_BATCH:
            return None
        low, high, stride = high, min(high + stride, LARGEST_BATCH), 2 * stride
    return low, high


def _narrowed(at: BytesAt, limit_bytes: int, low: int, high: int) -> int:
    """Move the ends together until they are neighbours: by the line between them and by halves."""
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
    """Where the line through two numbers meets the limit; the middle if one is unknown."""
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
