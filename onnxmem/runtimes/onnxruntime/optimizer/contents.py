"""Which constants have equal elements, where the elements themselves are not at hand.

Two constants are equal where one operator folded both of the same constants: as the branches of an
If do with a weight of the graph around them. Each that is folded carries the number of its content.
"""

import hashlib

import onnx

from onnxmem.model.constants import constant_value
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node

_KEY = "onnxmem.content"
"""Of a tensor's ``metadata_props``."""


def mark_folded(graph: Graph, node: Node) -> None:
    """Note what a node's outputs were folded of; they are constants of the graph already."""
    sources = tuple(_number(graph, name) for name in node.inputs)
    attributes = tuple(
        (name, attribute.SerializeToString(deterministic=True))
        for name, attribute in sorted(node.attributes.items())
    )
    for place, name in enumerate(node.outputs):
        if name in graph.initializers:
            key = (node.domain, node.op_type, attributes, sources, place)
            mark = str(_numbered(graph, key))
            graph.initializers[name].metadata_props.add(key=_KEY, value=mark)


def forget_content(tensor: onnx.TensorProto) -> None:
    """A constant is changed and no more what was folded."""
    kept = [entry for entry in tensor.metadata_props if entry.key != _KEY]
    del tensor.metadata_props[:]
    tensor.metadata_props.extend(kept)


def content_of(tensor: onnx.TensorProto) -> str | None:
    """What a constant has in common with its equals; ``None`` where that is not known."""
    mark = _mark(tensor)
    if mark is not None:
        return f"{tuple(tensor.dims)} folded {mark}"
    value = constant_value(tensor)
    if value is None or value.dtype.hasobject:
        return None
    return f"{tensor.data_type} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"


def _mark(tensor: onnx.TensorProto) -> int | None:
    marks = (int(entry.value) for entry in tensor.metadata_props if entry.key == _KEY)
    return next(marks, None)


def _number(graph: Graph, name: str) -> int | None:
    """The number of a constant's content: a stored one, whose elements are absent, has its own."""
    tensor = graph.constant(name)
    if tensor is None:
        return None
    mark, value = _mark(tensor), graph.array(name)
    if mark is not None:
        return mark
    if value is not None and not value.dtype.hasobject:
        return _numbered(graph, (value.dtype.str, value.shape, value.tobytes()))
    holder = graph
    while name not in holder.initializers and holder.outer is not None:
        holder = holder.outer
    return _numbered(graph, (holder, name, tuple(tensor.dims)))


def _numbered(graph: Graph, content: object) -> int:
    root = graph
    while root.outer is not None:
        root = root.outer
    return root.contents.setdefault(content, len(root.contents))
