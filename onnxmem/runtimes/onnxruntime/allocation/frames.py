"""Runs of a plan: what each node asks the arena for, and what the arena makes of it.

Source: ``core/framework/execution_frame.cc`` and ``sequential_executor.cc`` of onnxruntime 1.31. A
frame is one run of one graph; an If, a Loop or a Scan opens frames of its own in the same arena.

* The first frame of a graph asks for every buffer apart, and the memory pattern is worked out
  meanwhile; later frames ask for one block of the pattern's size and place their buffers in it.
* Buffers of graph outputs are asked for apart in every run, and are the caller's.
* A kernel's scratch is asked for and given back within its node.
* An If's branch writes its outputs straight into the If's (``if.cc``); a Loop keeps what each of
  its iterations puts out for a scan and copies all of it at the end (``loop.cc``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from onnxmem.model import Graph, Node
from onnxmem.model.trips import trip_count
from onnxmem.runtimes.onnxruntime.allocation.arena import Arena, Chunk
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Step, element_bytes
from onnxmem.runtimes.onnxruntime.scratch import Scratch

_MAX_TRIPS: Final = 64
"""Iterations that are replayed; further ones of a Loop add what they keep, and nothing else."""
_STRING_BYTES: Final = 32
"""``sizeof(std::string)``."""

ScratchRule = Callable[[Graph, Node], Scratch]


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
        frame = _Frame(self, self.plan)
        samples = tuple(frame.run())
        frame.close()
        for chunk in frame.outputs.values():
            self.arena.free(chunk)
        return samples

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


def tensor_bytes(graph: Graph, name: str) -> int | None:
    """Bytes that onnxruntime asks for to hold a tensor; ``None`` where that is unknown."""
    tensor = graph.tensors[name]
    count = tensor.num_elements
    if count is None or tensor.dtype is None:
        return None
    if element_bytes(tensor.dtype) is None:
        return count * _STRING_BYTES
    return tensor.size_bytes


@dataclass(slots=True)
class _Frame:
    """One run of one graph."""

    session: Session
    plan: Plan
    chunks: dict[str, Chunk | None] = field(default_factory=dict)
    outputs: dict[str, Chunk | None] = field(default_factory=dict)
    block: Chunk | None = None
    trace: PatternTrace | None = None
    """The pattern while it is worked out."""
    known: Mapping[str, int] = field(default_factory=dict)
    """Buffers that lie in the block, and their rounded sizes."""

    def __post_init__(self) -> None:
        if not self.session.uses_pattern:
            return
        found = self.session.patterns.get(id(self.plan))
        if found is None:
            self.trace = PatternTrace()
        else:
            self.known = found.sizes
            self.block = self.session.arena.allocate(found.size_bytes)

    def run(self) -> Iterator[Sample]:
        """Run the nodes in order, those of subgraphs before their node has ended."""
        for step in self.plan.steps:
            yield from self._step(step)
        if self.trace is not None:
            self.session.patterns[id(self.plan)] = self.trace

    def close(self) -> None:
        """Give back all but the outputs."""
        arena = self.session.arena
        for chunk in self.chunks.values():
            arena.free(chunk)
        arena.free(self.block)

    def _step(self, step: Step) -> Iterator[Sample]:
        arena, graph = self.session.arena, self.plan.graph
        scratch = self.session.scratch(graph, step.node)
        early = self._take(scratch.blocks) if scratch.before_outputs else ()
        kept: list[Chunk | None] = []
        if step.bodies:
            yield from self._bodies(step, kept)
        for name in step.allocates:
            self._allocate(name)
        late = () if scratch.before_outputs else self._take(scratch.blocks)
        for chunk in (*early, *late, *kept):
            arena.free(chunk)
        yield Sample(
            step.node,
            arena.requested_bytes,
            arena.in_use_bytes,
            arena.held_bytes,
            sum(scratch.blocks),
        )
        for name in step.releases:
            self._release(name)

    def _take(self, blocks: Iterable[int]) -> tuple[Chunk | None, ...]:
        return tuple(self.session.arena.allocate(size) for size in blocks)

    def _allocate(self, name: str) -> None:
        if name in self.outputs or name in self.chunks:
            return
        size = self.session.size_bytes(self.plan.graph, name)
        if name in self.plan.outputs:
            self.outputs[name] = self.session.arena.allocate(size)
            return
        if name in self.known:
            return
        self.chunks[name] = self.session.arena.allocate(size)
        if self.trace is not None:
            self.trace.allocate(name, size)

    def _release(self, name: str) -> None:
        self.session.arena.free(self.chunks.pop(name, None))
        if self.trace is not None:
            self.trace.free(name)

    def _bodies(self, step: Step, kept: list[Chunk | None]) -> Iterator[Sample]:
        """Run a node's subgraphs; what stays until the node ends goes to ``kept``."""
        if step.node.op_type == "If":
            yield from self._branch(step)
        else:
            yield from self._iterations(step, kept)

    def _branch(self, step: Step) -> Iterator[Sample]:
        place = self.session.branches.get(step.node.name)
        body = max(step.bodies, key=self._all_bytes) if place is None else step.bodies[place]
        frame = _Frame(self.session, body)
        yield from frame.run()
        frame.close()
        for inner, outer in zip(body.graph.outputs, step.node.outputs, strict=False):
            if not outer:
                continue
            holder = self.outputs if outer in self.plan.outputs else self.chunks
            holder[outer] = frame.outputs.get(inner)
            if self.trace is not None and outer not in self.plan.outputs:
                self.trace.sizes.setdefault(outer, -1)

    def _all_bytes(self, body: Plan) -> int:
        names = (name for step in body.steps for name in step.allocates)
        return sum(self.session.size_bytes(body.graph, name) for name in names)

    def _iterations(self, step: Step, kept: list[Chunk | None]) -> Iterator[Sample]:
        """Run a body as often as the file says, or once where only a run can tell."""
        trips = trip_count(self.plan.graph, step.node)
        body = step.bodies[0]
        carried: list[Chunk | None] = []
        num_carried = _num_carried(step.node, body)
        for _ in range(min(1 if trips is None else trips, _MAX_TRIPS)):
            frame = _Frame(self.session, body)
            yield from frame.run()
            frame.close()
            made = [frame.outputs.get(name) for name in body.graph.outputs]
            for chunk in carried:
                self.session.arena.free(chunk)
            carried = made[:num_carried]
            kept.extend(made[num_carried:])
        kept.extend(carried)


def _num_carried(node: Node, body: Plan) -> int:
    """How many of a body's outputs the next iteration reads: a Loop's condition among them."""
    if node.op_type == "Loop":
        return max(len(node.inputs) - 1, 1)
    scanned = node.attributes.get("num_scan_inputs", 0)
    return max(len(body.graph.inputs) - (scanned if isinstance(scanned, int) else 0), 0)
