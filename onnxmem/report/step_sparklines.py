"""The shape of a training step in two lines of text: blocks, and the phases under them."""

from typing import TYPE_CHECKING

from onnxmem.report.charts import spark
from onnxmem.report.lines import WIDTH
from onnxmem.report.sparklines import FEWEST, LABEL_WIDTH, row
from onnxmem.report.timelines import step_timeline

if TYPE_CHECKING:
    from onnxmem.runtimes.torch import TrainingMemory


def step_rows(training: "TrainingMemory") -> list[str]:
    """A row of blocks on one scale, and under each phase its name as far as there is room."""
    timeline = step_timeline(training.replay)
    sums = timeline.sums
    if len(sums) < FEWEST:
        return []
    starts = [*(mark.start for mark in timeline.marks), len(sums)]
    # A phase of few steps has a column all the same, which another one must leave to it.
    room = WIDTH - LABEL_WIDTH - 2 * len(timeline.marks)
    drawn, names = [], []
    for mark, stop in zip(timeline.marks, starts[1:], strict=True):
        part = sums[mark.start : stop]
        width = max(len(part) * room // max(len(sums), room), 1)
        drawn.append(spark(part, width, top=max(sums)))
        names.append(mark.name[:width].ljust(width))
    return [row("training step", "|".join(drawn)), row("", "|".join(names))]
