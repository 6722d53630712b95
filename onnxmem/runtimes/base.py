"""What a runtime is to the rest of the package: a maker of programs, and what it takes besides.

A runtime of your own implements ``Runtime`` and is given to ``analyze`` as an object: the report,
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
    """What a runtime takes beside what its program allocates, in bytes."""

    context: Assumed = NO_TERM
    """Of a device: CUDA and its loaded kernels. No allocator serves it."""
    process: Assumed = NO_TERM
    """Of the process before it has a model: the interpreter, libraries. No allocator serves it."""
    workspace: Assumed = NO_TERM
    """Of a library, served by the runtime's allocator and held: cuDNN's convolutions."""
    workspaces_bytes: tuple[int, ...] = ()
    """Of libraries, of known size, served and held likewise: cuBLAS's handles."""

    serves_workspaces: bool = True
    """False: the workspaces lie outside the allocator, as figures of an arena leave them out."""

    @property
    def outside_bytes(self) -> int:
        """What figures count outside the allocator."""
        beside_bytes = 0 if self.serves_workspaces else sum(self._workspaces_bytes)
        return self.context.size_bytes + self.process.size_bytes + beside_bytes

    @property
    def served_bytes(self) -> tuple[int, ...]:
        """What the allocator serves beside the program, one by one."""
        return self._workspaces_bytes if self.serves_workspaces else ()

    @property
    def more_bytes(self) -> int:
        """What the assumed terms may take beyond what counts of them."""
        return self.context.more_bytes + self.process.more_bytes + self.workspace.more_bytes

    @property
    def _workspaces_bytes(self) -> tuple[int, ...]:
        return (*self.workspaces_bytes, self.workspace.size_bytes)

    def through(self, points: Sequence[tuple[int, Self]]) -> "Callable[[int], Overheads] | None":
        """What they are at every batch between several, of which these are the first.

        ``None``: they are neither the same nor a workspace that is affine in the batch.
        """
        if all(each == self for _, each in points):
            return lambda _: self
        workspace = Affine.through([(n, each.workspace.high_bytes) for n, each in points])
        if workspace is None:
            return None

        def at(batch: int) -> Overheads:
            return replace(self, workspace=workspace_of(workspace.at(batch), None))

        return at if all(at(batch) == each for batch, each in points) else None


@dataclass(frozen=True, slots=True)
class Served:
    """What a runtime's allocator made of its program."""

    replay: Replay
    total_bytes: int
    """What a device must have for all that the allocator serves."""


@dataclass(frozen=True, slots=True)
class RuntimeProgram:
    """What a runtime does with a graph: one program, and those that follow it in the process."""

    program: Program
    sizes: Sizes
    diagnostics: tuple[Finding, ...] = ()
    """What the program assumes or leaves out."""
    iterations: int = 1
    """Replays of the program at most; fewer where the allocator comes to rest before."""
    later: tuple[tuple[Program, Sizes], ...] = ()
    """What the allocator serves after it, each in the state in which the one before left it: one
    that is followed releases all that it allocates, for each numbers its allocations from 0 on."""

    @property
    def is_complete(self) -> bool:
        """Whether every size is known; else figures are lower bounds."""
        return all(sizes.is_complete for sizes in (self.sizes, *(sizes for _, sizes in self.later)))

    @property
    def num_events(self) -> int:
        """About how many events a replay serves: most are at rest after three iterations."""
        return 3 * len(self.program.events) + sum(len(each.events) for each, _ in self.later)

    @property
    def is_paged(self) -> bool:
        """Whether memory is taken page by page as it is touched: no allocator meets a limit."""
        return False

    def serve(
        self, runtime: "Runtime", capacity_bytes: int | None, workspaces_bytes: Sequence[int] = ()
    ) -> Served | None:
        """Have a new allocator of the runtime serve everything; ``None``: it has none.

        :raises OutOfMemoryError: not even what is there before the first event can be served.
        """
        allocator = runtime.allocator(capacity_bytes)
        if allocator is None:
            return None
        found = self.serve_with(allocator, workspaces_bytes)
        return Served(found, allocator.reserved_peak_bytes)

    def serve_with(self, allocator: Allocator, workspaces_bytes: Sequence[int] = ()) -> Replay:
        """Have an allocator serve everything: the first program's replay, all that is reserved."""
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
            # What fails later is behind the last event of the first program.
            at = None if after.out_of_memory_at is None else len(self.program.events)
            found = Replay(self.program, self.sizes, after.reserved, at)
        return found

    def least_bytes(self, replayed: Replay) -> int:
        """A lower bound of what any allocator reserves."""
        return max(replayed.peak_bytes, *(Replay(*each).peak_bytes for each in self.later), 0)

    def through(
        self, points: Sequence[tuple[int, Self]]
    ) -> "Callable[[int], RuntimeProgram] | None":
        """What a runtime does at every batch between several, of which this is the first.

        ``None``: the programs differ, or sizes are not affine.
        """
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
"""What a runtime's own program or allocator may raise where it is at fault."""


class RuntimeFailedError(OnnxmemError):
    """A runtime does not run the model, whatever the device has."""

    code: ClassVar[str] = "runtime_failed"


