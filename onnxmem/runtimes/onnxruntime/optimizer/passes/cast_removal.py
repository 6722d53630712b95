"""A cast and a cast back cancel out; of two in a row the first goes.

Source: onnxruntime/core/optimizer/insert_cast_transformer.cc, ``RemoveDuplicateCastTransformer``.
"""

from typing import Final

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import redirect

_INSERTED = "InsertedPrecisionFreeCast_"
"""Start of the names of casts that a pass added: they lose nothing that matters."""

_BITS: Final = {
    9: 1,
    2: 8,
    3: 8,
    5: 16,
    4: 16,
    16: 16,
    10: 16,
    6: 32,
    12: 32,
    1: 32,
    7: 64,
    13: 64,
    11: 64,
}
_UNSIGNED = frozenset({2, 4, 12, 13})
_INTEGER = frozenset({3, 5, 6, 7})
_FLOATS = frozenset({1, 10, 11, 16})
_BOOL = 9
_HALVES = frozenset({10, 16})


def remove_repeated_casts(graph: Graph) -> bool:
    """Remove the casts that cancel out, subgraphs' too."""
    changed = False
    for node in list(graph.nodes.values()):
        if graph.nodes.get(node.index) is not node:
            continue
        if node.op_type == "Cast" and not node.domain:
            changed |= _shorten(graph, node)
        for body in node.bodies.values():
            changed |= remove_repeated_casts(body)
    return changed


def _shorten(graph: Graph, node: Node) -> bool:
    source, target = (graph.elem_type_of(name) for name in (node.inputs[0], node.outputs[0]))
    readers = graph.children(node)
    casts = [reader for reader in readers if reader.op_type == "Cast"]
    loses = _is_unsafe(source, target, node)
    if loses and any(_is_unsafe(_made(graph, cast), target, cast) for cast in casts):
        return False
    cancelling = [
        cast
        for cast in casts
        if cast.outputs[0] not in graph.outputs and _made(graph, cast) == source
    ]
    for cast in cancelling:
        redirect(graph, cast.outputs[0], node.inputs[0])
        graph.remove(cast)
    if not readers or len(casts) != len(readers) or graph.is_output(node):
        return bool(cancelling)
    for cast in casts:
        if cast not in cancelling:
            graph.set_input(cast, 0, node.inputs[0])
    graph.remove(node)
    return True


def _made(graph: Graph, cast: Node) -> int:
    return graph.elem_type_of(cast.outputs[0])


def _is_unsafe(source: int, target: int, node: Node) -> bool:
    """Whether a cast may lose something (``UnsafeCast``)."""
    if source not in _BITS or target not in _BITS:
        return True
    if source not in _UNSIGNED | {_BOOL} and target in _UNSIGNED:
        return True
    if source in _FLOATS and target not in _FLOATS:
        return True
    is_whole = source in _UNSIGNED | _INTEGER
    if (source in _UNSIGNED and target in _INTEGER) or (is_whole and target in _FLOATS):
        return _BITS[target] <= _BITS[source]
    if {source, target} == _HALVES:
        return True
    return _BITS[source] > _BITS[target] and not node.name.startswith(_INSERTED)
