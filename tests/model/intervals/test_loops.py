"""The iterations of loops and scans, and what they carry, compared with onnxruntime's runs."""

from typing import Final

import numpy as np
import onnx
import pytest
from data_dependent import contradictions, shapes_of_run, upper_of
from graphs import model_of

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.model.intervals.walk import with_loop_dims

SCAN: Final = """agraph (float[13,7] x, bool[13] c) => (s, y)
    <float[7] begin = {{1, 2, 3, 4, 5, 6, 7}}, float[1] w = {{1}}> {{
    z = Compress<axis = 0>(x, c)
    s, y = Scan<num_scan_inputs = 1, {axes} body = one ({inputs}) => (ho, r) {{ {nodes} }}>({given})
}}"""
LOOP: Final = """agraph (float[5] x, int64 n, bool more) => ({outputs})
    <bool going = {{1}}, int64 zero = {{0}}, int64 three = {{3}}, int64 ten = {{10}}, int64 huge =
     {{9223372036854775807}}, float half = {{0.5}}, float real = {{2.0}}, int64[1] front = {{0}},
     float[2] w = {{1.0, 2.0}}, int64 many = {{900}}, int64 few = {{5}}, int64 often = {{700}},
     int64[2] sides = {{1, 2}}, float[20] wide, int64[1] whole = {{20}}> {{
    m = Min(n, many)  k = Min(n, few)
    {outputs} = Loop({count}, going{carried}) <
        body = iteration(int64 i, bool c{inputs}) => (co{made}) {{ {body} }}
    >
}}"""
ROWS: Final = {"carried": "", "inputs": "", "made": ", rows", "outputs": "y"}
COUNTED: Final = {
    "carried": ", zero",
    "inputs": ", int64 k",
    "made": ", ko, rows",
    "outputs": "last, y",
}
GROWING: Final = {
    "carried": ", x",
    "inputs": ", float[K] h",
    "made": ", ho",
    "outputs": "y",
}
FEEDS: Final = {"x": np.ones(5, np.float32), "n": np.array(4), "more": np.array(1, np.bool_)}


def loop(body: str, count: str, parts: dict[str, str]) -> onnx.ModelProto:
    return model_of(LOOP.format(body=body, count=count, **parts))


def known_loops(model: onnx.ModelProto) -> Graph:
    """The graph with the dims that follow from known numbers of iterations."""
    prepared = prepare(ModelFile("<text>", model, 0))
    return with_loop_dims(build(prepared, Request()).graph, prepared.proto)


def shape(model: onnx.ModelProto, name: str, **limits: int) -> tuple[int | None, ...] | None:
    return upper_of(model, limits).graph.tensors[name].shape


@pytest.mark.parametrize(
    ("axes", "inputs", "nodes", "given", "found"),
    [
        ("", "float[7] h, float[7] u", "ho = Add(h, u)  r = Mul(h, u)", "begin, z", (13, 7)),
        (
            "scan_input_axes = [1], scan_output_axes = [-1],",
            "float[1] h, float[K] u",
            "ho = Identity(h)  r = Relu(u)",
            "w, z",
            (13, 7),
        ),
    ],
)
def test_a_scan_has_as_many_iterations_as_it_scans(
    axes: str, inputs: str, nodes: str, given: str, found: tuple[int, ...]
) -> None:
    model = model_of(SCAN.format(axes=axes, inputs=inputs, nodes=nodes, given=given))
    upper = upper_of(model)
    assert upper.unbounded == ()
    assert upper.graph.tensors["y"].shape == found
    feeds = {"x": np.ones((13, 7), np.float32), "c": np.arange(13) < 4}
    assert contradictions(upper, shapes_of_run(model, feeds)) == []


def test_a_scan_of_what_nothing_bounds_has_no_end() -> None:
    model = model_of("""agraph (float[5] x) => (s, y)
        <float[1] b, int64 begin = {0}, int64 one = {1}> {
            e = ReduceSum<keepdims = 0>(x)  n = Cast<to = 7>(e)  t = Range(begin, n, one)
            z = Cast<to = 1>(t)
            s, y = Scan<num_scan_inputs = 1, body = o (float[1] h, float u) => (ho, r) {
                ho = Identity(h)  r = Relu(u)
            }>(b, z)
        }""")
    assert upper_of(model).unbounded == ("t:0",)
    assert shape(model, "y", **{"t:0": 6}) == (6,)


