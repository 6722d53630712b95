"""Simulates the runs of a plan: the requests of each node, and the memory-pattern buffer.

Source: ``core/framework/sequential_executor.cc``, ``core/framework/execution_frame.cc`` and
``core/providers/cpu/controlflow`` of onnxruntime 1.31. A frame is one run of one graph; If, Loop
and Scan open frames of their own in the same arena. The frame's ``ControlFlowTrace`` says which
branch runs, how often a body runs, and the shapes that follow. Begin with ``Session``.

Buffers of one frame (``execution_frame.cc``):

* The first frame of a graph requests every buffer separately and traces the memory pattern. Later
  frames request one block for the pattern, in which their buffers have offsets. A buffer whose size
  differs from that in the pattern is requested separately
  (``AllocateMLValueTensorSelfOwnBufferHelper``), and strings always are.
* Buffers of graph outputs are requested separately in every run, and belong to the caller. An
  output that is an initializer is copied at the start of the run (``IExecutionFrame::Init``).
* An output of a subgraph may be an output of the enclosing node, which then requests it.

Nodes:

* A kernel's scratch is requested and released within its node.
* The branch of an If and the body of a Scan write directly to the node's outputs. Outputs of a
  shape known at load are requested before the branch, others when the branch computes them
  (``if.cc``, ``scan_utils.cc``); the final states of a Scan are always requested before.
* A Loop has an iteration number and a condition for its body. The values carried by an iteration
  live until the next but one begins; its scan outputs live to the end of the Loop, where they are
  copied into the Loop's outputs (``loop.cc``).
* A sequence has no buffer: it shares its elements with the sequences that it was made from.
  SequenceConstruct and SequenceInsert copy the tensors that they add, and an Identity that returns
  a sequence from a subgraph copies all elements, as does a Loop of no iteration; other Loops and an
  If return theirs as they are (``sequence_ops.cc``, ``identity_op.h``, ``loop.cc``).
  SplitToSequence copies each piece.
* Patterns are cached by the exclusive or of all dims of the graph's inputs, implicit inputs
  included (``session_state.cc``, ``CalculateMemoryPatternsKey``).
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import prod
from operator import xor
from types import MappingProxyType
from typing import Final, cast

from onnxmem.model.control_flow import least_trips, trip_count
from onnxmem.model.graph import DType, Graph, Node, Tensor
from onnxmem.model.sequences import erased_index, split_elements, with_piece
from onnxmem.ops.spec import known_dims
from onnxmem.program.program import Category
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import (
    EMPTY_TRACE,
    BranchTrace,
    ControlFlowTrace,
    LoopTrace,
)
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace, rounded_up
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Step
from onnxmem.runtimes.onnxruntime.allocation.recording import Recorder, Run
from onnxmem.runtimes.onnxruntime.kernels.kernel import Scratch

_STRING_BYTES: Final = 32
"""``sizeof(std::string)``."""

_BLOCK: Final = "memory-pattern buffer"

Elements = tuple[int, ...]
"""The requests of the elements of a sequence, which has a share in each."""

AllocateOutput = Callable[[], None]
"""Requests one output of an enclosing node, unless it was requested before."""


def tensor_bytes(graph: Graph, name: str) -> int | None:
    """Bytes that onnxruntime requests for a tensor; ``None``: unknown."""
    tensor = graph.tensors[name]
    count = tensor.num_elements
    # onnxruntime may fold an infinity to a negative dim, which no tensor can have.
    if count is None or count < 0 or tensor.dtype is None:
        return None
    if tensor.dtype is DType.STRING:
        return count * _STRING_BYTES
    return tensor.size_bytes


@dataclass(slots=True)
class Buffers:
    """The buffers of one frame, by the name of their first tensor."""

    plan: Plan
    recorder: Recorder
    size_bytes: Callable[[str], int]
    """Bytes to request for a tensor in this run."""
    pattern: PatternTrace | None = None
    """The pattern of an earlier run; ``None``: there is none."""
    pattern_trace: PatternTrace | None = None
    """The pattern of this run; ``None``: it is not traced."""
    provided: Mapping[str, AllocateOutput] = field(default_factory=dict)
    """Outputs that belong to the enclosing node."""
    is_main: bool = True
    """Whether the frame runs the main graph."""
    outputs: dict[str, int] = field(default_factory=dict)
    """Requests of graph outputs, which the caller releases."""
    sequences: dict[str, Elements] = field(default_factory=dict)
    """Those that nodes of the frame made."""
    _numbers: dict[str, int] = field(default_factory=dict)
    """Requests of all other buffers outside the pattern."""
    _block: int | None = None
    """The request of the memory-pattern buffer."""

    def __post_init__(self) -> None:
        # ``ExecutionFrame::ExecutionFrame`` copies outputs that are initializers (``Init``) before
        # it requests the block, so the copies get the lower addresses.
        for name in self.plan.stored_outputs:
            self.allocate(name)
        if self.pattern is not None:
            size = self.pattern.size_bytes
            self._block = self.recorder.malloc(_BLOCK, Category.PATTERN_BUFFER, size)

    def allocate(self, name: str) -> None:
        """Request a buffer, unless it was requested before or is part of the pattern."""
        # A fetch allocator of the enclosing kernel: the body writes into the output of that node.
        if name in self.provided:
            self.provided[name]()
        elif name in self.plan.outputs:
            if name not in self.outputs:
                self.outputs[name] = self._requested(name, self.size_bytes(name))
        elif not self._is_allocated(name):
            size = self.size_bytes(name)
            self._numbers[name] = self._requested(name, size)
            # Strings are constructed in place, so they are never part of a pattern.
            if self.pattern_trace is not None and not self._is_string(name):
                self.pattern_trace.allocate(name, size)
                if self.is_main:
                    self.recorder.traced.append(self._numbers[name])

    def release(self, name: str) -> None:
        """Release a buffer."""
        self.recorder.free(self._numbers.pop(name, None))
        # A sequence that an Identity passes on is held by the values of both names, of which only
        # the first is released before the end.
        if name not in self.plan.sharing:
            self.release_elements(self.sequences.pop(name, ()))
        if self.pattern_trace is not None:
            self.pattern_trace.free(name)

    def release_elements(self, elements: Elements) -> None:
        """Release the share of a sequence in its elements."""
        for number in elements:
            self.recorder.free(number)

    def close(self) -> None:
        """Release all buffers except the outputs."""
        for name in self.sequences.keys() - {*self.plan.graph.outputs}:
            self.release_elements(self.sequences.pop(name))
        for number in self._numbers.values():
            self.recorder.free(number)
        self.recorder.free(self._block)

    def _requested(self, name: str, size_bytes: int) -> int:
        tensors = self.plan.sharing.get(name, ())
        return self.recorder.malloc(name, Category.ACTIVATION, size_bytes, tensors)

    def _is_allocated(self, name: str) -> bool:
        # An empty buffer is in the pattern too, with no bytes: else a later frame would request it.
        return name in self._numbers or (self.pattern is not None and name in self.pattern.sizes)

    def _is_string(self, name: str) -> bool:
        return self.plan.graph.tensors[name].dtype is DType.STRING


_MAX_ITERATIONS: Final = 64
"""Iterations that are simulated. Further ones of a Loop only add scan outputs."""
_MAX_FRAMES: Final = 1024
"""A Loop that starts after so many frames of a run simulates only its first iterations."""
_FIRST_ITERATIONS: Final = 2
_MAX_PASSES: Final = 2
"""Passes of a kernel that are simulated: from the second on, each finds the same arena."""
_ANY: Final = BranchTrace(None, ())
_NUMBER_BYTES, _CONDITION_BYTES = 8, 1
"""Inputs of a Loop's body: the iteration number and the condition."""

