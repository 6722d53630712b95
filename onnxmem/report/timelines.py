"""What is held at each step of a run, or of a training step, by what it is.

Of inference a step is the run of one node. Of a training step it is what one node allocates and
releases on one of its ways, and of it the moment at which the most is alive; each phase has a first
step of its own, in which nothing happens yet.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onnxmem.report.charts import Mark, Series
from onnxmem.runtimes.torch.heap import Kind, Phase, StepTrace

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis

LAYERS: Final = (
    ("weights", "c-weights"),
    ("optimizer state", "c-optimizer"),
    ("inputs", "c-inputs"),
    ("saved for backward", "c-saved"),
    ("activations", "c-activations"),
    ("gradients of weights", "c-gradients"),
    ("activation gradients", "c-activation-gradients"),
    ("temporaries", "c-temporary"),
)
"""Name and class of each area, the lowest first: what lasts lies under what passes."""
SAVED: Final = 3
"""The layer of activations that live from the forward phase to the backward one."""
LAYER_OF: Final = {
    Kind.WEIGHT: 0,
    Kind.BUFFER: 0,
    Kind.STATE: 1,
    Kind.INPUT: 2,
    Kind.ACTIVATION: 4,
    Kind.GRADIENT: 5,
    Kind.ACTIVATION_GRADIENT: 6,
    Kind.TEMPORARY: 7,
}
"""The place of each kind's area."""


@dataclass(frozen=True, slots=True)
class StackedTimeline:
    """Bytes over steps; what is never there has no series."""

    series: tuple[Series, ...]
    labels: tuple[str, ...]
    """The node of each step; of a phase's first step the phase."""
    peak_step: int | None
    """The first at which the sum is largest; ``None`` where there is no step."""
    marks: tuple[Mark, ...] = ()
    """The phases of a training step."""

    @property
    def sums(self) -> tuple[int, ...]:
        """Bytes of all series at each step."""
        return tuple(map(sum, zip(*(each.values for each in self.series), strict=True)))


def run_timeline(analysis: "Analysis") -> StackedTimeline:
    """Inference: its largest sum is ``total_bytes``; unknown sizes count nothing."""
    memory = analysis.activations
    live_bytes = memory.live_bytes
    num_steps = len(live_bytes)
    series = (
        Series("weights", (analysis.weight_bytes or 0,) * num_steps, "c-weights"),
        Series("inputs", (analysis.inputs_bytes or 0,) * num_steps, "c-inputs"),
        Series("activations", live_bytes, "c-activations"),
    )
    peak_step = live_bytes.index(max(live_bytes)) if live_bytes else None
    return StackedTimeline(series, memory.replay.program.steps[1:], peak_step)


def step_timeline(trace: StepTrace) -> StackedTimeline:
    """A training step: its largest sum is ``peak_bytes``."""
    moments = list(_moments(trace))
    sums = [sum(held) for _, _, held in moments]
    starts = {phase: n for n, (phase, _, _) in reversed(list(enumerate(moments)))}
    columns = zip(*(held for _, _, held in moments), strict=True)
    series = (
        Series(name, column, css_class)
        for (name, css_class), column in zip(LAYERS, columns, strict=True)
    )
    return StackedTimeline(
        series=tuple(each for each in series if any(each.values)),
        labels=tuple(node or phase.value for phase, node, _ in moments),
        peak_step=sums.index(max(sums)),
        marks=tuple(Mark(starts[phase], phase.value) for phase in Phase if phase in starts),
    )


def _moments(trace: StepTrace) -> Iterator[tuple[Phase, str, tuple[int, ...]]]:
    """Each step: its phase, its node, and what each layer holds when the most is alive."""
    layers = _layers(trace)
    sizes = list(trace.sizes())
    begun = trace.num_held_events
    held = [0] * len(LAYERS)
    for block, size_bytes in sizes[:begun]:
        held[layers[block]] += size_bytes
    stops = [*list(trace.starts.values())[1:], len(sizes)]
    for phase, stop in zip(trace.starts, stops, strict=True):
        # A phase begins with what is there, also where it allocates nothing.
        node, most = "", tuple(held)
        live_bytes = most_bytes = sum(held)
        for number in range(begun, stop):
            if trace.nodes[number] != node:
                yield phase, node, most
                node, most_bytes = trace.nodes[number], -1
            block, size_bytes = sizes[number]
            held[layers[block]] += size_bytes
            live_bytes += size_bytes
            if live_bytes > most_bytes:
                most_bytes, most = live_bytes, tuple(held)
        yield phase, node, most
        begun = max(begun, stop)


def _layers(trace: StepTrace) -> list[int]:
    """The layer of each block."""
    layers = [LAYER_OF[block.kind] for block in trace.blocks]
    alive: set[int] = set()
    for each in trace.log[: trace.starts.get(Phase.BACKWARD, 0)]:
        if each >= 0:
            alive.add(each)
        else:
            alive.discard(~each)
    for block in alive:
        if trace.blocks[block].kind is Kind.ACTIVATION:
            layers[block] = SAVED
    return layers
