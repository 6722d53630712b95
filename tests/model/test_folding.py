"""Values of small constants, within a budget; integer operators by numpy as onnx's reference."""

import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import graph_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxmem.model.constants import Array, constant_value
from onnxmem.model.shapes.folding import MAX_ELEMENTS, MAX_TOTAL_ELEMENTS, Folder, by_reference, run
from onnxmem.model.value_types import dense_type
from onnxmem.ops.spec import Shape

INT64 = onnx.TensorProto.INT64
MIB = 2**20

Dims = tuple[int, ...]


def folder() -> Folder:
    return Folder([helper.make_opsetid("", 21)])


def fold(
    node: onnx.NodeProto, values: dict[str, Array], *shapes: Dims, by: Folder | None = None
) -> dict[str, list[int]]:
    """The values of a node whose outputs are of int64 and of these shapes."""
    types = {name: dense_type(INT64, dims) for name, dims in zip(node.output, shapes, strict=True)}
    types |= {name: dense_type(INT64, value.shape) for name, value in values.items()}
    made = (by or folder()).values_of(node, values, types)
    return {name: value.tolist() for name, value in made.items()}


def array(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


# The arithmetic, as exporters write it: the value is the shape that an Expand makes


def expanded(nodes: str, weights: str) -> Shape | None:
    listed = ", ".join(filter(None, ["float one = {1.0}", weights]))
    text = f"""agraph (float[2,3,5] x) => (y) <{listed}> {{
        {nodes}
        y = Expand(one, s)
    }}"""
    return graph_of(text).tensors["y"].shape


@pytest.mark.parametrize(
    ("nodes", "weights", "shape"),
    [
        ("s = Shape(x)", "", (2, 3, 5)),
        ("s = Shape <start = 1> (x)", "", (3, 5)),
        ("s = Shape <start = -2, end = -1> (x)", "", (3,)),
        ("s = Shape <end = 9> (x)", "", (2, 3, 5)),
        ("n = Size(x)  s = Unsqueeze(n, a)", "int64[1] a = {0}", (30,)),
        ("d = Shape(x)  s = Gather(d, i)", "int64[2] i = {2, 0}", (5, 2)),
        (
            "d = Shape(x)  n = Gather(d, i)  u = Unsqueeze(n, a)  s = Concat <axis = 0> (u, k)",
            "int64 i = {1}, int64[1] a = {0}, int64[2] k = {7, 9}",
            (3, 7, 9),
        ),
        (
            "d = Shape(x)  t = Slice(d, b, e)  s = Mul(t, k)",
            "int64[1] b = {1}, int64[1] e = {3}, int64 k = {4}",
            (12, 20),
        ),
        ("d = Shape(x)  s = Div(d, k)", "int64 k = {2}", (1, 1, 2)),
        ("d = Shape(x)  f = Cast <to = 1> (d)  h = Mul(f, k)  g = Floor(h)  s = Cast <to = 7> (g)",
         "float k = {2.5}", (5, 7, 12)),
        ("d = Shape(x)  p = ReduceProd <keepdims = 1> (d)  s = Identity(p)", "", (30,)),
        (
            "d = Shape(x)  c = Equal(d, k)  s = Where(c, m, d)",
            "int64 k = {3}, int64 m = {11}",
            (2, 11, 5),
        ),
        ("d = Shape(x)  s, r = Split <axis = 0> (d, n)", "int64[2] n = {2, 1}", (2, 3)),
        (
            "d = Shape(x)  s = ScatterElements(d, i, k)",
            "int64[1] i = {0}, int64[1] k = {13}",
            (13, 3, 5),
        ),
        ("s = Range(b, e, k)", "int64 b = {2}, int64 e = {7}, int64 k = {2}", (2, 4, 6)),
        ("s = ConstantOfShape <value = int64[1] {4}> (k)", "int64[1] k = {3}", (4, 4, 4)),
        ("d = Shape(x)  s = Tile(d, k)", "int64[1] k = {2}", (2, 3, 5, 2, 3, 5)),
        ("d = Shape(x)  n = Neg(d)  m = Abs(n)  s = Max(m, k)", "int64 k = {3}", (3, 3, 5)),
        ("d = Shape(x)  c = Greater(d, k)  n = NonZero(c)  s = Reshape(n, r)",
         "int64 k = {2}, int64[1] r = {-1}", (1, 2)),
        ("d = Shape(x)  s, i = TopK <axis = 0> (d, k)", "int64[1] k = {2}", (5, 3)),
        ("d = Shape(x)  c = Greater(d, k)  s = Compress <axis = 0> (d, c)",
         "int64 k = {2}", (3, 5)),
    ],
)  # fmt: skip
def test_shape_arithmetic_is_computed(nodes: str, weights: str, shape: Dims) -> None:
    assert expanded(nodes, weights) == shape


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        pytest.param(
            *("d = Shape(x)  s = Div(d, k)", "int64 k = {0}"),
        ),
        ("d = Shape(x)  s = Gather(d, k)", "int64[1] k = {9}"),
        ("d = Shape(x)  s = Neg(d)", ""),
    ],
)
def test_an_invalid_shape_is_unknown(nodes: str, weights: str) -> None:
    assert None in (expanded(nodes, weights) or (None,))


