"""Live bytes over the steps of inference or of a training step, by what the bytes hold.

At two resolutions. A ``StackedTimeline`` has a step for each node: of a training step that is
what one node allocates and releases in one phase, at the moment of its most bytes; each phase has
a first step of its own, in which nothing happens yet. ``Lifetimes`` keep every allocation, and of
a training step each allocation or release is a step of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from onnxmem.program.program import Category, IntColumn, int_column
from onnxmem.program.replay import Replay
from onnxmem.program.sizes import BoolColumn, ByteColumn, Sizes
from onnxmem.report.charts.steps import Mark, Series
from onnxmem.runtimes.torch.memory import Phase

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis

SAVED: Final = "saved for backward"
"""Activations that live from the forward phase to the backward one."""
GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        Category.WEIGHT.value: "c-weights",
        Category.BUFFER.value: "c-buffers",
        Category.STATE.value: "c-optimizer",
        Category.INPUT.value: "c-inputs",
        SAVED: "c-saved",
        Category.ACTIVATION.value: "c-activations",
        Category.GRADIENT.value: "c-gradients",
        Category.ACTIVATION_GRADIENT.value: "c-activation-gradients",
        Category.TEMPORARY.value: "c-temporary",
    }
)
"""The groups of a chart's areas, the lowest first, with the class of each: what lasts lies under
what is transient. They are the categories, and activations saved for backward are a group of
their own."""
_NAMES: Final = tuple(GROUPS)
_INPUTS: Final = "inputs"
"""Of an inference, which has no targets."""


@dataclass(frozen=True, slots=True)
class StackedTimeline:
    """Bytes over steps; a group that never has bytes has no series."""

    series: tuple[Series, ...]
    labels: tuple[str, ...]
    """The node of each step; of a phase's first step the phase."""
    peak_step: int | None
    """The first at which the sum is largest; ``None`` where there are no steps."""
    marks: tuple[Mark, ...] = ()
    """The phases of a training step."""

    @property
    def sums(self) -> tuple[int, ...]:
        """Bytes of all series at each step."""
        return tuple(map(sum, zip(*(each.values for each in self.series), strict=True)))


def run_timeline(analysis: "Analysis") -> StackedTimeline:
    """Inference: its largest sum is ``total_bytes``; unknown sizes count as 0."""
    memory = analysis.activations
    live_bytes = memory.live_bytes
    num_steps = len(live_bytes)
    series = (
        Series("weights", (analysis.weight_bytes or 0,) * num_steps, "c-weights"),
        Series(_INPUTS, (analysis.inputs_bytes or 0,) * num_steps, "c-inputs"),
        Series("activations", live_bytes, "c-activations"),
    )
    peak_step = live_bytes.index(max(live_bytes)) if live_bytes else None
    return StackedTimeline(series, memory.replay.program.steps[1:], peak_step)


def step_timeline(replay: Replay) -> StackedTimeline:
    """A training step: its largest sum is ``peak_bytes``."""
    moments = list(replay.moments(begin_phases=True))
    at = [moment.num_events for moment in moments]
    columns = replay.live_bytes_by_group(groups_of(replay), at, len(_NAMES))
    sums = [sum(sizes) for sizes in zip(*columns, strict=True)]
    starts = {moment.phase: n for n, moment in reversed(list(enumerate(moments)))}
    series = (
        Series(name, tuple(column), css_class)
        for (name, css_class), column in zip(GROUPS.items(), columns, strict=True)
    )
    return StackedTimeline(
        series=tuple(each for each in series if any(each.values)),
        labels=tuple(moment.node or moment.phase for moment in moments),
        peak_step=sums.index(max(sums)),
        marks=tuple(Mark(starts[phase], phase.value) for phase in Phase if phase in starts),
    )


