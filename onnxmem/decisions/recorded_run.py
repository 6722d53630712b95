"""Where a prediction and a run that PyTorch recorded part: peaks, order, sizes, and the allocator.

A recorded run is a ``MemorySnapshot``; the prediction is the training step of an ``Analysis``, or
its inference if it has none. Tensors of the two have no names in common, so they are paired by
their bytes. The run's own requests are replayed by the allocator of onnxmem too: whether that
reserves what the run reserved is a test of the allocator which no prediction of tensors disturbs.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from onnxmem.allocators.caching import CachingAllocator, CachingConfig, rounded_bytes
from onnxmem.analysis.analysis import Analysis
from onnxmem.measuring.memory_snapshot import (
    NO_POOL,
    MemorySnapshot,
    RecordedEvent,
    RecordedSegment,
)
from onnxmem.program.program import Allocation, Category
from onnxmem.program.replay import Replay
from onnxmem.runtimes.torch.memory import TrainingMemory

_MAPPED: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Actions that change what is reserved, with the sign of the change."""
_WORKSPACE: Final = "workspace of a library"


class RecordedAllocation(NamedTuple):
    """An allocation of the run."""

    size_bytes: int
    """Requested, before rounding."""
    place: str
    """The function that made it; empty: not recorded."""


@dataclass(frozen=True, slots=True)
class RecordedPeak:
    """The most that the run had allocated."""

    requested_bytes: int
    allocated_bytes: int
    """The same in blocks, `torch.cuda.max_memory_allocated`: of the allocator's replay where that
    agrees with the run; else each request rounded up, which leaves out rests too small to split."""
    reserved_bytes: int
    """The most reserved, at any time: `torch.cuda.max_memory_reserved`."""
    num_allocations: int
    """Recorded allocations up to the peak; 0: it is the state before the first of them."""
    place: str
    live: tuple[RecordedAllocation, ...] = field(repr=False)
    """What is allocated at the peak, largest first."""


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """The most that the prediction has allocated; ``None`` is not predicted."""

    requested_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    node: str | None
    phase: str
    """Empty: an inference."""
    live: tuple[Allocation, ...] = field(repr=False)
    """Workspaces of libraries included."""


@dataclass(frozen=True, slots=True)
class CategoryMatch:
    """The bytes of a category at the predicted peak, and those with a counterpart in the run."""

    category: Category
    size_bytes: int
    matched_bytes: int


@dataclass(frozen=True, slots=True)
class Counterparts:
    """What is alive at the two peaks, paired by size."""

    categories: tuple[CategoryMatch, ...]
    only_predicted: tuple[Allocation, ...]
    """Without a counterpart of the run, largest first."""
    only_recorded: tuple[RecordedAllocation, ...]
    """Without one of the prediction, largest first."""

    @property
    def matched_bytes(self) -> int:
        """Bytes of the prediction with a counterpart, which are as many of the run."""
        return sum(each.matched_bytes for each in self.categories)


@dataclass(frozen=True, slots=True)
class Parting:
    """How far the predicted allocations are those of the run, one after another."""

    num_same: int
    num_predicted: int
    begins_at: int
    """The allocation of the run, counted from 0, that is the first predicted one."""
    predicted: Allocation | None
    """The first that differs; ``None``: there is none."""
    node: str
    """Of that one."""
    recorded: RecordedAllocation | None


@dataclass(frozen=True, slots=True)
class ReservedDifference:
    """The first request for which run and replay reserve different bytes."""

    num_allocations: int
    """The number of the allocation in the run, counted from 0."""
    allocation: RecordedAllocation
    recorded_bytes: int
    replayed_bytes: int