def test_no_value_is_computed_from_a_graph_input() -> None:
    text = """agraph (float[2] x, int64[3] n) => (y) <int64 two = {2}> {
        s = Mul(n, two)
        y = Expand(x, s)
    }"""
    assert graph_of(text).tensors["y"].size_bytes is None


# One node


def test_a_node_with_an_unknown_input_has_no_value() -> None:
    add = helper.make_node("Add", ["a", "b"], ["c"])
    assert fold(add, {"a": array(1, 2), "b": array(3, 4)}, (2,)) == {"c": [4, 6]}
    assert fold(add, {"a": array(1, 2)}, (2,)) == {}


def test_an_omitted_input_is_not_an_unknown_value() -> None:
    clip = helper.make_node("Clip", ["a", "", "b"], ["c"])
    assert fold(clip, {"a": array(1, 9), "b": array(3).reshape(())}, (2,)) == {"c": [1, 3]}


def test_an_input_can_be_read_twice() -> None:
    assert fold(helper.make_node("Add", ["a", "a"], ["c"]), {"a": array(1, 2)}, (2,)) == {
        "c": [2, 4]
    }


def test_other_operators_are_not_evaluated() -> None:
    matmul = helper.make_node("MatMul", ["a", "a"], ["c"])
    assert fold(matmul, {"a": np.eye(2, dtype=np.int64)}, (2, 2)) == {}
    random = helper.make_node("RandomUniform", [], ["c"], shape=[1])
    assert fold(random, {}, (1,)) == {}


def test_an_operator_of_another_domain_is_another_operator() -> None:
    add = helper.make_node("Add", ["a", "a"], ["c"], domain="own")
    assert fold(add, {"a": array(1)}, (1,)) == {}
    shape = helper.make_node("Shape", ["a"], ["c"], domain="own")
    assert fold(shape, {"a": array(1)}, (1,)) == {}


def test_an_error_of_a_node_loses_only_its_value() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"])
    assert fold(node, {"a": array(1, 2), "b": array(1, 2, 3)}, (3,)) == {}
    assert fold(helper.make_node("Add", ["a"], ["c"]), {"a": array(1)}, (1,)) == {}


def test_a_size_beyond_int64_has_no_value() -> None:
    size = helper.make_node("Size", ["x"], ["n"])
    for dims, value in (((2**31, 2**31), 2**62), ((2**32, 2**31), None), ((2**62, 2**62, 0), 0)):
        made = folder().values_of(size, {}, {"x": dense_type(INT64, dims)})
        assert [int(each) for each in made.values()] == ([] if value is None else [value])


def test_the_shape_of_a_partly_known_tensor_has_no_value() -> None:
    partly = dense_type(INT64, (2, 3))
    partly.tensor_type.shape.dim[0].dim_param = "N"
    for op_type in ("Shape", "Size"):
        node = helper.make_node(op_type, ["x"], ["n"])
        assert folder().values_of(node, {}, {"x": partly}) == {}
        assert folder().values_of(node, {}, {}) == {}


def test_the_known_part_of_a_shape_has_a_value() -> None:
    partly = dense_type(INT64, (2, 3))
    partly.tensor_type.shape.dim[0].dim_param = "N"
    node = helper.make_node("Shape", ["x"], ["n"], start=1)
    made = folder().values_of(node, {}, {"x": partly})
    assert made["n"].tolist() == [3]


# Budgets


