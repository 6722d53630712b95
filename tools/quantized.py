"""Quantize a float model as deployments do: int8 with calibration, int4 in blocks."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

BLOCK_SIZE = 32
"""Weights of one column that share a scale and a zero point in the int4 form."""

CALIBRATION_IMAGES = 2
INT4_MIN, INT4_LEVELS = -8, 15


class RandomImages(CalibrationDataReader):  # type: ignore[misc]
    """Two images of noise: enough to give each activation some range."""

    def __init__(self) -> None:
        noise = np.random.default_rng(0)
        shape = (CALIBRATION_IMAGES, 1, 3, 224, 224)
        self.images: Iterator[NDArray[np.float32]] = iter(noise.random(shape, dtype=np.float32))

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """The next feed, None after the last."""
        image = next(self.images, None)
        return None if image is None else {"image": image}


def to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with QuantizeLinear and DequantizeLinear around its operators.

    Weights are int8 with a scale for each channel, activations uint8, biases int32.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_static(
            model,
            path,
            RandomImages(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(path)


def to_int4(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the weight of each MatMul in int4, made float again by DequantizeLinear."""
    graph = model.graph
    weights = {initializer.name: initializer for initializer in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            nodes.append(_dequantize(graph, node, weights[node.input[1]]))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _dequantize(
    graph: onnx.GraphProto, matmul: onnx.NodeProto, weight: onnx.TensorProto
) -> onnx.NodeProto:
    """The node that makes the weight of `matmul` from three new initializers in its place."""
    name = weight.name
    parts = dict(
        zip(
            (f"{name}_int4", f"{name}_scale", f"{name}_zero_point"),
            quantize_blocks(numpy_helper.to_array(weight)),
            strict=True,
        )
    )
    graph.initializer.remove(weight)
    graph.initializer.extend(numpy_helper.from_array(part, key) for key, part in parts.items())
    matmul.input[1] = f"{name}_dequantized"
    return helper.make_node(
        "DequantizeLinear",
        list(parts),
        [matmul.input[1]],
        name=f"{matmul.name}_dequantize",
        axis=0,
        block_size=BLOCK_SIZE,
    )


def quantize_blocks(
    weight: NDArray[np.floating],
) -> tuple[NDArray[ml_dtypes.int4], NDArray[np.floating], NDArray[ml_dtypes.int4]]:
    """Weights [K, N] as int4, scales and int4 zero points, both [K / block, N]."""
    rows, columns = weight.shape
    blocks = weight.astype(np.float32).reshape(rows // BLOCK_SIZE, BLOCK_SIZE, columns)
    low = np.minimum(blocks.min(axis=1), 0)
    scale = np.maximum(blocks.max(axis=1) - low, np.finfo(np.float16).tiny) / INT4_LEVELS
    zero_point = np.clip(np.rint(INT4_MIN - low / scale), INT4_MIN, -1 - INT4_MIN)
    levels = np.rint(blocks / scale[:, None]) + zero_point[:, None]
    levels = np.clip(levels, INT4_MIN, -1 - INT4_MIN).reshape(rows, columns)
    return (
        levels.astype(ml_dtypes.int4),
        scale.astype(weight.dtype),
        zero_point.astype(ml_dtypes.int4),
    )