def groups_of(replay: Replay) -> list[int]:
    """The index of each allocation's group."""
    program = replay.program
    groups = [_NAMES.index(category.value) for category in program.categories]
    for allocation in program.alive_after(program.phase_starts.get(Phase.BACKWARD, 0)):
        if program.categories[allocation] is Category.ACTIVATION:
            groups[allocation] = _NAMES.index(SAVED)
    return groups


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """When each allocation is alive, as columns: it is so in the steps ``[start, stop)``."""

    labels: tuple[str, ...]
    groups: IntColumn
    starts: IntColumn
    stops: IntColumn
    sizes: Sizes
    nodes: tuple[str, ...]
    """The node of each step: of a training step, every allocation and release is one."""
    marks: tuple[Mark, ...]
    """The phases of a training step."""

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return len(self.nodes)

    def live_bytes(self, sizes_bytes: ByteColumn) -> ByteColumn:
        """Bytes alive by group and by step, where these are the bytes of each allocation."""
        changes = np.zeros((len(_NAMES), self.num_steps + 1), dtype=sizes_bytes.dtype)
        np.add.at(changes, (self.groups, self.starts), sizes_bytes)
        np.subtract.at(changes, (self.groups, self.stops), sizes_bytes)
        live: ByteColumn = np.cumsum(changes, axis=1)
        return live[:, :-1]

    def series(self, sizes_bytes: ByteColumn) -> tuple[Series, ...]:
        """The same as a series for each group that has bytes."""
        live_bytes = self.live_bytes(sizes_bytes)
        return tuple(
            Series(self.group_name(name), tuple(live.tolist()), css_class)
            for (name, css_class), live in zip(GROUPS.items(), live_bytes, strict=True)
            if live.any()
        )

    def group_name(self, name: str) -> str:
        """The name of a group: an inference has no targets."""
        return _INPUTS if name == Category.INPUT.value and not self.marks else name

    def has_same_lifetimes(self, other: "Lifetimes") -> bool:
        """Whether the same allocations are alive in the same steps, whatever their sizes."""
        columns = ((getattr(each, name) for each in (self, other)) for name in _COLUMNS)
        return self.labels == other.labels and all(np.array_equal(*pair) for pair in columns)

    def where(self, is_kept: BoolColumn) -> Self:
        """Some of the allocations."""
        return replace(
            self,
            labels=tuple(np.array(self.labels, dtype=object)[is_kept].tolist()),
            sizes=Sizes(self.sizes.fixed_bytes[is_kept]),
            **{name: getattr(self, name)[is_kept] for name in _COLUMNS},
        )


_COLUMNS: Final = ("groups", "starts", "stops")


def lifetimes_of(analysis: "Analysis") -> Lifetimes:
    """Those of the training step where there is one, else those of inference."""
    if analysis.training is not None:
        return _training_lifetimes(analysis.training.replay)
    replay = analysis.activations.replay
    program, nodes = replay.program, replay.program.steps[1:]
    # Weights and inputs are not allocations of the program: they are there throughout.
    held_bytes = (analysis.weight_bytes or 0, analysis.inputs_bytes or 0)
    held = tuple(_NAMES.index(each.value) for each in (Category.WEIGHT, Category.INPUT))
    activations = [_NAMES.index(Category.ACTIVATION.value)] * program.num_allocations
    starts, stops = program.lifetimes
    found = Lifetimes(
        labels=("weights", "inputs", *program.labels),
        groups=int_column((*held, *activations)),
        # No node runs in the first step of a program.
        starts=np.concatenate(([0, 0], starts - 1)),
        stops=np.concatenate(([len(nodes)] * 2, stops - 1)),
        sizes=Sizes.of((*held_bytes, *replay.sizes.fixed_bytes.tolist())),
        nodes=nodes,
        marks=(),
    )
    return found.where(found.sizes.fixed_bytes > 0)


def _training_lifetimes(replay: Replay) -> Lifetimes:
    """A step for each event, from the last one of the setup on."""
    program = replay.program
    first, end = max(program.num_setup_events - 1, 0), len(program.events)
    # Alive from its own event to before the one that releases it; else to the end.
    starts, stops = program.spans_over(np.arange(end), end + 1)
    found = Lifetimes(
        labels=program.labels,
        groups=int_column(groups_of(replay)),
        starts=np.maximum(starts - first, 0),
        stops=stops - 1 - first,
        sizes=Sizes(replay.sizes.fixed_bytes),
        nodes=tuple(program.steps[step] for step in program.event_steps[first:].tolist()),
        marks=tuple(Mark(max(at - first, 0), name) for name, at in program.phase_starts.items()),
    )
    return found.where(found.stops > 0)