@pytest.mark.parametrize(
    ("op_type", "values"),
    [
        ("ConstantOfShape", {"a": array(MAX_ELEMENTS)}),
        ("Expand", {"a": array(1), "b": array(MAX_ELEMENTS)}),
        ("Tile", {"a": array(1), "b": array(MAX_ELEMENTS)}),
        ("Concat", {"a": np.zeros(MAX_ELEMENTS // 2, np.int64), "b": np.zeros(2048, np.int64)}),
        ("Range", {"a": np.int64(0), "b": np.int64(MAX_ELEMENTS), "c": np.int64(1)}),
    ],
)
def test_a_value_with_too_many_elements_is_not_computed(
    op_type: str, values: dict[str, Array]
) -> None:
    node = helper.make_node(op_type, list(values), ["out"])
    if op_type == "Concat":
        node.attribute.append(helper.make_attribute("axis", 0))
    given = {name: np.asarray(value) for name, value in values.items()}
    assert len(fold(node, given, (MAX_ELEMENTS,))["out"]) == MAX_ELEMENTS
    assert fold(node, given, (MAX_ELEMENTS + 1,)) == {}
    types = {name: dense_type(INT64, value.shape) for name, value in given.items()}
    assert folder().values_of(node, given, types) == {}


def test_all_outputs_of_a_node_must_be_small() -> None:
    split = helper.make_node("Split", ["a", "n"], ["b", "c"])
    values = {"a": array(1, 2, 3), "n": array(1, 2)}
    assert fold(split, values, (1,), (2,)) == {"b": [1], "c": [2, 3]}
    assert fold(split, values, (1,), (MAX_ELEMENTS + 1,)) == {}


def test_the_total_of_computed_elements_is_limited() -> None:
    by = folder()
    node = helper.make_node("Identity", ["a"], ["b"])
    assert fold(node, {"a": array(1, 2, 3)}, (3,), by=by) == {"b": [1, 2, 3]}
    assert by.num_elements == 3
    by.num_elements = MAX_TOTAL_ELEMENTS + 1
    assert fold(node, {"a": array(1, 2, 3)}, (3,), by=by) == {}


@pytest.fixture
def traced() -> Iterator[None]:
    """Count memory after the lazy imports."""
    graph_of("agraph (float[2] x) => (y) { s = Shape(x)  n = NonZero(x)  y = Expand(n, s) }")
    tracemalloc.start()
    yield
    tracemalloc.stop()


def built(nodes: str, weights: str = "") -> Shape | None:
    """The shape of ``y`` in a graph with one unknown shape, so that every value is computed."""
    listed = f"<{weights}>" if weights else ""
    text = f"agraph (float[2] x) => (o, y) {listed} {{ o = NonZero(x)  {nodes} }}"
    shape = graph_of(text).tensors["y"].shape
    assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    return shape


MANY = 8_000_000


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("nodes", "weights", "shape"),
    [
        ("y = ConstantOfShape(s)", f"int64[1] s = {{{MANY}}}", (MANY,)),
        ("y = ConstantOfShape(s)", "int64[2] s = {2147483648, 2147483648}", (2**31, 2**31)),
        ("y = Expand(k, s)", f"int64 k = {{1}}, int64[1] s = {{{MANY}}}", (MANY,)),
        ("y = Tile(k, s)", f"int64[1] k = {{1}}, int64[1] s = {{{MANY}}}", (MANY,)),
        ("y = Range(a, b, c)", f"int64 a = {{0}}, int64 b = {{{MANY}}}, int64 c = {{1}}", (MANY,)),
        ("y = Pad(k, p)", f"int64[1] k = {{1}}, int64[2] p = {{0, {MANY}}}", (MANY + 1,)),
        ("y = OneHot(k, d, v)",
         f"int64[1] k = {{1}}, int64 d = {{{MANY}}}, int64[2] v = {{0, 1}}", (1, MANY)),
        ("a = ConstantOfShape(s)  b = Add(a, a)  y = NonZero(b)",
         f"int64[1] s = {{{MANY}}}", (1, None)),
        ("a = ConstantOfShape(s)  b = Add(k, a)  y = Size(b)",
         f"int64[2] s = {{3000, 1}}, int64[3000] k = {{{','.join('1' * 3000)}}}", ()),
    ],
)  # fmt: skip
def test_a_large_value_is_never_computed(nodes: str, weights: str, shape: Dims) -> None:
    assert built(nodes, weights) == shape


@pytest.mark.usefixtures("traced")
def test_a_value_that_doubles_with_every_node_stops_growing() -> None:
    nodes = " ".join(f"c{i + 1} = Concat <axis = 0> (c{i}, c{i})" for i in range(32))
    assert built(f"{nodes} y = Identity(c32)", "int64[2] c0 = {1, 2}") == (2**33,)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("nodes", "weights", "shape"),
    [
        ("c = ConstantOfShape(s)  y = Trilu(c)", "int64[3] s = {0, 8192, 8192}", (0, 8192, 8192)),
        ("c = ConstantOfShape(s)  y = OneHot(c, d, v)",
         f"int64[1] s = {{0}}, int64 d = {{{MANY}}}, int64[2] v = {{0, 1}}", (0, MANY)),
        ("y = Tile(c, s)", f"int64[1,1] c = {{1}}, int64[2] s = {{{MANY}, 0}}", (MANY, 0)),
        ("c = ConstantOfShape(s)  y, i = TopK <axis = 0> (c, k)",
         f"int64[2] s = {{{MANY}, 0}}, int64[1] k = {{{MANY}}}", (MANY, 0)),
        ("c = ConstantOfShape(s)  y = ScatterElements(c, c, c)",
         "int64[2] s = {500000, 0}", (500_000, 0)),
    ],
)  # fmt: skip
def test_a_value_without_elements_allocates_nothing_large(
    nodes: str, weights: str, shape: Dims
) -> None:
    assert built(nodes, weights) == shape


@pytest.mark.usefixtures("traced")
def test_unique_of_an_empty_value_allocates_nothing_large() -> None:
    weights = f"int64[2] s = {{{MANY}, 0}}"
    assert built("c = ConstantOfShape(s)  y = Unique <axis = 0> (c)", weights) is not None


@pytest.mark.parametrize("dims", [(-1, -1), (2, -1), (3,)])
def test_a_constant_whose_bytes_are_not_its_dims_has_no_value(dims: Dims) -> None:
    raw = np.array([5, 7], np.int64).tobytes()
    assert constant_value(onnx.TensorProto(data_type=INT64, dims=dims, raw_data=raw)) is None


def test_a_constant_is_read_in_its_stored_layout() -> None:
    raw = np.array([5, 7], "<i8").tobytes()
    value = constant_value(onnx.TensorProto(data_type=INT64, dims=(2, 1), raw_data=raw))
    assert value is not None
    assert value.tolist() == [[5], [7]]


def test_a_node_with_only_unnamed_outputs_has_no_value() -> None:
    node = helper.make_node("Add", ["a", "b"], [""])
    assert folder().values_of(node, {"a": array(2), "b": array(3)}, {}) == {}


OPSETS = st.sampled_from([14, 18, 21])
REFUSED = "refused"
DTYPES = ("int64", "int32", "uint8", "bool", "float32")
Made = Array | str | None

numbers = st.integers(-3, 4)
dims = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[str] = DTYPES) -> Array:
    shape = draw(dims)
    size = int(np.prod(shape))
    elements = draw(st.lists(numbers, min_size=size, max_size=size))
    return np.array(elements, "int64").astype(draw(st.sampled_from(dtypes))).reshape(shape)


