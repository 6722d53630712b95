"""Closed forms of graphs that compute dims, and the linear formulas and limits taken from them."""

from dataclasses import replace
from random import Random
from typing import Final

import pytest
from closed_forms import ATTENTION, SQUARE, TWO_PIECES, assert_holds_at, closed_form_of
from graphs import model_of
from random_graphs import static_graph

import onnxmem
from onnxmem.analysis.request import AnalysisRequest, StageResults
from onnxmem.analysis.scaling import ClosedForm, NoClosedForm
from onnxmem.program.polynomials import polynomial

BATCHES: Final = (1, 2, 3, 4, 64, 100, 101, 128)

_COMPUTED: Final = """agraph (float[batch, time] x, float[other, 3] z) => (float[n] y) {{
    nought = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
    two = Constant<value_ints = [2]>() hundred = Constant<value_ints = [100]>()
    number = Constant<value_float = 1.0>()
    s = Shape(x) b = Gather(s, nought) t = Gather(s, one) r = Shape(z) o = Gather(r, nought)
    {lines}
    y = Expand(number, d)
}}"""
COMPUTED: Final = {
    "maximum": "d = Max(b, t)",
    "least of three": "u = Max(t, o) d = Min(b, u)",
    "odd": "u = Mod(t, two) d = Add(u, one)",
    "odd sum": "u = Add(b, t) v = Mod(u, two) d = Add(v, one)",
    "odd sum of others": "u = Add(t, o) v = Mod(u, two) d = Add(v, one)",
    "even": "u = Add(t, one) v = Div(u, two) d = Mul(v, two)",
    "condition": "u = Greater(t, hundred) d = Where(u, t, one)",
    "even batch": "u = Add(b, one) v = Div(u, two) d = Mul(v, two)",
}
PADDED: Final = """agraph (float[batch, time] x) => (float[batch, t] y) {
    one = Constant<value_ints = [1]>() two = Constant<value_ints = [2]>()
    zeros = Constant<value_ints = [0, 0, 0]>()
    s = Shape(x) t = Gather(s, one) odd = Mod(t, two) pads = Concat<axis = 0>(zeros, odd)
    y = Pad(x, pads)
}"""
BY_CHANCE: Final = """agraph (float[batch, time] x) => (float[batch, t] y) {
    times = Constant<value_ints = [1, 65]>() pads = Constant<value_ints = [0, 0, 0, 189]>()
    a = Tile(x, times) y = Pad(a, pads)
}"""
CONCAVE: Final = """agraph (float[batch, 5] x, float[300, 5] z) => (float[n, m] y) {
    nought = Constant<value_ints = [0]>() all = Constant<value_ints = [300]>()
    s = Shape(x) b = Gather(s, nought) c = Slice(z, b, all, nought)
    t = Transpose(c) y = MatMul(x, t)
}"""
SIMILAR: Final = """agraph (float[batch, 16] image, float[batch, 12] words) => (float[n, m] y)
<float[16, 7] u, float[12, 7] v> {
    a = MatMul(image, u) b = MatMul(words, v) t = Transpose(b) c = MatMul(a, t) y = Softmax(c)
}"""
LAWS: Final = {"square": SQUARE, "similar": SIMILAR, "concave": CONCAVE, "two rows": TWO_PIECES}


def assert_line_agrees_with_analyses(analysis: onnxmem.Analysis) -> None:
    """A linear formula equals the analyzed total of every batch; without one no line does."""
    totals = [analysis.at(batch=batch).total_bytes for batch in BATCHES]
    law = analysis.batch_law
    if law is not None:
        assert [law.at(batch) for batch in BATCHES] == totals
    else:
        assert None not in totals
        slope, rest = divmod((totals[-1] or 0) - (totals[0] or 0), 127)
        line = [(totals[0] or 0) + slope * (batch - 1) for batch in BATCHES]
        assert rest or line != totals


@pytest.mark.parametrize("text", LAWS.values(), ids=LAWS)
def test_a_linear_formula_agrees_with_analyses_at_each_batch(text: str) -> None:
    assert_line_agrees_with_analyses(onnxmem.analyze(model_of(text)))


def test_a_quadratic_is_not_linear_in_the_batch() -> None:
    analysis = onnxmem.analyze(model_of(SQUARE))
    assert analysis.batch_law is None
    assert closed_form_of(model_of(SQUARE)).line_in_batch(128) is None
    assert onnxmem.analyze(model_of(SQUARE), batch=20_000).batch_law is None


def test_a_quadratic_piece_below_the_peak_does_not_prevent_linearity() -> None:
    closed_form = closed_form_of(model_of(TWO_PIECES))
    peaks = replace(closed_form.peaks)
    line, bent = polynomial([((1,), 900)]), polynomial([((2,), 2)])
    vars(peaks)["in_place_peak_pieces"] = (line, bent)
    start = closed_form.weights.at((0,))
    slope = closed_form.inputs.at((1,)) + 900
    found = replace(closed_form, peaks=peaks)
    assert found.line_in_batch(128) == (start, slope)
    assert found.line_in_batch(451) is None
    assert found.line_in_batch(20_000) is None


