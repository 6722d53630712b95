"""What is alive from when to when, of a run or of a training step, in one form for a picture."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from onnxmem.analysis.analysis import Analysis
from onnxmem.program.program import Category
from onnxmem.report.charts.steps import Series
from onnxmem.report.timelines import LAYER_OF, LAYERS, SAVED
from onnxmem.runtimes.torch.heap import Phase
from onnxmem.runtimes.torch.memory import TrainingMemory


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that are alive in the steps ``[start, stop)``."""

    name: str
    layer: int
    start: int
    stop: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Course:
    """A run or a training step from its first step to its last."""

    spans: tuple[Span, ...]
    nodes: tuple[str, ...]
    """The node of each step: of a training step, every allocation and release is one."""
    marks: tuple[tuple[int, str], ...]
    """The steps at which its phases begin."""

    @property
    def num_steps(self) -> int:
        """How many there are."""
        return len(self.nodes)

    def series(self) -> tuple[Series, ...]:
        """Live bytes of each layer at each step; layers without bytes are left out."""
        changes = [[0] * (self.num_steps + 1) for _ in LAYERS]
        for span in self.spans:
            changes[span.layer][span.start] += span.size_bytes
            changes[span.layer][span.stop] -= span.size_bytes
        return tuple(
            Series(name, tuple(accumulate(change[:-1])), css_class)
            for (name, css_class), change in zip(LAYERS, changes, strict=True)
            if any(change)
        )


@dataclass(frozen=True, slots=True)
class Moving:
    """How the spans of a course move with the batch, from one batch to another."""

    first: int
    last: int
    per_sample: tuple[int, ...]
    """Of each span, in bytes."""


def course_of(analysis: Analysis) -> Course:
    """The training step where one is asked for, else the run."""
    if analysis.training is not None:
        return _step(analysis.training)
    return _run(analysis)


def _run(analysis: Analysis) -> Course:
    """A step a node; weights and inputs are there all along."""
    replay = analysis.activations.replay
    nodes = replay.program.steps[1:]
    held = (
        ("weights", LAYER_OF[Category.WEIGHT], analysis.weight_bytes),
        ("inputs", LAYER_OF[Category.INPUT], analysis.inputs_bytes),
    )
    spans = [Span(name, layer, 0, len(nodes), size) for name, layer, size in held if size]
    made = LAYER_OF[Category.ACTIVATION]
    lifetimes = zip(*(column.tolist() for column in replay.program.lifetimes), strict=True)
    # No node runs in the first step of the program.
    spans += [
        Span(each.label, made, start - 1, stop - 1, each.size_bytes)
        for each, (start, stop) in zip(replay.allocations(), lifetimes, strict=True)
        if each.size_bytes
    ]
    return Course(tuple(spans), nodes, ())


def _step(training: TrainingMemory) -> Course:
    """A step an event, from the moment at which all that is held through it is there."""
    program, sizes = training.replay.program, training.replay.sizes.fixed_bytes.tolist()
    first = max(program.num_setup_events - 1, 0)
    end = len(program.events)
    backward = program.phase_starts.get(Phase.BACKWARD, end)

    def span(number: int, start: int, stop: int) -> Span:
        layer = LAYER_OF[program.categories[number]]
        if layer == LAYER_OF[Category.ACTIVATION] and start < backward < stop:
            layer = SAVED
        return Span(program.labels[number], layer, start, stop, sizes[number])

    starts: dict[int, int] = {}
    spans: list[Span] = []
    for at, event in enumerate(program.events.tolist()):
        if event >= 0:
            starts[event] = at
        else:
            spans.append(span(~event, starts.pop(~event), at))
    spans += [span(number, start, end) for number, start in starts.items()]
    nodes = tuple(program.steps[step] for step in program.event_steps[first:].tolist())
    marks = tuple((max(at - first, 0), phase) for phase, at in program.phase_starts.items())
    return Course(tuple(_from(spans, first)), nodes, marks)


def _from(spans: Iterable[Span], first: int) -> Iterable[Span]:
    return (
        Span(each.name, each.layer, max(each.start - first, 0), each.stop - first, each.size_bytes)
        for each in spans
        if each.stop > first
    )


def moved(course: Course, moving: Moving) -> tuple[Series, ...]:
    """What one more sample adds to each area at each step."""
    spans = (
        Span(span.name, span.layer, span.start, span.stop, slope)
        for span, slope in zip(course.spans, moving.per_sample, strict=True)
    )
    return Course(tuple(spans), course.nodes, course.marks).series()