PatternKey = tuple[int, int]
"""Identity of a plan, and the key of its graph's inputs."""


def pattern_key(graph: Graph, outer_reads: Iterable[str] = ()) -> int:
    """The exclusive or of all dims of a graph's inputs (``CalculateMemoryPatternsKey``)."""
    dims = (
        dim for name in (*graph.inputs, *outer_reads) for dim in graph.tensors[name].shape or ()
    )
    return reduce(xor, (dim for dim in dims if dim is not None), 0)


ScratchRule = Callable[[Graph, Node], Scratch]
Numbers = list[int | None]
"""Of requests; ``None``: a tensor that shares another's buffer."""


@dataclass(slots=True)
class FrameBinding:
    """A graph that is about to run."""

    plan: Plan
    graph: Graph
    """The graph of the plan, with the shapes of this run."""
    trace: ControlFlowTrace
    outer_reads: tuple[str, ...] = ()
    """Values of enclosing graphs: implicit inputs."""
    output_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of If outputs whose size only the branch knows."""

    @property
    def is_changed(self) -> bool:
        """Whether any shape differs from that in the plan."""
        return self.graph is not self.plan.graph

    @property
    def pattern_key(self) -> PatternKey:
        """The key of the pattern cache."""
        return id(self.plan), pattern_key(self.graph, self.outer_reads)

    def inside(self, step: Step, index: int, trace: ControlFlowTrace) -> "FrameBinding":
        """The binding of a node's subgraph."""
        plan = step.bodies[index]
        graph = _with_types(plan.graph, trace, self.graph.tensors)
        return FrameBinding(plan, graph, trace, step.node.outer_reads)


