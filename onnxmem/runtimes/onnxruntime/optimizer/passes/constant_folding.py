"""Nodes of which every input is constant become constants; so does Shape of a known shape.

Source: onnxruntime/core/optimizer/constant_folding.cc. Elements are worked out where they are small
and the inputs' are known; else the new constant has dims alone.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
import onnx.numpy_helper

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.contents import mark_folded
from onnxmem.runtimes.onnxruntime.optimizer.evaluating import MAX_ELEMENTS, evaluated
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import has_single_reader, is_constant
from onnxmem.runtimes.onnxruntime.optimizer.operators import is_deterministic
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.passes.branch_inlining import inline_branch
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import remove_upwards
from onnxmem.runtimes.onnxruntime.optimizer.shapes.inference import infer_node
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

_MAX_OUTPUT_BYTES = 2**30
"""A node whose outputs are larger is left alone."""
_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""Size of an element by its type."""


_UNFORESEEN = frozenset({"Compress", "NonMaxSuppression", "NonZero"})
"""Operators whose output's size follows from elements: measured on onnxruntime 1.31.1."""


def fold_constants(graph: Graph) -> bool:
    """Fold what can be folded; true if anything was."""
    changed: list[bool] = []
    is_updated = False
    for node in walk(graph, fold_constants, changed):
        if is_updated and not node.bodies:
            infer_node(graph, node)
        if node.op_type == "If" and not node.domain:
            is_folded = inline_branch(graph, node)
        else:
            is_folded = _fold(graph, node)
        is_updated |= is_folded
    return is_updated or any(changed)


def _fold(graph: Graph, node: Node) -> bool:
    made = _folded_shape(graph, node) if _is_shape(node) else _folded(graph, node)
    if made is None:
        return False
    for parent in dict.fromkeys(graph.parents(node)):
        remove_upwards(graph, parent)
    graph.remove(node)
    for tensor in made:
        graph.add_initializer(tensor)
    if not all(tensor.raw_data for tensor in made):
        mark_folded(graph, node)
    return True


def _is_shape(node: Node) -> bool:
    return node.op_type == "Shape" and not node.domain


def _folded_shape(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    dims = graph.dims_of(node.inputs[0])
    if dims is None:
        return None
    known = [dim for dim in dims if isinstance(dim, int)]
    if len(known) != len(dims):
        return None
    end = node.attributes["end"].i if "end" in node.attributes else None
    asked = known[integer(node, "start") : end]
    return [onnx.numpy_helper.from_array(np.array(asked, np.int64), node.outputs[0])]


def _folded(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    if not _can_fold(node) or not all(is_constant(graph, n) for n in node.inputs if n):
        return None
    if node.op_type == "DequantizeLinear" and not _whole_unit_folds(graph, node):
        return None
    infer_node(graph, node)
    if any(isinstance(graph.type_of(name), onnx.TypeProto) for name in node.outputs):
        return None  # a sequence or an optional
    if _output_bytes(graph, node) > _MAX_OUTPUT_BYTES or not has_kernel(graph, node):
        return None
    return _computed(graph, node) or _sized(graph, node)


def _can_fold(node: Node) -> bool:
    is_foreseen = is_deterministic(node.domain, node.op_type) and node.op_type not in _UNFORESEEN
    return is_foreseen and not node.bodies


def _whole_unit_folds(graph: Graph, node: Node) -> bool:
    """A DequantizeLinear folds only with the node and the QuantizeLinear that follow it."""
    if not has_single_reader(graph, node):
        return False
    reader = graph.children(node)[0]
    if len(reader.inputs) != 1 or len(reader.outputs) != 1 or not has_single_reader(graph, reader):
        return False
    last = graph.children(reader)[0]
    is_last = last.op_type == "QuantizeLinear"
    return is_last and _can_fold(reader) and _can_fold(last)


def _output_bytes(graph: Graph, node: Node) -> int:
    """Bytes of the outputs, as far as they are known."""
    total = 0
    for name in node.outputs:
        dims = _known_dims(graph, name) if name else ()
        if dims is not None and name:
            total += prod(dims) * _BYTES.get(graph.elem_type_of(name), 0)
    return total


def _known_dims(graph: Graph, name: str) -> Sequence[int] | None:
    dims = graph.dims_of(name)
    known = None if dims is None else [dim for dim in dims if isinstance(dim, int)]
    return known if known is not None and dims is not None and len(known) == len(dims) else None


def _computed(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    """Constants with their elements; ``None`` where they are unknown or too many."""
    values: dict[str, Array] = {}
    for name in node.inputs:
        value = graph.array(name) if name else None
        if name and (value is None or value.size > MAX_ELEMENTS):
            return None
        if value is not None:
            values[name] = value
    made = evaluated(graph, node, values)
    if made is None:
        return None
    names = [name for name in node.outputs if name]
    return [onnx.numpy_helper.from_array(a, n) for n, a in zip(names, made, strict=True)]


def _sized(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    """Constants with dims alone; ``None`` where the dims are unknown too."""
    tensors = []
    for name in node.outputs:
        known, dims = graph.type_of(name), _known_dims(graph, name)
        if name and (dims is None or not isinstance(known, TensorType)):
            return None
        if name and isinstance(known, TensorType) and dims is not None:
            tensors.append(onnx.TensorProto(name=name, data_type=known.elem_type, dims=dims))
    return tensors
