"""Nodes in an order that can run; what has none, or no meaning, is refused by name."""

import time

import onnx
import pytest
from graphs import model_of
from onnx.helper import make_graph, make_node, make_tensor_value_info

from onnxmem.errors import Finding, GraphError
from onnxmem.model.building import prepare
from onnxmem.model.canonical import sort_nodes
from onnxmem.model.files import ModelFile
from onnxmem.model.traversal import outer_reads

CHAIN = 50_000
BODY_OF = (
    "<then_branch = t () => (float[2] p) {{ {0} }}, else_branch = e () => (float[2] q) {{ {1} }}>"
)


def sorted_outputs(text: str) -> tuple[bool, str]:
    """Whether a node moved, and the first output of each node."""
    graph = model_of(text).graph
    moved = sort_nodes(graph)
    return moved, " ".join(node.output[0] for node in graph.node)


def refusal(text: str) -> str:
    with pytest.raises(GraphError) as caught:
        sort_nodes(model_of(text).graph)
    return str(caught.value)


# The order


def test_nodes_in_a_valid_order_stay() -> None:
    text = "agraph (float[2] x) => (float[2] c) { b = Relu(x) a = Neg(x) c = Add(a, b) }"
    assert sorted_outputs(text) == (False, "b a c")


def test_nodes_in_an_invalid_order_are_sorted_and_others_stay() -> None:
    text = """agraph (float[2] x) => (float[2] z)
    { z = Add(d, b)  b = Relu(a)  c = Neg(x)  d = Abs(c)  a = Exp(x) }"""
    assert sorted_outputs(text) == (True, "c d a b z")


def test_sorting_is_idempotent() -> None:
    text = "agraph (float[2] x) => (float[2] z) { z = Relu(b) b = Neg(a) a = Abs(x) }"
    graph = model_of(text).graph
    assert sort_nodes(graph)
    assert not sort_nodes(graph)


def test_a_node_comes_after_the_producers_of_its_subgraphs_reads() -> None:
    text = f"""agraph (bool k, float[2] x) => (float[2] z)
    {{ z = If (k) {BODY_OF.format("p = Relu(a)", "q = Neg(x)")}  a = Abs(x) }}"""
    assert sorted_outputs(text) == (True, "a z")


def test_reads_of_nested_subgraphs_count() -> None:
    inner = f"p = If (k) {BODY_OF.format('p1 = Relu(a)', 'q1 = Neg(x)')}".replace(
        "float[2] p)", "float[2] p1)"
    ).replace("float[2] q)", "float[2] q1)")
    text = f"""agraph (bool k, float[2] x) => (float[2] z)
    {{ z = If (k) {BODY_OF.format(inner, "q = Neg(x)")}  a = Abs(x) }}"""
    assert sorted_outputs(text) == (True, "a z")


def test_nodes_of_a_subgraph_that_were_sorted_are_read_in_their_new_order() -> None:
    text = f"""agraph (bool k, float[2] x) => (float[2] z)
    {{ z = If (k) {BODY_OF.format("p = Relu(p1) p1 = Abs(x)", "q = Neg(x)")} }}"""
    prepared = prepare(ModelFile("", model_of(text), 0))
    (then, other) = prepared.columns.bodies[0]
    assert (then.columns.op_types, other.columns.op_types) == (["Abs", "Relu"], ["Neg"])
    assert [node.op_type for node in then.graph.node] == ["Abs", "Relu"]


def test_graphs_in_a_list_attribute_count() -> None:
    branch = make_graph(
        [make_node("Relu", ["a"], ["p"])], "b", [], [make_tensor_value_info("p", 1, [2])]
    )
    graph = model_of("agraph (float[2] x) => (float[2] z) { a = Abs(x) }").graph
    graph.node.insert(0, make_node("Pick", ["x"], ["z"], domain="own", cases=[branch]))
    assert sort_nodes(graph)
    assert [node.op_type for node in graph.node] == ["Abs", "Pick"]


