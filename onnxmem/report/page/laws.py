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
from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True, slots=True)
class Law:
    """``fixed + per_sample x batch``, proven from one batch to another."""

    first: int
    last: int
    fixed: int
    per_sample: int


def line_through(batches: Sequence[int], values: Sequence[int | None]) -> tuple[int, int] | None:
    """The line (at batch 0, a sample) that all points are on; ``None`` where there is none."""
    if len(batches) < 3 or None in values:  # noqa: PLR2004 - two points prove nothing
        return None
    known = [value for value in values if value is not None]
    slope, rest = divmod(known[-1] - known[0], batches[-1] - batches[0])
    fixed = known[0] - slope * batches[0]
    points = zip(batches, known, strict=True)
    is_line = not rest and all(fixed + slope * batch == value for batch, value in points)
    return (fixed, slope) if is_line else None


def laws(batches: Sequence[int], values: Sequence[int | None]) -> tuple[Law, ...]:
    """The lines of a convex figure: one for every three neighbours that are on one, joined."""
    found: list[Law] = []
    for start in range(len(batches) - 2):
        three = slice(start, start + 3)
        line = line_through(batches[three], values[three])
        if line is None:
            continue
        last = batches[start + 2]
        if found and (found[-1].fixed, found[-1].per_sample) == line:
            found[-1] = Law(found[-1].first, last, *line)
        else:
            found.append(Law(batches[start], last, *line))
    return tuple(found)


def is_convex(key: str) -> bool:
    """Whether a figure is a sum or a peak of buffers."""
    return key.startswith(_CONVEX)


def parent_of(key: str) -> tuple[str, str] | None:
    """The peak that a figure is a part of, and the key of that peak's place."""
    return next((parent for start, parent in _PARTS.items() if key.startswith(start)), None)
