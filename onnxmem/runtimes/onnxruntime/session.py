"""A session of onnxruntime as a ``Runtime``: its load and its runs, served by one arena.

The arena first serves the initializers, then the first run, then the later runs with the memory
pattern. On the CPU, the device needs the resident memory of the process, which follows from the
arena's regions; on a GPU it needs the regions, the context and cuDNN's workspace.

A range of batches shares one plan, if the optimized graph has no subgraphs: prepacked weights and
the order of requests do not depend on the batch, and sizes are affine. Three simulated batches of
the range verify that. The runs of subgraphs may differ from batch to batch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.errors import Finding
from onnxmem.model.graph import Graph
from onnxmem.model.observed import NO_RUN, GraphRun
from onnxmem.program.program import Category
from onnxmem.program.replay import Replay
from onnxmem.program.sizes import Affine, ByteColumn, Sizes
from onnxmem.runtimes.assumed import Assumed
from onnxmem.runtimes.base import Overheads, Runtime, RuntimeProgram, Served
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import undecided
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace
from onnxmem.runtimes.onnxruntime.allocation.recording import Run
from onnxmem.runtimes.onnxruntime.memory import session_findings
from onnxmem.runtimes.onnxruntime.prediction import (
    PlannedSession,
    PossibleRuns,
    Runs,
    new_arena,
)
from onnxmem.runtimes.onnxruntime.process.figures import HostProcess, Resident
from onnxmem.runtimes.onnxruntime.process.loading import (
    Region,
    arena_regions,
)
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, ArenaInitializers, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel, session_graph
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRuntime:
    """A session on an optimized model, at any dims."""

    name: str
    """``ort-cpu`` or ``ort-cuda``."""
    optimized: OptimizedModel
    options: SessionOptions = field(default_factory=SessionOptions)
    """``shrinks_arena`` is ignored: figures compared with a device are from runs without it."""
    values: Mapping[str, Values] = field(default_factory=dict)
    """Known elements of inputs."""
    observed: GraphRun = NO_RUN
    """What was seen of the run."""
    file_bytes: int = 0
    """Size of the model's file."""
    context: Assumed
    """The CUDA context."""
    workspace: Assumed
    """The workspace of cuDNN."""

    def program(self, graph: Graph) -> "SessionProgram":
        """The runs of the session up to the steady state; ``graph`` is the file's, with its dims.

        :raises OnnxmemError: the optimized graph cannot be read, or a value does not match.
        """
        inputs = ((name, graph.tensors[name].shape) for name in graph.inputs)
        shapes = {
            name: tuple(dim for dim in shape if dim is not None)
            for name, shape in inputs
            if shape is not None
        }
        session = session_graph(self.optimized, shapes, self.values, self.observed)
        return self._program(graph, PlannedSession.of(session, self.options, self._provider))

    def possible_programs(
        self, graph: Graph, made: "SessionProgram"
    ) -> "tuple[tuple[SessionProgram, ...], bool]":
        """The program of each combination of branches that data decide, and whether no run differs
        from all of them; else what is left counts as little as may be.

        ``made`` is ``program(graph)``.
        """
        session = made.session.recorded.graph
        # The data decide nothing: every run is the one that was made.
        if not undecided(session.trace).names():
            return (made,), True
        possible = PossibleRuns.of(session)
        planned = [
            PlannedSession.of(each, self.options, self._provider) for each in possible.sessions
        ]
        if not possible.are_all:
            # What the combinations leave open counts as little as may be, so that each is a lower
            # bound.
            planned = [each.at_least for each in planned]
        return tuple(self._program(graph, each) for each in planned), possible.are_all

    def _program(self, graph: Graph, planned: PlannedSession) -> "SessionProgram":
        process = HostProcess(graph, self.file_bytes, planned) if self._provider.is_host else None
        resident = None if process is None else process.resident
        findings = session_findings(planned.recorded.graph, self._provider, planned.unknowns)
        return SessionProgram.of(planned, planned.recorded.runs, resident, findings)

    def allocator(self, capacity_bytes: int | None = None) -> BfcArena:
        """A new arena, without the initializers."""
        return new_arena(self.options, self._provider, capacity_bytes)

    def overheads(self, graph: Graph) -> Overheads:  # noqa: ARG002 - independent of the graph
        """On a GPU the context and the workspace; on the CPU the process includes everything."""
        if self._provider.is_host:
            return Overheads()
        # cuDNN allocates workspaces from the arena at unknown times, so its figures exclude them.
        return Overheads(self.context, workspace=self.workspace, serves_workspaces=False)

    @property
    def _provider(self) -> ExecutionProvider:
        return PROVIDERS[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionProgram(RuntimeProgram):
    """The runs of a session up to the steady state."""

    session: PlannedSession
    runs: Runs
    resident: Resident | None
    """The resident memory of the process, on the CPU."""

    @classmethod
    def of(
        cls,
        session: PlannedSession,
        runs: Runs,
        resident: Resident | None,
        findings: Iterable[Finding] = (),
    ) -> Self:
        """The program of a session's runs."""
        first, *later = runs.until_steady(uses_pattern=session.options.enable_mem_pattern)
        return cls(
            first.program,
            first.sizes,
            tuple(findings),
            later=tuple((run.program, run.sizes) for run in later),
            session=session,
            runs=runs,
            resident=resident,
        )

    @property
    def is_complete(self) -> bool:
        """Whether the size of every requested tensor is known."""
        return not self.runs.unsized

    @property
    def is_paged(self) -> bool:
        """On the CPU, memory of the arena becomes resident page by page."""
        return self.resident is not None

    @property
    def num_events(self) -> int:
        """The cost of serving the runs: an event takes the arena twice as long as other
        allocators.
        """
        return 2 * sum(len(each.events) for each in self.programs) + 1

    def serve(
        self,
        runtime: Runtime,  # noqa: ARG002 - the session has its own arena
        capacity_bytes: int | None,
        workspaces_bytes: Sequence[int] = (),
    ) -> Served:
        """Serve the runs with an arena that has the initializers.

        :raises OutOfMemoryError: the session cannot be loaded.
        """
        arena = self.session.loaded_arena(capacity_bytes)
        found = self.serve_with(arena, workspaces_bytes)
        regions = arena_regions(arena)
        total_bytes = self.total_bytes(arena.reserved_bytes, regions)
        return Served(found, total_bytes, self.more_bytes(regions))

    def total_bytes(self, reserved_bytes: int, regions: tuple[Region, ...]) -> int:
        """The device memory needed for an arena of these regions."""
        return reserved_bytes if self.resident is None else self.resident.total_bytes(regions)

    def more_bytes(self, regions: tuple[Region, ...]) -> int:
        """How much more the process takes in the worst state of its heap; 0 within its error."""
        return 0 if self.resident is None else self.resident.more_bytes(regions)

    def least_bytes(self, replayed: Replay) -> int:  # noqa: ARG002 - of another run
        """The peak requested by kernels without the memory pattern, initializers included."""
        return self.session.packed.requested_bytes + self.runs.plain.requested_peak.size_bytes

    def through(
        self, points: Sequence[tuple[int, Self]]
    ) -> "Callable[[int], SessionProgram] | None":
        """The session at every batch of a range; ``None``: runs differ, or sizes are not affine."""
        if not _have_equal_plans([each for _, each in points]):
            return None
        # Equal plans leave sizes as all that differs; each column must be affine in the batch, or a
        # square in the tokens of a prefill, the memory-pattern buffer apart, which is computed
        # again at each.
        first = _sizes_through([(batch, each.runs.plain.sizes) for batch, each in points])
        later = _sizes_through([(batch, _without_block(each.runs.later)) for batch, each in points])
        packing_at = _packing_through([(batch, each.session) for batch, each in points])
        resident_at = _resident_through([(batch, each.resident) for batch, each in points])
        if first is None or later is None or packing_at is None or resident_at is None:
            return None
        traced = tuple(_traced(self.runs.plain))

        def at(batch: int) -> SessionProgram:
            runs = _with_sizes(self.runs, first.at(batch), later.at(batch), traced)
            session = replace(self.session, packed=packing_at(batch))
            return self.of(session, runs, resident_at(batch), self.diagnostics)

        return at


def _sizes_through(points: Sequence[tuple[int, Sizes]]) -> Sizes | None:
    found = Sizes.through(points)
    return Sizes.through_squares(points) if found is None else found


def _have_equal_plans(programs: Sequence[SessionProgram]) -> bool:
    """Whether sessions have equal runs without subgraphs, and all sizes are known."""
    runs = [each.runs for each in programs]
    one = runs[0]
    is_plain = all(each.session.recorded.is_plain for each in programs)
    return (
        is_plain
        and not any(each.unsized for each in runs)
        and all(
            one.plain.program == each.plain.program
            and one.later.program == each.later.program
            and one.plain.traced == each.plain.traced
            and np.array_equal(one.plain.node_ends, each.plain.node_ends)
            for each in runs[1:]
        )
    )


# The memory pattern. Its block is not affine in the batch: it is computed again from the sizes of
# the first run, in the order in which that run traced its buffers.


def _with_sizes(runs: Runs, first: Sizes, later: Sizes, traced: Iterable[int]) -> Runs:
    """Equal runs with other sizes; ``later`` lacks that of the memory-pattern buffer."""
    plain = replace(runs.plain, sizes=first)
    pattern_bytes = _block_bytes(traced, first)
    later_bytes = _with_block(runs.later, later.fixed_bytes, pattern_bytes)
    return replace(
        runs,
        plain=plain,
        learning=plain,
        later=replace(runs.later, sizes=Sizes(later_bytes)),
        pattern_bytes=pattern_bytes,
    )


def _with_block(later: Run, sizes_bytes: ByteColumn, block_bytes: int) -> ByteColumn:
    is_block = [category is Category.PATTERN_BUFFER for category in later.program.categories]
    return np.where(is_block, block_bytes, sizes_bytes)


def _without_block(later: Run) -> Sizes:
    return Sizes(_with_block(later, later.sizes.fixed_bytes, 0))


def _traced(first: Run) -> Iterator[int]:
    """The events from which a run traces the memory pattern."""
    traced = frozenset(first.traced)
    return (each for each in first.program.events.tolist() if max(each, ~each) in traced)


def _block_bytes(traced: Iterable[int], sizes: Sizes) -> int:
    """The memory-pattern buffer for the sizes of the first run."""
    trace, sizes_bytes = PatternTrace(), sizes.fixed_bytes.tolist()
    for event in traced:
        if event >= 0:
            trace.allocate(str(event), sizes_bytes[event])
        else:
            trace.free(str(~event))
    return trace.size_bytes


# Initializers. They may grow with the batch: a constant mask, in a file exported at a fixed batch.


def _packing_through(
    points: Sequence[tuple[int, PlannedSession]],
) -> Callable[[int], ArenaInitializers] | None:
    """The arena initializers by batch; ``None``: not affine, or kernels pack them."""
    (_, session), *others = points
    if all(each.packed == session.packed for _, each in others):
        return lambda _: session.packed
    weights = [each.recorded.graph.graph.weights for _, each in points]
    names = [[weight.name for weight in each] for each in weights]
    # How the CPU's kernels pack depends on more than sizes.
    if session.recorded.provider.is_host or any(each != names[0] for each in names):
        return None
    # On CUDA each weight is one request by itself, so its size is all that may differ.
    sizes = Sizes.through([(n, Sizes.of(each.packed.allocated_bytes)) for n, each in points])
    if sizes is None:
        return None
    return lambda batch: replace(
        session.packed, allocated_bytes=tuple(sizes.at(batch).fixed_bytes.tolist())
    )


# The process on the CPU


def _resident_through(
    points: Sequence[tuple[int, Resident | None]],
) -> Callable[[int], Resident | None] | None:
    """The resident memory by batch; ``None``: inputs or mapped pages follow no rule."""
    known = [(batch, each) for batch, each in points if each is not None]
    if not known:
        return lambda _: None
    feed = Affine.through([(batch, each.feed_bytes) for batch, each in known])
    pages = _pages_through([(batch, each.pages) for batch, each in known])
    if feed is None or pages is None:
        return None
    first = known[0][1]

    def at(batch: int) -> Resident:
        read = {name: min(each * batch, most) for name, (each, most) in pages.items()}
        return replace(first, feed_bytes=feed.at(batch), pages=read)

    return at


def _pages_through(
    points: Sequence[tuple[int, Mapping[str, int]]],
) -> Mapping[str, tuple[int, int]] | None:
    """Of each mapped weight, pages per sample and at most.

    A Gather reads a row per index, so its pages are proportional to the batch up to the whole
    weight; other kernels read the whole weight at every batch.
    """
    found = {}
    (first_batch, mapped), *_ = points
    for name, first in mapped.items():
        most = max(each.get(name, 0) for _, each in points)
        # A Gather reads pages for each index, up to the whole weight; other kernels read all of it
        # at any batch.
        of_sample = most if first == most else first // first_batch
        if any(min(of_sample * batch, most) != each.get(name) for batch, each in points):
            return None
        found[name] = of_sample, most
    return found