def lists(elements: st.SearchStrategy[int] = numbers) -> st.SearchStrategy[Array]:
    """Operands of indices and dims: a list, rarely a scalar, rarely of another type than int64."""
    reported = st.lists(elements, max_size=3).map(lambda each: np.array(each, "int64"))
    return st.one_of(reported, reported, reported, arrays(("int64", "int32", "bool")))


@st.composite
def pairs(draw: st.DrawFn) -> list[Array]:
    """Two of one dtype, most of which broadcast."""
    one = draw(arrays())
    other = draw(st.one_of(arrays((one.dtype.name,)), arrays()))
    return [one, draw(st.sampled_from([other, one[::-1] if one.ndim else other]))]


OPERANDS = {
    "Cast": st.tuples(arrays()),
    "Concat": st.lists(arrays(("int64", "int64", "float32")), min_size=1, max_size=3),
    "ConstantOfShape": st.tuples(lists()),
    "Expand": st.tuples(arrays(), lists(st.integers(0, 3))),
    "Gather": st.tuples(arrays(), st.one_of(arrays(("int64", "int32")), lists())),
    "Identity": st.tuples(arrays()),
    "Not": st.tuples(arrays()),
    "Range": st.tuples(*[numbers.map(lambda n: np.array(n, "int64"))] * 3),
    "Reshape": st.tuples(arrays(), lists(st.integers(-1, 3))),
    "Slice": st.one_of(
        st.tuples(arrays(), lists(), lists()),
        st.tuples(arrays(), lists(), lists(), lists(st.integers(-2, 2))),
        st.tuples(arrays(), lists(), lists(), lists(st.integers(-2, 2)), lists()),
        st.tuples(arrays(), lists(), lists(), st.none(), lists()),
    ),
    "Squeeze": st.one_of(st.tuples(arrays()), st.tuples(arrays(), lists(st.integers(-3, 2)))),
    "Unsqueeze": st.one_of(st.tuples(arrays()), st.tuples(arrays(), lists(st.integers(-3, 3)))),
    "Where": st.tuples(arrays(("bool", "bool", "int64")), arrays(), arrays()),
    **{
        name: st.one_of(pairs(), pairs(), st.lists(arrays(), min_size=1, max_size=3))
        for name in (
            *("Add", "And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
            *("Max", "Min", "Mul", "Or", "Sub"),
        )
    },
}
ATTRIBUTES: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "Cast": {"to": st.sampled_from([1, 6, 7, 9, 10])},
    "Concat": {"axis": st.integers(-3, 3)},
    "ConstantOfShape": {
        "value": st.sampled_from(
            [numpy_helper.from_array(np.array([7], d), "") for d in ("int64", "float32", "bool")]
        )
    },
    "Gather": {"axis": st.integers(-3, 3)},
    "Reshape": {"allowzero": st.integers(0, 1)},
}


