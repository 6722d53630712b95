"""The text report of one analysis: what was assumed, then what it takes, then what fits.

Sums are printed as lines that add up to the byte, and every name from the model is escaped.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from onnxmem.errors import shortened
from onnxmem.report.assumptions import assumptions, model_facts, partial_texts
from onnxmem.report.sections.listing import sections
from onnxmem.report.sparklines import timeline_section
from onnxmem.report.text import figure, paragraph, prose, section_lines

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis

_BEFORE_TIMELINE: Final = frozenset({"run", "activations", "live", "peak-rows"})
_MOST_LARGEST: Final = 6
"""Tensors of a training step's peak that are listed."""


def render(analysis: "Analysis") -> str:
    """Write the whole report; it ends with a newline."""
    written = [(each.key, section_lines(each)) for each in sections(analysis)]
    blocks = [
        _head(analysis),
        *(lines for key, lines in written if key in _BEFORE_TIMELINE),
        timeline_section(analysis),
        *(
            [*lines, *_largest(analysis)] if key == "train" else lines
            for key, lines in written
            if key not in _BEFORE_TIMELINE
        ),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _head(analysis: "Analysis") -> list[str]:
    """Name the model and say what was assumed, before any figure."""
    lines = paragraph(f"{shortened(analysis.path)}  ", model_facts(analysis))
    lines += paragraph("assumes: ", assumptions(analysis))
    for text in partial_texts(analysis):
        lines += prose("", text)
    return lines


def _largest(analysis: "Analysis") -> Iterator[str]:
    """The largest tensors alive at the peak of a training step."""
    # It imports the training step, which a report of inference does without.
    from onnxmem.report.sections.training import live_lines

    if analysis.training is not None:
        yield "  largest of them"
        for line in islice(live_lines(analysis.training), _MOST_LARGEST):
            yield figure("", line.number, line.label)
