"""The batch law and the largest batch, against hand-worked lines and brute force."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from onnxmem.analysis.scaling import affine_in_batch
from onnxmem.program.sizes import Affine


def affine(fixed_bytes: int, bytes_per_sample: int) -> Callable[[int], int]:
    return lambda batch: fixed_bytes + bytes_per_sample * batch


def largest_of(*lines: Callable[[int], int]) -> Callable[[int], int]:
    return lambda batch: max(line(batch) for line in lines)


class Counted:
    """Bytes by a rule; records the requested batches."""

    def __init__(self, bytes_at: Callable[[int], int | None]) -> None:
        self.bytes_at = bytes_at
        self.asked: list[int] = []

    def __call__(self, batch: int) -> int | None:
        self.asked.append(batch)
        return self.bytes_at(batch)


def test_a_figure_linear_in_the_batch_is_recognized() -> None:
    assert affine_in_batch(affine(17, 5), 128) == Affine(17, 5, 1, 128)
    assert Affine(17, 5, 1, 128).at(3) == 32


def test_linearity_in_the_batch_takes_three_evaluations() -> None:
    bytes_at = Counted(affine(17, 5))
    affine_in_batch(bytes_at, 101)
    assert sorted(bytes_at.asked) == [1, 51, 101]


def test_a_bend_anywhere_in_the_range_is_not_linear() -> None:
    for bend in range(2, 100):
        bent = largest_of(affine(0, 3), affine(-4 * bend, 7))
        assert affine_in_batch(bent, 100) is None, bend


def test_a_bend_beyond_the_range_is_linear_within_it() -> None:
    bent = largest_of(affine(0, 3), affine(-400, 7))
    assert affine_in_batch(bent, 100) == Affine(0, 3, 1, 100)


def test_constant_bytes_are_linear_with_slope_zero() -> None:
    assert affine_in_batch(affine(17, 0), 128) == Affine(17, 0, 1, 128)


def test_one_batch_or_unknown_bytes_are_not_linear() -> None:
    assert affine_in_batch(affine(17, 5), 1) is None
    assert affine_in_batch(lambda _: None, 128) is None
    assert affine_in_batch(lambda batch: None if batch == 64 else batch, 128) is None
    assert affine_in_batch(lambda batch: None if batch == 128 else batch, 128) is None


def test_a_fractional_slope_is_not_linear() -> None:
    assert affine_in_batch(lambda batch: batch // 2, 128) is None


LINES = st.lists(
    st.tuples(st.integers(-500, 500), st.integers(0, 40)).map(lambda line: affine(*line)),
    min_size=1,
    max_size=5,
)


@given(LINES, st.integers(2, 300))
def test_a_linear_formula_is_exact_at_every_batch_of_its_range(
    lines: list[Callable[[int], int]], largest: int
) -> None:
    bytes_at = largest_of(*lines)
    law = affine_in_batch(bytes_at, largest)
    every = range(1, largest + 1)
    if law is not None:
        assert all(law.at(batch) == bytes_at(batch) for batch in every)
    else:
        steps = {bytes_at(batch + 1) - bytes_at(batch) for batch in every[:-1]}
        assert len(steps) > 1
