"""The batch law and the largest batch, against hand-worked lines and brute force."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.capacity import LARGEST_BATCH, BatchLaw, BatchLimit, batch_law, largest_batch


def affine(fixed_bytes: int, bytes_per_sample: int) -> Callable[[int], int]:
    return lambda batch: fixed_bytes + bytes_per_sample * batch


def largest_of(*lines: Callable[[int], int]) -> Callable[[int], int]:
    return lambda batch: max(line(batch) for line in lines)


class Counted:
    """Bytes at a batch that keep the batches they were asked for."""

    def __init__(self, bytes_at: Callable[[int], int | None]) -> None:
        self.bytes_at = bytes_at
        self.asked: list[int] = []

    def __call__(self, batch: int) -> int | None:
        self.asked.append(batch)
        return self.bytes_at(batch)


def test_an_affine_figure_has_its_law() -> None:
    assert batch_law(affine(17, 5), 128) == BatchLaw(17, 5)
    assert BatchLaw(17, 5).bytes_at(3) == 32


def test_three_batches_are_evaluated_for_a_law() -> None:
    bytes_at = Counted(affine(17, 5))
    batch_law(bytes_at, 101)
    assert sorted(bytes_at.asked) == [1, 51, 101]


def test_a_bend_anywhere_in_the_stretch_refutes_the_law() -> None:
    for bend in range(2, 100):
        bent = largest_of(affine(0, 3), affine(-4 * bend, 7))
        assert batch_law(bent, 100) is None, bend


def test_a_bend_behind_the_stretch_is_none_of_the_laws_business() -> None:
    bent = largest_of(affine(0, 3), affine(-400, 7))
    assert batch_law(bent, 100) == BatchLaw(0, 3)


def test_bytes_that_do_not_grow_have_a_flat_law() -> None:
    assert batch_law(affine(17, 0), 128) == BatchLaw(17, 0)


def test_one_batch_or_unknown_bytes_have_no_law() -> None:
    assert batch_law(affine(17, 5), 1) is None
    assert batch_law(lambda _: None, 128) is None
    assert batch_law(lambda batch: None if batch == 64 else batch, 128) is None
    assert batch_law(lambda batch: None if batch == 128 else batch, 128) is None


def test_a_slope_that_is_no_whole_number_has_no_law() -> None:
    assert batch_law(lambda batch: batch // 2, 128) is None


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    assert largest_batch(affine(100, 7), 1000) == BatchLimit(128, 1000, 996, over_bytes=1003)


def test_a_budget_met_to_the_byte_fits() -> None:
    assert largest_batch(affine(100, 9), 1000) == BatchLimit(100, 1000, 1000, over_bytes=1009)


def test_four_evaluations_find_the_limit_of_an_affine_figure() -> None:
    bytes_at = Counted(affine(4_728_064, 9_633_792))
    largest_batch(bytes_at, 24 * 2**30)
    assert len(bytes_at.asked) == 4


def test_not_even_one_sample_fits() -> None:
    assert largest_batch(affine(100, 7), 106) == BatchLimit(0, 106, None, over_bytes=107)


def test_one_sample_fits_and_two_do_not() -> None:
    assert largest_batch(affine(100, 7), 107) == BatchLimit(1, 107, 107, over_bytes=114)


def test_bytes_that_do_not_grow_have_no_limit() -> None:
    assert largest_batch(affine(100, 0), 1000) == BatchLimit(None, 1000, 100)


def test_bytes_that_reach_the_budget_at_the_end_of_the_search_have_no_limit() -> None:
    limit = largest_batch(affine(0, 1), LARGEST_BATCH)
    assert limit == BatchLimit(None, LARGEST_BATCH, LARGEST_BATCH)
    limit = largest_batch(affine(0, 1), LARGEST_BATCH - 1)
    assert limit is not None
    assert limit.batch == LARGEST_BATCH - 1


def test_unknown_bytes_have_no_limit_to_tell() -> None:
    assert largest_batch(lambda _: None, 1000) is None
    assert largest_batch(lambda batch: batch if batch < 5 else None, 1000) is None


def test_unknown_bytes_far_above_the_limit_do_no_harm() -> None:
    limit = largest_batch(lambda batch: max(100, batch) if batch < 150 else None, 120)
    assert limit == BatchLimit(120, 120, 120, over_bytes=121)


LINES = st.lists(
    st.tuples(st.integers(-500, 500), st.integers(0, 40)).map(lambda line: affine(*line)),
    min_size=1,
    max_size=5,
)


@given(LINES, st.integers(0, 3000))
def test_the_largest_batch_is_that_of_trying_each(
    lines: list[Callable[[int], int]], budget_bytes: int
) -> None:
    bytes_at = largest_of(*lines)
    limit = largest_batch(bytes_at, budget_bytes)
    assert limit is not None
    if limit.batch is None:
        assert bytes_at(LARGEST_BATCH) <= budget_bytes
        return
    fitting = [batch for batch in range(1, 4000) if bytes_at(batch) <= budget_bytes]
    assert limit.batch == max(fitting, default=0)
    assert limit.peak_bytes == (bytes_at(limit.batch) if limit.batch else None)
    assert limit.over_bytes == bytes_at(limit.batch + 1)
    assert limit.over_bytes > budget_bytes


@given(st.lists(st.integers(0, 20), min_size=200, max_size=200), st.integers(0, 2000))
def test_any_figure_that_does_not_fall_is_searched_exactly(
    steps: list[int], budget_bytes: int
) -> None:
    def bytes_at(batch: int) -> int:
        return sum(steps[:batch]) + 10_000 * max(0, batch - 200)

    limit = largest_batch(bytes_at, budget_bytes)
    assert limit is not None
    fitting = [batch for batch in range(1, 300) if bytes_at(batch) <= budget_bytes]
    assert limit.batch == max(fitting, default=0)


@given(LINES, st.integers(2, 300))
def test_a_law_holds_at_every_batch_of_its_stretch(
    lines: list[Callable[[int], int]], largest: int
) -> None:
    bytes_at = largest_of(*lines)
    law = batch_law(bytes_at, largest)
    every = range(1, largest + 1)
    if law is not None:
        assert all(law.bytes_at(batch) == bytes_at(batch) for batch in every)
    else:
        steps = {bytes_at(batch + 1) - bytes_at(batch) for batch in every[:-1]}
        assert len(steps) > 1


@pytest.mark.parametrize("budget_bytes", [10**6, 10**9, 10**12])
def test_a_bent_figure_takes_few_evaluations(budget_bytes: int) -> None:
    bytes_at = Counted(largest_of(affine(900_000, 10), affine(1000, 1003), affine(-50_000, 1234)))
    limit = largest_batch(bytes_at, budget_bytes)
    assert limit is not None
    assert limit.batch is not None
    assert len(bytes_at.asked) <= 20
