"""Dims and bytes as polynomials in the symbols of a model, and the largest of many of them.

``4 x batch x sequence^2 + 32`` is the terms ``((0, 0), 32)`` and ``((1, 2), 4)`` over the symbols
``(batch, sequence)``: exact whole numbers, sorted, none zero. ``Growth`` reads them off a graph
that is bound at two points, which ``prime_above`` and ``prime_up_to`` choose; ``upper`` keeps those
of which one is the largest somewhere.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import chain, combinations, count, product
from math import comb, prod
from operator import mul
from typing import Final

import numpy as np
import numpy.typing as npt

from onnxmem.model.graph import DType, Graph
from onnxmem.ops.spec import Dims

Exponents = tuple[int, ...]
"""One of each symbol."""
Line = tuple[int, int]
"""Slope and start of a line over one symbol."""
Rows = npt.NDArray[np.generic]
"""A polynomial a row, a term a column: of int64, or of Python's numbers where those overflow."""

_LARGEST: Final = 2**62
_MOST_MIXED: Final = 24
"""Rows of which each is held against all pairs of others: the work grows with the third power, and
of 24 it is 6,000 comparisons. More rows are right as well, only longer.
"""


@dataclass(frozen=True, slots=True, order=True)
class Polynomial:
    """A sum of whole multiples of products of symbols."""

    terms: tuple[tuple[Exponents, int], ...]

    def at(self, numbers: Sequence[int]) -> int:
        """Evaluate it, a number for each symbol."""
        return sum(n * prod(map(pow, numbers, exponents)) for exponents, n in self.terms)

    def __add__(self, other: "Polynomial") -> "Polynomial":
        """Add two of the same symbols."""
        return polynomial((*self.terms, *other.terms))

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        """Multiply two of the same symbols."""
        return polynomial(
            (tuple(a + b for a, b in zip(one, another, strict=True)), n * m)
            for (one, n), (another, m) in product(self.terms, other.terms)
        )

    def times(self, number: int) -> "Polynomial":
        """Multiply it by a number."""
        return polynomial((exponents, number * n) for exponents, n in self.terms)

    def along(self, index: int, numbers: Sequence[int]) -> "Polynomial":
        """What it is in one of its symbols, the others being numbers."""
        fixed = (*numbers[:index], 1, *numbers[index + 1 :])
        return polynomial(
            ((exponents[index],), coefficient * prod(map(pow, fixed, exponents)))
            for exponents, coefficient in self.terms
        )

    def from_one(self) -> "Polynomial":
        """The same in symbols that are less by 1: without negative terms, it is nowhere negative.

        Each power is written out by the binomial theorem: ``(1 + y)^n``.
        """
        return polynomial(
            (lower, coefficient * prod(map(comb, exponents, lower)))
            for exponents, coefficient in self.terms
            for lower in product(*(range(power + 1) for power in exponents))
        )


def polynomial(terms: Iterable[tuple[Exponents, int]]) -> Polynomial:
    """Add up terms."""
    sums: defaultdict[Exponents, int] = defaultdict(int)
    for exponents, coefficient in terms:
        sums[exponents] += coefficient
    return Polynomial(tuple(sorted((each, n) for each, n in sums.items() if n)))


def constant(number: int, num_symbols: int) -> Polynomial:
    """A number, over so many symbols."""
    return Polynomial((((0,) * num_symbols, number),) if number else ())


def multiplied(factors: Iterable[Polynomial], num_symbols: int) -> Polynomial:
    """The product of polynomials; 1 where there is none."""
    return reduce(mul, factors, constant(1, num_symbols))


def largest(rows: Iterable[Polynomial], numbers: Sequence[int]) -> int:
    """The largest of polynomials at a point; 0 where there is none."""
    return max((row.at(numbers) for row in rows), default=0)


def as_rows(
    polynomials: Sequence[Polynomial], num_times: int
) -> tuple[tuple[Exponents, ...], Rows]:
    """Polynomials as rows, and the exponents of the columns.

    The numbers are Python's own where a sum of ``num_times`` rows may not fit 64 bits.
    """
    columns = tuple(sorted({exponents for each in polynomials for exponents, _ in each.terms}))
    index = {exponents: n for n, exponents in enumerate(columns)}
    most = max((abs(n) for each in polynomials for _, n in each.terms), default=0)
    kind = np.int64 if most * max(num_times, 1) < _LARGEST else object
    rows = np.zeros((len(polynomials), len(columns)), dtype=kind)
    for number, each in enumerate(polynomials):
        for exponents, coefficient in each.terms:
            rows[number, index[exponents]] = coefficient
    return columns, rows


