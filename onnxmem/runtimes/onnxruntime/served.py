"""Sessions that serve requests of changing shapes: one plan, one arena, a pattern per shape.

What a long-running process keeps between requests: the arena's regions, which it does not return,
and the memory patterns. A pattern is stored under the exclusive or of all dims of the inputs
(``session_state.cc``, ``CalculateMemoryPatternsKey``), so requests of different shapes may find the
same one: with two inputs of equal shape all of them do. A request that finds the pattern of another
shape requests its whole block, and beside it each buffer whose size differs.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import cycle, islice
from random import Random
from typing import Final, Self

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.model.graph import Graph, Node
from onnxmem.program.replay import OutOfMemoryError
from onnxmem.runtimes.onnxruntime.allocation.frames import PatternKey, ScratchRule, pattern_key
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace
from onnxmem.runtimes.onnxruntime.allocation.recording import Run
from onnxmem.runtimes.onnxruntime.kernels.kernel import Scratch
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession, ReplayError
from onnxmem.runtimes.onnxruntime.process.heap import MAX_MMAP_THRESHOLD_BYTES
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

Dims = tuple[tuple[str, int], ...]
"""The dims of a request, by name."""
Found = tuple[Dims, ...]
"""The requests whose runs stored the patterns that a run finds, in order."""
_NONE: Final[Found] = ()


@dataclass(frozen=True)
class Schedule:
    """The requests and releases of a run that are not of zero bytes, and when they come."""

    run: Run
    seconds_by_node: Callable[[], Mapping[str, float]]
    """How long each node runs; runs one at a time do not ask."""

    @cached_property
    def events(self) -> list[int]:
        """As in ``Program``."""
        events = self.run.program.events.tolist()
        return [event for event in events if self.sizes[max(event, ~event)]]

    @cached_property
    def sizes(self) -> list[int]:
        """By allocation, in bytes."""
        sizes: list[int] = self.run.sizes.fixed_bytes.tolist()
        return sizes

    @cached_property
    def num_returned(self) -> int:
        """Events until the session returns; the caller then releases the outputs."""
        num_released = sum(1 for number in self.run.outputs if self.sizes[number])
        return len(self.events) - num_released

    @cached_property
    def seconds(self) -> list[float]:
        """By event, the mean time until the next one.

        A kernel has its outputs and its scratch before it computes, or before the half of it, and
        releases after that.
        """
        program, seconds = self.run.program, self.seconds_by_node()
        left = [seconds.get(name, 0.0) for name in program.steps]
        pauses: list[float] = []
        done = 0
        for event, step in zip(program.events.tolist(), program.event_steps.tolist(), strict=True):
            # The nodes before this step computed; this one too if it releases already.
            until = step + 1 if event < 0 else step
            computed = sum(left[done:until])
            done = max(done, until)
            if event in self.run.halves:
                left[step] /= 2
                computed += left[step]
            if pauses:
                pauses[-1] += computed
            if self.sizes[max(event, ~event)]:
                pauses.append(_EVENT_SECONDS)
        return pauses


@dataclass(slots=True)
class RequestRuns:
    """The runs of a session by request, each simulated once; shared by all replays of them."""

    planned: PlannedSession
    graph_at: Callable[[Dims], SessionGraph]
    """The graph of the session at the dims of a request."""
    seconds_of: Callable[[Graph], Mapping[str, float]]
    """How long each node of a graph runs, by name: what concurrent runs hold meanwhile."""
    graphs: dict[Dims, SessionGraph] = field(default_factory=dict)
    """Those that were needed so far."""
    unsized: dict[Dims, tuple[str, ...]] = field(default_factory=dict)
    """By simulated request, the tensors of unknown size."""
    _keys: dict[Dims, int] = field(default_factory=dict)
    _runs: dict[tuple[Dims, Found], Run] = field(default_factory=dict)
    _patterns: dict[Found, Mapping[PatternKey, PatternTrace]] = field(default_factory=dict)
    """The patterns after runs that each stored some."""
    _scratches: dict[Dims, dict[int, Scratch]] = field(default_factory=dict)
    """By request and the id of a node of the plan's main graph, which lives as long as this."""
    _schedules: dict[tuple[Dims, Found], Schedule] = field(default_factory=dict)

    def graph(self, dims: Dims) -> SessionGraph:
        """The graph at the dims of a request."""
        if dims not in self.graphs:
            self.graphs[dims] = self.graph_at(dims)
        return self.graphs[dims]

    def pattern_key(self, dims: Dims) -> int:
        """The key of the pattern of the main graph."""
        if dims not in self._keys:
            self._keys[dims] = pattern_key(self.graph(dims).graph)
        return self._keys[dims]

    def run(self, dims: Dims, found: Found) -> Run:
        """The run of a request that finds these patterns."""
        # What a run requests depends on its dims and on the patterns that it finds, on nothing
        # else.
        key = (dims, found)
        if key not in self._runs:
            served = self.graph(dims)
            # A run that finds no pattern requests the same whether it stores one or not.
            session = self.planned.recorded.session(uses_pattern=True)
            session.patterns |= self._patterns.get(found, {})
            session.scratch = partial(self._scratch, dims, session.scratch)
            self._runs[key] = session.run(served.graph, served.trace)
            self.unsized[dims] = tuple(session.unsized)
            self._patterns.setdefault((*found, dims), session.patterns)
        return self._runs[key]

    def schedule(self, dims: Dims, found: Found) -> Schedule:
        """The events of that run with their times."""
        key = (dims, found)
        if key not in self._schedules:
            seconds_by_node = partial(self._seconds_by_node, dims)
            self._schedules[key] = Schedule(self.run(dims, found), seconds_by_node)
        return self._schedules[key]

    def _scratch(self, dims: Dims, rule: ScratchRule, graph: Graph, node: Node) -> Scratch:
        """What a kernel requests for itself: the same in every run of a request.

        A graph that was created for one run, with the types of a trace or of a body, is left to the
        rule.
        """
        if graph is not self.graphs[dims].graph:
            return rule(graph, node)
        known = self._scratches.setdefault(dims, {})
        if id(node) not in known:
            known[id(node)] = rule(graph, node)
        return known[id(node)]

    def _seconds_by_node(self, dims: Dims) -> Mapping[str, float]:
        return self.seconds_of(self.graph(dims).graph)

    def with_options(self, options: SessionOptions) -> Self:
        """The same runs in a session of other settings that leave its plan as it is."""
        return replace(self, planned=replace(self.planned, options=options))


