"""Runs of a plan: what each node asks the arena for, and what the arena makes of it.

Source: ``core/framework/sequential_executor.cc`` and ``core/providers/cpu/controlflow`` of
onnxruntime 1.31. A frame is one run of one graph; an If, a Loop or a Scan opens frames of its own
in the same arena.

* A kernel's scratch is asked for and given back within its node.
* An If's branch and a Scan's body write their outputs straight into the node's. Those whose shape
  is known at load are asked for ahead of the branch, others when it makes them (``if.cc``,
  ``scan_utils.cc``); a Scan's last states are always asked for ahead.
* A Loop holds a number and a condition for its body. What an iteration hands on stays until the
  next but one begins, what it puts out to be stacked stays to the end, where all is copied into the
  Loop's outputs (``loop.cc``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from onnxmem.model import Graph, Node
from onnxmem.model.trips import trip_count
from onnxmem.runtimes.onnxruntime.allocation.arena import Arena, Chunk
from onnxmem.runtimes.onnxruntime.allocation.buffers import Asking, Buffers, tensor_bytes
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Step
from onnxmem.runtimes.onnxruntime.scratch import Scratch

__all__ = ["Sample", "ScratchRule", "Session", "tensor_bytes"]

_MAX_TRIPS: Final = 64
"""Iterations that are replayed; further ones of a Loop add what is stacked, and nothing else."""
_MAX_PASSES: Final = 2
"""Passes of a kernel that are replayed; a third finds the arena as the second did."""
_NUMBER_BYTES, _CONDITION_BYTES = 8, 1
"""Of a Loop's body: the number of the iteration and whether it goes on."""

ScratchRule = Callable[[Graph, Node], Scratch]
Chunks = list[Chunk | None]


@dataclass(frozen=True, slots=True)
class Sample:
    """The arena when a node has ended: its outputs and inputs alive, its scratch gone."""

    node: Node
    requested_bytes: int
    in_use_bytes: int
    held_bytes: int
    scratch_bytes: int
    """Sum of the node's temporary requests."""


@dataclass(slots=True)
class Session:
    """A session that is loaded: its plan, its arena and the patterns learnt so far."""

    plan: Plan
    arena: Arena
    scratch: ScratchRule
    uses_pattern: bool = True
    """``enable_mem_pattern``."""
    branches: Mapping[str, int] = field(default_factory=dict)
    """By the name of an If: the place of the subgraph that runs, where it is known."""
    patterns: dict[int, PatternTrace] = field(default_factory=dict)
    """Of each graph that has run, by identity of its plan."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the tensors, as they come up."""

    def run(self) -> tuple[Sample, ...]:
        """Run the model once; its outputs are given back by the caller afterwards."""
        frame = self.open(self.plan)
        samples = tuple(frame.run())
        for chunk in frame.buffers.outputs.values():
            self.arena.free(chunk)
        return samples

    def open(self, plan: Plan, provided: Mapping[str, Asking] | None = None) -> "_Frame":
        """Begin a run of a graph."""
        learnt = self.patterns.get(id(plan))
        trace = PatternTrace() if self.uses_pattern and learnt is None else None
        buffers = Buffers(plan, self.arena, self.size_bytes, learnt, trace, provided or {})
        return _Frame(self, buffers)

    def size_bytes(self, graph: Graph, name: str) -> int:
        """Bytes of a tensor; 0 where they are unknown, which others count."""
        if name not in self.sizes:
            self.sizes[name] = tensor_bytes(graph, name) or 0
        return self.sizes[name]

    @property
    def pattern_bytes(self) -> int:
        """The main graph's block."""
        trace = self.patterns.get(id(self.plan))
        return trace.size_bytes if trace is not None else 0


