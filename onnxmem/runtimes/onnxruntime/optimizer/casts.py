"""Casts around operators without a float16 kernel, and the removal of casts that cancel out.

An operator of a float16 model that the CPU has no kernel for runs in float32: its operands and its
result exist in both types, so that which casts stay decides the peak of such models.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import onnx.defs

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, TensorType, execution_order
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    FLOAT16,
    has_cuda_kernel,
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
# A cast and a cast back cancel out; of two consecutive casts the first is removed.
#
# onnxruntime/core/optimizer/insert_cast_transformer.cc, ``RemoveDuplicateCastTransformer``.


PREFIX = "InsertedPrecisionFreeCast_"
"""Prefix of the names of inserted casts, whose loss of precision does not count."""

_BITS: Final = {  # by element type
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
    """Remove the casts that cancel out, also in subgraphs."""
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
    # A first cast that loses precision must stay if the second's output could hold what it drops.
    loses = _is_unsafe(source, target, node)
    if loses and any(_is_unsafe(_output_type(graph, cast), target, cast) for cast in casts):
        return False
    canceling = [
        cast
        for cast in casts
        if cast.outputs[0] not in graph.outputs and _output_type(graph, cast) == source
    ]
    for cast in canceling:
        redirect(graph, cast.outputs[0], node.inputs[0])
        graph.remove(cast)
    if not readers or len(casts) != len(readers) or graph.is_output(node):
        return bool(canceling)
    for cast in casts:
        if cast not in canceling:
            graph.set_input(cast, 0, node.inputs[0])
    graph.remove(node)
    return True


def _output_type(graph: Graph, cast: Node) -> int:
    return graph.elem_type_of(cast.outputs[0])


def _is_unsafe(source: int, target: int, node: Node) -> bool:
    """Whether a cast may lose range or precision (``UnsafeCast``)."""
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
    return _BITS[source] > _BITS[target] and not node.name.startswith(PREFIX)


# --------------------------------------------------------------------------------------------------
# Casts around operators without a float16 kernel, which run in float32.
#
# onnxruntime/core/optimizer/insert_cast_transformer.cc (``InsertCastTransformer``,
# ``IsIsolatedFp16NodeOnCpu``). It runs at every level, last. A node that could stay in float16 but
# has only such nodes around it runs in float32 too, so that it needs no casts of its own.


def insert_casts(graph: Graph) -> bool:
    """Insert casts around nodes without a kernel, then remove the casts that cancel out."""
    changed = _insert_all(graph)
    if changed:
        resolve(graph)
    return remove_repeated_casts(graph) or changed


def _insert_all(graph: Graph) -> bool:
    forced = _forced(graph)
    changed = False
    # Readers of one float16 value share its cast.
    widened: dict[str, str] = {}
    for node in execution_order(graph):
        if node.index in forced:
            changed |= _cast_around(graph, node, widened)
        for body in node.bodies.values():
            changed |= _insert_all(body)
    return changed


def _forced(graph: Graph) -> set[int]:
    """Indices of nodes that run in float32: those without a kernel, and those isolated by them."""
    forced = {node.index for node in graph.nodes.values() if not has_kernel(graph, node)}

    def is_cast(node: Node) -> bool:
        return node.index in forced and any(_is_half(graph, name) for name in node.inputs)

    # Nodes are added while the loop runs: a node that is isolated may isolate the ones after it.
    for node in graph.nodes.values():
        if node.index not in forced and _is_isolated(graph, node, is_cast):
            forced.add(node.index)
    return forced


def _is_half(graph: Graph, name: str) -> bool:
    return bool(name) and graph.elem_type_of(name) == FLOAT16


def _is_isolated(graph: Graph, node: Node, is_cast: Callable[[Node], bool]) -> bool:
    """Whether all producers and all readers of a node's float16 values are cast."""
    if num_input_edges(graph, node) == 0 or node.bodies or graph.is_output(node):
        return False
    if has_cuda_kernel(graph, node):
        return False  # ``IsIsolatedFp16NodeOnCpu``
    inputs = [name for name in _first_of_each(node) if _is_half(graph, name)]
    outputs = [name for name in node.outputs if _is_half(graph, name)]
    if not inputs or not outputs:
        return False
    producers = [graph.producers[name] for name in inputs if name in graph.producers]
    readers = [reader for name in outputs for reader in graph.readers(name)]
    return all(is_cast(other) for other in (*producers, *readers))


def _first_of_each(node: Node) -> list[str]:
    """One input for each input of the schema: only the first of a variadic input is checked."""
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return node.inputs
    return node.inputs[: len(schema.inputs)]


def _cast_around(graph: Graph, node: Node, widened: dict[str, str]) -> bool:
    node.is_unassigned = False
    # Readers of one value share the Cast that widens it (``widened``); each output is narrowed by a
    # Cast of its own, so that its readers see the name and the type they had.
    halves = [name for name in dict.fromkeys(node.inputs) if _is_half(graph, name)]
    if not halves:
        return False
    for name in halves:
        if name not in widened:
            widened[name] = _new_value(graph, name)
            _add_cast(graph, name, widened[name], FLOAT)
    graph.set_inputs(
        node, [widened.get(name, name) if name in halves else name for name in node.inputs]
    )
    if "dtype" in node.attributes and integer(node, "dtype") == FLOAT16:
        put(node, "dtype", FLOAT)
    outputs = list(node.outputs)
    for index, name in enumerate(outputs):
        if _is_half(graph, name):
            outputs[index] = _new_value(graph, name)
    renamed = [(new, old) for new, old in zip(outputs, node.outputs, strict=True) if new != old]
    graph.set_outputs(node, outputs)
    for new, old in renamed:
        _add_cast(graph, new, old, FLOAT16)
    return True


def _new_value(graph: Graph, name: str) -> str:
    """A new float32 value; its shape is left to inference."""
    new = graph.fresh_node_name(PREFIX + name)
    graph.types[new] = TensorType(FLOAT, None)
    return new


def _add_cast(graph: Graph, source: str, target: str, elem_type: int) -> None:
    name = source if source.startswith(PREFIX) else target
    cast = add_node(graph, NewNode("Cast", [source], [target], "", name))
    put(cast, "to", elem_type)


# --------------------------------------------------------------------------------------------------
# A float16 constant that only a cast to float32 reads becomes a float32 constant.
#
# onnxruntime/core/optimizer/fuse_initializers_transformer.cc. It runs after the casts are inserted;
# if it changes something, the levels above the basic one run again.


def widen_constants(graph: Graph) -> bool:
    """Widen each float16 constant whose cast has one reader, with a float32 kernel."""
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