@dataclass(slots=True)
class PatternStore:
    """Which patterns a session has stored so far; mutable."""

    runs: RequestRuns
    _first: dict[int, Dims] = field(default_factory=dict)
    """By key, the request that stored the pattern of the main graph."""
    _served: dict[Dims, None] = field(default_factory=dict)

    def found(self, dims: Dims) -> Found:
        """The patterns that a run finds if it starts now."""
        if self.runs.planned.recorded.has_bodies:
            # Bodies have patterns of their own, which other requests may have stored.
            return tuple(self._served)
        # Without bodies only the pattern under the run's own key matters, which keeps the number of
        # distinct runs small.
        first = self._first.get(self.runs.pattern_key(dims))
        return _NONE if first is None else (first,)

    def depends_on_order(self, requests: Sequence[Dims]) -> bool:
        """Whether the order of further requests decides which patterns are stored."""
        if not self.runs.planned.options.enable_mem_pattern:
            return False
        new = [dims for dims in requests if dims not in self._served]
        keys = [key for key in map(self.runs.pattern_key, new) if key not in self._first]
        has_bodies = self.runs.planned.recorded.has_bodies
        return len(set(keys)) < len(keys) or (has_bodies and len(new) > 1)

    def store(self, dims: Dims) -> None:
        """A run of the request ends: its pattern is stored, unless there is one of its key."""
        if self.runs.planned.options.enable_mem_pattern:
            self._first.setdefault(self.runs.pattern_key(dims), dims)
            self._served[dims] = None


@dataclass(frozen=True, slots=True)
class Served:
    """The arena of a session during one request and after it, in bytes."""

    reserved_bytes: int
    """After the request."""
    reserved_peak_bytes: int
    allocated_peak_bytes: int


