"""Predicts the memory of a session of onnxruntime from its graph (definition 9).

The runs of a session are simulated and recorded once, and every figure comes from replays of them:
one run with the memory pattern off, whose requests can be compared node by node with onnxruntime's
profile, and three runs with the session's own settings, after which the arena is in steady state.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final, Self

from onnxmem.allocators.bfc_arena import ArenaOptions, BfcArena
from onnxmem.errors import Finding, OnnxmemError, listed
from onnxmem.model.graph import Graph, Node, Tensor
from onnxmem.model.traversal import opset_versions
from onnxmem.program.replay import OutOfMemoryError, Peak, Replay, replay
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import (
    EMPTY_TRACE,
    covering_traces,
    possible_traces,
    undecided,
    without_shapes,
)
from onnxmem.runtimes.onnxruntime.allocation.frames import Session
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Planning, plan
from onnxmem.runtimes.onnxruntime.allocation.recording import Run, Sample
from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.kernels.kernel import Scratch
from onnxmem.runtimes.onnxruntime.kernels.prepacking import initializers, kernel_info
from onnxmem.runtimes.onnxruntime.kernels.registry import scratch
from onnxmem.runtimes.onnxruntime.process.loading import Region, arena_regions
from onnxmem.runtimes.onnxruntime.providers import CPU, ArenaInitializers, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

STEADY_RUNS: Final = 3
"""Runs up to the steady state: the second requests the memory-pattern buffer, and later runs repeat
it."""
_MOST_RUNS: Final = 16
"""Combinations of the branches of Ifs: each is a replay."""
_TRANSPOSED: Final = -1
"""The number of a request that a kernel makes while it prepacks a weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaFigures:
    """The memory of a session's arena, in bytes."""

    base_bytes: int
    """Arena initializers, allocated before the first node: prepacked and copied weights."""
    requested_peak_bytes: int
    """Peak requested by kernels at the end of a node, above the arena initializers; memory pattern
    off."""
    with_scratch_peak_bytes: int
    """The same, with the node's own scratch."""
    pattern_block_bytes: int
    """The memory-pattern buffer that every run after the first requests."""
    in_use_peak_bytes: int
    """Peak of the allocated chunks in run 1, arena initializers and scratch included; memory
    pattern off."""
    held_bytes: int
    """Arena reserved after that run."""
    held_steady_bytes: int
    """Arena reserved after the third run, with the session's own settings."""
    resident_peak_bytes: int
    """Peak resident bytes of the arena in those three runs, on a GPU reserved bytes; without
    initializers, and before any shrinkage."""
    loaded_regions: tuple[Region, ...] = field(repr=False)
    """Regions of the arena before the first run."""
    first_regions: tuple[Region, ...] = field(repr=False)
    """Regions after the first run with the session's own settings, the loaded ones included."""
    steady_regions: tuple[Region, ...] = field(repr=False)
    """Regions after the third run, the loaded ones included."""
    nodes: tuple[Sample, ...] = field(repr=False)
    """The first run, node by node; memory pattern off."""
    peak_node: Node | None = field(repr=False)
    peak: Peak = field(compare=False)
    """The peak requested by kernels; ``replay.live_set`` has its tensors."""
    replay: Replay = field(compare=False, repr=False)
    """The first run in the arena, above the arena initializers; memory pattern off."""


_ONCE: Final = "counted once, because their number of iterations is unknown"
_AT_MOST: Final = "counted with the maximum number of iterations, because they may end earlier"
_LARGER: Final = "the larger branch counts, because the condition is unknown"


