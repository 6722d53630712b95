"""The allocations of a run in order, each with its node and category, but without sizes.

A program is one inference, one training step, or one run of a session. It is stored in columns,
because a large training step has a million events:

::

    allocation    0          1             2
    label         "conv.w"   "conv_out"    "grad of conv_out"
    category      weights    activations   activation gradients

    event         0    1    2    3    4         id: allocation, ~id: release
    events       [0    1    2   ~1   ~2]
    step         [0    1    2    2    3]        of ``steps``: the node that runs
    setup        [0]                            ``num_setup_events`` is 1
    phase        [forward  ][backward   ]       ``phase_starts`` says where each begins

Events are ordered, also within a step: if a step allocates its outputs before it releases its
scratch, both are alive at once. Two programs are equal if all columns are equal, which shows that
one program serves a range of batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

IntColumn = npt.NDArray[np.int64]


class Category(StrEnum):
    """What an allocation holds."""

    WEIGHT = "weights"
    BUFFER = "buffers"
    STATE = "optimizer state"
    INPUT = "inputs, targets"
    ACTIVATION = "activations"
    GRADIENT = "gradients"
    """Of parameters."""
    ACTIVATION_GRADIENT = "activation gradients"
    TEMPORARY = "temporaries"
    PATTERN_BUFFER = "memory-pattern buffer"
    """onnxruntime's single block for all activations of a run except its outputs."""


class Allocation(NamedTuple):
    """One allocation with its size: a row of the columns, created on demand."""

    label: str
    """The first tensor stored in it, or its purpose."""
    category: Category
    size_bytes: int


class FirstIteration(NamedTuple):
    """How the first iteration of a loop differs from the program, which is a later one.

    What a later iteration finds, such as an optimizer's state, the first one may have to make.
    """

    absent: frozenset[int] = frozenset()
    """Setup allocations that do not exist before it."""
    made: tuple[tuple[int, int], ...] = ()
    """Absent allocations that it makes, each before an event."""
    kept: frozenset[int] = frozenset()
    """Allocations that it keeps, though later iterations release them: each takes the place of an
    absent one of its size."""


