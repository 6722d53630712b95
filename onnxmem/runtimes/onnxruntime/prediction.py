"""What a session of onnxruntime takes, worked out from its graph: definition 6.

The plan is replayed twice: once run with the memory pattern off, which is where requests can be
compared with onnxruntime's own profile node by node, and three times with the session's own
settings, after which a session holds what it will go on holding.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final, Protocol, Self

from onnxmem.allocators.bfc_arena import Arena, ArenaExhaustedError, ArenaOptions
from onnxmem.errors import Finding, OnnxmemError, listed
from onnxmem.model import Graph, Node, Tensor
from onnxmem.runtimes.onnxruntime.allocation.course import PLAIN, undecided
from onnxmem.runtimes.onnxruntime.allocation.frames import Sample, Session
from onnxmem.runtimes.onnxruntime.allocation.kernels import CPU, Kernels
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Planning, plan
from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.packing import Packing, packing
from onnxmem.runtimes.onnxruntime.prepacking import initializers, site_of
from onnxmem.runtimes.onnxruntime.process import MEASURED, Region, arena_regions
from onnxmem.runtimes.onnxruntime.scratch import Scratch, scratch
from onnxmem.runtimes.onnxruntime.session_graph import SessionGraph
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

STEADY_RUNS = 3
"""Runs after which a session is steady: the second asks for the pattern's block, and no later one
for more."""


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
    """The first run, node by node."""
    peak_node: Node | None


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

    kernels: Kernels
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
        if self.kernels.provider != "cpu":
            return Scratch(())  # cuDNN's workspace is a term of its own.
        key = (id(graph), id(node))
        found = self.known[key] if key in self.known else self._found(graph, node)
        if id(graph) in self.lasting:
            self.known[key] = found
        if found is None:
            self.unknown[node.op_type] += 1
            return Scratch(())
        return found

    def _found(self, graph: Graph, node: Node) -> Scratch | None:
        site = site_of(graph, node, self.constants, self.cpu)
        site = replace(site, opset=self.opsets.get(node.domain))
        return scratch(node.op_type, node.domain, graph.call(node), site)


class ReplayError(OnnxmemError):
    """No arena could serve the session."""

    code: ClassVar[str] = "replay"


@dataclass(frozen=True, slots=True)
class Pressure:
    """What a device of some capacity does to a session."""

    num_retries: int
    """Regions that are made smaller than asked for."""
    is_out_of_memory: bool


def arena_figures(
    session_graph: SessionGraph, options: SessionOptions, kernels: Kernels = CPU
) -> tuple[ArenaFigures, Unknowns]:
    """Replay a session; bytes that are unknown count as nothing and are named.

    :raises ReplayError: it asks for more bytes than there are addresses, or than its limit.
    """
    return replayed_figures(Replay.of(session_graph, options, kernels))


class Running(Protocol):
    """A session that is loaded: it runs by its plan, or by a log of what it requests."""

    arena: Arena

    def run(self) -> object:
        """Run the model once."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What all runs of a session have in common."""

    graph: SessionGraph
    options: SessionOptions
    kernels: Kernels
    packed: Packing
    plan: Plan
    rules: _Rules

    @classmethod
    def of(cls, session_graph: SessionGraph, options: SessionOptions, kernels: Kernels) -> Self:
        """Plan a session; nothing is allocated yet."""
        planning = Planning(session_graph.shapes, kernels, reuses_memory=options.enable_mem_reuse)
        proto = session_graph.optimised.proto
        rules = _Rules(
            kernels,
            {entry.domain: entry.version for entry in proto.opset_import},
            session_graph.facts.cpu,
            # A kernel that may not pack beforehand packs while it runs.
            {} if options.disable_prepacking else initializers(session_graph.graph),
            lasting=_addresses(session_graph.graph),
        )
        packed = packing(session_graph.graph, options, kernels, session_graph.facts)
        planned = plan(session_graph.graph, planning)
        return cls(session_graph, options, kernels, packed, planned, rules)

    @property
    def is_decided(self) -> bool:
        """Whether values that are known decide what a run does."""
        return self.graph.course != PLAIN

    def session(self, arena: Arena | None = None, *, uses_pattern: bool = True) -> Session:
        """A session before its first run; by default on a device that is large enough.

        :raises ArenaExhaustedError: it does not load.
        """
        return Session(
            self.plan,
            arena or self.loaded_arena(),
            scratch=self.rules.of,
            course=self.graph.course,
            uses_pattern=uses_pattern,
        )

    def run(self, session: Running, before: int = 0) -> int:
        """Run a session, of which some runs are done, until it is steady: its resident peak.

        :raises ArenaExhaustedError: a limit is reached.
        """
        resident_bytes = 0
        for number in range(STEADY_RUNS):
            if number >= before:
                session.run()
            resident = _resident_bytes(session.arena, self.packed, self.kernels)
            resident_bytes = max(resident_bytes, resident)
            if self.options.shrinks_arena:
                session.arena.shrink()
        return resident_bytes

    def loaded_arena(self, capacity_bytes: int | None = None) -> Arena:
        """The arena before the first run, by default on a device that is large enough.

        :raises ArenaExhaustedError: the session does not load.
        """
        return _loaded_arena(self.packed, self.options, self.kernels, capacity_bytes)

    def pressure(
        self, capacity_bytes: int, running: Callable[[Arena], Running] | None = None
    ) -> Pressure:
        """Load and run a session on a device that has so many bytes for its arena.

        ``running`` is how it runs in an arena; by default by its plan, with its own settings.
        """
        arena = None
        running = running or partial(self.session, uses_pattern=self.options.enable_mem_pattern)
        try:
            arena = self.loaded_arena(capacity_bytes)
            self.run(running(arena))
        except ArenaExhaustedError:
            return Pressure(0 if arena is None else arena.num_retries, is_out_of_memory=True)
        return Pressure(arena.num_retries, is_out_of_memory=False)

    @property
    def exhausted(self) -> str:
        """Why a session does not run."""
        limit_bytes = self.options.gpu_mem_limit_bytes
        if limit_bytes is None:
            return "the buffers of a run are more bytes than there are addresses"
        return f"the arena does not get by with {limit_bytes:,} bytes"