@dataclass(frozen=True, slots=True)
class Unknowns:
    """What is unknown, and so missing from the figures or bounded by them."""

    tensors: tuple[str, ...]
    """Tensors of unknown size, counted as 0 bytes."""
    scratch: Counter[str]
    """Operators whose kernel's scratch is unknown, by the number of their executions."""
    loops: tuple[str, ...]
    """Loops of an unknown number of iterations, counted once."""
    branches: tuple[str, ...] = ()
    """Ifs of an unknown condition: the larger branch counts."""
    bounded_loops: tuple[str, ...] = ()
    """Loops that may end early, counted with their maximum number of iterations."""
    deciding: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the name of such a node: the inputs whose values would decide it."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether tensors or scratch of unknown size count as 0 bytes."""
        return bool(self.tensors or self.scratch)

    def findings(self) -> Iterator[Finding]:
        """One finding per kind of unknown."""
        if self.tensors:
            text = f"tensors of unknown size, left out: {listed(self.tensors)}"
            yield Finding("unknown_runtime_tensors", text)
        if self.scratch:
            operators = listed(list(self.scratch))
            text = f"operators whose scratch is unknown, counted as 0 bytes: {operators}"
            yield Finding("unknown_scratch", text)
        for code, names, text in (
            ("unknown_trips", self.loops, _ONCE),
            ("unknown_trips", self.bounded_loops, _AT_MOST),
            ("unknown_branches", self.branches, _LARGER),
        ):
            if names:
                yield Finding(code, f"{text}: {listed(names)}{self._hint(names)}")

    def _hint(self, names: tuple[str, ...]) -> str:
        """The options with which a user can decide the control flow."""
        inputs = dict.fromkeys(each for name in names for each in self.deciding.get(name, ()))
        if not inputs:
            return ""
        some = "" if all(name in self.deciding for name in names) else " of some"
        flags = " ".join(f"--value {name}=VALUE" for name in inputs)
        return f"; {flags} would decide{some}"


@dataclass(slots=True)
class _Rules:
    """The scratch of one session's kernels, with a count of the unknown ones."""

    provider: ExecutionProvider
    opsets: Mapping[str, int]
    cpu: Cpu
    constants: Mapping[str, Tensor]
    """The initializers that kernels may prepack."""
    threads: int = 1
    """Intra-op threads."""
    host: frozenset[str] = frozenset()
    """Values in the host's memory, of a session on CUDA."""
    unknown: Counter[str] = field(default_factory=Counter)
    cacheable: frozenset[int] = frozenset()
    """Ids of the graphs that live as long as this object; others are created for one run."""
    cache: dict[tuple[int, int], Scratch | None] = field(default_factory=dict)
    """By the ids of a cacheable graph and a node."""

    def of(self, graph: Graph, node: Node) -> Scratch:
        key = (id(graph), id(node))
        # Every run of a body asks again for the scratch of its nodes.
        found = self.cache[key] if key in self.cache else self._found(graph, node)
        # The id of a graph that was created for one run may be that of another one later.
        if id(graph) in self.cacheable:
            self.cache[key] = found
        if found is None:
            self.unknown[node.op_type] += 1
            return Scratch(())
        return found

    def _found(self, graph: Graph, node: Node) -> Scratch | None:
        if not self.host.isdisjoint(node.writes):
            return Scratch(())  # the CPU runs it
        opset = self.opsets.get(node.domain)
        info = kernel_info(graph, node, self.constants, self.cpu, opset)
        info = replace(info, threads=self.threads)
        on_cuda = not self.provider.is_host  # where workspaces of cuDNN are a separate figure
        return scratch(node.op_type, node.domain, graph.call(node), info, on_cuda=on_cuda)


def planning_of(
    session_graph: SessionGraph, options: SessionOptions, provider: ExecutionProvider
) -> Planning:
    """What the plan of a session follows from."""
    return Planning(
        session_graph.shapes,
        provider,
        reuses_memory=options.enable_mem_reuse,
        host=session_graph.facts.host,
    )


class ReplayError(OnnxmemError):
    """The arena cannot serve the session."""

    code: ClassVar[str] = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The distinct runs of a session, and what is unknown of them."""

    plain: Run
    """Every run with the memory pattern off."""
    learning: Run
    """The first run with the memory pattern: differs from ``plain`` if a subgraph runs
    repeatedly."""
    later: Run
    """Every later run with the memory pattern."""
    pattern_bytes: int
    """The memory-pattern buffer of the main graph."""
    unsized: tuple[str, ...] = ()
    """Tensors of unknown size, in the order of their requests."""
    unknown_scratch: Counter[str] = field(default_factory=Counter)
    """Operators whose kernel's scratch is unknown, by the number of their executions."""

    def until_steady(self, *, uses_pattern: bool) -> tuple[Run, ...]:
        """The runs up to the steady state."""
        first, later = (self.learning, self.later) if uses_pattern else (self.plain, self.plain)
        return (first, *[later] * (STEADY_RUNS - 1))


