"""The law of a training step's peak: lines in the batch, against steps walked at each batch."""

from dataclasses import replace

import pytest
from graphs import model_of

import onnxmem
from onnxmem.analysis.scaling.capacity import batch_law
from onnxmem.model import Graph
from onnxmem.runtimes.torch import training_memory
from onnxmem.runtimes.torch.heap import Heap, Kind, Phase, StepTrace
from onnxmem.runtimes.torch.lines import StepLines
from onnxmem.settings import Recipe

LAST = 128
CHAIN = """
    agraph (float[n,3] x) => (float[n,7] y) <float[3,5] w, float[5,7] v> {
        h = MatMul(x, w)
        r = Relu(h)
        y = MatMul(r, v)
    }"""
# One sample alone needs no copy of what is transposed before the product.
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


def analysed(text: str, batch: int | None = None, **recipe: object) -> onnxmem.Analysis:
    """A training analysis of a graph in ONNX text."""
    given = replace(Recipe(loss="mse"), **recipe)  # type: ignore[arg-type]
    return onnxmem.analyze(model_of(text), batch=batch, train=True, recipe=given)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches at which a step is walked."""
    found: list[int] = []

    def walked(graph: Graph, recipe: Recipe) -> object:
        found.append((graph.tensors[graph.inputs[0]].shape or (0,))[0] or 0)
        return training_memory(graph, recipe)

    monkeypatch.setattr("onnxmem.runtimes.torch.training_memory", walked)
    return found


@pytest.mark.parametrize("text", [CHAIN, HEADS, GRAM, WIDE])
@pytest.mark.parametrize("batch", [None, 5, 130])
def test_law_is_that_of_three_steps(text: str, batch: int | None) -> None:
    found = analysed(text, batch)
    assert found.training_law == batch_law(
        lambda n: analysed(text, n).training.peak_bytes,  # type: ignore[union-attr]
        max(batch or 1, LAST),
    )


@pytest.mark.parametrize("text", [CHAIN, WIDE])
def test_two_steps_are_walked_where_one_is_asked_at_one_sample(text: str, walks: list[int]) -> None:
    analysed(text)
    assert walks == [1, 131]


def test_the_last_is_walked_too_where_one_sample_is_laid_out_apart(walks: list[int]) -> None:
    analysed(HEADS)
    assert walks[:3] == [1, 131, 128]


def test_three_are_walked_where_a_tensor_has_the_batch_twice(walks: list[int]) -> None:
    assert analysed(GRAM).training_law is None
    assert walks[:1] == [1]
    assert 131 not in walks


def test_lines_hold_at_every_batch() -> None:
    first, last = (trace_of(WIDE, batch) for batch in (1, 131))
    lines = StepLines.through((1, first), (131, last))
    assert lines is not None
    for batch in (*range(1, 40), 64, 127, 128, 131):
        trace = trace_of(WIDE, batch)
        assert lines.meet(batch, trace)
        assert lines.peak_bytes(batch) == max(each.size_bytes for each in trace.peaks.values())


def trace_of(text: str, batch: int) -> StepTrace:
    """The allocations of a step at a batch."""
    training = analysed(text, batch).training
    assert training is not None
    return training.trace


def allocated(*sizes: int, label: str = "a") -> StepTrace:
    """A step of blocks of some sizes, released from the first on."""
    heap = Heap()
    for number in [heap.allocate(label, Kind.ACTIVATION, size_bytes) for size_bytes in sizes]:
        heap.release(number)
    heap.enter(Phase.BACKWARD)
    return heap.trace()


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
def test_no_lines(one: StepTrace, other: StepTrace) -> None:
    assert StepLines.through((1, one), (3, other)) is None


def test_a_line_is_met_or_not() -> None:
    lines = StepLines.through((1, allocated(3, 5)), (3, allocated(7, 5)))
    assert lines is not None
    assert (lines.fixed, lines.slopes, lines.peak_bytes(2)) == ((1, 5), (2, 0), 10)
    assert lines.meet(2, allocated(5, 5))
    assert not lines.meet(2, allocated(5, 6))


def test_terms_without_training_work_out_none(walks: list[int]) -> None:
    question = analysed(CHAIN).question
    walks.clear()
    assert question is not None
    terms = question.walk(3, {})
    assert (terms.training, walks) == (None, [])