def replayed_figures(replay: Replay) -> tuple[ArenaFigures, Unknowns]:
    """All figures of a session, and what they leave out.

    :raises ReplayError: it asks for more bytes than there are addresses, or than its limit.
    """
    try:
        return _figures(replay)
    except ArenaExhaustedError as fault:
        raise ReplayError(replay.exhausted) from fault


def _figures(replay: Replay) -> tuple[ArenaFigures, Unknowns]:
    first = replay.session(uses_pattern=False)
    base_bytes = first.arena.requested_bytes
    loaded_regions = arena_regions(first.arena)
    nodes = first.run()
    left = undecided(replay.graph.course)
    unknown = Unknowns(
        tuple(first.unsized),
        replay.rules.unknown.copy(),  # of this run, for the others meet the same operators again
        left.trips,
        left.branches,
        left.bounds,
        replay.graph.deciding,
    )
    in_use_peak_bytes, held_bytes = first.arena.in_use_peak_bytes, first.arena.held_bytes
    traced = replay.session()
    traced.run()
    steady = traced if replay.options.enable_mem_pattern else first
    resident_bytes = replay.run(steady, before=1)
    peak = max(nodes, key=lambda sample: sample.requested_bytes, default=None)
    with_scratch = (sample.requested_bytes + sample.scratch_bytes for sample in nodes)
    figures = ArenaFigures(
        base_bytes=base_bytes,
        requested_peak_bytes=peak.requested_bytes - base_bytes if peak else 0,
        with_scratch_peak_bytes=max(with_scratch, default=base_bytes) - base_bytes,
        pattern_block_bytes=traced.pattern_bytes,
        in_use_peak_bytes=in_use_peak_bytes,
        held_bytes=held_bytes,
        held_steady_bytes=steady.arena.held_bytes,
        touched_steady_bytes=steady.arena.touched_bytes,
        resident_peak_bytes=resident_bytes,
        loaded_regions=loaded_regions,
        steady_regions=arena_regions(steady.arena),
        nodes=nodes,
        peak_node=peak.node if peak else None,
    )
    return figures, unknown


def _addresses(graph: Graph) -> frozenset[int]:
    inner = (body for node in graph.all_nodes() for _, body in node.subgraphs)
    return frozenset(map(id, (graph, *inner)))


def _resident_bytes(arena: Arena, packed: Packing, kernels: Kernels) -> int:
    """What the arena takes of the device's memory, weights aside.

    A process's own memory is taken page by page when it is touched, a GPU's with the region.
    """
    allocated_bytes = sum(packed.allocated_bytes)
    if kernels.provider == "cuda":
        return arena.held_bytes - sum(packed.reserved_bytes) - allocated_bytes
    return arena.touched_bytes - allocated_bytes


def _loaded_arena(
    packed: Packing,
    options: SessionOptions,
    kernels: Kernels,
    capacity_bytes: int | None = None,
) -> Arena:
    """The arena of a session before its first run.

    :raises ArenaExhaustedError: it does not fit.
    """
    given = ArenaOptions(doubles=options.arena_extend_strategy == "kNextPowerOfTwo")
    if options.gpu_mem_limit_bytes is not None:
        given = replace(given, limit_bytes=options.gpu_mem_limit_bytes)
    if capacity_bytes is not None:
        given = replace(given, capacity_bytes=capacity_bytes)
    if kernels.provider == "cpu":
        given = replace(given, mapped_from_bytes=MEASURED.mmap_threshold_bytes)
    arena = Arena(given)
    for size in packed.reserved_bytes:
        arena.reserve(size)
    arena.in_use_peak_bytes += packed.passing_bytes
    for place, size in enumerate((*packed.allocated_bytes, 0)):
        for turned_bytes in (each for before, each in packed.turned if before == place):
            arena.free(arena.allocate(turned_bytes))
        arena.allocate(size)
    return arena