@dataclass(frozen=True)
class RecordedSession:
    """The plan and the runs of a session, which do not depend on its arena."""

    graph: SessionGraph
    provider: ExecutionProvider
    plan: Plan
    rules: _Rules
    counts_least: bool = False
    """Whether what the data of a run decide counts as little as may be (``Session``)."""
    has_largest_outputs: bool = False
    """Whether an If requests the largest of what its branches return (``Session``)."""

    @classmethod
    def of(
        cls, session_graph: SessionGraph, options: SessionOptions, provider: ExecutionProvider
    ) -> Self:
        """Plan a session; its runs are simulated on demand."""
        planning = planning_of(session_graph, options, provider)
        proto = session_graph.optimized.proto
        rules = _Rules(
            provider,
            opset_versions(proto),
            session_graph.facts.cpu,
            # A kernel that may not prepack a weight packs it in each run.
            {} if options.disable_prepacking else initializers(session_graph.graph),
            threads=options.num_threads,
            host=session_graph.facts.host,
            cacheable=_graph_ids(session_graph.graph),
        )
        return cls(session_graph, provider, plan(session_graph.graph, planning), rules)

    @property
    def is_plain(self) -> bool:
        """Whether every node runs once: there are no subgraphs, and values decide nothing."""
        return self.graph.trace == EMPTY_TRACE and not self.has_bodies

    @cached_property
    def runs(self) -> Runs:
        """Simulate the runs."""
        # In the first run, only a body that runs repeatedly finds its pattern. So without subgraphs
        # the first run is the same with and without the memory pattern.
        first = self.session(uses_pattern=not self.has_bodies)
        plain = first.run()
        unknown = self.rules.unknown.copy()  # of this run: the others have the same operators
        session, learning = first, plain
        if self.has_bodies:
            session = self.session(uses_pattern=True)
            learning = session.run()
        return Runs(
            plain=plain,
            learning=learning,
            later=session.run(),
            pattern_bytes=session.pattern_bytes,
            unsized=tuple(first.unsized),
            unknown_scratch=unknown,
        )

    @property
    def has_bodies(self) -> bool:
        """Whether any node has subgraphs, which have memory patterns of their own."""
        return any(step.bodies for step in self.plan.steps)

    def session(self, *, uses_pattern: bool) -> Session:
        """The session before its first run."""
        return Session(
            self.plan,
            self.rules.of,
            uses_pattern,
            self.graph.trace,
            self.counts_least,
            has_largest_outputs=self.has_largest_outputs,
            copied=() if self.provider.is_host else self._copied_inputs,
        )

    @property
    def _copied_inputs(self) -> tuple[str, ...]:
        graph = self.graph.graph
        return tuple(name for name in graph.inputs if name not in self.graph.facts.host)


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """A session with its settings, before it is loaded."""

    recorded: RecordedSession
    options: SessionOptions
    packed: ArenaInitializers

    @classmethod
    def of(
        cls,
        session_graph: SessionGraph,
        options: SessionOptions,
        provider: ExecutionProvider = CPU,
        recorded: RecordedSession | None = None,
    ) -> Self:
        """Plan a session; ``recorded`` is from a session that differs in the arena only."""
        packed = provider.packing(session_graph.graph, options, session_graph.facts)
        recorded = recorded or RecordedSession.of(session_graph, options, provider)
        return cls(recorded, options, packed)

    def figures(self) -> tuple[ArenaFigures, Unknowns]:
        """The figures of the session, and what is unknown.

        :raises ReplayError: its requests exceed the address space or the arena's limit.
        """
        try:
            return self._figures(self.recorded.runs), self.unknowns
        except OutOfMemoryError as fault:
            raise ReplayError(self.exhausted) from fault

    @property
    def at_least(self) -> "PlannedSession":
        """The same where what the data of a run decide counts as little as may be."""
        recorded, graph = self.recorded, self.recorded.graph
        # Shapes that follow from the maximum number of iterations are no lower bound.
        if undecided(graph.trace).bounded_loops:
            graph = replace(graph, trace=without_shapes(graph.trace))
        return replace(
            self,
            recorded=RecordedSession(
                graph, recorded.provider, recorded.plan, recorded.rules, counts_least=True
            ),
        )

    @property
    def unknowns(self) -> Unknowns:
        """What is unknown of the runs."""
        runs, left = self.recorded.runs, undecided(self.recorded.graph.trace)
        return Unknowns(
            runs.unsized,
            runs.unknown_scratch,
            left.loops,
            left.branches,
            left.bounded_loops,
            self.recorded.graph.deciding,
        )

    def loaded_arena(self, capacity_bytes: int | None = None) -> BfcArena:
        """The arena before the first run; without a capacity, on a device of unlimited memory.

        :raises OutOfMemoryError: the session cannot be loaded.
        """
        return self.arena_of_sessions(1, capacity_bytes)

    def arena_of_sessions(self, count: int, capacity_bytes: int | None = None) -> BfcArena:
        """The same with the initializers of so many sessions, which have one arena.

        :raises OutOfMemoryError: the sessions cannot be loaded.
        """
        arena = new_arena(self.options, self.recorded.provider, capacity_bytes)
        for index in range(count):
            _load(arena, self.packed, index)
        return arena

    @property
    def exhausted(self) -> str:
        """The message of a session that runs out of memory."""
        limit_bytes = self.options.gpu_mem_limit_bytes
        if limit_bytes is None:
            return "the buffers of a run exceed the address space"
        return f"the arena needs more than {limit_bytes:,} bytes"

    def _figures(self, runs: Runs) -> ArenaFigures:
        # The first arena serves one run without the memory pattern, as in a profile. The steady
        # figures continue from it, or start again with a new arena if the first run differs.
        arena, base_bytes = self.loaded_arena(), self.packed.requested_bytes
        loaded_regions = arena_regions(arena)
        first = _serve(arena, runs.plain)
        in_use_peak_bytes, held_bytes = arena.in_use_peak_bytes, arena.reserved_bytes
        steady_first, *later = runs.until_steady(uses_pattern=self.options.enable_mem_pattern)
        if steady_first is not runs.plain or self.options.shrinks_arena:
            arena = self.loaded_arena()
            resident_bytes = self._run(arena, steady_first)
        else:
            resident_bytes = self._resident_bytes(arena)
        first_regions = arena_regions(arena)
        for run in later:
            resident_bytes = max(resident_bytes, self._run(arena, run))
        nodes = tuple(runs.plain.samples(base_bytes))
        with_scratch = (sample.requested_bytes + sample.scratch_bytes for sample in nodes)
        peak = runs.plain.requested_peak
        return ArenaFigures(
            base_bytes=base_bytes,
            requested_peak_bytes=peak.size_bytes,
            with_scratch_peak_bytes=max(with_scratch, default=base_bytes) - base_bytes,
            pattern_block_bytes=runs.pattern_bytes,
            in_use_peak_bytes=in_use_peak_bytes,
            held_bytes=held_bytes,
            held_steady_bytes=arena.reserved_bytes,
            resident_peak_bytes=resident_bytes,
            loaded_regions=loaded_regions,
            first_regions=first_regions,
            steady_regions=arena_regions(arena),
            nodes=nodes,
            peak_node=runs.plain.peak_node,
            peak=peak,
            replay=first,
        )

    def _run(self, arena: BfcArena, run: Run) -> int:
        """Resident bytes after a run, before the arena shrinks if that is enabled."""
        if not self.options.shrinks_arena:
            _serve(arena, run)
            return self._resident_bytes(arena)
        # InferenceSession::Run shrinks before it returns: a region that holds an output stays, and
        # the caller releases the output later.
        _serve(arena, replace(run, program=run.returned))
        resident_bytes = self._resident_bytes(arena)
        arena.shrink()
        for number in run.outputs:
            # An output without elements, or of unknown size, has no chunk.
            if run.sizes.fixed_bytes[number]:
                arena.free(number)
        return resident_bytes

    def _resident_bytes(self, arena: BfcArena) -> int:
        return self.recorded.provider.resident_bytes(arena, self.packed)


