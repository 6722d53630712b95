"""The peaks of a training step at every batch, from what is alive at each of its steps.

Where a step's blocks come and go alike at several batches and each grows by the same for every
sample, what is alive at a step is a line over the batch, and a phase's peak is the highest of the
lines of its steps: their upper envelope.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from onnxmem.program.polynomials import Line, upper_lines
from onnxmem.program.sizes import Affine
from onnxmem.report.page.spans import Course, Moving, moved


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
    highest = upper_lines(lines, first)
    if not highest:
        return ()
    # A line is no lower than the one before it from this batch on, a quotient rounded up.
    begins = [-((new[1] - old[1]) // (new[0] - old[0])) for old, new in pairwise(highest)]
    laws = (
        Affine(fixed, slope, begin, min(after - 1, last))
        for (slope, fixed), (begin, after) in zip(
            highest, pairwise([first, *begins, last + 1]), strict=True
        )
    )
    return tuple(law for law in laws if law.first <= law.last)
