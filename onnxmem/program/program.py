"""Which allocations are made and released, in order, by which node and for what: no sizes.

A program is what a runtime does with a model: one inference, one training step, the first runs of a
session. It is written down in columns, for a large training step has a million numbers:

::

    allocation    0          1             2
    label         "conv.w"   "conv_out"    "grad of conv_out"
    category      weights    activations   activation gradients

    event         0    1    2    3    4         id: allocated, ~id: released
    events       [0    1    2   ~1   ~2]
    step         [0    1    2    2    3]        of ``steps``: the node that runs
    setup        [0]                            ``num_setup_events`` is 1
    phase        [forward  ][backward   ]       ``phase_starts`` says where each begins

Events are in order, so a step that allocates its outputs before it releases its scratch holds both.
Two programs are equal if all of their columns are: that is how it is found that one program serves
a range of batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """Of onnxruntime: one block for all of a run's activations but its outputs."""


class Allocation(NamedTuple):
    """One allocation with its size: a row of the columns, made where somebody looks at it."""

    label: str
    """The tensor that first lies in it, or what the bytes are for."""
    category: Category
    size_bytes: int


@dataclass(frozen=True, eq=False)
class Program:
    """The allocations of one way to run a model; a ``ProgramBuilder`` or ``of_steps`` makes it."""

    labels: tuple[str, ...]
    """Of each allocation: the tensor that first lies in it, or what the bytes are for."""
    categories: tuple[Category, ...]
    """Of each allocation."""
    events: IntColumn
    """The allocation that is made, or ``~allocation`` where it is released."""
    event_steps: IntColumn
    """The index into ``steps`` of each event."""
    steps: tuple[str, ...]
    """What runs, in order: a node each time it runs, or ``""`` where no node does."""
    phase_starts: Mapping[str, int]
    """The event at which each phase begins, in order; empty: there is one phase, without a name."""
    num_setup_events: int = 0
    """The first events: what is allocated once, before the program runs, and held through it."""
    tensors: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """All tensors of the allocations that carry more than the one that labels them, in order."""

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
        """A program whose steps each allocate first and release last, from columns.

        ``allocated`` and ``released`` are the steps of each allocation, from 1 on: no node runs in
        the first step of a program, 0. One that is released after the last step never is. Within a
        step allocations are made, and released, in the order of their numbers.
        """
        last = len(steps)
        numbers = np.arange(len(labels))
        freed = numbers[released <= last]
        events = np.concatenate((numbers, ~freed))
        event_steps = np.concatenate((allocated, released[freed]))
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
        """Whether both allocate and release the same in the same order."""
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
        )

    __hash__ = None  # type: ignore[assignment]  # columns are compared, not looked up

    @property
    def num_allocations(self) -> int:
        """How many allocations there are."""
        return len(self.labels)

    @cached_property
    def requests(self) -> tuple[list[int], list[int]]:
        """The events of the setup and of an iteration, as an allocator is sent them."""
        events, setup = self.events.tolist(), self.num_setup_events
        return events[:setup], events[setup:]

    @cached_property
    def carried(self) -> tuple[list[int], list[int]]:
        """What an iteration leaves allocated, and what it releases of the setup."""
        _, events = self.requests
        made = {event for event in events if event >= 0}
        freed = {~event for event in events if event < 0}
        left = [event for event in events if event >= 0 and event not in freed]
        return left, [~event for event in events if event < 0 and ~event not in made]

    @cached_property
    def event_allocations(self) -> IntColumn:
        """The allocation of each event, made or released."""
        return np.where(self.events < 0, ~self.events, self.events)

    @cached_property
    def event_signs(self) -> IntColumn:
        """1 for each event that allocates, -1 for one that releases."""
        return np.where(self.events < 0, -1, 1)

    @cached_property
    def event_nodes(self) -> IntColumn:
        """A number for the node of each event: equal where the nodes' names are."""
        numbers: dict[str, int] = {}
        of_step = int_column(numbers.setdefault(node, len(numbers)) for node in self.steps)
        return of_step[self.event_steps]

    @cached_property
    def phase_ranges(self) -> Mapping[str, range]:
        """The events of each phase; the setup belongs to the first one."""
        if not self.phase_starts:
            return {"": range(len(self.events))}
        stops = [*list(self.phase_starts.values())[1:], len(self.events)]
        starts = self.phase_starts.items()
        return {phase: range(at, to) for (phase, at), to in zip(starts, stops, strict=True)}

    def node_at(self, event: int) -> str:
        """The node that an event belongs to; ``""`` where none runs."""
        return self.steps[int(self.event_steps[event])]

    def phase_at(self, event: int) -> str:
        """The phase of an event; ``""`` where there are no phases."""
        return next((p for p, events in self.phase_ranges.items() if event in events), "")

    def tensors_of(self, allocation: int) -> tuple[str, ...]:
        """The tensors that lie in an allocation, one after another, in the order of writing."""
        return self.tensors.get(allocation) or (self.labels[allocation],)

    @cached_property
    def lifetimes(self) -> tuple[IntColumn, IntColumn]:
        """The steps of ``steps`` in which each allocation is alive: ``[start, stop)``.

        It is alive in the step that releases it; one that is never released, to the end.
        """
        return self.spans_over(self.event_steps, len(self.steps))

    def spans_over(self, times: IntColumn, end: int) -> tuple[IntColumn, IntColumn]:
        """The same over other times, one of each event, that do not fall and are below ``end``."""
        is_release = self.events < 0
        starts = np.zeros(self.num_allocations, dtype=np.int64)
        stops = np.full(self.num_allocations, end, dtype=np.int64)
        starts[self.events[~is_release]] = times[~is_release]
        stops[~self.events[is_release]] = times[is_release] + 1
        return starts, stops

    def alive_after(self, num_events: int) -> list[int]:
        """The allocations that are alive after so many events, in the order of allocation."""
        alive: dict[int, None] = {}
        for event in self.events[:num_events].tolist():
            if event >= 0:
                alive[event] = None
            else:
                del alive[~event]
        return list(alive)


