"""Sizes of a program's allocations: at one batch, or affine in a dim, ``fixed + slope x number``.

One program serves a range of batches, and the bytes of an allocation are affine in the batch if its
tensor has the batch in at most one dim. So two runs with equal programs give the sizes of every run
between them, and a third run checks it:

::

    batch         1      7     13
    "conv_out"   20    116    212      4 + 16 x batch

The tokens of a prefill are in two dims of a tensor of attention, whose bytes have a square too;
four runs show it (``through_squares``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import mul
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

ByteColumn = npt.NDArray[Any]
"""Of int64, or of Python's integers if a sum might overflow."""
BoolColumn = npt.NDArray[np.bool_]

_LEAST_OF_SQUARES: Final = 4
"""Points that show a polynomial of degree two."""
_LARGEST_SUM: Final = 2**62
"""The largest sum stored as int64, half of its range: a hostile file may claim more."""


@dataclass(frozen=True, slots=True)
class Affine:
    """A figure that is affine in the batch or another dim: ``fixed + slope x number``."""

    fixed_bytes: int
    slope_bytes: int
    first: int
    """Valid from this number on."""
    last: int
    """Valid up to this number."""

    @property
    def bytes_per_sample(self) -> int:
        """The slope, of a figure that is affine in the batch."""
        return self.slope_bytes

    def at(self, number: int) -> int:
        """Bytes at a number."""
        return self.fixed_bytes + self.slope_bytes * number

    @classmethod
    def through(cls, points: Sequence[tuple[int, int]]) -> Self | None:
        """The line through (number, bytes) in ascending order; ``None``: there is none.

        At least two points are needed, all must be on the line, and its slope must be an integer.
        """
        (first, one), (last, other) = points[0], points[-1]
        if first >= last:
            return None
        # Only the line through the first and the last point can be the one through all.
        slope, rest = divmod(other - one, last - first)
        line = cls(one - slope * first, slope, first, last)
        is_exact = not rest and all(line.at(number) == size for number, size in points)
        return line if is_exact else None


@dataclass(frozen=True, slots=True)
class Derived:
    """An allocation whose size follows from a count, by a rule that is no line."""

    allocation: int
    count: "int | Affine"
    """At one number, or at every number of the dim."""
    rule: "CountRule"

    @property
    def size_bytes(self) -> int:
        """The size, for a count at one number."""
        assert isinstance(self.count, int)  # noqa: S101 - sizes at one number
        return self.rule.size_bytes(self.count)

    @classmethod
    def through(cls, points: "Sequence[tuple[int, Derived]]") -> "Derived | None":
        """The same allocation at every number; ``None``: another one, or the count is no line."""
        first = points[0][1]
        counts = [(number, each.count) for number, each in points if isinstance(each.count, int)]
        same = all(replace(each, count=first.count) == first for _, each in points)
        line = Affine.through(counts) if same and len(counts) == len(points) else None
        return None if line is None else replace(first, count=line)

    def at(self, number: int) -> "Derived":
        """The allocation at a number of the dim."""
        return (
            replace(self, count=self.count.at(number)) if isinstance(self.count, Affine) else self
        )