class Runtime(Protocol):
    """One way to run a model.

    Both methods that are given a graph depend on it alone: they are called at several batches, and
    more than once at one.
    """

    @property
    def name(self) -> str:
        """As reports have it."""
        ...

    def program(self, graph: Graph) -> RuntimeProgram:
        """What it allocates and releases when it runs a graph.

        :raises OnnxmemError: it cannot run the graph.
        """
        ...

    def allocator(self, capacity_bytes: int | None = None) -> Allocator | None:
        """A new allocator that shares nothing with others; ``None``: all take their own bytes.

        It is sent no request of 0 bytes. In a second iteration it may be asked to release what the
        first one left, and to ``rename`` it.
        """
        ...

    def overheads(self, graph: Graph) -> Overheads:
        """What it takes beside the program."""
        ...


@dataclass(frozen=True, slots=True)
class RuntimeRun:
    """A runtime on a graph, ready to be replayed on a device of any capacity."""

    runtime: Runtime
    made: RuntimeProgram
    overheads: Overheads

    @classmethod
    def of(cls, runtime: Runtime, graph: Graph) -> Self:
        """Have a runtime make its program of a graph.

        :raises OnnxmemError: it cannot run the graph.
        """
        return cls(runtime, runtime.program(graph), runtime.overheads(graph))

    def replay(self, capacity_bytes: int | None = None) -> "RuntimeReplay":
        """Replay the program with the runtime's allocator.

        ``capacity_bytes`` is what the device has for the runtime; ``None``: as much as it takes.

        :raises RuntimeFailedError: the allocator fails on a device without a limit, or the program
            and its sizes do not fit together.
        """
        left = None
        if capacity_bytes is not None:
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
        at, program = found.replay.out_of_memory_at, self.made.program
        if left is None and at is not None:
            node = program.node_at(at) if at < len(program.events) else ""
            message = (
                f"{self.runtime.name}: its allocator is out of memory on a device without a limit"
                f"{f', at {node}' if node else ''}; see its own limits"
            )
            raise RuntimeFailedError(message)
        return found

    def _replayed(self, left: int | None) -> "RuntimeReplay":
        made, served_bytes = self.made, self.overheads.served_bytes
        served = made.serve(self.runtime, left, served_bytes)
        if served is not None:
            return RuntimeReplay(self, served.replay, served.total_bytes)
        left = None if left is None else left - sum(served_bytes)
        found = replay(made.program, made.sizes, capacity_bytes=left)
        if left is not None and found.out_of_memory_at is None and made.least_bytes(found) > left:
            return self._out_of_memory(len(made.program.events))
        return RuntimeReplay(self, found)

    def _out_of_memory(self, at: int = 0) -> "RuntimeReplay":
        return RuntimeReplay(self, Replay(self.made.program, self.made.sizes, out_of_memory_at=at))

    def reserved_by_step(self) -> tuple[int, ...]:
        """What the allocator reserves at most during each step of the program's first iteration.

        Empty where every allocation takes its own bytes.
        """
        allocator, made = self.runtime.allocator(), self.made
        if allocator is None:
            return ()
        workspaces_bytes = self.overheads.served_bytes
        return reserved_by_step(
            made.program, made.sizes, allocator, workspaces_bytes=workspaces_bytes
        )

    def runs_in(self, capacity_bytes: int) -> bool:
        """Whether it gets by with so many bytes of a device."""
        return self.replay(capacity_bytes).replay.out_of_memory_at is None


@dataclass(frozen=True, slots=True)
class RuntimeReplay:
    """What a runtime takes on a graph."""

    run: RuntimeRun
    replay: Replay
    served_bytes: int | None = None
    """What a device must have for the allocator; ``None``: each allocation takes its own bytes."""

    @property
    def name(self) -> str:
        """Of the runtime."""
        return self.run.runtime.name

    @property
    def total_bytes(self) -> int:
        """What a device must have for it: the allocator's, and what no allocator serves."""
        if self.served_bytes is None:
            return self.least_bytes
        return self.served_bytes + self.run.overheads.outside_bytes

    @property
    def least_bytes(self) -> int:
        """A lower bound for any allocator: live bytes, workspaces and what no allocator serves."""
        overheads = self.run.overheads
        live_bytes = self.run.made.least_bytes(self.replay) + sum(overheads.served_bytes)
        return live_bytes + overheads.outside_bytes


@dataclass(frozen=True, slots=True)
class AffineRun:
    """A runtime on a model at every batch of a range: one program, affine sizes."""

    run: RuntimeRun
    """At the first batch of the range."""
    first: int
    last: int
    made_at: Callable[[int], RuntimeProgram]
    overheads_at: Callable[[int], Overheads]

    @classmethod
    def through(cls, runs: Sequence[tuple[int, RuntimeRun]]) -> Self | None:
        """Find what it does at every batch between runs at three or more, in order.

        ``None``: the programs differ, sizes are not affine, or overheads follow no rule.
        """
        (first, run), (last, _) = runs[0], runs[-1]
        made_at = run.made.through([(batch, each.made) for batch, each in runs])
        if made_at is None:
            return None
        overheads_at = run.overheads.through([(batch, each.overheads) for batch, each in runs])
        return None if overheads_at is None else cls(run, first, last, made_at, overheads_at)

    def is_valid_at(self, batch: int) -> bool:
        """Whether the runs were shown to be alike at a batch."""
        return self.first <= batch <= self.last

    def at(self, batch: int) -> RuntimeRun:
        """The run at a batch."""
        return RuntimeRun(self.run.runtime, self.made_at(batch), self.overheads_at(batch))
