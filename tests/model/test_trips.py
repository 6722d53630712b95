"""How often bodies run, where the file says so; and what that makes of arithmetic."""

import pytest
from graphs import graph_of

from onnxmem.analysis.compute import compute
from onnxmem.model.control_flow import trip_count

LOOP = """agraph (bool c, int64 n, float[3,5] x) => (y) <float[5,5] w{constants}> {{
    y = Loop <body = body (i, go, s) => (more, t) {{ t = MatMul(s, w)  {condition} }}> ({inputs}, x)
}}"""


def loop(inputs: str, condition: str = "more = Identity(go)", constants: str = "") -> str:
    return LOOP.format(inputs=inputs, condition=condition, constants=constants)


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
    ],
)
def test_the_trips_of_a_loop(text: str, trips: int | None) -> None:
    graph = graph_of(text)
    assert trip_count(graph, graph.nodes[0]) == trips
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
    """As tf2onnx, Keras and JAX write a loop over a constant number of steps."""
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
def test_a_scan_that_scans_nothing_has_no_trips(settings: str) -> None:
    graph = graph_of(f"""agraph (float[5] h, float[7,3] x) => (y) {{
        y = Scan <{settings}, body = body (s) => (t) {{ t = Relu(s) }}> (h, x) }}""")
    assert trip_count(graph, graph.nodes[0]) is None
