"""Allocators on a device that is nearly full: what they give back, and when they give up."""

import contextlib
import io
import json
from functools import cache
from pathlib import Path

import pytest
from allocator_events import BARE, EXPANDABLE, replayed
from graphs import model_of
from hypothesis import given
from hypothesis import strategies as st
from models_on_disk import CONVNET, write_model

import onnxmem
from onnxmem.allocators.bfc_arena import ArenaOptions, BfcArena
from onnxmem.allocators.caching import CachingAllocator, CachingConfig
from onnxmem.analysis.fitting.assessing import DemandCurve, FitRequest, fit
from onnxmem.analysis.fitting.footprints import Deployment, on_device, request_of
from onnxmem.analysis.fitting.searching import Search, largest_fitting
from onnxmem.analysis.fitting.verdicts import ACCURACIES, Basis, Demand, Verdict
from onnxmem.cli import main
from onnxmem.decisions.devices import catalog
from onnxmem.errors import UsageError
from onnxmem.program.replay import OutOfMemoryError
from onnxmem.runtimes import assumed
from onnxmem.settings import Settings, TrainingConfig

MIB = 2**20
WIDE = """agraph (float[N,1000003] x) => (float[N,7] y) <float[1000003,7] w> {
    r = Relu(x)  y = MatMul(r, w) }"""


def test_cached_segments_are_released_when_the_device_is_full() -> None:
    """A free segment of 24 MiB is too small for 30, and both together exceed the device."""
    allocator = CachingAllocator(BARE.config, capacity_bytes=50 * MIB)
    allocator.malloc(0, 23 * MIB)
    allocator.free(0)
    allocator.malloc(1, 29 * MIB)
    assert (allocator.reserved_bytes, allocator.num_retries) == (30 * MIB, 1)
    assert allocator.reserved_peak_bytes == 30 * MIB
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(2, 21 * MIB)


def test_a_segment_in_partial_use_is_not_released() -> None:
    allocator = CachingAllocator(BARE.config, capacity_bytes=70 * MIB)
    for number, size in enumerate((37, 3, 5)):
        allocator.malloc(number, size * MIB)
    allocator.free(0)
    allocator.free(1)
    # 38 MiB go back; 20 MiB hold the 5, and 15 of them are free but no segment of their own.
    allocator.malloc(3, 49 * MIB)
    assert allocator.reserved_bytes == (20 + 50) * MIB


def test_oversize_blocks_are_released_first_and_only_as_many_as_needed() -> None:
    config = CachingConfig(max_split_bytes=30 * MIB)
    allocator = CachingAllocator(config, capacity_bytes=200 * MIB)
    for number, size in enumerate((40, 50, 60)):
        allocator.malloc(number, size * MIB)
    for number in range(3):
        allocator.free(number)
    # 60 and 50 are enough for 110; the 40 stay.
    allocator.malloc(3, 110 * MIB)
    assert (allocator.reserved_bytes, allocator.num_retries) == (150 * MIB, 0)
    allocator.malloc(4, 50 * MIB)
    assert (allocator.reserved_bytes, allocator.num_retries) == (200 * MIB, 0)


def test_one_oversize_block_is_released_if_it_is_large_enough() -> None:
    config = CachingConfig(max_split_bytes=30 * MIB)
    allocator = CachingAllocator(config, capacity_bytes=130 * MIB)
    for number, size in enumerate((40, 90)):
        allocator.malloc(number, size * MIB)
    for number in range(2):
        allocator.free(number)
    # 90 are 50 more than 40 and more: too large to be taken, so that they are given back.
    allocator.malloc(2, 60 * MIB)
    assert allocator.reserved_bytes == (40 + 60) * MIB


def test_unmapped_pages_of_an_expandable_segment_leave_a_gap() -> None:
    allocator = CachingAllocator(EXPANDABLE.config, capacity_bytes=120 * MIB)
    for number, size in enumerate((40, 40, 20)):
        allocator.malloc(number, size * MIB)
    allocator.free(1)
    # 40 MiB between two blocks are unmapped; 60 do not fit there, so they lie above.
    allocator.malloc(3, 60 * MIB)
    assert (allocator.reserved_bytes, allocator.num_retries) == (120 * MIB, 1)
    allocator.free(0)
    allocator.free(3)
    # The gap and what is free below it have room for 80: all free pages go back, and 80 are mapped.
    allocator.malloc(4, 80 * MIB)
    assert (allocator.reserved_bytes, allocator.num_retries) == ((20 + 80) * MIB, 2)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(5, 41 * MIB)