def _bound(plan: Plan, graph: Graph, trace: ControlFlowTrace) -> FrameBinding:
    """The binding of the main graph."""
    return FrameBinding(plan, _with_types(graph, trace), trace)


def _with_types(
    graph: Graph, trace: ControlFlowTrace, outer: Mapping[str, Tensor] | None = None
) -> Graph:
    """A graph with the types of one run; the graph itself if no type differs.

    ``outer`` are the tensors of the enclosing graph in this run.
    """
    tensors = graph.tensors if outer is None else outer
    if trace.types:
        changed = {
            name: replace(tensors[name], dtype=each.dtype, shape=each.shape)
            for name, each in trace.types.items()
        }
        # A run changes few types of many, and a body has one such graph per iteration: nothing is
        # copied.
        tensors = ChainMap(changed, cast("MutableMapping[str, Tensor]", tensors))
    return graph if tensors is graph.tensors else replace(graph, tensors=tensors)


@dataclass(slots=True)
class Session:
    """A loaded session: its plan, and the memory patterns of its runs so far."""

    plan: Plan
    scratch: ScratchRule
    uses_pattern: bool = True
    """``enable_mem_pattern``."""
    trace: ControlFlowTrace = EMPTY_TRACE
    """The control flow of each run."""
    counts_least: bool = False
    """Whether what the data of a run decide counts as little as may be: of an If the outputs alone,
    of a Loop its fewest iterations. Requests that are left out never raise a peak."""
    has_largest_outputs: bool = False
    """Whether an If requests the largest that any of its branches returns, whichever runs."""
    copied: tuple[str, ...] = ()
    """Inputs that a run copies to the device before it begins (``CopyInputsAcrossDevices``)."""
    patterns: dict[PatternKey, PatternTrace] = field(default_factory=dict)
    """The pattern of each graph that has run."""
    unsized: dict[str, None] = field(default_factory=dict)
    """Tensors of unknown size that were requested, in order."""
    sizes: dict[str, int | None] = field(default_factory=dict)
    """A cache of the bytes of tensors, except those whose type the trace changes."""
    num_frames: int = 0
    """Frames of the current run so far."""
    num_runs: int = 0
    recorder: Recorder = field(default_factory=partial(Recorder, ""))
    """Records the current run."""

    def run(self, graph: Graph | None = None, trace: ControlFlowTrace | None = None) -> Run:
        """Simulate one run; the caller then releases its outputs.

        ``graph`` is that of the plan at the dims of this run, ``trace`` the control flow there;
        ``None``: the plan's own.
        """
        self.num_frames = 0
        self.num_runs += 1
        self.recorder = Recorder(f"run {self.num_runs}")
        binding = _bound(self.plan, graph or self.plan.graph, trace or self.trace)
        # utils::ExecuteGraphImpl holds the copies beside the feeds of the caller until the run is
        # over.
        copies = [
            self.recorder.malloc(name, Category.INPUT, self.requested_bytes(binding, name))
            for name in self.copied
        ]
        self.open(binding).run()
        for number in copies:
            self.recorder.free(number)
        return self.recorder.ended()

    def open(
        self,
        binding: FrameBinding,
        provided: Mapping[str, AllocateOutput] | None = None,
        sequences: Mapping[str, Elements] = MappingProxyType({}),
    ) -> "_Frame":
        """Open a frame; ``sequences`` are those of its inputs and of the frames around it."""
        key = binding.pattern_key
        pattern = self.patterns.get(key)
        if pattern is not None:
            # Equal keys do not imply equal shapes: the block keeps its size, but only buffers of
            # unchanged size use it.
            pattern = replace(pattern, sizes=self._unchanged_sizes(pattern, binding))
        traced = PatternTrace() if self.uses_pattern and pattern is None else None
        self.num_frames += 1
        buffers = Buffers(
            binding.plan,
            self.recorder,
            partial(self.requested_bytes, binding),
            pattern,
            traced,
            provided or {},
            is_main=binding.plan is self.plan,
        )
        return _Frame(self, binding, buffers, sequences)

    def size_bytes(self, binding: FrameBinding, name: str) -> int | None:
        """Bytes of a tensor in one frame; ``None``: unknown."""
        if binding.is_changed:
            return tensor_bytes(binding.graph, name)
        if name not in self.sizes:
            self.sizes[name] = tensor_bytes(binding.graph, name)
        return self.sizes[name]

    def requested_bytes(self, binding: FrameBinding, name: str) -> int:
        """Bytes to request; 0 and a note if unknown."""
        size = binding.output_bytes.get(name) or self.size_bytes(binding, name)
        if size is None:
            self.unsized[name] = None
        return size or 0

    def _unchanged_sizes(self, pattern: PatternTrace, binding: FrameBinding) -> dict[str, int]:
        """The buffers whose size in this frame is that in the pattern."""
        return {
            name: size
            for name, size in pattern.sizes.items()
            # AllocateMLValueTensorSelfOwnBufferHelper compares sizes that are rounded to
            # ``kAllocAlignment``: a buffer that grew within its last 256 bytes still has its
            # offset.
            if rounded_up(self.size_bytes(binding, name) or 0) == size
        }

    @property
    def pattern_bytes(self) -> int:
        """The memory-pattern buffer of the main graph."""
        blocks = (each for (plan, _), each in self.patterns.items() if plan == id(self.plan))
        return next((each.size_bytes for each in blocks), 0)


