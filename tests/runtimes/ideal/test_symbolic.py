"""Peaks as polynomials in free dims, against the walk of every point."""

from dataclasses import replace
from itertools import product

import pytest
from closed_forms import ATTENTION, SQUARE, TWO_PIECES, assert_holds_at, closed_form_of
from graphs import model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import MODELS

import onnxmem
from onnxmem.analysis.scaling import ClosedForm, NoClosedForm
from onnxmem.decisions.sweep import BatchFigures, sweep
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.program.polynomials import Growth, Polynomial, polynomial
from onnxmem.runtimes.ideal.activation_memory import activation_memory
from onnxmem.runtimes.ideal.symbolic import Ends, UnprovenError, symbolic_peaks

MEETING = """agraph (float[batch, 3] x, float[13, 1] k) => (float[batch, 3] y) {
    a = Neg(x)
    b = Neg(k)
    s = ReduceSum<keepdims = 1>(b)
    c = Mul(a, s)
    y = Exp(c)
}"""
CHAIN = "agraph (float[batch, 3] x) => (float[batch, 3] y) { a = Neg(x) y = Relu(a) }"
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
CACHED = """agraph (float[batch, new, 3] x, float[batch, past, 3] old) => (float[batch, all, 3] y) {
    joined = Concat<axis = 1>(old, x)
    a = Relu(joined)
    y = Exp(a)
}"""
PADDED = """agraph (float[batch, sequence] x) => (float[batch, longer] y) {
    pads = Constant<value_ints = [0, 2, 0, 3]>()
    a = Pad(x, pads)
    y = Exp(a)
}"""
WITH_ROWS = {"attention": ATTENTION, "cached": CACHED, "padded": PADDED}
STRIDED = """agraph (float[batch, 3, high, wide] x) => (float[n, c, h, w] y) <float[5, 3, 3, 3] k> {
    a = Conv<strides = [2, 2]>(x, k)
    y = Relu(a)
}"""
ROUNDED = """agraph (float[batch, time] x) => (float[batch, t] y) {
    begin = Constant<value_ints = [0]>()
    stop = Constant<value_ints = [1000000]>()
    axis = Constant<value_ints = [1]>()
    step = Constant<value_ints = [2]>()
    y = Slice(x, begin, stop, axis, step)
}"""
SHORT = """agraph (float[batch, time] x) => (float[batch, t] y) {
    begin = Constant<value_ints = [0]>()
    stop = Constant<value_ints = [100]>()
    axis = Constant<value_ints = [1]>()
    y = Slice(x, begin, stop, axis)
}"""
BATCH_ONLY = {"strided": STRIDED, "rounded": ROUNDED, "short": SHORT}


def graphs_of(text: str, *batches: int) -> list[Graph]:
    prepared = prepare(ModelFile("<text>", model_of(text), 0))
    return [build(prepared, Request(batch)).graph for batch in batches]


def line(slope: int, start: int) -> Polynomial:
    return polynomial((((1,), slope), ((0,), start)))


def test_pieces_are_the_lines_of_the_steps() -> None:
    text = """agraph (float[batch, 3] x) => (float[batch, 5] y) <float[3, 5] w, float[700] k> {
        a = Neg(k) b = Neg(x) c = Relu(a) y = MatMul(b, w) }"""
    terms = closed_form_of(model_of(text))
    # At first the 700 numbers and x's twin; later x's twin beside y.
    assert terms.peaks.in_place_peak_pieces == (line(12, 2800), line(32, 0))
    assert terms.inputs == line(12, 0)
    assert terms.peaks.peak_pieces == (line(12, 5600), line(32, 0))


@pytest.mark.parametrize("text", [TWO_PIECES, MEETING])
def test_every_batch_equals_a_walk_of_it(text: str) -> None:
    analysis = onnxmem.analyze(model_of(text))
    for batch in range(1, 40):
        assert_holds_at(analysis, (batch,))


@pytest.mark.parametrize("text", WITH_ROWS.values(), ids=WITH_ROWS)
@pytest.mark.parametrize("asked", [{}, {"batch": 5}])
def test_every_point_equals_a_walk_of_it(text: str, asked: dict[str, int]) -> None:
    analysis = onnxmem.analyze(model_of(text), **asked)  # type: ignore[arg-type]
    assert isinstance(analysis.symbolic, ClosedForm)
    num_symbols = len(analysis.symbolic.symbols)
    assert num_symbols == 2 + (text == CACHED)
    for point in product((1, 13, 131), (2, 3, 509), (1, 7)[: num_symbols - 1]):
        assert_holds_at(analysis, point[:num_symbols])


def test_attention_is_a_square_of_the_sequence() -> None:
    terms = closed_form_of(model_of(ATTENTION), batch=2, dims={"sequence": 1000})
    assert terms.symbols == ("batch", "sequence")
    # The last product; the two squares of the softmax, beside q; q and k beside the scores.
    assert terms.peaks.peak_pieces == (
        polynomial((((0, 0), 308), ((1, 1), 72))),
        polynomial((((1, 1), 44), ((1, 2), 8))),
        polynomial((((1, 1), 88), ((1, 2), 4))),
    )
    assert terms.last == (131, 1000)


