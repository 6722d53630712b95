"""Live bytes per step: sums, peak, first step at the peak."""

import pytest

from onnxmem.program.lifetimes import Buffer, Lifetime, Timeline, timeline


def lifetime(size_bytes: int | None, start: int, stop: int) -> Lifetime:
    return Lifetime(Buffer((f"{size_bytes}@{start}",), size_bytes), start, stop)


def test_each_step_sums_what_is_live_in_it() -> None:
    lifetimes = [lifetime(3, 0, 2), lifetime(5, 1, 4), lifetime(7, 2, 3), lifetime(11, 3, 4)]
    assert timeline(lifetimes, 4).live_bytes == (3, 3 + 5, 5 + 7, 5 + 11)


def test_a_lifetime_is_half_open() -> None:
    assert timeline([lifetime(3, 1, 2)], 3).live_bytes == (0, 3, 0)


def test_an_unknown_size_is_left_out() -> None:
    assert timeline([lifetime(None, 0, 2), lifetime(5, 0, 1)], 2).live_bytes == (5, 0)


@pytest.mark.parametrize(
    ("live_bytes", "peak_bytes", "peak_step"),
    [((2, 5, 3), 5, 1), ((2, 5, 5), 5, 1), ((0, 0), 0, 0), ((), 0, None)],
)
def test_the_peak_is_the_first_of_the_largest(
    live_bytes: tuple[int, ...], peak_bytes: int, peak_step: int | None
) -> None:
    found = Timeline(live_bytes)
    assert (found.peak_bytes, found.peak_step) == (peak_bytes, peak_step)
