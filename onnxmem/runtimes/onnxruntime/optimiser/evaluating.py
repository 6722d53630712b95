"""Elements of a node's outputs, where its inputs are known and small.

onnx's reference operators work them out; what they refuse stays unknown.
"""

import importlib
from collections.abc import Mapping

import numpy as np
import onnx

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.reading import write_node

MAX_ELEMENTS = 4096
"""Larger values are not worked out; no shape or scale has more elements."""


def evaluated(graph: Graph, node: Node, values: Mapping[str, Array]) -> list[Array] | None:
    """Run one node; ``None`` where the reference refuses it or makes too much."""
    inputs = [name for name in dict.fromkeys(node.inputs) if name]
    outputs = [name for name in node.outputs if name]
    function = onnx.FunctionProto(
        name="folded", domain="folded", input=inputs, output=outputs, node=[write_node(node)]
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
