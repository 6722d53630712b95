"""Upper ends through whole graphs: shape computations, branches, loops, and what a user knows."""

import numpy as np
import onnx
import pytest
from data_dependent import (
    contradictions,
    of_run,
    random_input,
    random_model,
    shapes_of_run,
    upper_of,
)
from graphs import model_of
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    RuntimeException,
)

import onnxmem
from onnxmem.errors import ShapeError
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph, Tensor
from onnxmem.model.intervals.limits import unknown_limits
from onnxmem.model.intervals.walk import with_upper_dims
from onnxmem.runtimes.ideal.activation_memory import activation_memory

HALVED = """agraph (float[13,7] x, bool[13] c) => (y, v)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}, int64[1] five = {5}> {
        z = Compress<axis = 0>(x, c)
        r = Shape<start = 0, end = 1>(z)
        h = Div(r, two)
        m = Min(h, five)
        d = Concat<axis = 0>(m, three)
        y = ConstantOfShape(d)
        w = Mul(r, three)
        a = Add(w, two)
        v = ConstantOfShape(a)
    }"""
NAMED = """agraph (float[N,7] x) => (y) <float[7,3] w> {
    t = NonZero(x)  u = Transpose(t)  g = GatherND(x, u)  e = Exp(g)  s = Sigmoid(g)
    y = Add(e, s)
}"""
CHOSEN = """agraph (float[13,7] x, bool c) => (y) {
    y = If(c) <
        then_branch = t() => (p) { q = NonZero(x)  s = Transpose(q)  p = Cast<to = 1>(s) },
        else_branch = e() => (o) { o = Flatten<axis = 2>(x) }
    >
}"""
LOOP = """agraph (float[5] x, int64 n) => (z, s) <bool going = {{1}}, int64 most = {{{most}}}> {{
    z, s = Loop({count}, going, x) <
        body = iteration(int64 i, bool c, float[K] h) => (co, ho, so) {{
            co = Identity(c)
            more = Constant<value_floats = [1.0, 2.0]>()
            ho = {grown}
            so = Identity(more)
        }}
    >
}}"""


def dims(text: str, names: str, **limits: int) -> list[tuple[int | None, ...] | None]:
    graph = upper_of(model_of(text), limits).graph
    return [graph.tensors[name].shape for name in names.split()]


def test_shape_computations_have_upper_ends() -> None:
    """At most 13 rows: half of them, at most 5, times 3; thrice and two more."""
    assert dims(HALVED, "y v") == [(5, 3), (41,)]


def test_equal_dims_have_one_name() -> None:
    upper = upper_of(model_of(NAMED.replace("N,7", "11,7")))
    tensors = upper.graph.tensors
    assert {tensors[name].dynamic for name in "gesy"} == {("t:1",)}
    assert upper.data_dims == ("t:1",)


def test_a_branch_that_data_choose_is_the_wider_one() -> None:
    assert dims(CHOSEN, "y") == [(91, 2)]
    model = model_of(CHOSEN)
    upper = upper_of(model)
    for chosen, found in ((True, (91, 2)), (False, (91, 1))):
        given = {"x": np.ones((13, 7), np.float32), "c": np.array(chosen)}
        shapes = shapes_of_run(model, given)
        assert shapes["y"] == found
        assert contradictions(upper, shapes) == []


@pytest.mark.parametrize("most", [1, 3, 17])
def test_a_value_that_a_loop_carries_grows_by_its_trips(most: int) -> None:
    """Two elements an iteration; an upper end of the count that data decide, at most 17."""
    text = LOOP.format(most=most, count="k", grown="Concat<axis = 0>(h, more)")
    text = text.replace("z, s = Loop", "k = Min(n, most)  z, s = Loop", 1)
    (z, _) = dims(text, "z s")
    assert z == (5 + 2 * most,)
    model = model_of(text)
    for trips in {0, most, 20}:
        given = {"x": np.zeros(5, np.float32), "n": np.array(trips)}
        shapes = {"z": shapes_of_run(model, given)["z"]}
        assert contradictions(upper_of(model), shapes) == []


