"""Whether what is alive at each step moves with the batch in a way that is known."""

from typing import Final

from onnxmem.report.page.spans import Course, Moving, course_of
from onnxmem.report.page.stops import Stops, line_through

_MOST_MOVED: Final = 200_000
"""Spans and steps up to which the timeline is followed over batches."""


def moving_of(course: Course, stops: Stops) -> Moving | None:
    """The batches in which every span keeps its steps and grows by the same for every sample."""
    too_few = len(stops.all) < 3  # noqa: PLR2004 - two points prove no line
    if too_few or len(course.spans) + course.num_steps > _MOST_MOVED:
        return None
    shape = [(span.name, span.layer, span.start, span.stop) for span in course.spans]
    alike = []
    for stop in stops.all:
        other = course_of(stop.analysis)
        if shape == [(span.name, span.layer, span.start, span.stop) for span in other.spans]:
            alike.append((stop.batch, [span.size_bytes for span in other.spans]))
    batches = [batch for batch, _ in alike]
    rows = zip(*(sizes for _, sizes in alike), strict=True)
    lines = [line_through(batches, row) for row in rows]
    known = [line for line in lines if line is not None]
    if len(known) < len(lines) or not known:
        return None
    return Moving(batches[0], batches[-1], tuple(line.slope_bytes for line in known))
