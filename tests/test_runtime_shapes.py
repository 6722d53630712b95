"""Shapes of onnxruntime's own operators: by table, in onnxruntime itself, and of odd nodes."""

import onnx
import onnx.compose
import onnx.parser
import pytest
from graphs import graph_of, model_of

from onnxmem.measure.measurement import Measurement
from onnxmem.measure.measuring import measure
from onnxmem.measure.options import SessionOptions
from onnxmem.measure.settings import MeasureSettings
from onnxmem.model.shapes.contrib_shapes import contrib_types
from onnxmem.model.shapes.node_facts import NodeFacts, broadcast
from onnxmem.model.shapes.runtime_shapes import as_onnx, blocked_types, channel_block
from onnxmem.model.value_types import dense_type, shape_of
from onnxmem.ops.spec import Dims, Shape

DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml")
IMPORTS = ", ".join(f'"{domain}": 1' for domain in DOMAINS)
HEADER = f'<ir_version: 10, opset_import: ["": 21, {IMPORTS}]>'
Types = list[tuple[str, Shape | None]]

QUANTISERS = "float s = {0.5}, uint8 z = {1}, int8 i = {1}"
WEIGHTS = {
    "LSTM": "int8[1,5,44] w, int8[1,11,44] r, float[1] s1, int8[1] i1",
    "EMBED": "uint8[13,7] w, uint8[17,7] p, uint8[3,7] t, uint8[7] g, uint8[7] b",
}
OPERATORS = {
    # inputs, node, (element type, shape) of each output
    "x: float[2,5,7] x, float[7] b -> BiasGelu(x, b)": "float32 2,5,7",
    "x: float[2,5,7] x, float[7] b -> FastGelu(x, b)": "float32 2,5,7",
    "x: float[2,5,7] x -> Gelu(x)": "float32 2,5,7",
    "x: float[2,5,7] x -> QuickGelu(x)": "float32 2,5,7",
    "x: float[2,5,7] x -> Trilu(x)": "float32 2,5,7",
    "x: float[2,5,5] x -> Inverse(x)": "float32 2,5,5",
    "x: float[11,7] a, float[3,7] b -> CDist(a, b)": "float32 11,3",
    "x: float[2,7,5] a, float[2,7,3] b -> FusedMatMul <transA = 1> (a, b)": "float32 2,5,3",
    "x: float[2,5,7] a, float[2,3,7] b -> FusedMatMul <transB = 1> (a, b)": "float32 2,5,3",
    "x: float[5,2,7] a, float[2,7,3] b -> FusedMatMul <transBatchA = 1> (a, b)": "float32 2,5,3",
    "x: float[7] a, float[7,3] b -> FusedMatMul <transA = 1> (a, b)": "float32 3",
    "x: float[5,7] a, float[7,3] b, float[3] c -> FusedGemm <activation = \"Relu\"> (a, b, c)": (
        "float32 5,3"
    ),
    "x: float[2,3,11,13] x, float[5,3,3,3] w, float[5] b -> FusedConv <activation = \"Relu\"> "
    "(x, w, b)": "float32 2,5,9,11",
    "x: float[2,5,7] x | int64[3,2] k -> GatherND(x, k)": "float32 3,7",
    "x: float[1,3,11,13] x, float[1,5,7,2] g -> GridSample(x, g)": "float32 1,3,5,7",
    "x: float[2,5,7] x | int64[6] k = {0, 1, 0, 0, 0, 2} -> Pad(x, k)": "float32 2,6,9",
}