SIZES = st.integers(1, 60 * MIB)


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=40), st.booleans(), st.integers(0, 400))
def test_reserved_bytes_are_those_of_the_segments_and_within_capacity(
    requests: list[tuple[int, bool]],
    expands: bool,
    capacity_mib: int,
) -> None:
    settings = EXPANDABLE if expands else BARE
    allocator = CachingAllocator(settings.config, capacity_bytes=capacity_mib * MIB)
    alive: list[int] = []
    for number, (size, frees) in enumerate(requests):
        try:
            allocator.malloc(number, size)
        except OutOfMemoryError:
            # It gives up only where what is in use leaves no room, after all has gone back.
            assert allocator.num_retries
            break
        alive.append(number)
        if frees:
            allocator.free(alive.pop(0))
    assert allocator.allocated_bytes <= allocator.reserved_bytes <= capacity_mib * MIB
    segment_bytes = sum(abs(size) for segment in allocator.layout() for size in segment)
    if not expands:
        assert segment_bytes == allocator.reserved_bytes


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=30))
def test_a_large_enough_device_changes_nothing(
    requests: list[tuple[int, bool]],
) -> None:
    events, alive = [], []
    for number, (size, frees) in enumerate(requests):
        events.append((number, size))
        alive.append((number, -size))
        if frees:
            events.append(alive.pop(0))
    free = replayed([], events, BARE)
    tight = replayed([], events, BARE, capacity_bytes=free.reserved_bytes)
    assert tight == free
    assert not tight.is_out_of_memory


def test_arena_regions_are_reduced_by_a_tenth_until_they_fit() -> None:
    arena = BfcArena(ArenaOptions(initial_bytes=64 * MIB, capacity_bytes=50 * MIB))
    arena.malloc(0, 13 * MIB)
    # 64 MiB times 0.9 as a float of 32 bits, three times, each rounded up to 256 bytes.
    assert arena.regions[0] == 48_922_624
    assert arena.num_retries == 1
    with pytest.raises(OutOfMemoryError):
        arena.malloc(1, 40 * MIB)
    with pytest.raises(OutOfMemoryError):
        BfcArena(ArenaOptions(capacity_bytes=7)).reserve(8)


def test_the_range_of_cudnn_ends_at_a_copy_of_all_operands() -> None:
    conv = """agraph (float[N,3,8,8] x) => (float[N,5,8,8] y) <float[5,3,1,1] w>
        { y = Conv(x, w) }"""
    request = request_of(model_of(conv), Settings(batch=7))
    term = request.workspace(request.results)
    assert term.low_bytes == 0
    assert term.high_bytes == 4 * (7 * 3 * 64 + 7 * 5 * 64 + 15)
    assert term.size_bytes == term.high_bytes  # less than what usually counts
    assert assumed.workspace_of(2**40, None).size_bytes == 32 * MIB
    assert assumed.workspace_of(2**40, 1009) == assumed.Assumed.exactly(1009)
    linear = "agraph (float[N,5] x) => (float[N,7] y) <float[5,7] w> { y = MatMul(x, w) }"
    request = request_of(model_of(linear), Settings())
    assert request.workspace(request.results) is assumed.NO_TERM