def arena_figures(
    session_graph: SessionGraph, options: SessionOptions, provider: ExecutionProvider = CPU
) -> tuple[ArenaFigures, Unknowns]:
    """Replay a session; unknown bytes count as 0 and are listed.

    :raises ReplayError: its requests exceed the address space or the arena's limit.
    """
    return PlannedSession.of(session_graph, options, provider).figures()


@dataclass(frozen=True, slots=True)
class PossibleRuns:
    """A session with each combination of the branches that the data of a run decide."""

    sessions: tuple[SessionGraph, ...]
    are_all: bool
    """Whether no run differs from all of them; else what is left counts as little as may be."""
    are_covering: bool = False
    """Whether they are not all combinations, but have each branch once (``of_each_branch``)."""

    @classmethod
    def of(cls, session: SessionGraph, *, in_loops: bool = False) -> Self:
        """The combinations of the Ifs outside of loops, where there are few; with ``in_loops``,
        also of those in loops of which all iterations have one trace.
        """
        traces = possible_traces(session.trace, _MOST_RUNS, in_loops=in_loops)
        if traces is None:
            return cls((session,), are_all=False)
        are_all = not any(undecided(each).names() for each in traces)
        return cls(tuple(replace(session, trace=each) for each in traces), are_all)

    @classmethod
    def of_each_branch(cls, session: SessionGraph) -> Self:
        """The runs whose largest requested peak is at least that of every combination, if each If
        requests the largest that any of its branches returns.

        Then what lives outside of an If has the same bytes whichever branches of others run, and
        the peak is in one branch of one If, or outside of all. So it is enough that each branch
        runs once. A sequence that a branch returns has elements of its own: with one, all
        combinations are needed.
        """
        found = cls.of(session, in_loops=True)
        if found.are_all or returns_sequences(session.graph):
            return found
        traces = covering_traces(session.trace)
        are_all = not any(undecided(each).names() for each in traces)
        sessions = tuple(replace(session, trace=each) for each in traces)
        return cls(sessions, are_all, are_covering=True)


