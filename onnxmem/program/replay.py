"""A program replayed with sizes: what is alive when, its peak, and what an allocator makes of it.

Without an allocator each allocation takes its bytes and nothing else: the sum is a lower bound of
what any allocator reserves. With one, it serves every event in order, at a device's capacity
if that is given; the allocator keeps its state from one replay to the next, so that a process that
runs several programs is one allocator and several replays.

A training loop runs a program again and again (``iterations``): what an iteration leaves allocated
is released at the start of the next one, as the assignments of a loop do; and where an iteration
releases an allocation of the setup, say the gradients of the step before, the first of equal size
that it leaves takes its place.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from typing import Final, NamedTuple, Protocol

import numpy as np

from onnxmem.program.program import Allocation, Category, IntColumn, Program, int_column
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
    """Reserved memory after serving a program, in bytes."""

    peak_bytes: int
    by_iteration_bytes: tuple[int, ...]
    """Reserved after each iteration until they came to rest."""
    num_retries: int
    out_of_memory_at: int | None = None
    """The event of the program that could not be served; ``None``: all were."""

    @property
    def is_out_of_memory(self) -> bool:
        """Whether a request could not be served: then all figures are of the time until then."""
        return self.out_of_memory_at is not None


class Moment(NamedTuple):
    """The peak within consecutive events of one node in one phase."""

    phase: str
    node: str
    """``""``: of a phase before its first node, or of events of no node."""
    num_events: int
    """Events up to it, its own included."""


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
    _live_sets: dict[int, tuple[Allocation, ...]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __eq__(self, other: object) -> bool:
        """Whether the same program with the same sizes came to the same."""
        if not isinstance(other, Replay):
            return NotImplemented
        return (self.program, self.sizes, self.reserved, self.out_of_memory_at) == (
            other.program,
            other.sizes,
            other.reserved,
            other.out_of_memory_at,
        )

    __hash__ = None  # type: ignore[assignment]  # its columns are compared, not looked up

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

    @property
    def peak_bytes(self) -> int:
        """The size of ``peak`` alone, which a search reads at each batch."""
        begin = self.program.num_setup_events
        before = self.bytes_after(begin)
        return max(before, int(self.live_bytes[begin:].max(initial=0)))

    @cached_property
    def phase_peaks(self) -> Mapping[str, Peak]:
        """The same of each phase; what is alive when a phase begins counts in its peak."""
        return {
            phase: self._peak_of(events, phase)
            for phase, events in self.program.phase_ranges.items()
        }

    def bytes_after(self, num_events: int) -> int:
        """Bytes alive after so many events."""
        return int(self.live_bytes[num_events - 1]) if num_events else 0

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

    def moments(self, *, begin_phases: bool = False) -> Iterator[Moment]:
        """The first moment of most bytes alive in each node's consecutive events, phase by phase.

        What is alive when a node begins counts too, and the setup is a part of the first phase.
        With ``begin_phases`` it counts in a first moment of each phase alone, which is there also
        if nothing happens in the phase; the setup comes before the first one.
        """
        live = np.concatenate(([0], self.live_bytes))
        program, nodes = self.program, self.program.event_nodes
        begun = program.num_setup_events if begin_phases else 0
        for phase, events in program.phase_ranges.items():
            start, stop = max(events.start, begun), events.stop
            has_begun = start < stop and not program.node_at(start)
            if begin_phases and not has_begun:
                yield Moment(phase, "", start)
            if start == stop:
                continue
            changed = np.diff(nodes[start:stop]).nonzero()[0] + start + 1
            cuts = np.concatenate(([start], changed, [stop]))
            at, begins = _first_maxima(live, cuts), cuts[:-1]
            counts = slice(int(has_begun) if begin_phases else None)
            is_most = live[begins[counts]] >= live[at[counts]]
            at[counts] = np.where(is_most, begins[counts], at[counts])
            of_node = [program.steps[step] for step in program.event_steps[begins].tolist()]
            yield from map(Moment, repeat(phase), of_node, at.tolist())

    def held_by(
        self, groups: Sequence[int], num_events: Sequence[int], num_groups: int
    ) -> list[list[int]]:
        """Bytes alive after so many events: a list for each group; ``groups``: by allocation."""
        size, of_allocation = changes(self.program, self.sizes), int_column(groups)
        of_event = of_allocation[self.program.event_allocations]
        held = []
        for group in range(num_groups):
            live = np.cumsum(np.where(of_event == group, size, 0))
            held.append(np.concatenate(([0], live))[list(num_events)].tolist())
        return held

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
        before = self.bytes_after(begin)
        live = self.live_bytes[begin : events.stop]
        if not len(live) or (most := int(live.max())) <= before:
            return Peak(before, begin, "", phase)
        at = begin + int((live == most).argmax())
        return Peak(most, at + 1, self.program.node_at(at), phase)


def affine_sizes(replays: Sequence[tuple[int, Replay]]) -> Sizes | None:
    """Affine sizes through replays at two numbers or more, the smallest first.

    ``None``: they are not of one program, or its sizes are not affine.
    """
    (_, one), *others = replays
    if any(each.program != one.program for _, each in others):
        return None
    return Sizes.through([(number, each.sizes) for number, each in replays])


def _first_maxima(live: ByteColumn, cuts: IntColumn) -> IntColumn:
    """After how many events the most is alive between two cuts, the first time.

    ``live`` is by the number of events; the events of a stretch are those from its cut to the next.
    """
    after, starts = live[cuts[0] + 1 : cuts[-1] + 1], cuts[:-1] - cuts[0]
    is_most = after == np.repeat(np.maximum.reduceat(after, starts), np.diff(cuts))
    num_events = np.arange(cuts[0] + 1, cuts[-1] + 1)
    return np.minimum.reduceat(np.where(is_most, num_events, cuts[-1]), starts)


def changes(program: Program, sizes: Sizes) -> ByteColumn:
    """By how many bytes each event changes what is alive: below 0 where it releases."""
    found: ByteColumn = sizes.fixed_bytes[program.event_allocations] * program.event_signs
    return found


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
        reserved = _serve(program, sizes, allocator, iterations, workspaces_bytes)
        return Replay(program, sizes, reserved, reserved.out_of_memory_at)
    found = Replay(program, sizes)
    if capacity_bytes is None or found.peak_bytes <= capacity_bytes:
        return found
    is_over = found.live_bytes > capacity_bytes
    at = int(is_over.argmax()) if is_over.any() else 0
    return Replay(program, sizes, out_of_memory_at=at)


def reserved_by_step(
    program: Program,
    sizes: Sizes,
    allocator: Allocator,
    *,
    workspaces_bytes: Sequence[int] = (),
) -> tuple[int, ...]:
    """The most that an allocator reserves during each step of the first iteration.

    What nothing happens in has what the step before it ends with.

    :raises OutOfMemoryError: it cannot serve a request.
    """
    setup, _ = _requests(program, sizes)
    server = _Server(sizes.fixed_bytes.tolist(), allocator)
    server.serve(setup)
    server.serve_workspaces(workspaces_bytes)
    is_seen = sizes.fixed_bytes[program.event_allocations] > 0
    most = [allocator.reserved_bytes] * len(program.steps)
    begun = 0
    for event in range(program.num_setup_events, len(program.events)):
        step = int(program.event_steps[event])
        most[begun + 1 : step + 1] = [allocator.reserved_bytes] * (step - begun)
        begun = step
        if is_seen[event]:
            server.serve((int(program.events[event]),))
            most[step] = max(most[step], allocator.reserved_bytes)
    most[begun + 1 :] = [allocator.reserved_bytes] * (len(most) - begun - 1)
    return tuple(most)


def _serve(
    program: Program,
    sizes: Sizes,
    allocator: Allocator,
    iterations: int,
    workspaces_bytes: Sequence[int],
) -> Reserved:
    """Have an allocator serve a program: what it reserves."""
    setup, events = _requests(program, sizes)
    server = _Server(sizes.fixed_bytes.tolist(), allocator)
    by_iteration: list[int] = []
    out_of_memory_at = None
    try:
        server.serve(setup)
        # The program's own numbers are from 0 on.
        server.serve_workspaces(workspaces_bytes)
        server.iterate(program, events, by_iteration, iterations)
    except OutOfMemoryError:
        out_of_memory_at = _event_of(program, server.failed)
    return Reserved(
        peak_bytes=allocator.reserved_peak_bytes,
        by_iteration_bytes=tuple(by_iteration),
        num_retries=allocator.num_retries,
        out_of_memory_at=out_of_memory_at,
    )


def _requests(program: Program, sizes: Sizes) -> tuple[list[int], list[int]]:
    """The events of the setup and of an iteration that an allocator sees: none of 0 bytes."""
    is_seen = sizes.fixed_bytes > 0
    if is_seen.all():
        return program.requests
    is_seen = is_seen[program.event_allocations]
    parts = slice(program.num_setup_events), slice(program.num_setup_events, None)
    setup, iteration = (program.events[part][is_seen[part]].tolist() for part in parts)
    return setup, iteration


def _event_of(program: Program, allocation: int | None) -> int:
    """The event that makes an allocation; of a workspace, the first that would have followed."""
    if allocation is None:
        return program.num_setup_events
    return int((program.events == allocation).argmax())


@dataclass(slots=True)
class _Server:
    """Hands events to an allocator in order."""

    sizes: list[int]
    allocator: Allocator
    failed: int | None = None
    """The allocation that could not be served; ``None``: a workspace."""

    def serve(self, events: Iterable[int]) -> None:
        """Serve events of at least one byte each."""
        sizes, malloc, free = self.sizes, self.allocator.malloc, self.allocator.free
        event = 0
        try:
            for event in events:
                if event >= 0:
                    malloc(event, sizes[event])
                else:
                    free(~event)
        except OutOfMemoryError:
            self.failed = event
            raise

    def serve_workspaces(self, sizes_bytes: Iterable[int]) -> None:
        """Allocate what is never released, by numbers below 0."""
        for number, size_bytes in enumerate(sizes_bytes, 1):
            if size_bytes:
                self.allocator.malloc(-number, size_bytes)

    def iterate(
        self, program: Program, events: list[int], by_iteration: list[int], iterations: int
    ) -> None:
        """Run iterations until they come to rest; what is reserved after each goes to a list."""
        released, inherited, gone = self._between(program) if iterations > 1 else ([], [], set())
        layout: object = None
        for index in range(iterations):
            if index:
                self.serve(released)
                for heir, number in inherited:
                    self.allocator.rename(heir, number)
            if index == 1 and gone:
                # What the first iteration released of the setup without an heir is not there again.
                events = [event for event in events if event >= 0 or ~event not in gone]
            self.serve(events)
            by_iteration.append(self.allocator.reserved_bytes)
            if index + 1 < iterations:
                before, layout = layout, self.allocator.layout()
                # Blocks that lie as they lay an iteration ago are requested and freed alike again.
                if index and layout == before:
                    return

    def _between(
        self, program: Program
    ) -> tuple[list[int], list[tuple[int, int]], AbstractSet[int]]:
        """What an iteration releases of the one before, what takes a place in the setup, and what
        of the setup is gone after the first one, for nothing takes its place.
        """
        left, freed_setup = program.carried
        sizes = self.sizes
        if not freed_setup:
            return [~number for number in left if sizes[number]], [], frozenset()
        by_size: dict[int, deque[int]] = defaultdict(deque)
        for number in left:
            by_size[sizes[number]].append(number)
        inherited, gone = [], set()
        for number in freed_setup:
            heirs = by_size[sizes[number]]
            if heirs:
                inherited.append((heirs.popleft(), number))
            else:
                gone.add(number)
        rest = sorted(each for each in chain.from_iterable(by_size.values()) if sizes[each])
        return [~each for each in rest], [pair for pair in inherited if sizes[pair[1]]], gone
