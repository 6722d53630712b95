"""What one run of a graph does that its plan leaves open: branches, trips, and sizes that follow.

onnxruntime plans without the values of a run, so a plan has every branch and no number of trips. A
course says which branch an If runs, how often a Loop's body does and of what shape the tensors of
each of those runs are; it is a tree, for a body decides anew each time it runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from onnxmem.model.graph import DType
from onnxmem.ops.spec import Dims


@dataclass(frozen=True, slots=True)
class Kind:
    """Element type and shape of a tensor in one run."""

    dtype: DType | None
    shape: Dims


@dataclass(frozen=True, slots=True)
class Branch:
    """What an If does."""

    place: int | None
    """Of the subgraph that runs; ``None``: only a run can tell."""
    courses: tuple["Course", ...]
    """By the places of the subgraphs; that of one that does not run is empty."""

    def course(self, place: int) -> "Course":
        """What one of the subgraphs does when it runs."""
        return self.courses[place] if place < len(self.courses) else PLAIN


@dataclass(frozen=True, slots=True)
class Trips:
    """What a Loop or a Scan does."""

    number: int | None
    """How often the body runs; ``None``: only a run can tell, and no bound is known."""
    courses: tuple["Course", ...]
    """Of the first runs of the body; those after them are like the last one."""
    is_certain: bool = True
    """False: the body runs at most so often, for the run's data may end it before."""

    def course(self, place: int) -> "Course":
        """What the body does when it runs for the ``place``-th time, from 0."""
        return self.courses[min(place, len(self.courses) - 1)] if self.courses else PLAIN


@dataclass(frozen=True, slots=True)
class Course:
    """One run of one graph; what is left out is as the records of the graph have it."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """Tensors that are of another shape in this run than the graph's records say."""
    branches: Mapping[str, Branch] = field(default_factory=dict)
    """By the name of an If."""
    trips: Mapping[str, Trips] = field(default_factory=dict)
    """By the name of a Loop or a Scan."""

    def parts(self) -> Iterator["Course"]:
        """The course and those of all bodies in it."""
        yield self
        inner = [course for branch in self.branches.values() for course in branch.courses]
        inner += [course for trips in self.trips.values() for course in trips.courses]
        for course in inner:
            yield from course.parts()


PLAIN: Final = Course()
"""Nothing is known beyond the graph's records."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Names of nodes of which only a run can tell what they do, in the order in which they run."""

    branches: tuple[str, ...]
    """Ifs."""
    trips: tuple[str, ...]
    """Loops without a bound."""
    bounds: tuple[str, ...]
    """Loops that may end before their bound."""

    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.branches, *self.trips, *self.bounds)


def undecided(course: Course) -> Undecided:
    """What a course leaves to the run."""
    branches: dict[str, None] = {}
    trips: dict[str, None] = {}
    bounds: dict[str, None] = {}
    for part in course.parts():
        branches.update((name, None) for name, one in part.branches.items() if one.place is None)
        trips.update((name, None) for name, one in part.trips.items() if one.number is None)
        bounds.update(
            (name, None)
            for name, one in part.trips.items()
            if one.number is not None and not one.is_certain
        )
    return Undecided(tuple(branches), tuple(trips), tuple(bounds))
