"""Attributes of a node as plain values, with the schema's defaults."""

from collections.abc import Sequence

import onnx
import onnx.defs
import onnx.helper

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node


def stated(node: Node, name: str) -> onnx.AttributeProto | None:
    """An attribute as it stands, or the schema's default.

    onnxruntime writes defaults into its nodes when it resolves a graph
    (``Graph::VerifyNodeAndOpMatch``), so a rule that asks for an attribute sees them.
    """
    if name in node.attributes or not node.since_version:
        return node.attributes.get(name)
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return None
    attribute = schema.attributes.get(name)
    if attribute is None or not attribute.default_value.name:
        return None
    return attribute.default_value


def integer(node: Node, name: str, default: int = 0) -> int:
    """An integer attribute."""
    attribute = stated(node, name)
    return default if attribute is None else attribute.i


def number(node: Node, name: str, default: float = 0.0) -> float:
    """A float attribute."""
    attribute = stated(node, name)
    return default if attribute is None else attribute.f


def text(node: Node, name: str, default: str = "") -> str:
    """A string attribute."""
    attribute = stated(node, name)
    return default if attribute is None else attribute.s.decode(errors="replace")


def integers(node: Node, name: str) -> list[int] | None:
    """A list of integers; ``None`` where the attribute is absent."""
    attribute = stated(node, name)
    return None if attribute is None else list(attribute.ints)


def put(node: Node, name: str, value: float | str | Sequence[int] | Sequence[float]) -> None:
    """Set an attribute."""
    node.attributes[name] = onnx.helper.make_attribute(name, value)


def axes_of(graph: Graph, node: Node, place: int = 1) -> list[int] | None:
    """Axes from an attribute or, in later versions, from a constant input; else ``None``."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].ints)
    values = graph.array(node.input_at(place)) if node.input_at(place) else None
    return None if values is None else [int(axis) for axis in values.ravel()]
