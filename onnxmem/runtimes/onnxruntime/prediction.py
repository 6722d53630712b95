"""What a session of onnxruntime takes, computed from its graph: definition 9.

The runs of a session are simulated and written down once, and every figure is read from replays of
them: of one run with the memory pattern off, which is where requests can be compared with
onnxruntime's own profile node by node, and of three runs with the session's own settings, after
which a session holds what it will go on holding.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final, Self

from onnxmem.allocators.bfc_arena import ArenaOptions, BfcArena
from onnxmem.errors import Finding, OnnxmemError, listed
from onnxmem.model.graph import Graph, Node, Tensor
from onnxmem.program.replay import OutOfMemoryError, Peak, Replay, replay
from onnxmem.runtimes.onnxruntime.allocation.course import PLAIN, undecided
from onnxmem.runtimes.onnxruntime.allocation.frames import Session
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Planning, plan
from onnxmem.runtimes.onnxruntime.allocation.recording import Run, Sample
from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.kernels.kernel import Scratch
from onnxmem.runtimes.onnxruntime.kernels.prepacking import initializers, kernel_info
from onnxmem.runtimes.onnxruntime.kernels.registry import scratch
from onnxmem.runtimes.onnxruntime.process.loading import Region, arena_regions
from onnxmem.runtimes.onnxruntime.providers import CPU, ExecutionProvider, Packing
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

STEADY_RUNS: Final = 3
"""Runs after which a session is steady: the second asks for the pattern's block, and no later one
for more."""
_TRANSPOSED: Final = -1
"""Stands for what a kernel requests while it packs a weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaFigures:
    """What the arena of one session takes, in bytes."""

    base_bytes: int
    """Before the first node: prepacked weights and weights that lie in the arena."""
    requested_peak_bytes: int
    """The most that is asked for at the end of a node, above the base; pattern off."""
    with_scratch_peak_bytes: int
    """The same with what the node's kernel takes for itself."""
    pattern_block_bytes: int
    """The block that every run after the first asks for in one piece."""
    in_use_peak_bytes: int
    """The most in chunks given out in run 1, base and scratch included; pattern off."""
    held_bytes: int
    """What the arena has of the system after that run."""
    held_steady_bytes: int
    """What it has after the third run, with the session's own settings."""
    touched_steady_bytes: int
    """Of those, what was ever given out: the rest is reserved and not resident."""
    resident_peak_bytes: int
    """The most that was touched in those three runs, or on a GPU held, weights aside; before any
    shrinkage."""
    loaded_regions: tuple[Region, ...]
    """Regions of the arena before the first run."""
    steady_regions: tuple[Region, ...]
    """And after the third, those among them."""
    nodes: tuple[Sample, ...]
    """The first run, node by node; pattern off."""
    peak_node: Node | None
    peak: Peak = field(compare=False)
    """Where the most is asked for: ``replay.live_set`` of it says for what."""
    replay: Replay = field(compare=False, repr=False)
    """The first run in the arena, above the base; pattern off."""


_ONCE: Final = "counted once, for only a run can tell how often they run"
_AT_MOST: Final = "counted as often as they can run, for only a run can tell when they end"
_LARGER: Final = "the larger branch counts, for only a run can tell which"


@dataclass(frozen=True, slots=True)
class Unknowns:
    """What the figures leave out."""

    tensors: tuple[str, ...]
    """Of unknown size: counted as nothing."""
    scratch: Counter[str]
    """Operators whose kernel's scratch is not known, by how often they run."""
    trips: tuple[str, ...]
    """Nodes whose body runs as often as only a run can tell: counted once."""
    branches: tuple[str, ...] = ()
    """Ifs whose condition only a run can tell: the larger branch counts."""
    bounds: tuple[str, ...] = ()
    """Nodes whose body may end earlier than it has to: counted as often as it can run."""
    deciding: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the name of such a node: the inputs whose values would tell."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether tensors or scratch of unknown size count as nothing."""
        return bool(self.tensors or self.scratch)

    def findings(self) -> Iterator[Finding]:
        """Say what is left out."""
        if self.tensors:
            text = f"tensors of unknown size, left out: {listed(self.tensors)}"
            yield Finding("unknown_runtime_tensors", text)
        if self.scratch:
            operators = listed(list(self.scratch))
            text = f"operators whose scratch is not known, taken as none: {operators}"
            yield Finding("unknown_scratch", text)
        for code, names, text in (
            ("unknown_trips", self.trips, _ONCE),
            ("unknown_trips", self.bounds, _AT_MOST),
            ("unknown_branches", self.branches, _LARGER),
        ):
            if names:
                yield Finding(code, f"{text}: {listed(names)}{self._hint(names)}")

    def _hint(self, names: tuple[str, ...]) -> str:
        """What a user can say so that it is known beforehand."""
        inputs = dict.fromkeys(each for name in names for each in self.deciding.get(name, ()))
        if not inputs:
            return ""
        some = "" if all(name in self.deciding for name in names) else " of some"
        flags = " ".join(f"--value {name}=VALUE" for name in inputs)
        return f"; {flags} would tell{some}"