def test_what_grows_in_a_body_is_named_if_only_the_output_of_its_loop_is_bounded() -> None:
    text = LOOP.format(most=9, count="n", grown="Concat<axis = 0>(h, more)")
    upper = upper_of(model_of(text), {"z:0": 17, "s:0": 6})
    assert upper.unbounded
    assert all("Loop" in name for name in upper.unbounded)
    (loop,) = upper.iterations
    assert upper_of(model_of(text), {f"{loop}:iterations": 6}).unbounded == ()


def test_a_loop_without_a_limit_has_none_until_the_user_sets_it() -> None:
    text = LOOP.format(most=9, count="n", grown="Relu(h)")
    assert dims(text, "z s") == [(5,), (None, 2)]
    assert upper_of(model_of(text)).unbounded == ("s:0",)
    assert dims(text, "s", **{"s:0": 23}) == [(23, 2)]


@pytest.mark.parametrize(
    ("condition", "iterations"),
    [
        ("l = Less(ko, ten)  co = And(l, more)", 4),
        ("f = Cast<to = 1>(ko)  l = Less(f, real)  co = And(more, l)", 4),
        ("l = LessOrEqual(ko, nine)  co = And(l, more)", 4),
        ("f = Cast<to = 1>(ko)  l = Less(f, above)  co = And(l, more)", 4),
        ("l = Less(k, ten)  co = And(l, more)", 5),
        ("b = Add(k, less)  l = Greater(ten, b)  co = And(l, more)", 6),
        ("l = GreaterOrEqual(ten, i)  co = And(l, more)", 12),
        (
            """co = If(more) <
                then_branch = t() => (l) { l = Less(ko, ten) },
                else_branch = e() => (o) { o = Identity(never) }
            >""",
            4,
        ),
    ],
)
def test_a_loop_goes_on_while_a_counter_and_the_data_allow(condition: str, iterations: int) -> None:
    model = model_of(f"""agraph (float[5] x, bool more) => (z, s)
        <bool going = {{1}}, bool never = {{0}}, int64 begin = {{0}}, int64 three = {{3}},
         int64 nine = {{9}}, int64 ten = {{10}}, int64 less = {{-5}}, float real = {{10.0}},
         float above = {{9.5}}> {{
            z, s = Loop(, going, begin) <
                body = iteration(int64 i, bool c, int64 k) => (co, ko, so) {{
                    ko = Add(k, three)  {condition}  so = Relu(x)
                }}
            >
        }}""")
    upper = upper_of(model)
    assert upper.graph.tensors["s"].shape == (iterations, 5)
    for more, found in ((True, iterations), (False, 1)):
        given = {"x": np.ones(5, np.float32), "more": np.array(more)}
        shapes = shapes_of_run(model, given)
        assert shapes["s"] == (found, 5)
        assert contradictions(upper, shapes) == []


def test_a_sequence_has_the_elements_of_all_its_tensors() -> None:
    upper = upper_of(
        model_of("""agraph (float[13,7] x, bool[13] c) => (y) {
            z = Compress<axis = 0>(x, c)  l = SequenceConstruct(z, x, z)  m = SequenceInsert(l, z)
            y = SequenceErase(m)
        }""")
    )
    sizes = [upper.graph.tensors[name].num_elements for name in "lmy"]
    assert sizes == [3 * 91, 4 * 91, 3 * 91]


def inner(graph: Graph, name: str) -> Tensor:
    """A tensor of a body."""
    return next(each for each in graph.tensors.values() if each.name.endswith(f"/{name}"))


def test_a_slice_of_an_iteration_is_of_that_iteration() -> None:
    """``k`` grows by 3: of the last k and this one no difference is known, of k and k + 2 it is."""
    text = """agraph (float[50] x, int64 n) => (z, a, b)
        <bool going = {1}, int64[1] begin = {0}, int64[1] two = {2}, int64[1] three = {3}> {
            z, a, b = Loop(n, going, begin) <
                body = iteration(int64 i, bool c, int64[1] k) => (co, ko, ao, bo) {
                    co = Identity(c)  ko = Add(k, three)  m = Add(k, two)
                    p = Slice(x, k, m)  ao = Shape(p)  q = Slice(x, k, ko)  bo = Shape(q)
                }
            >
        }"""
    model = model_of(text)
    upper = upper_of(model)
    assert [inner(upper.graph, name).shape for name in "pq"] == [(2,), (3,)]
    shapes = shapes_of_run(model, {"x": np.ones(50, np.float32), "n": np.array(30)})
    assert contradictions(upper, shapes) == []


