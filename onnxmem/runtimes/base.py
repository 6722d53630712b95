"""What a runtime is to the rest of the package: a maker of programs, and what it takes besides.

A runtime of your own implements ``Runtime`` and is given to ``analyze`` as an object: the report,
the page, the JSON report, ``diff`` of two analyses and the verdict on a budget read the ``Replay``
of its program. Inference (``ideal``) and PyTorch's training step (``torch``) implement it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol, Self

from onnxmem.errors import Finding, OnnxmemError
from onnxmem.model.graph import Graph
from onnxmem.program import (
    Affine,
    Allocator,
    Program,
    Replay,
    Sizes,
    replay,
    reserved_by_step,
)
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

    @property
    def outside_bytes(self) -> int:
        """What figures count outside the allocator."""
        return self.context.size_bytes + self.process.size_bytes

    @property
    def served_bytes(self) -> tuple[int, ...]:
        """What the allocator serves beside the program, one by one."""
        return (*self.workspaces_bytes, self.workspace.size_bytes)

    @property
    def more_bytes(self) -> int:
        """What the assumed terms may take beyond what counts of them."""
        return self.context.more_bytes + self.process.more_bytes + self.workspace.more_bytes


@dataclass(frozen=True, slots=True)
class RuntimeProgram:
    """What a runtime does with a graph."""

    program: Program
    sizes: Sizes
    diagnostics: tuple[Finding, ...] = ()
    """What the program assumes or leaves out."""
    iterations: int = 1
    """Replays of the program at most; fewer where the allocator comes to rest before."""


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

    def replay(self, capacity_bytes: int | None = None) -> Replay:
        """Replay the program with the runtime's allocator.

        ``capacity_bytes`` is what the device has for the runtime; ``None``: as much as it takes.

        :raises RuntimeFailedError: the allocator fails on a device without a limit, or the program
            and its sizes do not fit together.
        """
        made, left = self.made, None
        if capacity_bytes is not None:
            left = capacity_bytes - self.overheads.outside_bytes
            if left < 0:
                return Replay(made.program, made.sizes, out_of_memory_at=0)
        try:
            found = self._replayed(left)
        except _FAULTS as fault:
            message = f"{self.runtime.name}: its program cannot be replayed: {fault!r}"
            raise RuntimeFailedError(message) from fault
        if left is None and found.out_of_memory_at is not None:
            at = found.out_of_memory_at
            node = made.program.node_at(at) if at < len(made.program.events) else ""
            message = (
                f"{self.runtime.name}: its allocator is out of memory on a device without a limit"
                f"{f', at {node}' if node else ''}; see its own limits"
            )
            raise RuntimeFailedError(message)
        return found

    def _replayed(self, left: int | None) -> Replay:
        made, allocator = self.made, self.runtime.allocator(left)
        if allocator is None:
            served = sum(self.overheads.served_bytes)
            left = None if left is None else left - served
            return replay(made.program, made.sizes, capacity_bytes=left)
        return replay(
            made.program,
            made.sizes,
            allocator,
            iterations=made.iterations,
            workspaces_bytes=self.overheads.served_bytes,
        )

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

    def total_bytes(self, replayed: Replay) -> int:
        """What a device must have for the runtime: reserved, and what no allocator serves."""
        outside = self.overheads.outside_bytes
        if replayed.reserved is not None:
            return replayed.reserved.peak_bytes + outside
        return self.least_bytes(replayed)

    def least_bytes(self, replayed: Replay) -> int:
        """A lower bound for any allocator: live bytes, workspaces and what no allocator serves."""
        live_bytes = replayed.peak_bytes + sum(self.overheads.served_bytes)
        return live_bytes + self.overheads.outside_bytes

    def runs_in(self, capacity_bytes: int) -> bool:
        """Whether it gets by with so many bytes of a device."""
        return self.replay(capacity_bytes).out_of_memory_at is None


@dataclass(frozen=True, slots=True)
class RuntimeReplay:
    """What a runtime takes on a graph."""

    run: RuntimeRun
    replay: Replay

    @property
    def name(self) -> str:
        """Of the runtime."""
        return self.run.runtime.name

    @property
    def total_bytes(self) -> int:
        """What a device must have for it."""
        return self.run.total_bytes(self.replay)


@dataclass(frozen=True, slots=True)
class AffineRun:
    """A runtime on a model at every batch of a range: one program, affine sizes."""

    run: RuntimeRun
    """At the first batch of the range."""
    sizes: Sizes
    workspace: Affine | None = None
    """The most that a library's workspace takes; ``None``: it is the same at every batch."""

    @classmethod
    def through(
        cls, runs: Sequence[tuple[int, RuntimeRun]], given_workspace_bytes: int | None = None
    ) -> Self | None:
        """Find the sizes at every batch between runs at three or more, in order.

        ``None``: the programs differ, sizes are not affine, or overheads are neither the same nor a
        workspace that is affine in the batch.
        """
        (_, first), *others = runs
        if any(each.made.program != first.made.program for _, each in others):
            return None
        sizes = Sizes.through([(batch, each.made.sizes) for batch, each in runs])
        workspace = Affine.through([(n, each.overheads.workspace.high_bytes) for n, each in runs])
        if sizes is None or workspace is None:
            return None
        is_constant = all(each.overheads == first.overheads for _, each in others)
        found = cls(first, sizes, None if is_constant else workspace)
        overheads = [(found.overheads_at(n, given_workspace_bytes), each) for n, each in runs]
        return found if all(each.overheads == known for known, each in overheads) else None

    def overheads_at(self, batch: int, given_workspace_bytes: int | None = None) -> Overheads:
        """What the runtime takes beside the program at a batch."""
        if self.workspace is None:
            return self.run.overheads
        workspace = workspace_of(self.workspace.at(batch), given_workspace_bytes)
        return replace(self.run.overheads, workspace=workspace)

    def at(self, batch: int, given_workspace_bytes: int | None = None) -> RuntimeRun:
        """The run at a batch."""
        made = replace(self.run.made, sizes=self.sizes.at(batch))
        overheads = self.overheads_at(batch, given_workspace_bytes)
        return replace(self.run, made=made, overheads=overheads)