@pytest.mark.parametrize(
    ("basis", "memory_bytes"),
    [
        (Basis.TORCH, 700 * MIB),
        (Basis.ORT_CUDA, 540 * MIB),
        (Basis.ORT_CPU, 80 * MIB),
    ],
)
def test_every_batch_up_to_twice_the_largest_agrees_with_its_replay(
    basis: Basis, memory_bytes: int
) -> None:
    settings = Settings(train=basis is Basis.TORCH, asks_onnxruntime=False, cpu="avx512")
    request = request_of(model_of(CONVNET), settings)
    setup = FitRequest(memory_bytes=memory_bytes, basis=basis)
    reach = fit([request], setup).max_batch
    assert reach is not None
    assert reach.number
    again = {n for first, last in reach.above for n in range(first, last + 1)}

    @cache
    def is_met(batch: int) -> bool:
        fitted = DemandCurve((request,), setup).at(batch)
        assert fitted is not None
        return fitted.demand.compared(memory_bytes, ACCURACIES[basis]).verdict.is_met

    step = max(1, reach.number // 8)
    near = range(max(1, reach.number - 2), reach.number + 3)
    for batch in sorted({*near, *range(1, 2 * reach.number, step)}):
        if reach.method != "replays" or batch <= reach.number + 1:
            assert is_met(batch) == (batch <= reach.number or batch in again), batch


def test_a_batch_that_fits_only_after_retries_is_tight() -> None:
    request = request_of(model_of(CONVNET), Settings(train=True, batch=300))
    setup = FitRequest(memory_bytes=0, basis=Basis.TORCH)
    fitted = DemandCurve((request,), setup).at(300)
    assert fitted is not None
    accuracy = ACCURACIES[Basis.TORCH]
    for limit_bytes, verdict in (
        (accuracy.high_bytes(fitted.total_bytes + fitted.demand.more_bytes), Verdict.FITS),
        (fitted.total_bytes, Verdict.TIGHT),
        (fitted.least_bytes - 1, Verdict.OVER),
    ):
        assert fitted.demand.compared(limit_bytes, accuracy).verdict is verdict
    step = max((fitted.total_bytes - fitted.least_bytes) // 20, 1)
    for limit_bytes in range(fitted.least_bytes, fitted.total_bytes, step):
        found = fitted.demand.compared(limit_bytes, accuracy)
        assert found.is_retried is (found.verdict is Verdict.TIGHT)
        assert ((found.num_bytes or 0) <= limit_bytes) is found.is_retried


@pytest.mark.parametrize("basis", [Basis.TORCH, Basis.ORT_CUDA])
def test_what_fits_takes_no_more_than_the_device(basis: Basis) -> None:
    settings = Settings(batch=1, train=basis is Basis.TORCH, asks_onnxruntime=False)
    request = request_of(model_of(WIDE), settings)
    retried = 0
    for memory_bytes in range(2**30, 4 * 2**30, 2**29 + 12345):
        found = fit((request,), FitRequest(memory_bytes=memory_bytes, basis=basis))
        assert found.max_batch is not None
        assert 0 < (found.max_batch.num_bytes or 0) <= memory_bytes
        for row in found.table:
            if row.verdict.is_met:
                assert row.num_bytes is not None
                assert row.num_bytes <= memory_bytes
            retried += row.is_retried
        if found.power_of_two is not None and found.power_of_two.is_retried:
            assert not found.is_power_better
    if basis is Basis.ORT_CUDA:
        assert retried


def test_a_retried_request_takes_what_the_device_has() -> None:
    settings = Settings(batch=1, asks_onnxruntime=False)
    request = request_of(model_of(WIDE), settings)
    setup = FitRequest(memory_bytes=2**30, basis=Basis.ORT_CUDA)
    largest = fit((request,), setup).max_batch
    assert largest is not None
    found = fit((request.at(largest.number),), setup)
    assert found.verdict is Verdict.TIGHT
    assert found.taken_bytes == largest.num_bytes
    assert found.footprint.total_bytes > 2**30 >= found.taken_bytes > 0
    row = found.to_dict()
    assert row["bytes"] == found.taken_bytes
    assert row["margin_bytes"] == 2**30 - found.taken_bytes
    assert row["unlimited_bytes"] == found.footprint.total_bytes
    assert found.instances == 1


@pytest.mark.parametrize(
    "basis",
    [
        *(Basis.TOTAL, Basis.TORCH, Basis.ORT_CUDA),
        pytest.param(Basis.ORT_CPU, marks=pytest.mark.slow),
    ],
)
def test_several_models_or_instances_never_fit_a_larger_batch(basis: Basis) -> None:
    settings = Settings(batch=1, train=basis is Basis.TORCH, asks_onnxruntime=False, cpu="avx512")
    request = request_of(model_of(WIDE), settings)
    memory_bytes = 3 * 2**30
    reached = []
    for requests, instances in (((request,), 1), ((request,), 2), ((request, request), 3)):
        setup = FitRequest(
            memory_bytes=memory_bytes, basis=basis, deployment=Deployment(instances=instances)
        )
        answer = fit(requests, setup)
        assert answer.max_batch is not None
        assert answer.max_batch.number is not None
        reached.append(answer.max_batch.number)
    assert reached == sorted(reached, reverse=True)
    assert len(set(reached)) == len(reached)


def test_each_training_process_has_its_own_context_and_a_server_has_one() -> None:
    def fitted(basis: Basis, instances: int) -> tuple[int, int]:
        settings = Settings(batch=1, train=basis is Basis.TORCH, asks_onnxruntime=False)
        setup = FitRequest(
            memory_bytes=2**30, basis=basis, deployment=Deployment(instances=instances)
        )
        found = DemandCurve((request_of(model_of(CONVNET), settings),), setup).at(1)
        assert found is not None
        return found.context.size_bytes, found.demand.more_bytes

    context_bytes, more_bytes = fitted(Basis.TORCH, 1)
    assert fitted(Basis.TORCH, 3) == (3 * context_bytes, 3 * more_bytes)
    assert fitted(Basis.ORT_CUDA, 3)[0] == fitted(Basis.ORT_CUDA, 1)[0] > 0


def test_the_largest_batch_fits_the_whole_range_of_an_unknown() -> None:
    """10 bytes per unit, and up to 7 more that the file leaves unknown: 5 x 17 = 85."""
    search = Search(
        100,
        ACCURACIES[Basis.TOTAL],
        lambda number: Demand(size_bytes=10 * number, range_bytes=7 * number),
    )
    reach = largest_fitting(search, is_rising=True)
    assert reach is not None
    assert (reach.number, reach.num_bytes, reach.over_bytes) == (5, 50, 60)
    assert [search.verdict(each) for each in (5, 6, 11)] == [
        Verdict.TIGHT,
        Verdict.UNKNOWN,
        Verdict.OVER,
    ]


USUAL_BYTES, LARGE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024, 32 * MIB
"""The two workspaces that PyTorch gives a cuBLAS handle."""


@pytest.mark.parametrize(
    ("torch", "capability", "size_bytes"),
    [
        ("latest", None, USUAL_BYTES),
        ("latest", "8.9", USUAL_BYTES),
        ("latest", "9.0", LARGE_BYTES),
        ("latest", "10.3", LARGE_BYTES),
        ("latest", "11.0", LARGE_BYTES),
        ("latest", "12.1", LARGE_BYTES),
        ("2.5", "9.0", LARGE_BYTES),
        ("2.5", "10.0", USUAL_BYTES),
        ("2.0", "9.0", LARGE_BYTES),
        ("1.12", "9.0", USUAL_BYTES),
    ],
)
def test_pytorch_sizes_cublas_workspaces_by_the_gpu(
    torch: str, capability: str | None, size_bytes: int
) -> None:
    assert TrainingConfig(torch=torch).cublas_bytes(capability) == size_bytes
    assert TrainingConfig(torch=torch, cublas_workspace_bytes=7).cublas_bytes(capability) == 7


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """Of so many features that a device holds a few hundred samples, each of which is replayed."""
    model = WIDE.replace("1000003", "50000017")
    return str(tmp_path / write_model(tmp_path / "wide.onnx", model))


def _taken_bytes(wide: str, device: str, *flags: str) -> int:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(["fit", wide, "--train", "--device", device, "--json", *flags])
    found: int = json.loads(printed.getvalue())["bytes"]
    return found


def test_a_device_sets_its_cublas_workspaces(wide: str) -> None:
    """Both are above 1 MiB, so that each of the two handles has a segment of its own, which the
    allocator rounds up to 20 MiB below 10 MiB and to a multiple of 2 MiB above.
    """
    on_ampere, on_hopper = _taken_bytes(wide, "A100"), _taken_bytes(wide, "H100")
    assert on_ampere == _taken_bytes(wide, "60GiB") == _taken_bytes(wide, "RTX 3090")
    assert on_hopper - on_ampere == 2 * LARGE_BYTES - 20 * MIB
    for device in ("H200", "B200", "RTX 5090"):
        assert _taken_bytes(wide, device) == on_hopper


@pytest.mark.parametrize("size_bytes", [0, USUAL_BYTES, 48 * MIB])
def test_a_given_cublas_workspace_wins_over_the_devices(wide: str, size_bytes: int) -> None:
    flags = ("--cublas-workspace", f"{size_bytes}B")
    assert _taken_bytes(wide, "H100", *flags) == _taken_bytes(wide, "A100", *flags)


def test_a_step_without_matrix_products_has_no_cublas_workspace(tmp_path: Path) -> None:
    text = "agraph (float[N,31] x) => (float[N,31] y) <float[31] w> { y = Mul (x, w) }"
    model = str(tmp_path / write_model(tmp_path / "scale.onnx", text))
    assert _taken_bytes(model, "H100") == _taken_bytes(model, "A100")


def test_every_command_that_takes_a_device_has_its_cublas_workspaces(
    wide: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on_ampere, on_hopper = _taken_bytes(wide, "A100"), _taken_bytes(wide, "H100")
    assert on_ampere != on_hopper
    assert onnxmem.fit(wide, device="H100", train=True).footprint.total_bytes == on_hopper
    main(["fit", wide, "--train", "--which-device", "--json"])
    ranked = {row["name"]: row for row in json.loads(capsys.readouterr().out)["devices"]}
    assert ranked["H100 SXM"]["bytes"] == on_hopper
    assert ranked["A100 40GB"]["bytes"] == on_ampere
    main(["sweep", wide, "--train", "--batch", "1", "--device", "H100", "--json"])
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert point["bytes"] == on_hopper
    write_model(Path(wide).with_name("other.onnx"))
    main([str(Path(wide).parent), "--train", "--device", "H100", "--device", "A100", "--json"])
    models = {row["path"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert [row["bytes"] for row in models[wide]["devices"]] == [on_hopper, on_ampere]


def test_gpus_of_different_workspaces_are_told_apart_in_a_ranking(
    wide: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["fit", wide, "--train", "--which-device"])
    heads = [line for line in capsys.readouterr().out.splitlines() if "(pytorch-cuda" in line]
    assert [head.partition(")")[0] for head in heads] == [
        "Compared (pytorch-cuda",
        "Compared (pytorch-cuda, cuBLAS 32.0 MiB",
    ]


def test_a_named_gpu_has_the_buffers_of_its_own_threads(wide: str) -> None:
    """Those that are set win, and a size has no threads."""
    request = request_of(wide, Settings(batch=1, train=True))
    threads = [
        on_device(request, catalog().find(name), Basis.TORCH).settings.recipe.gpu_threads
        for name in ("V100", "RTX 3090", "Instinct MI300X")
    ]
    assert threads == [80 * 2048, 82 * 1536, None]
    own = request_of(
        wide, Settings(batch=1, train=True, recipe=TrainingConfig(gpu_threads=7 * 1024))
    )
    assert on_device(own, catalog().find("V100"), Basis.TORCH).settings.recipe.gpu_threads == 7168
    assert on_device(request, None, Basis.TORCH) is request
    with pytest.raises(UsageError, match="gpu threads 0 is not a positive integer"):
        TrainingConfig(gpu_threads=0)


def test_the_error_is_that_of_the_set_workspace(wide: str) -> None:
    """As `docs/accuracy.md` has it: the share of rows that the error is stated for."""
    named, unnamed = (
        onnxmem.fit(wide, device=device, train=True).accuracy for device in ("H100", "80GiB")
    )
    page = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for accuracy, workspace in ((named, "32MiB"), (unnamed, "default")):
        row = page.partition(f"| reserved | {workspace} | all | 138 | ")[2].splitlines()[0]
        _, within, worst = (float(cell.strip(" %|")) for cell in row.split(" | "))
        assert accuracy.percent is not None
        assert within <= accuracy.percent < within + 1
        assert f"the largest is {-worst} %" in accuracy.source
    assert (named.percent, unnamed.percent) == (9.0, 11.0)