@dataclass(frozen=True, eq=False)
class Program:
    """The allocations of one run; built by a ``ProgramBuilder`` or by ``of_steps``.

    An allocation is released at most once, and only after it was made.
    """

    labels: tuple[str, ...]
    """By allocation: the first tensor stored in it, or its purpose."""
    categories: tuple[Category, ...]
    """By allocation."""
    events: IntColumn
    """The allocation that is made, or ``~allocation`` if it is released."""
    event_steps: IntColumn
    """By event: an index into ``steps``."""
    steps: tuple[str, ...]
    """The nodes in the order of execution, once per execution; ``""``: no node runs."""
    phase_starts: Mapping[str, int]
    """The first event of each phase, in order; empty: one phase without a name."""
    num_setup_events: int = 0
    """So many events at the start are allocations made once, before the first iteration."""
    tensors: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The tensors of each allocation that stores several, in the order of writing."""
    first: FirstIteration = field(default_factory=FirstIteration)

    @classmethod
    def of_steps(
        cls,
        steps: Sequence[str],
        labels: Sequence[str],
        category: Category,
        allocated: IntColumn,
        released: IntColumn,
        tensors: Mapping[int, tuple[str, ...]],
    ) -> Self:
        """Build a program in which each step allocates first and releases last.

        ``allocated`` and ``released`` are the step of each allocation and release, from 1 on: step
        0 has no node. A release after the last step is none. Within a step, allocations and
        releases are in the order of their numbers.
        """
        last = len(steps)
        numbers = np.arange(len(labels))
        freed = numbers[released <= last]
        events = np.concatenate((numbers, ~freed))
        event_steps = np.concatenate((allocated, released[freed]))
        # The sort is stable: it orders by step, then puts releases last, and keeps all else.
        order = np.argsort(2 * event_steps + (events < 0), kind="stable")
        return cls(
            labels=tuple(labels),
            categories=(category,) * len(labels),
            events=_read_only(events[order]),
            event_steps=_read_only(event_steps[order]),
            steps=("", *steps),
            phase_starts={},
            tensors=tensors,
        )

    def __eq__(self, other: object) -> bool:
        """Whether both have the same events in the same order, and the same labels."""
        if not isinstance(other, Program):
            return NotImplemented
        return (
            np.array_equal(self.events, other.events)
            and np.array_equal(self.event_steps, other.event_steps)
            and self.num_setup_events == other.num_setup_events
            and self.labels == other.labels
            and self.categories == other.categories
            and self.steps == other.steps
            and dict(self.phase_starts) == dict(other.phase_starts)
            and dict(self.tensors) == dict(other.tensors)
            and self.first == other.first
        )

    __hash__ = None  # type: ignore[assignment]  # compared by columns, never a key

    @property
    def num_allocations(self) -> int:
        """The number of allocations."""
        return len(self.labels)

    @cached_property
    def requests(self) -> tuple[list[int], list[int]]:
        """The events of the setup and of an iteration, as lists for an allocator."""
        events, setup = self.events.tolist(), self.num_setup_events
        return events[:setup], events[setup:]

    @cached_property
    def first_requests(self) -> tuple[list[int], list[int]]:
        """The same of the first iteration."""
        setup, events = self.requests
        absent, made, kept = self.first
        if not absent:
            return setup, events
        found, begun = list[int](), 0
        # In the first iteration nothing releases what it keeps, nor what is absent and not made
        # yet.
        skipped = kept | (absent - {number for _, number in made})
        for event, number in made:
            at = event - self.num_setup_events
            found += events[begun:at]
            found.append(number)
            begun = at
        found += events[begun:]
        return (
            [event for event in setup if event not in absent],
            [event for event in found if event >= 0 or ~event not in skipped],
        )

    @cached_property
    def carried_by_first(self) -> tuple[list[int], list[int]]:
        """What the first iteration leaves, and the absent allocations that it has not made."""
        _, events = self.first_requests
        absent, made, _ = self.first
        gone = {~event for event in events if event < 0} | absent
        left = [event for event in events if event >= 0 and event not in gone]
        return left, sorted(absent - {number for _, number in made})

    @cached_property
    def carried(self) -> tuple[list[int], list[int]]:
        """The allocations that an iteration leaves, and the setup allocations that it releases."""
        _, events = self.requests
        made = {event for event in events if event >= 0}
        freed = {~event for event in events if event < 0}
        # What an iteration releases without having made it was made by the setup.
        left = [event for event in events if event >= 0 and event not in freed]
        return left, [~event for event in events if event < 0 and ~event not in made]

    @cached_property
    def event_allocations(self) -> IntColumn:
        """The allocation of each event, whether made or released."""
        return np.where(self.events < 0, ~self.events, self.events)

    @cached_property
    def event_signs(self) -> IntColumn:
        """1 for each allocation, -1 for each release."""
        return np.where(self.events < 0, -1, 1)

    @cached_property
    def event_nodes(self) -> IntColumn:
        """A number for the node of each event; equal names have equal numbers."""
        # A node that runs several times has several steps; its number is that of its name.
        numbers: dict[str, int] = {}
        of_step = int_column(numbers.setdefault(node, len(numbers)) for node in self.steps)
        return of_step[self.event_steps]

    @cached_property
    def phase_ranges(self) -> Mapping[str, range]:
        """The events of each phase; the setup belongs to the first phase."""
        if not self.phase_starts:
            return {"": range(len(self.events))}
        stops = [*list(self.phase_starts.values())[1:], len(self.events)]
        starts = self.phase_starts.items()
        return {phase: range(at, to) for (phase, at), to in zip(starts, stops, strict=True)}

    def with_temporaries(self, labels: Sequence[str], before: Sequence[int]) -> "Program":
        """The same with more allocations, each made and released before an event.

        Their numbers follow on all others, in the order of the events.
        """
        if not labels:
            return self
        at = int_column(before)
        twice = np.repeat(at, 2)
        numbers = np.arange(self.num_allocations, self.num_allocations + len(labels))
        events = np.insert(self.events, twice, np.stack((numbers, ~numbers), 1).ravel())
        # A temporary belongs to the step of the event before it, at whose end it is taken.
        steps = np.insert(self.event_steps, twice, self.event_steps[twice - 1])
        # What begins at an event is moved by two for each temporary up to there.
        first = self.first.made
        begun = int_column([*self.phase_starts.values(), *(event for event, _ in first)])
        moved = (begun + 2 * np.searchsorted(at, begun, "right")).tolist()
        starts = dict(zip(self.phase_starts, moved, strict=False))
        moved = moved[len(starts) :]
        made = tuple((event, number) for event, (_, number) in zip(moved, first, strict=True))
        return replace(
            self,
            labels=(*self.labels, *labels),
            categories=(*self.categories, *(Category.TEMPORARY,) * len(labels)),
            events=_read_only(events),
            event_steps=_read_only(steps),
            phase_starts=starts,
            first=self.first._replace(made=made),
        )

    def node_at(self, event: int) -> str:
        """The node of an event; ``""``: none."""
        return self.steps[int(self.event_steps[event])]

    def phase_at(self, event: int) -> str:
        """The phase of an event; ``""``: the program has no phases."""
        return next((p for p, events in self.phase_ranges.items() if event in events), "")

    def tensors_of(self, allocation: int) -> tuple[str, ...]:
        """The tensors stored in an allocation, in the order of writing."""
        return self.tensors.get(allocation) or (self.labels[allocation],)

    @cached_property
    def lifetimes(self) -> tuple[IntColumn, IntColumn]:
        """The steps in which each allocation is alive: ``[start, stop)``.

        It is alive in the step that releases it; without a release, up to the end.
        """
        return self.spans_over(self.event_steps, len(self.steps))

    def spans_over(self, times: IntColumn, end: int) -> tuple[IntColumn, IntColumn]:
        """Lifetimes over other times: one per event, nondecreasing and below ``end``."""
        # Each allocation has one event that makes it, and at most one that releases it.
        is_release = self.events < 0
        starts = np.zeros(self.num_allocations, dtype=np.int64)
        stops = np.full(self.num_allocations, end, dtype=np.int64)
        starts[self.events[~is_release]] = times[~is_release]
        stops[~self.events[is_release]] = times[is_release] + 1
        return starts, stops

    def alive_after(self, num_events: int) -> list[int]:
        """The allocations alive after so many events, in the order of allocation."""
        # A dict keeps the order of allocation, which breaks ties between blocks of equal size.
        alive: dict[int, None] = {}
        for event in self.events[:num_events].tolist():
            if event >= 0:
                alive[event] = None
            else:
                del alive[~event]
        return list(alive)


@dataclass(slots=True)
class ProgramBuilder:
    """Records the events of a simulated runtime."""

    labels: list[str] = field(default_factory=list)
    categories: list[Category] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    _event_steps: list[int] = field(default_factory=list)
    _steps: list[str] = field(default_factory=lambda: [""])
    _phase_starts: dict[str, int] = field(default_factory=dict)
    _num_setup_events: int = 0
    _tensors: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _absent: set[int] = field(default_factory=set)
    _made_first: list[tuple[int, int]] = field(default_factory=list)
    _kept_first: set[int] = field(default_factory=set)

    def enter_phase(self, phase: str) -> None:
        """Begin a phase; no node runs yet."""
        self._phase_starts[phase] = len(self.events)
        self.enter_step("")

    def enter_step(self, node: str) -> None:
        """Begin the events of a node; to be called each time the node runs."""
        self._steps.append(node)

    def end_setup(self) -> None:
        """Declare all allocations so far as setup, made once."""
        self._num_setup_events = len(self.events)

    def begin_without(self, allocations: Iterable[int]) -> None:
        """Declare setup allocations that do not exist before the first iteration."""
        self._absent.update(allocations)

    def make_first(self, allocation: int) -> None:
        """Declare that the first iteration makes an absent allocation here."""
        self._made_first.append((len(self.events), allocation))

    def keep_first(self, allocation: int) -> None:
        """Declare that the first iteration keeps an allocation in the place of an absent one."""
        self._kept_first.add(allocation)

    def malloc(self, label: str, category: Category, tensors: Sequence[str] = ()) -> int:
        """Record an allocation; returns its number."""
        allocation = len(self.labels)
        self.labels.append(label)
        self.categories.append(category)
        # A single tensor is the label itself (`tensors_of`).
        if len(tensors) > 1:
            self._tensors[allocation] = tuple(tensors)
        self.events.append(allocation)
        self._event_steps.append(len(self._steps) - 1)
        return allocation

    def free(self, allocation: int) -> None:
        """Record a release."""
        self.events.append(~allocation)
        self._event_steps.append(len(self._steps) - 1)

    def relabel(self, allocation: int, label: str, category: Category) -> None:
        """Replace the label and category that an allocation was made with."""
        self.labels[allocation], self.categories[allocation] = label, category

    def program(self) -> Program:
        """Build the program.

        :raises ValueError: an allocation is released twice, or never made.
        """
        events = int_column(self.events)
        _check(events, len(self.labels))
        return Program(
            labels=tuple(self.labels),
            categories=tuple(self.categories),
            events=events,
            event_steps=int_column(self._event_steps),
            steps=tuple(self._steps),
            phase_starts=dict(self._phase_starts),
            num_setup_events=self._num_setup_events,
            tensors=dict(self._tensors),
            first=FirstIteration(
                frozenset(self._absent), tuple(self._made_first), frozenset(self._kept_first)
            ),
        )


def _check(events: IntColumn, num_allocations: int) -> None:
    """Refuse releases that no program can have."""
    # An allocation gets its number when it is made, so a release cannot come before it.
    released = ~events[events < 0]
    if len(released) and int(released.max()) >= num_allocations:
        message = f"allocation {int(released.max())} is released and never made"
        raise ValueError(message)
    if len(released) and int(np.bincount(released).max()) > 1:
        message = f"allocation {int(np.bincount(released).argmax())} is released twice"
        raise ValueError(message)


def int_column(numbers: Iterable[int]) -> IntColumn:
    """Integers as a read-only column."""
    return _read_only(np.array(list(numbers), dtype=np.int64))


def _read_only(column: IntColumn) -> IntColumn:
    column.setflags(write=False)
    return column
