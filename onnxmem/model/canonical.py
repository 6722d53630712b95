"""The canonical form of a model: complete nodes, no local functions, topological order.

In this order: ``normalized`` writes the default domain as ``""`` and imports it if the file does
not; ``with_functions_inlined`` inlines local functions, after it has checked the resulting size (2
kB can call functions of functions ten deep and expand to 10^10 nodes); ``refuse_partial_nodes``
checks that no node lacks an input, an output or a subgraph that its operator needs;
``sort_columns`` sorts the nodes.
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
    model_nodes,
    node_label,
    nodes_in,
    onnx_op,
    opset_versions,
)
from onnxmem.units import plural

if TYPE_CHECKING:
    import networkx as nx


_AROUND_CARRIED = {"input": 2, "output": 1}
"""What the body of a Loop has besides carried values: iteration and condition in, condition out."""


_ALIAS = "ai.onnx"
"""Another name of the default domain, ``""``."""

_LARGEST_VERSION = 2**31 - 1
_STFT = "STFT"


def normalized(model: onnx.ModelProto, columns: Columns) -> tuple[Finding, ...]:
    """Write the default domain as ``""`` and import it if the model does not, in place.

    ``columns`` are those of the model's graph.

    :raises GraphError: the model has too many nodes.
    """
    nodes = list(nodes_in(columns.nodes)) if columns.bodies else columns.nodes
    if len(nodes) > BOUNDS.nodes:
        message = (
            f"the model has {len(nodes):,} nodes, over the limit of {BOUNDS.nodes:,}; raise "
            f"{variable('nodes')}"
        )
        raise GraphError(message)
    for entry in (*model.opset_import, *(e for f in model.functions for e in f.opset_import)):
        entry.domain = _canonical(entry.domain)
        # onnx stores versions in a C int and would overflow.
        entry.version = min(max(entry.version, -_LARGEST_VERSION), _LARGEST_VERSION)
    for body in (nodes, *(nodes_in(function.node) for function in model.functions)):
        for node in [node for node in body if node.domain == _ALIAS or node.op_type == _STFT]:
            node.domain = _canonical(node.domain)
            if node.op_type == _STFT and not node.domain:
                _write_default(node)
    return _with_version(model)


def _write_default(node: onnx.NodeProto) -> None:
    """Write the default of ``onesided``, which onnx's shape inference does not apply."""
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
    text = f"the file has no opset version; {version} is assumed, the newest that its nodes fit"
    return (Finding("missing_opset", text),)


class _Use(NamedTuple):
    """The properties of a node by which versions of its operator can be told apart."""

    op_type: str
    num_inputs: int
    num_outputs: int
    attributes: frozenset[str]

    def fits(self, version: int) -> bool:
        """Whether a version allows this; an operator that it lacks belongs to a later version."""
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
    """The newest version that all nodes fit, or the newest of all if none does.

    Old files are recognized by attributes that later versions turned into inputs.
    """
    newest = onnx.defs.onnx_opset_version()
    versions = range(newest, 0, -1)
    return next((v for v in versions if all(use.fits(v) for use in uses)), newest)


_NEXT_STEP = "; export the model again"
_LONGEST_CYCLE = 8
"""How many nodes of a cycle a message names."""


_INLINER_FAULTS: Final = (
    *(RuntimeError, ValueError, LookupError, ArithmeticError),  # from C++ exceptions
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
    onnx.version_converter.ConvertError,
)
"""The exceptions of the inliner and of its version converter: ``register_exception`` in onnx's
``cpp2py_export.cc``, and those to which pybind11 converts ``std::exception``."""

_FEW_NODES: Final = 5_000
"""So many nodes are always allowed, however small the file is: they take seconds."""

_Key = tuple[str, str, str]

_COUNTED: Final = 10**18
"""Counts saturate here: nested calls can multiply to numbers of many thousand digits."""


def with_functions_inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace every call of a local function by the nodes of the function.

    A function whose opset versions cannot be converted to those of the model stays a call.

    :raises GraphError: recursive functions, too many nodes, a call that does not fit its function,
        or an invalid body.
    """
    if not model.functions:
        return model
    # In this order: nothing is expanded before its size is known; then what the inliner takes for
    # granted (sorted bodies, complete calls, imported domains) is made true.
    _refuse_to_grow(expanded_num_nodes(model), _num_written(model))
    _sort_bodies(model)
    _complete_calls(model)
    _import_domains_of_functions(model)
    if _is_fatal_to_convert(model):
        return _inlined_as_they_are(model)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except _INLINER_FAULTS:
        # The version converter knows few domains; functions that need no conversion are inlined.
        return _inlined_as_they_are(model)


def can_be_inlined_as_they_are(model: onnx.ModelProto) -> bool:
    """Whether nodes are sorted, and functions have the opset versions of the model.

    ``model`` has been through ``with_functions_inlined``, which sorts functions and completes the
    attributes of calls.
    """
    versions = opset_versions(model)
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
                f"the local functions expand to {num_nodes:,} nodes, over the limit of {most:,} "
                f"({variable(bound)}); export the model with fewer calls"
            )
            raise GraphError(message)


def _num_written(model: onnx.ModelProto) -> int:
    return sum(1 for _ in model_nodes(model))


def _is_fatal_to_convert(model: onnx.ModelProto) -> bool:
    """Whether onnx's shape inference, which the converter runs, would crash or hang."""
    bodies = [(function.node, function.opset_import) for function in model.functions]
    # The converter may run it at either version, and the older one has fewer checks.
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
        message = f"the local functions cannot be inlined: {reason}; export the model again"
        raise GraphError(message) from fault


