"""The figures of one analysis by their keys, as a page's slider looks them up at another batch.

They are those of the report's sections, so that no figure of a page has a second source; a key is
the path in the JSON report: ``activations.peak_bytes``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.report.sections.listing import batch_sections
from onnxmem.report.sections.section import Line, Note

ELEMENTS: Final = ("elements.activations", "elements.inputs", "weights.parameters")
"""What a script works out the rules of thumb from that round up the elements of a sample."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one batch; ``None`` is unknown."""

    numbers: Mapping[str, int | None]
    texts: Mapping[str, str]


def figures_of(analysis: Analysis) -> Figures:
    """Every number and all words that may change with the batch."""
    sections = batch_sections(analysis)
    lines = [line for section in sections for line in section.all_lines()]
    said: list[Line | Note] = [*lines, *(note for section in sections for note in section.notes)]
    numbers = {line.key: line.number for line in lines if line.key}
    texts = {each.words_key: each.words for each in said if each.words_key}
    return Figures({**numbers, **_elements(analysis)}, texts)


def _elements(analysis: Analysis) -> Mapping[str, int | None]:
    counts = [analysis.graph.tensors[name].num_elements for name in analysis.graph.inputs]
    known = [count for count in counts if count is not None]
    values = (
        analysis.activations.naive_in_place_elements,
        sum(known) if known or not counts else None,
        analysis.num_parameters,
    )
    return dict(zip(ELEMENTS, values, strict=True))
