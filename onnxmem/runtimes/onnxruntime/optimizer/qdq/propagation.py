"""Pairs of QuantizeLinear and DequantizeLinear put around operators that only move elements.

Source: onnxruntime/core/optimizer/qdq_transformer/qdq_propagation.cc.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx.helper

from onnxmem.runtimes.onnxruntime.optimizer.graph import Attributes, Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    has_single_reader,
    is_constant,
    is_scalar,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import (
    SCALE,
    ZERO_POINT,
    elem_type,
    is_dequantise,
    is_quantise,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node

_MOVING = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_FIRST_MAX_POOL = 12
_FIRST_RESHAPE = 5
_NAMES_ITS_TYPE = 21
"""Version from which QuantizeLinear has an attribute for the type that it writes."""


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a value: by an input of a node, or as a graph output."""

    reader: Node | None
    place: int


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What the nodes that are put in have of the one that is propagated."""

    domain: str
    parameters: Sequence[str]
    """Scale, and zero point where there is one."""
    quantised: Attributes
    """Attributes of a QuantizeLinear."""
    dequantised: Attributes


def propagate_pairs(graph: Graph) -> bool:
    """Quantise before, and dequantise after operators that can work on integers."""
    nodes = execution_order(graph)
    changed = False
    for node in nodes:
        for body in node.bodies.values():
            changed |= propagate_pairs(body)
    for node in nodes:
        if is_quantise(node) and _has_constant_scale(graph, node):
            changed |= _backward(graph, node)
    for node in nodes:
        if is_dequantise(node) and _has_constant_scale(graph, node):
            changed |= _forward(graph, node)
    return changed


def _has_constant_scale(graph: Graph, node: Node) -> bool:
    names = [node.inputs[SCALE], node.input_at(ZERO_POINT)]
    return all(is_constant(graph, name) and is_scalar(graph, name) for name in names if name)


def _can_propagate(node: Node) -> bool:
    first = {"MaxPool": _FIRST_MAX_POOL, "Reshape": _FIRST_RESHAPE}.get(node.op_type, 1)
    return node.op_type in _MOVING and not node.domain and node.since_version >= first


def _backward(graph: Graph, quantise: Node) -> bool:
    """Before each operator on the way up, as far as each value has one use."""
    pattern = _pattern(quantise)
    changed = False
    node = _only_maker(graph, quantise)
    while node is not None and _can_propagate(node):
        maker = _only_maker(graph, node)
        if is_dequantise(maker) or (maker is None and not _is_given(graph, node.inputs[0])):
            break
        _insert(graph, pattern, node.inputs[0], [_Use(node, 0)])
        changed = True
        node = maker
    return changed


def _only_maker(graph: Graph, node: Node) -> Node | None:
    """The maker of a node's first input, where nothing else reads that."""
    maker, name = graph.parent(node, 0), node.inputs[0]
    if maker is None or name in graph.outputs or len(_uses(graph, maker, name)) != 1:
        return None
    return maker


def _is_given(graph: Graph, name: str) -> bool:
    return name in graph.inputs or name in graph.initializers


def _uses(graph: Graph, maker: Node, name: str) -> list[_Use]:
    place = maker.outputs.index(name)
    found = [_Use(e.reader, e.input) for e in graph.edges_of(maker) if e.output == place]
    return [*found, _Use(None, 0)] if name in graph.outputs else found


def _forward(graph: Graph, dequantise: Node) -> bool:
    """After each operator on the way down, of several branches the last first."""
    if not has_single_reader(graph, dequantise):
        return False
    pattern = _pattern(dequantise)
    if dequantise.since_version >= _NAMES_ITS_TYPE:
        written = onnx.helper.make_attribute("output_dtype", elem_type(graph, dequantise))
        pattern.quantised["output_dtype"] = written
    changed = False
    stack = [graph.children(dequantise)[0]]
    while stack:
        node = stack.pop()
        uses = _uses(graph, node, node.outputs[0]) if _can_propagate(node) else []
        if not uses or any(is_quantise(use.reader) for use in uses):
            continue
        _insert(graph, pattern, node.outputs[0], uses)
        changed = True
        stack.extend(use.reader for use in uses if use.reader is not None)
    return changed


def _pattern(node: Node) -> _Pattern:
    parameters = [name for name in node.inputs[SCALE:] if name]
    shared = {n: a for n, a in node.attributes.items() if n in ("axis", "block_size")}
    stated = {n: a for n, a in node.attributes.items() if n == "output_dtype" and is_quantise(node)}
    return _Pattern(node.domain, parameters, {**shared, **stated}, shared)


def _insert(graph: Graph, pattern: _Pattern, name: str, uses: Sequence[_Use]) -> None:
    """Put a QuantizeLinear after a value, and a DequantizeLinear before each of its uses."""
    maker = graph.makers.get(name)
    source = name if maker is None else graph.fresh_name(f"{name}_pre_q")
    middle = graph.fresh_name(f"{name}_q_to_dq")
    quantise = NewNode(
        "QuantizeLinear",
        [source, *pattern.parameters],
        [middle],
        pattern.domain,
        graph.fresh_node_name(f"{name}_q"),
        pattern.quantised,
    )
    if maker is not None:
        outputs = [source if written == name else written for written in maker.outputs]
        graph.set_outputs(maker, outputs)
    add_node(graph, quantise)
    for number, use in enumerate(uses):
        suffix = str(number) if number else ""
        target = name if use.reader is None else graph.fresh_name(f"{name}_post_dq{suffix}")
        node_name = graph.fresh_node_name(f"{name}_dq{suffix}")
        inputs = [middle, *pattern.parameters]
        attributes = pattern.dequantised
        new = NewNode("DequantizeLinear", inputs, [target], pattern.domain, node_name, attributes)
        add_node(graph, new)
        if use.reader is not None:
            graph.set_input(use.reader, use.place, target)
