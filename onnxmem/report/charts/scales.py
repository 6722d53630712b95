"""Where a number lies on an axis, and the round numbers that are written beside it."""

import math
from dataclasses import dataclass
from typing import Final

from onnxmem.units import format_count

_ROUND: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from ``low`` to ``high`` laid over pixels from ``start`` to ``stop``."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return self.start + share * (self.stop - self.start)


def byte_ticks(top_bytes: int, at_most: int = 6) -> tuple[int, ...]:
    """Round sizes from 0 up to ``top_bytes``, fewer than ``at_most`` after the 0.

    They are 1, 2, 5 or their tens in the unit of the largest, or its halves, quarters and eighths,
    which are whole bytes. Past all units there is no round size, and the largest stands alone.
    """
    if top_bytes <= 0:
        return (0,)
    unit = 1024 ** _power(top_bytes)
    fractions = [unit // part for part in (8, 4, 2) if unit > 1]
    steps = (*fractions, *(unit * round_ for round_ in _ROUND))
    step = next((step for step in steps if top_bytes // step < at_most), top_bytes)
    return tuple(range(0, top_bytes + 1, step))


def byte_label(num_bytes: int, top_bytes: int | None = None) -> str:
    """Write a tick in the unit of the axis, or its own: ``0``, ``0.5 GiB``, ``200 MiB``."""
    if not num_bytes:
        return "0"
    power = _power(num_bytes if top_bytes is None else top_bytes)
    return f"{num_bytes / 1024**power:.4g} {_UNITS[power]}"


def step_ticks(num_steps: int, at_most: int = 8) -> tuple[int, ...]:
    """Round step numbers, counted from 1; the first is always there."""
    size = next(
        round_ * 10**power
        for power in range(20)
        for round_ in (1, 2, 5)
        if num_steps // (round_ * 10**power) < at_most
    )
    return (1, *(number for number in range(size, num_steps + 1, size) if number > 1))


def round_ticks(low: float, high: float, at_most: int = 7) -> tuple[float, ...]:
    """Round numbers between two: multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return (low,)
    finest = math.floor(math.log10((high - low) / at_most))
    size = next(
        round_ * 10.0**power
        for power in range(finest, finest + 3)
        for round_ in (1, 2, 5)
        if (high - low) / (round_ * 10.0**power) < at_most
    )
    return tuple(
        number * size for number in range(math.ceil(low / size), math.floor(high / size) + 1)
    )


def decades(low: int, high: int) -> tuple[int, ...]:
    """Powers of ten from below the lowest to above the highest number."""
    first, last = len(str(max(low, 1))) - 1, len(str(max(high - 1, 1)))
    return tuple(10**power for power in range(first, max(last, first + 1) + 1))


def count_label(count: int) -> str:
    """Write a count short: ``1 k``, ``10 M``, ``1 G``."""
    return format_count(count) if count >= 10_000 else f"{count:,}"  # noqa: PLR2004


def _power(num_bytes: int) -> int:
    """The largest unit that is no larger than a size."""
    power = 0
    while num_bytes >= 1024 ** (power + 1) and power + 1 < len(_UNITS):
        power += 1
    return power
