"""The memory of one rank of several: computed by hand for a prime number of ranks."""

import json
from typing import Any

import pytest
from paths import DATA
from runtimes.torch.training_steps import happenings, sizes, step

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import SHARDINGS, TrainingConfig

WORLD = 3
COUNTS = (35, 15, 33, 22, 26)
SHAPES = tuple(zip((7, 5, 3, 11, 2), COUNTS, strict=True))
TOTAL = sum(COUNTS)
CHAIN = """
    agraph (float[2,7] x) => (float[2,13] y)
    <float[7,5] a, float[5,3] b, float[3,11] c, float[11,2] d, float[2,13] e> {
        h = MatMul(x, a)  i = MatMul(h, b)  j = MatMul(i, c)  k = MatMul(j, d)  y = MatMul(k, e)
    }"""
TRACKED = [json.loads(line) for line in (DATA / "training" / "fsdp.json").read_text().splitlines()]
MOST_OFF = {"resnet18": 0.004, "bert_base": 0.001, "gpt2_small": 0.0015, "vit_tiny": 0.001}
"""An activation gradient in a residual block; parameters whose file lacks a first dim of 1."""
ACTIVATIONS = 4 * 2 * (5 + 3 + 11 + 2 + 13)
INPUTS = 4 * 2 * 7