def node_of(
    op_type: str,
    inputs: Sequence[Array | None],
    **attributes: Any,  # noqa: ANN401 - as onnx
) -> onnx.NodeProto:
    names = ["" if each is None else f"x{place}" for place, each in enumerate(inputs)]
    return helper.make_node(op_type, names, ["y"], **attributes)


def ours(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> Made:
    with np.errstate(divide="raise", invalid="raise", over="ignore", under="ignore"):
        try:
            return run(node, inputs)
        except Exception:  # noqa: BLE001 - as the folder takes it
            return REFUSED


def references(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Made:
    values = {f"x{place}": each for place, each in enumerate(inputs) if each is not None}
    with np.errstate(divide="raise", invalid="raise", over="ignore", under="ignore"):
        try:
            return np.asarray(by_reference(node, values, [helper.make_opsetid("", opset)])[0])
        except Exception:  # noqa: BLE001 - as the folder takes it
            return REFUSED


def text_of(made: Made) -> object:
    return made if isinstance(made, str | None) else (made.dtype, made.shape, made.tolist())


@pytest.mark.parametrize("op_type", OPERANDS)
@given(data=st.data())
def test_fast_folding_equals_the_reference(op_type: str, data: st.DataObject) -> None:
    inputs = data.draw(OPERANDS[op_type])
    reported = ATTRIBUTES.get(op_type, {})
    attributes = {
        name: data.draw(each) for name, each in reported.items() if data.draw(st.booleans())
    }
    node = node_of(op_type, inputs, **attributes)
    made = ours(node, inputs)
    if made is not None:
        assert text_of(made) == text_of(references(node, inputs, data.draw(OPSETS)))


@pytest.mark.parametrize("op_type", OPERANDS)
def test_fast_folding_covers_what_exporters_write(op_type: str) -> None:
    """Without this, the property above would hold for an operator that is never folded here."""
    two, flags = np.array([[2, 3]], "int64"), np.array([[True, False]])
    zero, place = np.array(0, "int64"), np.array([0], "int64")
    operands: dict[str, list[Array]] = {
        "Cast": [two],
        "Concat": [two, two],
        "ConstantOfShape": [two[0]],
        "Expand": [two, np.array([5, 2])],
        "Gather": [two, zero],
        "Identity": [two],
        "Not": [flags],
        "Range": [zero, zero + 5, zero + 2],
        "Reshape": [two, two[0] - two[0] + [1, 2]],
        "Slice": [two, place, place + 1],
        "Squeeze": [two, place],
        "Unsqueeze": [two, place],
        "Where": [flags, two, two],
        "And": [flags, flags],
        "Or": [flags, flags],
    }
    attributes: dict[str, dict[str, Any]] = {
        "Cast": {"to": 6},
        "Concat": {"axis": 0},
        "ConstantOfShape": {"value": numpy_helper.from_array(np.array([7]), "")},
    }
    inputs = operands.get(op_type, [two, two])
    made = ours(node_of(op_type, inputs, **attributes.get(op_type, {})), inputs)
    assert isinstance(made, np.ndarray)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Add", ["x0", "x1"], ["y"], domain="own"),
        helper.make_node("Add", ["x0", "x1"], ["y"], axis=1),
        helper.make_node("Add", ["x0", "x1"], ["y", "z"]),
        helper.make_node("Add", ["x0", "x1"], [""]),
        helper.make_node("Mod", ["x0", "x1"], ["y"]),
    ],
    ids=["another domain", "an older version", "more outputs", "no output", "another operator"],
)
def test_other_nodes_are_left_to_the_reference(node: onnx.NodeProto) -> None:
    assert ours(node, [np.array([2]), np.array([3])]) is None