@dataclass(frozen=True, slots=True)
class AllocatorReplay:
    """What the allocator of onnxmem does with the requests of the run."""

    is_exact: bool
    """Whether the run was recorded from its first allocation on, so that the two must agree."""
    num_allocations: int
    num_same: int
    """Allocations for which run and replay reserve equally many bytes, also none."""
    first_difference: ReservedDifference | None
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    recorded_peak_bytes: int
    """The run's own peak of what is reserved."""
    segments: tuple[int, ...]
    """Bytes of the segments at the end, of each pool in order; of an expandable one together."""
    recorded_segments: tuple[int, ...]
    left_out: tuple[str, ...]
    """Settings of the run's allocator that are not emulated."""

    @property
    def is_same(self) -> bool:
        """Whether every request reserved as much as in the run, and the segments are the same."""
        return self.first_difference is None and self.segments == self.recorded_segments


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recorded run beside its prediction."""

    snapshot: MemorySnapshot
    analysis: Analysis = field(repr=False)
    recorded: RecordedPeak
    predicted: PredictedPeak
    counterparts: Counterparts
    parting: Parting | None
    """``None``: the snapshot has no events."""
    allocator: AllocatorReplay | None
    """``None``: the snapshot has no events."""

    @property
    def num_allocations(self) -> int:
        """Allocations that were recorded."""
        return sum(event.action == "alloc" for event in self.snapshot.events)


def compare_recorded(analysis: Analysis, snapshot: MemorySnapshot) -> RecordedRun:
    """Compare the training step of an analysis, or its inference, with a recorded run."""
    history = _History(snapshot)
    step = _step_of(analysis)
    predicted = _predicted_peak(analysis, step)
    replay = analysis.activations.replay if step is None else step.replay
    recorded = history.peak()
    has_events = bool(history.allocations)
    allocator = _replayed(history) if has_events else None
    if allocator is not None and allocator.is_exact and allocator.is_same:
        recorded = replace(recorded, allocated_bytes=allocator.allocated_peak_bytes)
    return RecordedRun(
        snapshot=snapshot,
        analysis=analysis,
        recorded=recorded,
        predicted=predicted,
        counterparts=_counterparts(predicted.live, recorded.live),
        parting=_parting(replay, history) if has_events else None,
        allocator=allocator,
    )


class _History:
    """The allocations of a run by number: those from before the first event are below 0."""

    def __init__(self, snapshot: MemorySnapshot) -> None:
        self.snapshot = snapshot
        self.config, self.left_out = config_of(snapshot.settings)
        self.allocations: list[RecordedAllocation] = []
        self.events: list[tuple[int, RecordedEvent]] = []
        """Allocations, releases and changes of segments, each with the number of its block."""
        self.earlier: dict[int, tuple[RecordedAllocation, int, str]] = {}
        """What was allocated before the first event, with its stream and pool, by number."""
        self._segments = sorted(snapshot.segments, key=lambda each: each.address)
        self._starts = [each.address for each in self._segments]
        self._add_left(self._read_events())

    def is_whole(self) -> bool:
        """Whether nothing was allocated or reserved before the first event."""
        return not self.earlier and self.reserved_before_bytes == 0

    @property
    def reserved_before_bytes(self) -> int:
        """Reserved before the first event."""
        # Every change of the segments is an event, so the end less all changes is the beginning.
        changes = (_MAPPED.get(each.action, 0) * each.size_bytes for each in self.snapshot.events)
        return self.reserved_end_bytes - sum(changes)

    @property
    def reserved_end_bytes(self) -> int:
        """Reserved when the snapshot was written."""
        return sum(segment.size_bytes for segment in self.snapshot.segments)

    def peak(self) -> RecordedPeak:
        """Follow the run from event to event; without events it is the state at its end."""
        power = self.config.power2_divisions
        live = {number: each for number, (each, _, _) in self.earlier.items()}
        now = most = sum(each.size_bytes for each in live.values())
        blocks = most_blocks = sum(rounded_bytes(each.size_bytes, power) for each in live.values())
        at = 0
        for number, event in self.events:
            if event.action == "alloc":
                live[number] = self.allocations[number]
                now += event.size_bytes
                blocks += rounded_bytes(event.size_bytes, power)
                most_blocks = max(most_blocks, blocks)
                if now > most:
                    most, at = now, number + 1
            # What a caller has released no longer counts as allocated (``free`` of
            # CUDACachingAllocator.cpp), though another stream may use the block until
            # ``free_completed`` (``free_block``).
            elif event.action == "free_requested" and number in live:
                size = live.pop(number).size_bytes
                now, blocks = now - size, blocks - rounded_bytes(size, power)
        alive = self._live_after(at)
        return RecordedPeak(
            requested_bytes=most,
            allocated_bytes=most_blocks,
            reserved_bytes=self.reserved_peak_bytes(),
            num_allocations=at,
            place=self.allocations[at - 1].place if at else "",
            live=tuple(sorted(alive, key=lambda each: -each.size_bytes)),
        )

    def _live_after(self, num_allocations: int) -> Iterable[RecordedAllocation]:
        live = {number: each for number, (each, _, _) in self.earlier.items()}
        for number, event in self.events:
            if num_allocations <= 0:
                break
            if event.action == "alloc":
                live[number] = self.allocations[number]
                num_allocations -= 1
            elif event.action == "free_requested":
                live.pop(number, None)
        return live.values()

    def reserved_peak_bytes(self) -> int:
        """The most reserved: from what is reserved at the end, back to each moment."""
        most = now = self.reserved_end_bytes
        for event in reversed(self.snapshot.events):
            now -= _MAPPED.get(event.action, 0) * event.size_bytes
            most = max(most, now)
        return most

    def _read_events(self) -> dict[int, int]:
        """Number the allocations; returns those that are left at the end, by address."""
        alive: dict[int, int] = {}
        for event in self.snapshot.events:
            number = 0
            if event.action == "alloc":
                number = len(self.allocations)
                alive[event.address] = number
                self.allocations.append(RecordedAllocation(event.size_bytes, event.place))
            elif event.action == "free_requested":
                number = self._number_of(alive, event)
            elif event.action == "free_completed":
                number = self._number_of(alive, event)
                alive.pop(event.address, None)
            elif event.action not in _MAPPED:
                continue
            self.events.append((number, event))
        return alive

    def _add_left(self, alive: Mapping[int, int]) -> None:
        """Add the blocks of the end that no event allocated and none released."""
        for segment in self.snapshot.segments:
            for block in segment.blocks:
                if block.is_active and block.address not in alive:
                    self._add_earlier(
                        RecordedAllocation(block.requested_bytes, block.place),
                        segment.stream,
                        segment.pool,
                    )

    def pool_of(self, event: RecordedEvent) -> str:
        """The private pool of an event; before PyTorch 2.12, that of the segment at the end."""
        index = bisect_right(self._starts, event.address) - 1
        if event.pool or index < 0:
            return event.pool or NO_POOL
        segment = self._segments[index]
        is_inside = event.address < segment.address + segment.size_bytes
        return segment.pool if is_inside else NO_POOL

    def _number_of(self, alive: dict[int, int], event: RecordedEvent) -> int:
        """The block at an address; one that no event allocated was there before."""
        if event.address not in alive:
            found = RecordedAllocation(event.size_bytes, event.place)
            alive[event.address] = self._add_earlier(found, event.stream, self.pool_of(event))
        return alive[event.address]

    def _add_earlier(self, allocation: RecordedAllocation, stream: int, pool: str) -> int:
        number = -1 - len(self.earlier)
        self.earlier[number] = allocation, stream, pool
        return number


def _step_of(analysis: Analysis) -> TrainingMemory | None:
    """The training step with the buffers of libraries' kernels, as the run has them too."""
    step = analysis.training
    if step is None or analysis.torch is None:
        return step
    served = analysis.request.torch_runtime(analysis.results).program_of(step)
    return replace(step, replay=Replay(served.program, served.sizes))


def _predicted_peak(analysis: Analysis, step: TrainingMemory | None) -> PredictedPeak:
    cuda = analysis.torch
    if step is None or cuda is None:
        return _predicted_inference(analysis)
    # Those of convolutions are in the step.
    *kept, _ = cuda.workspaces_bytes
    workspaces = [Allocation(_WORKSPACE, Category.TEMPORARY, size) for size in kept if size]
    return PredictedPeak(
        requested_bytes=cuda.requested_peak_bytes,
        allocated_bytes=cuda.allocated_bytes,
        reserved_bytes=cuda.reserved_bytes,
        node=step.peak_node,
        phase=step.peak_phase.value,
        live=_largest_first((*step.live_at_peak(), *workspaces)),
    )


def _predicted_inference(analysis: Analysis) -> PredictedPeak:
    """Weights, inputs and the activations of the peak with buffer reuse; no allocator is known."""
    graph = analysis.graph
    kept = [
        *((tensor, Category.WEIGHT) for tensor in graph.weights),
        *((tensor, Category.INPUT) for tensor in graph.fed_tensors),
    ]
    live = [Allocation(tensor.name, kind, tensor.size_bytes or 0) for tensor, kind in kept]
    live += analysis.activations.live_at_peak
    return PredictedPeak(
        requested_bytes=sum(each.size_bytes for each in live),
        allocated_bytes=sum(rounded_bytes(each.size_bytes) for each in live if each.size_bytes),
        reserved_bytes=None,
        node=analysis.activations.peak_node,
        phase="",
        live=_largest_first(live),
    )


def _largest_first(allocations: Iterable[Allocation]) -> tuple[Allocation, ...]:
    known = (each for each in allocations if each.size_bytes)
    return tuple(sorted(known, key=lambda each: -each.size_bytes))


