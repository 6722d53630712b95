"""A graph that is about to run: its plan, and the shapes of this run."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import xor
from typing import cast

from onnxmem.model import Graph, Tensor
from onnxmem.runtimes.onnxruntime.allocation.course import Course
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Step

PatternKey = tuple[int, int]
"""Identity of a plan, and the exclusive or of the dims that its graph is fed."""


@dataclass(slots=True)
class Opened:
    """A graph that is about to run."""

    plan: Plan
    graph: Graph
    """The plan's, with the shapes of this run."""
    course: Course
    outer_reads: tuple[str, ...] = ()
    """Of graphs around it."""
    handed_out: dict[str, int] = field(default_factory=dict)
    """Bytes of outputs that a branch of an If knows better than the If."""

    @property
    def is_changed(self) -> bool:
        """Whether any shape is of this run alone."""
        return self.graph is not self.plan.graph

    @property
    def pattern_key(self) -> PatternKey:
        """What the pattern of this run is found again by."""
        fed = (*self.plan.graph.inputs, *self.outer_reads)
        dims = (dim for name in fed for dim in self.graph.tensors[name].shape or ())
        return id(self.plan), reduce(xor, (dim for dim in dims if dim is not None), 0)

    def inside(self, step: Step, place: int, course: Course) -> "Opened":
        """A subgraph of one of its nodes."""
        plan = step.bodies[place]
        graph = _in_course(plan.graph, course, self.graph.tensors)
        return Opened(plan, graph, course, step.node.outer_reads)


def opened(plan: Plan, course: Course) -> Opened:
    """The main graph."""
    return Opened(plan, _in_course(plan.graph, course), course)


def _in_course(graph: Graph, course: Course, outer: Mapping[str, Tensor] | None = None) -> Graph:
    """A graph with the shapes of one run: the graph itself where none is of that run alone.

    ``outer`` are the tensors as the run of the graph around it has them.
    """
    tensors = graph.tensors if outer is None else outer
    if course.kinds:
        changed = {
            name: replace(tensors[name], dtype=kind.dtype, shape=kind.shape)
            for name, kind in course.kinds.items()
        }
        tensors = ChainMap(changed, cast("MutableMapping[str, Tensor]", tensors))
    return graph if tensors is graph.tensors else replace(graph, tensors=tensors)
