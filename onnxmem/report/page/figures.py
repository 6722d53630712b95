"""The figures of one analysis by the keys of its row in JSON: ``activations.peak_bytes``.

A page shows what ``to_dict`` says, so that no figure of it has a second source.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from onnxmem.analysis import Analysis
from onnxmem.errors import shortened

_LEFT_OUT: Final = frozenset(
    {"layers", "findings", "coverage", "settings", "path", "status", "error", "runtime", "measured"}
)
"""Lists, what no batch changes, and ``runtime``, which is the first of ``runtimes``."""

_NO_FIGURES: Final = frozenset({"activations.peak_rows", "activations.no_peak_rows"})
"""What holds at many batches, and no figure of one."""

PEAK_NODE: Final = "activations.peak_node"
PEAK_PLACE: Final = "activations.peak_place"
"""Operator and step of the peak, as the text report has them."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one batch; ``None`` is unknown."""

    numbers: Mapping[str, int | None]
    texts: Mapping[str, str]


def figures_of(analysis: Analysis) -> Figures:
    """Every number and word of the row that may change with the batch."""
    numbers: dict[str, int | None] = {}
    texts: dict[str, str] = {}
    row = {key: value for key, value in analysis.to_dict().items() if key not in _LEFT_OUT}
    for key, value in _leaves("", row):
        if isinstance(value, str):
            texts[key] = shortened(value)
        else:
            numbers[key] = value
    numbers["elements.activations"] = analysis.activations.naive_in_place_elements
    counts = [analysis.graph.tensors[name].num_elements for name in analysis.graph.inputs]
    known = [count for count in counts if count is not None]
    numbers["elements.inputs"] = sum(known) if known or not counts else None
    texts[PEAK_PLACE] = _peak_place(analysis)
    return Figures(numbers, texts)


def _leaves(prefix: str, value: object) -> Iterator[tuple[str, int | str | None]]:
    """Numbers, words and unknowns inside, by their keys with points between."""
    if prefix in _NO_FIGURES:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list) and prefix == "runtimes":
        for number, inner in enumerate(value):
            yield from _leaves(f"{prefix}.{number}", inner)
    elif value is None or (isinstance(value, int | str) and not isinstance(value, bool)):
        yield prefix, value


def _peak_place(analysis: Analysis) -> str:
    memory, graph = analysis.activations, analysis.graph
    if memory.peak_node is None or memory.peak_step is None:
        return ""
    node = graph.nodes[memory.peak_step]
    step = f"step {memory.peak_step + 1:,} of {len(graph.nodes):,}"
    return f"at {shortened(memory.peak_node)} ({shortened(node.op_type)}), {step}"
