"""Runs of a plan, simulated: what each node requests of the arena, and what lies in the block.

Source: ``core/framework/sequential_executor.cc``, ``core/framework/execution_frame.cc`` and
``core/providers/cpu/controlflow`` of onnxruntime 1.31. A frame is one run of one graph; an If, a
Loop or a Scan opens frames of its own in the same arena. Which branch runs, how often a body does
and the shapes that follow from that are in the frame's course. Begin reading with ``Session``.

Buffers of one frame (``execution_frame.cc``):

* A frame requests every buffer apart and the memory pattern is worked out meanwhile; a frame of a
  graph whose pattern is known requests one block of its size, and its buffers lie there. A buffer
  that the block has in another size is requested apart
  (``AllocateMLValueTensorSelfOwnBufferHelper``), and strings always are.
* Buffers of graph outputs are requested apart in every run, and are the caller's. An output that is
  an initializer is copied when the run begins (``IExecutionFrame::Init``).
* An output of a subgraph may be the enclosing node's, which then requests it.

Nodes:

* A kernel's scratch is requested and released within its node.
* An If's branch and a Scan's body write their outputs straight into the node's. Those whose shape
  is known at load are requested ahead of the branch, others when it makes them (``if.cc``,
  ``scan_utils.cc``); a Scan's last states are always requested ahead.
* A Loop holds a number and a condition for its body. What an iteration hands on stays until the
  next but one begins, what it puts out to be stacked stays to the end, where all is copied into the
  Loop's outputs (``loop.cc``).
* A pattern is learnt for the dims that a graph is fed, what it reads of graphs around it among
  them; those whose exclusive or is the same count as the same (``session_state.cc``,
  ``CalculateMemoryPatternsKey``).
"""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import xor
from typing import Final, cast

from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import DType, Graph, Node, Tensor
from onnxmem.program.program import Category
from onnxmem.runtimes.onnxruntime.allocation.course import PLAIN, Branch, Course, Trips
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace, rounded_up
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Step
from onnxmem.runtimes.onnxruntime.allocation.recording import Recorder, Run
from onnxmem.runtimes.onnxruntime.kernels.kernel import Scratch

_STRING_BYTES: Final = 32
"""``sizeof(std::string)``."""

_BLOCK: Final = "memory-pattern buffer"

Asking = Callable[[], None]


def tensor_bytes(graph: Graph, name: str) -> int | None:
    """Bytes that onnxruntime asks for to hold a tensor; ``None`` where that is unknown."""
    tensor = graph.tensors[name]
    count = tensor.num_elements
    # A dim that onnxruntime folded from an infinity is negative: no tensor has that shape.
    if count is None or count < 0 or tensor.dtype is None:
        return None
    if tensor.dtype is DType.STRING:
        return count * _STRING_BYTES
    return tensor.size_bytes


