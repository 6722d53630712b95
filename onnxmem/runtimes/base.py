"""The interface of a runtime: the program of a graph, an allocator, and overheads.

A runtime of your own implements ``Runtime`` and is passed to ``analyze`` as an object: the report,
the page, the JSON report, ``diff`` of two analyses and the verdict on a budget read the ``Replay``
of its program. PyTorch's training step (``torch``) and a session of onnxruntime
(``onnxruntime.session``) implement it too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol, Self

from onnxmem.errors import Finding, OnnxmemError
from onnxmem.model.graph import Graph
from onnxmem.program.program import Program
from onnxmem.program.replay import Allocator, OutOfMemoryError, Replay, replay, reserved_by_step
from onnxmem.program.sizes import Affine, Sizes
from onnxmem.runtimes.assumed import NO_TERM, Assumed, workspace_of


@dataclass(frozen=True, slots=True)
class Overheads:
    """The memory of a runtime beside what its program allocates, in bytes."""

    context: Assumed = NO_TERM
    """The device context: CUDA and its loaded kernels. Not served by the allocator."""
    process: Assumed = NO_TERM
    """The process without a model: the interpreter, libraries. Not served by the allocator."""
    workspace: Assumed = NO_TERM
    """A library's workspace, served by the runtime's allocator and not freed: cuDNN."""
    workspaces_bytes: tuple[int, ...] = ()
    """Workspaces of known size, served in the same way: cuBLAS's handles."""

    has_workspace_in_program: bool = False
    """Whether ``workspace`` is in the program, where it is taken and freed again."""
    serves_workspaces: bool = True
    """False: the workspaces are outside the allocator; an arena's figures do not have them."""

    @property
    def outside_bytes(self) -> int:
        """Bytes outside the allocator."""
        workspaces_bytes = 0 if self.serves_workspaces else sum(self._workspaces_bytes)
        return self.context.size_bytes + self.process.size_bytes + workspaces_bytes

    @property
    def served_bytes(self) -> tuple[int, ...]:
        """Bytes that the allocator serves beside the program, one by one."""
        return self._workspaces_bytes if self.serves_workspaces else ()

    @property
    def more_bytes(self) -> int:
        """How many bytes more the assumed terms may take than the figures count."""
        return self.context.more_bytes + self.process.more_bytes + self.workspace.more_bytes

    @property
    def _workspaces_bytes(self) -> tuple[int, ...]:
        if self.has_workspace_in_program:
            return self.workspaces_bytes
        return (*self.workspaces_bytes, self.workspace.size_bytes)

    def through(self, points: Sequence[tuple[int, Self]]) -> "Callable[[int], Overheads] | None":
        """The overheads at every batch between several, of which these are the first.

        ``None``: they are neither constant nor a workspace that is affine in the batch.
        """
        if all(each == self for _, each in points):
            return lambda _: self
        workspace = Affine.through([(n, each.workspace.high_bytes) for n, each in points])
        if workspace is None:
            return None

        def at(batch: int) -> Overheads:
            return replace(self, workspace=workspace_of(workspace.at(batch), None))

        # Only the upper bound is fitted: the check also covers the other fields.
        return at if all(at(batch) == each for batch, each in points) else None


@dataclass(frozen=True, slots=True)
class Served:
    """The replay of a program on its runtime's allocator."""

    replay: Replay
    total_bytes: int
    """The device memory that the allocator needs."""
    more_bytes: int = 0
    """How much more it may need, by a state of the process that the file does not decide."""