def expanded_num_nodes(model: onnx.ModelProto) -> int:
    """The number of nodes after inlining, subgraphs included."""
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
        message = f"local functions are recursive: {cycle}; export the model again"
        raise GraphError(message) from None
    # Callees first, so that the size of a body is known when its callers add it: the count is
    # linear in the file although the expansion may be exponential.
    sizes: dict[_Key, int] = {}
    for key in callees_first:
        sizes[key] = _counted(bodies[key], sizes)
    return _counted(model.graph.node, sizes)


def _counted(nodes: Iterable[onnx.NodeProto], sizes: Mapping[_Key, int]) -> int:
    return min(sum(sizes.get(_call_key(node), 1) for node in nodes_in(nodes)), _COUNTED)


def _sort_bodies(model: onnx.ModelProto) -> None:
    """Sort the nodes of functions: the inliner renames only tensors that it has seen before."""
    for function in model.functions:
        body = onnx.GraphProto(node=function.node)
        for name in function.input:
            body.input.add(name=name)
        if sort_nodes(body):
            del function.node[:]
            function.node.extend(body.node)


def _complete_calls(model: onnx.ModelProto) -> None:
    """Add the default attributes of functions to their calls, because the inliner does not."""
    functions = {_function_key(function): function for function in model.functions}
    for node in model_nodes(model):
        if function := functions.get(_call_key(node)):
            _refuse_too_many("input", node, node.input, function.input)
            _refuse_too_many("output", node, node.output, function.output)
            present = {attribute.name for attribute in node.attribute}
            defaults = function.attribute_proto
            node.attribute.extend(entry for entry in defaults if entry.name not in present)


def _refuse_too_many(
    noun: str, node: onnx.NodeProto, names: Sequence[str], declared: Sequence[str]
) -> None:
    if len(names) > len(declared):
        message = (
            f"node {node_label(node)} has {plural(len(names), noun)}, but the local function "
            f"{node.domain}::{node.op_type} has {len(declared)}; export the model again"
        )
        raise GraphError(message)


def _import_domains_of_functions(model: onnx.ModelProto) -> None:
    """Import the domains of functions into the model, which will contain their nodes."""
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
    """Check the nodes of a graph and its subgraphs at a version of the default opset.

    The graph belongs to a normalized model without local functions.

    :raises GraphError: a node lacks an input, an output or a subgraph that its operator needs.
    """
    rows = zip(columns.nodes, columns.op_types, columns.inputs, columns.outputs, strict=True)
    for index, (node, op_type, inputs, outputs) in enumerate(rows):
        bodies = columns.bodies.get(index, ())
        least = _least("" if node.domain else op_type, version)
        # The comparison is repeated here because a call for each node of a large graph is slow.
        if len(inputs) < least.inputs or len(outputs) < least.outputs:
            _refuse_fewer(node, "input", len(inputs), least.inputs)
            _refuse_fewer(node, "output", len(outputs), least.outputs)
        if "" in inputs:
            _refuse_left_out(node, least)
        if least.graphs:
            inside = {body.attribute: body.graph for body in bodies}
            _refuse_missing_graphs(node, inside, least)
        for body in bodies:
            refuse_partial_nodes(body.columns, version)


@dataclass(frozen=True, slots=True)
class _Least:
    inputs: int = 0
    outputs: int = 0
    single: tuple[str, ...] = ()
    """The inputs in order: the name of each that is required, ``""`` for optional ones."""
    graphs: frozenset[str] = frozenset()
    """Required attributes that are graphs."""


def _refuse_left_out(node: onnx.NodeProto, least: _Least) -> None:
    for name, slot in zip(node.input, least.single, strict=False):
        if slot and not name:
            message = (
                f"node {node_label(node)} has no input {slot}, which {node.op_type} requires; "
                "export the model again"
            )
            raise GraphError(message)


def _refuse_missing_graphs(
    node: onnx.NodeProto, inside: Mapping[str, onnx.GraphProto], least: _Least
) -> None:
    for name in sorted(least.graphs - inside.keys()):
        message = (
            f"node {node_label(node)} has no subgraph {name}, which {node.op_type} requires; "
            "export the model again"
        )
        raise GraphError(message)
    if onnx_op(node) == "Loop" and "body" in inside:
        body, num_carried = inside["body"], max(len(node.input) - 2, 0)
        for side, values in (("input", body.input), ("output", body.output)):
            _refuse_fewer(node, f"body {side}", len(values), num_carried + _AROUND_CARRIED[side])


