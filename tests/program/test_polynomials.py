"""Polynomials in a model's dims, and the primes that they are read off at."""

import numpy as np
from graphs import graph_of
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxmem.model.binding import Request
from onnxmem.program.polynomials import (
    Growth,
    Polynomial,
    coefficients_of,
    constant,
    dims_of,
    largest,
    polynomial,
    prime_above,
    prime_up_to,
    upper,
)

lines_of_two = st.lists(st.tuples(*(st.integers(-50, 50),) * 5), min_size=1, max_size=8)


def line(slope: int, start: int) -> Polynomial:
    return polynomial((((1,), slope), ((0,), start)))


def test_a_chosen_prime_divides_no_dim() -> None:
    text = "agraph (float[batch, 131] x, float[274] z) => (float[batch, 131] y) { y = Neg(x) }"
    graph = graph_of(text, Request(1))
    dims = dims_of(graph)
    assert prime_above(128, dims) == 139
    assert prime_above(2, dims) == 3
    assert prime_up_to(138, dims) == 127
    assert prime_up_to(2, {2, 3}) == 5


def test_no_polynomials_are_zero_bytes() -> None:
    assert largest((), (7,)) == 0


def test_a_dim_is_recovered_from_its_values_at_two_points() -> None:
    growth = Growth((131, 509))
    assert growth.dim(7, 7) == constant(7, 2)
    assert growth.dim(14, 14 * 131 * 509) == polynomial([((1, 1), 14)])
    assert growth.dim(3, 509 + 2) == polynomial([((0, 1), 1), ((0, 0), 2)])
    assert growth.dim(2, 131 + 509) == polynomial([((0, 1), 1), ((1, 0), 1)])
    assert growth.dim(2, 131 * (509 + 1)) == polynomial([((1, 1), 1), ((1, 0), 1)])
    assert growth.dim(1, 100) is None  # capped
    assert growth.dim(1, 255) is None  # half, rounded


@settings(deadline=None)
@given(lines_of_two, st.tuples(st.integers(1, 9), st.integers(1, 9)), st.sampled_from([1, 2**60]))
def test_dropped_polynomials_are_nowhere_the_largest(
    numbers: list[tuple[int, ...]], point: tuple[int, int], scale: int
) -> None:
    columns = ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2))
    polynomials = [
        polynomial(zip(columns, (scale * n for n in row), strict=True)) for row in numbers
    ]
    retained = upper(*coefficients_of(polynomials, 1))
    assert max(each.at(point) for each in retained) == max(each.at(point) for each in polynomials)
    assert set(retained) <= set(polynomials)


def test_numbers_beyond_64_bits_are_exact() -> None:
    columns, rows = coefficients_of([line(2**70, 1), line(2**71, 0)], 3)
    assert rows.dtype == np.dtype(object)
    assert upper(columns, rows) == (line(2**71, 0),)