@dataclass(slots=True)
class ProgramBuilder:
    """Writes a program down while a runtime is simulated; it knows no sizes."""

    labels: list[str] = field(default_factory=list)
    categories: list[Category] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    _event_steps: list[int] = field(default_factory=list)
    _steps: list[str] = field(default_factory=lambda: [""])
    _phase_starts: dict[str, int] = field(default_factory=dict)
    _num_setup_events: int = 0
    _tensors: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def enter_phase(self, phase: str) -> None:
        """Begin a phase, in which no node runs yet."""
        self._phase_starts[phase] = len(self.events)
        self.enter_step("")

    def enter_step(self, node: str) -> None:
        """Start the events of a node; call it each time the node runs."""
        self._steps.append(node)

    def end_setup(self) -> None:
        """Say that all allocations so far are made once and held."""
        self._num_setup_events = len(self.events)

    def malloc(self, label: str, category: Category, tensors: Sequence[str] = ()) -> int:
        """Allocate; the number of the allocation comes out."""
        allocation = len(self.labels)
        self.labels.append(label)
        self.categories.append(category)
        if len(tensors) > 1:
            self._tensors[allocation] = tuple(tensors)
        self.events.append(allocation)
        self._event_steps.append(len(self._steps) - 1)
        return allocation

    def free(self, allocation: int) -> None:
        """Release an allocation."""
        self.events.append(~allocation)
        self._event_steps.append(len(self._steps) - 1)

    def relabel(self, allocation: int, label: str, category: Category) -> None:
        """Give an allocation its final label, which applies from its allocation on."""
        self.labels[allocation], self.categories[allocation] = label, category

    def program(self) -> Program:
        """What was written down.

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
        )


def _check(events: IntColumn, num_allocations: int) -> None:
    """Refuse what no program can do."""
    released = ~events[events < 0]
    if len(released) and int(released.max()) >= num_allocations:
        message = f"allocation {int(released.max())} is released and never made"
        raise ValueError(message)
    if len(released) and int(np.bincount(released).max()) > 1:
        message = f"allocation {int(np.bincount(released).argmax())} is released twice"
        raise ValueError(message)


def int_column(numbers: Iterable[int]) -> IntColumn:
    """Whole numbers as a column that nothing writes to."""
    return _read_only(np.array(list(numbers), dtype=np.int64))


def _read_only(column: IntColumn) -> IntColumn:
    column.setflags(write=False)
    return column
