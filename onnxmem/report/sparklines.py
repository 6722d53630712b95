"""The shape of a run in a line of text: block characters for the bytes alive over the steps."""

from typing import TYPE_CHECKING, Final

from onnxmem import report
from onnxmem.report.charts import spark
from onnxmem.report.lines import WIDTH

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis

LABEL_WIDTH: Final = 16
FEWEST: Final = 8
"""Steps: the shape of fewer says nothing that the figures do not."""


def timeline_section(analysis: "Analysis") -> list[str]:
    """Activations over the nodes, and all that a training step holds, phase by phase."""
    live_bytes = analysis.activations.live_bytes
    lines = []
    if len(live_bytes) >= FEWEST and any(live_bytes):
        lines.append(row("activations", spark(live_bytes, WIDTH - LABEL_WIDTH)))
    if analysis.training is not None:
        lines += report.step_rows(analysis.training)
    head = "TIMELINE, bytes alive from the first step to the last, the tallest at the peak"
    return [head, *lines] if lines else []


def row(label: str, text: str) -> str:
    """A line of the section."""
    return f"{'  ' + label:<{LABEL_WIDTH}}{text}".rstrip()
