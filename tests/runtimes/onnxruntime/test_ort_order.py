"""The order in which onnxruntime runs nodes: depth first, from the last leaf and last producer."""

import pytest
from graphs import graph_of, model_of
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import MeasureSettings, measure
from onnxmem.model.graph import Graph
from onnxmem.runtimes.onnxruntime.allocation.planning import in_running_order
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

CHAIN = "agraph (float[2] x) => (c) { a = Exp(x)  b = Neg(a)  c = Abs(b) }"
DIAMOND = """agraph (float[2] x) => (d) {
    a = Exp(x)  b = Neg(a)  c = Abs(a)  d = Add(b, c) }"""
LEAVES = """agraph (float[2] x) => (b, d) {
    a = Exp(x)  b = Neg(a)  c = Abs(x)  d = Neg(c) }"""
CROSSED = """agraph (float[2] x) => (y) {
    a = Exp(x)  b = Neg(x)  c = Abs(x)  d = Add(c, a)  e = Add(b, d)  y = Add(a, e) }"""
BRANCH = """agraph (float[2] x, bool k) => (y) {
    a = Exp(x)  b = Neg(x)  c = Abs(x)
    y = If (k) <
        then_branch = t () => (float[2] o) { p = Add(b, a)  o = Add(p, p) },
        else_branch = e () => (float[2] q) { q = Add(c, c) }>
}"""


def order(graph: Graph) -> str:
    """The first outputs of the nodes in the order of execution."""
    return " ".join(node.writes[0] for node in in_running_order(graph))


def test_a_chain_runs_in_its_order() -> None:
    assert order(graph_of(CHAIN)) == "a b c"


def test_in_a_diamond_the_last_side_runs_first() -> None:
    assert order(graph_of(DIAMOND)) == "a c b d"


def test_leaves_run_from_the_last_to_the_first() -> None:
    assert order(graph_of(LEAVES)) == "c d a b"


def test_a_node_runs_after_all_its_producers() -> None:
    assert order(graph_of(CROSSED)) == "c a d b e y"


def test_the_order_of_operands_does_not_matter() -> None:
    assert order(graph_of(DIAMOND.replace("Add(b, c)", "Add(c, b)"))) == "a c b d"


def test_producers_of_a_subgraphs_reads_run_before_its_node() -> None:
    assert order(graph_of(BRANCH)) == "c b a y"


def test_a_constant_is_not_a_step() -> None:
    text = """agraph (float[2] x) => (y) {
        k = Constant <value = float[1] {2.0}> ()  a = Mul(x, k)  b = Add(x, k)  y = Div(a, b) }"""
    assert order(graph_of(text)) == "b a y"


def test_nodes_without_readers_run_too() -> None:
    text = "agraph (float[2] x) => (y) { y = Exp(x)  a = Neg(x) }"
    assert order(graph_of(text)) == "a y"


# A law, with the same walk told plainly


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Sums of two earlier tensors."""
    lines, made = [], ["x"]
    for place in range(draw(st.integers(1, 12))):
        one, other = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        lines.append(f"n{place} = Add({one}, {other})")
        made.append(f"n{place}")
    return graph_of(f"agraph (float[2] x) => ({made[-1]}) {{ {'  '.join(lines)} }}")


def plainly(graph: Graph) -> str:
    """From the last leaf on: first a node's producers, the last one first, then the node itself."""
    reads = {node.outputs[0]: node.inputs for node in graph.nodes}
    places = {name: place for place, name in enumerate(reads)}
    done: list[str] = []

    def walk(name: str) -> None:
        for source in sorted(places.keys() & set(reads[name]), key=places.__getitem__)[::-1]:
            walk(source)
        if name not in done:
            done.append(name)

    leaves = [name for name in reads if not any(name in inputs for inputs in reads.values())]
    for leaf in leaves[::-1]:
        walk(leaf)
    return " ".join(done)


@given(graphs())
def test_the_order_equals_that_of_a_plain_implementation(graph: Graph) -> None:
    assert order(graph) == plainly(graph)


# In onnxruntime


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("text", [DIAMOND, LEAVES, CROSSED])
def test_onnxruntime_runs_in_the_same_order(text: str) -> None:
    pytest.importorskip("onnxruntime")
    settings = MeasureSettings(options=SessionOptions(level="off"), runs=1)
    found = measure(model_of(text), settings=settings)
    assert isinstance(found, Measurement)
    ran = [node.op_type for node in found.nodes]
    assert ran == [node.op_type for node in in_running_order(graph_of(text))]
