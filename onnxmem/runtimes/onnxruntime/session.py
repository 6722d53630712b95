"""A session of onnxruntime as a ``Runtime``: its load and its runs, one arena for all of them.

The arena begins with the session's weights; the first run, and the later ones with the memory
pattern that it learned, are programs that it serves one after another. On the CPU a device must
have what the process has resident, which follows from the arena's regions; on a GPU, the regions,
with the context and cuDNN's workspace beside them.

Over a range of batches a session is one plan: what kernels pack, and the order of requests, are
those of the optimized graph, which keeps its symbols, and sizes are affine. Three batches of the
range are simulated, and prove it. Graphs with subgraphs are left out: their runs may differ from
batch to batch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.errors import Finding
from onnxmem.model.graph import Graph
from onnxmem.program.program import Category
from onnxmem.program.replay import Replay
from onnxmem.program.sizes import Affine, ByteColumn, Sizes
from onnxmem.runtimes.assumed import Assumed
from onnxmem.runtimes.base import Overheads, Runtime, RuntimeProgram, Served
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace
from onnxmem.runtimes.onnxruntime.allocation.recording import Run
from onnxmem.runtimes.onnxruntime.kernels.prepacking import Prepacked, prepacked
from onnxmem.runtimes.onnxruntime.memory import session_findings
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession, Runs, new_arena
from onnxmem.runtimes.onnxruntime.process.figures import load_terms, mapped_pages
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.loading import (
    Loading,
    LoadTerms,
    ProcessTerms,
    Region,
    arena_regions,
    process_bytes,
)
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, ExecutionProvider, Packing
from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel, session_graph
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRuntime:
    """A model that a session opens, at any dims that its optimized graph serves."""

    name: str
    """``ort-cpu`` or ``ort-cuda``."""
    optimized: OptimizedModel
    options: SessionOptions = field(default_factory=SessionOptions)
    """``shrinks_arena`` aside: no figure that is compared with a device is of such runs."""
    values: Mapping[str, Values] = field(default_factory=dict)
    """What is known of the elements of inputs."""
    file_bytes: int = 0
    """Of the model's file."""
    context: Assumed
    """Of CUDA, as ``workspace``, of cuDNN: both are known before the graph."""
    workspace: Assumed

    def program(self, graph: Graph) -> "SessionProgram":
        """What the session allocates until it is steady; ``graph`` is the file's, at its dims.

        :raises OnnxmemError: the optimized graph cannot be read, or a value does not fit.
        """
        fed = ((name, graph.tensors[name].shape) for name in graph.inputs)
        shapes = {
            name: tuple(dim for dim in shape if dim is not None)
            for name, shape in fed
            if shape is not None
        }
        session = session_graph(self.optimized, shapes, self.values)
        planned = PlannedSession.of(session, self.options, self._provider)
        process = HostProcess(graph, self.file_bytes, planned) if self._provider.is_host else None
        resident = None if process is None else process.resident
        findings = session_findings(session, self._provider, planned.unknowns)
        return SessionProgram.of(planned, planned.recorded.runs, resident, findings)

    def allocator(self, capacity_bytes: int | None = None) -> BfcArena:
        """A new arena, without the weights."""
        return new_arena(self.options, self._provider, capacity_bytes)

    def overheads(self, graph: Graph) -> Overheads:  # noqa: ARG002 - known before the graph
        """On a GPU the context and the workspace; on the CPU all is in what the process has."""
        if self._provider.is_host:
            return Overheads()
        # The workspaces are from the arena too, but not in its figures: nobody knows when.
        return Overheads(self.context, workspace=self.workspace, serves_workspaces=False)

    @property
    def _provider(self) -> ExecutionProvider:
        return PROVIDERS[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionProgram(RuntimeProgram):
    """The runs of a session until it is steady, and the arena that serves them."""

    session: PlannedSession
    runs: Runs
    resident: "Resident | None"
    """Of the process, on the CPU."""

    @classmethod
    def of(
        cls,
        session: PlannedSession,
        runs: Runs,
        resident: "Resident | None",
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
        """Whether every tensor of the runs has a size."""
        return not self.runs.unsized

    @property
    def is_paged(self) -> bool:
        """The arena is the process's own memory, which is taken page by page."""
        return self.resident is not None

    @property
    def num_events(self) -> int:
        """An event takes the arena about twice as long as others, and the load counts too."""
        return 2 * sum(len(each.events) for each in self.programs) + 1

    def serve(
        self,
        runtime: Runtime,  # noqa: ARG002 - what is packed is the session's own
        capacity_bytes: int | None,
        workspaces_bytes: Sequence[int] = (),
    ) -> Served:
        """Have an arena in which the weights lie serve the runs.

        :raises OutOfMemoryError: the session does not load.
        """
        arena = self.session.loaded_arena(capacity_bytes)
        found = self.serve_with(arena, workspaces_bytes)
        return Served(found, self.total_bytes(arena.reserved_bytes, arena_regions(arena)))

    def total_bytes(self, held_bytes: int, regions: tuple[Region, ...]) -> int:
        """What a device must have for an arena that holds so much in some regions."""
        return held_bytes if self.resident is None else self.resident.total_bytes(regions)

    def least_bytes(self, replayed: Replay) -> int:  # noqa: ARG002 - of the run without the pattern
        """What is requested at the end of some node, the weights included."""
        return self.session.packed.requested_bytes + self.runs.plain.requested_peak.size_bytes

    def through(
        self, points: Sequence[tuple[int, Self]]
    ) -> "Callable[[int], SessionProgram] | None":
        """The session at every batch between several; ``None``: they differ, or are not affine."""
        if not _are_alike([each for _, each in points]):
            return None
        first = Sizes.through([(batch, each.runs.plain.sizes) for batch, each in points])
        later = Sizes.through([(batch, _without_block(each.runs.later)) for batch, each in points])
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


def _are_alike(made: Sequence[SessionProgram]) -> bool:
    """Whether sessions request and release the same, and each size is known."""
    runs = [each.runs for each in made]
    one = runs[0]
    is_plain = all(each.session.recorded.is_plain for each in made)
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


# The memory pattern: the later runs' block follows from the first run's sizes, and on no line


def _with_sizes(runs: Runs, first: Sizes, later: Sizes, traced: Iterable[int]) -> Runs:
    """Runs of the same requests at other sizes; ``later`` leaves the pattern's block open."""
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
    """The events of a run by which it learns the pattern."""
    traced = frozenset(first.traced)
    return (each for each in first.program.events.tolist() if max(each, ~each) in traced)


def _block_bytes(traced: Iterable[int], sizes: Sizes) -> int:
    """The block of the pattern that a run learns."""
    trace, sizes_bytes = PatternTrace(), sizes.fixed_bytes.tolist()
    for event in traced:
        if event >= 0:
            trace.allocate(str(event), sizes_bytes[event])
        else:
            trace.free(str(~event))
    return trace.size_bytes


# The weights, which may grow with the batch: a constant mask of a file that was exported at one


def _packing_through(
    points: Sequence[tuple[int, PlannedSession]],
) -> Callable[[int], Packing] | None:
    """What is packed; ``None``: it is not affine, or more than the weights' sizes decides."""
    (_, session), *others = points
    if all(each.packed == session.packed for _, each in others):
        return lambda _: session.packed
    provider, options = session.recorded.provider, session.options
    weights = [each.recorded.graph.graph.weights for _, each in points]
    names = [[weight.name for weight in each] for each in weights]
    if any(each != names[0] for each in names):
        return None
    columns = (Sizes.of(weight.size_bytes or 0 for weight in each) for each in weights)
    sizes = Sizes.through([(n, each) for (n, _), each in zip(points, columns, strict=True)])
    if sizes is None or provider.packing_of((), options) is None:
        return None

    def at(batch: int) -> Packing:
        packed = provider.packing_of(sizes.at(batch).fixed_bytes.tolist(), options)
        return packed or session.packed

    return at


# The process on the CPU


@dataclass(frozen=True)
class HostProcess:
    """The process around a session on the CPU; its load is worked out when first asked for."""

    graph: Graph
    """The file's."""
    file_bytes: int
    session: PlannedSession

    @property
    def resident(self) -> "Resident":
        """What it has at the dims of the graph."""
        graph, session = self.graph, self.session.recorded.graph
        return Resident(
            self,
            feed_bytes=sum(graph.tensors[name].size_bytes or 0 for name in graph.inputs),
            pages=mapped_pages(graph, session.graph, self._packed),
        )

    @cached_property
    def loaded(self) -> tuple[LoadTerms, Loading]:
        """The load, which is the same at every batch."""
        graph = self.session.recorded.graph.graph
        terms = load_terms(self.graph, graph, self._packed, self.file_bytes)
        terms = replace(terms, regions=arena_regions(self.session.loaded_arena()))
        return terms, Loading(terms).run()

    @cached_property
    def _packed(self) -> tuple[Prepacked, ...]:
        session = self.session.recorded.graph
        is_packing = not self.session.options.disable_prepacking
        return tuple(prepacked(session.graph, session.facts)) if is_packing else ()


@dataclass(frozen=True, slots=True)
class Resident:
    """What a process has resident beside and with an arena."""

    process: HostProcess
    feed_bytes: int
    """The caller's inputs."""
    pages: Mapping[str, int]
    """Of external weights that runs read in."""

    def total_bytes(self, regions: tuple[Region, ...]) -> int:
        """All of it, when the arena has come to some regions."""
        load, loaded = self.process.loaded
        terms = ProcessTerms(
            load=load,
            regions=regions,
            mapped_bytes=PAGE_BYTES * sum(self.pages.values()),
            feed_bytes=self.feed_bytes,
        )
        return process_bytes(terms, loaded)


def _resident_through(
    points: Sequence[tuple[int, Resident | None]],
) -> Callable[[int], Resident | None] | None:
    """What processes have resident; ``None``: inputs or mapped pages follow no rule."""
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
    """Of each mapped weight pages per sample, and at most: as many rows are read as indices."""
    found = {}
    (first_batch, mapped), *_ = points
    for name, first in mapped.items():
        most = max(each.get(name, 0) for _, each in points)
        of_sample = most if first == most else first // first_batch
        if any(min(of_sample * batch, most) != each.get(name) for batch, each in points):
            return None
        found[name] = of_sample, most
    return found