@dataclass(frozen=True, slots=True)
class RuntimeProgram:
    """How a runtime runs a graph: one program, and those that follow it in the process."""

    program: Program
    sizes: Sizes
    diagnostics: tuple[Finding, ...] = ()
    """What the program assumes or leaves out."""
    iterations: int = 1
    """The most replays of the program; fewer where the allocator's state repeats before."""
    later: tuple[tuple[Program, Sizes], ...] = ()
    """Programs that the same allocator serves after it. One that another follows must release all
    that it allocates, for each numbers its allocations from 0 on."""

    @property
    def is_complete(self) -> bool:
        """Whether every size is known; else figures are lower bounds."""
        return all(sizes.is_complete for sizes in (self.sizes, *(sizes for _, sizes in self.later)))

    @property
    def num_events(self) -> int:
        """About how many events a replay serves: most states repeat after three iterations."""
        return 3 * len(self.program.events) + sum(len(each.events) for each, _ in self.later)

    @property
    def is_paged(self) -> bool:
        """Whether memory becomes resident page by page, so that no allocator reaches a limit."""
        return False

    def serve(
        self, runtime: "Runtime", capacity_bytes: int | None, workspaces_bytes: Sequence[int] = ()
    ) -> Served | None:
        """Serve everything with a new allocator of the runtime; ``None`` if it has none.

        :raises OutOfMemoryError: the workspaces or the setup do not fit.
        """
        allocator = runtime.allocator(capacity_bytes)
        if allocator is None:
            return None
        found = self.serve_with(allocator, workspaces_bytes)
        return Served(found, allocator.reserved_peak_bytes)

    def serve_with(self, allocator: Allocator, workspaces_bytes: Sequence[int] = ()) -> Replay:
        """Serve everything with an allocator: the first program's replay, and what is reserved."""
        found = replay(
            self.program,
            self.sizes,
            allocator,
            iterations=self.iterations,
            workspaces_bytes=workspaces_bytes,
        )
        for program, sizes in self.later:
            if found.out_of_memory_at is not None:
                break
            after = replay(program, sizes, allocator)
            # A later program fails after the last event of the first one.
            at = None if after.out_of_memory_at is None else len(self.program.events)
            found = Replay(self.program, self.sizes, after.reserved, at)
        return found

    def least_bytes(self, replayed: Replay) -> int:
        """A lower bound of what any allocator reserves."""
        # Live bytes need no allocator, and none reserves less.
        return max(replayed.peak_bytes, *(Replay(*each).peak_bytes for each in self.later), 0)

    def through(
        self, points: Sequence[tuple[int, Self]]
    ) -> "Callable[[int], RuntimeProgram] | None":
        """The programs at every batch between several, of which this is the first.

        ``None``: the programs differ, or sizes are not affine.
        """
        # Only sizes may differ between the points: a program is a sequence of events, which no line
        # goes through.
        if any(each.programs != self.programs for _, each in points):
            return None
        columns = zip(
            *([each.sizes, *(s for _, s in each.later)] for _, each in points), strict=True
        )
        batches = [batch for batch, _ in points]
        found = [Sizes.through([*zip(batches, column, strict=True)]) for column in columns]
        sizes = [each for each in found if each is not None]
        if len(sizes) < len(found):
            return None

        def at(batch: int) -> RuntimeProgram:
            first, *later = (each.at(batch) for each in sizes)
            pairs = zip(self.programs[1:], later, strict=True)
            return replace(self, sizes=first, later=tuple(pairs))

        return at

    @property
    def programs(self) -> tuple[Program, ...]:
        """The program and those after it."""
        return (self.program, *(program for program, _ in self.later))


_FAULTS: Final = (ArithmeticError, LookupError, TypeError, ValueError)
"""Exceptions of a faulty program or allocator of a user's runtime."""


class RuntimeFailedError(OnnxmemError):
    """A runtime does not run the model, on whatever device."""

    code: ClassVar[str] = "runtime_failed"


class Runtime(Protocol):
    """One way to run a model.

    ``program`` and ``overheads`` must depend only on the graph: they are called at several batches,
    and more than once at the same one.
    """

    @property
    def name(self) -> str:
        """The name in reports."""
        ...

    def program(self, graph: Graph) -> RuntimeProgram:
        """What the runtime allocates and releases when it runs a graph.

        :raises OnnxmemError: it cannot run the graph.
        """
        ...

    def allocator(self, capacity_bytes: int | None = None) -> Allocator | None:
        """A new allocator that shares nothing with others; ``None``: each allocation is its bytes.

        It gets no request of 0 bytes. In a second iteration it may have to release what the first
        one left, and to ``rename`` it.
        """
        ...

    def overheads(self, graph: Graph) -> Overheads:
        """The memory beside the program."""
        ...


