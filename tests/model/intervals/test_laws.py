"""Laws of intervals: a value is never beyond them, and more in is never less out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from data_dependent import contradictions, random_model, shapes_of_run, upper_of
from graphs import model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from model.intervals.test_rules import CASES, MICROSOFT_CASES, model_with

from onnxmem.analysis.analysis import analyze
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import DType, Node
from onnxmem.model.intervals import walk
from onnxmem.model.intervals.dims import rule_of
from onnxmem.model.intervals.interval import DimInterval, Known, ValueInterval
from onnxmem.model.intervals.site import Found, Rule, Site
from onnxmem.model.intervals.values import value_of

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "And": lambda a, b: (a >= 1) & (b >= 1),
    "Ceil": np.ceil,
    "Clip": lambda a, low, high: min(max(a, low), high),
    "Div": lambda a, b: np.trunc(a / b) if b else 0,
    "Equal": np.equal,
    "Floor": np.floor,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Log": lambda a: np.log(a) if a > 0 else -inf,
    "Max": np.maximum,
    "Mean": lambda a, b: (a + b) / 2,
    "Min": np.minimum,
    "Mod": lambda a, b: a % b if b else 0,
    "Mod of C": lambda a, b: np.fmod(a, b) if b else 0,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": lambda a: a < 1,
    "Or": lambda a, b: (a >= 1) | (b >= 1),
    "Pow": lambda a, b: np.trunc(float(a) ** b) if a or b >= 0 else 0,
    "Relu": lambda a: max(a, 0),
    "Round": np.round,
    "Sqrt": lambda a: np.sqrt(max(a, 0)),
    "Sub": np.subtract,
    "Sum": lambda a, b: a + b,
    "Tanh": np.tanh,
    "Where": lambda c, a, b: a if c >= 1 else b,
}
TRUTHS = frozenset({"And", "Not", "Or"})
COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
NUM_INPUTS = {"Clip": 3, "Where": 3} | dict.fromkeys(
    ("Abs", "Ceil", "Floor", "Log", "Neg", "Not", "Relu", "Round", "Sqrt", "Tanh"), 1
)


def known(dtype: DType, low: float, high: float) -> Known:
    return Known(dtype, (), ValueInterval.of(low, high))


@settings(max_examples=400, deadline=None)
@given(operator=st.sampled_from(sorted(FUNCTIONS)), seed=st.integers(0, 10**9))
def test_a_value_is_never_beyond_its_interval(operator: str, seed: int) -> None:
    """Also where an interval has no ends; and a wider input never makes the output narrower."""
    draws = Random(seed)  # noqa: S311 - no secret
    values, narrow, wide = [], [], []
    for index in range(NUM_INPUTS.get(operator, 2)):
        is_truth = operator in TRUTHS or (operator == "Where" and index == 0)
        dtype = DType.BOOL if is_truth else DType.INT64
        ends = sorted(draws.randint(*((0, 1) if is_truth else (-9, 9))) for _ in range(2))
        values.append(draws.randint(*ends))
        narrow.append(known(dtype, *ends))
        low = ends[0] - draws.choice((0, 0, 3)) if draws.random() < 0.9 else -inf
        high = ends[1] + draws.choice((0, 0, 3)) if draws.random() < 0.9 else inf
        wide.append(narrow[-1] if is_truth else known(dtype, low, high))
    made = DType.BOOL if operator in TRUTHS | COMPARING else DType.INT64
    name, attributes = operator.partition(" ")[0], {"fmod": int(operator == "Mod of C")}
    found, wider = (value_of(name, each, attributes, made, ()) for each in (narrow, wide))
    result = float(FUNCTIONS[operator](*values))
    if name in {"Div", "Mod"} and not values[1]:
        return  # no run
    if name == "Pow" and not values[0] and values[1] < 0:
        assert (found.least, found.most) == (-inf, inf)
        return
    assert found.least <= result <= found.most
    assert found.within(wider)


POWERS = [("float", "float"), ("float", "int64"), ("int64", "int64"), ("int32", "float")]


@pytest.mark.parametrize(
    ("operator", "types"), [*(("Pow", types) for types in POWERS), ("Div", ("int64", "int64"))]
)
def test_no_kernel_is_beyond_an_interval(operator: str, types: tuple[str, str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    base, other = types
    model = model_of(
        f"agraph ({base}[n] a, {other}[n] b) => ({base}[n] y) {{ y = {operator}(a, b) }}"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    draws = np.random.default_rng(7)
    widths = {"float": np.float32, "int64": np.int64, "int32": np.int32}
    num_bounded = 0
    for _ in range(300):
        fed, inputs = {}, []
        for name, width in zip("ab", types, strict=True):
            low, high = sorted(draws.integers(-6, 7, 2) / (1 if "int" in width else 2))
            # A single exponent is computed in another way than several.
            values = draws.uniform(low, high, 1 if draws.random() < 0.3 else 5)
            values = np.array([*values, low, high]) if values.size > 1 else values
            fed[name] = np.rint(values) if "int" in width else values
            inputs.append(known(DType(np.dtype(widths[width]).name), low, high))
        size = max(each.size for each in fed.values())
        fed = {
            "a": np.resize(fed["a"], size),
            "b": fed["b"] if fed["b"].size == 1 else np.resize(fed["b"], size),
        }
        if operator == "Div":
            fed["b"][fed["b"] == 0] = inputs[1].value.most or inputs[1].value.least or 1
            if not fed["b"].all() or inputs[1].value.least == inputs[1].value.most == 0:
                continue
        fed = {
            name: each.astype(widths[width])
            for (name, each), width in zip(fed.items(), types, strict=True)
        }
        (result,) = session.run(None, fed)
        found = value_of(operator, inputs, {}, inputs[0].dtype, ())
        num_bounded += found.most < inf
        is_number = ~np.isnan(result.astype(float))
        assert (found.least <= result[is_number]).all(), (inputs, fed, result, found)
        assert (result[is_number] <= found.most).all(), (inputs, fed, result, found)
        assert is_number.all() or found.most == inf
    assert num_bounded > 60


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"])
@pytest.mark.parametrize("low", [0, -3])
def test_a_reduction_is_never_beyond_its_interval(operator: str, low: int) -> None:
    draws = np.random.default_rng(3)
    one = draws.integers(low, 5, (2, 3)).astype(float)
    two = one + draws.integers(0, 3, (2, 3))
    dims = (DimInterval.exact(2), DimInterval.exact(3))
    whole = Known(DType.INT64, dims, ValueInterval.of(one, two))
    axes = Known(DType.INT64, (DimInterval.exact(1),), ValueInterval.of([1], [1]))
    reductions: dict[str, Callable[..., Any]] = {
        "ReduceMax": np.max,
        "ReduceMin": np.min,
        "ReduceProd": np.prod,
        "ReduceSum": np.sum,
    }
    function = reductions[operator]
    for inputs, attributes, axis in (
        ([whole, axes], {"keepdims": 0}, 1),
        ([whole], {"keepdims": 0}, None),
        ([whole, axes], {}, 1),
    ):
        found = value_of(operator, inputs, attributes, DType.INT64, None)
        for part in np.linspace(0, 1, 5):
            result = function(np.round(one + part * (two - one)), axis=axis)
            assert (found.least <= result).all()
            assert (result <= found.most).all()
    kept = value_of(operator, [whole], {"noop_with_empty_axes": 1}, DType.INT64, (2, 3))
    assert (kept.least, kept.most) == (one.min(), two.max())
    open_dims = (DimInterval(0, 4, "z:0"),)
    loose = Known(DType.INT64, open_dims, ValueInterval.of(low, 2))
    found = value_of(operator, [loose], {}, DType.INT64, (1,))
    most = {"ReduceMax": 2, "ReduceMin": 2, "ReduceProd": inf, "ReduceSum": 8}[operator]
    assert found.most == most


def is_wider(wider: Found, found: Found) -> bool:
    """Whether dims that were found with less knowledge hold all those that were found with more."""
    return all(
        one is None
        or other is None
        or (
            len(one) == len(other)
            and all(
                a.low <= b.low and (a.high is None or (b.high is not None and b.high <= a.high))
                for a, b in zip(one, other, strict=True)
            )
        )
        for one, other in zip(wider, found, strict=False)
    )


def with_less(inputs: Sequence[Known | None]) -> Iterator[tuple[Known | None, ...]]:
    """The same inputs, of some of which the elements, the shape or all is not known."""
    whole = tuple(inputs)
    for index, known in enumerate(whole):
        if known is None or known.count is not None:
            continue
        anything = ValueInterval.any_of(known.dtype)
        valueless = replace(known, value=anything)
        for less in (valueless, Known(known.dtype, None, anything)):
            yield (*whole[:index], less, *whole[index + 1 :])


def forgetful(node: Node) -> Rule | None:
    """The rule of a node, that is compared with itself where it knows less."""
    rule = rule_of(node)
    if rule is None:
        return None

    def compared(site: Site) -> Found:
        found = rule(site)
        for inputs in with_less(site.inputs):
            with suppress(IndexError, TypeError, ValueError):  # as for a malformed node
                assert is_wider(rule(replace(site, inputs=inputs)), found), site.node.op_type
        return found

    return compared


def forgetful_value(
    operator: str,
    inputs: Sequence[Known | None],
    attributes: Mapping[str, Any],
    dtype: DType | None,
    dims: tuple[int, ...] | None,
) -> ValueInterval:
    found = value_of(operator, inputs, attributes, dtype, dims)
    for less in with_less(inputs):
        with suppress(IndexError, TypeError, ValueError):
            assert found.within(value_of(operator, less, attributes, dtype, dims)), operator
    return found


BODIES = [(body, operator) for operator, body, _ in (*CASES, *MICROSOFT_CASES)]
OPSETS = {"Upsample": 9, "StringSplit": 20}


def test_a_rule_that_knows_less_never_finds_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "rule_of", forgetful)
    monkeypatch.setattr(walk, "value_of", forgetful_value)
    for body, operator in BODIES:
        upper_of(model_with(body, OPSETS.get(operator, 18)))
    for seed in range(60):
        prepared = prepare(ModelFile("<random>", random_model(seed), 0))
        walk.with_upper_dims(build(prepared, Request()).graph, prepared.proto)


def larger(body: str) -> onnx.ModelProto:
    """The model of a case with more rows: 19 in place of 13."""
    model = model_with(body)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in {"x", "c"}:
            dims[0].dim_value = 19
    return model


def test_an_upper_end_does_not_fall_as_an_input_grows() -> None:
    for operator, body, _ in CASES:
        if operator in {"Upsample", "StringSplit"}:  # of other opsets
            continue
        one, other = (
            upper_of(each).graph.tensors["y"] for each in (model_with(body), larger(body))
        )
        assert one.shape is not None
        assert other.shape is not None
        pairs = zip(one.shape, other.shape, strict=True)
        assert all(a is None or (b is not None and a <= b) for a, b in pairs), (operator, body)


@pytest.mark.parametrize("seed", range(12))
def test_the_training_peak_at_most_is_no_less_than_at_least(seed: int) -> None:
    analysis = analyze(random_model(seed, num_draws=3), train=True)
    if analysis.at_most is None or analysis.training is None:
        return
    most = analysis.at_most.training_peak_bytes
    assert most is not None
    assert analysis.training.peak_bytes <= most


def test_an_integer_that_wraps_around_is_any() -> None:
    """46,341 squared is 2**31 and 4,633 more, which onnxruntime has as a negative number."""
    inputs = [known(DType.INT32, 0, 46_341)] * 2
    assert value_of("Mul", inputs, {}, DType.INT32, ()).least == -inf
    inputs = [known(DType.INT64, 0, 2**40)] * 2
    assert value_of("Mul", inputs, {}, DType.INT64, ()).least == -inf
    inputs = [known(DType.INT64, 0, inf), known(DType.INT64, 0, 2)]
    assert value_of("Mul", inputs, {}, DType.INT64, ()).least == 0
    inputs = [known(DType.INT32, 0, 46_340)] * 2
    assert value_of("Mul", inputs, {}, DType.INT32, ()).most == 46_340**2


@pytest.mark.parametrize("operator", ["Div", "Mod", "Mod of C"])
def test_a_negative_divisor_has_ends(operator: str) -> None:
    inputs = [known(DType.INT64, -11, 13), known(DType.INT64, -5, -3)]
    attributes = {"fmod": int(operator == "Mod of C")}
    found = value_of(operator.partition(" ")[0], inputs, attributes, DType.INT64, ())
    expected = {"Div": (-4, 3), "Mod": (-4, 0), "Mod of C": (-4, 4)}[operator]
    assert (found.least, found.most) == expected


@pytest.mark.parametrize(
    ("operator", "one", "two", "most"),
    [("Div", 3, 0.3, 10), ("Mul", 10, 0.7, 7), ("Sub", 1, 0.9, 0.1)],
)
def test_ends_are_rounded_as_floats_are(operator: str, one: float, two: float, most: float) -> None:
    """3 / 0.3 is 9.9999996 of a float64 and 10 of a float32: one more after Floor."""
    exact = float(np.float32(two))
    inputs = [known(DType.FLOAT32, 0, one), known(DType.FLOAT32, exact, exact)]
    found = value_of(operator, inputs, {}, DType.FLOAT32, ())
    kernel = {"Div": np.divide, "Mul": np.multiply, "Sub": np.subtract}[operator]
    assert found.most == kernel(np.float32(one), np.float32(two)) == pytest.approx(most)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
@given(number=st.floats(-60000, 60000), bits=st.integers(0, 40))
def test_rounding_is_that_of_the_type(number: float, bits: int, dtype: DType) -> None:
    value = number * 2.0**-bits if dtype is DType.FLOAT32 else number
    if abs(value) < np.finfo(dtype.value).smallest_normal:
        return  # of fewer bits, and far below one
    found = value_of("Neg", [known(dtype, -value, -value)], {}, dtype, ())
    # A kernel may compute halves in floats.
    ends = sorted((float(np.float32(value)), float(np.dtype(dtype.value).type(value))))
    assert [found.least, found.most] == ends


def test_halves_may_be_computed_in_floats() -> None:
    """Onnxruntime keeps 2,049, which is no half, where it removes the casts between."""
    model = model_of(
        """agraph (float16 a, float[1,3] x) => (float[n,3] y)
            <float none = {0.0}, float most = {2048.0}, float step = {1.0}, int64[1] one = {1},
             int64[1] three = {3}> {
            low = Cast<to = 10>(none)  high = Cast<to = 10>(most)  k = Cast<to = 10>(step)
            c = Clip(a, low, high)  s = Add(c, k)  t = Add(s, k)  u = Add(t, k)
            i = Cast<to = 7>(u)  e = Reshape(i, one)  d = Concat<axis = 0>(e, three)
            z = Expand(x, d)  y = Neg(z)
        }"""
    )
    upper = upper_of(model)
    assert upper.graph.tensors["y"].shape == (2_052, 3)
    feeds: dict[str, Any] = {"a": np.array(4_000, np.float16), "x": np.ones((1, 3), np.float32)}
    pytest.importorskip("onnxruntime")
    assert contradictions(upper, shapes_of_run(model, feeds)) == []
