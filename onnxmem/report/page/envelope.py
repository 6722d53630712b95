"""The peaks of a training step at every batch, from what is alive at each of its steps.

Where a step's blocks come and go alike at several batches and each grows by the same for every
sample, what is alive at a step is a line over the batch, and a phase's peak is the highest of the
lines of its steps: their upper envelope, which the convex-hull trick finds in O(n log n).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from onnxmem.program import Affine
from onnxmem.report.page.spans import Course, Moving, moved

Line = tuple[int, int]
"""Bytes that one more sample adds, and bytes at batch 0."""


def peak_laws(
    course: Course, moving: Moving | None, batch: int
) -> Mapping[str, tuple[Affine, ...]]:
    """Laws of the peaks of all phases and of the step, by their keys; none of a mere run."""
    if moving is None or not course.marks:
        return {}
    lines = list(_lines(course, moving, batch))
    starts = [start for start, _ in course.marks]
    # What is alive as a phase begins counts in its peak.
    ranges = zip([max(start - 1, 0) for start in starts], [*starts[1:], len(lines)], strict=True)
    found = {
        f"training.{name}_peak_bytes": envelope(lines[start:stop], moving.first, moving.last)
        for (_, name), (start, stop) in zip(course.marks, ranges, strict=True)
    }
    return {**found, "training.peak_bytes": envelope(lines, moving.first, moving.last)}


def _lines(course: Course, moving: Moving, batch: int) -> Iterator[Line]:
    """The line of what is alive at each step."""
    bytes_at = map(sum, zip(*(each.values for each in course.series()), strict=True))
    per_sample = map(sum, zip(*(each.values for each in moved(course, moving)), strict=True))
    slopes = list(per_sample) or [0] * course.num_steps
    return ((slope, size - slope * batch) for size, slope in zip(bytes_at, slopes, strict=True))


def envelope(lines: Sequence[Line], first: int, last: int) -> tuple[Affine, ...]:
    """The highest line from batch to batch, from one to another; nothing where there is none."""
    hull = _hull(lines)
    if not hull:
        return ()
    # A line is no lower than the one before it from this batch on, a quotient rounded up.
    begins = [-((new[1] - old[1]) // (new[0] - old[0])) for old, new in pairwise(hull)]
    laws = (
        Affine(fixed, slope, max(begin, first), min(after - 1, last))
        for (slope, fixed), (begin, after) in zip(
            hull, pairwise([first, *begins, last + 1]), strict=True
        )
    )
    return tuple(law for law in laws if law.first <= law.last)


def _hull(lines: Sequence[Line]) -> list[Line]:
    """The lines that are the highest somewhere, by their slope."""
    steepest: dict[int, int] = {}
    for slope, fixed in lines:
        steepest[slope] = max(fixed, steepest.get(slope, fixed))
    hull: list[Line] = []
    for line in sorted(steepest.items()):
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], line):
            hull.pop()
        hull.append(line)
    return hull


def _is_below(one: Line, two: Line, three: Line) -> bool:
    """Whether the second of three lines by slope is nowhere higher than both others."""
    return (one[1] - three[1]) * (two[0] - one[0]) <= (one[1] - two[1]) * (three[0] - one[0])
