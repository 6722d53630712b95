"""Local functions written out in place, after their size is known to be sane.

A model of 2 kB can call functions of functions ten deep and expand to 10^10 nodes, so the nodes
are counted over the call graph first, each function once.
"""

import networkx as nx
import onnx
import onnx.inliner

from onnxmem.errors import GraphError
from onnxmem.model.traversal import nodes_in

MAX_NODES = 1_000_000
"""A model that expands to more nodes than this is refused."""

_Key = tuple[str, str, str]


def with_functions_inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace every call of a local function by the function's nodes.

    A function whose operator-set versions cannot be brought to the model's stays a call.

    :raises GraphError: functions that call each other in a circle, or too many nodes.
    """
    if not model.functions:
        return model
    num_nodes = expanded_num_nodes(model)
    if num_nodes > MAX_NODES:
        message = f"the local functions expand to {num_nodes:,} nodes, over {MAX_NODES:,}"
        raise GraphError(message)
    _import_domains_of_functions(model)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError):
        # The version converter knows few domains: what needs no conversion is still written out.
        return onnx.inliner.inline_local_functions(model)


def expanded_num_nodes(model: onnx.ModelProto) -> int:
    """Count the model's nodes, subgraphs included, as if every call were written out."""
    bodies = {_function_key(function): function.node for function in model.functions}
    calls: nx.MultiDiGraph[_Key] = nx.MultiDiGraph()
    calls.add_nodes_from(bodies)
    for key, nodes in bodies.items():
        calls.add_edges_from((key, _call_key(n)) for n in nodes_in(nodes) if _call_key(n) in bodies)
    try:
        callees_first = list(nx.topological_sort(calls))[::-1]
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(f"{edge[0][0]}::{edge[0][1]}" for edge in nx.find_cycle(calls))
        message = f"local functions call each other in a circle: {cycle}"
        raise GraphError(message) from None
    sizes: dict[_Key, int] = {}
    for key in callees_first:
        sizes[key] = sum(sizes.get(_call_key(node), 1) for node in nodes_in(bodies[key]))
    return sum(sizes.get(_call_key(node), 1) for node in nodes_in(model.graph.node))


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
