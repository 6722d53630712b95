"""Branches that do not run, iterations of a Loop or a Scan, and the shapes around them."""

import onnx
import pytest
from graphs import graph_of, model_of
from model.test_inference import shapes

from onnxmem import Analysis, analyze
from onnxmem.analysis.compute import compute
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import DType
from onnxmem.model.shapes.control_flow import body_inputs, control_flow_types
from onnxmem.model.shapes.onnx_rules import onnx_rule_types
from onnxmem.model.value_types import dense_type
from onnxmem.ops.spec import Shape

CHOICE = """agraph (bool[1] c, float[2,3] x) => (float[2,3] y)
    <float[3,11] w, float[11,3] v> {
    d = Not(c)
    y = If (d) <
        then_branch = plain () => (float[2,3] a) { a = Relu(x) },
        else_branch = wide () => (float[2,3] b) {
            h = MatMul(x, w) g = Sigmoid(h) b = MatMul(g, v) }> }"""
NESTED = """agraph (bool c, int64 n, float[2,3] x) => (float[2,3] y) {
    y = If (c) <
        then_branch = outer () => (float[2,3] a) {
            a = Loop (n, c, x) <
                body = step (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] t) {
                    on = Identity(go) e = Exp(s) t = Log(e) }> },
        else_branch = other () => (float[2,3] b) {
            b = If (c) <
                then_branch = never () => (float[2,3] p) { q = Tan(x) p = Cos(q) },
                else_branch = always () => (float[2,3] r) { r = Sin(x) }> }> }"""
OPEN = """agraph (bool c, int64[1] k, float[2,13] x) => (y) {
    y = If (c) <
        then_branch = some () => (a) { i, j = TopK(x, k) a = Neg(i) },
        else_branch = all () => (b) { b = Neg(x) }> }"""


def made(found: Analysis) -> set[str]:
    tensors = found.graph.tensors.values()
    return {each.name.rpartition("/")[2] for each in tensors if each.role == "activation"}


def naive_bytes(found: Analysis) -> int | None:
    return found.activations.naive_bytes


@pytest.mark.parametrize(
    ("value", "names", "naive"),
    [(False, {"d", "y", "a"}, 1 + 24), (True, {"d", "y", "h", "g", "b"}, 1 + 24 + 2 * 88)],
)
def test_only_the_branch_that_runs_is_counted(value: bool, names: set[str], naive: int) -> None:
    found = analyze(model_of(CHOICE), values={"c": value})
    assert made(found) == names
    assert naive_bytes(found) == naive


def test_without_a_value_the_larger_branch_counts() -> None:
    found = analyze(model_of(CHOICE))
    assert made(found) == {"d", "y", "a", "h", "g", "b"}
    assert naive_bytes(found) == 1 + 24 + 2 * 88


def test_the_weights_of_an_idle_branch_are_loaded() -> None:
    given = analyze(model_of(CHOICE), values={"c": False})
    assert [each.name for each in given.graph.weights] == ["w", "v"]
    assert sum(each.size_bytes or 0 for each in given.graph.weights) == 2 * 3 * 11 * 4


@pytest.mark.parametrize(
    ("value", "names"), [(True, {"y", "a", "on", "e", "t"}), (False, {"y", "b", "r"})]
)
def test_nested_branches_follow_the_same_condition(value: bool, names: set[str]) -> None:
    found = analyze(model_of(NESTED), values={"c": value})
    assert made(found) == names
    if not value:
        assert not any(each.role == "body_input" for each in found.graph.tensors.values())


def test_unknown_shapes_of_an_idle_branch_are_not_reported() -> None:
    assert analyze(model_of(OPEN)).status == "partial"
    found = analyze(model_of(OPEN), values={"c": False})
    assert (found.status, found.graph.tensors["y"].shape) == ("ok", (2, 13))


def test_a_condition_of_several_elements_excludes_no_branch() -> None:
    text = CHOICE.replace("bool[1] c", "bool[2] c")
    assert made(analyze(model_of(text), values={"c": True})) == {"d", "y", "a", "h", "g", "b"}


LOOP = """agraph (bool c, int64 n, float[3,5] x) => (y) <float[5,5] w{constants}> {{
    y = Loop <body = body (i, go, s) => (more, t) {{ t = MatMul(s, w)  {condition} }}> ({inputs}, x)
}}"""


def loop(inputs: str, condition: str = "more = Identity(go)", constants: str = "") -> str:
    return LOOP.format(inputs=inputs, condition=condition, constants=constants)


def shaped(count: str) -> str:
    """A loop over a count k of the shape of x."""
    constants = ", int64 one = {1}, int64[1] ends = {1}, int64[1] far = {99}, int64 seven = {7}"
    return loop("k,", constants=constants).replace("y = Loop", f"{count}  y = Loop")


def test_a_count_that_adds_itself_up_is_soon_unknown() -> None:
    """Neither two sources for each sum, nor a call for each."""
    sums = "".join(f"n{each} = Add(n{each - 1}, n{each - 1})  " for each in range(1, 3_000))
    text = loop("n2999,").replace("int64 n,", "int64 n0,").replace("y = Loop", f"{sums} y = Loop")
    graph = graph_of(text)
    assert trip_count(graph, graph.nodes[-1]) is None


def test_a_shape_of_one_iteration_counts_no_loop() -> None:
    """In the second iteration of the outer loop the inner one has 4 iterations."""
    graph = graph_of("""agraph (float[2] x) => (y) <int64 two = {2}, bool on = {1}> {
        y = Loop(two, on, x) <body = outer (int64 i, bool c, float[K] h) => (co, ho) {
            co = Identity(c)  r = Relu(h)  n = Size(r)
            t = Loop(n, on, h) <body = inner (int64 j, bool d, float[L] g) => (do, go) {
                do = Identity(d)  go = Exp(g)
            }>
            ho = Concat<axis = 0>(t, t)
        }>
    }""")
    (outer,) = graph.nodes
    body = outer.subgraphs[0][1]
    loop = next(node for node in body.nodes if node.onnx_op == "Loop")
    assert [trip_count(each, loop) for each in (graph, body)] == [None, None]


SEVEN = ", int64 seven = {7}"
TRUE = ", bool yes = {1}"
FALSE = ", bool no = {0}"


@pytest.mark.parametrize(
    ("text", "trips"),
    [
        (loop("seven,", constants=SEVEN), 7),
        (loop("seven, yes", constants=SEVEN + TRUE), 7),
        (loop("seven, no", constants=SEVEN + FALSE), 0),
        (loop("seven, c", constants=SEVEN), None),
        (loop("n,", constants=""), None),
        (loop(", yes", constants=TRUE), None),
        (loop("seven,", "more = Not(go)", SEVEN), 1),
        (loop("seven,", "k = Identity(go)  more = Identity(k)", SEVEN), 7),
        (loop("minus,", constants=", int64 minus = {-3}"), 0),
        (shaped("d = Shape(x)  k = Gather(d, one)"), 5),
        (shaped("d = Shape<start = -1>(x)  k = Squeeze(d)"), 5),
        (shaped("s = Size(x)  k = Sub(s, one)"), 14),
        (shaped("d = Shape(x)  f = Slice(d, ends, far)  k = Squeeze(f)"), 5),
        (shaped("d = Shape(x)  k = Gather(d, seven)"), None),
        (shaped("d = Shape(x)  k = ReduceSum<keepdims = 0>(d)"), None),
    ],
)
def test_the_trips_of_a_loop(text: str, trips: int | None) -> None:
    graph = graph_of(text)
    assert trip_count(graph, graph.nodes[-1]) == trips
    macs = compute(graph).forward_macs
    assert macs == 3 * 5 * 5 * (1 if trips is None else trips)


COUNTED = """agraph (float[3,5] x, int64 other) => (y) <float[5,5] w, int64 zero = {{0}},
    int64 first = {{2}}, int64 step = {{3}}, int64 end = {{17}}, int64 four = {{4}},
    int64 most = {{9223372036854775807}}> {{
    going = Less(first, end)
    last, k, y = Loop <body = body (i, go, c, j, s) => (more, d, l, t) {{
        one = Constant <value = int64 {{1}}> ()
        t = MatMul(s, w)  d = Add(c, step)  l = Add(j, one)  {condition} }}>
        ({inputs}, first, zero, x)
}}"""


@pytest.mark.parametrize(
    ("inputs", "condition", "trips"),
    [
        # The counter is 2, 5, 8, 11, 14, and 17 ends it.
        ("most, going", "more = Less(d, end)", 5),
        (", going", "more = Less(d, end)", 5),
        (", ", "more = Less(d, end)", 5),
        ("four, going", "more = Less(d, end)", 4),
        (", going", "more = LessOrEqual(d, end)", 6),
        (", going", "more = Greater(end, d)", 5),
        (", going", "a = Less(d, end)  b = Less(l, four)  more = And(a, b)", 4),
        (", going", "a = GreaterOrEqual(d, end)  b = Not(a)  more = Cast <to = 9> (b)", 5),
        (", going", "a = Mul(i, i)  more = Less(a, end)", 6),
        # What only a run can tell, or what never ends
        (", going", "more = Less(d, other)", None),
        (", going", "a = ReduceSum(t)  more = Cast <to = 9> (a)", None),
        (", going", "more = Less(l, most)", None),
        (", ", "more = Identity(go)", None),
    ],
)
def test_the_trips_of_a_loop_that_counts(inputs: str, condition: str, trips: int | None) -> None:
    """Like loops over a constant number of steps from tf2onnx, Keras and JAX."""
    graph = graph_of(COUNTED.format(inputs=inputs, condition=condition))
    loops = [node for node in graph.nodes if node.op_type == "Loop"]
    assert [trip_count(graph, node) for node in loops] == [trips]


