"""Dims and bytes as polynomials in the symbols of a model, and the maximum of several polynomials.

``4 x batch x sequence^2 + 32`` has the terms ``((0, 0), 32)`` and ``((1, 2), 4)`` over the symbols
``(batch, sequence)``: exact integers, sorted, none zero. ``Growth`` derives polynomials from a
graph bound at two points, which ``prime_above`` and ``prime_up_to`` choose; ``upper`` selects those
that can be the largest at some point.
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
"""One exponent per symbol."""
Line = tuple[int, int]
"""Slope and intercept of a line in one symbol."""
Coefficients = npt.NDArray[np.generic]
"""One row per polynomial, one column per term: int64, or Python's integers if those overflow."""

_LARGEST: Final = 2**62
_MAX_COMBINED: Final = 24
"""Each polynomial is compared with all pairs of others if there are at most so many: cubic work,
6,000 comparisons for 24. Skipping it is correct too, but leaves more polynomials.
"""


@dataclass(frozen=True, slots=True, order=True)
class Polynomial:
    """A polynomial with integer coefficients."""

    terms: tuple[tuple[Exponents, int], ...]

    def at(self, numbers: Sequence[int]) -> int:
        """The value at a point, one number per symbol."""
        return sum(n * prod(map(pow, numbers, exponents)) for exponents, n in self.terms)

    def __add__(self, other: "Polynomial") -> "Polynomial":
        """Add two polynomials in the same symbols."""
        return polynomial((*self.terms, *other.terms))

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        """Multiply two polynomials in the same symbols."""
        return polynomial(
            (tuple(a + b for a, b in zip(one, another, strict=True)), n * m)
            for (one, n), (another, m) in product(self.terms, other.terms)
        )

    def times(self, number: int) -> "Polynomial":
        """Multiply by a number."""
        return polynomial((exponents, number * n) for exponents, n in self.terms)

    def along(self, index: int, numbers: Sequence[int]) -> "Polynomial":
        """The polynomial in one symbol, with numbers for all others."""
        fixed = (*numbers[:index], 1, *numbers[index + 1 :])
        return polynomial(
            ((exponents[index],), coefficient * prod(map(pow, fixed, exponents)))
            for exponents, coefficient in self.terms
        )

    def from_one(self) -> "Polynomial":
        """Substitute ``y + 1`` for each symbol, by the binomial theorem.

        If no coefficient of the result is negative, the polynomial is nonnegative wherever all
        symbols are at least 1.
        """
        return polynomial(
            (lower, coefficient * prod(map(comb, exponents, lower)))
            for exponents, coefficient in self.terms
            for lower in product(*(range(power + 1) for power in exponents))
        )


def polynomial(terms: Iterable[tuple[Exponents, int]]) -> Polynomial:
    """The sum of terms."""
    sums: defaultdict[Exponents, int] = defaultdict(int)
    for exponents, coefficient in terms:
        sums[exponents] += coefficient
    return Polynomial(tuple(sorted((each, n) for each, n in sums.items() if n)))


def constant(number: int, num_symbols: int) -> Polynomial:
    """A constant polynomial in so many symbols."""
    return Polynomial((((0,) * num_symbols, number),) if number else ())


def multiplied(factors: Iterable[Polynomial], num_symbols: int) -> Polynomial:
    """The product of polynomials; 1 if there are none."""
    return reduce(mul, factors, constant(1, num_symbols))


def largest(rows: Iterable[Polynomial], numbers: Sequence[int]) -> int:
    """The largest value of polynomials at a point; 0 if there are none."""
    return max((row.at(numbers) for row in rows), default=0)


