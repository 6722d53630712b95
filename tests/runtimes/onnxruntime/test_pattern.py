"""onnxruntime's memory pattern: best fit as the first run goes, and the laws of its block."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace, rounded_up

K = 1024
Step = tuple[int, int]
"""Bytes to place, and after how many further steps they are freed."""


def replay(steps: Sequence[Step]) -> PatternTrace:
    """Place a buffer at each step, after those whose lifetime is over are freed."""
    trace = PatternTrace()
    for place, (size, _) in enumerate(steps):
        for gone in range(place):
            if gone + steps[gone][1] == place:
                trace.free(str(gone))
        trace.allocate(str(place), size)
    return trace


def offsets(trace: PatternTrace) -> dict[str, int]:
    return {name: offset for name, (offset, _) in trace.placed.items()}


# By hand


def test_sizes_are_rounded_up_to_256_bytes() -> None:
    trace = PatternTrace()
    trace.allocate("a", 7)
    trace.allocate("b", 257)
    assert trace.placed == {"a": (0, 256), "b": (256, 512)}
    assert trace.size_bytes == 768
    assert [rounded_up(size) for size in (0, 1, 256, 257)] == [0, 256, 256, 512]


def test_a_buffer_goes_into_the_smallest_gap_that_fits() -> None:
    trace = PatternTrace()
    for name, size in {"a": 5, "b": 1, "c": 2, "d": 1, "e": 3, "f": 1}.items():
        trace.allocate(name, size * K)
    for name in "ace":
        trace.free(name)
    # Gaps of 5, 2 and 3 KiB at 0, 6 and 9.
    trace.allocate("g", 3 * K)
    trace.allocate("h", 2 * K)
    trace.allocate("i", 2 * K)
    found = offsets(trace)
    assert [found[name] for name in "ghi"] == [9 * K, 6 * K, 0]
    assert trace.size_bytes == 13 * K


def test_of_equal_gaps_the_first_is_taken() -> None:
    trace = PatternTrace()
    for name in "abcd":
        trace.allocate(name, K)
    trace.free("a")
    trace.free("c")
    trace.allocate("e", K)
    assert offsets(trace)["e"] == 0


def test_the_end_of_the_block_counts_as_a_gap() -> None:
    trace = PatternTrace()
    for name, size in {"a": 5, "b": 1, "c": 3}.items():
        trace.allocate(name, size * K)
    trace.free("a")
    trace.free("c")
    trace.allocate("d", 3 * K)
    trace.allocate("e", 3 * K)
    assert offsets(trace) == {"b": 5 * K, "d": 6 * K, "e": 0}
    assert trace.size_bytes == 9 * K


def test_without_a_gap_a_buffer_goes_behind_the_last_live_one() -> None:
    trace = PatternTrace()
    for name, size in {"a": 2, "b": 1, "c": 2}.items():
        trace.allocate(name, size * K)
    trace.free("a")
    trace.free("c")
    trace.allocate("d", 3 * K)
    assert offsets(trace) == {"b": 2 * K, "d": 3 * K}
    assert trace.size_bytes == 6 * K


def test_the_block_is_larger_than_the_peak_if_gaps_do_not_fit() -> None:
    trace = PatternTrace()
    for name, size in {"a": 2, "b": 1}.items():
        trace.allocate(name, size * K)
    trace.free("a")
    trace.allocate("c", 3 * K)
    assert trace.size_bytes == 6 * K  # 4 KiB are alive at most


def test_buffers_of_zero_bytes_take_no_space_but_have_an_offset() -> None:
    trace = PatternTrace()
    trace.allocate("a", 0)
    assert (trace.size_bytes, trace.placed, trace.sizes) == (0, {}, {"a": 0})


def test_freeing_an_unknown_buffer_does_nothing() -> None:
    trace = PatternTrace()
    trace.allocate("a", 7)
    trace.free("b")
    trace.free("a")
    trace.free("a")
    assert (trace.placed, trace.sizes, trace.size_bytes) == ({}, {"a": 256}, 256)


# Laws


def naive_block(steps: Sequence[Step]) -> int:
    """The block as units of 256 bytes, free or taken; every range of free ones is examined."""
    units: list[int | None] = []  # which step holds each unit
    for place, (size, _) in enumerate(steps):
        units = [
            None if holder is not None and holder + steps[holder][1] <= place else holder
            for holder in units
        ]
        length = -(-size // 256)
        runs: list[tuple[int, int]] = []  # length and start of each run of free units
        for unit, holder in enumerate(units):
            if holder is None and unit and units[unit - 1] is None:
                runs[-1] = (runs[-1][0] + 1, runs[-1][1])
            elif holder is None:
                runs.append((1, unit))
        behind = max(
            (unit + 1 for unit, holder in enumerate(units) if holder is not None), default=0
        )
        start = min((run for run in runs if run[0] >= length), default=(0, behind))[1]
        units += [None] * (start + length - len(units))
        units[start : start + length] = [place] * length
    return 256 * len(units)


STEPS = st.lists(
    st.tuples(st.integers(1, 40).map(lambda n: 131 * n), st.integers(1, 9)), max_size=40
)


@given(STEPS)
def test_the_block_equals_that_of_a_naive_search(steps: list[Step]) -> None:
    assert replay(steps).size_bytes == naive_block(steps)


@given(STEPS)
def test_the_size_of_the_block_is_between_the_peak_and_the_sum(steps: list[Step]) -> None:
    alive = [
        sum(
            rounded_up(size)
            for place, (size, time) in enumerate(steps)
            if place <= now < place + time
        )
        for now in range(len(steps))
    ]
    total = sum(rounded_up(size) for size, _ in steps)
    assert max(alive, default=0) <= replay(steps).size_bytes <= total


@given(STEPS)
def test_no_two_live_buffers_overlap(steps: list[Step]) -> None:
    for end in range(len(steps) + 1):
        trace = replay(steps[:end])
        spans = sorted(trace.placed.values())
        for (start, size), (following, _) in pairwise(spans):
            assert start + size <= following