def _counterparts(
    predicted: Sequence[Allocation], recorded: Sequence[RecordedAllocation]
) -> Counterparts:
    """Pair what has equal bytes: each of the one with at most one of the other."""
    # Addresses and names do not match between a prediction and a run, sizes do. ``left`` counts the
    # recorded allocations of each size that no predicted one has taken: none is matched twice.
    left = Counter(each.size_bytes for each in recorded)
    total: Counter[Category] = Counter()
    matched: Counter[Category] = Counter()
    only_predicted = []
    for each in predicted:
        total[each.category] += each.size_bytes
        if left[each.size_bytes] > 0:
            left[each.size_bytes] -= 1
            matched[each.category] += each.size_bytes
        else:
            only_predicted.append(each)
    # Those of a size are alike, and any of them may be the unmatched: the newest are named.
    only_recorded = []
    for allocation in reversed(recorded):
        if left[allocation.size_bytes] > 0:
            left[allocation.size_bytes] -= 1
            only_recorded.append(allocation)
    return Counterparts(
        categories=tuple(
            CategoryMatch(category, size, matched[category])
            for category, size in total.most_common()
        ),
        only_predicted=tuple(only_predicted),
        only_recorded=tuple(reversed(only_recorded)),
    )


def _parting(replay: Replay, history: _History) -> Parting:
    """Lay the predicted allocations where most of them are those of the run, from their first on.

    A run has setup and several steps, and a step of the prediction begins at one of its
    allocations: the one from which the longest part of the step follows.
    """
    program, sizes = replay.program, replay.sizes.fixed_bytes.tolist()
    # Weights and optimizer state were there before the step, and an empty tensor requests nothing.
    made = [
        (event, number)
        for event, number in enumerate(program.events.tolist())
        if event >= program.num_setup_events and number >= 0 and sizes[number]
    ]
    wanted = [sizes[number] for _, number in made]
    given = [each.size_bytes for each in history.allocations]
    begins_at, num_same = _longest_start(wanted, given)
    predicted, node = None, ""
    if num_same < len(made):
        event, number = made[num_same]
        predicted = replay.allocation(number)
        node = ": ".join(filter(None, (program.phase_at(event), program.node_at(event))))
    at = begins_at + num_same
    return Parting(
        num_same=num_same,
        num_predicted=len(made),
        begins_at=begins_at,
        predicted=predicted,
        node=node,
        recorded=history.allocations[at] if at < len(given) else None,
    )


def _longest_start(wanted: Sequence[int], given: Sequence[int]) -> tuple[int, int]:
    """Where most of the first ``wanted`` numbers follow each other in ``given``, and how many.

    The Z function of ``wanted``, a separator and ``given``, in O(n).
    """
    if not wanted or not given:
        return 0, 0
    # ``same[i]`` is how many numbers at i are those at the start; [left, right) is the match that
    # reaches farthest so far, and numbers inside it were compared before. -1 is in neither list.
    joined = [*wanted, -1, *given]
    same = [0] * len(joined)
    left = right = 0
    for index in range(1, len(joined)):
        length = min(right - index, same[index - left]) if index < right else 0
        while index + length < len(joined) and joined[length] == joined[index + length]:
            length += 1
        same[index] = length
        if index + length > right:
            left, right = index, index + length
    follows = same[len(wanted) + 1 :]
    num_same = max(follows)
    return follows.index(num_same), num_same


def config_of(settings: Mapping[str, object]) -> tuple[CachingConfig, tuple[str, ...]]:
    """The settings of a run's allocator, and those that are not emulated."""
    left_out = []
    limit = settings.get("max_split_size")
    powers = settings.get("roundup_power2_divisions")
    divisions = sorted({each for each in powers if each}) if isinstance(powers, list) else []
    if len(divisions) > 1:
        left_out.append("roundup_power2_divisions that differ by size")
    if float(str(settings.get("garbage_collection_threshold") or 0)) > 0:
        left_out.append("garbage_collection_threshold")
    max_split_bytes = limit if isinstance(limit, int) and limit > 0 else None
    try:
        config = CachingConfig(
            expandable_segments=settings.get("expandable_segments") is True,
            max_split_bytes=max_split_bytes,
            power2_divisions=divisions[0] if len(divisions) == 1 else 0,
        )
    except ValueError:  # of a file that PyTorch did not write
        left_out.append(f"max_split_size {limit}")
        config = CachingConfig()
    return config, tuple(left_out)


