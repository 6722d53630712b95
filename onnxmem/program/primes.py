"""Numbers to bind dims to, which nothing in a graph meets by chance."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import chain, count
from typing import Final

from onnxmem.model.graph import Graph

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