@dataclass(slots=True)
class ServingSession:
    """A loaded session that serves requests; mutable."""

    runs: RequestRuns
    arena: BfcArena
    """Its own, or that of all sessions."""
    _first_number: int = 0
    """Of its runs among those of all sessions of the arena."""
    patterns: PatternStore = field(init=False)
    _repeated: dict[tuple[object, int], Served] = field(default_factory=dict)
    """By the state of the arena and the run: requests that leave that state as it is."""
    _num_started: int = 0

    def __post_init__(self) -> None:
        self.patterns = PatternStore(self.runs)

    def serve(self, dims: Dims) -> Served:
        """Serve one request to its end, while no other runs.

        :raises ReplayError: the arena cannot serve it.
        """
        run = self.runs.run(dims, self.patterns.found(dims))
        # Between requests all chunks of runs are free and merged. So the sizes of the regions are
        # the whole state, and a run that leaves it as it was does so each time.
        state = self.state
        if (state, id(run)) in self._repeated:
            return self._repeated[state, id(run)]
        self.arena.restart_peaks()
        (only,) = self.started([dims])
        self.proceed(only, len(only.schedule.events))
        served = self.ended(dims)
        if self.state == state:
            self._repeated[state, id(run)] = served
        return served

    def started(self, requests: Iterable[Dims]) -> "list[_Active]":
        """Requests that begin now, with the patterns that they find."""
        found = []
        for dims in requests:
            schedule = self.runs.schedule(dims, self.patterns.found(dims))
            # Numbers of live requests must be unique, and each run counts from 0 on.
            first_number = (self._first_number + self._num_started) << _NUMBER_BITS
            found.append(_Active(dims, schedule, first_number))
            self._num_started += 1
        return found

    def proceed(self, active: "_Active", num_events: int) -> bool:
        """Serve further events of a run; whether any is left after that."""
        arena, schedule, first = self.arena, active.schedule, active.first_number
        events, sizes = schedule.events, schedule.sizes
        shrinks = self.runs.planned.options.shrinks_arena
        stop = active.num_done + num_events
        try:
            for index, event in enumerate(events[active.num_done : stop], active.num_done):
                # InferenceSession::Run shrinks before it returns, and the caller has the outputs.
                if shrinks and index == schedule.num_returned:
                    arena.shrink()
                if event >= 0:
                    arena.malloc(first + event, sizes[event])
                    active.new_bytes += self._unmapped_bytes(arena.chunk(first + event).region)
                else:
                    arena.free(first + ~event)
        except OutOfMemoryError:
            raise ReplayError(self.runs.planned.exhausted) from None
        # A run may have no event at all.
        active.num_done = min(stop, len(events))
        return active.num_done < len(events)

    def _unmapped_bytes(self, region: int) -> int:
        """Of the last request, which is in a region, the bytes that have no memory yet."""
        planned, arena = self.runs.planned, self.arena
        if not planned.recorded.provider.is_host:
            return 0
        # What a shrink returns to the heap is there for the next region of its size; only a block
        # that the C library maps is new each time (``malloc.c``, ``sysmalloc``).
        mapped_bytes = planned.options.malloc_threshold_bytes or MAX_MMAP_THRESHOLD_BYTES
        if planned.options.shrinks_arena and arena.regions[region] < mapped_bytes:
            return 0
        return arena.new_bytes

    def ended(self, dims: Dims) -> Served:
        """Store the pattern of a run that ends; what the arena has then."""
        arena = self.arena
        self.patterns.store(dims)
        return Served(arena.reserved_bytes, arena.reserved_peak_bytes, arena.in_use_peak_bytes)

    @property
    def state(self) -> object:
        """What decides how the arena serves the next request, while none runs."""
        return tuple(self.arena.regions.values()), self.arena.growth_bytes


@dataclass(slots=True)
class SessionGroup:
    """Sessions of one model that have one arena; mutable.

    They serve requests in turn, and each runs the same number at once.
    """

    arena: BfcArena
    sessions: list[ServingSession]
    first_thread: int
    """The number of the first thread that runs them, where several run at once."""

    @classmethod
    def of(cls, runs: RequestRuns, count: int, first_thread: int = 1) -> Self:
        """So many loaded sessions."""
        arena = runs.planned.arena_of_sessions(count)
        return cls(
            arena,
            [ServingSession(runs, arena, index << _SESSION_BITS) for index in range(count)],
            first_thread,
        )

    @property
    def idle(self) -> Served:
        """The arena while no request runs."""
        arena = self.arena
        return Served(arena.reserved_bytes, arena.reserved_bytes, arena.in_use_bytes)

    def serve_all(
        self, requests: Sequence[Dims], concurrency: int, cores: "Cores"
    ) -> Iterator[tuple[Dims, Served]]:
        """Serve requests, so many at once in each session; yields each when it has ended.

        :raises ReplayError: the arena cannot serve one.
        """
        if concurrency == 1:
            in_turn = zip(requests, cycle(self.sessions), strict=False)
            return ((dims, session.serve(dims)) for dims, session in in_turn)
        return self.serve_at_once(requests, concurrency, cores)

    def serve_at_once(
        self, requests: Sequence[Dims], concurrency: int, cores: "Cores"
    ) -> Iterator[tuple[Dims, Served]]:
        """Serve requests by so many threads for each session, each of which takes the session's
        next one when it is done.

        Which thread requests or releases next depends on the scheduler of the machine. A kernel
        holds its outputs and its scratch for as long as it computes, so a run is most often met,
        and suspended, in the nodes that take most time. Yields each request at its end, in the
        order of the ends.

        :raises ReplayError: the arena cannot serve them.
        """
        count = len(self.sessions)
        waiting = [iter(requests[index::count]) for index in range(count)]
        threads = [
            (index, run)
            for index, session in enumerate(self.sessions)
            for run in session.started(islice(waiting[index], concurrency))
        ]
        for number in range(len(threads)):
            cores.compute(number, _CALL_SECONDS)
        self.arena.restart_peaks()
        while (thread := cores.next()) is not None:
            index, active = threads[thread]
            session, self.arena.thread = self.sessions[index], self.first_thread + thread
            has_more = session.proceed(active, 1)
            if has_more:
                cores.compute(thread, active.pause_seconds())
                continue
            yield active.dims, session.ended(active.dims)
            self.arena.restart_peaks()
            for following in session.started(islice(waiting[index], 1)):
                threads[thread] = (index, following)
                cores.compute(thread, active.pause_seconds() + _CALL_SECONDS)


