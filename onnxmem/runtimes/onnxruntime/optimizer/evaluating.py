"""Elements of a node's outputs, where its inputs are known and small.

onnx's reference operators work them out; what they refuse stays unknown. They are not asked about
operators of which a small file can ask for any amount of work: a regular expression, an image, a
window of a length that is a value.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.constants import Array
from onnxmem.model.shapes.folding import (
    BOUNDED_BY_INPUT,
    SHAPE_ARITHMETIC,
    by_reference,
    ends_soon,
    extent,
)
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, shape_of
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.reading import write_node

MAX_ELEMENTS = 4096
"""Larger values are not worked out; no shape or scale has more elements."""
_ELEMENTWISE = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cos Cosh "
    "DequantizeLinear Elu Erf Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu LogSoftmax Mish "
    "PRelu QuantizeLinear Selu Sigmoid Sin Sinh Softmax Softplus Softsign Tan Tanh "
    "ThresholdedRelu".split()
)
_SIZED_BY_OUTPUT = SHAPE_ARITHMETIC | _ELEMENTWISE


def evaluated(graph: Graph, node: Node, values: Mapping[str, Array]) -> list[Array] | None:
    """Run one node; ``None`` where the reference refuses it, or may make or take too much."""
    written = write_node(node)
    opsets = [
        onnx.OperatorSetIdProto(domain=domain, version=version)
        for domain, version in graph.opsets.items()
    ]
    if not (_is_small(written, values, opsets) and ends_soon(written, values)):
        return None
    try:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            made = by_reference(written, values, opsets)
    except Exception:  # noqa: BLE001 - whatever a reference kernel raises, the value is unknown
        return None
    arrays = [np.asarray(value) for value in made]
    return arrays if all(array.size <= MAX_ELEMENTS for array in arrays) else None


def _is_small(
    node: onnx.NodeProto, values: Mapping[str, Array], opsets: Sequence[onnx.OperatorSetIdProto]
) -> bool:
    """Whether a node is known beforehand to make few elements.

    That follows from the values alone: what a file says of the outputs may be a lie.
    """
    if onnx_op(node) in BOUNDED_BY_INPUT:
        return True
    if onnx_op(node) not in _SIZED_BY_OUTPUT:
        return False
    asker = NodeInference(onnx.ModelProto(opset_import=opsets))
    types = {name: dense_type(_elem_type(value), value.shape) for name, value in values.items()}
    made = asker.output_types(node, types, values)
    shapes = [shape_of(made[name]) if name in made else None for name in node.output if name]
    return max(map(extent, shapes), default=0) <= MAX_ELEMENTS


def _elem_type(value: Array) -> int:
    try:
        return onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    except (KeyError, ValueError):
        return onnx.TensorProto.UNDEFINED
