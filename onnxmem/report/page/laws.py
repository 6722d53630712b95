"""How a figure moves with the batch, proven from the batches at which it was worked out.

A peak is the largest of several sums of buffers, and a sum is the largest of one. Each buffer's
bytes being affine in the batch (``onnxmem.analysis.scaling``), both are convex; a convex function
that meets a line at three points is that line all between them. Between other points nothing is
said.

Of a peak's parts (what is alive by kind) each is affine as long as the peak is reached at the same
node. Where the peak is a line from one batch to a third, what is alive at the middle one makes the
peak all between; so a part follows where it is a line on a stretch where its peak is one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from onnxmem.program import Affine

_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "training.live_by_kind.": ("training.peak_bytes", "training.peak_node"),
}
"""Keys that start so are parts of a peak: that peak, and the name of its place."""

_CONVEX: Final = (
    *("weights.", "inputs_bytes", "outputs_bytes", "total_bytes", "compute.", "kv_cache."),
    *("activations.naive", "activations.peak_bytes", "activations.in_place_peak_bytes"),
    *("activations.arena_lower_bound_bytes", "elements.", "file_bytes"),
    *("training.weight_", "training.buffer_", "training.gradient_", "training.optimizer_"),
    *("training.saved_", "training.input_", "training.forward_", "training.backward_"),
    *("training.peak_bytes", "training.cuda.context_bytes"),
    *("rules_of_thumb.twice_", "rules_of_thumb.three_weights", "rules_of_thumb.four_"),
    "rules_of_thumb.inputs_",
)
"""Sums and peaks of buffers. Neither an arena's packing nor an allocator is one; nor is a rule that
rounds up the elements of a sample."""


def line_through(batches: Sequence[int], values: Sequence[int | None]) -> Affine | None:
    """The line that all points are on, three at least; ``None`` where there is none."""
    known = [
        (batch, value) for batch, value in zip(batches, values, strict=True) if value is not None
    ]
    # Two points prove nothing.
    return Affine.through(known) if len(known) == len(batches) > 2 else None  # noqa: PLR2004


def laws(batches: Sequence[int], values: Sequence[int | None]) -> tuple[Affine, ...]:
    """The lines of a convex figure: one for every three neighbours that are on one, joined."""
    found: list[Affine] = []
    for start in range(len(batches) - 2):
        three = slice(start, start + 3)
        line = line_through(batches[three], values[three])
        if line is None:
            continue
        if found and replace(line, first=found[-1].first) == replace(found[-1], last=line.last):
            found[-1] = replace(found[-1], last=line.last)
        else:
            found.append(line)
    return tuple(found)


def is_convex(key: str) -> bool:
    """Whether a figure is a sum or a peak of buffers."""
    return key.startswith(_CONVEX)


def parent_of(key: str) -> tuple[str, str] | None:
    """The peak that a figure is a part of, and the key of that peak's place."""
    return next((parent for start, parent in _PARTS.items() if key.startswith(start)), None)
