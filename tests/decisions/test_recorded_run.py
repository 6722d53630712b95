"""A recorded run beside its prediction: peaks, order, counterparts, and the allocator's replay."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from models_on_disk import write_model
from recorded_snapshots import (
    LARGE,
    MIB,
    OWN,
    SETTINGS,
    SMALL,
    VERSIONS,
    Document,
    changed,
    event,
    freed,
    segment,
    written,
)

import onnxmem
from onnxmem.cli import main
from onnxmem.decisions.recorded_run import RecordedRun, compare_recorded, config_of
from onnxmem.measuring.memory_snapshot import MemorySnapshot, read_memory_snapshot
from onnxmem.program.program import Category

NET = """agraph (float[N,64] x) => (float[N,10] y)
    <float[64,96] w, float[96,10] v>
    { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    write_model(path, NET)
    return str(path)


@pytest.fixture(scope="module")
def analysis(net: str) -> onnxmem.Analysis:
    return onnxmem.analyze(net, batch=8, train=True)


def snapshot_of(folder: Path, content: object) -> MemorySnapshot:
    return read_memory_snapshot(written(folder / "s.pickle", content))


def compared(
    analysis: onnxmem.Analysis, folder: Path, change: Callable[[Document], object], version: str
) -> RecordedRun:
    return compare_recorded(analysis, snapshot_of(folder, changed(version, change)))


def unchanged(_: Document) -> None:
    """Change nothing."""


@pytest.mark.parametrize("version", VERSIONS)
def test_figures_and_segments_of_each_version_are_those_worked_out_by_hand(
    version: str, analysis: onnxmem.Analysis, tmp_path: Path
) -> None:
    found = compared(analysis, tmp_path, unchanged, version)
    assert found.recorded.requested_bytes == 100 + 26 * MIB
    assert found.recorded.allocated_bytes == 512 + 26 * MIB
    assert found.recorded.reserved_bytes == 42 * MIB
    assert found.recorded.num_allocations == 4
    sizes = [each.size_bytes for each in found.recorded.live]
    assert sizes == [18 * MIB, 5 * MIB, 3 * MIB, 100]
    replayed = found.allocator
    assert replayed is not None
    assert replayed.is_exact
    assert replayed.is_same
    assert (replayed.num_same, replayed.num_allocations) == (8, 8)
    assert replayed.segments == (20 * MIB, 18 * MIB, 2 * MIB, 2 * MIB)
    assert replayed.reserved_peak_bytes == replayed.recorded_peak_bytes == 42 * MIB


def test_a_segment_of_another_size_is_the_first_difference(
    analysis: onnxmem.Analysis, tmp_path: Path
) -> None:
    def larger(content: Document) -> None:
        content["device_traces"][0][4]["size"] = 24 * MIB
        content["segments"][2]["total_size"] = 24 * MIB

    found = compared(analysis, tmp_path, larger, "2.6").allocator
    assert found is not None
    assert found.is_exact
    assert not found.is_same
    assert found.num_same == 7
    first = found.first_difference
    assert first is not None
    assert first.num_allocations == 2
    assert first.allocation.size_bytes == 18 * MIB
    assert (first.recorded_bytes, first.replayed_bytes) == (24 * MIB, 18 * MIB)
    assert found.recorded_segments == (24 * MIB, 20 * MIB, 2 * MIB, 2 * MIB)


def test_a_run_that_emptied_its_cache_is_followed(
    analysis: onnxmem.Analysis, tmp_path: Path
) -> None:
    def emptied(content: Document) -> None:
        content["device_traces"][0] += [
            event("segment_free", OWN, 18 * MIB),
            event("segment_alloc", OWN, 22 * MIB),
            event("alloc", OWN, 21 * MIB),
        ]
        whole = (22 * MIB, 21 * MIB, "active_allocated")
        content["segments"][2] = segment((OWN, 22 * MIB, 0, "large"), whole)

    found = compared(analysis, tmp_path, emptied, "2.6")
    assert found.allocator is not None
    assert found.allocator.is_same
    assert found.allocator.reserved_peak_bytes == found.recorded.reserved_bytes == 46 * MIB


def test_a_run_whose_beginning_was_not_recorded_is_no_proof(
    analysis: onnxmem.Analysis, tmp_path: Path
) -> None:
    def late(content: Document) -> None:
        del content["device_traces"][0][:4]  # 100 B and 3 MiB were there before

    found = compared(analysis, tmp_path, late, "2.6")
    assert found.recorded.requested_bytes == 100 + 26 * MIB
    assert found.recorded.num_allocations == 2
    assert found.recorded.reserved_bytes == 42 * MIB
    assert found.allocator is not None
    assert not found.allocator.is_exact
    assert found.allocator.num_allocations == 6
    assert found.allocator.reserved_peak_bytes == 42 * MIB


def test_without_events_the_state_at_the_end_is_compared(
    analysis: onnxmem.Analysis, tmp_path: Path
) -> None:
    def without(content: Document) -> None:
        del content["device_traces"]

    found = compared(analysis, tmp_path, without, "2.3")
    assert found.allocator is None
    assert found.parting is None
    assert found.recorded.reserved_bytes == 42 * MIB
    assert found.recorded.requested_bytes == 7 * MIB + 100 + 4 + 2000 + 700


def test_blocks_of_two_private_pools_do_not_mix(analysis: onnxmem.Analysis, tmp_path: Path) -> None:
    """A block that is free in a CUDA graph's pool serves no request outside of it."""
    trace = [
        event("segment_alloc", LARGE, 20 * MIB),
        event("alloc", LARGE, 3 * MIB),
        *freed(LARGE, 3 * MIB),
        event("segment_alloc", OWN, 20 * MIB),
        event("alloc", OWN, 3 * MIB),
    ]
    private = segment((LARGE, 20 * MIB, 0, "large"), (20 * MIB, 0, "inactive"))
    private["segment_pool_id"] = (3, 1)
    common = segment(
        (OWN, 20 * MIB, 0, "large"),
        (3 * MIB, 3 * MIB, "active_allocated"),
        (17 * MIB, 0, "inactive"),
    )
    content = {"segments": [private, common], "device_traces": [trace]}
    for newer in (False, True):
        for each in trace if newer else ():
            each["pool_id"] = (3, 1) if each["addr"] < OWN else (0, 0)
        found = compare_recorded(analysis, snapshot_of(tmp_path, content)).allocator
        assert found is not None
        assert found.is_same
        assert found.is_exact


def test_expandable_segments_are_compared_by_what_is_mapped(
    analysis: onnxmem.Analysis, tmp_path: Path
) -> None:
    trace = [
        event("segment_map", LARGE, 20 * MIB),
        event("alloc", LARGE, 15 * MIB),
        event("segment_map", LARGE + 20 * MIB, 20 * MIB),
        event("alloc", LARGE + 15 * MIB, 11 * MIB),
        event("segment_map", SMALL, 2 * MIB),
        event("alloc", SMALL, 100),
    ]
    large = segment(
        (LARGE, 40 * MIB, 0, "large"),
        (15 * MIB, 15 * MIB, "active_allocated"),
        (11 * MIB, 11 * MIB, "active_allocated"),
        (14 * MIB, 0, "inactive"),
    )
    small = segment(
        (SMALL, 2 * MIB, 0, "small"), (512, 100, "active_allocated"), (2 * MIB - 512, 0, "inactive")
    )
    for each in (large, small):
        each["is_expandable"] = True
    content = {
        "segments": [large, small],
        "device_traces": [trace],
        "allocator_settings": SETTINGS | {"expandable_segments": True},
    }
    found = compare_recorded(analysis, snapshot_of(tmp_path, content)).allocator
    assert found is not None
    assert found.is_same
    assert found.segments == (42 * MIB,)


def test_settings_that_are_not_emulated_are_named() -> None:
    config, left_out = config_of({"max_split_size": 2**28, "roundup_power2_divisions": [0, 8]})
    assert (config.max_split_bytes, config.power2_divisions, left_out) == (2**28, 8, ())
    config, left_out = config_of({"roundup_power2_divisions": [1, 2, 8], "max_split_size": 512})
    assert config.max_split_bytes is None
    assert left_out == ("roundup_power2_divisions that differ by size", "max_split_size 512")
    assert config_of({})[1] == ()


# The snapshots that onnxmem writes


@pytest.mark.parametrize("flags", [(), ("--expandable-segments",), ("--optimizer", "sgd")])
def test_a_snapshot_of_a_prediction_is_that_prediction(
    flags: tuple[str, ...], net: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "own.pickle")
    words = ["export", net, "--batch", "8", "--train", "--format", "torch-snapshot", *flags]
    assert main([*words, "-q", "-o", path]) == 0
    optimizer = "sgd" if "sgd" in flags else None
    expandable = bool(flags) and "expandable" in flags[0]
    analysis = onnxmem.analyze(
        net, batch=8, train=True, optimizer=optimizer, expandable_segments=expandable
    )
    content = pickle.loads(Path(path).read_bytes())  # noqa: S301 - written above
    content["allocator_settings"] = {"expandable_segments": expandable}
    found = compare_recorded(analysis, snapshot_of(tmp_path, content))
    assert found.recorded.requested_bytes == found.predicted.requested_bytes
    assert found.recorded.allocated_bytes == found.predicted.allocated_bytes
    assert (found.counterparts.only_predicted, found.counterparts.only_recorded) == ((), ())
    assert found.allocator is not None
    assert found.allocator.is_same
    assert found.parting is not None
    assert found.parting.num_same == found.parting.num_predicted > 10
    assert found.parting.predicted is None


def test_the_workspaces_of_convolutions_are_in_the_prediction_too(tmp_path: Path) -> None:
    """Without them the orders part at the first convolution."""
    net, path = str(tmp_path / "conv.onnx"), str(tmp_path / "own.pickle")
    text = """agraph (float[N,3,16,16] x) => (float[N,8,16,16] y)
        <float[16,3,3,3] v, float[8,16,3,3] w>
        { h = Conv <pads = [1, 1, 1, 1]> (x, v) r = Relu(h)
          y = Conv <pads = [1, 1, 1, 1]> (r, w) }"""
    write_model(Path(net), text)
    words = ["export", net, "--batch", "8", "--train", "--format", "torch-snapshot"]
    assert main([*words, "-q", "-o", path]) == 0
    found = compare_recorded(onnxmem.analyze(net, batch=8, train=True), read_memory_snapshot(path))
    assert found.parting is not None
    assert found.parting.num_same == found.parting.num_predicted > 10
    assert (found.counterparts.only_predicted, found.counterparts.only_recorded) == ((), ())


def test_an_inference_is_compared_with_its_snapshot(net: str, tmp_path: Path) -> None:
    path = str(tmp_path / "own.pickle")
    assert (
        main(["export", net, "--batch", "8", "--format", "torch-snapshot", "-q", "-o", path]) == 0
    )
    analysis = onnxmem.analyze(net, batch=8)
    found = compare_recorded(analysis, read_memory_snapshot(path))
    assert found.predicted.requested_bytes == analysis.total_bytes
    assert found.recorded.requested_bytes == analysis.total_bytes
    assert (found.counterparts.only_predicted, found.counterparts.only_recorded) == ((), ())


def test_what_differs_is_named_where_it_begins(net: str, tmp_path: Path) -> None:
    path = str(tmp_path / "own.pickle")
    words = ["export", net, "--batch", "8", "--train", "--format", "torch-snapshot"]
    assert main([*words, "-q", "-o", path]) == 0
    content = pickle.loads(Path(path).read_bytes())  # noqa: S301 - written above
    allocs = [each for each in content["device_traces"][0] if each["action"] == "alloc"]
    changed_one = next(each for each in allocs if "/y" in str(each) or "'y'" in str(each))
    at = allocs.index(changed_one)
    changed_one["size"] += 40
    analysis = onnxmem.analyze(net, batch=8, train=True)
    found = compare_recorded(analysis, snapshot_of(tmp_path, content)).parting
    assert found is not None
    assert found.begins_at + found.num_same == at
    assert found.recorded is not None
    assert found.predicted is not None
    assert found.recorded.size_bytes == found.predicted.size_bytes + 40


def test_categories_say_how_much_of_them_the_run_has(net: str, tmp_path: Path) -> None:
    """A run of SGD has no state: Adam's moments are only in the prediction."""
    path = str(tmp_path / "own.pickle")
    words = ["export", net, "--batch", "8", "--train", "--optimizer", "sgd"]
    assert main([*words, "--format", "torch-snapshot", "-q", "-o", path]) == 0
    analysis = onnxmem.analyze(net, batch=8, train=True)
    found = compare_recorded(analysis, read_memory_snapshot(path)).counterparts
    by_category = {each.category: each for each in found.categories}
    assert by_category[Category.WEIGHT].matched_bytes == by_category[Category.WEIGHT].size_bytes
    total = sum(each.size_bytes for each in found.categories)
    assert found.matched_bytes + sum(each.size_bytes for each in found.only_predicted) == total
    assert sum(each.size_bytes for each in found.only_predicted) >= 2 * (64 * 96 + 96 * 10) * 4