def upper(columns: Sequence[Exponents], rows: Rows) -> tuple[Polynomial, ...]:
    """Those of which one is the largest wherever all symbols are 1 or more; by their terms.

    A row is left out where another is nowhere less, or a mixture of two others: written in symbols
    that are less by 1, no coefficient of those is less. So some that stay may be the largest
    nowhere; among lines of one symbol none does, for these make a hull.
    """
    powers = [Polynomial(((exponents, 1),)).from_one() for exponents in columns]
    shifts = as_rows(powers, 1)[1]
    if rows.dtype != object and _overflows(rows, int(shifts.sum())):
        rows = rows.astype(object)
    shifted = rows @ shifts.astype(rows.dtype)
    maximal = _maximal(shifted)
    kept = [
        polynomial(zip(columns, rows[maximal[index]].tolist(), strict=True))
        for index in _unmixed(shifted[maximal].tolist())
    ]
    if all(len(exponents) == 1 and sum(exponents) <= 1 for exponents in columns):
        by_line = {_line(each): each for each in kept}
        return tuple(by_line[line] for line in upper_lines(by_line))
    return tuple(sorted(kept))


def _overflows(rows: Rows, times: int) -> bool:
    """Whether so many times the numbers may not fit 64 bits."""
    return int(np.abs(rows).max(initial=0)) * times >= _LARGEST


def _maximal(rows: Rows) -> list[int]:
    """The indices of the rows that no other is at least as large as in every column."""
    kept, left = [], np.arange(len(rows))
    while len(left):
        # The largest sum is beaten by none of those left.
        best = left[int(np.argmax(rows[left].sum(axis=1)))]
        kept.append(int(best))
        left = left[(rows[left] > rows[best]).any(axis=1)]
    return kept


def _unmixed(rows: Sequence[Sequence[int]]) -> list[int]:
    """The indices of the rows that no mixture of two others is at least as large as.

    Rows go one by one, so that of equal ones the last stays; very many stay as they are.
    """
    left = list(range(len(rows)))
    for index in left[:] if len(rows) <= _MOST_MIXED else ():
        others = [rows[other] for other in left if other != index]
        if any(_is_mixed(rows[index], *pair) for pair in combinations(others, 2)):
            left.remove(index)
    return left


