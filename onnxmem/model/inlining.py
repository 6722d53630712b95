"""Local functions written out in place, after their size is known to be sane.

A model of 2 kB can call functions of functions ten deep and expand to 10^10 nodes, so the nodes
are counted over the call graph first, each function once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import onnx
import onnx.checker
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter

from onnxmem.errors import GraphError
from onnxmem.model.bounds import BOUNDS, variable
from onnxmem.model.order import sort_nodes
from onnxmem.model.shapes.native_faults import ends_the_process
from onnxmem.model.traversal import node_label, nodes_in

_INLINER_FAULTS: Final = (
    *(RuntimeError, ValueError, LookupError, ArithmeticError),  # those of C++'s own exceptions
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
    onnx.version_converter.ConvertError,
)
"""What the inliner, and the version converter in it, raise: ``register_exception`` of onnx's
``cpp2py_export.cc`` and what pybind11 makes of ``std::exception``."""

_FEW_NODES: Final = 5_000
"""So many are always followed, however few the file writes: they take seconds."""

_Key = tuple[str, str, str]

_COUNTED: Final = 10**18
"""A count stops here: what calls can multiply to has more digits than Python writes."""


def with_functions_inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace every call of a local function by the function's nodes.

    A function whose operator-set versions cannot be brought to the model's stays a call.

    :raises GraphError: functions that call each other in a circle, too many nodes, a call that does
        not fit its function, or a body that has no meaning.
    """
    if not model.functions:
        return model
    _refuse_to_grow(expanded_num_nodes(model), _num_written(model))
    _sort_bodies(model)
    _complete_calls(model)
    _import_domains_of_functions(model)
    if _is_fatal_to_convert(model):
        return _inlined_as_they_are(model)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except _INLINER_FAULTS:
        # The version converter knows few domains: what needs no conversion is still written out.
        return _inlined_as_they_are(model)


def can_be_inlined_as_they_are(model: onnx.ModelProto) -> bool:
    """Whether the nodes stand in running order, and functions are of the model's versions.

    ``model`` is one of which ``with_functions_inlined`` was asked: its functions and calls are in
    order, and no call leaves an attribute to its default.
    """
    versions = {entry.domain: entry.version for entry in model.opset_import}
    imports = (entry for function in model.functions for entry in function.opset_import)
    return (
        not any(function.overload for function in model.functions)
        and all(versions.get(entry.domain) == entry.version for entry in imports)
        and not sort_nodes(model.graph)
    )


def _refuse_to_grow(num_nodes: int, num_written: int) -> None:
    for bound, most in (
        ("nodes", BOUNDS.nodes),
        ("growth", max(BOUNDS.growth * num_written, _FEW_NODES)),
    ):
        if num_nodes > most:
            message = (
                f"the local functions expand to {num_nodes:,} nodes, over {most:,} "
                f"({variable(bound)}); export the model with fewer calls"
            )
            raise GraphError(message)


def _num_written(model: onnx.ModelProto) -> int:
    bodies = (model.graph.node, *(function.node for function in model.functions))
    return sum(1 for nodes in bodies for _ in nodes_in(nodes))


def _is_fatal_to_convert(model: onnx.ModelProto) -> bool:
    """Whether a function holds what onnx's inference, asked by its converter, cannot survive."""
    bodies = [(function.node, function.opset_import) for function in model.functions]
    # What it asks may be of either version, and the older has fewer limits.
    return any(
        ends_the_process(nodes, _oldest([*model.opset_import, *imported]))
        for nodes, imported in bodies
    )


def _oldest(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    versions: dict[str, int] = {}
    for entry in imports:
        versions[entry.domain] = min(entry.version, versions.get(entry.domain, entry.version))
    return versions


def _inlined_as_they_are(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.inliner.inline_local_functions(model)
    except _INLINER_FAULTS as fault:
        reason = str(fault).partition("\n")[0].rstrip(".")
        message = f"the local functions cannot be written out: {reason}; export the model again"
        raise GraphError(message) from fault


def expanded_num_nodes(model: onnx.ModelProto) -> int:
    """Count the model's nodes, subgraphs included, as if every call were written out."""
    # networkx takes as long to import as numpy, and few models have local functions.
    import networkx as nx

    bodies = {_function_key(function): function.node for function in model.functions}
    calls: nx.MultiDiGraph[_Key] = nx.MultiDiGraph()
    calls.add_nodes_from(bodies)
    for key, nodes in bodies.items():
        calls.add_edges_from((key, _call_key(n)) for n in nodes_in(nodes) if _call_key(n) in bodies)
    try:
        callees_first = list(nx.topological_sort(calls))[::-1]
    except nx.NetworkXUnfeasible:
        names = [f"{edge[0][0]}::{edge[0][1]}" for edge in nx.find_cycle(calls)]
        cycle = " -> ".join((*names, names[0]))
        message = f"local functions call each other in a circle: {cycle}; export the model again"
        raise GraphError(message) from None
    sizes: dict[_Key, int] = {}
    for key in callees_first:
        sizes[key] = _counted(bodies[key], sizes)
    return _counted(model.graph.node, sizes)


def _counted(nodes: Iterable[onnx.NodeProto], sizes: Mapping[_Key, int]) -> int:
    return min(sum(sizes.get(_call_key(node), 1) for node in nodes_in(nodes)), _COUNTED)


def _sort_bodies(model: onnx.ModelProto) -> None:
    """Put each function's nodes into running order: the inliner renames what it has seen so far."""
    for function in model.functions:
        body = onnx.GraphProto(node=function.node)
        for name in function.input:
            body.input.add(name=name)
        if sort_nodes(body):
            del function.node[:]
            function.node.extend(body.node)


def _complete_calls(model: onnx.ModelProto) -> None:
    """Give each call the attributes that it leaves to their defaults; the inliner forgets them."""
    functions = {_function_key(function): function for function in model.functions}
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in nodes_in(nodes):
            if function := functions.get(_call_key(node)):
                _refuse_too_many("inputs", node, node.input, function.input)
                _refuse_too_many("outputs", node, node.output, function.output)
                given = {attribute.name for attribute in node.attribute}
                defaults = function.attribute_proto
                node.attribute.extend(entry for entry in defaults if entry.name not in given)


def _refuse_too_many(
    kind: str, node: onnx.NodeProto, given: Sequence[str], declared: Sequence[str]
) -> None:
    if len(given) > len(declared):
        message = (
            f"node {node_label(node)} has {len(given)} {kind}, and the local function "
            f"{node.domain}::{node.op_type} has {len(declared)}; export the model again"
        )
        raise GraphError(message)


def _import_domains_of_functions(model: onnx.ModelProto) -> None:
    """Import the domains that only a function imports: its nodes will stand in the graph."""
    imported = {entry.domain for entry in model.opset_import}
    for function in model.functions:
        for entry in function.opset_import:
            if entry.domain not in imported:
                imported.add(entry.domain)
                model.opset_import.append(entry)


def _function_key(function: onnx.FunctionProto) -> _Key:
    return function.domain, function.name, function.overload


def _call_key(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload
