"""Shapes that follow from what small inputs hold: a Reshape's target, the k of a TopK.

Without the values such shapes are open. They are inferred anew with them, and only where there is
something open to find. A condition that follows from them tells which branch of an If runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from onnxmem.errors import Finding
from onnxmem.model.branches import without_idle_branches
from onnxmem.model.building import BoundModel, Prepared
from onnxmem.model.constants import Array
from onnxmem.model.given_values import GivenValueError, fitted
from onnxmem.model.graph import Graph, Node
from onnxmem.model.reading import read_graph
from onnxmem.model.shapes.inference import with_shapes
from onnxmem.model.shapes.propagation import propagate
from onnxmem.settings import Values


def with_given_values(
    prepared: Prepared, bound: BoundModel, values: Mapping[str, Values]
) -> BoundModel:
    """Infer the open shapes of a model with the values of its inputs, and leave idle branches out.

    A value that does not fit its input, as at another batch, is left out with a finding; and all
    are where a Reshape would make more elements of fewer, or the reverse: a target is of one batch.
    """
    has_branches = any(node.onnx_op == "If" for node in bound.graph.all_nodes())
    is_open = _has_open_shapes(bound.graph)
    if not values or not (is_open or has_branches):
        return bound
    known: dict[str, Array] = {}
    findings = tuple(_fit(bound.graph, values, known))
    shaped = with_shapes(prepared.proto, bound.binding, known)
    graph = read_graph(shaped.proto, shaped.assumed)
    unfit = next(_unfit(bound.graph, graph), None)
    if unfit is not None:
        return replace(bound, findings=(*bound.findings, *findings, unfit))
    if has_branches:
        graph = without_idle_branches(graph, propagate(shaped.proto, known).values)
    return replace(
        bound,
        graph=graph,
        follows_batch=bound.follows_batch and shaped.follows_batch,
        findings=(*prepared.findings, *bound.binding.findings, *shaped.findings, *findings),
    )


def _has_open_shapes(graph: Graph) -> bool:
    """Whether a shape is not known, or on the file's word alone."""
    return any(each.num_elements is None or each.is_assumed for each in graph.tensors.values())


def _unfit(bound: Graph, given: Graph) -> Iterator[Finding]:
    """A finding for each Reshape whose elements are not its input's, where values say so."""
    for node in given.nodes:
        if node.onnx_op == "Reshape" and node.writes:
            source, made = _counts(given, node)
            is_unfit = source is not None and made is not None and source != made
            if is_unfit and _counts(bound, node) != (source, made):
                message = f"Reshape {node.name!r} cannot make {made:,} elements of {source:,}"
                yield Finding("unused_value", f"{message}: the values given are left out")


def _counts(graph: Graph, node: Node) -> tuple[int | None, int | None]:
    """Elements of what a node is given first and of what it makes first."""
    source, made = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
    return source.num_elements, made.num_elements


def _fit(graph: Graph, values: Mapping[str, Values], known: dict[str, Array]) -> Iterator[Finding]:
    """Enter the arrays of the inputs; a finding for each value that is none of its input."""
    for name in graph.inputs:
        if name in values:
            try:
                known[name] = fitted(graph.tensors[name], values[name])
            except GivenValueError as fault:
                yield Finding("unused_value", str(fault))