@dataclass(slots=True)
class Cores:
    """Threads that take turns on the cores of a machine; mutable.

    A thread has a core until its slice of time is over, and then waits behind all others that have
    none, as fair schedulers arrange it. How long it computes and how long its slices are is drawn.
    """

    count: int
    draw: Random
    now: float = 0.0
    """In seconds since the start."""
    _waiting: deque[int] = field(default_factory=deque)
    """Threads without a core, the next one first."""
    _running: list[tuple[float, int]] = field(default_factory=list)
    """A heap: when a thread is done, or its slice is over."""
    _done: dict[int, float] = field(default_factory=dict)
    """By running thread, when it is done."""
    _left: dict[int, float] = field(default_factory=dict)
    """By waiting thread, how long it has still to compute."""
    _stops: dict[int, float] = field(default_factory=dict)
    """By thread, when its last slice is over."""

    def compute(self, thread: int, mean_seconds: float) -> None:
        """Let a thread compute for about so long, from now on."""
        seconds = self.draw.lognormvariate(0, _SPREAD) * mean_seconds
        if self.now < self._stops.get(thread, 0.0):
            self._run(thread, seconds)
        else:
            self._left[thread] = seconds
            self._waiting.append(thread)

    def next(self) -> int | None:
        """The thread that is done first; it has its core until ``next`` is called again. ``None``:
        no thread computes.
        """
        while True:
            while self._waiting and len(self._running) < self.count:
                thread = self._waiting.popleft()
                self._stops[thread] = self.now + self.draw.uniform(*_SLICE_SECONDS)
                self._run(thread, self._left.pop(thread))
            if not self._running:
                return None
            self.now, thread = heappop(self._running)
            left = self._done.pop(thread) - self.now
            if left <= 0:
                return thread
            self._left[thread] = left
            self._waiting.append(thread)

    def _run(self, thread: int, seconds: float) -> None:
        self._done[thread] = self.now + seconds
        heappush(self._running, (min(self._done[thread], self._stops[thread]), thread))


_NUMBER_BITS: Final = 32
_SESSION_BITS: Final = 40
"""A session starts fewer runs than that."""
_EVENT_SECONDS: Final = 1e-6
"""Mean pause after a request or a release, beside the time that kernels compute."""
_CALL_SECONDS: Final = 5e-5
"""Mean time of a thread between two requests."""
_NEW_BYTES: Final = 2e9
"""In a second, of memory that is written for the first time: Linux zeroes each page then. 2e9 were
measured in a virtual machine."""
_SPREAD: Final = 0.2
"""Of the logarithm of how long a kernel takes, beside other work."""
_SLICE_SECONDS: Final = (1.5e-3, 4.5e-3)
"""Linux gives a thread 0.7 ms, times 1 + log2 of the cores (``kernel/sched/fair.c``,
``sysctl_sched_base_slice`` and ``get_update_sysctl_factor``), and takes its core away at a tick, of
which there are 250 to 1,000 in a second."""


@dataclass(slots=True)
class _Active:
    """A request that runs."""

    dims: Dims
    schedule: Schedule
    first_number: int
    """Of its allocations in the arena."""
    num_done: int = 0
    """Events that were served."""

    new_bytes: int = 0
    """Of its requests since it last computed, what no kernel has written before."""

    def pause_seconds(self) -> float:
        """The mean time between the last event and the next one; what a kernel then writes for the
        first time counts once.
        """
        if not self.num_done:
            return _CALL_SECONDS
        seconds = self.schedule.seconds[self.num_done - 1]
        if seconds > _EVENT_SECONDS:
            seconds += self.new_bytes / _NEW_BYTES
            self.new_bytes = 0
        return seconds