def test_a_count_that_means_no_limit_is_none() -> None:
    model = loop("co = Identity(more)  rows = Relu(x)", "huge", ROWS)
    assert shape(model, "y") == (None, 5)
    (name,) = upper_of(model).unbounded
    assert shape(model, "y", **{name: 4}) == (4, 5)
    (node,) = upper_of(model).iterations
    assert shape(model, "y", **{f"{node}:iterations": 3}) == (3, 5)


@pytest.mark.parametrize(
    "body",
    [
        "l = Not(more)  co = And(l, more)",  # no comparison
        "co = Identity(c)",  # no condition at all
        "l = Less(ko, k)  co = And(l, more)",  # with a limit that iterations change
        "q = Add(n, i)  l = Less(ko, q)  co = And(l, more)",  # with one computed in the body
        "f = Cast<to = 10>(ko)  h = Cast<to = 10>(ten)  l = Less(f, h)  co = And(l, more)",
        "f = Cast<to = 10>(ko)  l = Less(f, ten)  co = And(l, more)",  # float16 may overflow
        "l = Less(ten, ko)  co = And(l, more)",  # while it is above
        "l = Less(n, ten)  co = And(l, more)",  # of no counter
        "l = Less(i, n)  co = And(l, more)",  # with a limit that nobody knows
    ],
)
def test_a_condition_that_bounds_nothing_leaves_none(body: str) -> None:
    model = loop(f"ko = Add(k, three)  {body}  rows = Relu(x)", "", COUNTED)
    assert shape(model, "y") == (None, 5)


@pytest.mark.parametrize(
    "step", ["ko = Sub(k, three)", "ko = Add(i, k)", "ko = Add(k, zero)", "ko = Add(n, three)"]
)
def test_a_counter_that_may_not_grow_bounds_nothing(step: str) -> None:
    text = f"{step}  l = Less(ko, ten)  co = And(l, more)  rows = Relu(x)"
    assert shape(loop(text, "", COUNTED), "y") == (None, 5)


def test_a_counter_of_fractions_may_be_rounded() -> None:
    """A half an iteration up to 2: 5 iterations, the last of which ends it, and one of rounding."""
    parts = {
        "carried": ", real, half",
        "inputs": ", float end, float k",
        "made": ", same, ko, rows",
        "outputs": "limit, last, y",
    }
    text = """ko = Add(half, k)  l = Less(k, end)  same = Identity(end)  co = And(l, more)
        rows = Relu(x)"""
    model = loop(text, "", parts)
    (most, _) = shape(model, "y") or ()
    found = shapes_of_run(model, FEEDS)["y"]
    assert most is not None
    assert found[0] <= most <= found[0] + 2


@pytest.mark.parametrize(
    ("count", "body", "found"),
    [
        ("n", "ho = Concat<axis = 0>(h, w)", (None,)),
        ("m", "ho = Concat<axis = 0>(h, w)", (5 + 2 * 900,)),
        ("m", "ho = Concat<axis = 0>(h, h)", (None,)),
        ("k", "ho = Concat<axis = 0>(h, h)", (5 * 2**5,)),
    ],
)
def test_what_a_loop_carries_grows_along_a_line_or_has_no_end(
    count: str, body: str, found: tuple[int | None, ...]
) -> None:
    model = loop(f"co = Identity(c)  {body}", count, GROWING)
    assert shape(model, "y") == found
    assert contradictions(upper_of(model), shapes_of_run(model, FEEDS)) == []