@pytest.mark.parametrize("text", [*COMPUTED, PADDED, BY_CHANCE])
def test_formulas_of_computed_dims_agree_with_analyses(text: str) -> None:
    lines = COMPUTED.get(text)
    model = model_of(text if lines is None else _COMPUTED.format(lines=lines))
    analysis = onnxmem.analyze(model)
    assert_line_agrees_with_analyses(analysis)
    closed_form = analysis.symbolic
    if isinstance(closed_form, NoClosedForm):
        assert text in {"even batch", "odd sum"}
        assert "not a polynomial" in closed_form.reason
        return
    assert closed_form.symbols == ("batch",)
    for batch in BATCHES:
        assert_holds_at(analysis, (batch,))


MOVED: Final = """agraph (float[batch, time, 6] x) => (float[a, b, 2, 3] y) {
    nought = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
    two = Constant<value_ints = [2]>() rest = Constant<value_ints = [2, 3]>()
    flat = Constant<value_ints = [-1]>() row = Constant<value_ints = [-1, 1, 1]>()
    first = Constant<value_int = 0>() number = Constant<value_floats = [1.0]>()
    s = Shape(x) b = Gather(s, first) u = Unsqueeze(b, nought) t = Slice(s, one, two, nought)
    w = Cast<to = 6>(t) v = Cast<to = 7>(w)
    d = Concat<axis = 0>(u, v, rest) e = Reshape(d, flat) h = Reshape(x, e)
    i = ConstantOfShape(v) j = Expand(number, v) k = Add(i, j) l = Reshape(k, row) y = Add(h, l)
}"""
"""The numbers of a shape are moved, and made the dims of tensors."""
WALKS: Final = {
    MOVED: (2, 1),
    MOVED.replace("to = 6", "to = 10"): (2, 3),
    MOVED.replace("Reshape(d, flat)", "Abs(d)"): (2, 3),
    "agraph (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }": (1, 1),
    ATTENTION: (2, 1),
    PADDED.replace("Mod(t, two)", "Sub(two, one)"): (2, 3),
    BY_CHANCE.replace("65", "1"): (2, 3),
    "agraph (float[batch, all, past, new] x) => (float[batch, a, b, c] y) { y = Relu(x) }": (3, 4),
}


