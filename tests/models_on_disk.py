"""Small models written to disk, for tests that go through a path as a user does."""

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
from graphs import model_of

CONVNET = """agraph (float[N,3,16,16] image) => (float[N,10] scores)
    <float[8,3,3,3] kernel, float[8] bias, float[10,512] weight, float[10] shift> {
    [conv] h = Conv <pads = [1, 1, 1, 1]> (image, kernel, bias)
    [relu] r = Relu(h)
    [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    [flat] f = Flatten(p)
    [gemm] scores = Gemm <transB = 1> (f, weight, shift)
}"""

MYSTERY = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
agraph (float[N,5] x) => (y) <float[5,7] w> {
    [product] h = MatMul(x, w)
    [strange] y = acme.Mystery(h)
}"""
"""Ends in an operator that nothing is known of: its output's size is unknown."""

HOSTILE = "a\x1b[2Jb\u202ec\nRUN 1 B"
"""A name that clears the screen, turns the writing round and forges a line."""


def write_model(path: Path, text: str = CONVNET) -> str:
    """Write a model in ONNX text to a file and name it as the command line does."""
    onnx.save(model_of(text), path)
    return path.name


def write_square(path: Path, side: int) -> Path:
    """Write a model of one matrix of zeros in the file, and of next to nothing else."""
    model = model_of(
        f"agraph (float[N,{side}] x) => (float[N,{side}] y) <float[{side},{side}] w> "
        "{ y = MatMul(x, w) }"
    )
    weight = np.zeros((side, side), np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)
    return path


def write_hostile_model(path: Path) -> str:
    """Write a model of which every name is hostile."""
    model = model_of(CONVNET)
    for node in model.graph.node:
        node.name += HOSTILE
        node.input[:] = [name + HOSTILE for name in node.input]
        node.output[:] = [name + HOSTILE for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name += HOSTILE
    for weight in model.graph.initializer:
        weight.name += HOSTILE
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param += HOSTILE
    onnx.save(model, path)
    return path.name
