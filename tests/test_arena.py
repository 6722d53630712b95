"""Definition 5: offsets without overlap, the bound, the gap and the proof."""

import time
from pathlib import Path
from random import Random

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import overlaps

from onnxmem import analyze
from onnxmem.allocators.packed import Arena, pack, tiers
from onnxmem.allocators.packed import packing as arena_module
from onnxmem.program.lifetimes import Buffer, Lifetime


def lifetime(name: str, size_bytes: int | None, start: int, stop: int) -> Lifetime:
    return Lifetime(Buffer((name,), size_bytes), start, stop)


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    found = []
    for place in range(draw(st.integers(0, 25))):
        start = draw(st.integers(0, 20))
        stop = draw(st.integers(start + 1, 21))
        found.append(lifetime(f"b{place}", draw(st.integers(0, 40)), start, stop))
    return found


def check(arena: Arena, blocks: list[Lifetime]) -> None:
    """The oracle's part: who overlaps whom, what ends on top, what is live."""
    offsets = dict(arena.offsets)
    known = [life for life in blocks if life.buffer.size_bytes]
    assert set(offsets) == {life.buffer.tensors[0] for life in known}
    assert overlaps(blocks, offsets) == []
    assert min(offsets.values(), default=0) == 0
    ends = [offsets[life.buffer.tensors[0]] + (life.buffer.size_bytes or 0) for life in known]
    assert arena.size_bytes == max(ends, default=0)
    live = [
        sum(life.buffer.size_bytes or 0 for life in known if life.start <= step < life.stop)
        for step in range(max((life.stop for life in known), default=0))
    ]
    assert arena.lower_bound_bytes == max(live, default=0) <= arena.size_bytes


