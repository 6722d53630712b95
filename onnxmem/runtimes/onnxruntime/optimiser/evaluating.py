"""Elements of a node's outputs, where its inputs are known and small.

onnx's reference operators work them out; what they refuse stays unknown. They are not asked about
operators of which a small file can ask for any amount of work: a regular expression, an image, a
window of a length that is a value.
"""

import importlib
from collections.abc import Mapping

import numpy as np
import onnx

from onnxmem.model.constants import Array
from onnxmem.model.shapes.folding import BOUNDED_BY_INPUT, SHAPE_ARITHMETIC, ends_soon, extent
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.reading import write_node

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
    if not (_is_small(graph, node) and ends_soon(written, values)):
        return None
    inputs = [name for name in dict.fromkeys(node.inputs) if name]
    outputs = [name for name in node.outputs if name]
    function = onnx.FunctionProto(
        name="folded", domain="folded", input=inputs, output=outputs, node=[written]
    )
    function.opset_import.extend(
        onnx.OperatorSetIdProto(domain=domain, version=version)
        for domain, version in graph.opsets.items()
    )
    try:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            # Importing it takes 12 MiB, and few models need a value.
            reference = importlib.import_module("onnx.reference")
            evaluator = reference.ReferenceEvaluator(function)
            made = evaluator.run(None, {name: values[name] for name in inputs}, attributes={})
    except Exception:  # noqa: BLE001 - whatever a reference kernel raises, the value is unknown
        return None
    arrays = [np.asarray(value) for value in made]
    return arrays if all(array.size <= MAX_ELEMENTS for array in arrays) else None


def _is_small(graph: Graph, node: Node) -> bool:
    """Whether the elements that a node makes are known beforehand to be few."""
    if node.domain:
        return False
    if node.op_type in BOUNDED_BY_INPUT:
        return True
    extents = [_extent(graph, name) for name in node.outputs if name]
    return node.op_type in _SIZED_BY_OUTPUT and max(extents, default=0) <= MAX_ELEMENTS


def _extent(graph: Graph, name: str) -> float:
    dims = graph.dims_of(name)
    if dims is None:
        return extent(None)
    return extent(tuple(dim if isinstance(dim, int) else None for dim in dims))
