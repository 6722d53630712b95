"""Graphs whose peak has a closed form, and its proof at a point: a new analysis and brute force."""

from collections.abc import Iterable

import oracle

import onnxmem
from onnxmem.analysis.scaling import ClosedForm
from onnxmem.program.polynomials import largest

TWO_PIECES = """agraph (float[batch, 3] x) => (float[batch, 5] y) <float[7, 11] w> {
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
SQUARE = """agraph (float[batch, 3] x) => (float[batch, batch] y) {
    t = Transpose(x)
    y = MatMul(x, t)
}"""
ATTENTION = """agraph (float[batch, sequence, 7] x) => (float[batch, sequence, 7] y)
<float[7, 11] w> {
    q = MatMul(x, w)
    k = Transpose<perm = [0, 2, 1]>(q)
    scores = MatMul(q, k)
    weights = Softmax(scores)
    mixed = MatMul(weights, q)
    t = Transpose(w)
    y = MatMul(mixed, t)
}"""


def closed_form_of(source: object, **requested: object) -> ClosedForm:
    """The closed form of a model that has one."""
    found = onnxmem.analyze(source, **requested).symbolic  # type: ignore[arg-type]
    assert isinstance(found, ClosedForm), found
    return found


def assert_holds_at(analysis: onnxmem.Analysis, numbers: Iterable[int]) -> None:
    """Compare the closed form at a point with a new analysis there, and with brute force."""
    terms, point = analysis.symbolic, tuple(numbers)
    assert isinstance(terms, ClosedForm)
    dims = dict(zip(terms.symbols, point, strict=True))
    batch = dims.pop("batch", None)
    again = analysis.at(batch=batch, dims=dims)
    memory, peaks = again.activations, terms.peaks
    assert largest(peaks.peak_pieces, point) == memory.peak_bytes, point
    assert largest(peaks.in_place_peak_pieces, point) == memory.in_place_peak_bytes, point
    assert peaks.naive(len(point)).at(point) == memory.naive_bytes
    assert peaks.naive_in_place(len(point)).at(point) == memory.naive_in_place_bytes
    assert terms.total_bytes(point) == again.total_bytes
    if len(again.graph.nodes) < 30:
        live = [max(oracle.live_bytes(again.graph, in_place=each)) for each in (False, True)]
        assert live == [memory.peak_bytes, memory.in_place_peak_bytes]