@dataclass(slots=True)
class _Rules:
    """The scratch of one session's kernels, and what is not known of it."""

    provider: ExecutionProvider
    opsets: Mapping[str, int]
    cpu: Cpu
    constants: Mapping[str, Tensor]
    """The graph's initializers, as far as kernels may pack them beforehand."""
    unknown: Counter[str] = field(default_factory=Counter)
    lasting: frozenset[int] = frozenset()
    """Addresses of the graphs that are there as long as the rules; others are of one run."""
    known: dict[tuple[int, int], Scratch | None] = field(default_factory=dict)
    """By the addresses of a lasting graph and a node of it."""

    def of(self, graph: Graph, node: Node) -> Scratch:
        if not self.provider.is_host:
            return Scratch(())  # a workspace is a term of its own
        key = (id(graph), id(node))
        found = self.known[key] if key in self.known else self._found(graph, node)
        if id(graph) in self.lasting:
            self.known[key] = found
        if found is None:
            self.unknown[node.op_type] += 1
            return Scratch(())
        return found

    def _found(self, graph: Graph, node: Node) -> Scratch | None:
        opset = self.opsets.get(node.domain)
        info = kernel_info(graph, node, self.constants, self.cpu, opset)
        return scratch(node.op_type, node.domain, graph.call(node), info)


class ReplayError(OnnxmemError):
    """No arena could serve the session."""

    code: ClassVar[str] = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """All runs of a session that differ from one another, and what they leave out."""

    plain: Run
    """Every run with the memory pattern off."""
    learning: Run
    """The first run with the pattern: it differs where a graph runs more than once in it."""
    later: Run
    """Every later run with the pattern."""
    pattern_bytes: int
    """The main graph's block."""
    unsized: tuple[str, ...] = ()
    """Tensors without a size, in the order in which they come up."""
    unknown_scratch: Counter[str] = field(default_factory=Counter)
    """Operators whose kernel's scratch is not known, by how often they run."""

    def until_steady(self, *, uses_pattern: bool) -> tuple[Run, ...]:
        """The runs after which a session is steady."""
        first, later = (self.learning, self.later) if uses_pattern else (self.plain, self.plain)
        return (first, *[later] * (STEADY_RUNS - 1))