def share(size_bytes: int, world: int = WORLD) -> int:
    return -(-size_bytes // world)


def shares(bytes_each: int, world: int = WORLD) -> int:
    """Each tensor is cut on its own, and each cut rounded up."""
    return sum(share(bytes_each * count, world) for count in COUNTS)


def rows(bytes_each: int, world: int = WORLD) -> int:
    """``fully_shard`` cuts the first dim of each tensor, and each cut has whole rows."""
    return sum(-(-first // world) * count // first * bytes_each for first, count in SHAPES)


def sharded(how: str, world: int = WORLD, **given: object) -> TrainingMemory:
    return step(CHAIN, shard=how, world=world, **given)


def bytes_of(found: TrainingMemory, category: Category, phase: Phase) -> int:
    replay = found.replay
    return replay.live_by_category(replay.phase_peaks[phase]).get(category, 0)


@pytest.mark.parametrize(
    ("how", "weights", "gradients", "state"),
    [
        ("none", 4 * TOTAL, 4 * TOTAL, 8 * TOTAL + 20),
        ("ddp", 4 * TOTAL, 4 * TOTAL, 8 * TOTAL + 20),
        ("zero1", 4 * TOTAL, 4 * TOTAL, 2 * shares(4) + 5 * share(4)),
        ("zero2", 4 * TOTAL, shares(4), 2 * shares(4) + 5 * share(4)),
        ("zero3", rows(4), rows(4), 2 * rows(4) + 5 * 4),
    ],
)
def test_bytes_of_one_rank(how: str, weights: int, gradients: int, state: int) -> None:
    """Weights, gradients, and Adam's two moments with a counter."""
    found = sharded(how, optimizer="adam")
    assert found.weight_bytes == weights
    assert found.gradient_bytes == gradients
    assert found.optimizer_state_bytes == state
    assert found.saved_activation_bytes == ACTIVATIONS


@pytest.mark.parametrize(("how", "has_buckets"), [("ddp", 1), ("zero1", 1), ("zero2", 0)])
def test_buckets_are_as_large_as_all_gradients(how: str, has_buckets: int) -> None:
    found = sharded(how)
    assert sum(sizes(found).get("gradient buckets", [])) == has_buckets * 4 * TOTAL
    assert "gradient buckets" not in sizes(sharded("none"))


def test_ddp_adds_its_buckets_to_every_phase() -> None:
    alone, ddp = sharded("none"), sharded("ddp")
    for phase, peak in alone.replay.phase_peaks.items():
        assert ddp.replay.phase_peaks[phase].size_bytes == peak.size_bytes + 4 * TOTAL


def test_gradients_are_sharded_as_they_are_computed() -> None:
    """Each is computed whole, reduced to the rank's shard, and freed."""
    found = sharded("zero2")
    assert happenings(found)[:5] == [
        *("+gradient of y", "+gradient of e", "+gradient of k", "-gradient of y", "-k"),
    ]
    assert sizes(found)["gradient of e"] == [4 * 26, share(4 * 26)]
    assert happenings(found)[5:7] == ["+gradient of e", "-gradient of e"]
    held = 4 * TOTAL + INPUTS + 4 * 2 * 13
    assert found.optimizer_peak_bytes == held + shares(4)


def test_weights_are_gathered_block_by_block() -> None:
    """A buffer of the next block is there while one runs, and one that is reduced after it."""
    found = sharded("zero3")
    forward = happenings(found, Phase.FORWARD)
    assert forward[:8] == [
        *("+all-gather of block 0", "+gathered weights of block 0", "+h"),
        *("-gathered weights of block 0", "+all-gather of block 1", "-all-gather of block 0"),
        *("+gathered weights of block 1", "+i"),
    ]
    assert forward[-2:] == ["-gathered weights of block 4", "-all-gather of block 4"]
    backward = happenings(found)
    assert backward[:5] == [
        *("+gradient of y", "+all-gather of block 4", "+gathered weights of block 4"),
        *("-all-gather of block 4", "+all-gather of block 3"),
    ]
    assert backward[-8:] == [
        *("+gradient of a", "-gradient of h", "-gathered weights of block 0"),
        *("-reduce-scatter of block 1", "+reduce-scatter of block 0"),
        *("+gradient of a", "-gradient of a", "-reduce-scatter of block 0"),
    ]
    assert found.optimizer_peak_bytes == 2 * rows(4) + INPUTS + 4 * 2 * 13


def test_a_weight_of_several_blocks_is_the_roots() -> None:
    """It is gathered before the first block, and its whole gradient stays to the end."""
    tied = CHAIN.replace("k = MatMul(j, d)", "n = MatMul(j, d)  o = MatMul(n, f)  k = MatMul(o, f)")
    found = step(tied.replace("> {", ", float[2,2] f> {"), shard="zero3", world=WORLD)
    assert sizes(found)["gathered weights of the root"] == [4 * 4]
    assert happenings(found, Phase.FORWARD)[:2] == [
        *("+all-gather of the root", "+gathered weights of the root"),
    ]
    assert happenings(found)[-4:] == [
        *("+gradient of f", "-gradient of f"),
        *("-gathered weights of the root", "-reduce-scatter of the root"),
    ]


@pytest.mark.parametrize("row", TRACKED, ids=lambda row: f"{row['model']}-{row['batch']}")
def test_a_rank_takes_what_pytorchs_tracker_counts(row: dict[str, Any]) -> None:
    """Of data/training/fsdp.json, by tools/training/fsdp.py: equal, or nearly."""
    model = load(str(DATA / "training" / f"{row['model']}.train.onnx"))
    graph = build(prepare(model), Request(batch=row["batch"])).graph
    given: Any = {"optimizer_form": "single", "shard": "zero3", "attention": "math"}
    found = training_memory(graph, TrainingConfig(world=row["world"], **given))
    assert found.peak_bytes == pytest.approx(row["Total"], rel=MOST_OFF.get(row["model"], 0), abs=0)


def test_temporaries_of_the_optimizer_are_sharded_too() -> None:
    found = sharded("zero1", optimizer="adam")
    steps = sorted(sizes(found)["adam step"])
    assert steps == sorted(share(4 * count) for count in COUNTS)


@pytest.mark.parametrize("precision", ["bf16-master", "fp16-master"])
def test_master_weights_are_part_of_the_state(precision: str) -> None:
    found = sharded("zero1", optimizer="sgd", precision=precision)
    assert found.optimizer_state_bytes == shares(4)
    assert found.weight_bytes == 2 * TOTAL
    wider = [size for label, each in sizes(found).items() if "wider" in label for size in each]
    assert wider == [share(2 * count) for count in COUNTS]


def test_copies_of_mixed_precision_are_not_sharded() -> None:
    """They are cast from the gathered weights, and saved by the layers."""
    found = sharded("zero3", precision="mixed-bf16")
    assert found.weight_bytes == rows(4)
    assert sizes(found)["copy of a"] == [2 * COUNTS[0]]


def test_accumulated_gradients_are_the_ranks_shard() -> None:
    found = sharded("zero2", accumulate=2)
    held = 4 * TOTAL + INPUTS + 4 * 2 * 13
    assert found.optimizer_peak_bytes == held + shares(4)


@pytest.mark.parametrize("how", SHARDINGS)
def test_a_single_rank_has_everything(how: str) -> None:
    """But for the buckets, and what is gathered, which is there all the same."""
    alone, found = sharded("none", optimizer="adam"), sharded(how, world=1, optimizer="adam")
    assert found.weight_bytes == alone.weight_bytes
    assert found.gradient_bytes == alone.gradient_bytes
    assert found.optimizer_state_bytes == alone.optimizer_state_bytes
    if how in {"none", "zero2"}:
        assert found.peak_bytes == alone.peak_bytes


@pytest.mark.parametrize("world", [2, 3, 7])
def test_each_stage_takes_no_more_than_the_one_before(world: int) -> None:
    """Of weights, gradients and state; more ranks, smaller shares."""
    held = [
        found.weight_bytes + found.gradient_bytes + found.optimizer_state_bytes
        for found in (
            sharded(how, world, optimizer="adam") for how in ("none", "zero1", "zero2", "zero3")
        )
    ]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == 4
    more = sharded("zero3", world + 1, optimizer="adam")
    assert (
        more.optimizer_state_bytes
        <= sharded("zero3", world, optimizer="adam").optimizer_state_bytes
    )
