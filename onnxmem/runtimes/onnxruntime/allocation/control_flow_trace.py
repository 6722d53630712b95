"""The control flow of one run: branches, iterations, and the shapes that follow from them.

onnxruntime plans without the values of a run, so a plan has every branch and no trip counts. A
trace has the branch that each If takes, the number of iterations of each Loop, and the shapes of
each iteration. It is a tree, because a body decides anew each time it runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Final

from onnxmem.model.graph import DType, Graph
from onnxmem.ops.spec import Dims


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor in one run."""

    dtype: DType | None
    shape: Dims | None
    """``None``: unknown."""


@dataclass(frozen=True, slots=True)
class BranchTrace:
    """The branch that an If takes."""

    index: int | None
    """Of the subgraph that runs; ``None``: unknown before the run."""
    traces: tuple["ControlFlowTrace", ...]
    """By the index of the subgraph; empty for one that does not run."""

    def trace_of(self, index: int) -> "ControlFlowTrace":
        """The control flow of a subgraph, if it runs."""
        return self.traces[index] if index < len(self.traces) else EMPTY_TRACE


@dataclass(frozen=True, slots=True)
class LoopTrace:
    """The iterations of a Loop or a Scan."""

    num_iterations: int | None
    """``None``: unknown before the run, and without a known bound."""
    traces: tuple["ControlFlowTrace", ...]
    """Of the first iterations; all later ones equal the last of these."""
    is_certain: bool = True
    """False: ``num_iterations`` is a bound, for the run's data may end the loop earlier."""

    @property
    def is_plain(self) -> bool:
        """Whether no iteration has branches or loops."""
        return not any(each.branches or each.loops for each in self.traces)

    def trace_of(self, iteration: int) -> "ControlFlowTrace":
        """The control flow of an iteration, counted from 0."""
        return self.traces[min(iteration, len(self.traces) - 1)] if self.traces else EMPTY_TRACE


@dataclass(frozen=True, slots=True)
class ControlFlowTrace:
    """One run of one graph; everything that it omits is as in the graph."""

    types: Mapping[str, TensorType] = field(default_factory=dict)
    """Tensors whose type in this run differs from that in the graph."""
    branches: Mapping[str, BranchTrace] = field(default_factory=dict)
    """By the name of the If."""
    loops: Mapping[str, LoopTrace] = field(default_factory=dict)
    """By the name of the Loop or Scan."""

    def nested(self) -> Iterator["ControlFlowTrace"]:
        """The trace itself and those of all bodies in it."""
        yield self
        inner = [trace for branch in self.branches.values() for trace in branch.traces]
        inner += [trace for loop in self.loops.values() for trace in loop.traces]
        for trace in inner:
            yield from trace.nested()


def without_shapes(trace: ControlFlowTrace) -> ControlFlowTrace:
    """The trace where the shapes that differ from those in the graph are unknown: they may follow
    from more iterations than a run has.
    """
    return ControlFlowTrace(
        {name: replace(each, shape=None) for name, each in trace.types.items()},
        {
            name: replace(each, traces=tuple(map(without_shapes, each.traces)))
            for name, each in trace.branches.items()
        },
        {
            name: replace(each, traces=tuple(map(without_shapes, each.traces)))
            for name, each in trace.loops.items()
        },
    )


EMPTY_TRACE: Final = ControlFlowTrace()
"""Nothing is known beyond the graph."""


def possible_traces(
    trace: ControlFlowTrace, at_most: int, *, in_loops: bool = False
) -> tuple[ControlFlowTrace, ...] | None:
    """The traces with each combination of the branches that the data decide, also of Ifs in
    branches; ``None``: they are more than ``at_most``.

    Ifs in the bodies of loops are left undecided, because each iteration may take another branch;
    with ``in_loops``, they take the same branch in all iterations of a loop that has one trace.
    """
    branches: list[list[BranchTrace]] = []
    for branch in trace.branches.values():
        branches.append([])
        for index in range(len(branch.traces)) if branch.index is None else (branch.index,):
            inner = possible_traces(branch.trace_of(index), at_most, in_loops=in_loops)
            for each in inner or ():
                # Subgraphs that do not run have an empty trace.
                traces = [EMPTY_TRACE] * max(len(branch.traces), index + 1)
                traces[index] = each
                branches[-1].append(BranchTrace(index, tuple(traces)))
            if inner is None:
                return None
    loops: list[list[LoopTrace]] = []
    for loop in trace.loops.values():
        found = possible_traces(loop.trace_of(0), at_most, in_loops=True) if in_loops else ()
        if found is None:
            return None
        is_one = in_loops and len(loop.traces) == 1
        loops.append([replace(loop, traces=(each,)) for each in found] if is_one else [loop])
    # Counted before any is made, because the number grows exponentially with the Ifs.
    counts = [*(len(each) for each in branches), *(len(each) for each in loops)]
    if prod(counts) > at_most:
        return None
    return tuple(
        replace(
            trace,
            branches=dict(zip(trace.branches, chosen, strict=True)),
            loops=dict(zip(trace.loops, repeated, strict=True)),
        )
        for chosen, repeated in product(product(*branches), product(*loops))
    )


