"""Casts around operators without a kernel for float16, and what they bring with them."""

from collections.abc import Callable
from typing import Final

import numpy as np
import onnx.defs

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, TensorType, execution_order
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    FLOAT16,
    has_kernel,
    integer,
    num_input_edges,
    put,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
    redirect,
)
from onnxmem.runtimes.onnxruntime.optimizer.shape_inference import resolve

# --------------------------------------------------------------------------------------------------
# A cast and a cast back cancel out; of two in a row the first goes.
#
# onnxruntime/core/optimizer/insert_cast_transformer.cc, ``RemoveDuplicateCastTransformer``.


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


# --------------------------------------------------------------------------------------------------
# Casts around operators that no kernel runs in float16: they run in float32.
#
# onnxruntime/core/optimizer/insert_cast_transformer.cc. It runs at every level, last. A node that
# could stay in float16 between two that cannot is cast too, which saves its own casts.


PREFIX = "InsertedPrecisionFreeCast_"


def insert_casts(graph: Graph) -> bool:
    """Cast what has no kernel, and drop the casts that cancel out."""
    changed = _insert_all(graph)
    if changed:
        resolve(graph)
    return remove_repeated_casts(graph) or changed


def _insert_all(graph: Graph) -> bool:
    forced = _forced(graph)
    changed = False
    made: dict[str, str] = {}
    for node in execution_order(graph):
        if node.index in forced:
            changed |= _cast_around(graph, node, made)
        for body in node.bodies.values():
            changed |= _insert_all(body)
    return changed


def _forced(graph: Graph) -> set[int]:
    """Nodes that run in float32: those without a kernel, and those alone between such."""
    forced = {node.index for node in graph.nodes.values() if not has_kernel(graph, node)}

    def is_cast(node: Node) -> bool:
        return node.index in forced and any(_is_half(graph, name) for name in node.inputs)

    for node in graph.nodes.values():
        if node.index not in forced and _is_isolated(graph, node, is_cast):
            forced.add(node.index)
    return forced


def _is_half(graph: Graph, name: str) -> bool:
    return bool(name) and graph.elem_type_of(name) == FLOAT16


def _is_isolated(graph: Graph, node: Node, is_cast: Callable[[Node], bool]) -> bool:
    """Whether every float16 value goes in from and out to nodes that are cast."""
    if num_input_edges(graph, node) == 0 or node.bodies or graph.is_output(node):
        return False
    given = [name for name in _first_of_each(node) if _is_half(graph, name)]
    made = [name for name in node.outputs if _is_half(graph, name)]
    if not given or not made:
        return False
    producers = [graph.producers[name] for name in given if name in graph.producers]
    readers = [reader for name in made for reader in graph.readers(name)]
    return all(is_cast(other) for other in (*producers, *readers))


def _first_of_each(node: Node) -> list[str]:
    """One input for each of the schema's: only the first of a variadic one is looked at."""
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return node.inputs
    return node.inputs[: len(schema.inputs)]


def _cast_around(graph: Graph, node: Node, made: dict[str, str]) -> bool:
    node.is_unassigned = False
    halves = [name for name in dict.fromkeys(node.inputs) if _is_half(graph, name)]
    if not halves:
        return False
    for name in halves:
        if name not in made:
            made[name] = _new_value(graph, name)
            _add_cast(graph, name, made[name], FLOAT)
    graph.set_inputs(
        node, [made.get(name, name) if name in halves else name for name in node.inputs]
    )
    if "dtype" in node.attributes and integer(node, "dtype") == FLOAT16:
        put(node, "dtype", FLOAT)
    outputs = list(node.outputs)
    for place, name in enumerate(outputs):
        if _is_half(graph, name):
            outputs[place] = _new_value(graph, name)
    renamed = [(new, old) for new, old in zip(outputs, node.outputs, strict=True) if new != old]
    graph.set_outputs(node, outputs)
    for new, old in renamed:
        _add_cast(graph, new, old, FLOAT16)
    return True


def _new_value(graph: Graph, name: str) -> str:
    """A float32 value, whose shape is inferred afresh."""
    made = graph.fresh_node_name(PREFIX + name)
    graph.types[made] = TensorType(FLOAT, None)
    return made


def _add_cast(graph: Graph, source: str, target: str, elem_type: int) -> None:
    name = source if source.startswith(PREFIX) else target
    cast = add_node(graph, NewNode("Cast", [source], [target], "", name))
    put(cast, "to", elem_type)


# --------------------------------------------------------------------------------------------------
# A float16 constant that only a cast to float32 reads becomes a float32 constant.
#
# onnxruntime/core/optimizer/fuse_initializers_transformer.cc. It runs after the casts are in, and
# where it changes something, the levels above the basic one are run once more.


def widen_constants(graph: Graph) -> bool:
    """Replace every cast of a constant that has one reader, which runs in float32 only."""
    casts = [node for node in execution_order(graph) if _is_widening(graph, node)]
    for cast in sorted(casts, key=lambda node: node.index):
        _widen(graph, cast)
    return bool(casts)


def _is_widening(graph: Graph, node: Node) -> bool:
    if node.op_type != "Cast" or node.inputs[0] in graph.producers or graph.num_edges(node) != 1:
        return False
    if graph.is_output(node) or node.inputs[0] not in graph.initializers:
        return False
    types = graph.elem_type_of(node.inputs[0]), graph.elem_type_of(node.outputs[0])
    return types == (FLOAT16, FLOAT) and has_kernel(graph, graph.children(node)[0])


def _widen(graph: Graph, cast: Node) -> None:
    source, target = cast.inputs[0], cast.outputs[0]
    name = graph.fresh_name("FusedBack_" + target.replace(PREFIX, ""))
    value = graph.array(source)
    if value is None:
        add_absent(graph, name, FLOAT, graph.initializers[source].dims)
    else:
        add_array(graph, name, value.astype(np.float32))
    reader = graph.children(cast)[0]
    graph.remove(cast)
    graph.set_inputs(reader, [name if read == target else read for read in reader.inputs])
