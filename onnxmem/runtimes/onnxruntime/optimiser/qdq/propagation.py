"""Pairs of QuantizeLinear and DequantizeLinear put around operators that only move elements.

Source: onnxruntime/core/optimizer/qdq_transformer/qdq_propagation.cc.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxmem.runtimes.onnxruntime.optimiser.graph import Attributes, Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import (
    has_single_reader,
    is_constant,
    is_scalar,
)
from onnxmem.runtimes.onnxruntime.optimiser.order import execution_order
from onnxmem.runtimes.onnxruntime.optimiser.qdq.units import (
    SCALE,
    ZERO_POINT,
    is_dequantise,
    is_quantise,
)
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import NewNode, add_node

_MOVING = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_FIRST_MAX_POOL = 12
_FIRST_RESHAPE = 5


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a value: by an input of a node, or as a graph output."""

    reader: Node | None
    place: int


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
    changed = False
    node = graph.parent(quantise, 0)
    use = _Use(quantise, 0)
    while node is not None and _is_only_use(graph, node, use) and _can_propagate(node):
        maker = graph.parent(node, 0)
        use = _Use(node, 0)
        if is_dequantise(maker):
            break
        if maker is not None and not _is_only_use(graph, maker, use):
            break
        if maker is None and not _is_given(graph, node.inputs[0]):
            break
        _insert(graph, quantise, node.inputs[0], [use])
        changed = True
        node = maker
        if node is not None:
            use = _Use(graph.readers(node.outputs[0])[0], 0)
    return changed


def _is_given(graph: Graph, name: str) -> bool:
    return name in graph.inputs or name in graph.initializers


def _is_only_use(graph: Graph, maker: Node, use: _Use) -> bool:
    """Whether a value is read once, and no graph output."""
    reader = use.reader
    if reader is None:
        return False
    name = reader.inputs[use.place]
    return name not in graph.outputs and len(_uses(graph, maker, name)) == 1


def _uses(graph: Graph, maker: Node, name: str) -> list[_Use]:
    place = maker.outputs.index(name)
    found = [_Use(e.reader, e.input) for e in graph.edges_of(maker) if e.output == place]
    return [*found, _Use(None, 0)] if name in graph.outputs else found


def _forward(graph: Graph, dequantise: Node) -> bool:
    """After each operator on the way down, breadth first."""
    if not has_single_reader(graph, dequantise):
        return False
    changed = False
    queue = [graph.children(dequantise)[0]]
    while queue:
        node = queue.pop(0)
        if not _can_propagate(node) or not _reads_first(graph, node):
            continue
        uses = _uses(graph, node, node.outputs[0])
        if not uses or any(is_quantise(use.reader) for use in uses):
            continue
        _insert(graph, dequantise, node.outputs[0], uses)
        changed = True
        queue.extend(use.reader for use in uses if use.reader is not None)
    return changed


def _reads_first(graph: Graph, node: Node) -> bool:
    return bool(node.inputs) and node.index in graph.nodes


def _insert(graph: Graph, like: Node, name: str, uses: Sequence[_Use]) -> None:
    """Put a QuantizeLinear after a value, and a DequantizeLinear before each of its uses."""
    maker = graph.makers.get(name)
    known = graph.type_of(name)
    source = name if maker is None else graph.fresh_name(f"{name}_pre_q")
    middle = graph.fresh_name(f"{name}_q_to_dq")
    parameters = [read for read in like.inputs[SCALE:] if read]
    attributes = _shared_attributes(like)
    quantise = NewNode(
        "QuantizeLinear",
        [source, *parameters],
        [middle],
        like.domain,
        graph.fresh_node_name(f"{name}_q"),
        attributes,
    )
    if maker is not None:
        outputs = [source if written == name else written for written in maker.outputs]
        graph.set_outputs(maker, outputs)
        if known is not None:
            graph.types[source] = known
    add_node(graph, quantise)
    for number, use in enumerate(uses):
        suffix = str(number) if number else ""
        target = name if use.reader is None else graph.fresh_name(f"{name}_post_dq{suffix}")
        node_name = graph.fresh_node_name(f"{name}_dq{suffix}")
        inputs = [middle, *parameters]
        add_node(
            graph,
            NewNode("DequantizeLinear", inputs, [target], like.domain, node_name, attributes),
        )
        if use.reader is not None:
            graph.set_input(use.reader, use.place, target)


def _shared_attributes(node: Node) -> Attributes:
    return {n: a for n, a in node.attributes.items() if n in ("axis", "block_size")}
