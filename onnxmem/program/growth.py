"""Dims and sizes as polynomials, read off a graph at two points.

At the first point every symbol is 1, at the far one each is a prime of its own that divides no dim
of the first. So a dim at the far point is a multiple of a prime only if its symbol is in it, and:

(a) a dim that is the same at both is that number;
(b) ``n`` at the first and ``n x p x q^2`` at the far one is ``n`` times those symbols;
(c) what is left besides such a product may be a sum, as of tokens past and new or of a padding:
    ``n`` more than symbols, each up to four times. One symbol alone may be there any number of
    times.

A number that is neither is refused, as most dims that are rounded or capped before the far point
are. But two points prove no polynomial: what is one at these may be none between, which other
points alone can show.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

from onnxmem.model.graph import DType
from onnxmem.ops.spec import Dims
from onnxmem.program.polynomials import Polynomial, constant, multiplied, polynomial

_MOST_TIMES: Final = 4
"""Of each symbol in a sum of several: none is seen more often than once or twice, and the more are
tried, the likelier a number is such a sum by chance.
"""
_BITS_OF_A_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class Growth:
    """How a dim grows from a point of ones to the far one."""

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
        for place, each in enumerate(rises):
            if rise % each == 0:
                yield [(_unit(place, len(rises)), rise // each)]
        for num in range(2, len(rises) + 1):
            for places in combinations(range(len(rises)), num):
                for times in product(range(1, _MOST_TIMES + 1), repeat=num):
                    if sum(n * rises[at] for n, at in zip(times, places, strict=True)) == rise:
                        yield [
                            (_unit(at, len(rises)), n) for n, at in zip(times, places, strict=True)
                        ]


def _unit(place: int, length: int) -> tuple[int, ...]:
    return tuple(int(each == place) for each in range(length))
