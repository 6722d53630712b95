"""Inference without a runtime as a ``Runtime``: weights and inputs are held, nothing is rounded."""

from dataclasses import dataclass
from typing import ClassVar

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import Graph
from onnxmem.program import Category
from onnxmem.runtimes.base import Overheads, RuntimeProgram
from onnxmem.runtimes.ideal.activation_memory import activation_memory


@dataclass(frozen=True, slots=True)
class IdealRuntime:
    """Every allocation takes its own bytes; the peak is ``total_bytes`` of the report."""

    name: ClassVar[str] = "ideal"

    def program(self, graph: Graph) -> RuntimeProgram:
        """Weights and inputs as the setup, then the buffers of definition 4."""
        memory = activation_memory(graph)
        held = [(each, Category.WEIGHT) for each in graph.weights]
        held += [(graph.tensors[name], Category.INPUT) for name in graph.inputs]
        labels = [tensor.name for tensor, _ in held]
        program = memory.replay.program.with_setup(labels, [category for _, category in held])
        sizes = memory.replay.sizes.followed_by(tensor.size_bytes for tensor, _ in held)
        unknown = memory.unknown_tensors
        text = f"tensors of unknown size, left out: {listed(unknown)}"
        return RuntimeProgram(program, sizes, (Finding("partial", text),) if unknown else ())

    def allocator(self, capacity_bytes: int | None = None) -> None:
        """None: every allocation takes its own bytes."""

    def overheads(self, graph: Graph) -> Overheads:  # noqa: ARG002 - there are none
        """Nothing."""
        return Overheads()