@pytest.mark.parametrize("index", [-1, -7, 0, 5, 60])
def test_a_stop_before_its_start_may_be_counted_from_the_end(index: int) -> None:
    model = model_of("""agraph (float[50] x, int64[1] i) => (y)
        <int64[1] two = {2}> { j = Add(i, two)  y = Slice(x, j, i) }""")
    upper = upper_of(model)
    shapes = shapes_of_run(model, {"x": np.ones(50, np.float32), "i": np.array([index])})
    assert contradictions(upper, shapes) == []


def test_a_number_that_a_loop_carries_is_no_dim_of_before_it() -> None:
    """``k`` begins as the rows of ``z`` and falls: what has k rows has not those of ``z``."""
    model = model_of("""agraph (float[13] x, bool[13] c, int64 n) => (z, y, k, l)
        <bool going = {1}, int64[1] one = {1}, int64 most = {5}, int64[1] rest = {-1}> {
            z = Compress<axis = 0>(x, c)  r = Shape(z)  m = Min(n, most)
            k, y, l = Loop(m, going, r) <
                body = iteration(int64 i, bool co, int64[1] h) => (go, ho, s, t) {
                    go = Identity(co)  d = Sub(h, one)  ho = Max(d, one)
                    w = ConstantOfShape(h)  s = Shape(w)
                    p = Concat<axis = 0>(h, rest)  v = Reshape(z, p)  t = Shape(v)
                }
            >
        }""")
    upper = upper_of(model)
    assert inner(upper.graph, "w").dynamic != upper.graph.tensors["z"].dynamic == ("z:0",)
    assert inner(upper.graph, "v").shape == (13, 13)


@pytest.mark.parametrize("named", ["w", "y"])
def test_what_no_rule_bounds_is_named(named: str) -> None:
    """Durations of a text-to-speech model: frames are as many as a sum of predictions."""
    model = model_of("""agraph (float[1,5] x) => (y)
        <int64[1] axes = {1}, int64 begin = {0}, int64 one = {1}> {
            e = Exp(x)  s = ReduceSum<keepdims = 0>(e, axes)  t = Squeeze(s)
            n = Cast<to = 7>(t)  w = Range(begin, n, one)  y = Cast<to = 1>(w)
        }""")
    assert upper_of(model).unbounded == ("w:0",)
    upper = upper_of(model, {f"{named}:0": 90})
    assert (upper.unbounded, upper.graph.tensors["y"].shape) == ((), (90,))


def nested(depth: int) -> onnx.ModelProto:
    """Loops in loops, of at most 300 iterations each, which let a value grow."""
    body = f"y{depth} = Concat<axis = 0>(h{depth}, w)"
    for level in range(depth, 0, -1):
        more = "" if level == depth else f"y{level} = Concat<axis = 0>(z{level + 1}, w)"
        body = f"""z{level} = Loop(n, going, h{level - 1}) <
            body = b{level}(int64 i{level}, bool c{level}, float[K] h{level})
                => (co{level}, y{level}) {{ co{level} = Identity(c{level})  {body}  {more} }}
        >"""
    weights = "<bool going = {1}, int64 most = {300}>"
    inputs = "float[5] h0, int64 n0, float[2] w"
    return model_of(f"agraph ({inputs}) => (z1) {weights} {{ n = Min(n0, most)  {body} }}")


def test_a_loop_in_a_loop_multiplies() -> None:
    """Each outer iteration adds 300 x 2 elements and two more."""
    assert upper_of(nested(2)).graph.tensors["z1"].shape == (5 + 300 * (300 * 2 + 2),)


def test_deeply_nested_loops_take_no_more_work_than_a_few() -> None:
    """Followed one by one, 300^6 iterations would never end."""
    upper = upper_of(nested(6))
    assert upper.graph.tensors["z1"].shape == (None,)
    assert upper.unbounded