def coefficients_of(
    polynomials: Sequence[Polynomial], num_times: int
) -> tuple[tuple[Exponents, ...], Coefficients]:
    """The coefficients of polynomials, and the exponents of each column.

    They are Python's integers if a sum of ``num_times`` rows might overflow 64 bits.
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


def upper(columns: Sequence[Exponents], rows: Coefficients) -> tuple[Polynomial, ...]:
    """Polynomials whose maximum is that of all rows, wherever all symbols are at least 1; sorted.

    A row is dropped if another row, or a convex combination of two others, is at least as large
    everywhere. The test is sufficient, not necessary: it compares the coefficients after
    ``from_one``. So some polynomials that remain may be the largest nowhere; of lines in one symbol
    none does, for their hull is exact.
    """
    powers = [Polynomial(((exponents, 1),)).from_one() for exponents in columns]
    shifts = coefficients_of(powers, 1)[1]
    if rows.dtype != object and _overflows(rows, int(shifts.sum())):
        rows = rows.astype(object)
    shifted = rows @ shifts.astype(rows.dtype)
    maximal = _maximal(shifted)
    kept = [
        polynomial(zip(columns, rows[maximal[index]].tolist(), strict=True))
        for index in _uncombined(shifted[maximal].tolist())
    ]
    if all(len(exponents) == 1 and sum(exponents) <= 1 for exponents in columns):
        by_line = {_line(each): each for each in kept}
        return tuple(by_line[line] for line in upper_lines(by_line))
    return tuple(sorted(kept))


def _overflows(rows: Coefficients, times: int) -> bool:
    """Whether so many times the largest coefficient might overflow 64 bits."""
    return int(np.abs(rows).max(initial=0)) * times >= _LARGEST


def _maximal(rows: Coefficients) -> list[int]:
    """The indices of the rows that no other row dominates in every column."""
    maximal, left = [], np.arange(len(rows))
    while len(left):
        # No remaining row can dominate the one with the largest sum.
        best = left[int(np.argmax(rows[left].sum(axis=1)))]
        maximal.append(int(best))
        left = left[(rows[left] > rows[best]).any(axis=1)]
    return maximal


def _uncombined(rows: Sequence[Sequence[int]]) -> list[int]:
    """The indices of the rows that no convex combination of two others dominates.

    Rows are removed one by one, so that one of several equal rows remains.
    """
    left = list(range(len(rows)))
    for index in left[:] if len(rows) <= _MAX_COMBINED else ():
        others = [rows[other] for other in left if other != index]
        if any(_is_combined(rows[index], *pair) for pair in combinations(others, 2)):
            left.remove(index)
    return left


def _is_combined(row: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether ``t x one + (1 - t) x other`` dominates a row for some ``t`` from 0 to 1."""
    # Each column narrows the interval of valid t; the row is dominated if an interval remains.
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
    """The lines that are the highest at some integer from ``first`` on, by slope.

    The convex hull trick: with lines sorted by slope, each is the highest on one interval, and the
    intervals follow one another. A new line can only empty the interval of the last ones.
    """
    steepest: dict[int, int] = {}
    # Of parallel lines only the highest can be part of the hull.
    for slope, start in lines:
        steepest[slope] = max(start, steepest.get(slope, start))
    hull: list[Line] = []
    for line in sorted(steepest.items()):
        while hull and _at(line, _begin(hull, first)) >= _at(hull[-1], _begin(hull, first)):
            hull.pop()
        hull.append(line)
    return hull


def _begin(hull: Sequence[Line], first: int) -> int:
    """The first number at which the last line is at least as high as the one before it."""
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