@dataclass(frozen=True)
class RecordedSession:
    """What a session plans and runs, whatever its arena is told."""

    graph: SessionGraph
    provider: ExecutionProvider
    plan: Plan
    rules: _Rules

    @classmethod
    def of(
        cls, session_graph: SessionGraph, options: SessionOptions, provider: ExecutionProvider
    ) -> Self:
        """Plan a session; its runs are simulated when they are asked for."""
        planning = Planning(session_graph.shapes, provider, reuses_memory=options.enable_mem_reuse)
        proto = session_graph.optimized.proto
        rules = _Rules(
            provider,
            {entry.domain: entry.version for entry in proto.opset_import},
            session_graph.facts.cpu,
            # A kernel that may not pack beforehand packs while it runs.
            {} if options.disable_prepacking else initializers(session_graph.graph),
            lasting=_addresses(session_graph.graph),
        )
        return cls(session_graph, provider, plan(session_graph.graph, planning), rules)

    @property
    def is_plain(self) -> bool:
        """Whether every node runs once: no subgraphs, and nothing that values decide."""
        return self.graph.course == PLAIN and not self._has_bodies

    @cached_property
    def runs(self) -> Runs:
        """Simulate the runs."""
        # A frame finds a learned pattern in the first run only where a body runs again: without
        # subgraphs the first run is the same with the pattern and without.
        first = self._session(uses_pattern=not self._has_bodies)
        plain = first.run()
        unknown = self.rules.unknown.copy()  # of this run: the others meet the same operators again
        session, learning = first, plain
        if self._has_bodies:
            session = self._session(uses_pattern=True)
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
    def _has_bodies(self) -> bool:
        return any(step.bodies for step in self.plan.steps)

    def _session(self, *, uses_pattern: bool) -> Session:
        return Session(self.plan, self.rules.of, uses_pattern, self.graph.course)


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """A session with its settings, before it is loaded."""

    recorded: RecordedSession
    options: SessionOptions
    packed: Packing

    @classmethod
    def of(
        cls,
        session_graph: SessionGraph,
        options: SessionOptions,
        provider: ExecutionProvider = CPU,
        recorded: RecordedSession | None = None,
    ) -> Self:
        """Plan a session, or take what is ``recorded`` of one whose arena alone differs."""
        packed = provider.packing(session_graph.graph, options, session_graph.facts)
        recorded = recorded or RecordedSession.of(session_graph, options, provider)
        return cls(recorded, options, packed)

    def figures(self) -> tuple[ArenaFigures, Unknowns]:
        """All figures of the session, and what they leave out.

        :raises ReplayError: it asks for more bytes than there are addresses, or than its limit.
        """
        try:
            return self._figures(self.recorded.runs), self.unknowns
        except OutOfMemoryError as fault:
            raise ReplayError(self._exhausted) from fault

    @property
    def unknowns(self) -> Unknowns:
        """What the figures leave out."""
        runs, left = self.recorded.runs, undecided(self.recorded.graph.course)
        return Unknowns(
            runs.unsized,
            runs.unknown_scratch,
            left.trips,
            left.branches,
            left.bounds,
            self.recorded.graph.deciding,
        )

    def loaded_arena(self, capacity_bytes: int | None = None) -> BfcArena:
        """The arena before the first run, by default on a device that is large enough.

        :raises OutOfMemoryError: the session does not load.
        """
        arena = new_arena(self.options, self.recorded.provider, capacity_bytes)
        _load(arena, self.packed)
        return arena

    @property
    def _exhausted(self) -> str:
        """Why a session does not run."""
        limit_bytes = self.options.gpu_mem_limit_bytes
        if limit_bytes is None:
            return "the buffers of a run are more bytes than there are addresses"
        return f"the arena does not get by with {limit_bytes:,} bytes"

    def _figures(self, runs: Runs) -> ArenaFigures:
        arena, base_bytes = self.loaded_arena(), self.packed.requested_bytes
        loaded_regions = arena_regions(arena)
        first = _serve(arena, runs.plain)
        in_use_peak_bytes, held_bytes = arena.in_use_peak_bytes, arena.reserved_bytes
        steady_first, *later = runs.until_steady(uses_pattern=self.options.enable_mem_pattern)
        if steady_first is not runs.plain:
            arena = self.loaded_arena()
            _serve(arena, steady_first)
        resident_bytes = self._end_run(arena)
        for run in later:
            _serve(arena, run)
            resident_bytes = max(resident_bytes, self._end_run(arena))
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
            touched_steady_bytes=arena.resident_bytes,
            resident_peak_bytes=resident_bytes,
            loaded_regions=loaded_regions,
            steady_regions=arena_regions(arena),
            nodes=nodes,
            peak_node=runs.plain.peak_node,
            peak=peak,
            replay=first,
        )

    def _end_run(self, arena: BfcArena) -> int:
        """What is resident after a run, before the arena shrinks where it is told to."""
        resident_bytes = self.recorded.provider.resident_bytes(arena, self.packed)
        if self.options.shrinks_arena:
            arena.shrink()
        return resident_bytes


def arena_figures(
    session_graph: SessionGraph, options: SessionOptions, provider: ExecutionProvider = CPU
) -> tuple[ArenaFigures, Unknowns]:
    """Replay a session; bytes that are unknown count as nothing and are named.

    :raises ReplayError: it asks for more bytes than there are addresses, or than its limit.
    """
    return PlannedSession.of(session_graph, options, provider).figures()


def _serve(arena: BfcArena, run: Run) -> Replay:
    """Replay a run in an arena.

    :raises OutOfMemoryError: the arena does not serve a request.
    """
    served = replay(run.program, run.sizes, arena)
    if served.out_of_memory_at is not None:
        raise OutOfMemoryError
    return served


def _addresses(graph: Graph) -> frozenset[int]:
    inner = (body for node in graph.all_nodes() for _, body in node.subgraphs)
    return frozenset(map(id, (graph, *inner)))


def new_arena(
    options: SessionOptions, provider: ExecutionProvider, capacity_bytes: int | None = None
) -> BfcArena:
    """The arena of a session before its weights lie in it."""
    given = ArenaOptions(
        doubles=options.arena_extend_strategy == "kNextPowerOfTwo",
        mapped_from_bytes=provider.mapped_from_bytes,
    )
    if options.gpu_mem_limit_bytes is not None:
        given = replace(given, limit_bytes=options.gpu_mem_limit_bytes)
    if capacity_bytes is not None:
        given = replace(given, capacity_bytes=capacity_bytes)
    return BfcArena(given)


def _load(arena: BfcArena, packed: Packing) -> None:
    """Bring the weights of a session into its arena.

    :raises OutOfMemoryError: they do not fit.
    """
    for size in packed.reserved_bytes:
        arena.reserve(size)
    arena.in_use_peak_bytes += packed.transient_bytes
    # A program numbers its allocations from 0 on: weights have the numbers below.
    for num_before, size in enumerate((*packed.allocated_bytes, 0)):
        for size_bytes in (each for before, each in packed.transposed if before == num_before):
            arena.malloc(_TRANSPOSED, size_bytes)
            arena.free(_TRANSPOSED)
        if size:
            arena.malloc(_TRANSPOSED - 1 - num_before, size)
