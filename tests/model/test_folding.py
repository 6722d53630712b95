"""Shape arithmetic is worked out right, and a hostile file makes nothing large of it."""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from graphs import graph_of
from onnx import helper

from onnxmem.model.constants import Array, constant_value
from onnxmem.model.shapes.folding import MAX_ELEMENTS, MAX_TOTAL_ELEMENTS, Folder
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
def test_shape_arithmetic_is_worked_out(nodes: str, weights: str, shape: Dims) -> None:
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
def test_a_shape_that_makes_no_sense_is_unknown(nodes: str, weights: str) -> None:
    assert None in (expanded(nodes, weights) or (None,))


def test_no_value_follows_from_what_is_handed_in() -> None:
    text = """agraph (float[2] x, int64[3] n) => (y) <int64 two = {2}> {
        s = Mul(n, two)
        y = Expand(x, s)
    }"""
    assert graph_of(text).tensors["y"].size_bytes is None


# One node


def test_a_node_without_all_its_values_has_none() -> None:
    add = helper.make_node("Add", ["a", "b"], ["c"])
    assert fold(add, {"a": array(1, 2), "b": array(3, 4)}, (2,)) == {"c": [4, 6]}
    assert fold(add, {"a": array(1, 2)}, (2,)) == {}


def test_an_input_left_out_is_no_missing_value() -> None:
    clip = helper.make_node("Clip", ["a", "", "b"], ["c"])
    assert fold(clip, {"a": array(1, 9), "b": array(3).reshape(())}, (2,)) == {"c": [1, 3]}


def test_an_input_may_be_read_twice() -> None:
    assert fold(helper.make_node("Add", ["a", "a"], ["c"]), {"a": array(1, 2)}, (2,)) == {
        "c": [2, 4]
    }


def test_other_operators_are_not_run() -> None:
    matmul = helper.make_node("MatMul", ["a", "a"], ["c"])
    assert fold(matmul, {"a": np.eye(2, dtype=np.int64)}, (2, 2)) == {}
    random = helper.make_node("RandomUniform", [], ["c"], shape=[1])
    assert fold(random, {}, (1,)) == {}


def test_an_operator_of_another_domain_is_another_operator() -> None:
    add = helper.make_node("Add", ["a", "a"], ["c"], domain="own")
    assert fold(add, {"a": array(1)}, (1,)) == {}
    shape = helper.make_node("Shape", ["a"], ["c"], domain="own")
    assert fold(shape, {"a": array(1)}, (1,)) == {}


def test_a_fault_of_a_node_costs_its_value_alone() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"])
    assert fold(node, {"a": array(1, 2), "b": array(1, 2, 3)}, (3,)) == {}
    assert fold(helper.make_node("Add", ["a"], ["c"]), {"a": array(1)}, (1,)) == {}


def test_a_size_beyond_int64_has_no_value() -> None:
    size = helper.make_node("Size", ["x"], ["n"])
    for dims, value in (((2**31, 2**31), 2**62), ((2**32, 2**31), None), ((2**62, 2**62, 0), 0)):
        made = folder().values_of(size, {}, {"x": dense_type(INT64, dims)})
        assert [int(each) for each in made.values()] == ([] if value is None else [value])


def test_the_shape_of_what_is_partly_known_has_no_value() -> None:
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
def test_a_value_of_too_many_elements_is_not_made(op_type: str, values: dict[str, Array]) -> None:
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


def test_what_has_been_made_in_all_is_limited() -> None:
    by = folder()
    node = helper.make_node("Identity", ["a"], ["b"])
    assert fold(node, {"a": array(1, 2, 3)}, (3,), by=by) == {"b": [1, 2, 3]}
    assert by.num_elements == 3
    by.num_elements = MAX_TOTAL_ELEMENTS + 1
    assert fold(node, {"a": array(1, 2, 3)}, (3,), by=by) == {}


@pytest.fixture
def traced() -> Iterator[None]:
    """Count memory, after all that is imported when it is first needed."""
    graph_of("agraph (float[2] x) => (y) { s = Shape(x)  n = NonZero(x)  y = Expand(n, s) }")
    tracemalloc.start()
    yield
    tracemalloc.stop()


def built(nodes: str, weights: str = "") -> Shape | None:
    """The shape of ``y`` in a graph that keeps one shape open, so that every value is sought."""
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
def test_a_large_value_is_never_made(nodes: str, weights: str, shape: Dims) -> None:
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
def test_a_value_without_elements_takes_nothing_large(
    nodes: str, weights: str, shape: Dims
) -> None:
    assert built(nodes, weights) == shape


@pytest.mark.usefixtures("traced")
def test_what_is_unique_in_nothing_takes_nothing_large() -> None:
    weights = f"int64[2] s = {{{MANY}, 0}}"
    assert built("c = ConstantOfShape(s)  y = Unique <axis = 0> (c)", weights) is not None


@pytest.mark.parametrize("dims", [(-1, -1), (2, -1), (3,)])
def test_a_constant_whose_bytes_are_not_its_dims_has_no_value(dims: Dims) -> None:
    raw = np.array([5, 7], np.int64).tobytes()
    assert constant_value(onnx.TensorProto(data_type=INT64, dims=dims, raw_data=raw)) is None


def test_a_constant_is_read_as_it_lies() -> None:
    raw = np.array([5, 7], "<i8").tobytes()
    value = constant_value(onnx.TensorProto(data_type=INT64, dims=(2, 1), raw_data=raw))
    assert value is not None
    assert value.tolist() == [[5], [7]]


def test_a_node_whose_only_output_nobody_names_makes_nothing() -> None:
    node = helper.make_node("Add", ["a", "b"], [""])
    assert folder().values_of(node, {"a": array(2), "b": array(3)}, {}) == {}
