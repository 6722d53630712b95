"""Lowering an arena: no step makes it larger, no two blocks meet, and chains end."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.allocators.packed import Ints, Spans, lowered

BLOCKS = st.lists(
    st.tuples(st.integers(1, 13), st.integers(0, 7), st.integers(1, 5)), min_size=1, max_size=11
)


def spans_of(blocks: list[tuple[int, int, int]]) -> Spans:
    """Blocks of size, start and number of steps."""
    sizes, starts, lives = (np.array(column, np.int64) for column in zip(*blocks, strict=True))
    return Spans(sizes, starts, starts + lives)


def bound(spans: Spans) -> int:
    """The most bytes that are live at one step."""
    steps = range(int(spans.stops.max()))
    return max(
        int(spans.sizes[(spans.starts <= step) & (step < spans.stops)].sum()) for step in steps
    )


def top(offsets: Ints, spans: Spans) -> int:
    return int((offsets + spans.sizes).max())


def meets(offsets: Ints, spans: Spans) -> bool:
    """Whether two blocks that are live at one step share an address."""
    return any(
        spans.starts[i] < spans.stops[j]
        and spans.starts[j] < spans.stops[i]
        and offsets[i] < offsets[j] + spans.sizes[j]
        and offsets[j] < offsets[i] + spans.sizes[i]
        for i in range(len(offsets))
        for j in range(i)
    )


@given(BLOCKS)
def test_each_arena_is_smaller_and_sound(blocks: list[tuple[int, int, int]]) -> None:
    """From the worst there is, all blocks above each other."""
    spans = spans_of(blocks)
    stacked = np.concatenate(([0], spans.sizes.cumsum()[:-1]))
    found = [stacked, *lowered(stacked, spans, bound(spans), 200)]
    tops = [top(offsets, spans) for offsets in found]
    assert all(later < earlier for earlier, later in pairwise(tops))
    assert not any(meets(offsets, spans) for offsets in found)
    assert tops[-1] >= bound(spans)
    assert min(each.min() for each in found) >= 0


def test_a_block_takes_the_place_of_one_that_weighs_less() -> None:
    """The first block lies on a small one that may as well lie above it, where nothing else is."""
    spans = spans_of([(2, 0, 2), (5, 1, 3), (3, 3, 1)])
    offsets = np.array([0, 2, 7], np.int64)
    found = list(lowered(offsets, spans, bound(spans), 40))
    assert top(found[-1], spans) == bound(spans) == 8


def test_a_limit_that_cannot_be_met_ends() -> None:
    """Two blocks that always meet: no arena is smaller, whatever the bound that is given."""
    spans = spans_of([(5, 0, 2), (7, 0, 2)])
    assert list(lowered(np.array([0, 5], np.int64), spans, 7, 1_000)) == []


def test_without_steps_nothing_is_tried() -> None:
    spans = spans_of([(5, 0, 1), (7, 0, 1)])
    assert list(lowered(np.array([0, 9], np.int64), spans, 12, 0)) == []


def test_the_offsets_that_are_given_stay() -> None:
    spans = spans_of([(5, 0, 1), (7, 0, 1)])
    given_offsets = np.array([0, 9], np.int64)
    assert [top(each, spans) for each in lowered(given_offsets, spans, 12, 50)][-1] == 12
    assert given_offsets.tolist() == [0, 9]
