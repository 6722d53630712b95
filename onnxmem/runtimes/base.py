"""What a runtime is to the rest of the package: a maker of programs, and what it takes besides.

A runtime that is added later implements ``Runtime`` and nothing else changes: reports, verdicts,
diffs and searches read the ``Replay`` of its program.
"""

from dataclasses import dataclass
from typing import Protocol

from onnxmem.errors import Finding
from onnxmem.model import Graph
from onnxmem.program import Allocator, Program, Sizes
from onnxmem.runtimes.assumed import NO_TERM, Assumed


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a runtime takes beside what its program allocates, as ranges in bytes."""

    context: Assumed = NO_TERM
    """Of a device: CUDA and its loaded kernels."""
    workspace: Assumed = NO_TERM
    """Of libraries: cuDNN's convolutions."""
    process: Assumed = NO_TERM
    """Of the process before it has a model: the interpreter, the runtime's libraries."""

    @property
    def size_bytes(self) -> int:
        """What figures count of all of them."""
        return self.context.size_bytes + self.workspace.size_bytes + self.process.size_bytes


@dataclass(frozen=True, slots=True)
class RuntimeProgram:
    """What a runtime does with a graph."""

    program: Program
    sizes: Sizes
    diagnostics: tuple[Finding, ...] = ()
    """What the program assumes or leaves out."""
    iterations: int = 1
    """How often the program is replayed before its allocator is said to be steady."""


class Runtime(Protocol):
    """One way to run a model."""

    @property
    def name(self) -> str:
        """As reports and ``--runtime`` have it."""
        ...

    def program(self, graph: Graph) -> RuntimeProgram:
        """What it allocates and releases when it runs a graph.

        :raises OnnxmemError: it cannot run the graph.
        """
        ...

    def allocator(self, capacity_bytes: int | None = None) -> Allocator | None:
        """A new allocator as it uses one; ``None``: every allocation takes its own bytes."""
        ...

    def overheads(self, graph: Graph) -> Overheads:
        """What it takes beside the program."""
        ...
