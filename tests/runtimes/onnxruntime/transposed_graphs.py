"""Graphs with Transposes for tests, in short, and what the optimizers leave of them.

``Last`` stands for the Transpose of images to channels last, ``First`` for the one back; ``Other``,
``Turn``, ``Swap`` and ``Flip`` bring dims into other orders.
"""

import re
from collections.abc import Iterator

import onnx
import onnx.helper
import onnx.numpy_helper
from installed_runtime import cpu_of_onnxruntime
from runtimes.onnxruntime.optimized_graphs import assert_alike, by_onnxruntime, filled, parsed

from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized

ORDERS = {
    "Last": [0, 2, 3, 1],
    "First": [0, 3, 1, 2],
    "Other": [0, 2, 1, 3],
    "Turn": [2, 0, 1],
    "Swap": [0, 2, 1],
    "Flip": [1, 0],
}
_SMALL = 50
"""Elements of a constant that is compared in value."""
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def left_of(graph: str, body: str, level: str = "basic", opset: int = 21) -> str:
    """The types of the nodes that both optimizers leave, in the order of execution.

    :param graph: inputs and weights with places for ``outputs`` (y, and z where the body makes it)
        and ``body``.
    :raises AssertionError: the graphs differ, or the integers that their nodes read.
    """
    outputs = "y, z" if re.search(r"\bz( =|, )", body) else "y"
    text = graph.format(outputs=outputs, body=body)
    for name, order in ORDERS.items():
        text = re.sub(rf"\b{name}\(", f"Transpose<perm = {order}>(", text)
    real = by_onnxruntime(filled(parsed(text, opset)), level, {})
    prepared = prepare(ModelFile("<text>", parsed(text, opset), 0)).proto
    ours = optimized(prepared, level, cpu=cpu_of_onnxruntime())
    assert_alike(real, ours)
    assert sorted(integers_read(real.graph)) == sorted(integers_read(ours.graph))
    return " ".join(node.op_type for node in ours.graph.node)


def integers_read(graph: onnx.GraphProto) -> Iterator[tuple[str, int, list[int]]]:
    """Operator, place and elements of each small integer constant that a node reads."""
    known = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type in _INTEGERS}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in known:
                values = onnx.numpy_helper.to_array(known[name])
                if values.size < _SMALL:
                    yield node.op_type, place, values.ravel().tolist()
