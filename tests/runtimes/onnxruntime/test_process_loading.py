"""A session in the making, and the process that has run it: weights on their way to the kernels."""

from dataclasses import replace
from typing import Any

import pytest

from onnxmem.runtimes.onnxruntime.process.baselines import Baseline
from onnxmem.runtimes.onnxruntime.process.loading import (
    CreatedWeight,
    Loading,
    LoadSpec,
    PackedWeight,
    Region,
    StoredWeight,
    WeightOrigin,
    process_parts,
)

MIB = 1 << 20
BARE = Baseline(
    process_bytes=0,
    library_bytes=0,
    running_bytes=0,
    registry_bytes=0,
    session_bytes=0,
    node_bytes=0,
    weight_bytes=0,
    kernel_bytes=0,
    unmerged_ends=0,
    mmap_threshold_bytes=128 << 10,
)
"""Nothing but weights and regions."""


def pages(size_bytes: int) -> int:
    return -(-size_bytes // 4096) * 4096


EMPTY = LoadSpec(file_bytes=0, num_nodes=0, num_weights=0, stored=(), baseline=BARE)


def loading_of(*stored: StoredWeight, **spec: Any) -> Loading:  # noqa: ANN401 - LoadTerms' fields
    return Loading(replace(EMPTY, stored=stored, **spec)).run()


def own(name: str, size_bytes: int) -> StoredWeight:
    return StoredWeight(name, size_bytes, is_external=False)


def external(name: str, size_bytes: int) -> StoredWeight:
    return StoredWeight(name, size_bytes, is_external=True)


# A weight's way


def test_a_weight_in_the_file_is_resident_twice_while_it_becomes_a_tensor() -> None:
    loading = loading_of(own("w", 3_000_017), remaining=frozenset("w"))
    assert loading.peak_bytes == 2 * pages(3_000_017)
    assert loading.resident_bytes == pages(3_000_017)


def test_only_one_weight_at_a_time_is_resident_twice() -> None:
    loading = loading_of(own("v", 3_000_017), own("w", 2_000_003), remaining=frozenset("vw"))
    assert loading.peak_bytes == 2 * pages(3_000_017) + pages(2_000_003)


def test_the_file_is_read_through_a_buffer_of_4_mib_at_most() -> None:
    assert loading_of(file_bytes=1_000_003).peak_bytes == pages(1_000_003)
    assert loading_of(file_bytes=64_000_031).peak_bytes == pages(4 * MIB)


def test_a_weight_of_over_50_mb_is_read_into_a_string_that_doubles() -> None:
    loading = loading_of(own("w", 120_000_007), remaining=frozenset("w"))
    # 100 MB are copied into room for 200 MB, of which 20 MB are written afterwards; then the tensor
    assert loading.peak_bytes == 2 * pages(120_000_007)
    assert loading.resident_bytes == pages(120_000_007)
    grown = loading_of(own("w", 60_000_011))
    assert grown.peak_bytes == 2 * pages(60_000_011)


def test_external_weights_take_no_memory_until_a_kernel_reads_them() -> None:
    assert loading_of(external("w", 3_000_017), remaining=frozenset("w")).peak_bytes == 0


def test_an_external_weight_is_resident_beside_its_packed_copy_and_then_freed() -> None:
    packed = (PackedWeight("w", 3_000_017, 4_000_037),)
    loading = loading_of(external("w", 3_000_017), remaining=frozenset("w"), packed=packed)
    assert loading.peak_bytes == pages(3_000_017) + pages(4_000_037)
    assert loading.resident_bytes == pages(4_000_037)


def test_a_packed_weight_with_other_readers_stays() -> None:
    packed = (PackedWeight("w", 3_000_017, 4_000_037, is_last=False),)
    loading = loading_of(external("w", 3_000_017), remaining=frozenset("w"), packed=packed)
    assert loading.resident_bytes == pages(3_000_017) + pages(4_000_037)


def test_a_duplicate_packed_copy_is_freed() -> None:
    first = PackedWeight("w", 3_000_017, 40_000_003, is_last=False)
    second = replace(first, is_retained=False, is_last=True)
    loading = loading_of(external("w", 3_000_017), remaining=frozenset("w"), packed=(first, second))
    assert loading.peak_bytes == pages(3_000_017) + 2 * pages(40_000_003)
    assert loading.resident_bytes == pages(40_000_003)


def test_a_weight_packed_into_the_arena_counts_as_arena_memory() -> None:
    packed = (PackedWeight("w", 3_000_017, 4_000_037, is_reserved=False),)
    loading = loading_of(
        external("w", 3_000_017), packed=packed, regions=(Region(32 * MIB, 4_000_037),)
    )
    assert loading.resident_bytes == pages(4_000_037) + pages(MIB)


@pytest.mark.parametrize(
    ("making", "copies", "results"),
    [(WeightOrigin.FOLDED, 1, 1), (WeightOrigin.FUSED, 1, 2), (WeightOrigin.REORDERED, 1, 3)],
)
def test_computing_a_weight_needs_copies_of_its_source_and_of_itself(
    making: WeightOrigin, copies: int, results: int
) -> None:
    made = CreatedWeight("v", 40_000_003, making, "w", 50_000_017)
    loading = loading_of(external("w", 50_000_017), created=((made,),), remaining=frozenset("v"))
    assert loading.peak_bytes == copies * pages(50_000_017) + results * pages(40_000_003)
    assert loading.resident_bytes == pages(40_000_003)


def test_folding_a_weight_in_memory_needs_no_copy_and_frees_it_after_the_round() -> None:
    made = CreatedWeight("v", 40_000_003, WeightOrigin.FOLDED, "w", 50_000_000)
    loading = loading_of(own("w", 50_000_000), created=((made,),), remaining=frozenset("v"))
    assert loading.peak_bytes == 2 * pages(50_000_000)
    assert loading.resident_bytes == pages(40_000_003)
    both = loading_of(own("w", 50_000_000), created=((made,),), remaining=frozenset("vw"))
    assert both.resident_bytes == pages(50_000_000) + pages(40_000_003)


def test_a_source_of_a_later_round_is_resident_until_then() -> None:
    first = CreatedWeight("v", 40_000_003, WeightOrigin.FOLDED, None, 0)
    second = CreatedWeight("u", 34_000_009, WeightOrigin.FOLDED, "v", 40_000_003)
    loading = loading_of(created=((first,), (second,)), remaining=frozenset("u"))
    assert loading.peak_bytes == pages(40_000_003) + pages(34_000_009)
    assert loading.resident_bytes == pages(34_000_009)


def test_small_weights_are_part_of_the_bytes_per_weight() -> None:
    known = replace(BARE, weight_bytes=1009, node_bytes=2003, session_bytes=7, library_bytes=11)
    weights = (own("b", 512), own("c", 8))
    loading = loading_of(*weights, num_nodes=3, num_weights=2, baseline=known)
    assert loading.peak_bytes == 2 * 1009 + 3 * 2003 + 7 + 11


def test_the_first_nodes_read_pages_of_the_library_and_their_runs_as_many() -> None:
    known = replace(BARE, kernel_bytes=1009, num_kernels=5)
    for num_nodes, read in ((3, 3), (5, 5), (7, 5)):
        loaded = loading_of(num_nodes=num_nodes, baseline=known)
        assert loaded.peak_bytes == 1009 * read
        parts = dict(process_parts([loaded, loaded], loaded.heap, 0))
        assert parts["onnxruntime's library"] == 2 * 1009 * read


# The process


def process_bytes(loaded: Loading, *regions: Region, mapped_bytes: int = 0) -> int:
    grown = loaded.with_regions(regions)
    return sum(size_bytes for _, size_bytes in process_parts([grown], grown.heap, mapped_bytes))


def test_a_process_is_its_state_before_loading_the_regions_and_the_pages_read() -> None:
    known = replace(BARE, process_bytes=1_000_003, running_bytes=101)
    made = replace(EMPTY, baseline=known)
    found = process_bytes(Loading(made).run(), Region(64 * MIB, 5_000_011), mapped_bytes=8192)
    arena = pages(5_000_011) + pages(2 * MIB)  # a handle of 8 bytes for every 256
    assert found == 1_000_003 + 101 + 8192 + arena


def test_regions_of_loading_are_counted_once() -> None:
    region = Region(64 * MIB, 5_000_011)
    made = replace(EMPTY, regions=(region,))
    loaded = Loading(made).run()
    assert process_bytes(loaded, region) == loaded.resident_bytes


def test_a_region_is_placed_in_a_hole_left_by_loading() -> None:
    known = replace(BARE, mmap_threshold_bytes=32 * MIB)
    made = CreatedWeight("v", 1_000_003, WeightOrigin.REORDERED, "w", 1_000_003)
    load_of = LoadSpec(
        file_bytes=0,
        num_nodes=0,
        num_weights=0,
        stored=(external("w", 1_000_003),),
        created=((made,),),
        remaining=frozenset("v"),
        baseline=known,
    )
    loaded = Loading(load_of).run()
    empty = process_bytes(loaded)
    full = process_bytes(loaded, Region(MIB, MIB))
    assert full - empty < MIB // 4
    # One load serves many processes: no region is left in it.
    assert [process_bytes(loaded, Region(MIB, MIB)) for _ in range(3)] == [full] * 3
    assert process_bytes(loaded) == empty


def test_remains_of_weights_under_1_kib_are_not_simulated() -> None:
    small = CreatedWeight("v", 512, WeightOrigin.FOLDED, "w", 512)
    loading = loading_of(own("w", 512), created=((), (small,)), remaining=frozenset("v"))
    assert loading.peak_bytes == loading.resident_bytes == 0


def test_the_peak_is_that_of_loading() -> None:
    spec = replace(EMPTY, stored=(own("w", 3_000_017),))
    assert Loading(spec).run().peak_bytes == 2 * pages(3_000_017)


def test_a_weight_in_memory_is_freed_when_its_last_reader_has_packed_it() -> None:
    packed = (PackedWeight("w", 40_000_003, 50_000_017),)
    loading = loading_of(own("w", 40_000_003), remaining=frozenset("w"), packed=packed)
    assert loading.peak_bytes == pages(40_000_003) + pages(50_000_017)
    assert loading.resident_bytes == pages(50_000_017)