@dataclass(slots=True)
class _Frame:
    """One run of one graph."""

    session: Session
    buffers: Buffers

    def run(self) -> Iterator[Sample]:
        """Run the nodes in order, those of subgraphs before their node has ended."""
        plan = self.buffers.plan
        for step in plan.steps:
            yield from self._step(step)
        self.buffers.close()
        if self.buffers.trace is not None:
            self.session.patterns[id(plan)] = self.buffers.trace

    def _step(self, step: Step) -> Iterator[Sample]:
        arena = self.session.arena
        scratch = self.session.scratch(self.buffers.plan.graph, step.node)
        kept = self._taken(scratch) if scratch.before_outputs else []
        operator = step.node.op_type if step.bodies else None
        if operator == "If":
            yield from self._branch(step)
        elif operator == "Scan":
            yield from self._scan(step, scratch, kept)
        elif operator:
            yield from self._loop(step, kept)
        self._allocate(step)
        if not scratch.before_outputs and not step.bodies:
            kept += self._taken(scratch)
        for chunk in kept:
            arena.free(chunk)
        yield Sample(
            step.node,
            arena.requested_bytes,
            arena.in_use_bytes,
            arena.held_bytes,
            scratch.size_bytes,
        )
        for name in step.releases:
            self.buffers.release(name)

    def _allocate(self, step: Step) -> None:
        for name in step.allocates:
            self.buffers.allocate(name)

    def _taken(self, scratch: Scratch) -> Chunks:
        """Take a kernel's scratch; what it holds to its end."""
        arena = self.session.arena
        stops = scratch.freed_after or (len(scratch.blocks) + 1,) * len(scratch.blocks)
        held: Chunks = []
        for place, size in enumerate(scratch.blocks):
            held.append(arena.allocate(size))
            for gone in range(place + 1):
                if stops[gone] == place + 1:
                    arena.free(held[gone])
                    held[gone] = None
        for _ in range(min(scratch.passes, _MAX_PASSES)):
            for chunk in [arena.allocate(size) for size in scratch.per_pass]:
                arena.free(chunk)
        return held

    def _branch(self, step: Step) -> Iterator[Sample]:
        """Run the branch that is known to run, or else the one that makes more."""
        place = self.session.branches.get(step.node.name)
        body = max(step.bodies, key=self._all_bytes) if place is None else step.bodies[place]
        for inner, outer in zip(body.graph.outputs, step.node.outputs, strict=False):
            size = self.session.size_bytes(body.graph, inner)
            if size:  # branches may differ, and the If itself may not know
                self.session.sizes[outer] = size
        yield from self.session.open(body, self._provided(step, body)).run()

    def _all_bytes(self, body: Plan) -> int:
        names = (name for step in body.steps for name in step.allocates)
        return sum(self.session.size_bytes(body.graph, name) for name in names)

    def _provided(self, step: Step, body: Plan, num_ahead: int = 0) -> Mapping[str, Asking]:
        """Ask for the outputs that a node asks for ahead; how its body asks for each of them."""
        provided: dict[str, Asking] = {}
        for place, (inner, outer) in enumerate(
            zip(body.graph.outputs, step.node.outputs, strict=False)
        ):
            asking = partial(self.buffers.allocate, outer) if outer in step.allocates else _nothing
            if place < num_ahead or inner in body.sized_outputs:
                asking()
            provided[inner] = asking
        return provided

    def _scan(self, step: Step, scratch: Scratch, kept: Chunks) -> Iterator[Sample]:
        body = step.bodies[0]
        scanned = step.node.attributes.get("num_scan_inputs", 0)
        num_states = len(body.graph.inputs) - (scanned if isinstance(scanned, int) else 0)
        provided = self._provided(step, body, num_states)
        kept += self._taken(scratch)
        for _ in range(min(self._trips(step), _MAX_TRIPS)):
            yield from self.session.open(body, provided).run()

    def _loop(self, step: Step, kept: Chunks) -> Iterator[Sample]:
        """Run a Loop's body; what stays until the Loop ends goes to ``kept``."""
        arena, body, trips = self.session.arena, step.bodies[0], self._trips(step)
        kept.append(arena.allocate(_NUMBER_BYTES))
        num_handed_on = len(step.node.inputs) - 1
        fed: Chunks = [arena.allocate(_CONDITION_BYTES)]
        made = fed
        for _ in range(min(trips, _MAX_TRIPS)):
            for chunk in fed:
                if not _is_among(chunk, (*made, *kept)):
                    arena.free(chunk)
            fed = made
            frame = self.session.open(body)
            yield from frame.run()
            fetched = [_fetched(frame.buffers, name, fed) for name in body.graph.outputs]
            made = fetched[:num_handed_on]
            kept += fetched[num_handed_on:]
        for name in body.graph.outputs[num_handed_on:]:
            size = self.session.size_bytes(body.graph, name)
            kept.append(arena.allocate(size * max(trips - _MAX_TRIPS, 0)))
        kept += fed
        kept += made
        kept[:] = {id(chunk): chunk for chunk in kept}.values()

    def _trips(self, step: Step) -> int:
        """How often a body runs; once where only a run can tell."""
        trips = trip_count(self.buffers.plan.graph, step.node)
        return 1 if trips is None else trips


def _nothing() -> None:
    """Ask for nothing: the output lies in another buffer."""


def _fetched(buffers: Buffers, name: str, fed: Chunks) -> Chunk | None:
    """The chunk of an output of a Loop's body, which may be one that it was fed."""
    inputs = buffers.plan.graph.inputs[1:]
    source = buffers.plan.buffers.get(name, name)
    if name not in buffers.outputs and source in inputs[: len(fed)]:
        return fed[inputs.index(source)]
    return buffers.outputs.get(name)


def _is_among(chunk: Chunk | None, chunks: Iterable[Chunk | None]) -> bool:
    return any(chunk is other for other in chunks)
