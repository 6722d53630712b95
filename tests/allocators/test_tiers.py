"""Blocks placed in tiers: no two meet, those of a tier before stay, the small ones come last."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import overlaps

from onnxmem.allocators.packed import tiers
from onnxmem.allocators.packed.placements import Blocks, place_flat
from onnxmem.allocators.packed.tiers import place_in_tiers, tier_ends

BLOCKS = st.lists(
    st.tuples(st.integers(1, 13), st.integers(0, 7), st.integers(1, 5)), min_size=1, max_size=23
)


def columns(blocks: list[tuple[int, int, int]]) -> Blocks:
    """Blocks of size, start and number of steps."""
    sizes, starts, lives = (list(column) for column in zip(*blocks, strict=True))
    return Blocks(sizes, starts, [sum(each) for each in zip(starts, lives, strict=True)])


def bound(blocks: list[tuple[int, int, int]]) -> int:
    """The most bytes that are live at one step."""
    return max(
        sum(size for size, start, life in blocks if start <= step < start + life)
        for step in range(13)
    )


@given(BLOCKS)
@settings(deadline=None)
def test_no_two_blocks_meet(blocks: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "_MAX_STEPS", 30)
        offsets = place_in_tiers(columns(blocks), bound(blocks))
    live = {n: (size, start, start + life) for n, (size, start, life) in enumerate(blocks)}
    assert overlaps(live, dict(enumerate(offsets))) == []
    assert min(offsets) == 0
    assert max(np.add(offsets, columns(blocks).sizes)) >= bound(blocks)


@pytest.mark.parametrize(
    ("areas", "ends"),
    [
        ([1_000], [1]),
        ([950, 49, 1], [1, 2, 3]),
        ([940, 55, 4, 1], [2, 3, 4]),
        ([1] * 10, [10]),
        ([500, 500], [2]),
    ],
)
def test_a_tier_ends_where_its_share_of_all_areas_is_reached(
    areas: list[int], ends: list[int]
) -> None:
    assert [*tier_ends(areas)] == ends


def test_the_small_ones_fill_the_gaps_between_the_large() -> None:
    # Two large ones that never meet leave room above each, and the small ones fit there alone.
    blocks = [(97, 0, 5), (89, 5, 5), (3, 0, 5), (11, 5, 5)]
    assert bound(blocks) == columns(blocks).peak_bytes == 100
    assert place_in_tiers(columns(blocks), 100) == [0, 0, 97, 89]


def test_blocks_that_are_placed_stay() -> None:
    sizes, starts, stops = [5, 7, 3, 2], [0, 0, 0, 0], [2, 2, 2, 2]
    found = place_flat([2, 3], sizes, starts, stops, takes_lowest=True, placed=[10, 0])
    assert found == [10, 0, 7, 15]