class CountRule(Protocol):
    """How the bytes of an allocation follow from a count; equal rules give equal bytes."""

    def size_bytes(self, count: int, /) -> int:
        """Bytes for a count."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """Bytes of each allocation of a program."""

    fixed_bytes: ByteColumn
    slope_bytes: ByteColumn | None = None
    """Bytes of each allocation per unit of the dim; ``None``: the sizes are at one number."""
    square_bytes: ByteColumn | None = None
    """Bytes of each allocation per square of the dim; ``None``: the sizes are affine."""
    known: BoolColumn | None = None
    """Which sizes are known; ``None``: all. An unknown size is 0 in the other columns."""
    first: int = 1
    """Affine sizes are valid from this number of the dim on."""
    last: int | None = None
    """Affine sizes are valid up to this number; ``None``: without limit."""
    derived: tuple[Derived, ...] = ()
    """Allocations whose sizes are no lines; in the columns of affine sizes they have 0 bytes."""

    @classmethod
    def of(cls, sizes_bytes: Iterable[int | None]) -> Self:
        """Sizes at one batch; ``None``: unknown.

        :raises ValueError: a size is negative.
        """
        sizes = list(sizes_bytes)
        if min((size for size in sizes if size is not None), default=0) < 0:
            message = f"a size is {min(size for size in sizes if size is not None)} bytes"
            raise ValueError(message)
        is_known = None not in sizes
        known = None if is_known else np.array([size is not None for size in sizes])
        return cls(_byte_column([size or 0 for size in sizes]), known=known)

    @classmethod
    def through(cls, points: Sequence[tuple[int, "Sizes"]]) -> Self | None:
        """Affine sizes through those at two or more numbers, in ascending order.

        ``None``: a size is not affine in integers, decreases, is negative at 0, or is unknown.
        """
        (first, one), (last, other) = points[0], points[-1]
        if first >= last:
            return None
        if any(sizes.known is not None or sizes.slope_bytes is not None for _, sizes in points):
            return None
        derived = _derived_through(points)
        if derived is None:
            return None
        # Derived sizes are on no line: in the columns they have 0 bytes at every number.
        if derived:
            points = [(number, sizes.without_derived()) for number, sizes in points]
            (_, one), (_, other) = points[0], points[-1]
        # No divmod: columns of Python's integers lack it.
        change = other.fixed_bytes - one.fixed_bytes
        slope, rest = change // (last - first), change % (last - first)
        found = cls(one.fixed_bytes - slope * first, slope, first=first, last=last)
        if rest.any() or (slope < 0).any() or (found.fixed_bytes < 0).any():
            return None
        is_exact = (
            np.array_equal(found.at(n).fixed_bytes, sizes.fixed_bytes) for n, sizes in points
        )
        return replace(found, derived=derived) if all(is_exact) else None

    @classmethod
    def through_squares(cls, points: Sequence[tuple[int, "Sizes"]]) -> Self | None:
        """Polynomials of degree two through sizes at four or more numbers, in ascending order.

        Three points always lie on one; the others are the evidence. ``None``: a coefficient is no
        integer or negative, or a size is unknown or derived.
        """
        numbers = [number for number, _ in points]
        is_plain = all(sizes.known is None and not sizes.derived for _, sizes in points)
        if len({*numbers}) < _LEAST_OF_SQUARES or not is_plain:
            return None
        # Python's integers: the products may be beyond 64 bits.
        columns = [sizes.fixed_bytes.astype(object) for _, sizes in points]
        place = len(points) // 2
        first, middle, last = numbers[0], numbers[place], numbers[-1]
        one, two, three = columns[0], columns[place], columns[-1]
        # Newton's divided differences, times their denominators.
        rise = (three - one) * (middle - first) - (two - one) * (last - first)
        run = (last - first) * (middle - first) * (last - middle)
        # Coefficients that are no integers are rounded down here, and fail the check of all points
        # below.
        square = rise // run
        slope = (three - one) // (last - first) - square * (first + last)
        fixed = one - slope * first - square * first**2
        if (fixed < 0).any() or (slope < 0).any() or (square < 0).any():
            return None
        fixed, slope, square = (_byte_column(each.tolist()) for each in (fixed, slope, square))
        found = cls(fixed, slope, square, first=first, last=last)
        is_exact = (
            np.array_equal(found.at(number).fixed_bytes, column)
            for number, column in zip(numbers, columns, strict=True)
        )
        return found if all(is_exact) else None

    def with_derived(self, derived: Iterable[Derived]) -> "Sizes":
        """The same with derived sizes at one number, whose allocations come after all others."""
        made = tuple(derived)
        more = _byte_column([each.size_bytes for each in made])
        fixed = np.concatenate((self.fixed_bytes, more))
        known = None if self.known is None else np.append(self.known, [True] * len(made))
        return Sizes(fixed, known=known, derived=made)

    def without_derived(self) -> "Sizes":
        """The same with 0 bytes for derived sizes."""
        fixed = self.fixed_bytes.copy()
        fixed[[each.allocation for each in self.derived]] = 0
        return Sizes(fixed, known=self.known)

    def at(self, number: int) -> "Sizes":
        """The sizes at a number of the dim."""
        if self.slope_bytes is None:
            return self
        columns = [self.fixed_bytes, self.slope_bytes]
        columns += [] if self.square_bytes is None else [self.square_bytes]
        powers = [number**power for power in range(len(columns))]
        # Above this bound, sums of int64 columns could overflow.
        if sum(map(mul, self._sums_bytes, powers)) >= _LARGEST_SUM:
            columns = [column.astype(object) for column in columns]
        found = columns[0] + columns[1] * number
        if self.square_bytes is not None:
            found = found + columns[2] * powers[2]
        derived = tuple(each.at(number) for each in self.derived)
        if derived:
            found[[each.allocation for each in derived]] = [each.size_bytes for each in derived]
        return Sizes(found, known=self.known, derived=derived)

    @cached_property
    def _sums_bytes(self) -> tuple[int, ...]:
        """The sums of all columns, cached: a search calls ``at`` for many numbers."""
        columns = (self.fixed_bytes, self.slope_bytes, self.square_bytes)
        return tuple(int(each.sum()) for each in columns if each is not None)

    def is_valid_at(self, number: int) -> bool:
        """Whether the sizes are valid at a number of the dim."""
        return self.first <= number and (self.last is None or number <= self.last)

    @property
    def is_complete(self) -> bool:
        """Whether every size is known; else figures are lower bounds."""
        return self.known is None

    def bytes_of(self, allocation: int) -> int:
        """Bytes of one allocation, for sizes at one number; 0 if unknown."""
        return int(self.fixed_bytes[allocation])

    def __eq__(self, other: object) -> bool:
        """Whether both have equal sizes at every number, and the same of them known."""
        if not isinstance(other, Sizes):
            return NotImplemented
        columns = ((getattr(each, name) for each in (self, other)) for name in _COLUMNS)
        same = all(_is_same(*pair) for pair in columns)
        about = [(each.first, each.last, each.derived) for each in (self, other)]
        return same and about[0] == about[1]

    __hash__ = None  # type: ignore[assignment]  # compared by columns, never a key

    def __len__(self) -> int:
        """The number of allocations."""
        return len(self.fixed_bytes)


def _derived_through(points: Sequence[tuple[int, Sizes]]) -> tuple[Derived, ...] | None:
    """The derived sizes at every number; ``None``: they are others, or a count is no line."""
    if len({len(sizes.derived) for _, sizes in points}) > 1:
        return None
    columns = zip(*([(n, each) for each in sizes.derived] for n, sizes in points), strict=True)
    found = [Derived.through(column) for column in columns]
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(found) else None


_COLUMNS: Final = ("fixed_bytes", "slope_bytes", "square_bytes", "known")


def _is_same(one: ByteColumn | None, other: ByteColumn | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def _byte_column(sizes: Sequence[int]) -> ByteColumn:
    """Bytes as int64, or as Python's integers if their sum might overflow."""
    is_large = sum(sizes) >= _LARGEST_SUM
    column = np.array(sizes, dtype=object if is_large else np.int64)
    column.setflags(write=False)
    return column