def test_a_subgraph_is_sorted_separately() -> None:
    text = f"""agraph (bool k, float[2] x) => (float[2] z)
    {{ z = If (k) {BODY_OF.format("p = Relu(a) a = Abs(x)", "q = Neg(x)")} }}"""
    graph = model_of(text).graph
    assert sort_nodes(graph)
    then_branch = graph.node[0].attribute[0].g
    assert [node.op_type for node in then_branch.node] == ["Abs", "Relu"]


def test_outer_reads_of_a_subgraph_are_found() -> None:
    text = """agraph (float[2] x, float[2] y) => (float[2] z, float[2] y) <float[2] w>
    { a = Add(x, w) z = Add(a, b) }"""
    assert outer_reads(model_of(text).graph) == {"b"}


def test_sorting_is_reported() -> None:
    model = model_of("agraph (float[2] x) => (float[2] z) { z = Relu(a) a = Abs(x) }")
    prepared = prepare(ModelFile("<text>", model, 0))
    assert prepared.findings == (
        Finding("unsorted_nodes", "the nodes are not in topological order; they were sorted"),
    )
    assert prepare(ModelFile("<text>", prepared.proto, 0)).findings == ()


def backwards(num_nodes: int) -> onnx.GraphProto:
    nodes = [make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in reversed(range(num_nodes))]
    return make_graph(nodes, "g", [make_tensor_value_info("t0", 1, [2])], [])


def test_a_chain_of_50_000_nodes_is_sorted_in_seconds() -> None:
    graph = backwards(CHAIN)
    start = time.perf_counter()
    assert sort_nodes(graph)
    assert time.perf_counter() - start < 20  # quadratic would be minutes
    assert [node.output[0] for node in graph.node] == [f"t{i + 1}" for i in range(CHAIN)]


# What is refused


def test_a_cycle_names_its_nodes_and_the_tensor_that_closes_it() -> None:
    text = """agraph (float[2] x) => (float[2] z)
    { [first] a = Add(x, c)  [second] b = Relu(a)  c = Neg(b)  z = Abs(x) }"""
    assert refusal(text) == (
        "the graph has a cycle, closed by tensor 'c': 'first' -> 'second' -> Neg -> 'c' -> 'first'"
        "; export the model again"
    )


def test_a_node_that_reads_its_own_output_is_a_cycle() -> None:
    text = "agraph (float[2] x) => (float[2] a) { a = Add(x, a) }"
    assert refusal(text) == (
        "the graph has a cycle, closed by tensor 'a': Add -> 'a' -> Add -> 'a'"
        "; export the model again"
    )


def test_a_cycle_can_close_through_a_subgraph() -> None:
    text = f"""agraph (bool k, float[2] x) => (float[2] z)
    {{ [pick] z = If (k) {BODY_OF.format("p = Relu(a)", "q = Neg(x)")}  [back] a = Abs(z) }}"""
    assert refusal(text) == (
        "the graph has a cycle, closed by tensor 'a': 'pick' -> 'back' -> 'pick'"
        "; export the model again"
    )


def test_a_long_cycle_is_abbreviated() -> None:
    graph = backwards(2003)
    graph.input.pop()
    graph.node[0].output[0] = "t0"
    with pytest.raises(GraphError) as caught:
        sort_nodes(graph)
    assert str(caught.value) == (
        "the graph has a cycle, closed by tensor 't2002': Relu -> 't0' -> Relu -> 't1' -> "
        "Relu -> 't2' -> Relu -> 't3' -> Relu -> 't4' -> Relu -> 't5' -> Relu -> 't6' -> "
        "... (1995 more) -> Relu -> 't2002' -> Relu -> 't0'; export the model again"
    )


def test_a_tensor_written_by_two_nodes_is_rejected() -> None:
    text = "agraph (float[2] x) => (float[2] a) { [one] a = Relu(x)  [two] a = Neg(x) }"
    assert refusal(text) == (
        "tensor 'a' is defined twice: by node 'one' and by node 'two'; export the model again"
    )


def test_a_tensor_written_twice_by_one_node_is_rejected() -> None:
    text = "agraph (float[2] x) => (float[2] a) { [one] a, a = Split(x) }"
    assert refusal(text) == (
        "tensor 'a' is defined twice: by node 'one' and by node 'one'; export the model again"
    )


