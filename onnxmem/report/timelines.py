"""What is held at each step of a run, or of a training step, by what it is.

Of inference a step is the run of one node. Of a training step it is what one node allocates and
releases on one of its ways, and of it the moment at which the most is alive; each phase has a first
step of its own, in which nothing happens yet.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onnxmem.program.program import Category
from onnxmem.program.replay import Replay
from onnxmem.report.charts.steps import Mark, Series
from onnxmem.runtimes.torch.heap import Phase

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis

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
    Category.WEIGHT: 0,
    Category.BUFFER: 0,
    Category.STATE: 1,
    Category.INPUT: 2,
    Category.ACTIVATION: 4,
    Category.GRADIENT: 5,
    Category.ACTIVATION_GRADIENT: 6,
    Category.TEMPORARY: 7,
}
"""The index of each category's area."""


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


def step_timeline(replay: Replay) -> StackedTimeline:
    """A training step: its largest sum is ``peak_bytes``."""
    moments = list(replay.moments(begin_phases=True))
    at = [moment.num_events for moment in moments]
    columns = replay.held_by(_layers(replay), at, len(LAYERS))
    sums = [sum(sizes) for sizes in zip(*columns, strict=True)]
    starts = {moment.phase: n for n, moment in reversed(list(enumerate(moments)))}
    series = (
        Series(name, tuple(column), css_class)
        for (name, css_class), column in zip(LAYERS, columns, strict=True)
    )
    return StackedTimeline(
        series=tuple(each for each in series if any(each.values)),
        labels=tuple(moment.node or moment.phase for moment in moments),
        peak_step=sums.index(max(sums)),
        marks=tuple(Mark(starts[phase], phase.value) for phase in Phase if phase in starts),
    )


def _layers(replay: Replay) -> list[int]:
    """The layer of each allocation."""
    program = replay.program
    layers = [LAYER_OF[category] for category in program.categories]
    for allocation in program.alive_after(program.phase_starts.get(Phase.BACKWARD, 0)):
        if program.categories[allocation] is Category.ACTIVATION:
            layers[allocation] = SAVED
    return layers