@dataclass(slots=True)
class Buffers:
    """The buffers of one frame, by the names of their first tensors."""

    plan: Plan
    recorder: Recorder
    size_bytes: Callable[[Graph, str], int]
    learnt: PatternTrace | None = None
    """The pattern of an earlier run."""
    trace: PatternTrace | None = None
    """The pattern while it is worked out."""
    provided: Mapping[str, Asking] = field(default_factory=dict)
    """Outputs that are the enclosing node's, and how they are asked for."""
    is_main: bool = True
    """Whether the frame is the main graph's."""
    outputs: dict[str, int] = field(default_factory=dict)
    """The caller's, who gives them back."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _block: int | None = None

    def __post_init__(self) -> None:
        for name in self.plan.stored_outputs:
            self.allocate(name)
        if self.learnt is not None:
            size = self.learnt.size_bytes
            self._block = self.recorder.malloc(_BLOCK, Category.PATTERN_BUFFER, size)

    def allocate(self, name: str) -> None:
        """Ask for a buffer, unless it is there."""
        if name in self.provided:
            self.provided[name]()
        elif name in self.plan.outputs:
            if name not in self.outputs:
                self.outputs[name] = self._requested(name, self._size_of(name))
        elif not self._is_placed(name):
            size = self._size_of(name)
            self._numbers[name] = self._requested(name, size)
            if self.trace is not None and not self._holds_text(name):
                self.trace.allocate(name, size)
                if self.is_main:
                    self.recorder.traced.append(self._numbers[name])

    def release(self, name: str) -> None:
        """Give a buffer back."""
        self.recorder.free(self._numbers.pop(name, None))
        if self.trace is not None:
            self.trace.free(name)

    def close(self) -> None:
        """Give back all but the outputs."""
        for number in self._numbers.values():
            self.recorder.free(number)
        self.recorder.free(self._block)

    def _size_of(self, name: str) -> int:
        return self.size_bytes(self.plan.graph, name)

    def _requested(self, name: str, size_bytes: int) -> int:
        tensors = self.plan.sharing.get(name, ())
        return self.recorder.malloc(name, Category.ACTIVATION, size_bytes, tensors)

    def _is_placed(self, name: str) -> bool:
        return name in self._numbers or (self.learnt is not None and name in self.learnt.sizes)

    def _holds_text(self, name: str) -> bool:
        return self.plan.graph.tensors[name].dtype is DType.STRING


_MAX_TRIPS: Final = 64
"""Iterations that are simulated; further ones of a Loop add what is stacked, and nothing else."""
_MAX_FRAMES: Final = 1024
"""Of one run; a Loop that begins after so many simulates its first iterations alone."""
_FIRST_TRIPS: Final = 2
_MAX_PASSES: Final = 2
"""Passes of a kernel that are simulated; a third finds the arena as the second did."""
_ANY: Final = Branch(None, ())
_NUMBER_BYTES, _CONDITION_BYTES = 8, 1
"""Of a Loop's body: the number of the iteration and whether it goes on."""

PatternKey = tuple[int, int]
"""Identity of a plan, and the exclusive or of the dims that its graph is fed."""
ScratchRule = Callable[[Graph, Node], Scratch]
Numbers = list[int | None]
"""Of requests; ``None`` stands for a tensor that lies in another's buffer."""


@dataclass(slots=True)
class FrameBinding:
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

    def inside(self, step: Step, place: int, course: Course) -> "FrameBinding":
        """A subgraph of one of its nodes."""
        plan = step.bodies[place]
        graph = _in_course(plan.graph, course, self.graph.tensors)
        return FrameBinding(plan, graph, course, step.node.outer_reads)


def _bound(plan: Plan, course: Course) -> FrameBinding:
    """The main graph."""
    return FrameBinding(plan, _in_course(plan.graph, course), course)


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


@dataclass(slots=True)
class Session:
    """A session that is loaded: its plan and the patterns learned so far."""

    plan: Plan
    scratch: ScratchRule
    uses_pattern: bool = True
    """``enable_mem_pattern``."""
    course: Course = PLAIN
    """What each run does that the plan leaves open."""
    patterns: dict[PatternKey, PatternTrace] = field(default_factory=dict)
    """Of each graph that has run."""
    unsized: dict[str, None] = field(default_factory=dict)
    """Tensors that were asked for without a size, in the order in which they came up."""
    sizes: dict[str, int | None] = field(default_factory=dict)
    """Bytes of the tensors, as they come up, but for those that a course changes."""
    num_frames: int = 0
    """Opened in this run so far."""
    num_runs: int = 0
    recorder: Recorder = field(default_factory=partial(Recorder, ""))
    """Of the run that goes on."""

    def run(self) -> Run:
        """Run the model once; the caller releases its outputs afterwards."""
        self.num_frames = 0
        self.num_runs += 1
        self.recorder = Recorder(f"run {self.num_runs}")
        self.open(_bound(self.plan, self.course)).run()
        return self.recorder.ended()

    def open(self, binding: FrameBinding, provided: Mapping[str, Asking] | None = None) -> "_Frame":
        """Begin a run of a graph."""
        key = binding.pattern_key
        learnt = self.patterns.get(key)
        if learnt is not None and binding.is_changed:
            learnt = replace(learnt, sizes=self._fitting(learnt, binding))
        trace = PatternTrace() if self.uses_pattern and learnt is None else None
        self.num_frames += 1
        asked = partial(self._asked_bytes, binding)
        is_main = binding.plan is self.plan
        buffers = Buffers(
            binding.plan, self.recorder, asked, learnt, trace, provided or {}, is_main
        )
        return _Frame(self, binding, buffers)

    def size_bytes(self, binding: FrameBinding, name: str) -> int | None:
        """Bytes of a tensor in one run of its graph; ``None``: unknown."""
        if binding.is_changed:
            return tensor_bytes(binding.graph, name)
        if name not in self.sizes:
            self.sizes[name] = tensor_bytes(binding.graph, name)
        return self.sizes[name]

    def _asked_bytes(self, binding: FrameBinding, _: Graph, name: str) -> int:
        """Bytes to ask for: 0 where they are unknown."""
        size = binding.handed_out.get(name) or self.size_bytes(binding, name)
        if size is None:
            self.unsized[name] = None
        return size or 0

    def _fitting(self, learnt: PatternTrace, binding: FrameBinding) -> dict[str, int]:
        """The buffers that the block has in the size of this run."""
        return {
            name: size
            for name, size in learnt.sizes.items()
            if rounded_up(self.size_bytes(binding, name) or 0) == size
        }

    @property
    def pattern_bytes(self) -> int:
        """The main graph's block."""
        blocks = (trace for (plan, _), trace in self.patterns.items() if plan == id(self.plan))
        return next((trace.size_bytes for trace in blocks), 0)