_MAX_TIMES: Final = 4
"""The largest coefficient tried in a sum of several symbols. Models have 1 or 2; the more are
tried, the likelier a number matches such a sum by chance.
"""
_BITS_OF_A_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class Growth:
    """Derives the polynomial of a dim from its value at two points.

    At the first point every symbol is 1. At the far point each is a prime of its own that divides
    no dim of the first, so a dim there is a multiple of a prime only if its symbol is a factor:

    (a) A dim that is equal at both points is a constant.
    (b) ``n`` at the first and ``n x p x q^2`` at the far point is ``n`` times those symbols.
    (c) What remains beside such a product may be a sum, as of past and new tokens or of padding:
        a constant plus symbols, each up to four times; a single symbol any number of times.

    Any other number is refused, as most dims that are rounded or capped before the far point are.
    Two points do not prove a polynomial: the caller must check others in between.
    """

    primes: tuple[int, ...]

    def dim(self, one: int, far: int) -> Polynomial | None:
        """The polynomial of a dim; ``None``: none of these forms fits."""
        num_symbols = len(self.primes)
        if one == far:  # (a)
            return constant(one, num_symbols)
        exponents, rest = self._stripped(far)
        if rest == one:  # (b)
            return polynomial([(exponents, one)])
        # (c): the constant is what the symbols, each 1 at the first point, leave of the dim there.
        added = next(self._sums(rest - one), None)
        if added is None:
            return None
        fixed = one - sum(number for _, number in added)
        return polynomial([(exponents, 1)]) * (polynomial(added) + constant(fixed, num_symbols))

    def size_bytes(self, one: Dims, far: Dims, dtype: DType) -> Polynomial | None:
        """The polynomial of a tensor's bytes.

        ``None`` for packed elements of less than a byte, whose bytes are rounded up, unless
        constant.
        """
        num_symbols = len(self.primes)
        if len(one) != len(far) or dtype.bits is None:
            return None
        if one == far:
            return constant(-(-prod(one) * dtype.bits // _BITS_OF_A_BYTE), num_symbols)
        if dtype.bits % _BITS_OF_A_BYTE:
            return None
        # Most dims are numbers: their product is one, and not a polynomial for each.
        pairs = list(zip(one, far, strict=True))
        dims = [self.dim(*pair) for pair in pairs if pair[0] != pair[1]]
        known = [dim for dim in dims if dim is not None]
        if len(known) != len(dims):
            return None
        fixed = prod(ours for ours, theirs in pairs if ours == theirs)
        return multiplied(known, num_symbols).times(fixed * dtype.bits // _BITS_OF_A_BYTE)

    def _stripped(self, far: int) -> tuple[tuple[int, ...], int]:
        """The exponent of each prime in a number, and the remaining factor."""
        powers = []
        for prime in self.primes:
            power = 0
            while far and far % prime == 0:
                far, power = far // prime, power + 1
            powers.append(power)
        return tuple(powers), far

    def _sums(self, rise: int) -> Iterator[list[tuple[tuple[int, ...], int]]]:
        """Sums of symbols that grow by so much from ones to the primes, the simplest first."""
        # From 1 to its prime a symbol rises by ``prime - 1``. One symbol is tried before several,
        # and fewer before more: a sum of many symbols matches any number sooner or later.
        rises = [prime - 1 for prime in self.primes]
        for index, each in enumerate(rises):
            if rise % each == 0:
                yield [(_unit(index, len(rises)), rise // each)]
        for num in range(2, len(rises) + 1):
            for indices in combinations(range(len(rises)), num):
                for times in product(range(1, _MAX_TIMES + 1), repeat=num):
                    if sum(n * rises[at] for n, at in zip(times, indices, strict=True)) == rise:
                        yield [
                            (_unit(at, len(rises)), n) for n, at in zip(times, indices, strict=True)
                        ]


def _unit(index: int, length: int) -> tuple[int, ...]:
    return tuple(int(each == index) for each in range(length))


_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


def dims_of(graph: Graph) -> set[int]:
    """All dims above 1 of a graph's tensors."""
    shapes = {tensor.shape for tensor in graph.tensors.values()}
    return {dim for shape in shapes for dim in shape or () if dim is not None and dim > 1}


def prime_above(number: int, dims: AbstractSet[int]) -> int:
    """The first prime above a number that divides none of the dims."""
    return _first(count(number + 1), dims)


def prime_up_to(number: int, dims: AbstractSet[int]) -> int:
    """The last prime up to a number that divides none of the dims, else the first above it."""
    return _first(chain(range(number, 1, -1), count(number + 1)), dims)


def _first(numbers: Iterable[int], dims: AbstractSet[int]) -> int:
    # A prime divides a product if it divides a factor: one division in place of one for each dim.
    product = prod(dims)
    return next(number for number in numbers if is_prime(number) and product % number)


def is_prime(number: int) -> bool:
    """The Miller-Rabin test: trial division would be too slow for dims of 2^62.

    With these bases it is exact below 3.3e24 (Sorenson and Webster, 2015, table 1).
    """
    if number in _PRIMES or number < 2 or not all(number % prime for prime in _PRIMES):  # noqa: PLR2004 - 1 is not a prime
        return number in _PRIMES
    # number - 1 = odd x 2^twos
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd = (number - 1) >> twos
    return all(
        pow(base, odd, number) == 1
        or any(pow(base, odd << n, number) == number - 1 for n in range(twos))
        for base in _PRIMES
    )