@dataclass(slots=True)
class _Frame:
    """One run of one graph."""

    session: Session
    binding: FrameBinding
    buffers: Buffers
    passed: Mapping[str, Elements]
    """The sequences of its inputs and of the frames around it."""

    def sequence(self, name: str) -> Elements | None:
        """The elements of a sequence; ``None``: unknown, or a tensor."""
        own = self.buffers.sequences.get(self.buffers.plan.buffers.get(name, name))
        return self.passed.get(name) if own is None else own

    def returned(self, name: str) -> Elements | None:
        """The elements of an output, whose share the caller has from now on."""
        return self.buffers.sequences.pop(name, None)

    def run(self) -> None:
        """Run the nodes in order; those of a subgraph run before their node ends."""
        for step in self.binding.plan.steps:
            self._step(step)
        self.buffers.close()
        # The pattern is stored at the end of the frame: an If or Loop that opens the same graph
        # again within this run finds it already then.
        if self.buffers.pattern_trace is not None:
            self.session.patterns[self.binding.pattern_key] = self.buffers.pattern_trace

    def _step(self, step: Step) -> None:
        recorder = self.buffers.recorder
        recorder.begin(step.node)
        scratch = self.session.scratch(self.binding.graph, step.node)
        temporaries: Numbers = []
        if step.bodies:
            self._run_bodies(step, scratch, temporaries)
            recorder.begin(step.node)
            self._allocate(step)
        else:
            temporaries += self._scratch(step.node, scratch, partial(self._allocate, step))
        for number in temporaries:
            recorder.free(number)
        # onnxruntime's profile samples the arena here: after the kernel, before the releases.
        recorder.end(step.node, scratch.size_bytes)
        for name in step.releases:
            self.buffers.release(name)

    def _run_bodies(self, step: Step, scratch: Scratch, temporaries: Numbers) -> None:
        if step.node.op_type == "If":
            self._branch(step)
        elif step.node.op_type == "Scan":
            self._scan(step, scratch, temporaries)
        else:
            self._loop(step, temporaries)

    def _allocate(self, step: Step) -> None:
        for name in self._made(step):
            if name in self.buffers.sequences:
                continue
            elements = self._made_sequence(step.node)
            if elements is None:
                self.buffers.allocate(name)
            else:
                self.buffers.sequences[name] = elements

    def _made(self, step: Step) -> Iterable[str]:
        """The outputs with a buffer or elements of their own."""
        node, outputs = step.node, self.binding.graph.outputs
        if node.onnx_op != "Identity" or node.outputs[0] not in outputs:
            return step.allocates
        # The body of a Loop shares a tensor that it returns unchanged, and copies a sequence.
        return step.allocates if self.sequence(node.inputs[0]) is None else node.outputs

    def _made_sequence(self, node: Node) -> Elements | None:
        """Request the elements of a node's sequence; ``None``: it makes a tensor, or unknown
        ones.
        """
        if node.onnx_op == "SequenceEmpty":
            return ()
        if node.onnx_op == "SequenceConstruct":
            return tuple(map(self._copied, node.inputs))
        if node.onnx_op == "SplitToSequence":
            return self._split(node)
        before = self.sequence(node.inputs[0]) if node.inputs else None
        return None if before is None else self._changed(node, before)

    def _changed(self, node: Node, before: Elements) -> Elements | None:
        """The sequence that a node makes of another; ``None``: it makes a tensor."""
        if node.onnx_op == "SequenceErase":
            return self._erased(node, before)
        if node.onnx_op == "SequenceInsert":
            shared, added = self._shared(before), self._copied(node.inputs[1])
            # Of an unknown order, which matters only where a later node takes an element out.
            return with_piece(self.binding.graph, node, shared, added) or (*shared, added)
        return self._copies(node.outputs[0], before) if node.onnx_op == "Identity" else None

    def _split(self, node: Node) -> Elements | None:
        """Request the pieces of a tensor; of unknown lengths, all of them as one."""
        graph, name = self.binding.graph, node.inputs[0]
        size = self.session.size_bytes(self.binding, name)
        dims = known_dims(graph.tensors[name].shape)
        if size is None or dims is None:
            return None
        count = prod(dims)
        pieces = split_elements(graph, node, dims) or ((count,) if count else ())
        each_bytes = size // count if count else 0
        malloc = self.buffers.recorder.malloc
        return tuple(
            malloc(node.outputs[0], Category.ACTIVATION, each_bytes * piece) for piece in pieces
        )

    def _erased(self, node: Node, before: Elements) -> Elements:
        """Share the elements but one; where it is unknown which, none is left out."""
        sizes_bytes = [self.buffers.recorder.size_bytes(number) for number in before]
        index = erased_index(self.binding.graph, node, sizes_bytes)
        if index is None:
            self.session.unsized[node.outputs[0]] = None
            return self._shared(before)
        return self._shared((*before[:index], *before[index + 1 :]))

    def _copies(self, name: str, elements: Elements) -> Elements:
        """Request copies of all elements of a sequence."""
        recorder = self.buffers.recorder
        sizes_bytes = [recorder.size_bytes(number) for number in elements]
        return tuple(recorder.malloc(name, Category.ACTIVATION, size) for size in sizes_bytes)

    def _copied(self, name: str) -> int:
        """Request a copy of a tensor."""
        size = self.session.requested_bytes(self.binding, name)
        return self.buffers.recorder.malloc(f"copy of {name}", Category.ACTIVATION, size)

    def _shared(self, elements: Elements) -> Elements:
        return tuple(map(self.buffers.recorder.share, elements))

    @property
    def _visible(self) -> Mapping[str, Elements]:
        """The sequences that a subgraph may read."""
        return {**self.passed, **self.buffers.sequences}

    def _scratch(self, node: Node, scratch: Scratch, allocate_outputs: AllocateOutput) -> Numbers:
        """Request a kernel's scratch and, at their point in the order, the outputs.

        Returns the requests; those that are not released yet live to the end of the kernel.
        """
        freed_at: dict[int | None, list[int]] = {}
        for index, stop in enumerate(scratch.freed_after):
            freed_at.setdefault(stop, []).append(index)
        numbers: Numbers = []
        for index, size in enumerate(scratch.blocks):
            if index == scratch.num_before_outputs:
                allocate_outputs()
            if index == scratch.num_before_half:
                self.buffers.recorder.half()
            numbers.append(self._temporary("scratch", node, size))
            for freed in freed_at.get(index + 1, ()):
                self.buffers.recorder.free(numbers[freed])
        if scratch.num_before_outputs == len(scratch.blocks):
            allocate_outputs()
        self._passes(node, scratch)
        return numbers

    def _passes(self, node: Node, scratch: Scratch) -> None:
        for _ in range(min(scratch.passes, _MAX_PASSES)):
            for number in [self._temporary("scratch", node, size) for size in scratch.per_pass]:
                self.buffers.recorder.free(number)

    def _temporary(self, what: str, node: Node, size_bytes: int) -> int:
        label = f"{what} of {node.name}"
        return self.buffers.recorder.malloc(label, Category.TEMPORARY, size_bytes)

    def _branch(self, step: Step) -> None:
        """Run the branch that the trace has; if it is unknown, the one that allocates more, or
        neither where the least counts.
        """
        branch = self.binding.trace.branches.get(step.node.name, _ANY)
        # The outputs alone count then, which ``_step`` requests after the bodies.
        if branch.index is None and self.session.counts_least:
            return
        index = branch.index
        if index is None:
            # The branch that is not run may allocate more where a size of it is unknown.
            index = max(range(len(step.bodies)), key=partial(self._all_bytes, step, branch))
            self.session.unsized.update(dict.fromkeys(self._unsized(step, branch)))
        body = self.binding.inside(step, index, branch.trace_of(index))
        returning = range(len(step.bodies)) if self.session.has_largest_outputs else (index,)
        made = [self.binding.inside(step, each, branch.trace_of(each)) for each in returning]
        for number, outer in enumerate(step.node.outputs):
            names = [(each, each.graph.outputs[number : number + 1]) for each in made]
            sizes = [self.session.size_bytes(each, name) for each, inner in names for name in inner]
            size = max(filter(None, sizes), default=None)
            if size:  # branches may return different sizes, which the If itself does not have
                self.binding.output_bytes[outer] = size
        frame = self.session.open(body, self._provided(step, body.plan), self._visible)
        frame.run()
        for inner, outer in zip(body.graph.outputs, step.node.outputs, strict=False):
            self._receive(outer, frame.returned(inner))

    def _receive(self, name: str, elements: Elements | None) -> None:
        """Take over a sequence that a subgraph returned."""
        if elements is not None and name:
            self.buffers.sequences[name] = elements
        elif elements is not None:
            self.buffers.release_elements(elements)

    def _all_bytes(self, step: Step, branch: BranchTrace, index: int) -> int:
        body = self.binding.inside(step, index, branch.trace_of(index))
        names = (name for inner in body.plan.steps for name in inner.allocates)
        return sum(self.session.size_bytes(body, name) or 0 for name in names)

    def _unsized(self, step: Step, branch: BranchTrace) -> Iterator[str]:
        """The tensors of unknown size that any branch allocates in its own graph."""
        for index in range(len(step.bodies)):
            body = self.binding.inside(step, index, branch.trace_of(index))
            for inner in body.plan.steps:
                # A sequence has no size of its own: its elements are those of tensors.
                if not inner.node.onnx_op.startswith(("Sequence", "SplitToSequence", "Optional")):
                    names = (name for name in inner.allocates if name not in self._visible)
                    yield from (n for n in names if self.session.size_bytes(body, n) is None)

    def _provided(self, step: Step, body: Plan, num_ahead: int = 0) -> Mapping[str, AllocateOutput]:
        """Request the outputs that a node requests before its body; how the body requests each."""
        provided: dict[str, AllocateOutput] = {}
        for index, (inner, outer) in enumerate(
            zip(body.graph.outputs, step.node.outputs, strict=False)
        ):
            is_own = outer in step.allocates
            allocate = partial(self.buffers.allocate, outer) if is_own else _nothing
            # IfImpl::AllocateOutputTensors, ScanImpl::AllocateOutputTensors: a shape known at load
            # is requested at once, any other is ``Delayed`` until the body asks its fetch allocator
            # for it.
            if index < num_ahead or inner in body.sized_outputs:
                allocate()
            provided[inner] = allocate
        return provided

    def _scan(self, step: Step, scratch: Scratch, temporaries: Numbers) -> None:
        scanned = step.node.attributes.get("num_scan_inputs", 0)
        num_states = len(step.bodies[0].graph.inputs)
        num_states -= scanned if isinstance(scanned, int) else 0
        provided = self._provided(step, step.bodies[0], num_states)
        temporaries += self._scratch(step.node, scratch, _nothing)
        loop = self._loop_trace(step)
        # An iteration reads and writes slices of whole tensors (``OrtValueTensorSlicer``), so it
        # needs no buffer for what it scans, and leaves nothing to the next but its states, which
        # are scratch.
        for iteration in range(self._num_simulated(loop)):
            self.buffers.recorder.begin(step.node)
            body = self.binding.inside(step, 0, loop.trace_of(iteration))
            self.session.open(body, provided).run()

    def _loop(self, step: Step, temporaries: Numbers) -> None:
        """Run a Loop's body; what lives to the end of the Loop goes to ``temporaries``."""
        recorder, loop = self.buffers.recorder, self._loop_trace(step)
        temporaries.append(self._temporary("iteration number", step.node, _NUMBER_BYTES))
        # LoopImpl::CreateInitialFeeds: all iterations have one tensor for their number. The
        # condition is an output of each iteration and an input of the next, like the carried
        # values.
        num_carried = len(step.node.inputs) - 1
        inputs: Numbers = [self._temporary("condition", step.node, _CONDITION_BYTES)]
        carried = inputs
        num_simulated = self._num_simulated(loop)
        num_later = (loop.num_iterations or 0) - num_simulated
        outer = [self.sequence(name) for name in step.node.inputs[2:]]
        fed = following = [None if each is None else self._shared(each) for each in outer]
        for iteration in range(num_simulated):
            recorder.begin(step.node)
            if iteration == num_simulated - 1:
                # The last iteration runs beside what all others added.
                temporaries += self._later_scan_outputs(step, loop, num_later)
            # loop.cc keeps the feeds of an iteration until the next feeds are in place. So a value
            # lives through two iterations, unless the body returned its input unchanged.
            for number in inputs:
                if number not in carried and number not in temporaries:
                    recorder.free(number)
            if iteration:
                self._end_shares(fed)
            inputs, fed = carried, following
            body = self.binding.inside(step, 0, loop.trace_of(iteration))
            pairs = zip(body.graph.inputs[2:], fed, strict=False)
            passed = {name: each for name, each in pairs if each is not None}
            frame = self.session.open(body, None, {**self._visible, **passed})
            frame.run()
            names = body.graph.outputs[1 : 1 + len(fed)]
            following = [frame.returned(name) for name in names]
            outputs = frame.buffers.plan.graph.outputs
            fetched = [_fetched(frame.buffers, name, inputs) for name in outputs]
            carried = fetched[:num_carried]
            # ``loop_output_tensors_``: ConcatenateLoopOutput copies the scan outputs of all
            # iterations at the end, so all of them are alive beside the Loop's output.
            temporaries += fetched[num_carried:]
        if not num_simulated:
            # No iteration owns what it would return: the Loop copies its inputs.
            names = step.node.outputs
            following = [
                None if each is None else self._copies(name, each)
                for name, each in zip(names, fed, strict=False)
            ]
        for name, before, after in zip(step.node.outputs, fed, following, strict=False):
            self._receive(name, self._later_elements(name, before, after, num_later))
        self._end_shares(fed)
        temporaries += inputs
        temporaries += carried
        # A value may be both input and output of the last iteration: release it once.
        temporaries[:] = dict.fromkeys(temporaries)

    def _end_shares(self, sequences: Iterable[Elements | None]) -> None:
        for elements in sequences:
            self.buffers.release_elements(elements or ())

    def _later_elements(
        self, name: str, before: Elements | None, after: Elements | None, num_later: int
    ) -> Elements | None:
        """A carried sequence with what the iterations that are not simulated add to it."""
        if before is None or after is None or num_later <= 0:
            return after
        recorder = self.buffers.recorder
        one, other = (sum(map(recorder.size_bytes, each)) for each in (before, after))
        added = max(other - one, 0) * num_later
        return (*after, recorder.malloc(name, Category.ACTIVATION, added))

    def _later_scan_outputs(self, step: Step, loop: LoopTrace, num_later: int) -> Iterator[int]:
        """Request the scan outputs of the iterations that are not simulated."""
        body = self.binding.inside(step, 0, loop.trace_of(len(loop.traces)))
        # One request for all those iterations: the bytes are equal, only the rounding to chunks is
        # not.
        for name in body.graph.outputs[len(step.node.inputs) - 1 :] if num_later > 0 else ():
            size = self.session.size_bytes(body, name) or 0
            yield self.buffers.recorder.malloc(name, Category.ACTIVATION, size * num_later)

    def _loop_trace(self, step: Step) -> LoopTrace:
        """The iterations of a body by the frame's trace, or else by the graph alone."""
        node, graph = step.node, self.binding.graph
        found = self.binding.trace.loops.get(node.name) or LoopTrace(trip_count(graph, node), ())
        is_known = found.is_certain and found.num_iterations is not None
        if self.session.counts_least and not is_known:
            return replace(found, num_iterations=least_trips(graph, node))
        return found

    def _num_simulated(self, loop: LoopTrace) -> int:
        """The number of simulated iterations; 1 if the number of iterations is unknown."""
        if loop.num_iterations is None:
            return 1
        # Nested Loops multiply their iterations; this bounds the sum over all of them.
        is_late = self.session.num_frames > _MAX_FRAMES
        most = _FIRST_ITERATIONS if is_late else max(_MAX_ITERATIONS, len(loop.traces))
        return min(loop.num_iterations, most)


def _nothing() -> None:
    """Request nothing: the output shares another buffer."""


def _fetched(buffers: Buffers, name: str, inputs: Numbers) -> int | None:
    """The request of an output of a Loop's body, which may be that of one of its inputs."""
    names = buffers.plan.graph.inputs[1:]
    source = buffers.plan.buffers.get(name, name)
    if name not in buffers.outputs and source in names[: len(inputs)]:
        return inputs[names.index(source)]
    return buffers.outputs.get(name)
