"""Bytes of a program's allocations: at a batch, or as ``fixed + slope x number`` of a dim.

One program serves all batches of a range, and each allocation's bytes are affine in the batch where
its tensor has the batch in one dim at most. So two runs of a model that are the same program give
the sizes of every run between them, and a third one checks it:

::

    batch         1      7     13
    "conv_out"   20    116    212      4 + 16 x batch
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

ByteColumn = npt.NDArray[Any]
"""Of int64; of Python's own whole numbers where a sum might not fit into that."""
BoolColumn = npt.NDArray[np.bool_]

_LARGEST_SUM: Final = 2**62
"""Bytes that int64 holds with one more sum to spare: a hostile file may name sizes beyond."""


@dataclass(frozen=True, slots=True)
class Affine:
    """A figure that grows with a number, the batch or another dim: ``fixed + slope x number``."""

    fixed_bytes: int
    slope_bytes: int
    first: int
    """The figure is shown to be so from this number on,"""
    last: int
    """up to this one."""

    def at(self, number: int) -> int:
        """Bytes at a number."""
        return self.fixed_bytes + self.slope_bytes * number

    @classmethod
    def through(cls, points: Sequence[tuple[int, int]]) -> Self | None:
        """The line through (number, bytes), the smallest number first; ``None``: there is none.

        A line needs two points; of further ones each must lie on it. It has whole bytes.
        """
        (first, one), (last, other) = points[0], points[-1]
        if first >= last:
            return None
        slope, rest = divmod(other - one, last - first)
        line = cls(one - slope * first, slope, first, last)
        is_met = not rest and all(line.at(number) == size for number, size in points)
        return line if is_met else None


@dataclass(frozen=True, eq=False)
class Sizes:
    """Bytes of each allocation of a program."""

    fixed_bytes: ByteColumn
    slope_bytes: ByteColumn | None = None
    """Bytes of each allocation per unit of the dim; ``None``: the sizes are those at one number."""
    known: BoolColumn | None = None
    """Which sizes are known; ``None``: all. An unknown one is 0 in the other columns."""
    first: int = 1
    """Sizes that grow hold from this number of the dim on,"""
    last: int | None = None
    """up to this one."""

    @classmethod
    def of(cls, sizes_bytes: Iterable[int | None]) -> Self:
        """Sizes at one batch; ``None`` is unknown.

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
        """Affine sizes through those at two numbers or more, the smallest first.

        ``None``: an allocation's bytes are not affine in whole bytes, fall or begin below 0, or
        one is unknown.
        """
        (first, one), (last, other) = points[0], points[-1]
        if first >= last:
            return None
        if any(sizes.known is not None or sizes.slope_bytes is not None for _, sizes in points):
            return None
        # Columns of Python's whole numbers have no divmod.
        change = other.fixed_bytes - one.fixed_bytes
        slope, rest = change // (last - first), change % (last - first)
        found = cls(one.fixed_bytes - slope * first, slope, None, first, last)
        if rest.any() or (slope < 0).any() or (found.fixed_bytes < 0).any():
            return None
        met = (np.array_equal(found.at(n).fixed_bytes, sizes.fixed_bytes) for n, sizes in points)
        return found if all(met) else None

    def at(self, number: int) -> "Sizes":
        """The sizes at a number of the dim."""
        if self.slope_bytes is None:
            return self
        fixed, slope = self.fixed_bytes, self.slope_bytes
        fixed_sum, slope_sum = self._sums_bytes
        if fixed_sum + slope_sum * number >= _LARGEST_SUM:
            fixed, slope = fixed.astype(object), slope.astype(object)
        return Sizes(fixed + slope * number, known=self.known)

    @cached_property
    def _sums_bytes(self) -> tuple[int, int]:
        """The sums of the two columns, once for all numbers of a search."""
        slope = self.slope_bytes
        return int(self.fixed_bytes.sum()), 0 if slope is None else int(slope.sum())

    def holds_at(self, number: int) -> bool:
        """Whether the sizes were shown to hold at a number of the dim."""
        return self.first <= number and (self.last is None or number <= self.last)

    @property
    def is_complete(self) -> bool:
        """Whether every size is known; else figures of them are lower bounds."""
        return self.known is None

    def bytes_of(self, allocation: int) -> int:
        """Bytes of one allocation at one number; 0 where they are unknown."""
        return int(self.fixed_bytes[allocation])

    def __eq__(self, other: object) -> bool:
        """Whether both have the same bytes at every number, and the same ones known."""
        if not isinstance(other, Sizes):
            return NotImplemented
        columns = ((getattr(each, name) for each in (self, other)) for name in _COLUMNS)
        same = all(_is_same(*pair) for pair in columns)
        return same and (self.first, self.last) == (other.first, other.last)

    __hash__ = None  # type: ignore[assignment]  # columns are compared, not looked up

    def __len__(self) -> int:
        """How many allocations there are."""
        return len(self.fixed_bytes)


_COLUMNS: Final = ("fixed_bytes", "slope_bytes", "known")


def _is_same(one: ByteColumn | None, other: ByteColumn | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def _byte_column(sizes: Sequence[int]) -> ByteColumn:
    """Bytes as int64, or as Python's whole numbers where sums of them might not fit."""
    is_large = sum(sizes) >= _LARGEST_SUM
    column = np.array(sizes, dtype=object if is_large else np.int64)
    column.setflags(write=False)
    return column