def _refuse_fewer(node: onnx.NodeProto, noun: str, count: int, least: int) -> None:
    if count < least:
        message = (
            f"node {node_label(node)} has {plural(count, noun)}, but {node.op_type} requires "
            f"{least}; export the model again"
        )
        raise GraphError(message)


@cache
def _least(op_type: str, version: int) -> _Least:
    """What an operator requires; nothing for an unknown operator.

    If the version does not have the operator, its newest definition is used.
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


def sort_nodes(graph: onnx.GraphProto) -> bool:
    """Sort the nodes of a graph and its subgraphs topologically, in place; true if any moved.

    :raises GraphError: a cycle, or a tensor that is defined twice or never; the message names the
        tensor and the node.
    """
    return sort_columns(graph, columns_of(graph))


def sort_columns(graph: onnx.GraphProto, columns: Columns) -> bool:
    """The same for a graph whose columns are known; they keep the order of before."""
    moved, steps, undefined = _sorted(graph, columns)
    if undefined:
        _refuse_undefined(graph, steps, undefined)
    return moved


def _sorted(graph: onnx.GraphProto, columns: Columns) -> tuple[bool, Columns, set[str]]:
    """Sort a graph: whether any node moved, its steps, and the names that it does not define."""
    # Each subgraph is sorted once, and what it reads from outside becomes inputs of its node. So
    # the outermost graph knows every name that none defines.
    moved, steps = False, columns
    if columns.bodies:
        reads = list(columns.inputs)
        for index, bodies in columns.bodies.items():
            for body in bodies:
                has_moved, _, outside = _sorted(body.graph, body.columns)
                moved |= has_moved
                reads[index] = (*reads[index], *sorted(outside))
        steps = replace(columns, inputs=reads)
    defined = input_and_initializer_names(graph)
    producer = _producers(steps, defined)
    order = _running_order(steps, producer)
    if order != list(range(len(order))):
        moved, nodes = True, [steps.nodes[index] for index in order]
        del graph.node[:]
        graph.node.extend(nodes)
    read = {name for names in steps.inputs for name in names}
    read.update(value.name for value in graph.output)
    return moved, steps, read.difference(defined, producer, ("",))


def _producers(steps: Columns, defined: set[str]) -> dict[str, int]:
    """Map each tensor to its producer; a tensor with two is an error."""
    # ONNX is in static single assignment form: everything behind this (order, lifetimes, shapes)
    # takes a name for one value.
    producer: dict[str, int] = {}
    for index, names in enumerate(steps.outputs):
        for name in names:
            if name and (name in producer or name in defined):
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


def _refuse_undefined(graph: onnx.GraphProto, steps: Columns, undefined: set[str]) -> None:
    reads = ((index, name) for index, names in enumerate(steps.inputs) for name in names)
    for index, name in reads:
        if name in undefined:
            message = f"node {node_label(steps.nodes[index])} reads the undefined tensor {name!r}"
            raise GraphError(message + _NEXT_STEP)
    name = next(value.name for value in graph.output if value.name in undefined)
    message = f"graph output {name!r} is an undefined tensor"
    raise GraphError(message + _NEXT_STEP)


def _running_order(steps: Columns, producer: dict[str, int]) -> list[int]:
    """A topological order of the nodes: that of the file if it is one."""
    if _runs_in_file_order(steps, producer):
        return list(range(len(steps.nodes)))
    # networkx takes as long to import as numpy, and most files are sorted. The lexicographical
    # order keeps nodes that do not depend on each other in the order of the file.
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
    """Whether every tensor is produced before it is read; others exist from the start."""
    for index, names in enumerate(steps.inputs):
        for name in names:
            if producer.get(name, -1) >= index:
                return False
    return True


def _cycle_text(edges: "nx.DiGraph[int]", steps: Columns) -> str:
    """A message with the nodes of one cycle and the tensor that closes it."""
    import networkx as nx

    # The last node of the list writes what the first one reads: that tensor closes the cycle.
    cycle = [edge[0] for edge in nx.find_cycle(edges)]
    written = {*steps.outputs[cycle[-1]]} - {""}
    closing = next(name for name in steps.inputs[cycle[0]] if name in written)
    labels = [node_label(steps.nodes[index]) for index in cycle]
    if len(labels) > _LONGEST_CYCLE:
        labels[_LONGEST_CYCLE - 1 : -1] = [f"... ({len(labels) - _LONGEST_CYCLE} more)"]
    path = " -> ".join((*labels, labels[0]))
    return f"the graph has a cycle, closed by tensor {closing!r}: {path}{_NEXT_STEP}"