@dataclass(frozen=True, slots=True)
class RuntimeRun:
    """A runtime on a graph, ready to be replayed on a device of any capacity."""

    runtime: Runtime
    runtime_program: RuntimeProgram
    overheads: Overheads

    @classmethod
    def of(cls, runtime: Runtime, graph: Graph) -> Self:
        """The run of a graph by a runtime.

        :raises OnnxmemError: it cannot run the graph.
        """
        return cls(runtime, runtime.program(graph), runtime.overheads(graph))

    def replay(self, capacity_bytes: int | None = None) -> "RuntimeReplay":
        """Replay the program with the runtime's allocator.

        ``capacity_bytes`` is what the device has for the runtime; ``None``: no limit.

        :raises RuntimeFailedError: the allocator fails on a device without a limit, or the program
            and its sizes do not fit together.
        """
        left = None
        if capacity_bytes is not None:
            # The allocator has what the context, the process and foreign workspaces leave of the
            # device.
            left = capacity_bytes - self.overheads.outside_bytes
            if left < 0:
                return self._out_of_memory()
        try:
            found = self._replayed(left)
        except OutOfMemoryError:
            found = self._out_of_memory()
        except _FAULTS as fault:
            message = f"{self.runtime.name}: its program cannot be replayed: {fault!r}"
            raise RuntimeFailedError(message) from fault
        at, program = found.replay.out_of_memory_at, self.runtime_program.program
        if left is None and at is not None:
            node = program.node_at(at) if at < len(program.events) else ""
            message = (
                f"{self.runtime.name}: its allocator is out of memory on a device without a limit"
                f"{f', at {node}' if node else ''}; see its own limits"
            )
            raise RuntimeFailedError(message)
        return found

    def _replayed(self, left: int | None) -> "RuntimeReplay":
        run, served_bytes = self.runtime_program, self.overheads.served_bytes
        served = run.serve(self.runtime, left, served_bytes)
        if served is not None:
            return RuntimeReplay(self, served.replay, served.total_bytes, served.more_bytes)
        # Without an allocator live bytes decide, those of later programs too.
        left = None if left is None else left - sum(served_bytes)
        found = replay(run.program, run.sizes, capacity_bytes=left)
        if left is not None and found.out_of_memory_at is None and run.least_bytes(found) > left:
            return self._out_of_memory(len(run.program.events))
        return RuntimeReplay(self, found)

    def _out_of_memory(self, at: int = 0) -> "RuntimeReplay":
        run = self.runtime_program
        return RuntimeReplay(self, Replay(run.program, run.sizes, out_of_memory_at=at))

    def reserved_by_step(self) -> tuple[int, ...]:
        """The most that the allocator reserves in each step of the program's first iteration.

        Empty without an allocator.
        """
        allocator, run = self.runtime.allocator(), self.runtime_program
        if allocator is None:
            return ()
        workspaces_bytes = self.overheads.served_bytes
        return reserved_by_step(
            run.program, run.sizes, allocator, workspaces_bytes=workspaces_bytes
        )

    def taken_in(self, capacity_bytes: int) -> int | None:
        """What it takes of a device with so many bytes; ``None``: it fails there."""
        found = self.replay(capacity_bytes)
        return found.total_bytes if found.replay.out_of_memory_at is None else None


@dataclass(frozen=True, slots=True)
class RuntimeReplay:
    """The memory that a runtime needs for a graph."""

    run: RuntimeRun
    replay: Replay
    served_bytes: int | None = None
    """The device memory that the allocator needs; ``None`` without an allocator."""
    served_more_bytes: int = 0
    """How much more that may be, by a state of the process that the file does not decide."""

    @property
    def name(self) -> str:
        """The runtime's name."""
        return self.run.runtime.name

    @property
    def total_bytes(self) -> int:
        """The device memory that the run needs: the allocator's, and what is outside of it."""
        if self.served_bytes is None:
            return self.least_bytes
        return self.served_bytes + self.run.overheads.outside_bytes

    @property
    def more_bytes(self) -> int:
        """How much more the run may need: assumed terms, and the state of the process."""
        return self.run.overheads.more_bytes + self.served_more_bytes

    @property
    def least_bytes(self) -> int:
        """A lower bound for any allocator: live bytes, workspaces and what is outside."""
        overheads, run = self.run.overheads, self.run.runtime_program
        live_bytes = run.least_bytes(self.replay) + sum(overheads.served_bytes)
        return live_bytes + overheads.outside_bytes


@dataclass(frozen=True, slots=True)
class AffineRun:
    """A runtime on a model at every batch of a range: one program, affine sizes."""

    run: RuntimeRun
    """At the first batch of the range."""
    first: int
    last: int
    program_at: Callable[[int], RuntimeProgram]
    overheads_at: Callable[[int], Overheads]

    @classmethod
    def through(cls, runs: Sequence[tuple[int, RuntimeRun]]) -> Self | None:
        """Interpolate between runs at three or more batches, in order.

        ``None``: the programs differ, sizes are not affine, or overheads follow no rule.
        """
        # Two points always lie on a line; the third one is the evidence.
        (first, run), (last, _) = runs[0], runs[-1]
        programs = [(batch, each.runtime_program) for batch, each in runs]
        program_at = run.runtime_program.through(programs)
        if program_at is None:
            return None
        overheads_at = run.overheads.through([(batch, each.overheads) for batch, each in runs])
        return None if overheads_at is None else cls(run, first, last, program_at, overheads_at)

    def is_valid_at(self, batch: int) -> bool:
        """Whether a batch is in the range of the runs."""
        return self.first <= batch <= self.last

    def at(self, batch: int) -> RuntimeRun:
        """The run at a batch."""
        return RuntimeRun(self.run.runtime, self.program_at(batch), self.overheads_at(batch))
