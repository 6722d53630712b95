"""What inference takes in each branch of an If, and by the iterations of a Loop, where the data of
a run decide which branch runs and how often.

At most, every other dim has its upper end and all other branches count as the larger one; at least,
unknown sizes have no bytes and the smaller ones count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from onnxmem.analysis.request import StageResults
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import Graph, Node
from onnxmem.model.intervals.walk import with_upper_dims
from onnxmem.program.sizes import Affine

_MOST_NODES: Final = 4
"""Ifs and Loops of a model that are looked into: each costs two to five analyses of the model, and
a model has one in each block.
"""
# Two points are always on a line: the third shows whether these bytes are.
_FIRST_COUNTS: Final = (1, 2, 3)
_FAR_COUNT: Final = 50
"""In place of the most iterations, where they are not bounded."""


@dataclass(frozen=True, slots=True)
class BranchBytes:
    """What inference takes if one branch runs; ``None``: a dim has no upper end."""

    branch: str
    """``then_branch`` or ``else_branch``."""
    total_bytes: int | None
    """At least."""
    total_upper_bytes: int | None


@dataclass(frozen=True, slots=True)
class DataBranches:
    """An If whose condition the data decide."""

    node: str
    branches: tuple[BranchBytes, ...]


@dataclass(frozen=True, slots=True)
class DataLoop:
    """A Loop whose number of iterations the data decide; bytes, ``None``: unknown."""

    node: str
    most: int | None
    """Iterations; ``None``: unbounded."""
    output_line: Affine | None
    """The bytes of its outputs by iterations, a line through ``counts``; ``None``: not a line."""
    counts: tuple[int, ...]
    """The iterations that were computed."""
    totals: Mapping[int, int | None]
    """What inference takes by iterations."""


def data_branches(results: StageResults) -> tuple[DataBranches, ...]:
    """The Ifs whose condition is unknown before a run."""
    graph = results.graph
    nodes = [node for node in graph.all_nodes() if node.onnx_op == "If" and len(node.subgraphs) > 1]
    return tuple(
        DataBranches(
            node.name,
            tuple(_branch(results, node.name, attribute) for attribute, _ in node.subgraphs),
        )
        for node in nodes[:_MOST_NODES]
    )


def _branch(results: StageResults, name: str, attribute: str) -> BranchBytes:
    graph = _with_branch(results.graph, name, attribute)
    found = results.with_graph(graph)
    at_most = found.at_most
    upper_bytes = None if at_most is None else at_most.total_bytes
    return BranchBytes(attribute, found.at_least.total_bytes, upper_bytes)


def _with_branch(graph: Graph, name: str, attribute: str) -> Graph:
    """The graph in which one If has only one of its branches."""
    nodes = []
    for node in graph.nodes:
        kept = tuple(
            (each, _with_branch(body, name, attribute))
            for each, body in node.subgraphs
            if node.name != name or each == attribute
        )
        nodes.append(replace(node, subgraphs=kept) if node.subgraphs else node)
    return replace(graph, nodes=tuple(nodes))


def data_loops(results: StageResults, observed: Mapping[str, int]) -> tuple[DataLoop, ...]:
    """The Loops whose number of iterations is unknown before a run.

    ``observed`` has the most of runs, by the name of the Loop: a figure is computed for it too.
    """
    most = {} if results.upper is None else results.upper.iterations
    names = [node.name for node in _counted(results.graph) if node.name in most]
    return tuple(
        _loop(results, name, most[name], observed.get(name)) for name in names[:_MOST_NODES]
    )


def _counted(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        if node.onnx_op == "Loop" and trip_count(graph, node) is None:
            yield node


def _loop(results: StageResults, name: str, most: int | None, seen: int | None) -> DataLoop:
    # Few counts near 0 show a line, and the last one shows that it holds to the end.
    last = _FAR_COUNT if most is None else most
    counts = sorted({*(each for each in _FIRST_COUNTS if each <= last), last})
    replayed = sorted({*counts, *(() if seen is None else (seen,))})
    outputs: dict[int, int | None] = {}
    totals: dict[int, int | None] = {}
    for count in replayed:
        limits = {**results.limits, f"{name}:iterations": (count, count)}
        upper = with_upper_dims(results.graph, results.prepared.proto, limits, results.values)
        if upper is None:
            continue
        found = results.with_graph(upper.graph)
        node = next(each for each in upper.graph.nodes if each.name == name)
        sizes = [upper.graph.tensors[each].size_bytes for each in node.writes]
        known = [size for size in sizes if size is not None]
        outputs[count] = sum(known) if len(known) == len(sizes) else None
        totals[count] = None if found.activations.unknown_tensors else found.total_bytes
    # A line through all counts, or none: the observed count adds a total, not a point.
    points = [(count, size) for count in counts if (size := outputs.get(count)) is not None]
    is_known = len(points) == len(counts) > 1
    line = Affine.through(points) if is_known else None
    return DataLoop(name, most, line, tuple(counts), totals)
