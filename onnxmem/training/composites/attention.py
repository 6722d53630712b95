"""Attention that the framework runs in one kernel, as exporters write it out.

Both exporters scale the query and the key each by the root of the factor, which no network does by
hand: that tells ``scaled_dot_product_attention`` from products and a softmax of the network's own.
"""

from collections.abc import Iterator

from onnxmem.model import Node
from onnxmem.training.composites.framework import ATTENTION
from onnxmem.training.composites.rewriting import Match, Sight

_LAYOUT = ("Reshape", "Transpose")


def attentions(sight: Sight) -> Iterator[Match]:
    """Find ``Softmax((q * s) @ (k' * s) [+ bias]) [dropped] @ v``."""
    for product in sight.graph.nodes:
        if product.onnx_op != "MatMul":
            continue
        steps = _scores(sight, product.inputs[0])
        if not steps:
            continue
        scores = steps[0]
        query, key = (sight.maker(name, "Mul") for name in scores.inputs)
        if query is None or key is None:
            continue
        turned = _key(sight, key)
        if turned is None:
            continue
        name, layout = turned
        bias = _bias(steps, scores.outputs[0])
        nodes = (*layout, query, key, *steps, product)
        yield Match(nodes, ATTENTION, (query.inputs[0], name, product.inputs[1], *bias))


def _scores(sight: Sight, name: str) -> tuple[Node, ...]:
    """The nodes from the product of query and key to the weights, in running order."""
    nodes: list[Node] = []
    dropout = sight.maker(name, "Dropout")
    if dropout is not None:
        nodes, name = [dropout], dropout.inputs[0]
    softmax = sight.maker(name, "Softmax")
    if softmax is None:
        return ()
    nodes, name = [softmax, *nodes], softmax.inputs[0]
    added = sight.maker(name, "Add")
    if added is not None:
        nodes = [added, *nodes]
        name = next((text for text in added.inputs if sight.maker(text, "MatMul")), "")
    scores = sight.maker(name, "MatMul")
    return () if scores is None else (scores, *nodes)


def _bias(steps: tuple[Node, ...], scores: str) -> tuple[str, ...]:
    """What is added to the scores, if anything."""
    added = next((node for node in steps if node.onnx_op == "Add"), None)
    return () if added is None else tuple(name for name in added.inputs if name != scores)


def _key(sight: Sight, scaling: Node) -> tuple[str, tuple[Node, ...]] | None:
    """The key before it is turned and scaled, and the nodes that turn it."""
    name = scaling.inputs[0]
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
    return (scaling.inputs[0], ()) if sight.maker(scaling.inputs[0], "Transpose") else None