@pytest.mark.parametrize(
    "body",
    [
        "ho = Concat<axis = 0>(h, w)",
        "a = Concat<axis = 0>(w, h)  e = Relu(a)  ho = Concat<axis = 0>(e, w, w)",
        "e = Exp(h)  ho = Pad(e, sides)",
        """ho = Loop(three, going, h) <body = inner(int64 j, bool g, float[M] v) => (go, vo) {
            go = Identity(g)  vo = Concat<axis = 0>(v, w)
        }>""",
    ],
)
def test_what_a_known_number_of_iterations_adds_is_known(body: str) -> None:
    """700 iterations are more than are followed one by one."""
    model = loop(f"co = Identity(c)  {body}", "often", GROWING)
    found = known_loops(model)
    assert [name for name, tensor in found.tensors.items() if tensor.is_open] == []
    (seen,) = shapes_of_run(model, FEEDS)["y"]
    assert found.tensors["y"].shape == (seen,)
    assert upper_of(model).data_dims == ()


@pytest.mark.parametrize(
    "body",
    [
        "ho = Concat<axis = 0>(h, h)",
        "p = NonZero(h)  q = Squeeze(p, front)  r = Cast<to = 1>(q)  ho = Concat<axis = 0>(h, r)",
        """b = Greater(n, i)
        ho = If(b) <then_branch = t() => (u) { u = Concat<axis = 0>(h, w) },
                    else_branch = e() => (v) { v = Identity(h) }>""",
    ],
)
def test_what_differs_between_iterations_is_left_to_the_data(body: str) -> None:
    model = loop(f"co = Identity(c)  {body}", "three", GROWING)
    assert known_loops(model).tensors["y"].is_open
    assert contradictions(upper_of(model), shapes_of_run(model, FEEDS)) == []


def test_a_tensor_that_shrinks_keeps_its_largest_size() -> None:
    """What is left of x is most in the first iteration, and what the loop carries in the last."""
    body = """co = Identity(c)  ho = Concat<axis = 0>(h, w)
        s = Shape(h)  left = Slice(wide, s, whole)  r = Relu(left)"""
    model = loop(body, "three", GROWING)
    found = known_loops(model)
    assert found.tensors["y"].shape == (11,)
    names = [name for name in found.tensors if name.endswith("/r")]
    assert [found.tensors[name].size_bytes for name in names] == [4 * (20 - 5)]


@pytest.mark.parametrize(
    "body", ["ho = Unsqueeze(h, front)", "d = Cast<to = 7>(h)  ho = Reshape(h, d)"]
)
@pytest.mark.parametrize("count", ["n", "m"])
def test_what_no_line_follows_has_any_number_of_elements(body: str, count: str) -> None:
    """A rank that an iteration raises; a shape that is unknown from the first iteration on."""
    model = loop(f"co = Identity(c)  {body}", count, {**GROWING, "inputs": ", float[] h"})
    assert upper_of(model).graph.tensors["y"].num_elements in {None, 5}


@pytest.mark.parametrize(
    ("count", "inserted", "found"),
    [
        ("k", "so = Identity(t)", (5 * 900,)),
        ("k", "so = SequenceInsert(t, x)", (2 * 5 * 900,)),
        ("n", "so = Identity(t)", (None,)),
    ],
)
def test_a_sequence_that_a_loop_carries_grows_by_its_trips(
    count: str, inserted: str, found: tuple[int | None, ...]
) -> None:
    model = model_of(f"""agraph (float[5] x, int64 n) => (y)
        <bool going = {{1}}, int64 few = {{900}}> {{
            k = Min(n, few)  e = SequenceEmpty()
            l = Loop({count}, going, e) <
                body = iteration(int64 i, bool c, seq(float[5]) s) => (co, so) {{
                    co = Identity(c)  t = SequenceInsert(s, x)  {inserted}
                }}
            >
            y = ConcatFromSequence<axis = 0>(l)
        }}""")
    assert shape(model, "y") == found


def test_branches_of_other_ranks_have_elements_at_most() -> None:
    model = model_of("""agraph (float[3,4] x, bool more) => (z) <int64[1] flat = {-1}> {
        y = If (more) <
            then_branch = t() => (p) { q = NonZero(x)  s = Transpose(q)  p = Cast<to = 1>(s) },
            else_branch = e() => (o) { o = Reshape(x, flat) }
        >
        z = Relu(y)
    }""")
    assert upper_of(model).graph.tensors["z"].num_elements == 24
