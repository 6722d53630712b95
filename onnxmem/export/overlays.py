"""Figures of nodes, to be laid over a drawing of their graph: Model Explorer's node data.

The format is that of ``GraphNodeData`` in ``model_explorer/node_data_builder.py`` (0.1.34): results
by the id of a node, which is its name here and in other readers of ONNX, and a color for each.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.export.figures import live_bytes
from onnxmem.program.replay import Peak, Replay
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory

_PALEST: Final = (255, 244, 229)
_DARKEST: Final = (194, 65, 12)


@dataclass(frozen=True, slots=True)
class Overlay:
    """One figure of nodes in bytes; nodes without it, or of unknown bytes, are left out."""

    name: str
    by_node: Mapping[str, int]
    elsewhere_bytes: int = 0
    """What no node of the graph allocated: weights, optimizer state, inputs, the loss; of what is
    live in a phase, what is live throughout."""

    @property
    def title(self) -> str:
        """The name, with the unit and what the nodes do not show."""
        elsewhere = f" (+ {self.elsewhere_bytes:,} of no node)" if self.elsewhere_bytes else ""
        return f"{self.name}, bytes{elsewhere}"

    def colors(self) -> Iterator[tuple[str, int, str]]:
        """Each node with its bytes and a color, which is darker the more they are."""
        largest = max(self.by_node.values(), default=0)
        for node, size_bytes in self.by_node.items():
            yield node, size_bytes, _color(size_bytes / largest if largest else 0.0)


def overlays(analysis: Analysis) -> tuple[Overlay, ...]:
    """The figures of the nodes of the main graph: of inference, or of a training step.

    The last is the one to show first, as Model Explorer does.

    What is live at a peak, or saved for backward, counts at the node that allocated it, so that
    the nodes and ``elsewhere_bytes`` add up to the figure of the report.
    """
    training = analysis.training
    if training is None:
        names = [node.name for node in analysis.graph.nodes]
        live = zip(names, live_bytes(analysis), strict=True)
        replay = analysis.activations.replay
        return (
            _allocated_by(analysis, "Live at the peak", replay, _live(replay, replay.peak)),
            Overlay("Live activations", {name: size for name, size in live if size is not None}),
        )
    replay = training.replay
    return (
        *(_live_in(analysis, replay, phase) for phase in (Phase.BACKWARD, Phase.FORWARD)),
        _allocated_by(analysis, "Live at the step's peak", replay, _live(replay, training.peak)),
        _allocated_by(analysis, "Saved for backward", replay, _saved(training)),
    )


def model_explorer(analysis: Analysis) -> Iterator[str]:
    """Write node data of Model Explorer: live activations, or what is saved for backward."""
    overlay = overlays(analysis)[-1]
    results = {node: {"value": size, "bgColor": color} for node, size, color in overlay.colors()}
    yield json.dumps({"name": overlay.title, "results": results}, indent=1) + "\n"


def _live(replay: Replay, peak: Peak) -> list[int]:
    return replay.program.alive_after(peak.num_events)


def _saved(training: TrainingMemory) -> list[int]:
    """What the forward phase leaves, its setup not included."""
    program = training.replay.program
    before = {*program.alive_after(program.num_setup_events)}
    left = program.alive_after(program.phase_ranges[Phase.FORWARD].stop)
    return [number for number in left if number not in before]


def _live_in(analysis: Analysis, replay: Replay, phase: Phase) -> Overlay:
    """The most bytes that are live while a node runs in a phase, beside what always is."""
    names = {node.name for node in analysis.graph.nodes}
    program, by_node = replay.program, dict[str, int]()
    last = {*program.alive_after(len(program.events))}
    # Alive from before the step to its end: in every node's figure, so it would color all alike.
    always = last.intersection(program.alive_after(program.num_setup_events))
    always_bytes = sum(map(replay.sizes.bytes_of, always))
    for moment in replay.moments():
        name = _node_of(moment.node, names)
        if moment.phase == phase and name:
            size_bytes = replay.bytes_after(moment.num_events) - always_bytes
            by_node[name] = max(size_bytes, by_node.get(name, 0))
    return Overlay(f"Live in the {phase.value} phase", by_node, always_bytes)


def _allocated_by(
    analysis: Analysis, title: str, replay: Replay, numbers: Iterable[int]
) -> Overlay:
    """The bytes of allocations by the node that made them."""
    names = {node.name for node in analysis.graph.nodes}
    program, by_node = replay.program, dict[str, int]()
    starts, _ = program.lifetimes
    for number in numbers:
        name = _node_of(program.steps[starts[number]], names)
        by_node[name] = by_node.get(name, 0) + replay.sizes.bytes_of(number)
    elsewhere_bytes = by_node.pop("", 0)
    known = {name: size for name, size in by_node.items() if size}
    return Overlay(title, known, elsewhere_bytes)


def _node_of(step: str, names: set[str]) -> str:
    """The node of the graph that a step comes from; ``""``: none.

    A training step adds nodes, as the BatchNormalization that an export folded into a Conv; their
    names begin with that of the node.
    """
    while step and step not in names:
        step = step.rpartition("/")[0]
    return step


def _color(share: float) -> str:
    levels = (
        round(pale + (dark - pale) * share) for pale, dark in zip(_PALEST, _DARKEST, strict=True)
    )
    return "#" + "".join(f"{level:02x}" for level in levels)
