"""Attention that the framework runs in one kernel, as exporters write it out.

Both exporters scale the query and the key each by the root of the factor, which no network does by
hand: that tells ``scaled_dot_product_attention`` from products and a softmax of the network's own.
torch.export also names the operator that each node comes from, and its word goes first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.runtimes.torch.composites.rewriting import Match, Sight
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


def attentions(sight: Sight) -> Iterator[Match]:
    """Find ``Softmax((q * s) @ (k' * s) [+ bias]) [made safe] [dropped] @ v``."""
    for product in sight.graph.nodes:
        if product.onnx_op != "MatMul":
            continue
        weights = _weights(sight, product.inputs[0])
        if weights is None:
            continue
        operands = _operands(sight, weights)
        if operands is None:
            continue
        mask, bias = _bias(sight, weights)
        nodes = (*operands.nodes, *mask, *weights.nodes, product)
        yield Match(nodes, ATTENTION, (operands.query, operands.key, product.inputs[1], *bias))


def attentions_as_products(graph: Graph) -> tuple[Node, ...]:
    """The softmaxes between two products of activations, of which no file says who wrote them.

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
    sight = Sight.of(graph)
    return tuple(n for n in found if _is_scored(sight, n) and _weighs_values(sight, n))


def _is_scored(sight: Sight, softmax: Node) -> bool:
    """Whether a softmax is of scores: a product of two activations, scaled and masked."""
    names = [softmax.inputs[0]]
    while names:
        maker = sight.makers.get(names.pop())
        if _multiplies_activations(sight, maker):
            return True
        if maker is not None and maker.onnx_op in _SCORING:
            names.extend(maker.reads)
    return False


def _weighs_values(sight: Sight, softmax: Node) -> bool:
    """Whether a product of two activations reads a softmax."""
    name = softmax.outputs[0]
    while (reader := sight.readers.get(name)) is not None and reader.onnx_op in _WEIGHING:
        name = reader.outputs[0]
    return _multiplies_activations(sight, reader)


def _multiplies_activations(sight: Sight, node: Node | None) -> bool:
    if node is None or node.onnx_op != "MatMul":
        return False
    return not any(sight.is_weight(name) for name in node.inputs)


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


def _weights(sight: Sight, name: str) -> _Weights | None:
    """Read how a product's first operand is made."""
    nodes: list[Node] = []
    if (dropout := sight.maker(name, "Dropout")) is not None:
        nodes, name = [dropout], dropout.inputs[0]
    guard = _guard(sight, name)
    if guard:
        nodes, name = [*guard, *nodes], guard[0].inputs[0]
    softmax = sight.maker(name, "Softmax", reads=2 if guard else 1)
    if softmax is None:
        return None
    modules = softmax.metadata.get(_HIERARCHY, "")
    if modules.endswith(_OWN_SOFTMAX):
        return None
    nodes, name = [softmax, *nodes], softmax.inputs[0]
    bias: str | None = None
    if (added := sight.maker(name, "Add")) is not None:
        nodes = [added, *nodes]
        name = next((text for text in added.inputs if sight.maker(text, "MatMul")), "")
        bias = next((text for text in added.inputs if text != name), None)
    scores = sight.maker(name, "MatMul")
    if scores is None:
        return None
    return _Weights((scores, *nodes), bias, bool(guard), modules.endswith(_OPERATOR))


def _guard(sight: Sight, name: str) -> tuple[Node, ...]:
    """The nodes of ``Where(IsNaN(w), 0, w)``, if that is how a tensor is made."""
    chosen = sight.maker(name, "Where")
    if chosen is None or not sight.is_number(chosen.inputs[1], 0):
        return ()
    asked = sight.maker(chosen.inputs[0], "IsNaN")
    return (asked, chosen) if asked is not None and asked.inputs[0] == chosen.inputs[2] else ()


def _bias(sight: Sight, weights: _Weights) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """The nodes that turn a mask of booleans into numbers, and the operands for bias and mask."""
    name = weights.bias
    if name is None:
        return (), ()
    turned = _turned_mask(sight, name)
    is_mask = turned is not None or weights.is_made_safe
    shown = turned.inputs[0] if turned is not None else name
    nodes = (turned,) if turned is not None and sight.reads[name] == 1 else ()
    if is_mask and _is_traced(sight, shown):
        return nodes, ()
    return (nodes, ("", shown)) if turned is not None else ((), (name,))


def _turned_mask(sight: Sight, name: str) -> Node | None:
    """The node that makes 0 of a boolean that is true, and a number far below 0 of others."""
    node = sight.makers.get(name)
    if node is None or node.onnx_op != "Where" or not sight.is_number(node.inputs[1], 0):
        return None
    hidden = sight.number(node.inputs[2])
    return node if hidden is not None and hidden <= _HIDDEN else None


def _is_traced(sight: Sight, name: str) -> bool:
    """Whether a mask is there because the network was traced.

    transformers' ``masking_utils.py`` (``_ignore_causal_mask_sdpa``,
    ``_ignore_bidirectional_mask_sdpa``) makes a mask of positions alone for each sample while it is
    traced; in a training step it makes none, and says ``is_causal`` instead. A mask that shows a
    window narrower than the sequence is made in both.
    """
    dims = sight.dims(name)
    if dims is None or len(dims) != _TRACED_RANK or dims[1] != 1:
        return False
    nodes = _made_of_positions(sight, name)
    if nodes is None:
        return False
    return not any(node.onnx_op in {"Greater", "Less"} for node in nodes) or any(
        number >= dims[-1]
        for node in nodes
        if node.onnx_op in {"Add", "Sub"}
        for number in map(sight.number, node.inputs)
        if number is not None
    )


def _made_of_positions(sight: Sight, name: str) -> tuple[Node, ...] | None:
    """The nodes that a tensor is made by; ``None`` where an input's data go into it."""
    seen: dict[str, Node] = {}
    names = [name]
    while names:
        found = names.pop()
        maker = sight.makers.get(found)
        if maker is None:
            if sight.graph.tensors[found].role is Role.INPUT:
                return None
        elif maker.name not in seen:
            seen[maker.name] = maker
            names.extend(data_reads(maker))
    return tuple(seen.values())


def _operands(sight: Sight, weights: _Weights) -> _Operands | None:
    """Read query and key of the scores, if it was the framework's attention that scaled them.

    A factor of 1 is optimized away; then the rest of what exporters write has to tell.
    """
    scaled = tuple(node for text in weights.scores.inputs if (node := sight.maker(text, "Mul")))
    is_scaled = len(scaled) == len(weights.scores.inputs)
    query, key = (node.inputs[0] for node in scaled) if is_scaled else weights.scores.inputs
    turned = _key(sight, key)
    if turned is None:
        return None
    name, layout = turned
    is_flattened = tuple(node.onnx_op for node in layout) == _FLAT
    if not (is_scaled or weights.is_named or weights.is_made_safe or is_flattened):
        return None
    return _Operands(query, name, (*layout, *(scaled if is_scaled else ())))


def _key(sight: Sight, name: str) -> tuple[str, tuple[Node, ...]] | None:
    """The key before it is turned, and the nodes that turn it."""
    start = name
    turned = sight.dims(name)
    if turned is None:
        return None
    wanted = (*turned[:-2], turned[-1], turned[-2])
    layout: list[Node] = []
    flat: tuple[str, tuple[Node, ...]] | None = None
    while (maker := sight.maker(name, *_LAYOUT)) is not None:
        layout.insert(0, maker)
        name = maker.inputs[0]
        dims = sight.dims(name)
        is_turned = any(node.onnx_op == "Transpose" for node in layout)
        if is_turned and dims == wanted:
            return name, tuple(layout)
        if is_turned and flat is None and dims is not None and dims[-2:] == wanted[-2:]:
            flat = name, tuple(layout)
    if flat is not None:
        return flat
    # Turned by the Transpose that parts the heads too: a view all the same
    return (start, ()) if sight.maker(start, "Transpose") else None
