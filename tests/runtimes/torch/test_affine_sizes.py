"""The law of a training step's peak: affine sizes, against steps walked at each batch."""

from dataclasses import replace

import pytest
from graphs import model_of

import onnxmem
from onnxmem.analysis.scaling import affine_in_batch
from onnxmem.model.graph import Graph
from onnxmem.program.program import Category
from onnxmem.program.replay import Replay, affine_sizes, replay
from onnxmem.runtimes.torch.memory import Heap, Phase
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import TrainingConfig

LAST = 128
CHAIN = """
    agraph (float[n,3] x) => (float[n,7] y) <float[3,5] w, float[5,7] v> {
        h = MatMul(x, w)
        r = Relu(h)
        y = MatMul(r, v)
    }"""
# A single sample needs no copy of what is transposed before the matmul.
HEADS = """
    agraph (float[n,5,6] x) => (float[n,2,5,5] y) <float[6,6] w, int64[4] to = {0, 5, 2, 3}> {
        a = MatMul(x, w)
        r = Reshape(a, to)
        t = Transpose<perm=[0,2,1,3]>(r)
        s = Transpose<perm=[0,2,3,1]>(r)
        y = MatMul(t, s)
    }"""
GRAM = """
    agraph (float[n,3] x) => (float[n,n] y) <float[3,5] w> {
        h = MatMul(x, w)
        t = Transpose<perm=[1,0]>(h)
        y = MatMul(h, t)
    }"""
# The peak is the optimizer's up to some batch, and the backward pass's from there on.
WIDE = """
    agraph (float[n,3] x) => (float[n,3] y) <float[3,11] w, float[11,3] v> {
        h = MatMul(x, w)
        r = Relu(h)
        y = MatMul(r, v)
    }"""


def analyzed(text: str, batch: int | None = None, **recipe: object) -> onnxmem.Analysis:
    """A training analysis of a graph in ONNX text."""
    given = replace(TrainingConfig(loss="mse"), **recipe)  # type: ignore[arg-type]
    return onnxmem.analyze(model_of(text), batch=batch, train=True, recipe=given)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches at which a step is walked."""
    found: list[int] = []

    def walked(graph: Graph, recipe: TrainingConfig) -> object:
        found.append((graph.tensors[graph.inputs[0]].shape or (0,))[0] or 0)
        return training_memory(graph, recipe)

    monkeypatch.setattr("onnxmem.runtimes.torch.step.training_memory", walked)
    return found


@pytest.mark.parametrize("text", [CHAIN, HEADS, GRAM, WIDE])
@pytest.mark.parametrize("batch", [None, 5, 130])
def test_the_line_through_three_steps_is_the_law(text: str, batch: int | None) -> None:
    found = analyzed(text, batch)
    assert found.training_law == affine_in_batch(
        lambda n: analyzed(text, n).training.peak_bytes,  # type: ignore[union-attr]
        max(batch or 1, LAST),
    )


@pytest.mark.parametrize("text", [CHAIN, WIDE])
def test_a_request_for_one_sample_walks_two_steps(text: str, walks: list[int]) -> None:
    _ = analyzed(text).training_law
    assert walks == [1, 131]


def test_an_analysis_walks_one_step_until_its_law_is_read(walks: list[int]) -> None:
    analysis = analyzed(WIDE, 7)
    assert analysis.training is not None
    assert analysis.torch is not None
    assert (analysis.training.peak_bytes > 0, analysis.status) == (True, "ok")
    assert walks == [7]


def test_a_verdict_and_the_law_reuse_the_walked_step(walks: list[int]) -> None:
    analysis = onnxmem.analyze(model_of(CHAIN), batch=7, train=True, budget_bytes=2**30)
    assert walks.count(7) == 1
    _ = analysis.training_law
    assert walks.count(7) == 1


def test_another_step_is_walked_where_one_sample_differs(walks: list[int]) -> None:
    _ = analyzed(HEADS).training_law
    assert walks[:3] == [1, 131, 128]


def test_three_steps_are_walked_where_a_tensor_has_the_batch_twice(walks: list[int]) -> None:
    assert analyzed(GRAM).training_law is None
    assert walks[:1] == [1]
    assert 131 not in walks


def test_affine_sizes_are_right_at_every_batch() -> None:
    walked = {batch: replay_of(WIDE, batch) for batch in (*range(1, 40), 64, 127, 128, 131)}
    sizes = affine_sizes([(1, walked[1]), (131, walked[131])])
    assert sizes is not None
    for batch, found in walked.items():
        assert found.program == walked[1].program
        assert sizes.at(batch).fixed_bytes.tolist() == found.sizes.fixed_bytes.tolist()
        peaks = found.phase_peaks.values()
        again = replay(found.program, sizes.at(batch)).peak
        assert again.size_bytes == max(peak.size_bytes for peak in peaks)


def replay_of(text: str, batch: int) -> Replay:
    """The allocations of a step at a batch."""
    training = analyzed(text, batch).training
    assert training is not None
    return training.replay


def allocated(*sizes: int, label: str = "a") -> Replay:
    """A step of allocations of some sizes, released from the first on."""
    heap = Heap.with_setup(())
    for number in [heap.allocate(label, Category.ACTIVATION, size) for size in sizes]:
        heap.release(number)
    heap.enter_phase(Phase.BACKWARD)
    return heap.replay()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (allocated(3), allocated(3, 5)),
        (allocated(3), allocated(7, label="b")),
        (allocated(3), allocated(4)),  # no whole bytes a sample
        (allocated(7), allocated(3)),  # falls
        (allocated(3), allocated(3 * 9)),  # as the square of the batch does
    ],
)
def test_sizes_that_are_not_affine(one: Replay, other: Replay) -> None:
    assert affine_sizes([(1, one), (3, other)]) is None


def test_a_batch_between_two_others_may_refute_affine_sizes() -> None:
    first, last = allocated(3, 5), allocated(7, 5)
    sizes = affine_sizes([(1, first), (2, allocated(5, 5)), (3, last)])
    assert sizes is not None
    assert sizes.slope_bytes is not None
    assert (sizes.fixed_bytes.tolist(), sizes.slope_bytes.tolist()) == ([1, 5], [2, 0])
    assert (sizes.first, sizes.last) == (1, 3)
    assert replay(first.program, sizes.at(2)).peak.size_bytes == 10
    assert affine_sizes([(1, first), (2, allocated(5, 6)), (3, last)]) is None


def test_sizes_beyond_64_bits_are_affine_too() -> None:
    one, other = allocated(2**62 + 3, 5), allocated(3 * 2**62 + 3, 11)
    sizes = affine_sizes([(1, one), (3, other)])
    assert sizes is not None
    assert sizes.at(2).fixed_bytes.tolist() == [2**63 + 3, 8]


def test_terms_without_training_walk_no_step(walks: list[int]) -> None:
    question = analyzed(CHAIN).request
    walks.clear()
    assert question is not None
    terms = question.walk(3, {})
    assert (terms.training, walks) == (None, [])
