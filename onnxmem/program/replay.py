"""A program replayed with sizes: what is alive when, its peak, and what an allocator makes of it.

Without an allocator each allocation takes its bytes and nothing else: the sum is a lower bound of
what any allocator reserves. With one, every event is handed to it in order, at a device's capacity
if that is given; the allocator keeps its state from one replay to the next, so that a process that
runs several programs is one allocator and several replays.

A training loop runs a program again and again (``iterations``): what an iteration leaves allocated
is released at the start of the next one, as the assignments of a loop do; and where an iteration
releases an allocation of the setup, say the gradients of the step before, the first of equal size
that it leaves takes its place.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

import numpy as np

from onnxmem.program.program import Allocation, Category, Program
from onnxmem.program.sizes import ByteColumn, Sizes

MAX_ITERATIONS: Final = 8
"""Of a loop that does not come to rest: the first iteration makes the segments, the second finds
them split, and most are at rest from there on."""


class OutOfMemoryError(Exception):
    """An allocator cannot serve a request: its limit is reached, or the device is full."""


class Allocator(Protocol):
    """Serves the events of a program; numbers name what it serves, and are unique while in use."""

    @property
    def reserved_bytes(self) -> int:
        """What it holds of the device now."""
        ...

    @property
    def reserved_peak_bytes(self) -> int:
        """The most that it has held."""
        ...

    @property
    def num_retries(self) -> int:
        """Requests that it served only after giving something back to the device."""
        ...

    def malloc(self, number: int, size_bytes: int) -> None:
        """Serve a request for at least one byte.

        :raises OutOfMemoryError: it cannot be served.
        """
        ...

    def free(self, number: int) -> None:
        """Take back what was served by a number."""
        ...

    def rename(self, number: int, new_number: int) -> None:
        """Call what was served by a number by another one from now on."""
        ...

    def layout(self) -> object:
        """Where everything lies: from equal layouts the same requests go the same way."""
        ...


@dataclass(frozen=True, slots=True)
class Peak:
    """A moment at which the most is alive: of a program, or of one of its phases."""

    size_bytes: int
    num_events: int
    """Events up to it, its own included; those of the setup are counted."""
    node: str
    """The node that makes the last of it; ``""`` where the phase only holds it."""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Reserved:
    """What an allocator has made of a program, in bytes."""

    peak_bytes: int
    by_iteration_bytes: tuple[int, ...]
    """Reserved after each iteration until they came to rest."""
    num_retries: int
    out_of_memory_at: int | None = None
    """The event of the program that could not be served; ``None``: all were."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A program with sizes: the one answer to what is alive when, from which all else is read.

    Allocations of unknown size take 0 bytes: with any of them every figure is a lower bound.
    """

    program: Program
    sizes: Sizes
    reserved: Reserved | None = None
    """``None``: replayed without an allocator."""
    out_of_memory_at: int | None = None
    """The first event after which more is alive than the capacity, or that the allocator could not
    serve; ``None``: there is none, or no capacity is given."""
    _live_sets: dict[int, tuple[Allocation, ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def live_bytes(self) -> ByteColumn:
        """Bytes alive after each event."""
        return np.cumsum(changes(self.program, self.sizes))

    @cached_property
    def step_bytes(self) -> ByteColumn:
        """The most bytes alive during each step of the program, what it begins with included."""
        steps, live = self.program.event_steps, self.live_bytes
        num_events_before = np.searchsorted(steps, np.arange(len(self.program.steps)))
        most: ByteColumn = np.append(np.zeros(1, dtype=live.dtype), live)[num_events_before]
        np.maximum.at(most, steps, live)
        return most

    @cached_property
    def peak(self) -> Peak:
        """The first moment at which the most is alive."""
        return self._peak_of(range(len(self.program.events)), "")

    @cached_property
    def phase_peaks(self) -> Mapping[str, Peak]:
        """The same of each phase; what is alive when a phase begins counts in its peak."""
        return {
            phase: self._peak_of(events, phase)
            for phase, events in self.program.phase_ranges.items()
        }

    @property
    def end_bytes(self) -> int:
        """Bytes that are still alive at the end."""
        return int(self.live_bytes[-1]) if len(self.live_bytes) else 0

    def live_set(self, peak: Peak) -> tuple[Allocation, ...]:
        """What is alive at a peak, largest first; of equal ones the first allocated."""
        if peak.num_events not in self._live_sets:
            alive = self.program.alive_after(peak.num_events)
            sizes = self.sizes.fixed_bytes.tolist()
            alive.sort(key=sizes.__getitem__, reverse=True)
            self._live_sets[peak.num_events] = tuple(map(self.allocation, alive))
        return self._live_sets[peak.num_events]

    def live_by_category(self, peak: Peak) -> dict[Category, int]:
        """Bytes alive at a peak by category; those of which nothing is alive are left out."""
        found = dict.fromkeys(Category, 0)
        for allocation in self.live_set(peak):
            found[allocation.category] += allocation.size_bytes
        return {category: size for category, size in found.items() if size}

    def allocation(self, number: int) -> Allocation:
        """One allocation as a row."""
        program = self.program
        size_bytes = self.sizes.bytes_of(number)
        return Allocation(program.labels[number], program.categories[number], size_bytes)

    def allocations(self) -> Iterator[Allocation]:
        """Every allocation, in order."""
        columns = (self.program.labels, self.program.categories, self.sizes.fixed_bytes.tolist())
        return map(Allocation, *columns)

    def _peak_of(self, events: range, phase: str) -> Peak:
        # The setup is a part of what a phase begins with: it has no node and no order of its own.
        begin = max(events.start, self.program.num_setup_events)
        before = int(self.live_bytes[begin - 1]) if begin else 0
        live = self.live_bytes[begin : events.stop]
        if not len(live) or (most := int(live.max())) <= before:
            return Peak(before, begin, "", phase)
        at = begin + int((live == most).argmax())
        return Peak(most, at + 1, self.program.node_at(at), phase)


def changes(program: Program, sizes: Sizes) -> ByteColumn:
    """By how many bytes each event changes what is alive: below 0 where it releases."""
    events, size = program.events, sizes.fixed_bytes
    is_release = events < 0
    return np.where(is_release, -size[np.where(is_release, ~events, events)], size[events])


def replay(
    program: Program,
    sizes: Sizes,
    allocator: Allocator | None = None,
    *,
    capacity_bytes: int | None = None,
    iterations: int = 1,
    workspaces_bytes: Sequence[int] = (),
) -> Replay:
    """Replay a program with sizes; ``None`` as allocator: every allocation takes its own bytes.

    ``capacity_bytes`` is what the device has: with an allocator give it to that one. Of several
    iterations those are run that it takes to come to rest: until one leaves everything where it
    found it, or ``iterations`` have run. ``workspaces_bytes`` are what libraries take of the same
    allocator before the first iteration and keep: they are in what is reserved, in no other figure.

    :raises ValueError: sizes that are not those of the program, or grow with a dim.
    """
    if len(sizes) != program.num_allocations or sizes.slope_bytes is not None:
        message = f"{len(sizes)} sizes at one number for {program.num_allocations} allocations"
        raise ValueError(message)
    if allocator is not None:
        served = _Served(program, sizes.fixed_bytes.tolist(), allocator, workspaces_bytes)
        reserved = served.run(iterations)
        return Replay(program, sizes, reserved, reserved.out_of_memory_at)
    found = Replay(program, sizes)
    if capacity_bytes is None or found.peak.size_bytes <= capacity_bytes:
        return found
    at = int((found.live_bytes > capacity_bytes).argmax())
    return Replay(program, sizes, out_of_memory_at=at)


@dataclass(slots=True)
class _Served:
    """A program that an allocator serves."""

    program: Program
    sizes: list[int]
    allocator: Allocator
    workspaces_bytes: Sequence[int]
    at: int = 0
    """The event under way."""

    def run(self, iterations: int) -> Reserved:
        """Serve the setup once and the rest until it comes to rest."""
        by_iteration: list[int] = []
        events = self.program.events.tolist()
        setup = self.program.num_setup_events
        out_of_memory_at = None
        try:
            self._serve(events[:setup], 0)
            self.at = setup
            for number, size_bytes in enumerate(self.workspaces_bytes, 1):
                if size_bytes:
                    self.allocator.malloc(-number, size_bytes)  # the program's own are from 0 on
            self._iterate(events[setup:], iterations, by_iteration)
        except OutOfMemoryError:
            out_of_memory_at = self.at
        return Reserved(
            peak_bytes=self.allocator.reserved_peak_bytes,
            by_iteration_bytes=tuple(by_iteration),
            num_retries=self.allocator.num_retries,
            out_of_memory_at=out_of_memory_at,
        )

    def _iterate(self, events: list[int], iterations: int, by_iteration: list[int]) -> None:
        released, inherited = self._between(events) if iterations > 1 else ([], [])
        layout: object = None
        for index in range(iterations):
            if index:
                self._serve(released, self.program.num_setup_events)
                for heir, number in inherited:
                    self.allocator.rename(heir, number)
            self._serve(events, self.program.num_setup_events)
            by_iteration.append(self.allocator.reserved_bytes)
            if index + 1 < iterations:
                before, layout = layout, self.allocator.layout()
                # Blocks that lie as they lay an iteration ago are requested and freed alike again.
                if index and layout == before:
                    return

    def _serve(self, events: list[int], first: int) -> None:
        sizes, malloc, free = self.sizes, self.allocator.malloc, self.allocator.free
        for at, event in enumerate(events, first):
            if event >= 0:
                if sizes[event]:
                    self.at = at
                    malloc(event, sizes[event])
            elif sizes[~event]:
                free(~event)

    def _between(self, events: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """What an iteration releases of the one before, and what takes a place in the setup."""
        made = {event for event in events if event >= 0}
        freed = {~event for event in events if event < 0}
        left = dict.fromkeys(event for event in events if event >= 0 and event not in freed)
        inherited = []
        for number in (~event for event in events if event < 0 and ~event not in made):
            size = self.sizes[number]
            heir = next((each for each in left if self.sizes[each] == size and size), None)
            if heir is not None:
                inherited.append((heir, number))
                del left[heir]
        return [~number for number in left], inherited