def covering_traces(trace: ControlFlowTrace) -> tuple[ControlFlowTrace, ...]:
    """Few traces in which each branch of each undecided If runs in one at least, in all iterations
    of a loop that has one trace; the Ifs of other loops are left undecided.
    """
    branches: list[list[BranchTrace]] = []
    for branch in trace.branches.values():
        branches.append([])
        for index in range(len(branch.traces)) if branch.index is None else (branch.index,):
            for each in covering_traces(branch.trace_of(index)):
                traces = [EMPTY_TRACE] * max(len(branch.traces), index + 1)
                traces[index] = each
                branches[-1].append(BranchTrace(index, tuple(traces)))
    loops = [
        [replace(loop, traces=(each,)) for each in covering_traces(loop.traces[0])]
        if len(loop.traces) == 1
        else [loop]
        for loop in trace.loops.values()
    ]
    most = max((1, *map(len, branches), *map(len, loops)))
    # The nth trace has the nth of each, and the last one of those that have fewer.
    return tuple(
        replace(
            trace,
            branches={
                name: each[min(number, len(each) - 1)]
                for name, each in zip(trace.branches, branches, strict=True)
            },
            loops={
                name: each[min(number, len(each) - 1)]
                for name, each in zip(trace.loops, loops, strict=True)
            },
        )
        for number in range(most)
    )


def at_bounds(
    trace: ControlFlowTrace, most: Mapping[str, int | None], bodies: Mapping[str, Graph]
) -> ControlFlowTrace:
    """The trace where a Loop that the data may end earlier runs up to its bound, each iteration
    with the shapes of the graph; also of Loops in branches.

    ``most`` has the bounds that follow from intervals, by the name of the Loop. A Loop with
    branches or loops in its body is left as it is unless it is one of ``bodies``, whose shapes are
    those of every iteration: what is decided in those that were simulated may differ in others, so
    all of it is undecided.
    """
    branches = {
        name: replace(one, traces=tuple(at_bounds(each, most, bodies) for each in one.traces))
        for name, one in trace.branches.items()
    }
    loops = {}
    for name, one in trace.loops.items():
        known = [each for each in (one.num_iterations, most.get(name)) if each is not None]
        is_certain = one.is_certain and one.num_iterations is not None
        if known and one.is_plain and not is_certain:
            loops[name] = LoopTrace(min(known), ())
        elif known and name in bodies and (not is_certain or _is_undecided(one)):
            number = one.num_iterations if is_certain else min(known)
            loops[name] = LoopTrace(number, (_any_iteration(bodies[name], most),))
    return replace(trace, branches=branches, loops={**trace.loops, **loops})


def _is_undecided(loop: LoopTrace) -> bool:
    """Whether something in an iteration is unknown before the run."""
    return any(undecided(each).names() for each in loop.traces)


def _any_iteration(body: Graph, most: Mapping[str, int | None]) -> ControlFlowTrace:
    """The trace of a body of which no branch is decided, and each Loop runs up to its bound."""
    branches, loops = {}, {}
    for node in body.nodes:
        inner = tuple(_any_iteration(each, most) for _, each in node.subgraphs)
        if node.onnx_op == "If":
            branches[node.name] = BranchTrace(None, inner)
        elif inner:
            loops[node.name] = LoopTrace(most.get(node.name), inner)
    return ControlFlowTrace(branches=branches, loops=loops)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Names of nodes whose control flow is unknown before the run, in the order of execution."""

    branches: tuple[str, ...]
    """Ifs."""
    loops: tuple[str, ...]
    """Loops without a bound."""
    bounded_loops: tuple[str, ...]
    """Loops that may end before their bound."""

    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.branches, *self.loops, *self.bounded_loops)


def undecided(trace: ControlFlowTrace) -> Undecided:
    """The nodes of a trace whose control flow is unknown."""
    branches: dict[str, None] = {}
    loops: dict[str, None] = {}
    bounded: dict[str, None] = {}
    for each in trace.nested():
        branches.update((name, None) for name, one in each.branches.items() if one.index is None)
        loops.update((name, None) for name, one in each.loops.items() if one.num_iterations is None)
        bounded.update(
            (name, None)
            for name, one in each.loops.items()
            if one.num_iterations is not None and not one.is_certain
        )
    return Undecided(tuple(branches), tuple(loops), tuple(bounded))