class _Allocators:
    """An allocator for each stream and private pool: no block serves two of them."""

    def __init__(self, config: CachingConfig) -> None:
        self.config = config
        self._by_pool: dict[tuple[int, str], CachingAllocator] = {}
        self._of_block: dict[int, CachingAllocator] = {}
        self.reserved_bytes = self.reserved_peak_bytes = 0
        self.allocated_bytes = self.allocated_peak_bytes = 0

    def malloc(self, number: int, size_bytes: int, pool: tuple[int, str]) -> int:
        """Serve a request; returns by how much the reserved bytes grow."""
        allocator = self._by_pool.setdefault(pool, CachingAllocator(self.config))
        before = allocator.reserved_bytes
        # The sums over all allocators are kept by difference, since a run has many events.
        self.allocated_bytes -= allocator.allocated_bytes
        allocator.malloc(number, max(size_bytes, 1))
        self.allocated_bytes += allocator.allocated_bytes
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, self.allocated_bytes)
        self._of_block[number] = allocator
        grown = allocator.reserved_bytes - before
        self.reserved_bytes += grown
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        return grown

    def free(self, number: int) -> None:
        allocator = self._of_block.pop(number, None)
        if allocator is not None:
            self.allocated_bytes -= allocator.allocated_bytes
            allocator.free(number)
            self.allocated_bytes += allocator.allocated_bytes

    def release_cached(self, stream: int) -> int:
        """Release what the allocators of a stream have cached; returns how much that is."""
        before = self.reserved_bytes
        for (of_stream, _), allocator in self._by_pool.items():
            if of_stream == stream:
                self.reserved_bytes -= allocator.reserved_bytes
                allocator.release_cached()
                self.reserved_bytes += allocator.reserved_bytes
        return before - self.reserved_bytes

    def segments(self) -> tuple[int, ...]:
        """Bytes of each segment, sorted; of expandable ones together."""
        if self.config.expandable_segments:
            return (self.reserved_bytes,) if self.reserved_bytes else ()
        # An empty tuple separates the two pools of a layout.
        sizes = [
            sum(map(abs, blocks))
            for allocator in self._by_pool.values()
            for blocks in allocator.layout()
            if blocks
        ]
        return tuple(sorted(sizes, reverse=True))


def _replayed(history: _History) -> AllocatorReplay:
    """Serve the requests of the run in their order."""
    allocators = _Allocators(history.config)
    # In which order these were allocated is not recorded, so what is replayed after them need not
    # be what the run did (`is_exact`).
    for number, (allocation, stream, pool) in history.earlier.items():
        allocators.malloc(number, allocation.size_bytes, (stream, pool))
    earlier_bytes = allocators.reserved_bytes
    comparison = _Comparison()
    for number, event in history.events:
        if event.action == "alloc":
            of_pool = event.stream, history.pool_of(event)
            grown = allocators.malloc(number, event.size_bytes, of_pool)
            comparison.compare(number, history.allocations[number], grown)
        # Only now may the allocator give the block to another request (``free_block``).
        elif event.action == "free_completed":
            allocators.free(number)
        elif event.action in _MAPPED:
            change = _MAPPED[event.action] * event.size_bytes
            # A run releases all that it has cached at once, event by event.
            released = allocators.release_cached(event.stream) if change < 0 else 0
            comparison.recorded_bytes += change
            comparison.replayed_bytes -= released
    grown_peak_bytes = allocators.reserved_peak_bytes - earlier_bytes
    return AllocatorReplay(
        is_exact=history.is_whole() and not history.left_out,
        num_allocations=len(history.allocations),
        num_same=comparison.num_same,
        first_difference=comparison.first,
        allocated_peak_bytes=allocators.allocated_peak_bytes,
        # What was reserved before the first event is the run's own figure on both sides.
        reserved_peak_bytes=history.reserved_before_bytes + grown_peak_bytes,
        recorded_peak_bytes=history.reserved_peak_bytes(),
        segments=allocators.segments(),
        recorded_segments=_segment_sizes(history.snapshot.segments, history.config),
        left_out=history.left_out,
    )


def _segment_sizes(segments: Iterable[RecordedSegment], config: CachingConfig) -> tuple[int, ...]:
    sizes = sorted((segment.size_bytes for segment in segments), reverse=True)
    if config.expandable_segments:
        return (sum(sizes),) if sizes else ()
    return tuple(sizes)


@dataclass(slots=True)
class _Comparison:
    """Mutable: what run and replay have reserved since the last allocation."""

    recorded_bytes: int = 0
    replayed_bytes: int = 0
    num_same: int = 0
    first: ReservedDifference | None = None

    def compare(self, number: int, allocation: RecordedAllocation, grown_bytes: int) -> None:
        # Segments that were released or mapped since the last allocation count to this one: a run
        # releases its cache in order to serve it.
        recorded, replayed = self.recorded_bytes, self.replayed_bytes + grown_bytes
        self.recorded_bytes = self.replayed_bytes = 0
        if recorded == replayed:
            self.num_same += 1
        elif self.first is None:
            self.first = ReservedDifference(number, allocation, recorded, replayed)
