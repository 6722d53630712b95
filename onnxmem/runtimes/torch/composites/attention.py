"""Attention that the framework runs in one kernel, as exporters write it out.

Both exporters scale the query and the key each by the root of the factor, which no network does by
hand: that distinguishes ``scaled_dot_product_attention`` from products and a softmax of the
network's own. torch.export also names the operator that each node comes from: where it does, the
name decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.runtimes.torch.composites.rewriting import GraphView, Match
from onnxmem.runtimes.torch.framework import ATTENTION, data_reads

_LAYOUT = ("Reshape", "Transpose")
_HIERARCHY = "pkg.torch.onnx.class_hierarchy"
_OWN_SOFTMAX = "'aten.softmax.int']"
"""How the modules of a node end that the network's own softmax became."""
_OPERATOR = "'aten.scaled_dot_product_attention.default']"
_FLAT = ("Reshape", "Transpose", "Reshape")
"""How torch.export turns a key: made three-dimensional, turned, shaped back."""
_HIDDEN = -1e4
"""What masks add where nothing is to be seen: this or less, as float16 has no more than -65504."""
_TRACED_RANK = 4
_SCORING = frozenset({"Add", "Cast", "Div", "Max", "Mul", "Reshape", "Sub", "Where"})
"""What networks do to scores before their softmax."""
_WEIGHING = frozenset({"Cast", "Dropout", "Reshape", "Where"})
"""What they do to its result before values are weighed by it."""


def attentions(view: GraphView) -> Iterator[Match]:
    """Find ``Softmax((q * s) @ (k' * s) [+ bias]) [made safe] [dropped] @ v``."""
    for product in view.graph.nodes:
        if product.onnx_op != "MatMul":
            continue
        weights = _weights(view, product.inputs[0])
        if weights is None:
            continue
        operands = _operands(view, weights)
        if operands is None:
            continue
        mask, bias = _bias(view, weights)
        nodes = (*operands.nodes, *mask, *weights.nodes, product)
        yield Match(nodes, ATTENTION, (operands.query, operands.key, product.inputs[1], *bias))


def attentions_as_products(graph: Graph) -> tuple[Node, ...]:
    """The softmaxes between two products of activations, the network's own or an exporter's.

    Not those that torch.export names as the network's own: they are no kernel's.
    """
    found = [
        node
        for node in graph.nodes
        if node.onnx_op == "Softmax"
        and not node.metadata.get(_HIERARCHY, "").endswith(_OWN_SOFTMAX)
    ]
    if not found:
        return ()
    view = GraphView.of(graph)
    return tuple(n for n in found if _is_scored(view, n) and _weighs_values(view, n))


def _is_scored(view: GraphView, softmax: Node) -> bool:
    """Whether a softmax is of scores: a product of two activations, scaled and masked."""
    names = [softmax.inputs[0]]
    while names:
        producer = view.producers.get(names.pop())
        if _multiplies_activations(view, producer):
            return True
        if producer is not None and producer.onnx_op in _SCORING:
            names.extend(producer.reads)
    return False


def _weighs_values(view: GraphView, softmax: Node) -> bool:
    """Whether a product of two activations reads a softmax."""
    name = softmax.outputs[0]
    while (reader := view.readers.get(name)) is not None and reader.onnx_op in _WEIGHING:
        name = reader.outputs[0]
    return _multiplies_activations(view, reader)


def _multiplies_activations(view: GraphView, node: Node | None) -> bool:
    if node is None or node.onnx_op != "MatMul":
        return False
    return not any(view.is_weight(name) for name in node.inputs)


@dataclass(frozen=True, slots=True)
class _Operands:
    """What the framework hands to its kernel, and the nodes that scale it and turn the key."""

    query: str
    key: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class _Weights:
    """The nodes that make an attention's weights."""

    nodes: tuple[Node, ...]
    """From the product of query and key on, in running order."""
    bias: str | None
    """What is added to the scores."""
    is_made_safe: bool
    """Rows without anything to see are set to 0: exporters write that for a mask of booleans."""
    is_named: bool
    """torch.export says that they come from the framework's attention."""

    @property
    def scores(self) -> Node:
        """The product of query and key."""
        return self.nodes[0]


def _weights(view: GraphView, name: str) -> _Weights | None:
    """Read how a product's first operand is made."""
    nodes: list[Node] = []
    if (dropout := view.producer(name, "Dropout")) is not None:
        nodes, name = [dropout], dropout.inputs[0]
    guard = _guard(view, name)
    if guard:
        nodes, name = [*guard, *nodes], guard[0].inputs[0]
    softmax = view.producer(name, "Softmax", reads=2 if guard else 1)
    if softmax is None:
        return None
    modules = softmax.metadata.get(_HIERARCHY, "")
    if modules.endswith(_OWN_SOFTMAX):
        return None
    nodes, name = [softmax, *nodes], softmax.inputs[0]
    bias: str | None = None
    if (added := view.producer(name, "Add")) is not None:
        nodes = [added, *nodes]
        name = next((text for text in added.inputs if view.producer(text, "MatMul")), "")
        bias = next((text for text in added.inputs if text != name), None)
    scores = view.producer(name, "MatMul")
    if scores is None:
        return None
    return _Weights((scores, *nodes), bias, bool(guard), modules.endswith(_OPERATOR))


