"""The largest number that fits, where bytes grow with it: by a polynomial, or by bisection.

Sums of buffers are polynomials of a dim, of degree 1 in the batch and at most 2 in a sequence (its
attention is a square); a peak is the largest of several, so it follows one polynomial where one
moment of the run stays the peak. The polynomial through three evaluated points says where the
limit is crossed, and the bytes there and at the next number, evaluated in full, prove it: bytes
that do not fall cross a limit once. Where they do not prove it, galloping from the guess and
bisection find the crossing.

An allocator's figures do fall here and there. Then a few numbers beyond the crossing are tried
too, and the largest that fits among them, with a next one that does not, is the answer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final

from onnxmem.capacity import LARGEST_BATCH, BytesAt

_POINTS: Final = (64, 96, 128)
"""Where the polynomial is taken first; then around what it says."""
_ROUNDS: Final = 2
_STRIDE: Final = 64
"""The first step away from a guess is this part of it."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The largest number that fits: ``number`` does and ``number + 1`` does not, both evaluated."""

    number: int | None
    """0 where not even 1 fits; ``None`` where even the largest tried does."""
    num_bytes: int | None
    """At ``number``; ``None`` where that is 0."""
    over_bytes: int | None
    """At ``number + 1``; ``None`` where there is no limit, or nothing is known of it there."""
    method: str
    """``closed form`` or ``bisection``; ``one evaluation`` where not even 1 fits."""
    is_stopped: bool = False
    """Whether the model cannot be worked out beyond ``number``, rather than be too large."""


def largest_fitting(
    bytes_at: BytesAt, limit_bytes: int, *, ahead: int = 0, by_formula: bool = True
) -> Reach | None:
    """Find the largest number within a limit; ``None`` where bytes are unknown at 1.

    ``ahead`` numbers beyond the crossing are tried too, for bytes that may fall. ``by_formula``
    off bisects alone.
    """
    at = cache(bytes_at)

    def fits(number: int) -> bool:
        num_bytes = at(number)
        return num_bytes is not None and num_bytes <= limit_bytes

    one = at(1)
    if one is None:
        return None
    if one > limit_bytes:
        return Reach(0, None, one, "one evaluation")
    guesses = _guesses(at, limit_bytes) if by_formula else iter(())
    guess = None
    for guess in guesses:
        if fits(guess) and not fits(guess + 1):
            return _reach(at, _furthest(fits, guess, ahead), "closed form")
    ends = _around(fits, guess or 1)
    if ends is None:
        return Reach(None, at(LARGEST_BATCH), None, "bisection")
    low = _narrowed(at, limit_bytes, *ends) if by_formula else _bisected(fits, *ends)
    return _reach(at, _furthest(fits, low, ahead), "bisection")


def _reach(at: BytesAt, number: int, method: str) -> Reach:
    over = at(number + 1)
    return Reach(number, at(number), over, method, is_stopped=over is None)


def _guesses(at: BytesAt, limit_bytes: int) -> Iterator[int]:
    """Where the polynomial through three points crosses the limit, each time nearer to it."""
    points = _POINTS
    for _ in range(_ROUNDS):
        guess = _solved({point: at(point) for point in points}, limit_bytes)
        if guess is None:
            return
        yield guess
        points = (max(1, guess // 2), max(2, 3 * guess // 4), max(3, guess))


def _solved(known: dict[int, int | None], limit_bytes: int) -> int | None:
    """The largest number at which the polynomial through three points is within a limit.

    ``None`` where it is unknown at a point, or never leaves the limit.
    """
    (x0, y0), (x1, y1), (x2, y2) = known.items()
    if y0 is None or y1 is None or y2 is None:
        return None
    first, second = Fraction(y1 - y0, x1 - x0), Fraction(y2 - y1, x2 - x1)
    bend = (second - first) / (x2 - x0)
    if bend < 0:  # no sum of buffers bends down: an allocator's steps, whose course is a line's
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


def _furthest(fits: Callable[[int], bool], number: int, ahead: int) -> int:
    """Go on while one of the next few fits again, and the one after it does not."""
    while True:
        beyond = [step for step in range(2, ahead + 2) if fits(number + step)]
        if not beyond:
            return number
        number += beyond[0]
        while fits(number + 1):
            number += 1
