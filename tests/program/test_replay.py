"""Replays with an allocator: iterations, workspaces, and the moments at which most is alive."""

import time

from allocator_events import BARE, EXPANDABLE, Event, program_of, replayed
from allocators.test_caching import CONFIGS, events
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from onnxmem.allocators.caching import CachingAllocator, CachingConfig
from onnxmem.program.program import Category, ProgramBuilder
from onnxmem.program.replay import Moment, Replay, Reserved, replay, reserved_by_step
from onnxmem.program.sizes import Sizes
from onnxmem.runtimes.assumed import Assumed
from onnxmem.runtimes.torch.cuda import TorchMemory, TorchRuntime

# A program that runs again and again on PyTorch's allocator, worked by hand; and out of memory.


WEIGHT, ACTIVATION = Category.WEIGHT, Category.ACTIVATION
MIB = 2**20


def test_the_setup_is_allocated_once_and_leftovers_of_an_iteration_are_released() -> None:
    setup = [(0, 11 * MIB)]
    step = [(1, 23 * MIB), (2, 5 * MIB), (1, -23 * MIB)]
    found = replayed(setup, step, BARE, iterations=3)
    assert found == TorchMemory(
        requested_peak_bytes=(11 + 23 + 5) * MIB,
        allocated_bytes=(12 + 24 + 5) * MIB,
        reserved=Reserved((12 + 24 + 20) * MIB, (56 * MIB,) * 2, 0),
        allocated_end_bytes=(12 + 5) * MIB,
        inactive_split_end_bytes=15 * MIB,
        num_segments=3,
        workspaces_bytes=(0, 0, 0),
        context_bytes=0,
    )
    assert found.fragmentation_bytes == 15 * MIB
    assert not found.is_out_of_memory


def test_allocations_of_zero_bytes_are_skipped() -> None:
    found = replayed([(0, 0)], [(1, 0), (2, 3), (1, -1), (0, -1)], BARE)
    assert found.requested_peak_bytes == 3
    assert found.reserved.by_iteration_bytes == (2 * MIB,) * 2


