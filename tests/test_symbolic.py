"""Peaks as lines in the batch, against the walk of every batch."""

from dataclasses import replace

import pytest
from graphs import model_of
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxmem
from onnxmem.memory import activation_memory
from onnxmem.memory.symbolic import (
    PeakRow,
    SymbolicPeaks,
    free_prime,
    largest,
    liveness_rows,
    symbolic_peaks,
)
from onnxmem.model import Graph, ModelFile, Request, build, prepare
from onnxmem.sweeping import BatchFigures, sweep

TWO_ROWS = """agraph (float[batch, 3] x) => (float[batch, 5] y) <float[7, 11] w> {
    a = Relu(w)
    b = Neg(x)
    c = Transpose(a)
    d = ReduceSum<keepdims = 0>(c)
    e = Add(b, d)
    f = Concat<axis = 1>(e, b)
    begin = Constant<value_ints = [0]>()
    stop = Constant<value_ints = [5]>()
    one = Constant<value_ints = [1]>()
    y = Slice(f, begin, stop, one)
}"""
MEETING = """agraph (float[batch, 3] x, float[13, 1] k) => (float[batch, 3] y) {
    a = Neg(x)
    b = Neg(k)
    s = ReduceSum<keepdims = 1>(b)
    c = Mul(a, s)
    y = Exp(c)
}"""
SQUARE = """agraph (float[batch, 3] x) => (float[batch, batch] y) {
    t = Transpose(x)
    y = MatMul(x, t)
}"""
CAPPED = """agraph (float[batch, 3] x) => (float[n, 3] y) {
    begin = Constant<value_ints = [0]>()
    stop = Constant<value_ints = [64]>()
    a = Slice(x, begin, stop)
    y = Relu(a)
}"""
WITHOUT_LINES = {
    "square": SQUARE,
    "capped": CAPPED,
    "packed": "agraph (int4[batch, 3] x) => (int4[batch, 3] y) { y = Identity(x) }",
    "text": "agraph (string[batch, 3] x) => (string[batch, 3] y) { y = Identity(x) }",
    "rank": "agraph (float[batch, 3] x) => (float[m] y) { a = Squeeze(x) y = Relu(a) }",
    "shared otherwise": """agraph (float[batch, 3] x, float[1, 3] k) => (float[batch, 3] y) {
        a = Neg(k) b = Exp(x) c = Add(a, b) y = Exp(c) d = Clip(a, b) }""",
    "subgraphs": """agraph (float[batch, 3] x, bool c) => (float[batch, 3] y) {
        y = If(c) <then_branch = t () => (float[batch, 3] z) { z = Relu(x) },
                   else_branch = e () => (float[batch, 3] z) { z = Neg(x) }> }""",
}


def graphs_of(text: str, *batches: int) -> list[Graph]:
    prepared = prepare(ModelFile("<text>", model_of(text), 0))
    return [build(prepared, Request(batch)).graph for batch in batches]


def peaks_of(text: str, prime: int = 131) -> SymbolicPeaks | None:
    one, later = graphs_of(text, 1, prime)
    return symbolic_peaks(one, activation_memory(one), later, prime)


def test_the_rows_are_the_lines_of_the_steps() -> None:
    text = """agraph (float[batch, 3] x) => (float[batch, 5] y) <float[3, 5] w, float[700] k> {
        a = Neg(k) b = Neg(x) c = Relu(a) y = MatMul(b, w) }"""
    one, later = graphs_of(text, 1, 131)
    peaks = symbolic_peaks(one, activation_memory(one), later, 131)
    # At first the 700 numbers and x's twin; later x's twin beside y.
    assert peaks is not None
    assert peaks.in_place_peak_rows == (PeakRow(12, 2800), PeakRow(32, 0))
    assert peaks.inputs == PeakRow(12, 0)
    assert liveness_rows(one, later, 131) == (PeakRow(12, 5600), PeakRow(32, 0))


@pytest.mark.parametrize("text", [TWO_ROWS, MEETING])
def test_every_batch_is_what_a_walk_of_it_says(text: str) -> None:
    peaks = peaks_of(text)
    assert peaks is not None
    for batch, graph in enumerate(graphs_of(text, *range(1, 40)), start=1):
        if peaks.speaks_of(batch):
            peak_bytes = activation_memory(graph).in_place_peak_bytes
            assert largest(peaks.in_place_peak_rows, batch) == peak_bytes, batch


def test_the_batch_at_which_shapes_meet_is_told() -> None:
    (one,) = graphs_of("agraph (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }", 1)

    def at(batch: int) -> Graph:
        tensors = {
            "x": replace(one.tensors["x"], shape=(26, 3)),
            "y": replace(one.tensors["y"], shape=(2 * batch, 3)),
        }
        return replace(one, tensors=tensors)

    peaks = symbolic_peaks(at(1), activation_memory(at(1)), at(131), 131)
    assert peaks is not None
    assert peaks.other_batches == {13}
    assert [peaks.speaks_of(batch) for batch in (0, 1, 12, 13, 131, 132)] == [
        *(False, True, True),
        *(False, True, False),
    ]


@pytest.mark.parametrize("text", WITHOUT_LINES.values(), ids=WITHOUT_LINES)
def test_what_has_no_lines_is_walked(text: str) -> None:
    analysis = onnxmem.analyze(model_of(text))
    assert sweep(analysis, (2, 3, 64, 65)) == tuple(
        _walked(analysis, batch) for batch in (2, 3, 64, 65)
    )


def _walked(analysis: onnxmem.Analysis, batch: int) -> BatchFigures:
    other = analysis.at(batch=batch)
    memory = other.activations
    return BatchFigures(
        batch,
        other.inputs_bytes,
        memory.peak_bytes,
        memory.in_place_peak_bytes,
        other.total_bytes,
    )


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 3000), max_size=5), st.integers(1, 5), st.integers(2, 900))
def test_a_sweep_is_its_batches(batches: list[int], asked: int, num_fixed: int) -> None:
    weights = f"float[3, 5] w, float[{num_fixed}] k"
    text = f"""agraph (float[batch, 3] x) => (float[batch, 5] y) <{weights}> {{
        a = Neg(k) b = Neg(x) c = Relu(a) y = MatMul(b, w) }}"""
    analysis = onnxmem.analyze(model_of(text), batch=asked)
    assert sweep(analysis, batches) == tuple(_walked(analysis, batch) for batch in batches)


def test_a_model_without_a_batch_is_walked() -> None:
    analysis = onnxmem.analyze(model_of("agraph (float x) => (float y) { y = Neg(x) }"))
    assert [row.total_bytes for row in sweep(analysis, (1, 2))] == [8, 8]


def test_a_free_prime_divides_no_dim() -> None:
    (graph,) = graphs_of(
        "agraph (float[batch, 131] x, float[274] z) => (float[batch, 131] y) { y = Neg(x) }", 1
    )
    assert free_prime(graph, 128) == 139
    assert free_prime(graph, 2) == 3


def test_bytes_of_no_rows_are_none() -> None:
    assert largest((), 7) == 0