@pytest.mark.parametrize(("text", "num"), WALKS.items(), ids=range(len(WALKS)))
def test_only_graphs_with_computed_dims_need_more_analyses(
    text: str, num: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    walk, walked = AnalysisRequest.walk, []

    def counted(self: AnalysisRequest, batch: int | None, dims: dict[str, int]) -> StageResults:
        walked.append((batch, dims))
        return walk(self, batch, dims)

    monkeypatch.setattr(AnalysisRequest, "walk", counted)
    model = model_of(text)
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        if dim.dim_param == "all":
            dim.dim_param = "past + new"
    closed_form = closed_form_of(model)
    assert (len(closed_form.symbols), len(walked)) == num


def test_a_formula_of_moved_dims_agrees_with_analyses() -> None:
    analysis = onnxmem.analyze(model_of(MOVED))
    for point in ((1, 1), (2, 7), (6, 4), (104, 103), (131, 509)):
        assert_holds_at(analysis, point)


def test_the_largest_corner_of_the_range_is_verified() -> None:
    capped = """agraph (float[batch, time] x) => (float[n] y) {
        flat = Constant<value_ints = [-1]>() nought = Constant<value_ints = [0]>()
        most = Constant<value_ints = [66900]>()
        f = Reshape(x, flat) y = Slice(f, nought, most, nought)
    }"""
    analysis = onnxmem.analyze(model_of(capped), dims={"time": 512})
    # 131 x 509 is below the most, 131 x 512 above it.
    assert isinstance(analysis.symbolic, NoClosedForm)
    attention = closed_form_of(model_of(ATTENTION), batch=1, dims={"sequence": 512})
    assert attention.last == (131, 512)


def test_a_largest_batch_and_the_next_are_verified_by_analyses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of(TWO_PIECES)
    budget_bytes = onnxmem.analyze(model, batch=50).total_bytes
    honest = onnxmem.analyze(model, budget_bytes=budget_bytes).max_batch
    assert honest is not None
    assert honest.number == 50
    # Rows that were wrong between the points at which they are held would be found out.
    monkeypatch.setattr(ClosedForm, "total_bytes", lambda _, numbers: 7 * numbers[0])
    monkeypatch.setattr("onnxmem.analysis.scaling._PiecewiseFit.check", lambda *_: None)
    assert onnxmem.analyze(model, budget_bytes=budget_bytes).max_batch == honest
    for least in (0, 3):
        limit = onnxmem.analyze(model, budget_bytes=least).max_batch
        assert limit is not None
        assert limit.number == 0


def test_a_total_that_differs_from_the_polynomials_has_no_closed_form() -> None:
    """In this random graph the weights that give shapes do not grow linearly with the batch."""
    analysis = onnxmem.analyze(static_graph(164))
    assert analysis.symbolic == NoClosedForm("the total at some dims differs from the polynomials")


def test_a_given_reshape_target_is_valid_at_its_batch_only() -> None:
    text = """agraph (float[batch, 12] x, int64[3] target) => (float[a, b, c] y) {
        r = Relu(x) y = Reshape(r, target) }"""
    fixed = onnxmem.analyze(model_of(text), values={"target": [1, 3, 4]})
    assert fixed.status == "ok"
    assert fixed.batch_law is None
    assert isinstance(fixed.symbolic, NoClosedForm)
    other = fixed.at(batch=2)
    assert other.status == "partial"
    (finding,) = (each for each in other.findings if each.code == "unused_value")
    assert "cannot turn 24 elements into 12" in finding.message
    free = onnxmem.analyze(model_of(text), values={"target": [-1, 3, 4]})
    assert free.batch_law is not None
    assert_holds_at(free, (17,))


_STEPS: Final = (
    *("Relu", "Transpose", "Join", "Square", "Mean", "Similar"),
    *("Mod", "Max", "Min", "Where", "Moved", "Tile", "Pad"),
)


def small_graph(draws: Random) -> str:
    """A graph of chains and joins of tensors of a few shapes, some with computed dims."""
    shapes, lines = {"x": "bsf", "w": "sf"}, []
    for number in range(draws.randint(1, 7)):
        name, source = f"t{number}", draws.choice(sorted(shapes))
        shape = shapes[source]
        kind = draws.choice(_STEPS)
        made, shapes[name] = _step(kind, name, source, shape)
        if made:
            lines += made
        else:
            other = draws.choice([n for n in shapes if shapes[n] == shape])
            lines.append(f"{name} = Concat<axis = 0>({source}, {other})")
            shapes[name] = "2" + name
    last = next(each for each in reversed(shapes) if each == "x" or each.startswith("t"))
    inputs = "float[batch, sequence, 7] x, float[sequence, 7] w"
    return "\n".join(
        [f"agraph ({inputs}) => (float[n] y) {{", _NUMBERS, *lines, f"y = Neg({last})}}"]
    )


_NUMBERS: Final = """
    nought = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
    two = Constant<value_ints = [2]>() many = Constant<value_ints = [40]>()
    number = Constant<value_float = 1.0>()
    size = Shape(x) b = Gather(size, nought) s = Gather(size, one)"""
_OF_NUMBERS: Final = {
    "Mod": "{0}u = Add(b, s) {0}v = Mod({0}u, two) {0}d = Add({0}v, one)",
    "Max": "{0}d = Max(b, s)",
    "Min": "{0}d = Min(b, many)",
    "Where": "{0}c = Greater(s, many) {0}d = Where({0}c, s, many)",
    "Moved": "{0}d = Concat<axis = 0>(s, b, two)",
}


def _step(kind: str, name: str, source: str, shape: str) -> tuple[list[str], str]:
    """The lines of a step and the shape of its output; without lines it joins."""
    if kind in _OF_NUMBERS:
        return [_OF_NUMBERS[kind].format(name), f"{name} = Expand(number, {name}d)"], name
    if kind == "Square" and shape == "bsf":
        turned = f"{name}t = Transpose<perm = [0, 2, 1]>({source})"
        return [turned, f"{name} = MatMul({source}, {name}t)"], "bss"
    if kind == "Similar" and shape == "sf":
        return [f"{name}t = Transpose({source})", f"{name} = MatMul({source}, {name}t)"], "ss"
    if kind in {"Tile", "Pad"} and shape == "sf":
        numbers = "2, 3" if kind == "Tile" else "0, 0, 5, 0"
        given_ints = f"{name}n = Constant<value_ints = [{numbers}]>()"
        return [given_ints, f"{name} = {kind}({source}, {name}n)"], name
    single = {"Relu": shape, "Transpose": shape[::-1], "Mean": "1" * len(shape)}
    if kind in single:
        return [f"{name} = {kind.replace('Mean', 'ReduceMean')}({source})"], single[kind]
    return [], ""


def test_formulas_of_random_graphs_are_exact_at_random_points() -> None:
    draws = Random(11)  # noqa: S311 - the same graphs each time
    num_symbols = []
    for _ in range(30):
        analysis = onnxmem.analyze(model_of(small_graph(draws)))
        point = (draws.randint(1, 131), draws.randint(1, 509))
        closed_form = analysis.symbolic
        num_symbols.append(len(closed_form.symbols) if isinstance(closed_form, ClosedForm) else 0)
        if isinstance(closed_form, ClosedForm) and closed_form.is_valid_at(
            point[: len(closed_form.symbols)]
        ):
            assert_holds_at(analysis, point[: len(closed_form.symbols)])
        assert_line_agrees_with_analyses(analysis)
    assert num_symbols.count(2) >= 3
    assert num_symbols.count(1) >= 3