@pytest.mark.parametrize("name", ["z:0", "rows", "y:0"])
def test_the_user_bounds_a_dim_by_tensor_or_by_name(name: str) -> None:
    """What limits a dim limits all that equal it."""
    text = """agraph (float[13,7] x, bool[13] c) => (float[rows,7] y) {
        z = Compress<axis = 0>(x, c)  w = Relu(z)  y = Exp(w)
    }"""
    assert dims(text, "z w y") == [(13, 7)] * 3
    assert dims(text, "z w y", **{name: 4}) == [(4, 7)] * 3


def test_a_name_of_no_dim_is_wrong() -> None:
    model = model_of(HALVED)
    prepared = prepare(ModelFile("<text>", model, 0))
    graph = build(prepared, Request()).graph
    assert not list(unknown_limits(graph, model, ["z:0"]))
    for name in ("rows", "z:2"):
        (text,) = unknown_limits(graph, model, [name])
        assert text.startswith(f"--max {name}: no dim of that name")


def test_a_target_that_data_choose_has_the_elements_of_the_input() -> None:
    """2 x 286 or 11 x 52 of 572 elements: no dim is beyond 572 / 2, nor 572 / 1."""
    text = """agraph (float[22,26] x, bool b) => (y)
        <int64[2] s = {11, 52}, int64[2] t = {2, -1}> {
        w = Where(b, s, t)  y = Reshape(x, w)
    }"""
    assert dims(text, "y") == [(11, 286)]


def test_a_target_that_data_choose_may_copy_a_dim() -> None:
    """2 x 286 or 22 x 26: a target of 0 has the dim of the input, which is beyond both numbers."""
    text = """agraph (float[22,26] x, bool b) => (y)
        <int64[2] s = {2, 286}, int64[2] t = {0, 26}> {
        w = Where(b, s, t)  y = Reshape(x, w)
    }"""
    assert dims(text, "y") == [(22, 286)]


def test_a_dim_that_no_data_decide_is_refused() -> None:
    text = """agraph (float[1,11] x, int64[1] d) => (float[rows,11] y) <int64[1] one = {1}> {
        c = Concat<axis = 0>(d, one)  y = Tile(x, c)  z = Abs(x)
    }"""
    for name, number in (("y:1", 11), ("x:1", 11), ("z:0", 1), ("z", 11)):
        with pytest.raises(ShapeError, match=f"--max {name}: the data .* it is {number};"):
            onnxmem.analyze(model_of(text), most={name: 5})
    found = onnxmem.analyze(model_of(text), most={"y:0": 5}).at_most
    assert found is not None
    assert found.graph.tensors["y"].shape == (5, 11)


def test_a_graph_of_known_dims_has_no_upper_ends() -> None:
    model = model_of("agraph (float[2,3] x) => (y) { y = Relu(x) }")
    prepared = prepare(ModelFile("<text>", model, 0))
    assert with_upper_dims(build(prepared, Request()).graph, prepared.proto) is None


# Random graphs


@given(seed=st.integers(0, 10**6), data=st.integers(0, 10**6))
def test_a_run_takes_no_less_and_no_more_than_the_ends(seed: int, data: int) -> None:
    """Both figures of a run lie between those without its unknown sizes and those of upper ends."""
    model = random_model(seed)
    prepared = prepare(ModelFile("<random>", model, 0))
    graph = build(prepared, Request()).graph
    upper = with_upper_dims(graph, prepared.proto)
    assume(upper is not None)
    assert upper is not None
    try:
        shapes = shapes_of_run(model, random_input(model, data))
    except (Fail, InvalidArgument, RuntimeException):
        # Some kernels reject a tensor without elements.
        reject()
    assert contradictions(upper, shapes) == []
    if upper.unbounded or any(node.subgraphs for node in graph.nodes):
        return
    found = [activation_memory(each) for each in (graph, of_run(graph, shapes), upper.graph)]
    for figures in (
        [each.naive_bytes for each in found],
        [each.peak_bytes for each in found],
        [each.in_place_peak_bytes for each in found],
    ):
        assert figures == sorted(figure or 0 for figure in figures)
