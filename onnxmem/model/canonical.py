"""A model written in one way: whole nodes, local functions written out, an order that can run.

In this order: ``normalized`` writes ONNX's own domain as ``""`` and imports it where the file
forgets to; ``with_functions_inlined`` writes local functions out, after their size is known to be
sane (2 kB can call functions of functions ten deep and expand to 10^10 nodes);
``refuse_partial_nodes`` checks that no node lacks an input, an output or a graph that its operator
needs; ``sort_columns`` puts the nodes into an order that can run.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter

from onnxmem.errors import Finding, GraphError
from onnxmem.model.bounds import BOUNDS, variable
from onnxmem.model.shapes.node_inference import ends_the_process
from onnxmem.model.traversal import (
    Columns,
    columns_of,
    input_and_initializer_names,
    node_label,
    nodes_in,
    onnx_op,
    outer_reads,
    subgraphs,
)

if TYPE_CHECKING:
    import networkx as nx


_AROUND_CARRIED = {"inputs": 2, "outputs": 1}
"""What a Loop's body has besides the carried values: trip and condition in, condition out."""


_ALIAS = "ai.onnx"
"""Another name of ONNX's own domain, ``""``."""

_LARGEST_VERSION = 2**31 - 1
_STFT = "STFT"


def normalized(model: onnx.ModelProto, columns: Columns) -> tuple[Finding, ...]:
    """Write ONNX's own domain in one way and import it where the model forgets to, in place.

    ``columns`` are those of the model's graph.

    :raises GraphError: there are more nodes than are followed.
    """
    nodes = list(nodes_in(columns.nodes)) if columns.bodies else columns.nodes
    if len(nodes) > BOUNDS.nodes:
        message = (
            f"{len(nodes):,} nodes, over {BOUNDS.nodes:,} ({variable('nodes')}); set that higher"
        )
        raise GraphError(message)
    for entry in (*model.opset_import, *(e for f in model.functions for e in f.opset_import)):
        entry.domain = _canonical(entry.domain)
        # onnx keeps versions as C's int and knows none that are near its ends.
        entry.version = min(max(entry.version, -_LARGEST_VERSION), _LARGEST_VERSION)
    for body in (nodes, *(nodes_in(function.node) for function in model.functions)):
        for node in [node for node in body if node.domain == _ALIAS or node.op_type == _STFT]:
            node.domain = _canonical(node.domain)
            if node.op_type == _STFT and not node.domain:
                _write_default(node)
    return _with_version(model)