@pytest.mark.parametrize(
    ("settings", "trips"),
    [("", 7), (", scan_input_axes = [0]", 7), (", scan_input_axes = [1]", 3)],
)
def test_the_trips_of_a_scan(settings: str, trips: int) -> None:
    graph = graph_of(f"""agraph (float[5] h, float[7,3] x) => (y, z) {{
        y, z = Scan <num_scan_inputs = 1{settings}, body = body (s, e) => (s_out, part) {{
            s_out = Relu(s)  part = Relu(e) }}> (h, x) }}""")
    assert trip_count(graph, graph.nodes[0]) == trips
    assert compute(graph).forward_flops == trips * (5 + 21 // trips)


def test_an_if_runs_a_branch_once() -> None:
    graph = graph_of("""agraph (bool c, float[5] x) => (y) {
        y = If (c) <then_branch = a () => (p) { p = Relu(x) },
                    else_branch = b () => (q) { q = Neg(x) }> }""")
    assert trip_count(graph, graph.nodes[0]) == 1


@pytest.mark.parametrize(
    "settings", ["num_scan_inputs = 0", "num_scan_inputs = 1, scan_input_axes = [9]"]
)
def test_a_scan_without_scan_inputs_has_no_trip_count(settings: str) -> None:
    graph = graph_of(f"""agraph (float[5] h, float[7,3] x) => (y) {{
        y = Scan <{settings}, body = body (s) => (t) {{ t = Relu(s) }}> (h, x) }}""")
    assert trip_count(graph, graph.nodes[0]) is None


FLOAT = onnx.TensorProto.FLOAT


def old(text: str, opset: int) -> str:
    return f'<ir_version: 4, opset_import: ["": {opset}]> {text}'


def inside(text: str) -> dict[str, Shape | None]:
    """The tensors of subgraphs, by the last part of their names."""
    tensors = graph_of(text).tensors
    return {name.rpartition("/")[2]: t.shape for name, t in tensors.items() if "/" in name}


# Dropout


@pytest.mark.parametrize(("opset", "dtype"), [(7, DType.FLOAT32), (10, DType.BOOL)])
def test_the_mask_of_a_dropout_has_the_shape_of_its_data(opset: int, dtype: DType) -> None:
    text = "agraph (float[2,3] x) => (y) { y, mask = Dropout(x) }"
    tensors = graph_of(old(text, opset)).tensors
    assert (tensors["y"].shape, tensors["y"].dtype) == ((2, 3), DType.FLOAT32)
    assert (tensors["mask"].shape, tensors["mask"].dtype) == ((2, 3), dtype)


def test_a_dropout_of_unknown_data_is_unknown() -> None:
    node = onnx.helper.make_node("Dropout", ["x"], ["y", "mask"])
    assert onnx_rule_types(node, {}, {}, 7) == {}
    made = onnx_rule_types(node, {"x": dense_type(FLOAT, (2,))}, {}, 7)
    assert set(made) == {"y", "mask"}
    assert onnx_rule_types(node, {"x": dense_type(FLOAT, (2,))}, {}, 13) == {}


@pytest.mark.parametrize("op_type", ["Dropout", "If", "Loop"])
def test_an_operator_of_another_domain_is_another_operator(op_type: str) -> None:
    node = onnx.helper.make_node(op_type, ["x"], ["y"], domain="own")
    types = {"x": dense_type(FLOAT, (2,))}
    assert control_flow_types(node, types, {}) == {}
    assert onnx_rule_types(node, types, {}, 7) == {}


def test_without_a_body_no_shape_is_known() -> None:
    types = {"x": dense_type(FLOAT, (2,))}
    for op_type in ("If", "Loop"):
        assert control_flow_types(onnx.helper.make_node(op_type, ["x"], ["y"]), types, {}) == {}
    for op_type in ("Loop", "Scan"):
        assert body_inputs(onnx.helper.make_node(op_type, ["x"], ["y"]), types, {"": 21}) == {}


# If

IF = """agraph (float[2,3] x) => (y) <CONDITION> {
    NODES
    y = If (c) <
        then_branch = t () => (float o) { o = ReduceSum <keepdims = 0> (x) },
        else_branch = e () => (float[2,3] p) { p = Relu(x) }>
}"""


@pytest.mark.parametrize(
    ("value", "shape"), [("bool c = {1}", ()), ("bool c = {0}", (2, 3)), ("bool[1] c = {1}", ())]
)
def test_an_if_with_a_known_condition_has_the_shapes_of_its_branch(
    value: str, shape: Shape
) -> None:
    assert shapes(IF.replace("CONDITION", value).replace("NODES", ""), "y") == [shape]


def test_the_condition_can_be_computed() -> None:
    text = IF.replace("CONDITION", "int64 k = {2}")
    nodes = "r = Shape(x)  n = Size(r)  c = Equal(n, k)"
    assert shapes(text.replace("NODES", nodes), "y") == [()]
    assert shapes(text.replace("NODES", nodes).replace("{2}", "{9}"), "y") == [(2, 3)]


def test_an_if_with_an_unknown_condition_has_the_dims_of_both_branches() -> None:
    text = IF.replace("<CONDITION>", "").replace("NODES", "").replace("x)", "x, bool c)", 1)
    assert graph_of(text).tensors["y"].size_bytes is None
    alike = text.replace(
        "float o) { o = ReduceSum <keepdims = 0> (x)", "float[2,3] o) { o = Exp(x)"
    )
    assert shapes(alike, "y") == [(2, 3)]


def test_an_if_can_have_several_outputs() -> None:
    text = """agraph (float[2,3] x) => (y, z) <bool c = {0}> {
        y, z = If (c) <
            then_branch = t () => (float a, float b) {
                a = ReduceSum <keepdims = 0> (x)  b = ReduceMax <keepdims = 0> (x) },
            else_branch = e () => (float d, float[2,3] f) {
                d = ReduceSum <keepdims = 0> (x)  f = Relu(x) }>
    }"""
    assert shapes(text, "y z") == [(), (2, 3)]


# Loop


def loop_model(  # the parts of a model with one Loop
    *, trips: str = "", go: str = "", go_out: str = "go_out = Identity(go_in)", state: str = "Relu"
) -> str:
    """A model with a Loop that carries ``s`` and stacks ``each``; weights ``n`` and ``go``."""
    weights = ", ".join(filter(None, [trips, go]))
    return f"""agraph (float[2,3] x, int64 given) => (y, stacked) <{weights}> {{
        y, stacked = Loop ({"n" if trips else "given"}, {"go" if go else ""}, x) <body = body
            (int64 i, bool go_in, s) => (go_out, s_out, each) {{
                {go_out}
                s_out = {state}(s)
                each = ReduceSum <keepdims = 0> (s_out)
            }}>
    }}""".replace("<>", "")


FIVE, YES = "int64 n = {5}", "bool go = {1}"


@pytest.mark.parametrize("trips", [FIVE, "int64[1] n = {5}"])
@pytest.mark.parametrize("go", ["", YES])
@pytest.mark.parametrize(
    "go_out",
    [
        "go_out = Identity(go_in)",
        "a = Identity(go_in)  b = Identity(a)  go_out = Identity(b)",
        "go_out = Constant <value = bool {1}> ()",
        "a = Constant <value = bool {1}> ()  go_out = Identity(a)",
    ],
)
def test_a_loop_with_a_constant_trip_count_stacks_that_many(
    trips: str, go: str, go_out: str
) -> None:
    text = loop_model(trips=trips, go=go, go_out=go_out)
    assert shapes(text, "y stacked") == [(2, 3), (5,)]


def test_the_body_sees_the_inputs_of_its_loop() -> None:
    found = inside(loop_model(trips=FIVE))
    assert found == {"i": (), "go_in": (), "s": (2, 3), "go_out": (), "s_out": (2, 3), "each": ()}


def test_a_stacked_output_has_the_trip_count_before_its_dims() -> None:
    text = loop_model(trips=FIVE).replace("ReduceSum <keepdims = 0> (s_out)", "Identity(s_out)")
    assert shapes(text, "stacked") == [(5, 2, 3)]


@pytest.mark.parametrize("go_out", ["Not(go_in)", "Constant <value = bool {0}> ()"])
def test_a_loop_ended_by_its_body_stacks_one(go_out: str) -> None:
    assert shapes(loop_model(trips=FIVE, go_out=f"go_out = {go_out}"), "y stacked") == [
        (2, 3),
        (1,),
    ]


def test_a_loop_that_counts_to_a_limit_stacks_that_many() -> None:
    go_out = """one = Constant <value = int64 {1}> ()  three = Constant <value = int64 {3}> ()
        next = Add(i, one)  go_out = Less(next, three)"""
    assert shapes(loop_model(trips=FIVE, go_out=go_out), "y stacked") == [(2, 3), (3,)]


@pytest.mark.parametrize("number", [0, -3])
def test_a_loop_that_never_runs_stacks_nothing(number: int) -> None:
    assert shapes(loop_model(trips=f"int64 n = {{{number}}}"), "y stacked") == [
        (2, 3),
        (0,),
    ]


@pytest.mark.parametrize(
    "text",
    [
        loop_model(),
        loop_model(go=YES),
        loop_model(trips="int64[2] n = {5, 5}"),
    ],
)
def test_a_loop_of_unknown_length_has_its_carried_shapes(text: str) -> None:
    carried, stacked = shapes(text, "y stacked")
    assert carried == (2, 3)
    assert stacked is None or None in stacked


def test_a_loop_that_a_condition_can_end_has_no_known_length() -> None:
    text = (
        loop_model(trips=FIVE)
        .replace("int64 given", "int64 given, bool go")
        .replace("(n, ,", "(n, go,")
    )
    assert "(n, go, x)" in text
    carried, stacked = shapes(text, "y stacked")
    assert carried == (2, 3)
    assert stacked is None or None in stacked


def test_a_loop_that_never_starts() -> None:
    carried, stacked = shapes(loop_model(trips=FIVE, go="bool go = {0}"), "y stacked")
    assert carried == (2, 3)
    assert stacked in {None, (None,), (0,)}


def test_a_tensor_that_grows_in_a_loop_is_unknown() -> None:
    text = loop_model(trips=FIVE).replace("Relu(s)", "Concat <axis = 0> (s, s)")
    assert graph_of(text).tensors["y"].size_bytes is None


def test_a_carried_tensor_replaced_by_a_growing_one_is_unknown() -> None:
    text = """agraph (float[2] x) => (a, b) <int64 n = {4}> {
        a, b = Loop (n, , x, x) <body = body
            (int64 i, bool g, s, t) => (g_out, s_out, t_out) {
                g_out = Identity(g)
                s_out = Identity(t)
                t_out = Concat <axis = 0> (t, t)
            }>
    }"""
    tensors = graph_of(text).tensors
    assert tensors["b"].size_bytes is None
    assert tensors["a"].size_bytes is None


def test_the_trip_count_of_a_loop_can_be_computed() -> None:
    text = loop_model(trips="int64 k = {1}").replace(
        "y, stacked =", "d = Shape(x)  n = Gather(d, k)  y, stacked ="
    )
    assert shapes(text, "stacked") == [(3,)]


def test_a_loop_can_carry_and_stack_several_tensors() -> None:
    text = """agraph (float[2] x, float16[3] z) => (a, b, c, d) <int64 n = {4}> {
        a, b, c, d = Loop (n, , x, z) <body = body
            (int64 i, bool g, s, t) => (g_out, s_out, t_out, u, v) {
                g_out = Identity(g)
                s_out = Relu(s)
                t_out = Exp(t)
                u = Identity(t_out)
                v = Shape(s)
            }>
    }"""
    tensors = graph_of(text).tensors
    assert [(tensors[name].shape, tensors[name].dtype) for name in "abcd"] == [
        ((2,), DType.FLOAT32),
        ((3,), DType.FLOAT16),
        ((4, 3), DType.FLOAT16),
        ((4, 1), DType.INT64),
    ]


def test_a_loop_in_a_loop() -> None:
    text = """agraph (float[2,3] x) => (y, all) <int64 n = {4}, int64 m = {5}> {
        y, all = Loop (n, , x) <body = outer
            (int64 i, bool g, s) => (g_out, s_out, rows) {
                g_out = Identity(g)
                s_out, rows = Loop (m, , s) <body = inner
                    (int64 j, bool h, t) => (h_out, t_out, row) {
                        h_out = Identity(h)
                        t_out = Relu(t)
                        row = Identity(t_out)
                    }>
            }>
    }"""
    assert shapes(text, "y all") == [(2, 3), (4, 5, 2, 3)]


# Scan


def scan(settings: str) -> str:
    return f"""agraph (float[7] h, float[5,2,3] x) => (y, z) {{
        y, z = Scan <num_scan_inputs = 1{settings}, body = body
            (s, each) => (s_out, part) {{ s_out = Relu(s)  part = Identity(each) }}> (h, x)
    }}"""


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ("", (2, 3)),
        (", scan_input_axes = [0]", (2, 3)),
        (", scan_input_axes = [1]", (5, 3)),
        (", scan_input_axes = [-1]", (5, 2)),
    ],
)
def test_the_body_of_a_scan_gets_states_and_slices(settings: str, part: Shape) -> None:
    text = scan(settings)
    assert inside(text) == {"s": (7,), "each": part, "s_out": (7,), "part": part}
    assert shapes(text, "y") == [(7,)]


def test_a_scan_along_a_missing_axis_gives_its_body_unknown_shapes() -> None:
    node = onnx.parser.parse_node(
        "y, z = Scan <num_scan_inputs = 1, scan_input_axes = [3], "
        "body = body (s, each) => (s, each) { }> (h, x)"
    )
    types = {"h": dense_type(FLOAT, (7,)), "x": dense_type(FLOAT, (5, 2, 3))}
    assert set(body_inputs(node, types, {"": 21})) == {"s"}
    assert body_inputs(node, types, {"": 8}) == {}
    assert body_inputs(node, {}, {"": 21}) == {}
