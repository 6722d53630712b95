"""Training steps of graphs in ONNX text, and what happens in them, for all tests of training."""

from typing import Any

from graphs import graph_of

from onnxmem.model.graph import Graph
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.runtimes.torch.network import Network, network_of
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import TrainingConfig

CHAIN = """
    agraph (float[2,3] x) => (float[2,7] y) <float[3,5] w, float[5,7] v> {
        h = MatMul(x, w)
        r = Relu(h)
        y = MatMul(r, v)
    }"""


def recipe_of(**given: Any) -> TrainingConfig:  # noqa: ANN401 - any field
    """SGD without a loss, with other settings."""
    return TrainingConfig(**({"optimizer": "sgd", "loss": "none"} | given))


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
    """The operators that the framework runs for a graph."""
    return operators(network(text, **given).graph)


def happenings(found: TrainingMemory, phase: Phase = Phase.BACKWARD) -> list[str]:
    """What is allocated (``+``) and released (``-``) in a phase, in order, by what it became."""
    program = found.replay.program
    events = program.phase_ranges[phase]
    return [
        f"+{program.labels[event]}" if event >= 0 else f"-{program.labels[~event]}"
        for event in program.events[max(events.start, program.num_setup_events) : events.stop]
    ]


def found_before(found: TrainingMemory) -> list[str]:
    """What a step finds allocated as it begins, in order."""
    program = found.replay.program
    return [program.labels[each] for each in program.events[: program.num_setup_events]]


def sizes(found: TrainingMemory) -> dict[str, list[int]]:
    """Bytes of every allocation of a step, by label."""
    by_label: dict[str, list[int]] = {}
    for each in found.replay.allocations():
        by_label.setdefault(each.label, []).append(each.size_bytes)
    return by_label


def categories(found: TrainingMemory) -> dict[str, Category]:
    """The category of the last allocation of each label."""
    return {each.label: each.category for each in found.replay.allocations()}


def are_equal(one: TrainingMemory, other: TrainingMemory) -> bool:
    """Whether two steps allocate and release the same."""
    replays = one.replay, other.replay
    programs = [replay.program for replay in replays]
    sizes = [replay.sizes.fixed_bytes.tolist() for replay in replays]
    return programs[0] == programs[1] and sizes[0] == sizes[1]
