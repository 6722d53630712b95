"""The memory of one rank of several: computed by hand for a prime number of ranks."""

import pytest
from runtimes.torch.training_steps import happenings, sizes, step

from onnxmem.program.program import Category
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.settings import SHARDINGS

WORLD = 3
COUNTS = (35, 15, 33, 22, 26)
TOTAL = sum(COUNTS)
CHAIN = """
    agraph (float[2,7] x) => (float[2,13] y)
    <float[7,5] a, float[5,3] b, float[3,11] c, float[11,2] d, float[2,13] e> {
        h = MatMul(x, a)  i = MatMul(h, b)  j = MatMul(i, c)  k = MatMul(j, d)  y = MatMul(k, e)
    }"""
ACTIVATIONS = 4 * 2 * (5 + 3 + 11 + 2 + 13)
INPUTS = 4 * 2 * 7


def share(size_bytes: int, world: int = WORLD) -> int:
    return -(-size_bytes // world)


def shares(bytes_each: int, world: int = WORLD) -> int:
    """Each tensor is cut on its own, and each cut rounded up."""
    return sum(share(bytes_each * count, world) for count in COUNTS)


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
        ("zero3", shares(4), shares(4), 2 * shares(4) + 5 * share(4)),
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


def test_weights_are_gathered_for_the_largest_unit() -> None:
    """In the forward pass its weights; in the backward pass its gradients too."""
    found = sharded("zero3")
    assert sizes(found)["largest unit, gathered"] == [4 * 35, 4 * 35]
    assert sizes(found)["its gradients"] == [4 * 35]
    assert found.forward_peak_bytes == shares(4) + INPUTS + ACTIVATIONS + 4 * 35
    held = shares(4) + INPUTS + 4 * 2 * 13
    assert found.optimizer_peak_bytes == held + shares(4)
    at_first = 2 * 4 * 35 + shares(4) - share(4 * 35) + 4 * 2 * 5 + 4 * 35 + share(4 * 35)
    assert found.backward_peak_bytes >= held + at_first


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
    assert found.weight_bytes == shares(4)
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


@pytest.mark.parametrize("world", [2, 3, 7, 101])
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
