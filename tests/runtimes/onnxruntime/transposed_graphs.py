"""Graphs with Transposes in shorthand, and their operators after optimization.

``Last`` is the Transpose of images to channels last, ``First`` the one back; ``Other``, ``Turn``,
``Swap`` and ``Flip`` have other permutations.
"""

import re
from collections.abc import Iterator

import onnx
import onnx.helper
import onnx.numpy_helper
from installed_runtime import cpu_of_onnxruntime
from runtimes.onnxruntime.optimized_graphs import assert_same_graph, by_onnxruntime, filled, parsed

from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized

PERMUTATIONS = {
    "Last": [0, 2, 3, 1],
    "First": [0, 3, 1, 2],
    "Other": [0, 2, 1, 3],
    "Turn": [2, 0, 1],
    "Swap": [0, 2, 1],
    "Flip": [1, 0],
}
_SMALL = 50
"""Constants with fewer elements are compared by value."""
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def optimized_ops(graph: str, body: str, level: str = "basic", opset: int = 21) -> str:
    """The operators after optimization, in order of execution; onnxruntime must agree.

    :param graph: inputs and weights, with placeholders for ``outputs`` (y, or y and z) and
        ``body``.
    :raises AssertionError: the graphs differ, or the integer constants that their nodes read.
    """
    outputs = "y, z" if re.search(r"\bz( =|, )", body) else "y"
    text = graph.format(outputs=outputs, body=body)
    for name, perm in PERMUTATIONS.items():
        text = re.sub(rf"\b{name}\(", f"Transpose<perm = {perm}>(", text)
    real = by_onnxruntime(filled(parsed(text, opset)), level, {})
    prepared = prepare(ModelFile("<text>", parsed(text, opset), 0)).proto
    ours = optimized(prepared, level, cpu=cpu_of_onnxruntime())
    assert_same_graph(real, ours)
    assert sorted(integers_read(real.graph)) == sorted(integers_read(ours.graph))
    return " ".join(node.op_type for node in ours.graph.node)


def integers_read(graph: onnx.GraphProto) -> Iterator[tuple[str, int, list[int]]]:
    """The operator, input index and elements of each small integer constant that a node reads."""
    known = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type in _INTEGERS}
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in known:
                values = onnx.numpy_helper.to_array(known[name])
                if values.size < _SMALL:
                    yield node.op_type, index, values.ravel().tolist()