def test_fragmentation_is_reserved_minus_allocated_peak() -> None:
    # The small block's segment comes last, when the large one is free again.
    step = [(1, 23 * MIB), (1, -23 * MIB), (2, MIB // 2)]
    found = replayed([], step, BARE)
    assert (found.reserved_bytes, found.allocated_bytes) == (26 * MIB, 24 * MIB)
    assert found.fragmentation_bytes == 2 * MIB


def test_later_iterations_can_need_more_than_the_first() -> None:
    # First 17 MiB fit above the 3 in a segment of 20, beside one of 18. From the second step on
    # the 3 MiB are cut from the 18 as the better fit, and the 18 take the 20.
    step = [(1, 3 * MIB), (2, 18 * MIB), (3, 17 * MIB)]
    found = replayed([], step, BARE, iterations=4)
    assert found.reserved.by_iteration_bytes == (38 * MIB, 56 * MIB, 56 * MIB, 56 * MIB)
    grown = replayed([], step, EXPANDABLE)
    assert grown.reserved.by_iteration_bytes == (40 * MIB,) * 2


def test_leftovers_of_an_iteration_replace_the_setup_that_it_releases() -> None:
    # Gradients that live through the forward pass: freed before the backward pass makes new ones.
    setup = [(0, 11 * MIB), (1, 23 * MIB), (2, 37 * MIB)]
    step = [(3, 5 * MIB), (1, -1), (2, -1), (4, 37 * MIB), (5, 23 * MIB)]
    found = replayed(setup, step, BARE, iterations=3)
    assert found.requested_peak_bytes == (11 + 23 + 37 + 5) * MIB
    assert found.reserved.by_iteration_bytes == ((12 + 24 + 38 + 20) * MIB,) * 2


class Log:
    """An allocator that records its calls, and whose layout never repeats."""

    reserved_bytes = reserved_peak_bytes = num_retries = 0

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def malloc(self, number: int, size_bytes: int) -> None:
        self.calls.append(("malloc", number, size_bytes))

    def free(self, number: int) -> None:
        self.calls.append(("free", number, 0))

    def rename(self, number: int, new_number: int) -> None:
        self.calls.append(("rename", number, new_number))

    def layout(self) -> object:
        return len(self.calls)


def test_two_iterations_call_the_allocator_in_order() -> None:
    """Setup, workspaces and events; then leftovers and replacements are freed, and events again.

    0 is released and 2, the first of equal size, takes its place; 1 stays and 3 and 4 go.
    """
    setup, step = [(0, 7), (1, 7)], [(0, -1), (2, 7), (3, 7), (4, 11), (5, 13), (5, -1)]
    log = Log()
    replay(*program_of(setup, step), log, iterations=2, workspaces_bytes=(17, 0, 19))
    again = [("free", 0, 0), ("malloc", 2, 7), ("malloc", 3, 7), ("malloc", 4, 11)]
    again += [("malloc", 5, 13), ("free", 5, 0)]
    assert log.calls == [
        *(("malloc", 0, 7), ("malloc", 1, 7), ("malloc", -1, 17), ("malloc", -3, 19)),
        *again,
        *(("free", 3, 0), ("free", 4, 0), ("rename", 2, 0)),
        *again,
    ]


def test_the_first_iteration_makes_what_later_ones_find() -> None:
    """One gradient is kept, one is cloned, one is carried from step to step; the state comes last.

    A gradient that the first iteration did not compute exists from the second one on.
    """
    builder = ProgramBuilder()
    weight = builder.malloc("weight", WEIGHT)
    labels = ("added to", "cloned", "carried", "never computed", "state")
    found = added, cloned, carried, never, state = [builder.malloc(each, WEIGHT) for each in labels]
    builder.begin_without(found)
    builder.end_setup()
    builder.free(carried)
    taken, copied = (builder.malloc(each, ACTIVATION) for each in ("taken", "copied"))
    builder.keep_first(taken)
    builder.free(taken)
    builder.make_first(cloned)
    builder.free(copied)
    left = builder.malloc("left", ACTIVATION)
    builder.make_first(state)
    sizes = Sizes.of([3, 11, 13, 17, 19, 23, 11, 13, 17])
    log = Log()
    replay(builder.program(), sizes, log, iterations=2)
    assert log.calls == [
        *(("malloc", weight, 3), ("malloc", taken, 11), ("malloc", copied, 13)),
        *(("malloc", cloned, 13), ("free", copied, 0), ("malloc", left, 17)),
        *(("malloc", state, 23), ("rename", taken, added), ("rename", left, carried)),
        *(("malloc", never, 19), ("free", carried, 0), ("malloc", taken, 11)),
        *(("malloc", copied, 13), ("free", taken, 0), ("free", copied, 0), ("malloc", left, 17)),
    ]


def test_state_that_does_not_fit_fails_where_the_first_iteration_makes_it() -> None:
    builder = ProgramBuilder()
    state = builder.malloc("state", WEIGHT)
    builder.begin_without([state])
    builder.end_setup()
    builder.free(builder.malloc("a", ACTIVATION))
    builder.make_first(state)
    allocator = CachingAllocator(capacity_bytes=10 * MIB)
    found = replay(builder.program(), Sizes.of([11 * MIB, 7]), allocator)
    assert found.out_of_memory_at == 2


def test_an_allocator_without_a_steady_state_is_replayed_for_all_iterations() -> None:
    for iterations in (1, 5):
        found = replay(*program_of([], [(0, 3)]), Log(), iterations=iterations)
        assert found.reserved is not None
        assert found.reserved.by_iteration_bytes == (0,) * iterations


def test_workspaces_come_from_the_allocator_and_the_context_does_not() -> None:
    settings = TorchRuntime(workspace=Assumed.exactly(31 * MIB), context=Assumed.exactly(401 * MIB))
    found = replayed([], [], settings)
    assert found.cublas_workspace_bytes == 2 * 8_519_680
    assert found.cudnn_workspace_bytes == 31 * MIB
    # cuDNN's is allocated by convolutions, of which there is none.
    assert found.allocated_bytes == 2 * 8_519_680
    assert found.reserved_bytes == 20 * MIB
    assert found.total_bytes == (20 + 401) * MIB


def test_the_event_that_cannot_be_served_is_reported() -> None:
    made = program_of([(0, 23 * MIB)], [(1, 3), (2, 31 * MIB), (1, -1)])
    found = replay(*made, CachingAllocator(capacity_bytes=50 * MIB))
    assert found.out_of_memory_at == 2
    assert found.reserved is not None
    assert found.reserved.is_out_of_memory
    assert found.reserved.by_iteration_bytes == ()
    # 24 and 2 MiB were reserved before.
    assert (found.reserved.peak_bytes, found.reserved.num_retries) == (26 * MIB, 1)


def test_the_setup_workspaces_and_later_iterations_run_out_of_memory_too() -> None:
    def failed(setup: list[Event], step: list[Event], capacity: int, *workspaces: int) -> object:
        allocator = CachingAllocator(capacity_bytes=capacity)
        made = program_of(setup, step)
        found = replay(*made, allocator, iterations=4, workspaces_bytes=workspaces)
        return found.reserved

    assert failed([(0, 61 * MIB)], [], 50 * MIB) == Reserved(0, (), 1, 0)
    assert failed([(0, 3)], [(1, 5)], 50 * MIB, 61 * MIB) == Reserved(2 * MIB, (), 1, 1)
    # 38 MiB are enough for the first iteration, and the second one cuts its 18 MiB up.
    step = [(1, 3 * MIB), (2, 18 * MIB), (3, 17 * MIB)]
    assert failed([], step, 38 * MIB) == Reserved(38 * MIB, (38 * MIB,), 1, 2)


def test_without_an_allocator_a_capacity_is_compared_with_live_bytes() -> None:
    made = program_of([(0, 7)], [(1, 11), (1, -1), (2, 13)])
    assert replay(*made, capacity_bytes=20).out_of_memory_at is None
    assert replay(*made, capacity_bytes=19).out_of_memory_at == 3
    assert replay(*made, capacity_bytes=17).out_of_memory_at == 1


@given(events(most=8), events(first=100), CONFIGS)
@hypothesis_settings(deadline=None)
def test_a_repeated_program_reaches_a_steady_state(
    setup: list[Event], step: list[Event], config: CachingConfig
) -> None:
    """Without a split limit: a segment that was rounded up above it serves no request below it,
    so that each step takes a new one until memory runs out.
    """
    assume(config.max_split_bytes is None)
    found = replayed(setup, step, TorchRuntime(config=config)).reserved
    by_iteration = found.by_iteration_bytes
    assert by_iteration == tuple(sorted(by_iteration))
    assert by_iteration[-2] == by_iteration[-1] == found.peak_bytes


@given(events(most=8), events(first=100), CONFIGS, st.integers(0, 3))
@hypothesis_settings(deadline=None)
def test_reserved_is_at_least_the_live_peak(
    setup: list[Event], step: list[Event], config: CachingConfig, iterations: int
) -> None:
    found = replay(*program_of(setup, step), CachingAllocator(config), iterations=iterations + 1)
    assert found.reserved is not None
    assert found.out_of_memory_at is None
    assert found.reserved.peak_bytes >= found.peak.size_bytes


def test_a_hundred_thousand_events_take_about_a_second() -> None:
    made = [(number, 512 * (number % 4_999 + 1)) for number in range(50_000)]
    freed = [(number, -size_bytes) for number, size_bytes in made]
    start = time.perf_counter()
    for settings in (BARE, EXPANDABLE):
        # Each block is freed a thousand allocations later.
        order = [*made[:1_000]]
        for index in range(49_000):
            order += (freed[index], made[index + 1_000])
        replayed([], order, settings, iterations=1)
    assert time.perf_counter() - start < 10  # twice 99,000 events, on a busy machine


class _Growing:
    """Reserves multiples of 10 bytes and never frees them."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self.reserved_peak_bytes = 0
        self.num_retries = 0
        self._alive: dict[int, int] = {}

    def malloc(self, number: int, size_bytes: int) -> None:
        self._alive[number] = size_bytes
        while self.reserved_bytes < sum(self._alive.values()):
            self.reserved_bytes += 10
        self.reserved_peak_bytes = self.reserved_bytes

    def free(self, number: int) -> None:
        del self._alive[number]

    def rename(self, number: int, new_number: int) -> None:
        self._alive[new_number] = self._alive.pop(number)

    def layout(self) -> object:
        return dict(self._alive)


def test_reserved_bytes_are_recorded_at_each_step_of_the_first_iteration() -> None:
    builder = ProgramBuilder()
    builder.malloc("held", Category.WEIGHT)
    builder.end_setup()
    builder.enter_step("one")
    made = builder.malloc("a", Category.ACTIVATION)
    builder.enter_step("nothing happens here")
    builder.enter_step("two")
    builder.malloc("b", Category.ACTIVATION)
    builder.free(made)
    builder.enter_step("three")
    builder.malloc("c", Category.ACTIVATION)
    builder.enter_step("nor here")
    sizes = Sizes.of([7, 11, 13, 3])
    found = reserved_by_step(builder.program(), sizes, _Growing(), workspaces_bytes=(5,))
    # 7 + 5 are held; 11 more, then 13 more before 11 go; 3 fit into what is reserved.
    assert found == (20, 30, 30, 40, 40, 40)


def test_a_released_setup_without_a_replacement_is_released_once() -> None:
    builder = ProgramBuilder()
    held = builder.malloc("gradient of the step before", Category.GRADIENT)
    builder.end_setup()
    builder.enter_step("one")
    builder.free(held)
    builder.malloc("of another size", Category.ACTIVATION)
    allocator = _Growing()
    found = replay(builder.program(), Sizes.of([7, 11]), allocator, iterations=3)
    assert found.out_of_memory_at is None
    assert allocator.layout() == {1: 11}


# The moment of most bytes in each node's events, by hand and against a walk over all events.


def two_phases() -> Replay:
    """Live bytes: 7 | a 18, 31, 20 | a again 20 + 17 = 37, 24 | nothing | b 7, 30."""
    builder = ProgramBuilder()
    builder.enter_phase("forward")
    builder.malloc("w", WEIGHT)
    builder.end_setup()
    builder.enter_step("a")
    first = builder.malloc("x", ACTIVATION)
    second = builder.malloc("y", ACTIVATION)
    builder.free(first)
    builder.enter_step("a")
    third = builder.malloc("z", ACTIVATION)
    builder.free(second)
    builder.enter_phase("backward")
    builder.enter_phase("optimizer")
    builder.enter_step("b")
    builder.free(third)
    builder.malloc("s", ACTIVATION)
    return Replay(builder.program(), Sizes.of([7, 11, 13, 17, 23]))


def test_moments_include_what_is_alive_when_a_node_begins() -> None:
    assert two_phases().live_bytes.tolist() == [7, 18, 31, 20, 37, 24, 7, 30]
    assert [*two_phases().moments()] == [
        Moment("forward", "", 1),
        Moment("forward", "a", 5),
        Moment("optimizer", "b", 8),
    ]


def test_each_phase_can_begin_with_a_moment_of_its_own() -> None:
    assert [*two_phases().moments(begin_phases=True)] == [
        Moment("forward", "", 1),
        Moment("forward", "a", 5),
        Moment("backward", "", 6),
        Moment("optimizer", "", 6),
        Moment("optimizer", "b", 8),
    ]


def test_bytes_are_summed_by_group_at_each_moment() -> None:
    replay = two_phases()
    assert replay.live_bytes_by_group([0, 1, 1, 1, 2], [0, 1, 5, 8], 4) == [
        [0, 7, 7, 7],
        [0, 0, 30, 0],
        [0, 0, 0, 23],
        [0, 0, 0, 0],
    ]


@st.composite
def replays(draw: st.DrawFn) -> Replay:
    builder, sizes, alive = ProgramBuilder(), [], list[int]()
    for phase in ("forward", "backward"):
        builder.enter_phase(phase)
        if phase == "forward":
            for size in draw(st.lists(st.integers(1, 50), max_size=3)):
                builder.malloc("held", WEIGHT)
                sizes.append(size)
            builder.end_setup()
        for node, is_release, size in draw(
            st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(1, 50)))
        ):
            builder.enter_step(node)
            if is_release and alive:
                builder.free(alive.pop(size % len(alive)))
            else:
                alive.append(builder.malloc(node, ACTIVATION))
                sizes.append(size)
    return Replay(builder.program(), Sizes.of(sizes))


@given(replays())
def test_the_largest_moment_of_a_phase_is_its_peak(replay: Replay) -> None:
    assert replay.peak_bytes == replay.peak.size_bytes
    for begin_phases in (False, True):
        moments = [*replay.moments(begin_phases=begin_phases)]
        for phase, peak in replay.phase_peaks.items():
            inside = [replay.bytes_after(at) for name, _, at in moments if name == phase]
            if inside or begin_phases:
                assert max(inside) == peak.size_bytes
        assert [at for *_, at in moments] == sorted(at for *_, at in moments)


@given(replays())
def test_the_bytes_of_all_groups_add_up_to_the_live_bytes(replay: Replay) -> None:
    num_events = range(len(replay.program.events) + 1)
    groups = [number % 3 for number in range(replay.program.num_allocations)]
    columns = replay.live_bytes_by_group(groups, num_events, 3)
    assert [sum(row) for row in zip(*columns, strict=True)] == [
        replay.bytes_after(number) for number in num_events
    ]