@pytest.mark.parametrize("text", BATCH_ONLY.values(), ids=BATCH_ONLY)
def test_sizes_that_are_not_polynomials_have_pieces_in_the_batch_only(text: str) -> None:
    dims = {"high": 17, "wide": 19} if text == STRIDED else {"time": 17}
    analysis = onnxmem.analyze(model_of(text), dims=dims)
    assert isinstance(analysis.symbolic, ClosedForm)
    assert analysis.symbolic.symbols == ("batch",)
    assert analysis.symbolic.fixed == dims
    assert_holds_at(analysis, (11,))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("square", ""),
        ("capped", "not a polynomial"),
        ("packed", "not a polynomial"),
        ("text", "unknown"),
        ("rank", "not a polynomial"),
        ("shared otherwise", ""),
        ("subgraphs", "subgraph"),
    ],
)
def test_reasons_for_no_closed_form(text: str, reason: str) -> None:
    analysis = onnxmem.analyze(model_of(WITHOUT_LINES[text]))
    if not reason:
        for batch in (2, 3, 64, 131):
            assert_holds_at(analysis, (batch,))
        return
    assert isinstance(analysis.symbolic, NoClosedForm)
    assert reason in analysis.symbolic.reason
    row = analysis.to_dict()["activations"]
    assert isinstance(row, dict)
    assert row["peak_rows"] is None
    assert row["no_peak_rows"] == analysis.symbolic.reason


def test_training_another_order_and_a_fixed_batch_have_no_closed_form() -> None:
    model = model_of(TWO_PIECES)
    for analysis in (
        onnxmem.analyze(model, train=True),
        onnxmem.analyze(model, order="best"),
        onnxmem.analyze(model_of("agraph (float x) => (float y) { y = Neg(x) }")),
    ):
        assert isinstance(analysis.symbolic, NoClosedForm)


def test_pieces_in_json_are_the_peaks() -> None:
    analysis = onnxmem.analyze(model_of(ATTENTION), batch=3, dims={"sequence": 5})
    row = analysis.to_dict()["activations"]
    assert isinstance(row, dict)
    rows = row["peak_rows"]
    assert rows["domain"] == {"batch": [1, 131], "sequence": [1, 509]}
    assert (rows["except"], rows["fixed"], row["no_peak_rows"]) == ([], {}, None)

    def value(each: dict[str, dict[str, int]]) -> int:
        numbers = {"1": 1, "batch": 3, "batch*sequence": 15, "batch*sequence^2": 75}
        return sum(n * numbers[name] for name, n in each["monomials"].items())

    for key in ("peak", "in_place_peak"):
        assert max(map(value, rows[key])) == row[f"{key}_bytes"]
    for key in ("naive", "naive_in_place"):
        assert value(rows[key]) == row[f"{key}_bytes"]


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("lstm_classifier", [(1, 1), (3, 2), (7, 99), (131, 509)]),
        ("tinyllama.int4", [(5, 377)]),
        ("smollm_cached", [(3, 17, 290)]),
    ],
)
def test_models_of_many_dims(name: str, points: list[tuple[int, ...]]) -> None:
    analysis = onnxmem.analyze(MODELS / f"{name}.onnx")
    for point in points:
        assert_holds_at(analysis, point)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_base", "gpt2"])
def test_larger_models_of_many_dims(name: str) -> None:
    analysis = onnxmem.analyze(MODELS / f"{name}.onnx")
    for point in ((1, 1), (1, 351), (1, 352), (8, 128), (131, 509)):
        assert_holds_at(analysis, point)


def test_the_batch_at_which_shapes_are_equal_is_excluded() -> None:
    (one,) = graphs_of(
        "agraph (float[batch, 3] x) => (float[batch, 3] y) { a = Neg(x) y = Relu(a) }", 1
    )

    def at(batch: int) -> Graph:
        tensors = {
            **one.tensors,
            "a": replace(one.tensors["a"], shape=(26, 3)),
            "y": replace(one.tensors["y"], shape=(2 * batch, 3)),
        }
        return replace(one, tensors=tensors)

    ends = Ends(at(1), at(131), Growth((131,)))
    peaks = symbolic_peaks(ends, at(1), (1,), activation_memory(at(1)))
    assert peaks.excluded_points == ({0: 13},)
    assert [peaks.excludes((batch,)) for batch in (1, 12, 13, 131)] == [False, False, True, False]


@pytest.mark.parametrize("text", WITHOUT_LINES.values(), ids=WITHOUT_LINES)
def test_a_model_without_lines_is_walked(text: str) -> None:
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
def test_a_sweep_equals_its_batches(batches: list[int], asked: int, num_fixed: int) -> None:
    weights = f"float[3, 5] w, float[{num_fixed}] k"
    text = f"""agraph (float[batch, 3] x) => (float[batch, 5] y) <{weights}> {{
        a = Neg(k) b = Neg(x) c = Relu(a) y = MatMul(b, w) }}"""
    analysis = onnxmem.analyze(model_of(text), batch=asked)
    assert sweep(analysis, batches) == tuple(_walked(analysis, batch) for batch in batches)


def test_a_model_without_a_batch_is_walked() -> None:
    analysis = onnxmem.analyze(model_of("agraph (float x) => (float y) { y = Neg(x) }"))
    assert [row.total_bytes for row in sweep(analysis, (1, 2))] == [8, 8]


def test_shapes_that_are_equal_on_a_curve_have_no_closed_form() -> None:
    (one,) = graphs_of(
        "agraph (float[batch, 3] x) => (float[batch, 3] y) { a = Neg(x) y = Relu(a) }", 1
    )

    def at(batch: int, other: int) -> Graph:
        tensors = {
            **one.tensors,
            "a": replace(one.tensors["a"], shape=(batch, 3)),
            "y": replace(one.tensors["y"], shape=(other, 3)),
        }
        return replace(one, tensors=tensors)

    ends = Ends(at(1, 1), at(131, 509), Growth((131, 509)))
    with pytest.raises(UnprovenError, match="more than a few points"):
        symbolic_peaks(ends, at(1, 1), (1, 1), activation_memory(at(1, 1)))
