"""Graphs from ONNX text, for all tests."""

import onnx
import onnx.parser

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph

CHAIN = """agraph (float[N,M] x) => (float[N,M] y) <int64[1] axes = {1}> {
    a = Concat <axis = 1> (x, x, x)
    b = ReduceMax(a, axes)
    c = Mul(x, b)
    d = Concat <axis = 1> (c, c)
    e = ReduceMax(d, axes)
    y = Add(c, e)
}"""
"""For requests of a server: the buffers of a, c and d grow with both dims."""

SEQUENCE = """agraph (float[3,4] x, int64 n) => (float[k,4] y)
    <int64 one = {1}, int64 eight = {8}> {
    most = Clip(n, one, eight)  e = SequenceConstruct(x)
    s = Loop(most, , e) <
        body = iteration (int64 i, bool c, seq(float[a,b]) before) => (going, seq(float[a,b]) after)
        { going = Identity(c)  w = Exp(x)  after = SequenceInsert(before, w) }
    >
    z = ConcatFromSequence<axis = 0>(s)  y = Neg(z)
}"""
"""A Loop that the data end, of at most eight iterations, each of which adds to a sequence."""


def model_of(text: str) -> onnx.ModelProto:
    """Parse ONNX's text format; a header is put before it, and weights need no elements.

    What is declared between ``<`` and ``>`` and made by no node is a weight whose data lies in an
    external file that is not there: ``agraph (float[2] x) => (float[2] y) <float[2] w> {...}``.
    """
    if not text.lstrip().startswith("<"):
        text = '<ir_version: 10, opset_import: ["" : 21]>\n' + text
    model = onnx.parser.parse_model(text)
    made = {name for node in model.graph.node for name in node.output}
    declared = [value for value in model.graph.value_info if value.name not in made]
    for value in declared:
        dense = value.type.tensor_type
        weight = model.graph.initializer.add(name=value.name, data_type=dense.elem_type)
        weight.dims.extend(dim.dim_value for dim in dense.shape.dim)
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="absent.weights")
        model.graph.value_info.remove(value)
    return model


def graph_of(text: str, request: Request | None = None) -> Graph:
    """Build the records of a model in ONNX text; see ``model_of``."""
    model = ModelFile("<text>", model_of(text), 0)
    return build(prepare(model), request or Request()).graph
