"""Casts around operators that no kernel runs in float16: they run in float32.

Source: onnxruntime/core/optimizer/insert_cast_transformer.cc. It runs at every level, last. A node
that could stay in float16 between two that cannot is cast too, which saves its own casts.
"""

from collections.abc import Callable

import onnx.defs

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import FLOAT, FLOAT16, num_input_edges
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.passes.cast_removal import remove_repeated_casts
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node
from onnxmem.runtimes.onnxruntime.optimizer.shapes.inference import resolve
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

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
    makers = [graph.makers[name] for name in given if name in graph.makers]
    readers = [reader for name in made for reader in graph.readers(name)]
    return all(is_cast(other) for other in (*makers, *readers))


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
