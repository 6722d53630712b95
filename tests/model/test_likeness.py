"""Nodes that are alike are asked once; those that differ in anything but names are not alike."""

import itertools

import onnx
import pytest
from onnx import TensorProto, helper

import onnxmem
from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.ops.spec import Shape

OPERANDS = {"y": ["x", "s", "e", ""], "z": ["x", "s", "e", "u"]}
"""Axes that are left out, and axes of which nothing is known."""


def sliced(names: tuple[str, ...]) -> dict[str, Shape | None]:
    nodes = [helper.make_node("Mystery", ["q"], ["u"], domain="mine")]
    nodes += [helper.make_node("DynamicSlice", OPERANDS[name], [name]) for name in names]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 7]),
        helper.make_tensor_value_info("q", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    ends = [
        helper.make_tensor(name, TensorProto.INT64, [1], [at]) for name, at in (("s", 0), ("e", 3))
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, ends)
    opsets = [helper.make_opsetid("", 9), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    tensors = onnxmem.analyze(model).graph.tensors
    return {name: tensors[name].shape for name in names}


@pytest.mark.parametrize("names", list(itertools.permutations(OPERANDS)))
def test_an_operand_left_out_is_not_one_of_unknown_type(names: tuple[str, ...]) -> None:
    assert sliced(names) == {name: sliced((name,))[name] for name in names}
    assert sliced(("y",)) == {"y": (3, 7)}


def test_a_refusal_is_told_of_every_node() -> None:
    """A body that is walked again is refused again; one that is alike is refused as well."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x, float[5,7] v) => (y, z) {
        y = Add(x, v)  z = Add(x, v) }"""
    model = onnx.parser.parse_model(text)
    prepared = prepare(ModelFile("<text>", model, 0))
    ask = NodeInference(prepared.proto)
    types = {each.name: each.type for each in prepared.proto.graph.input}
    for node in (*prepared.proto.graph.node[:1], *prepared.proto.graph.node):
        assert ask.output_types(node, types, {}) == {}
    assert list(ask.refused) == ["y", "z"]


def test_alike_nodes_share_one_answer() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x, float[2,3] v) => (y, z) {
        y = Add(x, v)  z = Add(v, x) }"""
    model = onnx.parser.parse_model(text)
    ask = NodeInference(model)
    types = {each.name: each.type for each in model.graph.input}
    one, other = (ask.output_types(node, types, {}) for node in model.graph.node)
    assert one["y"] is other["z"]
