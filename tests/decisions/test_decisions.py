"""What a run does beyond its plan: branches, trips and shapes that follow from known values."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import graph_of, model_of
from session_graphs import session_of

from onnxmem import analyze
from onnxmem.errors import Finding, UsageError
from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import MeasureSettings, measure
from onnxmem.model.binding import Request
from onnxmem.model.files import load
from onnxmem.model.input_values import InputValueError, input_arrays
from onnxmem.runtimes.from_settings import predict
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import LoopTrace, undecided
from onnxmem.runtimes.onnxruntime.allocation.frames import Session
from onnxmem.runtimes.onnxruntime.allocation.pattern import rounded_up
from onnxmem.runtimes.onnxruntime.allocation.planning import Planning, plan
from onnxmem.runtimes.onnxruntime.kernels.kernel import Scratch
from onnxmem.runtimes.onnxruntime.memory import SessionRequest
from onnxmem.runtimes.onnxruntime.prediction import Unknowns, arena_figures
from onnxmem.runtimes.onnxruntime.session_graph.control_flow import MAX_ITERATIONS
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    OptimizedModel,
    SessionGraph,
    session_graph,
)
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import ValueLike, Values, parse_values, read_values

RATE = """agraph (float[7] x, int64 sr) => (y) <int64 k = {16000}> {
    c = Equal(sr, k)
    [choose] y = If(c) <
        then_branch = one () => (t) { t = Exp(x) },
        else_branch = two () => (e) { p = Concat <axis = 0> (x, x)  q = Exp(p)  e = Neg(q) }
    >
}"""
SAY_RATE = "; --value sr=VALUE would decide"
TURNS = """agraph (float[7] x, int64 n, bool c) => (y) {
    [turns] y = Loop(n, c, x) <
        body = turn (int64 i, bool o, float[7] v) => (bool p, float[7] u) {
            p = Identity(o)  u = Exp(v) }
    >
}"""
GROWING = """agraph (float[3,N] x, int64 n) => (y) {
    [turns] y = Loop(n, , x) <
        body = turn (int64 i, bool o, float[3,R] v) => (bool p, w) {
            p = Identity(o)  e = Exp(v)  w = Concat <axis = 1> (e, x) }
    >
}"""
COUNTED = """agraph (float[5,7] x) => (y) <int64 one = {1}, int64 nought = {0}> {
    s = Shape(x)  l = Gather(s, nought)  c = Less(nought, l)
    [turns] k, y = Loop( , c, nought, x) <
        body = turn (int64 i, bool o, int64 j, float[5,7] v) => (bool p, int64 j2, float[5,7] u) {
            j2 = Add(j, one)  p = Less(j2, l)  u = Exp(v) }
    >
}"""
"""As TensorFlow writes a loop over an axis."""
GREEDY = """agraph (float[7] x, int64 most) => (y) <int64 one = {1}, float limit = {2.0}> {
    nought = Sub(one, one)  c = Less(nought, most)
    [turns] k, y = Loop( , c, nought, x) <
        body = turn (int64 i, bool o, int64 j, float[7] v) => (bool p, int64 j2, float[7] u) {
            u = Exp(v)  j2 = Add(j, one)  m = ReduceMax <keepdims = 0> (u)
            small = Less(m, limit)  more = Less(j2, most)  p = And(small, more)  }
    >
}"""


def session(
    text: str,
    values: Mapping[str, Values] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
) -> SessionGraph:
    optimized = OptimizedModel(model_of(text), {}, True, "off", "onnxmem")  # noqa: FBT003
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in optimized.proto.graph.input
    }
    return session_graph(optimized, {**shapes, **(inputs or {})}, values or {})


def run_of(found: SessionGraph) -> tuple[list[tuple[str, int]], Unknowns]:
    """Requested bytes after each node beside the arena initializers, and unknown sizes."""
    figures, unknown = arena_figures(found, SessionOptions())
    nodes = [(s.node.op_type, s.requested_bytes - figures.base_bytes) for s in figures.nodes]
    return nodes, unknown


# An If


@pytest.mark.parametrize(
    ("rate", "nodes"),
    [
        (16_000, [("Equal", 1), ("Exp", 29), ("If", 29)]),
        (8_000, [("Equal", 1), ("Concat", 57), ("Exp", 113), ("Neg", 113), ("If", 57)]),
    ],
)
def test_a_known_value_selects_the_branch_and_its_shape(
    rate: int, nodes: list[tuple[str, int]]
) -> None:
    found, unknown = run_of(session(RATE, {"sr": (rate,)}))
    assert [op for op, _ in found] == [op for op, _ in nodes]
    assert found[-1] == nodes[-1]
    assert unknown.branches == unknown.tensors == ()
    assert list(unknown.findings()) == []


def test_without_a_value_the_larger_branch_counts_and_the_needed_input_is_reported() -> None:
    found, unknown = run_of(session(RATE))
    assert [op for op, _ in found] == ["Equal", "Concat", "Exp", "Neg", "If"]
    assert [finding.message for finding in unknown.findings()] == [
        f"the larger branch counts, because the condition is unknown: 'choose'{SAY_RATE}"
    ]


def test_conditions_on_computed_data_stay_unknown_whatever_is_given() -> None:
    text = RATE.replace("c = Equal(sr, k)", "m = ReduceMax <keepdims = 0> (x)  c = Greater(m, z)")
    text = text.replace("int64 k = {16000}", "float z = {0.5}")
    _, unknown = run_of(session(text, {"sr": (3,)}))
    assert unknown.branches == ("choose",)
    assert unknown.deciding == {}
    (finding,) = unknown.findings()
    assert "--value" not in finding.message


def test_only_the_deciding_inputs_are_reported() -> None:
    text = RATE.replace("int64 sr)", "int64 sr, int64 other, bool[1031] many)")
    assert session(text).deciding == {"choose": ("sr",)}
    text = text.replace("c = Equal(sr, k)", "s = Add(sr, other)  c = Equal(s, k)")
    assert session(text).deciding == {"choose": ("sr", "other")}
    assert session(text, {"other": (3,)}).deciding == {"choose": ("sr",)}
    assert session(text.replace("bool[1031]", "bool[1024]")).deciding == {"choose": ("sr", "other")}


def test_values_flow_into_branches_and_out_of_them() -> None:
    text = """agraph (float[7] x, bool f) => (y) <int64 five = {5}, int64 two = {2}> {
        [outer] n = If(f) <
            then_branch = one () => (t) { t = Add(five, two) },
            else_branch = two () => (e) { d = Less(two, five)
                [inner] e = If(d) <
                    then_branch = three () => (p) { p = Identity(five) },
                    else_branch = four () => (q) { q = Identity(two) }> }
        >
        [turns] y = Loop(n, , x) <
            body = turn (int64 i, bool o, float[7] v) => (bool p, float[7] u) {
                p = Identity(o)  u = Exp(v) }>
    }"""
    for f, loops in ((True, 7), (False, 5)):
        found = session(text, {"f": (f,)})
        assert found.trace.loops["turns"].num_iterations == loops
        assert undecided(found.trace).names() == ()
        assert [op for op, _ in run_of(found)[0]].count("Exp") == loops
    assert set(session(text).deciding) == {"outer", "turns"}


def test_an_undecided_if_has_the_dims_that_its_branches_share() -> None:
    text = """agraph (float[7] x, float[11] w, bool[2000] b, int64 k) => (y) {
        c = ReduceMax <keepdims = 0> (w)  d = Cast <to = 9> (c)
        h = If(d) <
            then_branch = one () => (t) { t = Concat <axis = 0> (x, x) },
            else_branch = two () => (e) { e = Neg(x) }>
        r = If(d) <
            then_branch = three () => (p) { p = Exp(x) },
            else_branch = four () => (q) { q = Abs(x) }>
        y = Neg(r)
    }"""
    found = session(text, {"k": (1,)})
    assert found.trace.types == {}
    nodes, unknown = run_of(found)
    assert nodes[-1] == ("Neg", 4 + 1 + 56 + 28 + 28 - 5)
    assert len(unknown.branches) == 2


# A Loop


@pytest.mark.parametrize(
    ("values", "loops"),
    [
        ({"n": (5,), "c": (True,)}, LoopTrace(5, (), is_certain=True)),
        ({"n": (5,), "c": (False,)}, LoopTrace(0, (), is_certain=True)),
        ({"n": (-3,), "c": (True,)}, LoopTrace(0, (), is_certain=True)),
        ({"n": (2_000_003,), "c": (True,)}, LoopTrace(2_000_003, (), is_certain=True)),
        ({"n": (5,)}, LoopTrace(5, (), is_certain=False)),
        ({"n": (MAX_ITERATIONS + 1,)}, LoopTrace(None, (), is_certain=False)),
        ({"n": (2**63 - 1,)}, LoopTrace(None, (), is_certain=False)),
        ({"c": (True,)}, LoopTrace(None, (), is_certain=False)),
        ({"c": (False,)}, LoopTrace(0, (), is_certain=False)),
        ({}, LoopTrace(None, (), is_certain=False)),
    ],
)
def test_the_trips_of_a_loop(values: Mapping[str, Values], loops: LoopTrace) -> None:
    found = session(TURNS, values).trace.loops["turns"]
    assert (found.num_iterations, found.is_certain) == (loops.num_iterations, loops.is_certain)
    assert len(found.traces) <= 1


def test_a_loop_over_an_axis_needs_no_value() -> None:
    found = session(COUNTED)
    assert found.trace.loops["turns"].num_iterations == 5
    nodes, unknown = run_of(found)
    assert [op for op, _ in nodes].count("Exp") == 5
    assert list(unknown.findings()) == []


def test_a_loop_that_data_can_end_runs_to_its_bound() -> None:
    """The shapes are those of the last iteration, and a warning says that they are upper bounds."""
    _, unknown = run_of(session(GREEDY, {"most": (3,)}))
    assert (unknown.bounded_loops, unknown.loops, unknown.deciding) == (("turns",), (), {})
    assert [(finding.code, finding.message) for finding in unknown.findings()] == [
        (
            "unknown_trips",
            "counted with the maximum number of iterations, because they may end earlier: 'turns'",
        )
    ]
    nodes, unknown = run_of(session(GREEDY))
    assert [op for op, _ in nodes].count("Exp") == 1
    assert unknown.loops == ("turns",)


def test_each_iteration_has_its_own_shapes() -> None:
    """The input has 48 bytes; the j-th iteration is fed j times as many and makes as many more.

    A Loop holds 9 bytes for its body, and what an iteration is fed until the next but one begins.
    What holds in the first iteration is in the records.
    """
    found = session(GROWING, {"n": (3,)}, {"x": (3, 4)})
    assert found.graph.tensors["turns/body/w"].shape == (3, 8)
    first, *others = [dict(part.types) for part in found.trace.loops["turns"].traces]
    assert first == {}
    assert [types["turns/body/w"].shape for types in others] == [(3, 12), (3, 16)]
    assert found.trace.types["y"].shape == (3, 16)
    nodes, unknown = run_of(found)
    assert unknown.tensors == ()
    assert [size for op, size in nodes if op == "Concat"] == [
        *(9 + 48 + 96, 9 + 96 + 96 + 144, 9 + 144 + 144 + 192)
    ]
    assert nodes[-1] == ("Loop", 192)


def test_equal_iterations_are_stored_once() -> None:
    found = session(TURNS, {"n": (11,), "c": (True,)}).trace.loops["turns"]
    assert found.num_iterations == 11
    assert found.traces == (found.trace_of(10),)


def test_a_condition_can_depend_on_the_iteration() -> None:
    text = TURNS.replace("p = Identity(o)", "k = Constant <value_int = 3> ()  p = Less(i, k)")
    for values, number, is_certain in (
        ({"n": (100,), "c": (True,)}, 4, True),
        ({"n": (3,), "c": (True,)}, 3, True),
        ({"n": (100,)}, 4, False),
        ({"c": (True,)}, 4, False),
    ):
        found = session(text, values).trace.loops["turns"]
        assert (found.num_iterations, found.is_certain) == (number, is_certain)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("f = Not(b)  c = And(w, f)", 1),
        ("c = Or(w, b)", 0),
        ("f = Not(b)  c = Or(w, f)", None),
        ("c = And(b, w)", None),
    ],
)
def test_one_known_condition_can_decide_another(text: str, place: int | None) -> None:
    made = "m = ReduceMax <keepdims = 0> (x)  w = Cast <to = 9> (m)"
    whole = RATE.replace("c = Equal(sr, k)", f"{made}  b = Equal(sr, k)  {text}")
    assert session(whole, {"sr": (16_000,)}).trace.branches["choose"].index == place


def test_branches_can_differ_between_iterations() -> None:
    text = """agraph (float[7] x, int64 n) => (y) <int64 two = {2}, int64 nought = {0}> {
        [turns] y = Loop(n, , x) <
            body = turn (int64 i, bool o, float[7] v) => (bool p, float[7] u) {
                m = Mod(i, two)  c = Equal(m, nought)  p = Identity(o)
                [odd] u = If(c) <
                    then_branch = one () => (t) { t = Exp(v) },
                    else_branch = two () => (e) { q = Neg(v)  e = Abs(q) }> }>
    }"""
    nodes, _ = run_of(session(text, {"n": (4,)}))
    ran = [op for op, _ in nodes if op in {"Exp", "Abs"}]
    assert ran == ["Exp", "Abs", "Exp", "Abs"]


def test_a_nested_loop_can_run_by_the_outer_iteration() -> None:
    text = """agraph (float[7] x, int64 n) => (y) <int64 one = {1}> {
        y = Loop(n, , x) <
            body = outer (int64 i, bool o, float[7] v) => (bool p, float[7] u) {
                k = Add(i, one)  p = Identity(o)
                u = Loop(k, , v) <
                    body = inner (int64 j, bool g, float[7] w) => (bool h, float[7] z) {
                        h = Identity(g)  z = Exp(w) }> }>
    }"""
    nodes, unknown = run_of(session(text, {"n": (4,)}))
    assert [op for op, _ in nodes].count("Exp") == 1 + 2 + 3 + 4
    assert unknown.loops == ()


def test_a_scan_runs_along_its_axis_and_its_body_sees_outer_values() -> None:
    text = """agraph (float[5,7] x, float[7] h, bool c) => (y, z) {
        y, z = Scan <num_scan_inputs = 1, body = b (s, e) => (t, o) {
            t = Add(s, e)
            o = If(c) <then_branch = one () => (p) { p = Exp(e) },
                       else_branch = two () => (q) { r = Abs(e)  q = Neg(r) }> }> (h, x) }"""
    nodes, unknown = run_of(session(text, {"c": (True,)}))
    assert [op for op, _ in nodes].count("Exp") == 5
    assert unknown.branches == ()


TWO_GROWING = """agraph (float[3,50021] x, int64 n) => (y, z) {
    [turns] y, z = Loop(n, , x, x) <
        body = turn (int64 i, bool o, float[3,R] v, float[3,R] u) => (bool p, w, t) {
            p = Identity(o)  e = Exp(v)  w = Concat <axis = 1> (e, x)
            f = Exp(u)  t = Concat <axis = 1> (f, x) }
    >
}"""


@pytest.mark.parametrize(("text", "blocks"), [(GROWING, 3), (TWO_GROWING, 1)])
def test_memory_patterns_are_keyed_by_the_exclusive_or_of_the_dims(text: str, blocks: int) -> None:
    """If two dims grow equally, their exclusive or is constant and one pattern serves the loop.

    The block is requested from the second iteration on; buffers of another size come beside it.
    """
    found = session(text, {"n": (3,)}, {"x": (3, 50021)})
    made = plan(found.graph, Planning(found.shapes))
    simulated = Session(made, lambda *_: Scratch(), trace=found.trace)
    simulated.run()
    assert len(simulated.patterns) == 1 + blocks
    column = 3 * 50021 * 4
    second = [s.requested_bytes - 9 for s in simulated.run().samples(0) if s.node.op_type == "Exp"]
    block = rounded_up(column)
    if blocks == 1:  # two Exps an iteration, beside what was handed on and made so far
        assert second[:3] == [block, block + 2 * column, 4 * column + block + 2 * column]
    else:
        assert second[:2] == [block, 2 * column + rounded_up(2 * column)]


# Shapes from values, without control flow


def test_a_value_can_size_a_tensor() -> None:
    text = """agraph (float[7] x, int64 n) => (y) <int64 nought = {0}, int64 one = {1}> {
        r = Range(nought, n, one)  f = Cast <to = 1> (r)  s = ReduceSum <keepdims = 0> (f)
        y = Add(x, s) }"""
    nodes, unknown = run_of(session(text, {"n": (1009,)}))
    assert nodes[:2] == [("Range", 8072), ("Cast", 8072 + 4036)]
    assert unknown.tensors == ()
    _, unknown = run_of(session(text))
    assert unknown.tensors == ("r", "f")


def test_a_graph_without_control_flow_or_values_is_not_simulated() -> None:
    found = session_of("agraph (float[7] x) => (y) { y = Exp(x) }", {}, {"x": (7,)})
    assert (found.trace.types, found.trace.branches, found.trace.loops) == ({}, {}, {})
    assert found.deciding == {}


# Values as they are given


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("16000", (16000,)),
        ("-3", (-3,)),
        ("0.5", (0.5,)),
        ("1e-3,.5, 2.", (0.001, 0.5, 2.0)),
        ("true", (True,)),
        ("True,FALSE", (True, False)),
        ("1,2,3", (1, 2, 3)),
    ],
)
def test_values_are_parsed(text: str, values: Values) -> None:
    found = parse_values(text)
    assert found == values
    assert list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize(
    "text", ["", "x", "1,", "1_000", "nan", "inf", "0x10", "1 2", "٣", "9" * 21]
)
def test_an_invalid_value_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="is not a number, true or false"):
        parse_values(text)


@pytest.mark.parametrize(
    ("given", "values"),
    [(3, (3,)), (True, (True,)), ([1, 2], (1, 2)), (np.int64(7), (7,)), (np.ones(2), (1.0, 1.0))],
)
def test_values_from_python_are_scalars_and_lists(given: ValueLike, values: Values) -> None:
    assert read_values({"v": given}) == {"v": values}


@pytest.mark.parametrize("given", ["12", [], ["a"], None, [[1]]])
def test_values_from_python_must_be_numbers(given: ValueLike) -> None:
    with pytest.raises(UsageError, match="the value of 'v' is not a number, a boolean or a list"):
        read_values({"v": given})


TYPES = """agraph (
    int8 a, bool b, float16[2,3] f, string s, int64[5000] big, uint8[2] u, bfloat16 h
) => (y) { y = Identity(a) }"""


def test_values_are_arrays_of_their_inputs() -> None:
    graph = graph_of(TYPES)
    values: Mapping[str, Values] = {
        "a": (-7,),
        "b": (1,),
        "f": (0.1,),
        "u": (1, 255),
        "other": (1,),
    }
    found = input_arrays(graph, values)
    assert list(found) == ["a", "b", "f", "u"]
    assert found["f"].shape == (2, 3)
    assert [found[name].dtype.name for name in found] == ["int8", "bool", "float16", "uint8"]
    assert found["b"].item() is True
    assert found["u"].tolist() == [1, 255]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("a", (128,), "input 'a' is int8; 128 is not a value of it"),
        ("a", (1.5,), "input 'a' is int8; 1.5 is not a value of it"),
        ("b", (2,), "input 'b' is bool; 2 is not a value of it"),
        ("s", (2,), "input 's' is string; 2 is not a value of it"),
        ("h", (2,), "input 'h' is bfloat16; 2 is not a value of it"),
        ("u", (1, 2, 3), "input 'u' has 2 elements, but its value 3"),
        ("u", (-1, 2), "input 'u' is uint8; -1, 2 is not a value of it"),
        ("f", (1, 2, 3, 4, 5), "input 'f' has 6 elements, but its value 5"),
        ("big", (1,), "input 'big' is too large for a value: over 4,096 elements"),
    ],
)
def test_a_value_of_another_shape_or_type_is_rejected(name: str, value: Values, text: str) -> None:
    with pytest.raises(InputValueError) as raised:
        input_arrays(graph_of(TYPES), {name: value})
    assert str(raised.value) == text


def test_an_analysis_takes_values() -> None:
    model = model_of(RATE)
    analysis = analyze(
        model,
        runtimes=("ort-cpu", "ort-cuda"),
        graph="raw",
        asks_onnxruntime=False,
        values={"sr": 16_000, "nobody": 3},
        one_of_several=True,
    )
    # On CUDA with copies of the inputs, and the condition is on the host.
    for runtime, peak_bytes in zip(analysis.runtimes, (29, 29 + 28 + 8 - 1), strict=True):
        assert runtime.arena.requested_peak_bytes == peak_bytes
        assert runtime.findings[0] == Finding(
            "unused_value", "--value nobody: the model has no input of that name"
        )
    with pytest.raises(InputValueError):
        analyze(model, runtimes=("ort-cpu",), values={"sr": [1, 2]}, asks_onnxruntime=False)


# Beside onnxruntime


CASES: Mapping[str, tuple[str, Mapping[str, Values]]] = {
    "then": (RATE, {"sr": (16_000,)}),
    "else": (RATE, {"sr": (8_000,)}),
    "made up": (RATE, {}),
    "turns": (TURNS, {"n": (5,)}),
    "no turn": (TURNS, {"n": (5,), "c": (False,)}),
    "growing": (GROWING.replace("N", "4"), {"n": (6,)}),
    "growing far": (GROWING.replace("N", "4"), {"n": (90,)}),
    "growing past a region": (GROWING.replace("N", "60013"), {"n": (5,)}),
    "two growing alike": (TWO_GROWING, {"n": (6,)}),
    "counted": (COUNTED, {}),
    "scan": (
        """agraph (float[5,7] x, float[7] h, bool c) => (y, z) {
            y, z = Scan <num_scan_inputs = 1, body = b (float[7] s, float[7] e) => (t, o) {
                t = Add(s, e)
                o = If(c) <then_branch = one () => (p) { p = Exp(e) },
                           else_branch = two () => (q) { r = Abs(e)  q = Neg(r) }> }> (h, x) }""",
        {"c": (False,)},
    ),
}


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("graph", ["raw", "ort-all"])
@pytest.mark.parametrize("name", CASES)
def test_a_measurement_is_predicted_with_its_input_values(
    name: str, graph: str, tmp_path: Path
) -> None:
    """Figures by node, and arena reserved (steady state)."""
    pytest.importorskip("onnxruntime")
    text, values = CASES[name]
    onnx.save(model_of(text), tmp_path / "m.onnx")
    options = SessionOptions(level="off" if graph == "raw" else "all")
    found = measure(tmp_path / "m.onnx", Request(), MeasureSettings(options=options, values=values))
    assert isinstance(found, Measurement)
    assert values.items() <= found.fed.items()
    request = SessionRequest(graph=graph, options=options, values=found.fed)
    reported = predict(load(tmp_path / "m.onnx"), Request(), request).arena
    assert [sample.requested_bytes for sample in reported.nodes] == [
        node.requested_bytes for node in found.nodes
    ]
    for figure in (
        *("base_bytes", "requested_peak_bytes", "with_scratch_peak_bytes", "pattern_block_bytes"),
        *("in_use_peak_bytes", "held_bytes", "held_steady_bytes"),
    ):
        assert getattr(reported, figure) == getattr(found, figure), figure


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
def test_an_inputs_file_gives_values(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx.save(model_of(RATE), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones(7, np.float32), sr=np.array(16_000))
    inputs = str(tmp_path / "in.npz")
    found = measure(tmp_path / "m.onnx", Request(), MeasureSettings(inputs_npz=inputs))
    assert isinstance(found, Measurement)
    assert found.fed == {"sr": (16_000,)}
    assert [node.op_type for node in found.nodes] == ["Equal", "Exp", "If"]


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
def test_an_analysis_with_a_measurement_has_its_input_values() -> None:
    pytest.importorskip("onnxruntime")
    model = model_of(TURNS)
    analysis = analyze(model, runtimes=("ort-cpu",), measure="cpu", values={"n": 9})
    assert isinstance(analysis.measured, Measurement)
    assert analysis.measured.fed == {"n": (9,), "c": (1,)}
    (runtime,) = analysis.runtimes
    assert len(runtime.arena.nodes) == len(analysis.measured.nodes) == 2 * 9 + 1


def test_values_with_an_inputs_file_are_rejected() -> None:
    with pytest.raises(UsageError, match="--value cannot be combined with --inputs"):
        MeasureSettings(inputs_npz="in.npz", values={"n": (1,)})
