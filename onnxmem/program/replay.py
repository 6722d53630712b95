"""Replays a program with sizes: live bytes over time, peaks, and what an allocator reserves.

Without an allocator, every allocation takes exactly its bytes: a lower bound of what any allocator
reserves. With one, the allocator serves every event in order. It keeps its state between replays,
so a process that runs several programs is one allocator and several replays.

A training loop runs a program repeatedly (``iterations``). What an iteration leaves allocated is
released at the start of the next one, when the loop assigns its variables again. Where an iteration
releases a setup allocation, such as the gradients of the step before, the first allocation of equal
size that it leaves becomes the new setup allocation. The first iteration may begin without some of
the setup, which it then makes itself (``Program.first``): that decides where it lies.
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
"""The limit for loops that do not reach a steady state. Most do in three iterations: the first
creates the segments, the second finds them split."""


class OutOfMemoryError(Exception):
    """An allocator cannot serve a request: its limit is reached, or the device is full."""


class Allocator(Protocol):
    """Serves the events of a program; the numbers of requests are unique while in use."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved from the device now."""
        ...

    @property
    def reserved_peak_bytes(self) -> int:
        """The most bytes reserved so far."""
        ...

    @property
    def num_retries(self) -> int:
        """Requests that were served only after memory was released to the device."""
        ...

    def malloc(self, number: int, size_bytes: int) -> None:
        """Serve a request for at least one byte.

        :raises OutOfMemoryError: it cannot be served.
        """
        ...

    def free(self, number: int) -> None:
        """Release the memory of a request."""
        ...

    def rename(self, number: int, new_number: int) -> None:
        """Change the number of a live request."""
        ...

    def layout(self) -> object:
        """A value to compare: at equal layouts, the same requests are served in the same way."""
        ...


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of live bytes, of a program or of one of its phases."""

    size_bytes: int
    num_events: int
    """The number of events up to it, its own and those of the setup included."""
    node: str
    """The node of the allocation that reaches it; ``""``: the phase begins with it."""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Reserved memory after serving a program, in bytes."""

    peak_bytes: int
    by_iteration_bytes: tuple[int, ...]
    """Reserved after each iteration, up to the steady state."""
    num_retries: int
    out_of_memory_at: int | None = None
    """The event that could not be served; ``None``: all were."""

    @property
    def is_out_of_memory(self) -> bool:
        """Whether a request failed; the figures then cover the events up to it."""
        return self.out_of_memory_at is not None