def _is_mixed(row: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether ``share x one + (1 - share) x other`` is nowhere less, for a share from 0 to 1."""
    least, most = Fraction(0), Fraction(1)
    for number, a, b in zip(row, one, other, strict=True):
        if a == b:
            if number > b:
                return False
        elif a > b:
            least = max(least, Fraction(number - b, a - b))
        else:
            most = min(most, Fraction(number - b, a - b))
    return least <= most


def upper_lines(lines: Iterable[Line], first: int = 1) -> list[Line]:
    """The lines that are the highest at some whole number from ``first`` on, by slope.

    The convex-hull trick: of lines by slope each is the highest on one stretch of numbers, after
    that of the line before it, so a line whose stretch is empty is looked for at the end alone.
    """
    steepest: dict[int, int] = {}
    for slope, start in lines:
        steepest[slope] = max(start, steepest.get(slope, start))
    hull: list[Line] = []
    for line in sorted(steepest.items()):
        while hull and _at(line, _begin(hull, first)) >= _at(hull[-1], _begin(hull, first)):
            hull.pop()
        hull.append(line)
    return hull


def _begin(hull: Sequence[Line], first: int) -> int:
    """The number from which on the last line is no lower than the one before it."""
    if len(hull) == 1:
        return first
    (slope_before, start_before), (slope, start) = hull[-2:]
    return -((start - start_before) // (slope - slope_before))


def _at(line: Line, number: int) -> int:
    slope, start = line
    return slope * number + start


def _line(of: Polynomial) -> Line:
    terms = dict(of.terms)
    return terms.get((1,), 0), terms.get((0,), 0)


_MOST_TIMES: Final = 4
"""Of each symbol in a sum of several: none is seen more often than once or twice, and the more are
tried, the likelier a number is such a sum by chance.
"""
_BITS_OF_A_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class Growth:
    """How a dim grows from a point of ones to the far one.

    At the first point every symbol is 1, at the far one each is a prime of its own that divides no
    dim of the first. So a dim at the far point is a multiple of a prime only if its symbol is in
    it, and:

    (a) a dim that is the same at both is that number;
    (b) ``n`` at the first and ``n x p x q^2`` at the far one is ``n`` times those symbols;
    (c) what is left besides such a product may be a sum, as of tokens past and new or of a padding:
        ``n`` more than symbols, each up to four times. One symbol alone may be there any number of
        times.

    A number that is neither is refused, as most dims that are rounded or capped before the far
    point are. But two points prove no polynomial: what is one at these may be none between, which
    other points alone can show.
    """

    primes: tuple[int, ...]

    def dim(self, one: int, far: int) -> Polynomial | None:
        """The polynomial of a dim; ``None``: it is none that is known."""
        num_symbols = len(self.primes)
        if one == far:
            return constant(one, num_symbols)
        exponents, rest = self._stripped(far)
        powers = polynomial([(exponents, 1)])
        if rest == one:
            return powers.times(one)
        added = next(self._sums(rest - one), None)
        if added is None:
            return None
        fixed = one - sum(number for _, number in added)
        return powers * (polynomial(added) + constant(fixed, num_symbols))

    def size_bytes(self, one: Dims, far: Dims, dtype: DType) -> Polynomial | None:
        """The polynomial of a tensor's bytes.

        Bytes of elements that are packed are none, for they are rounded up, but where they stay.
        """
        num_symbols = len(self.primes)
        if len(one) != len(far) or dtype.bits is None:
            return None
        dims = [self.dim(*pair) for pair in zip(one, far, strict=True)]
        known = [dim for dim in dims if dim is not None]
        if len(known) != len(dims):
            return None
        elements = multiplied(known, num_symbols)
        if one == far:
            bits = elements.at(self.primes) * dtype.bits
            return constant(-(-bits // _BITS_OF_A_BYTE), num_symbols)
        return (
            None if dtype.bits % _BITS_OF_A_BYTE else elements.times(dtype.bits // _BITS_OF_A_BYTE)
        )

    def _stripped(self, far: int) -> tuple[tuple[int, ...], int]:
        """How often each prime divides a number, and what is left of it."""
        powers = []
        for prime in self.primes:
            power = 0
            while far and far % prime == 0:
                far, power = far // prime, power + 1
            powers.append(power)
        return tuple(powers), far

    def _sums(self, rise: int) -> Iterator[list[tuple[tuple[int, ...], int]]]:
        """Terms of symbols that rise so much from ones to the primes: the simplest first."""
        rises = [prime - 1 for prime in self.primes]
        for index, each in enumerate(rises):
            if rise % each == 0:
                yield [(_unit(index, len(rises)), rise // each)]
        for num in range(2, len(rises) + 1):
            for indices in combinations(range(len(rises)), num):
                for times in product(range(1, _MOST_TIMES + 1), repeat=num):
                    if sum(n * rises[at] for n, at in zip(times, indices, strict=True)) == rise:
                        yield [
                            (_unit(at, len(rises)), n) for n, at in zip(times, indices, strict=True)
                        ]


def _unit(index: int, length: int) -> tuple[int, ...]:
    return tuple(int(each == index) for each in range(length))


_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


def dims_of(graph: Graph) -> set[int]:
    """The numbers above 1 that are dims of tensors."""
    shapes = {tensor.shape for tensor in graph.tensors.values()}
    return {dim for shape in shapes for dim in shape or () if dim is not None and dim > 1}


def prime_above(number: int, dims: AbstractSet[int]) -> int:
    """The first prime above a number that divides no dim."""
    return _first(count(number + 1), dims)


def prime_up_to(number: int, dims: AbstractSet[int]) -> int:
    """The last prime up to a number that divides no dim; the first above it where there is none."""
    return _first(chain(range(number, 1, -1), count(number + 1)), dims)


def _first(numbers: Iterable[int], dims: AbstractSet[int]) -> int:
    return next(
        number
        for number in numbers
        if is_prime(number) and not any(dim % number == 0 for dim in dims)
    )


def is_prime(number: int) -> bool:
    """Miller and Rabin's test: dims of 2^62 leave no time to try divisors.

    With these bases it errs on no number below 3.3e24 (Sorenson and Webster, 2015, table 1).
    """
    if number in _PRIMES or number < 2 or not all(number % prime for prime in _PRIMES):  # noqa: PLR2004
        return number in _PRIMES
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd = (number - 1) >> twos
    return all(
        pow(base, odd, number) == 1
        or any(pow(base, odd << n, number) == number - 1 for n in range(twos))
        for base in _PRIMES
    )
