"""Nodes that lack what their operator cannot be without are refused by name."""

import onnx
import pytest
from graphs import model_of

from onnxmem.errors import GraphError
from onnxmem.model.building import Prepared, prepare
from onnxmem.model.files import ModelFile


def prepared(model: onnx.ModelProto) -> Prepared:
    return prepare(ModelFile("<proto>", model, 0))


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(GraphError) as refused:
        prepared(model)
    return str(refused.value)


LOOP = """agraph (int64 trips, bool go, float[5] x) => (float[5] y) {
    [odd] y = Loop (trips, go, x) <body = b (int64 i, bool c, float[5] v)
        => (bool d, float[5] w) { d = Identity(c)  w = Relu(v) }> }"""
IF = """agraph (bool c, float[5] x) => (float[5] y) { [odd] y = If (c) <
    then_branch = t () => (float[5] o) { o = Relu(x) },
    else_branch = e () => (float[5] p) { p = Neg(x) }> }"""
SCAN = """agraph (float[3,5] x) => (float[3,5] y) { [odd] y = Scan <num_scan_inputs = 1,
    body = b (float[5] v) => (float[5] w) { w = Relu(v) }> (x) }"""


def without(text: str, attribute: str) -> onnx.ModelProto:
    model = model_of(text)
    node = model.graph.node[0]
    kept = [a for a in node.attribute if a.name != attribute]
    del node.attribute[:]
    node.attribute.extend(kept)
    return model


@pytest.mark.parametrize(
    ("text", "attribute", "message"),
    [
        (LOOP, "body", "node 'odd' has no body, the graph that Loop runs"),
        (SCAN, "body", "node 'odd' has no body, the graph that Scan runs"),
        (IF, "then_branch", "node 'odd' has no then_branch, the graph that If runs"),
        (IF, "else_branch", "node 'odd' has no else_branch, the graph that If runs"),
    ],
)
def test_a_node_without_the_graph_that_it_runs_is_refused(
    text: str, attribute: str, message: str
) -> None:
    assert refusal(without(text, attribute)) == f"{message}; export the model again"


def test_a_graph_under_another_type_of_attribute_is_none() -> None:
    model = without(LOOP, "body")
    model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.INT, i=2)
    assert refusal(model) == (
        "node 'odd' has no body, the graph that Loop runs; export the model again"
    )


@pytest.mark.parametrize(
    ("side", "count", "least"), [("input", 2, 3), ("input", 0, 3), ("output", 1, 2)]
)
def test_a_loop_s_body_takes_and_hands_on_what_is_carried(
    side: str, count: int, least: int
) -> None:
    model = model_of(LOOP)
    body = model.graph.node[0].attribute[0].g
    del getattr(body, side)[count:]
    message = f"node 'odd' has {count} body {side}s, and Loop needs {least}"
    assert refusal(model) == f"{message}; export the model again"


def test_whole_nodes_with_graphs_pass() -> None:
    for text in (LOOP, IF, SCAN):
        assert prepared(model_of(text)).findings == ()


@pytest.mark.parametrize("op_type", ["Relu", "Constant", "Shape"])
def test_a_node_that_makes_nothing_is_refused(op_type: str) -> None:
    model = model_of("agraph (float[5] x) => (y) { y = Relu(x) }")
    inputs = [] if op_type == "Constant" else ["x"]
    model.graph.node.append(onnx.helper.make_node(op_type, inputs, [], name="odd"))
    assert refusal(model) == (
        f"node 'odd' has 0 outputs, and {op_type} needs 1; export the model again"
    )


def test_a_custom_node_may_make_nothing() -> None:
    text = '<ir_version: 10, opset_import: ["": 21, "own": 1]> agraph (float[5] x) => (y) {'
    model = model_of(f"{text} y = Relu(x) }}")
    model.graph.node.append(onnx.helper.make_node("Print", ["x"], [], domain="own"))
    assert prepared(model).findings == ()


def test_an_operator_may_leave_every_output_unnamed() -> None:
    text = "agraph (float[2,3,5] x) => (y) <float[1,28,5] w, float[1,28,7] r> {"
    model = model_of(f"{text} a, y = LSTM <hidden_size = 7> (x, w, r) }}")
    del model.graph.node[0].output[0]
    assert prepared(model).findings == ()


def test_where_a_version_lacks_an_operator_its_newest_form_counts() -> None:
    model = model_of(
        '<ir_version: 8, opset_import: ["": 9]> agraph (float[2,5] x) => (y) {y = Relu(x)}'
    )
    model.graph.node.append(onnx.helper.make_node("LayerNormalization", ["x"], ["z"], name="odd"))
    assert refusal(model) == (
        "node 'odd' has 1 inputs, and LayerNormalization needs 2; export the model again"
    )


def test_an_operator_that_onnx_does_not_have_needs_nothing() -> None:
    model = model_of("agraph (float[5] x) => (y) { y = Relu(x)  z = MadeUp() }")
    assert prepared(model).findings == ()


@pytest.mark.parametrize(
    ("node", "place"),
    [
        ('MatMul("", x)', "A"),
        ('MatMul(x, "")', "B"),
        ('Conv(x, "", x)', "W"),
        ('Resize(x, "", x)', "roi"),
        ('ConstantOfShape("")', "input"),
    ],
)
def test_an_operand_that_cannot_be_left_out_is_needed(node: str, place: str) -> None:
    text = '<ir_version: 8, opset_import: ["": 11]> agraph (float[1,2,3] x) => (y) {'
    operator = node.partition("(")[0]
    assert refusal(model_of(f"{text} [odd] y = {node} }}")) == (
        f"node 'odd' leaves out {place}, which {operator} needs; export the model again"
    )


def test_an_optional_operand_may_be_left_out() -> None:
    text = "agraph (float[5] x, float low) => (y, z) {"
    model = model_of(f'{text} y = Clip(x, "", low)  z = Resize(x, "", low) }}')
    assert prepared(model).findings == ()
