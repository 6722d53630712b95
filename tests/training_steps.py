"""Training steps of graphs in ONNX text, and what happens in them, for all tests of training."""

from typing import Any

from graphs import graph_of

from onnxmem.model import Graph
from onnxmem.runtimes.torch import TrainingMemory, training_memory
from onnxmem.runtimes.torch.heap import Phase
from onnxmem.runtimes.torch.network import Network, network_of
from onnxmem.settings import Recipe


def recipe_of(**given: Any) -> Recipe:  # noqa: ANN401 - whatever a recipe takes
    """A recipe of SGD without a loss, but for what is given."""
    return Recipe(**({"optimizer": "sgd", "loss": "none"} | given))


def step(text: str, **given: Any) -> TrainingMemory:  # noqa: ANN401
    """Take a step of a graph in ONNX text."""
    return training_memory(graph_of(text), recipe_of(**given))


def network(text: str, **given: Any) -> Network:  # noqa: ANN401
    """Read a graph as the framework trains it."""
    return network_of(graph_of(text), recipe_of(**given))


def operators(graph: Graph) -> list[str]:
    """The operators of a graph, in order; shapes and constants left out."""
    return [
        node.op_type for node in graph.nodes if node.op_type not in {"Constant", "Shape", "Size"}
    ]


def run_as(text: str, **given: Any) -> list[str]:  # noqa: ANN401
    """The operators that the framework runs in place of a graph's."""
    return operators(network(text, **given).graph)


def happenings(found: TrainingMemory, phase: Phase = Phase.BACKWARD) -> list[str]:
    """What is allocated (``+``) and released (``-``) in a phase, in order, by what it became."""
    return [
        f"{'+' if event.is_allocation else '-'}{found.trace.blocks[event.block].label}"
        for event in found.trace.events[found.trace.num_held_events :]
        if event.phase is phase
    ]


def sizes(found: TrainingMemory) -> dict[str, list[int]]:
    """Bytes of every block of a step, by label."""
    by_label: dict[str, list[int]] = {}
    for block in found.trace.blocks:
        by_label.setdefault(block.label, []).append(block.size_bytes)
    return by_label
