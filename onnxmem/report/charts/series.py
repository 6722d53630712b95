"""Bytes over the steps of a run, and as few of the steps as a picture can show."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxmem.report.charts.buckets import buckets


@dataclass(frozen=True, slots=True)
class Series:
    """One area of a stack."""

    name: str
    values: tuple[int, ...]
    """Bytes at each step."""
    css_class: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A part of the run, as a phase of a training step."""

    start: int
    """Its first step."""
    name: str


def decimated(
    series: Sequence[Series], num_points: int = 2000
) -> tuple[tuple[int, ...], tuple[Series, ...]]:
    """Keep at most so many steps: of each bucket of neighbours the first with the largest sum.

    The values of one step stay together, so what is kept adds up; the peak of the sum is always
    kept, being the largest of its bucket. Returns the steps, and the series at them.
    """
    sums = stacked(series)
    if len(sums) <= num_points:
        return tuple(range(len(sums))), tuple(series)
    steps = tuple(
        max(range(start, stop), key=sums.__getitem__)
        for start, stop in buckets(len(sums), num_points)
    )
    return steps, tuple(
        Series(each.name, tuple(each.values[step] for step in steps), each.css_class)
        for each in series
    )


def stacked(series: Sequence[Series]) -> tuple[int, ...]:
    """The sum of all series at each step."""
    return tuple(map(sum, zip(*(each.values for each in series), strict=True)))
