"""What makes two nodes alike: a large model is one block many times over, each asked once."""

from collections.abc import Mapping

import onnx

from onnxmem.model.constants import Array

_MAX_ELEMENTS = 256
"""Of a value that nodes are told by: one that reads a larger one is like no other."""

Likeness = tuple[object, ...]


def likeness(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], values: Mapping[str, Array]
) -> Likeness | None:
    """All that a node's outputs follow from but names; ``None`` where it is like no other.

    The graphs inside a node read names of their own, so that such a node is none's like.
    """
    attributes = node.attribute[:]
    if any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        return None
    inputs = node.input[:]
    # An operand that is left out is not one of which nothing is known.
    given = (len(inputs), *map(bool, inputs), *map(bool, node.output))
    found: list[object] = [node.op_type, node.domain, *given]
    for name in inputs:
        proto, value = types.get(name), values.get(name)
        found.append(None if proto is None else proto.SerializeToString())
        if value is not None:
            if value.size > _MAX_ELEMENTS or value.dtype.hasobject:
                return None
            found += value.dtype, value.shape, value.tobytes()
    found += (attribute.SerializeToString() for attribute in attributes)
    return tuple(found)