def _write_default(node: onnx.NodeProto) -> None:
    """Half the frequencies come out unless a file says otherwise; onnx infers shapes of all."""
    if all(attribute.name != "onesided" for attribute in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _canonical(domain: str) -> str:
    return "" if domain == _ALIAS else domain


def _with_version(model: onnx.ModelProto) -> tuple[Finding, ...]:
    if any(not entry.domain for entry in model.opset_import):
        return ()
    uses = {_use(node) for node in nodes_in(model.graph.node) if onnx_op(node)}
    version = _newest_fitting(uses)
    model.opset_import.add(domain="", version=version)
    if not uses:
        return ()
    text = f"the file names no version of ONNX's operators; {version} is taken, the newest they fit"
    return (Finding("missing_opset", text),)


class _Use(NamedTuple):
    """How a node uses its operator: what versions differ in."""

    op_type: str
    num_inputs: int
    num_outputs: int
    attributes: frozenset[str]

    def fits(self, version: int) -> bool:
        """Whether the operator can be used so; one that the version lacks is a later one's."""
        try:
            schema = onnx.defs.get_schema(self.op_type, version)
        except onnx.defs.SchemaError:
            return True
        return (
            schema.min_input <= self.num_inputs <= schema.max_input
            and schema.min_output <= self.num_outputs <= schema.max_output
            and self.attributes <= schema.attributes.keys()
        )


def _use(node: onnx.NodeProto) -> _Use:
    names = frozenset(attribute.name for attribute in node.attribute)
    return _Use(node.op_type, len(node.input), len(node.output), names)


def _newest_fitting(uses: Collection[_Use]) -> int:
    """The newest version under which all nodes are whole; the newest of all where there is none.

    An axis that was an attribute and is an input now tells an old file.
    """
    newest = onnx.defs.onnx_opset_version()
    versions = range(newest, 0, -1)
    return next((v for v in versions if all(use.fits(v) for use in uses)), newest)


_NEXT_STEP = "; export the model again"
_LONGEST_CYCLE = 8
"""Nodes of a cycle that its message names."""


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

    ``model`` has been through ``with_functions_inlined``: its functions and calls are in order, and
    no call leaves an attribute to its default.
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
    """Whether onnx's inference, which its converter runs, would not return from a function."""
    bodies = [(function.node, function.opset_import) for function in model.functions]
    # The converter may run it at either version, and the older has fewer limits.
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
    # Callees first: a body's size is known when its callers add it, so that the count takes as long
    # as the file although the expansion may be exponential.
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


def refuse_partial_nodes(columns: Columns, version: int) -> None:
    """Check the nodes of a graph, those inside them included, at a version of ONNX's operators.

    The graph belongs to a model that is normalized and whose functions are written out.

    :raises GraphError: a node lacks an input, an output or a graph that its operator needs.
    """
    rows = zip(columns.nodes, columns.op_types, columns.inputs, columns.outputs, strict=True)
    for index, (node, op_type, inputs, outputs) in enumerate(rows):
        _refuse_unless_whole(node, "" if node.domain else op_type, (inputs, outputs), version)
        for _, inner in columns.bodies.get(index, ()):
            refuse_partial_nodes(columns_of(inner), version)


@dataclass(frozen=True, slots=True)
class _Least:
    inputs: int = 0
    outputs: int = 0
    single: tuple[str, ...] = ()
    """The inputs in order: the name of each that cannot be left out, ``""`` for any other."""
    graphs: frozenset[str] = frozenset()
    """Attributes that hold the graphs it runs."""


def _refuse_unless_whole(
    node: onnx.NodeProto,
    operator: str,
    operands: tuple[Sequence[str], Sequence[str]],
    version: int,
) -> None:
    """Check one node of ONNX's own against the least that its operator has at a version.

    ``operator`` is the node's, ``""`` where it is not ONNX's own; ``operands`` are its inputs and
    its outputs.

    :raises GraphError: the node has less; it names the node and what it lacks.
    """
    inputs, outputs = operands
    least = _least(operator, version)
    # Few nodes are refused: what does it is not called for each.
    if len(inputs) < least.inputs or len(outputs) < least.outputs:
        _refuse_fewer(node, "inputs", len(inputs), least.inputs)
        _refuse_fewer(node, "outputs", len(outputs), least.outputs)
    if "" in inputs:
        _refuse_left_out(node, least)
    if least.graphs:
        _refuse_missing_graphs(node, least)


def _refuse_left_out(node: onnx.NodeProto, least: _Least) -> None:
    for name, slot in zip(node.input, least.single, strict=False):
        if slot and not name:
            message = (
                f"node {node_label(node)} leaves out {slot}, which {node.op_type} needs; "
                "export the model again"
            )
            raise GraphError(message)


def _refuse_missing_graphs(node: onnx.NodeProto, least: _Least) -> None:
    inside = dict(subgraphs(node))
    for name in sorted(least.graphs - inside.keys()):
        message = (
            f"node {node_label(node)} has no {name}, the graph that {node.op_type} runs; "
            "export the model again"
        )
        raise GraphError(message)
    if onnx_op(node) == "Loop" and "body" in inside:
        body, num_carried = inside["body"], max(len(node.input) - 2, 0)
        for side, values in (("inputs", body.input), ("outputs", body.output)):
            _refuse_fewer(node, f"body {side}", len(values), num_carried + _AROUND_CARRIED[side])


def _refuse_fewer(node: onnx.NodeProto, what: str, count: int, least: int) -> None:
    if count < least:
        message = (
            f"node {node_label(node)} has {count} {what}, and {node.op_type} needs {least}; "
            "export the model again"
        )
        raise GraphError(message)


@cache
def _least(op_type: str, version: int) -> _Least:
    """The least that an operator has; nothing where the operator is not known.

    Where the version has no such operator its newest form is taken: the node means that one.
    """
    schema = _schema(op_type, version) or _schema(op_type, onnx.defs.onnx_opset_version())
    if schema is None:
        return _Least()
    graphs = frozenset(
        name
        for name, attribute in schema.attributes.items()
        if attribute.required and attribute.type == onnx.defs.OpSchema.AttrType.GRAPH
    )
    needed = onnx.defs.OpSchema.FormalParameterOption.Single
    single = tuple(slot.name if slot.option == needed else "" for slot in schema.inputs)
    return _Least(schema.min_input, schema.min_output, single, graphs)


def _schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return None


def sort_nodes(graph: onnx.GraphProto, outer: Collection[str] = frozenset()) -> bool:
    """Put the nodes of a graph and its subgraphs into an order that can run, in place.

    ``outer`` holds the names that an enclosing graph offers. True if any node had to move.

    :raises GraphError: a cycle, or a tensor that is defined twice or not at all; it names both the
        tensor and the node.
    """
    return sort_columns(graph, columns_of(graph), outer)


def sort_columns(
    graph: onnx.GraphProto, columns: Columns, outer: Collection[str] = frozenset()
) -> bool:
    """The same of a graph whose columns are at hand: they are of the order before."""
    steps = _steps(columns)
    given = input_and_initializer_names(graph)
    producer = _producers(steps, given)
    _refuse_undefined(graph, steps, (producer, given, outer))
    order = _running_order(steps, producer)
    moved = order != list(range(len(order)))
    if moved:
        nodes = [steps.nodes[index] for index in order]
        del graph.node[:]
        graph.node.extend(nodes)
    bodies = columns_of(graph).bodies if moved else columns.bodies
    offered = {*outer, *given, *producer} if bodies else ()
    for _, inner in (body for index in sorted(bodies) for body in bodies[index]):
        moved |= sort_nodes(inner, offered)
    return moved


def _steps(columns: Columns) -> Columns:
    """The columns with what is read inside a node among what it reads."""
    if not columns.bodies:
        return columns
    reads = list(columns.inputs)
    for index, bodies in columns.bodies.items():
        inside = (name for _, inner in bodies for name in sorted(outer_reads(inner)))
        reads[index] = [*reads[index], *inside]
    return replace(columns, inputs=reads)


def _producers(steps: Columns, given: set[str]) -> dict[str, int]:
    """Map each tensor to the node that makes it; one that is made twice is refused."""
    producer: dict[str, int] = {}
    for index, names in enumerate(steps.outputs):
        for name in names:
            if name and (name in producer or name in given):
                before = name in producer
                first = (
                    f"node {node_label(steps.nodes[producer[name]])}"
                    if before
                    else "an input or initializer"
                )
                node = node_label(steps.nodes[index])
                message = f"tensor {name!r} is defined twice: by {first} and by node {node}"
                raise GraphError(message + _NEXT_STEP)
            if name:
                producer[name] = index
    return producer


def _refuse_undefined(
    graph: onnx.GraphProto, steps: Columns, known: Sequence[Collection[str]]
) -> None:
    undefined = {name for names in steps.inputs for name in names}.difference({""}, *known)
    if undefined:
        reads = ((index, name) for index, names in enumerate(steps.inputs) for name in names)
        index, name = next(read for read in reads if read[1] in undefined)
        message = (
            f"node {node_label(steps.nodes[index])} reads tensor {name!r}, which nothing defines"
        )
        raise GraphError(message + _NEXT_STEP)
    for value in graph.output:
        if not any(value.name in names for names in known):
            message = f"graph output {value.name!r} is a tensor that no node defines"
            raise GraphError(message + _NEXT_STEP)


def _running_order(steps: Columns, producer: dict[str, int]) -> list[int]:
    """Order the nodes so that each follows what it reads; the file's order where that runs."""
    if _runs_in_file_order(steps, producer):
        return list(range(len(steps.nodes)))
    # networkx takes as long to import as numpy, and most files stand in an order that runs.
    import networkx as nx

    edges: nx.DiGraph[int] = nx.DiGraph()
    edges.add_nodes_from(range(len(steps.nodes)))
    edges.add_edges_from(
        (producer[name], index)
        for index, names in enumerate(steps.inputs)
        for name in names
        if name in producer
    )
    try:
        return list(nx.lexicographical_topological_sort(edges))
    except nx.NetworkXUnfeasible:
        raise GraphError(_cycle_text(edges, steps)) from None


def _runs_in_file_order(steps: Columns, producer: dict[str, int]) -> bool:
    """Whether every tensor is made before it is read; what no node makes is always there."""
    for index, names in enumerate(steps.inputs):
        for name in names:
            if producer.get(name, -1) >= index:
                return False
    return True


def _cycle_text(edges: "nx.DiGraph[int]", steps: Columns) -> str:
    """Name the nodes of one cycle and the tensor that closes it."""
    import networkx as nx

    cycle = [edge[0] for edge in nx.find_cycle(edges)]
    written = {*steps.outputs[cycle[-1]]} - {""}
    closing = next(name for name in steps.inputs[cycle[0]] if name in written)
    labels = [node_label(steps.nodes[index]) for index in cycle]
    if len(labels) > _LONGEST_CYCLE:
        labels[_LONGEST_CYCLE - 1 : -1] = [f"... ({len(labels) - _LONGEST_CYCLE} more)"]
    path = " -> ".join((*labels, labels[0]))
    return f"the graph has a cycle, closed by tensor {closing!r}: {path}{_NEXT_STEP}"