def _guard(view: GraphView, name: str) -> tuple[Node, ...]:
    """The nodes of ``Where(IsNaN(w), 0, w)``, if that is how a tensor is made."""
    chosen = view.producer(name, "Where")
    if chosen is None or not view.is_number(chosen.inputs[1], 0):
        return ()
    is_nan = view.producer(chosen.inputs[0], "IsNaN")
    return (is_nan, chosen) if is_nan is not None and is_nan.inputs[0] == chosen.inputs[2] else ()


def _bias(view: GraphView, weights: _Weights) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """The nodes that turn a mask of booleans into numbers, and the operands for bias and mask."""
    name = weights.bias
    if name is None:
        return (), ()
    turned = _turned_mask(view, name)
    is_mask = turned is not None or weights.is_made_safe
    shown = turned.inputs[0] if turned is not None else name
    nodes = (turned,) if turned is not None and view.reads[name] == 1 else ()
    if is_mask and _is_traced(view, shown):
        return nodes, ()
    return (nodes, ("", shown)) if turned is not None else ((), (name,))


def _turned_mask(view: GraphView, name: str) -> Node | None:
    """The node that makes 0 of a boolean that is true, and a number far below 0 of others."""
    node = view.producers.get(name)
    if node is None or node.onnx_op != "Where" or not view.is_number(node.inputs[1], 0):
        return None
    hidden = view.number(node.inputs[2])
    return node if hidden is not None and hidden <= _HIDDEN else None


def _is_traced(view: GraphView, name: str) -> bool:
    """Whether a mask is there because the network was traced.

    transformers' ``masking_utils.py`` (``_ignore_causal_mask_sdpa``,
    ``_ignore_bidirectional_mask_sdpa``) makes a mask of positions alone for each sample while it is
    traced; in a training step it makes none, and says ``is_causal`` instead. A mask that shows a
    window narrower than the sequence is made in both.
    """
    dims = view.dims(name)
    if dims is None or len(dims) != _TRACED_RANK or dims[1] != 1:
        return False
    nodes = _made_of_positions(view, name)
    if nodes is None:
        return False
    return not any(node.onnx_op in {"Greater", "Less"} for node in nodes) or any(
        number >= dims[-1]
        for node in nodes
        if node.onnx_op in {"Add", "Sub"}
        for number in map(view.number, node.inputs)
        if number is not None
    )


def _made_of_positions(view: GraphView, name: str) -> tuple[Node, ...] | None:
    """The nodes that a tensor is made by; ``None`` where an input's data go into it."""
    seen: dict[str, Node] = {}
    names = [name]
    while names:
        found = names.pop()
        producer = view.producers.get(found)
        if producer is None:
            if view.graph.tensors[found].role is Role.INPUT:
                return None
        elif producer.name not in seen:
            seen[producer.name] = producer
            names.extend(data_reads(producer))
    return tuple(seen.values())


def _operands(view: GraphView, weights: _Weights) -> _Operands | None:
    """Read query and key of the scores, if it was the framework's attention that scaled them.

    A factor of 1 is optimized away; then the rest of what exporters write has to decide.
    """
    scaled = tuple(node for text in weights.scores.inputs if (node := view.producer(text, "Mul")))
    is_scaled = len(scaled) == len(weights.scores.inputs)
    query, key = (node.inputs[0] for node in scaled) if is_scaled else weights.scores.inputs
    turned = _key(view, key)
    if turned is None:
        return None
    name, layout = turned
    is_flattened = tuple(node.onnx_op for node in layout) == _FLAT
    if not (is_scaled or weights.is_named or weights.is_made_safe or is_flattened):
        return None
    return _Operands(query, name, (*layout, *(scaled if is_scaled else ())))


def _key(view: GraphView, name: str) -> tuple[str, tuple[Node, ...]] | None:
    """The key before it is turned, and the nodes that turn it."""
    start = name
    turned = view.dims(name)
    if turned is None:
        return None
    wanted = (*turned[:-2], turned[-1], turned[-2])
    layout: list[Node] = []
    flat: tuple[str, tuple[Node, ...]] | None = None
    while (producer := view.producer(name, *_LAYOUT)) is not None:
        layout.insert(0, producer)
        name = producer.inputs[0]
        dims = view.dims(name)
        is_turned = any(node.onnx_op == "Transpose" for node in layout)
        if is_turned and dims == wanted:
            return name, tuple(layout)
        if is_turned and flat is None and dims is not None and dims[-2:] == wanted[-2:]:
            flat = name, tuple(layout)
    if flat is not None:
        return flat
    # Turned by the Transpose that parts the heads too: a view all the same
    return (start, ()) if view.producer(start, "Transpose") else None
