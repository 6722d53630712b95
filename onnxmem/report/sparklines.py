"""The shape of a run in lines of text: block characters for the bytes alive over the steps."""

from typing import TYPE_CHECKING, Final

from onnxmem.report.text import WIDTH, spark

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.runtimes.torch.memory import TrainingMemory

_LABEL_WIDTH: Final = 16
_FEWEST: Final = 8
"""Steps: the shape of fewer says nothing that the figures do not."""


def timeline_section(analysis: "Analysis") -> list[str]:
    """Activations over the nodes, and all that a training step holds, phase by phase."""
    live_bytes = analysis.activations.live_bytes
    lines = []
    if len(live_bytes) >= _FEWEST and any(live_bytes):
        lines.append(_row("activations", spark(live_bytes, WIDTH - _LABEL_WIDTH)))
    if analysis.training is not None:
        lines += _step_rows(analysis.training)
    head = "TIMELINE, bytes alive from the first step to the last, the tallest at the peak"
    return [head, *lines] if lines else []


def _step_rows(training: "TrainingMemory") -> list[str]:
    """A row of blocks on one scale, and under each phase its name as far as there is room."""
    # It imports the training step, which a report of inference does without.
    from onnxmem.report.timelines import step_timeline

    timeline = step_timeline(training.replay)
    sums = timeline.sums
    if len(sums) < _FEWEST:
        return []
    starts = [*(mark.start for mark in timeline.marks), len(sums)]
    # A phase of few steps has a column all the same, which another one must leave to it.
    room = WIDTH - _LABEL_WIDTH - 2 * len(timeline.marks)
    drawn, names = [], []
    for mark, stop in zip(timeline.marks, starts[1:], strict=True):
        part = sums[mark.start : stop]
        width = max(len(part) * room // max(len(sums), room), 1)
        drawn.append(spark(part, width, top=max(sums)))
        names.append(mark.name[:width].ljust(width))
    return [_row("training step", "|".join(drawn)), _row("", "|".join(names))]


def _row(label: str, text: str) -> str:
    return f"{'  ' + label:<{_LABEL_WIDTH}}{text}".rstrip()
