"""The moment of most bytes in each node's events, by hand and against a walk over all events."""

from hypothesis import given
from hypothesis import strategies as st

from onnxmem.program.program import Category, ProgramBuilder
from onnxmem.program.replay import Moment, Replay
from onnxmem.program.sizes import Sizes

WEIGHT, ACTIVATION = Category.WEIGHT, Category.ACTIVATION


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


def test_what_is_alive_when_a_node_begins_counts() -> None:
    assert two_phases().live_bytes.tolist() == [7, 18, 31, 20, 37, 24, 7, 30]
    assert [*two_phases().moments()] == [
        Moment("forward", "", 1),
        Moment("forward", "a", 5),
        Moment("optimizer", "b", 8),
    ]


def test_or_in_a_first_moment_of_each_phase() -> None:
    assert [*two_phases().moments(begin_phases=True)] == [
        Moment("forward", "", 1),
        Moment("forward", "a", 5),
        Moment("backward", "", 6),
        Moment("optimizer", "", 6),
        Moment("optimizer", "b", 8),
    ]


def test_bytes_by_group_at_moments() -> None:
    replay = two_phases()
    assert replay.held_by([0, 1, 1, 1, 2], [0, 1, 5, 8], 4) == [
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
def test_the_moments_of_a_phase_have_its_peak(replay: Replay) -> None:
    assert replay.peak_bytes == replay.peak.size_bytes
    for begin_phases in (False, True):
        moments = [*replay.moments(begin_phases=begin_phases)]
        for phase, peak in replay.phase_peaks.items():
            inside = [replay.bytes_after(at) for name, _, at in moments if name == phase]
            if inside or begin_phases:
                assert max(inside) == peak.size_bytes
        assert [at for *_, at in moments] == sorted(at for *_, at in moments)


@given(replays())
def test_the_bytes_of_all_groups_are_all_that_is_alive(replay: Replay) -> None:
    num_events = range(len(replay.program.events) + 1)
    groups = [number % 3 for number in range(replay.program.num_allocations)]
    columns = replay.held_by(groups, num_events, 3)
    assert [sum(row) for row in zip(*columns, strict=True)] == [
        replay.bytes_after(number) for number in num_events
    ]