@pytest.mark.parametrize("name", ["x", "w", "s"], ids=["input", "initializer", "sparse"])
def test_an_input_or_initializer_that_a_node_writes_is_rejected(name: str) -> None:
    text = "agraph (float[2] x) => (float[2] z) { z = Relu(x) }"
    graph = model_of(text).graph
    graph.initializer.add(name="w", data_type=1, dims=[2])
    graph.sparse_initializer.add(dims=[2]).values.name = "s"
    graph.node.append(make_node("Neg", ["x"], [name]))
    with pytest.raises(GraphError) as caught:
        sort_nodes(graph)
    assert str(caught.value) == (
        f"tensor {name!r} is defined twice: by an input or initializer and by node Neg -> {name!r}"
        "; export the model again"
    )


def test_an_undefined_tensor_is_rejected_with_its_reader() -> None:
    text = "agraph (float[2] x) => (float[2] z) { z = Add(x, ghost) }"
    assert refusal(text) == (
        "node Add -> 'z' reads the undefined tensor 'ghost'; export the model again"
    )


def test_an_undefined_output_is_rejected() -> None:
    text = "agraph (float[2] x) => (float[2] z, float[2] ghost) { z = Relu(x) }"
    assert refusal(text) == ("graph output 'ghost' is an undefined tensor; export the model again")


def test_an_undefined_tensor_in_a_subgraph_is_rejected() -> None:
    text = f"""agraph (bool k, float[2] x) => (float[2] z)
    {{ [pick] z = If (k) {BODY_OF.format("p = Relu(ghost)", "q = Neg(x)")} }}"""
    assert refusal(text) == (
        "node 'pick' reads the undefined tensor 'ghost'; export the model again"
    )


def test_a_branch_cannot_read_tensors_of_the_other() -> None:
    text = f"""agraph (bool k, float[2] x) => (float[2] z)
    {{ [pick] z = If (k) {BODY_OF.format("p = Relu(x)", "q = Neg(p)")} }}"""
    assert refusal(text) == ("node 'pick' reads the undefined tensor 'p'; export the model again")


def test_a_tensor_written_twice_in_a_subgraph_is_rejected() -> None:
    text = f"""agraph (bool k, float[2] x) => (float[2] z)
    {{ z = If (k) {BODY_OF.format("p = Relu(x) p = Abs(x)", "q = Neg(x)")} }}"""
    assert refusal(text) == (
        "tensor 'p' is defined twice: by node Relu -> 'p' and by node Abs -> 'p'"
        "; export the model again"
    )


def test_omitted_inputs_and_outputs_are_not_tensors() -> None:
    text = """agraph (float[2] x) => (float[2] z)
    { a, "" = Dropout(x)  b, "" = Dropout(x)  z = Clip(a, "", b) }"""
    assert sorted_outputs(text) == (False, "a b z")


def test_an_input_or_weight_can_be_an_output() -> None:
    text = "agraph (float[2] x) => (float[2] x, float[2] w) <float[2] w> { }"
    assert sorted_outputs(text) == (False, "")


def test_names_outside_are_not_copied_for_each_subgraph() -> None:
    inner = f"p = If (k) {BODY_OF.format('p = Relu(x)', 'q = Neg(x)')}"
    node = f"z = If (k) {BODY_OF.format(inner, 'q = Neg(x)')}"
    few = model_of(f"agraph (bool k, float[2] x) => (float[2] z) {{ {node} }}").graph
    nested = few.node[0]
    for number in range(1_000):
        few.node.add().CopyFrom(nested)
        few.node[-1].output[0] = f"z{number}"
    many = onnx.GraphProto()
    many.CopyFrom(few)
    for number in range(20_000):
        many.initializer.add(name=f"w{number}")
    assert seconds_of_sorting(many) <= 4 * seconds_of_sorting(few)


def seconds_of_sorting(graph: onnx.GraphProto) -> float:
    """The least processor time of three."""

    def timed() -> float:
        began = time.process_time()
        sort_nodes(graph)
        return time.process_time() - began

    return min(timed() for _ in range(3))