class Moment(NamedTuple):
    """The peak within consecutive events of one node in one phase."""

    phase: str
    node: str
    """``""``: the start of a phase, or events without a node."""
    num_events: int
    """The number of events up to it, its own included."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A program with sizes, and all figures of live bytes.

    Allocations of unknown size count as 0 bytes, which makes every figure a lower bound.
    """

    program: Program
    sizes: Sizes
    reserved: Reserved | None = None
    """``None``: no allocator served it."""
    out_of_memory_at: int | None = None
    """The first event that exceeds the capacity, or that the allocator could not serve."""
    _live_sets: dict[int, tuple[Allocation, ...]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __eq__(self, other: object) -> bool:
        """Whether program, sizes and result are equal."""
        if not isinstance(other, Replay):
            return NotImplemented
        return (self.program, self.sizes, self.reserved, self.out_of_memory_at) == (
            other.program,
            other.sizes,
            other.reserved,
            other.out_of_memory_at,
        )

    __hash__ = None  # type: ignore[assignment]  # compared by columns, never a key

    @cached_property
    def live_bytes(self) -> ByteColumn:
        """Live bytes after each event."""
        return np.cumsum(changes(self.program, self.sizes))

    @cached_property
    def step_bytes(self) -> ByteColumn:
        """The most live bytes during each step, those at its start included."""
        # A step begins with what is alive after all events of earlier steps.
        steps, live = self.program.event_steps, self.live_bytes
        num_events_before = np.searchsorted(steps, np.arange(len(self.program.steps)))
        most: ByteColumn = np.append(np.zeros(1, dtype=live.dtype), live)[num_events_before]
        np.maximum.at(most, steps, live)
        return most

    @cached_property
    def peak(self) -> Peak:
        """The first event with the most live bytes."""
        return self._peak_of(range(len(self.program.events)), "")

    @property
    def peak_bytes(self) -> int:
        """The size of ``peak``; cheaper, for searches that read it at each batch."""
        # The setup has no order of its own, so its events are one moment: its end.
        begin = self.program.num_setup_events
        before = self.bytes_after(begin)
        return max(before, int(self.live_bytes[begin:].max(initial=0)))

    @cached_property
    def phase_peaks(self) -> Mapping[str, Peak]:
        """The peak of each phase, including what is alive when the phase begins."""
        return {
            phase: self._peak_of(events, phase)
            for phase, events in self.program.phase_ranges.items()
        }

    def bytes_after(self, num_events: int) -> int:
        """Live bytes after so many events."""
        return int(self.live_bytes[num_events - 1]) if num_events else 0

    def live_set(self, peak: Peak) -> tuple[Allocation, ...]:
        """The allocations alive at a peak, largest first, then in the order of allocation."""
        if peak.num_events not in self._live_sets:
            alive = self.program.alive_after(peak.num_events)
            sizes = self.sizes.fixed_bytes.tolist()
            alive.sort(key=sizes.__getitem__, reverse=True)
            self._live_sets[peak.num_events] = tuple(map(self.allocation, alive))
        return self._live_sets[peak.num_events]

    def live_by_category(self, peak: Peak) -> dict[Category, int]:
        """Live bytes at a peak by category, without the categories of 0 bytes."""
        found = dict.fromkeys(Category, 0)
        for allocation in self.live_set(peak):
            found[allocation.category] += allocation.size_bytes
        return {category: size for category, size in found.items() if size}

    def moments(self, *, begin_phases: bool = False) -> Iterator[Moment]:
        """The peak of each run of consecutive events of one node, phase by phase.

        What is alive when a node begins counts, and the setup is part of the first phase. With
        ``begin_phases`` each phase has an extra first moment, its start, which alone counts what is
        alive then; the first phase begins after the setup.
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
            # Cut the events of the phase where the node changes: each stretch gives one moment.
            changed = np.diff(nodes[start:stop]).nonzero()[0] + start + 1
            cuts = np.concatenate(([start], changed, [stop]))
            at, begins = _first_maxima(live, cuts), cuts[:-1]
            # A stretch that only releases has its peak before its first event.
            counts = slice(int(has_begun) if begin_phases else None)
            is_most = live[begins[counts]] >= live[at[counts]]
            at[counts] = np.where(is_most, begins[counts], at[counts])
            of_node = [program.steps[step] for step in program.event_steps[begins].tolist()]
            yield from map(Moment, repeat(phase), of_node, at.tolist())

    def live_bytes_by_group(
        self, groups: Sequence[int], num_events: Sequence[int], num_groups: int
    ) -> list[list[int]]:
        """Live bytes after so many events, one list per group; ``groups`` is by allocation."""
        size, of_allocation = changes(self.program, self.sizes), int_column(groups)
        of_event = of_allocation[self.program.event_allocations]
        found = []
        for group in range(num_groups):
            live = np.cumsum(np.where(of_event == group, size, 0))
            found.append(np.concatenate(([0], live))[list(num_events)].tolist())
        return found

    def allocation(self, number: int) -> Allocation:
        """One allocation."""
        program = self.program
        size_bytes = self.sizes.bytes_of(number)
        return Allocation(program.labels[number], program.categories[number], size_bytes)

    def allocations(self) -> Iterator[Allocation]:
        """All allocations, in order."""
        columns = (self.program.labels, self.program.categories, self.sizes.fixed_bytes.tolist())
        return map(Allocation, *columns)

    def _peak_of(self, events: range, phase: str) -> Peak:
        # The setup counts as alive at the start of the first phase: its events are no peak of a
        # node.
        begin = max(events.start, self.program.num_setup_events)
        before = self.bytes_after(begin)
        live = self.live_bytes[begin : events.stop]
        if not len(live) or (most := int(live.max())) <= before:
            return Peak(before, begin, "", phase)
        at = begin + int((live == most).argmax())
        return Peak(most, at + 1, self.program.node_at(at), phase)


def affine_sizes(replays: Sequence[tuple[int, Replay]]) -> Sizes | None:
    """Affine sizes through replays at two or more numbers, in ascending order.

    ``None``: their programs differ, or the sizes are not affine.
    """
    (_, one), *others = replays
    if any(each.program != one.program for _, each in others):
        return None
    return Sizes.through([(number, each.sizes) for number, each in replays])


def _first_maxima(live: ByteColumn, cuts: IntColumn) -> IntColumn:
    """For each stretch between two cuts, the number of events up to its first maximum.

    ``live`` is indexed by the number of events.
    """
    # Mark the events at each stretch's maximum; the least marked index is the first of them.
    after, starts = live[cuts[0] + 1 : cuts[-1] + 1], cuts[:-1] - cuts[0]
    is_most = after == np.repeat(np.maximum.reduceat(after, starts), np.diff(cuts))
    num_events = np.arange(cuts[0] + 1, cuts[-1] + 1)
    return np.minimum.reduceat(np.where(is_most, num_events, cuts[-1]), starts)


def changes(program: Program, sizes: Sizes) -> ByteColumn:
    """The change of the live bytes by each event, negative for a release."""
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
    """Replay a program with sizes; without an allocator every allocation takes its own bytes.

    ``capacity_bytes`` is for replays without an allocator, which has a capacity of its own. At most
    ``iterations`` are run, fewer if one leaves the allocator's layout as it found it.
    ``workspaces_bytes`` are allocated by libraries before the first iteration and never released;
    they count as reserved bytes only.

    :raises ValueError: the sizes do not match the program, or are not at one number.
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
    """The most bytes reserved by an allocator during each step of an iteration after the setup.

    :raises OutOfMemoryError: it cannot serve a request.
    """
    setup, _ = program.requests
    server = _Server(sizes.fixed_bytes.tolist(), allocator)
    server.serve(_seen(setup, sizes))
    server.serve_workspaces(workspaces_bytes)
    is_seen = sizes.fixed_bytes[program.event_allocations] > 0
    most = [allocator.reserved_bytes] * len(program.steps)
    begun = 0
    for event in range(program.num_setup_events, len(program.events)):
        step = int(program.event_steps[event])
        # Steps without events, and the start of this one, have what is reserved now.
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
    """Let an allocator serve a program."""
    server = _Server(sizes.fixed_bytes.tolist(), allocator)
    by_iteration: list[int] = []
    out_of_memory_at = None
    try:
        # A library allocates its workspace when it is first called, which is after the setup.
        server.serve(_seen(program.first_requests[0], sizes))
        server.serve_workspaces(workspaces_bytes)
        server.iterate(program, sizes, by_iteration, iterations)
    except OutOfMemoryError:
        out_of_memory_at = _allocation_event(program, server.failed)
    return Reserved(
        peak_bytes=allocator.reserved_peak_bytes,
        by_iteration_bytes=tuple(by_iteration),
        num_retries=allocator.num_retries,
        out_of_memory_at=out_of_memory_at,
    )


def _seen(events: list[int], sizes: Sizes) -> list[int]:
    """Events without those of allocations of 0 bytes."""
    is_seen = sizes.fixed_bytes > 0
    if is_seen.all():
        return events
    column = np.array(events, dtype=np.int64)
    kept: list[int] = column[is_seen[np.where(column < 0, ~column, column)]].tolist()
    return kept


def _allocation_event(program: Program, allocation: int | None) -> int:
    """The event of an allocation; for a workspace (``None``), the first event after the setup."""
    if allocation is None:
        return program.num_setup_events
    made_first = next((event for event, made in program.first.made if made == allocation), None)
    if made_first is not None:
        return min(made_first, len(program.events) - 1)
    return int((program.events == allocation).argmax())


class _Between(NamedTuple):
    """What happens between two iterations."""

    released: list[int]
    """The releases of what the first of them left."""
    replaced: list[tuple[int, int]]
    """What it left and the setup allocation that it becomes."""
    gone: AbstractSet[int]
    """Setup allocations that nothing became."""


@dataclass(slots=True)
class _Server:
    """Sends events to an allocator in order."""

    sizes: list[int]
    allocator: Allocator
    failed: int | None = None
    """The allocation that failed; ``None``: a workspace."""

    def serve(self, events: Iterable[int]) -> None:
        """Serve events of allocations of at least one byte."""
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
        """Allocate workspaces, which are never released.

        They have negative numbers, for those of the program start at 0.
        """
        for number, size_bytes in enumerate(sizes_bytes, 1):
            if size_bytes:
                self.allocator.malloc(-number, size_bytes)

    def iterate(
        self, program: Program, sizes: Sizes, by_iteration: list[int], iterations: int
    ) -> None:
        """Run iterations up to the steady state; appends the bytes reserved after each."""
        self.serve(_seen(program.first_requests[1], sizes))
        by_iteration.append(self.allocator.reserved_bytes)
        if iterations == 1:
            return
        later = self._between(*program.carried)
        events = _seen(program.requests[1], sizes)
        if later.gone:
            # Setup allocations that were released without a successor no longer exist.
            events = [event for event in events if event >= 0 or ~event not in later.gone]
        layout = self.allocator.layout()
        for index in range(1, iterations):
            if index == 1 and program.first.absent:
                first = self._between(*program.carried_by_first)
                self._settle(first)
                # What nothing in the first iteration became exists from here on all the same.
                self.serve(sorted(first.gone - later.gone))
            else:
                self._settle(later)
            self.serve(events)
            by_iteration.append(self.allocator.reserved_bytes)
            if index + 1 < iterations:
                before, layout = layout, self.allocator.layout()
                # Steady state: from an equal layout, the next iteration repeats this one.
                if layout == before:
                    return

    def _settle(self, between: _Between) -> None:
        self.serve(between.released)
        for successor, number in between.replaced:
            self.allocator.rename(successor, number)

    def _between(self, left: list[int], missing: list[int]) -> _Between:
        """What happens after an iteration that left some allocations, before the next one."""
        sizes = self.sizes
        if not missing:
            return _Between([~number for number in left if sizes[number]], [], frozenset())
        by_size: dict[int, deque[int]] = defaultdict(deque)
        for number in left:
            by_size[sizes[number]].append(number)
        replaced, gone = [], set()
        for number in missing:
            successors = by_size[sizes[number]]
            if successors:
                replaced.append((successors.popleft(), number))
            else:
                gone.add(number)
        rest = sorted(each for each in chain.from_iterable(by_size.values()) if sizes[each])
        # Allocations of 0 bytes were never requested, so the allocator has none to rename.
        replaced = [pair for pair in replaced if sizes[pair[1]]]
        return _Between([~each for each in rest], replaced, gone)