@dataclass(slots=True)
class _Frame:
    """One run of one graph."""

    session: Session
    binding: FrameBinding
    buffers: Buffers

    def run(self) -> None:
        """Run the nodes in order, those of subgraphs before their node has ended."""
        for step in self.binding.plan.steps:
            self._step(step)
        self.buffers.close()
        if self.buffers.trace is not None:
            self.session.patterns[self.binding.pattern_key] = self.buffers.trace

    def _step(self, step: Step) -> None:
        recorder = self.buffers.recorder
        recorder.begin(step.node)
        scratch = self.session.scratch(self.binding.graph, step.node)
        kept: Numbers = []
        if step.bodies:
            self._run_bodies(step, scratch, kept)
            recorder.begin(step.node)
            self._allocate(step)
        else:
            kept += self._taken(step.node, scratch, partial(self._allocate, step))
        for number in kept:
            recorder.free(number)
        recorder.end(step.node, scratch.size_bytes)
        for name in step.releases:
            self.buffers.release(name)

    def _run_bodies(self, step: Step, scratch: Scratch, kept: Numbers) -> None:
        if step.node.op_type == "If":
            self._branch(step)
        elif step.node.op_type == "Scan":
            self._scan(step, scratch, kept)
        else:
            self._loop(step, kept)

    def _allocate(self, step: Step) -> None:
        for name in step.allocates:
            self.buffers.allocate(name)

    def _taken(self, node: Node, scratch: Scratch, allocate_outputs: Asking) -> Numbers:
        """Take a kernel's scratch, and the outputs in between; what it holds to its end."""
        gone_after: dict[int | None, list[int]] = {}
        for index, stop in enumerate(scratch.freed_after):
            gone_after.setdefault(stop, []).append(index)
        held: Numbers = []
        for index, size in enumerate(scratch.blocks):
            if index == scratch.num_before_outputs:
                allocate_outputs()
            held.append(self._temporary("scratch", node, size))
            for gone in gone_after.get(index + 1, ()):
                self.buffers.recorder.free(held[gone])
        if scratch.num_before_outputs == len(scratch.blocks):
            allocate_outputs()
        for _ in range(min(scratch.passes, _MAX_PASSES)):
            for number in [self._temporary("scratch", node, size) for size in scratch.per_pass]:
                self.buffers.recorder.free(number)
        return held

    def _temporary(self, what: str, node: Node, size_bytes: int) -> int:
        label = f"{what} of {node.name}"
        return self.buffers.recorder.malloc(label, Category.TEMPORARY, size_bytes)

    def _branch(self, step: Step) -> None:
        """Run the branch that is known to run, or else the one that makes more."""
        branch = self.binding.course.branches.get(step.node.name, _ANY)
        place = max(range(len(step.bodies)), key=partial(self._all_bytes, step, branch))
        if branch.place is not None:
            place = branch.place
        body = self.binding.inside(step, place, branch.course(place))
        for inner, outer in zip(body.graph.outputs, step.node.outputs, strict=False):
            size = self.session.size_bytes(body, inner)
            if size:  # branches may differ, and the If itself may not know
                self.binding.handed_out[outer] = size
        self.session.open(body, self._provided(step, body.plan)).run()

    def _all_bytes(self, step: Step, branch: Branch, place: int) -> int:
        body = self.binding.inside(step, place, branch.course(place))
        names = (name for inner in body.plan.steps for name in inner.allocates)
        return sum(self.session.size_bytes(body, name) or 0 for name in names)

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

    def _scan(self, step: Step, scratch: Scratch, kept: Numbers) -> None:
        scanned = step.node.attributes.get("num_scan_inputs", 0)
        num_states = len(step.bodies[0].graph.inputs)
        num_states -= scanned if isinstance(scanned, int) else 0
        provided = self._provided(step, step.bodies[0], num_states)
        kept += self._taken(step.node, scratch, _nothing)
        trips = self._trips(step)
        for place in range(self._num_simulated(trips)):
            self.buffers.recorder.begin(step.node)
            body = self.binding.inside(step, 0, trips.course(place))
            self.session.open(body, provided).run()

    def _loop(self, step: Step, kept: Numbers) -> None:
        """Run a Loop's body; what stays until the Loop ends goes to ``kept``."""
        recorder, trips = self.buffers.recorder, self._trips(step)
        kept.append(self._temporary("iteration number", step.node, _NUMBER_BYTES))
        num_handed_on = len(step.node.inputs) - 1
        fed: Numbers = [self._temporary("condition", step.node, _CONDITION_BYTES)]
        made = fed
        num_simulated = self._num_simulated(trips)
        for index in range(num_simulated):
            recorder.begin(step.node)
            for number in fed:
                if number not in made and number not in kept:
                    recorder.free(number)
            fed = made
            frame = self.session.open(self.binding.inside(step, 0, trips.course(index)))
            frame.run()
            outputs = frame.buffers.plan.graph.outputs
            fetched = [_fetched(frame.buffers, name, fed) for name in outputs]
            made = fetched[:num_handed_on]
            kept += fetched[num_handed_on:]
        kept += self._stacked_later(step, trips, (trips.number or 0) - num_simulated)
        kept += fed
        kept += made
        kept[:] = dict.fromkeys(kept)

    def _stacked_later(self, step: Step, trips: Trips, num_later: int) -> Iterator[int]:
        """What the iterations that are not simulated put out to be stacked."""
        body = self.binding.inside(step, 0, trips.course(len(trips.courses)))
        for name in body.graph.outputs[len(step.node.inputs) - 1 :] if num_later > 0 else ():
            size = self.session.size_bytes(body, name) or 0
            yield self.buffers.recorder.malloc(name, Category.ACTIVATION, size * num_later)

    def _trips(self, step: Step) -> Trips:
        """How often a body runs: as its course knows, or else its graph."""
        known = self.binding.course.trips.get(step.node.name)
        return known or Trips(trip_count(self.binding.graph, step.node), ())

    def _num_simulated(self, trips: Trips) -> int:
        """Iterations that are simulated; one where only a run can tell how many there are."""
        if trips.number is None:
            return 1
        is_late = self.session.num_frames > _MAX_FRAMES
        most = _FIRST_TRIPS if is_late else max(_MAX_TRIPS, len(trips.courses))
        return min(trips.number, most)


def _nothing() -> None:
    """Ask for nothing: the output lies in another buffer."""


def _fetched(buffers: Buffers, name: str, fed: Numbers) -> int | None:
    """The request of an output of a Loop's body, which may be one that it was fed."""
    inputs = buffers.plan.graph.inputs[1:]
    source = buffers.plan.buffers.get(name, name)
    if name not in buffers.outputs and source in inputs[: len(fed)]:
        return fed[inputs.index(source)]
    return buffers.outputs.get(name)