def returns_sequences(graph: Graph) -> bool:
    """Whether an If returns something that has elements instead of a shape."""
    outputs = (n for node in graph.all_nodes() if node.onnx_op == "If" for n in node.writes)
    tensors = [graph.tensors[name] for name in outputs]
    # The symbol is that of `model/intervals/walk.py` for an unknown number of elements.
    return any(each.shape is None or each.dynamic == (f"{each.name}:elements",) for each in tensors)


def _serve(arena: BfcArena, run: Run) -> Replay:
    """Replay a run in an arena.

    :raises OutOfMemoryError: the arena does not serve a request.
    """
    served = replay(run.program, run.sizes, arena)
    if served.out_of_memory_at is not None:
        raise OutOfMemoryError
    return served


def _graph_ids(graph: Graph) -> frozenset[int]:
    inner = (body for node in graph.all_nodes() for _, body in node.subgraphs)
    return frozenset(map(id, (graph, *inner)))


def new_arena(
    options: SessionOptions, provider: ExecutionProvider, capacity_bytes: int | None
) -> BfcArena:
    """The arena of a session, without its initializers."""
    arena = ArenaOptions(
        doubles=options.arena_extend_strategy == "kNextPowerOfTwo",
        mapped_from_bytes=provider.mapped_from_bytes,
    )
    if options.gpu_mem_limit_bytes is not None:
        arena = replace(arena, limit_bytes=options.gpu_mem_limit_bytes)
    if capacity_bytes is not None:
        arena = replace(arena, capacity_bytes=capacity_bytes)
    return BfcArena(arena)


def _load(arena: BfcArena, packed: ArenaInitializers, index: int = 0) -> None:
    """Allocate the initializers of a session in its arena; ``index``: sessions that have them.

    :raises OutOfMemoryError: they do not fit.
    """
    # Reserved blocks are outside the regions, so their order does not matter; that of the others
    # decides which regions the arena adds.
    for size in packed.reserved_bytes:
        arena.reserve(size)
    arena.in_use_peak_bytes += packed.transient_bytes
    # Initializers have negative numbers, for those of a program start at 0. A transposed copy is
    # requested at its point in the order, and leaves the arena with the region it needed.
    first = _TRANSPOSED - 1 - index * len(packed.allocated_bytes)
    for num_before, size in enumerate((*packed.allocated_bytes, 0)):
        for size_bytes in (each for before, each in packed.transposed if before == num_before):
            arena.malloc(_TRANSPOSED, size_bytes)
            arena.free(_TRANSPOSED)
        if size:
            arena.malloc(first - num_before, size)