@given(lifetimes())
def test_no_two_buffers_overlap_in_time_and_address(blocks: list[Lifetime]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Where no order meets the bound, the search would take all its steps on most examples.
        patch.setattr(arena_module, "_MAX_STEPS", 500)
        check(pack(blocks), blocks)


@given(lifetimes())
def test_nor_where_buffers_are_too_many_for_pairs(blocks: list[Lifetime]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_module, "_MAX_STEPS", 100)
        patch.setattr(arena_module, "_MAX_CONFLICTS", 0)
        patch.setattr(tiers, "_MAX_STEPS", 20)
        check(pack(blocks), blocks)


@given(lifetimes())
def test_nor_where_there_is_no_work_but_for_one_order(blocks: list[Lifetime]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_module, "_MAX_STEPS", 100)
        patch.setattr(arena_module, "_MAX_WORK", 0)
        check(pack(blocks), blocks)
        patch.setattr(arena_module, "_MAX_CONFLICTS", 0)
        patch.setattr(arena_module, "_MOST_FLAT", 0)
        check(pack(blocks), blocks)


@given(lifetimes())
def test_no_search_makes_it_larger_than_the_order_by_time(blocks: list[Lifetime]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_module, "_MAX_CONFLICTS", 0)
        patch.setattr(arena_module, "_MAX_STEPS", 0)
        patch.setattr(arena_module, "_MOST_FLAT", 0)
        in_time = pack(blocks)
        patch.setattr(arena_module, "_MOST_FLAT", 1_000)
        patch.setattr(tiers, "_MAX_STEPS", 20)
        in_tiers = pack(blocks)
    assert in_tiers.size_bytes <= in_time.size_bytes
    assert pack(blocks).size_bytes <= in_time.size_bytes


def test_nothing_takes_nothing() -> None:
    assert pack([]) == Arena(0, 0)
    assert pack([]).is_proven


def test_buffers_of_no_or_unknown_size_have_no_offset() -> None:
    blocks = [lifetime("a", 7, 0, 1), lifetime("b", None, 0, 1), lifetime("c", 0, 0, 1)]
    assert pack(blocks) == Arena(7, 7, (("a", 0),))


def test_dead_bytes_are_used_again() -> None:
    blocks = [lifetime("a", 7, 0, 2), lifetime("b", 5, 1, 3), lifetime("c", 7, 2, 4)]
    arena = pack(blocks)
    assert (arena.size_bytes, arena.gap_bytes, arena.is_proven) == (12, 0, True)


def test_a_block_placed_as_it_comes_is_placed_anew_by_size() -> None:
    # In time order b lies above the hole that a leaves, and c does not fit into that hole.
    blocks = [lifetime("a", 2, 0, 1), lifetime("b", 3, 0, 3), lifetime("c", 5, 1, 3)]
    blocks.append(lifetime("d", 3, 0, 1))
    assert pack(blocks).is_proven


def test_offsets_are_not_padded() -> None:
    blocks = [lifetime("a", 3, 0, 1), lifetime("b", 5, 0, 1), lifetime("c", 7, 0, 1)]
    assert sorted(offset for _, offset in pack(blocks).offsets) == [0, 7, 12]


def test_a_gap_is_told_and_proves_nothing() -> None:
    arena = Arena(size_bytes=13, lower_bound_bytes=11)
    assert (arena.gap_bytes, arena.is_proven) == (2, False)


@pytest.mark.parametrize("num_live", [3, 300])
def test_a_hundred_thousand_buffers_take_seconds(num_live: int) -> None:
    blocks = [
        lifetime(f"b{step}", 1 + step % 97, step, step + 1 + step % num_live)
        for step in range(100_000)
    ]
    start = time.perf_counter()
    arena = pack(blocks)
    assert time.perf_counter() - start < 8  # 1 s on an idle machine
    assert arena.size_bytes < 1.3 * arena.lower_bound_bytes


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_real_networks_are_packed_to_the_bound_at_once(path: Path) -> None:
    blocks = analyze(str(path)).activations.blocks
    start = time.process_time()
    arena = pack(blocks)
    assert time.process_time() - start < 0.1
    assert arena.is_proven


def test_an_arena_is_lowered_where_no_order_is_good() -> None:
    """A rectangle cut at random into pieces: the bound can be met, and no order meets it."""
    draws = Random(5)  # noqa: S311 - the same pieces each time
    boxes = [(0, 40, 0, 4096)]
    while len(boxes) < 40:
        boxes.sort(key=lambda box: (box[1] - box[0]) * (box[3] - box[2]))
        start, stop, low, high = boxes.pop()
        in_time = start + max(1, int((stop - start) * draws.random()))
        in_space = low + max(1, int((high - low) * draws.random()))
        if draws.random() < 0.5 and in_time < stop:
            boxes += [(start, in_time, low, high), (in_time, stop, low, high)]
        else:
            boxes += [(start, stop, low, in_space), (start, stop, in_space, high)]
    blocks = [lifetime(f"b{i}", box[3] - box[2], *box[:2]) for i, box in enumerate(boxes)]
    arena = pack(blocks)
    check(arena, blocks)
    assert pack(blocks) == arena
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_module, "_MAX_STEPS", 0)
        assert pack(blocks).size_bytes > arena.size_bytes


def test_no_tier_is_made_where_an_order_meets_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "_MAX_CONFLICTS", 0)
    monkeypatch.setattr(arena_module, "place_in_tiers", None)
    blocks = [lifetime("a", 2, 0, 1), lifetime("b", 3, 0, 3), lifetime("c", 5, 1, 3)]
    assert pack([*blocks, lifetime("d", 3, 0, 1)]).is_proven


def test_very_many_pairs_are_packed_well() -> None:
    """Half of what the layers of a step make is kept until their backward."""
    num_steps = 5_000
    blocks = []
    for step in range(num_steps // 2):
        last = num_steps - step if step % 2 else step + 2 + step % 7
        blocks.append(lifetime(f"f{step}", 64 << step * 7 % 5, step, last))
        back = num_steps - 1 - step
        blocks.append(
            lifetime(f"b{step}", 64 << step * 3 % 5, back, min(num_steps, back + 2 + step % 7))
        )
    start = time.perf_counter()
    arena = pack(blocks)
    assert time.perf_counter() - start < 8  # 0.5 s on an idle machine
    assert arena.size_bytes <= 1.035 * arena.lower_bound_bytes
