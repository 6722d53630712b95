"""Programs, sizes and replays: by hand with distinct primes, and against sums over what is alive.

The brute force is ``oracle.py``'s: it walks the events from the first one for every question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.allocators.packed import pack
from onnxmem.program.program import Allocation, Category, Program, ProgramBuilder
from onnxmem.program.replay import OutOfMemoryError, Peak
from onnxmem.program.replay import replay as replayed
from onnxmem.program.sizes import Affine, Derived, Sizes

CATEGORIES = (Category.WEIGHT, Category.ACTIVATION, Category.TEMPORARY)
SIZES_BYTES = st.integers(0, 97)


@dataclass
class Drawn:
    """A program, and sizes for its allocations."""

    program: Program
    sizes: list[int]


@st.composite
def programs(draw: st.DrawFn, *, phases: bool = False) -> Drawn:
    """Steps of allocations and releases in any order, after a setup, in up to three phases."""
    builder, alive = ProgramBuilder(), list[int]()

    def step(*, may_free: bool = True) -> None:
        for _ in range(draw(st.integers(0, 4))):
            if alive and may_free and draw(st.booleans()):
                builder.free(alive.pop(draw(st.integers(0, len(alive) - 1))))
            else:
                label = f"t{len(builder.labels)}"
                alive.append(builder.malloc(label, draw(st.sampled_from(CATEGORIES))))

    step(may_free=False)
    builder.end_setup()
    for phase in ("forward", "backward", "optimizer") if phases else ("",):
        if phase:
            builder.enter_phase(phase)
        for number in range(draw(st.integers(0, 4))):
            builder.enter_step(f"{phase}{number}")
            step()
    program = builder.program()
    num = program.num_allocations
    return Drawn(program, draw(st.lists(SIZES_BYTES, min_size=num, max_size=num)))


def by_hand() -> ProgramBuilder:
    """The program of the module's docstring, with a scratch buffer within the second step."""
    builder = ProgramBuilder()
    weight = builder.malloc("conv.w", Category.WEIGHT)
    builder.end_setup()
    builder.enter_phase("forward")
    builder.enter_step("conv")
    out = builder.malloc("conv_out", Category.ACTIVATION, ("conv_out", "relu_out"))
    builder.enter_phase("backward")
    builder.enter_step("conv")
    gradient = builder.malloc("grad of conv_out", Category.ACTIVATION_GRADIENT)
    scratch = builder.malloc("scratch", Category.TEMPORARY)
    builder.free(scratch)
    builder.free(out)
    builder.enter_step("relu")
    builder.free(gradient)
    assert weight == 0
    return builder


HAND_SIZES = Sizes.of([101, 13, 17, 5])


# By hand


def test_a_program_is_stored_in_columns() -> None:
    program = by_hand().program()
    assert program.events.tolist() == [0, 1, 2, 3, ~3, ~1, ~2]
    assert program.steps == ("", "", "conv", "", "conv", "relu")
    assert program.event_steps.tolist() == [0, 2, 4, 4, 4, 4, 5]
    assert [program.node_at(event) for event in (0, 1, 6)] == ["", "conv", "relu"]
    assert [program.phase_at(event) for event in (0, 1, 2)] == ["", "forward", "backward"]
    assert program.tensors_of(1) == ("conv_out", "relu_out")
    assert program.tensors_of(2) == ("grad of conv_out",)
    assert program.num_setup_events == 1


def test_the_peak_has_its_live_allocations() -> None:
    found = replayed(by_hand().program(), HAND_SIZES)
    assert found.live_bytes.tolist() == [101, 114, 131, 136, 131, 118, 101]
    assert found.peak == Peak(101 + 13 + 17 + 5, 4, "conv")
    assert found.live_set(found.peak) == (
        Allocation("conv.w", Category.WEIGHT, 101),
        Allocation("grad of conv_out", Category.ACTIVATION_GRADIENT, 17),
        Allocation("conv_out", Category.ACTIVATION, 13),
        Allocation("scratch", Category.TEMPORARY, 5),
    )
    assert found.live_by_category(found.peak) == {
        Category.WEIGHT: 101,
        Category.ACTIVATION: 13,
        Category.ACTIVATION_GRADIENT: 17,
        Category.TEMPORARY: 5,
    }
    assert found.live_bytes[-1] == 101
    assert [each.size_bytes for each in found.allocations()] == [101, 13, 17, 5]


def test_each_phase_and_each_step_have_a_peak() -> None:
    found = replayed(by_hand().program(), HAND_SIZES)
    assert found.phase_peaks == {
        "forward": Peak(114, 2, "conv", "forward"),
        "backward": Peak(136, 4, "conv", "backward"),
    }
    assert found.step_bytes.tolist() == [101, 101, 114, 114, 136, 118]


def test_a_phase_that_only_releases_peaks_at_its_start() -> None:
    builder = ProgramBuilder()
    builder.enter_phase("forward")
    retained = builder.malloc("a", Category.ACTIVATION)
    builder.enter_phase("backward")
    builder.enter_step("f")
    builder.free(retained)
    found = replayed(builder.program(), Sizes.of([7]))
    assert found.phase_peaks["backward"] == Peak(7, 1, "", "backward")


def test_of_equal_sizes_the_first_allocated_comes_first() -> None:
    builder = ProgramBuilder()
    for label in ("b", "a", "c"):
        builder.malloc(label, Category.ACTIVATION)
    found = replayed(builder.program(), Sizes.of([3, 3, 5]))
    assert [each.label for each in found.live_set(found.peak)] == ["c", "b", "a"]


def test_the_first_of_equal_peaks_counts() -> None:
    builder = ProgramBuilder()
    for node in ("f", "g"):
        builder.enter_step(node)
        builder.free(builder.malloc(node, Category.TEMPORARY))
    assert replayed(builder.program(), Sizes.of([11, 11])).peak == Peak(11, 1, "f")


def test_an_empty_program_takes_no_bytes() -> None:
    found = replayed(ProgramBuilder().program(), Sizes.of([]))
    assert found.peak == Peak(0, 0, "")
    assert (found.bytes_after(0), found.step_bytes.tolist()) == (0, [0])
    assert found.live_set(found.peak) == ()


def test_a_lifetime_ends_with_the_step_that_releases() -> None:
    starts, stops = by_hand().program().lifetimes
    assert list(zip(starts.tolist(), stops.tolist(), strict=True)) == [
        (0, 6),
        (2, 5),
        (4, 6),
        (4, 5),
    ]


def test_relabeling_an_allocation_changes_its_label_and_category() -> None:
    builder = ProgramBuilder()
    number = builder.malloc("a", Category.TEMPORARY)
    builder.relabel(number, "gradient of w", Category.GRADIENT)
    found = replayed(builder.program(), Sizes.of([3]))
    assert found.allocation(number) == Allocation("gradient of w", Category.GRADIENT, 3)


def test_a_program_from_steps_equals_the_one_of_a_builder() -> None:
    builder = ProgramBuilder()
    builder.enter_step("f")
    a = builder.malloc("a", Category.ACTIVATION)
    b = builder.malloc("b", Category.ACTIVATION, ("b", "v"))
    builder.free(a)
    builder.enter_step("g")
    builder.enter_step("h")
    c = builder.malloc("c", Category.ACTIVATION)
    builder.free(b)
    built = builder.program()
    columns = (["a", "b", "c"], Category.ACTIVATION, np.array([1, 1, 3]), np.array([1, 3, 4]))
    assert Program.of_steps(("f", "g", "h"), *columns, {b: ("b", "v")}) == built
    assert built.alive_after(5) == [c]


def test_programs_are_equal_if_all_columns_are() -> None:
    program = by_hand().program()
    assert program == by_hand().program()
    assert program != "a program"
    events = program.events.copy()
    events[[2, 3]] = events[[3, 2]]
    changes: list[Mapping[str, Any]] = [
        {"labels": ("other", *program.labels[1:])},
        {"categories": (Category.BUFFER, *program.categories[1:])},
        {"events": events},
        {"event_steps": program.event_steps + 1},
        {"steps": (*program.steps, "more")},
        {"phase_starts": {"forward": 1}},
        {"num_setup_events": 2},
        {"tensors": {}},
    ]
    for change in changes:
        assert replace(program, **change) != program, change
    with pytest.raises(TypeError, match="unhashable"):
        hash(program)


@pytest.mark.parametrize(
    "sizes", [Sizes.of([1, 2, 3]), Sizes(np.zeros(4, np.int64), np.ones(4, np.int64))]
)
def test_sizes_describe_the_program_at_one_number(sizes: Sizes) -> None:
    with pytest.raises(ValueError, match="sizes at one number for 4 allocations"):
        replayed(by_hand().program(), sizes)


# Against the oracle


@given(programs())
def test_live_bytes_and_peak_agree_with_the_oracle(drawn: Drawn) -> None:
    program, found = drawn.program, replayed(drawn.program, Sizes.of(drawn.sizes))
    live = oracle.live_after_events(program.events.tolist(), drawn.sizes)
    assert found.live_bytes.tolist() == live
    assert found.peak_bytes == found.peak.size_bytes == max([0, *live])
    assert found.bytes_after(len(drawn.program.events)) == [0, *live][-1]
    at = found.peak.num_events
    assert [0, *live][at] == found.peak.size_bytes
    assert max([0, *live][program.num_setup_events : at], default=-1) < found.peak.size_bytes


@given(programs())
def test_the_live_set_sums_to_the_peak(drawn: Drawn) -> None:
    program, found = drawn.program, replayed(drawn.program, Sizes.of(drawn.sizes))
    alive = oracle.alive(program.events.tolist(), found.peak.num_events)
    assert program.alive_after(found.peak.num_events) == alive
    live_set = found.live_set(found.peak)
    assert sum(each.size_bytes for each in live_set) == found.peak.size_bytes
    assert [each.size_bytes for each in live_set] == sorted(
        (drawn.sizes[number] for number in alive), reverse=True
    )
    assert {each.label for each in live_set} == {program.labels[number] for number in alive}
    by_category = found.live_by_category(found.peak)
    assert sum(by_category.values()) == found.peak.size_bytes
    assert 0 not in by_category.values()


@given(programs(phases=True))
def test_the_peak_of_a_phase_includes_its_start(drawn: Drawn) -> None:
    program, found = drawn.program, replayed(drawn.program, Sizes.of(drawn.sizes))
    live = [0, *oracle.live_after_events(program.events.tolist(), drawn.sizes)]
    starts = [*program.phase_starts.values(), len(program.events)]
    assert list(found.phase_peaks) == ["forward", "backward", "optimizer"]
    for index, (phase, peak) in enumerate(found.phase_peaks.items()):
        assert peak.phase == phase
        assert peak.size_bytes == max(live[starts[index] : starts[index + 1] + 1])
        assert live[peak.num_events] == peak.size_bytes
        assert peak.node == "" or peak.node.startswith(phase)
    most = max(peak.size_bytes for peak in found.phase_peaks.values())
    assert found.peak.size_bytes == most


@given(programs())
def test_the_peak_of_a_step_is_the_most_live_bytes_in_it(drawn: Drawn) -> None:
    program, found = drawn.program, replayed(drawn.program, Sizes.of(drawn.sizes))
    live = [0, *oracle.live_after_events(program.events.tolist(), drawn.sizes)]
    steps = program.event_steps.tolist()
    expected = []
    for step in range(len(program.steps)):
        before = sum(each < step for each in steps)
        expected.append(max(live[before : before + steps.count(step) + 1]))
    assert found.step_bytes.tolist() == expected


@given(programs())
def test_lifetimes_are_the_steps_in_which_an_allocation_is_alive(drawn: Drawn) -> None:
    program = drawn.program
    events, steps = program.events.tolist(), program.event_steps.tolist()
    starts, stops = program.lifetimes
    for number in range(program.num_allocations):
        released = [steps[at] + 1 for at, event in enumerate(events) if event == ~number]
        assert starts[number] == steps[events.index(number)]
        assert stops[number] == (released or [len(program.steps)])[0]


@given(programs(), st.integers(2**61, 2**70))
def test_sizes_beyond_64_bits_are_exact(drawn: Drawn, factor: int) -> None:
    small = replayed(drawn.program, Sizes.of(drawn.sizes))
    large = replayed(drawn.program, Sizes.of([factor * size for size in drawn.sizes]))
    assert large.peak.size_bytes == factor * small.peak.size_bytes
    assert large.peak.num_events == small.peak.num_events
    assert large.live_bytes.tolist() == [factor * each for each in small.live_bytes.tolist()]
    assert large.step_bytes.tolist() == [factor * each for each in small.step_bytes.tolist()]


@given(programs(), st.data())
def test_an_unknown_size_counts_zero_and_is_marked_unknown(
    drawn: Drawn, data: st.DataObject
) -> None:
    is_known = [data.draw(st.booleans()) for _ in drawn.sizes]
    pairs = list(zip(drawn.sizes, is_known, strict=True))
    sizes = Sizes.of([size if known else None for size, known in pairs])
    found = replayed(drawn.program, sizes)
    without = replayed(drawn.program, Sizes.of([size if known else 0 for size, known in pairs]))
    assert found.live_bytes.tolist() == without.live_bytes.tolist()
    assert found.peak == without.peak
    assert sizes.is_complete == all(is_known)
    assert sizes.known is None or sizes.known.tolist() == is_known


@given(programs(), st.integers(0, 300))
def test_memory_runs_out_at_the_first_event_above_the_capacity(drawn: Drawn, capacity: int) -> None:
    program = drawn.program
    found = replayed(program, Sizes.of(drawn.sizes), capacity_bytes=capacity)
    live = oracle.live_after_events(program.events.tolist(), drawn.sizes)
    above = [at for at, size in enumerate(live) if size > capacity]
    assert found.out_of_memory_at == (above[0] if above else None)


# Allocators


@dataclass
class Scripted:
    """An allocator that records its events, up to a limit."""

    limit: int = 2**62
    served: dict[int, int] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    reserved_peak_bytes: int = 0
    num_retries: int = 0

    @property
    def reserved_bytes(self) -> int:
        return sum(self.served.values())

    def malloc(self, number: int, size_bytes: int) -> None:
        if self.reserved_bytes + size_bytes > self.limit:
            raise OutOfMemoryError
        self.served[number] = size_bytes
        self.seen.append(number)
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)

    def free(self, number: int) -> None:
        del self.served[number]
        self.seen.append(~number)

    def rename(self, number: int, new_number: int) -> None:
        self.served[new_number] = self.served.pop(number)

    def layout(self) -> object:
        return dict(self.served)


@given(programs(phases=True), st.data())
def test_temporaries_are_alive_at_their_event_alone(drawn: Drawn, data: st.DataObject) -> None:
    """All else stays what it was, in its step and in its phase."""
    program, setup = drawn.program, drawn.program.num_setup_events
    events = st.integers(max(setup, 1), max(len(program.events), 1))
    at = sorted(data.draw(st.lists(events, max_size=4))) if len(program.events) else []
    bytes_of = data.draw(st.lists(SIZES_BYTES, min_size=len(at), max_size=len(at)))
    found = program.with_temporaries([f"temporary {event}" for event in at], at)
    sizes = Sizes.of([*drawn.sizes, *bytes_of])
    live = [0, *replayed(program, Sizes.of(drawn.sizes)).live_bytes.tolist()]
    with_all = replayed(found, sizes).live_bytes.tolist()
    for index, (event, size_bytes) in enumerate(zip(at, bytes_of, strict=True)):
        made = event + 2 * index
        assert found.events[made] == program.num_allocations + index == ~found.events[made + 1]
        assert with_all[made : made + 2] == [live[event] + size_bytes, live[event]]
        assert found.node_at(made) == found.node_at(made + 1) == program.node_at(event - 1)
        assert found.phase_at(made) == found.phase_at(made - 1)
    kept = [
        event
        for event in found.events.tolist()
        if event < program.num_allocations and ~event < program.num_allocations
    ]
    assert kept == program.events.tolist()
    assert found.num_setup_events == setup


@given(programs(phases=True), st.integers(0, 300))
def test_an_allocator_receives_every_event_with_bytes(drawn: Drawn, limit: int) -> None:
    program, sizes = drawn.program, drawn.sizes
    allocator = Scripted(limit)
    found = replayed(program, Sizes.of(sizes), allocator)
    ideal = replayed(program, Sizes.of(sizes), capacity_bytes=limit)
    assert found.out_of_memory_at == ideal.out_of_memory_at
    events = program.events.tolist()[: found.out_of_memory_at]
    assert allocator.seen == [each for each in events if sizes[max(each, ~each)]]
    assert found.reserved is not None
    assert found.reserved.peak_bytes == max(
        [0, *oracle.live_after_events(events, sizes)],
    )
    assert found.reserved.num_retries == 0
    assert found.peak == ideal.peak


@given(programs())
def test_a_packed_block_is_at_least_the_live_peak(drawn: Drawn) -> None:
    program, sizes = drawn.program, Sizes.of(drawn.sizes)
    packing = pack(program, sizes)
    found = replayed(program, sizes)
    assert packing.size_bytes >= packing.lower_bound_bytes == found.peak.size_bytes
    assert set(packing.offsets) == {n for n, size in enumerate(drawn.sizes) if size}
    # Byte by byte: whatever is alive after an event owns its addresses alone.
    for at in range(len(program.events)):
        alive = [n for n in oracle.alive(program.events.tolist(), at + 1) if drawn.sizes[n]]
        owned = [
            address
            for n in alive
            for address in range(packing.offsets[n], packing.offsets[n] + drawn.sizes[n])
        ]
        assert len(owned) == len(set(owned))
        assert max(owned, default=-1) < packing.size_bytes


# Sizes that grow

POINTS = st.lists(st.integers(1, 50), min_size=2, max_size=4, unique=True).map(sorted)


def sizes_at(lines: Sequence[tuple[int, int]], number: int) -> Sizes:
    return Sizes.of([fixed + slope * number for fixed, slope in lines])


@given(st.lists(st.tuples(SIZES_BYTES, SIZES_BYTES)), POINTS, st.integers(1, 2**40))
def test_affine_sizes_are_exact_at_every_number(
    lines: list[tuple[int, int]], numbers: list[int], other: int
) -> None:
    found = Sizes.through([(number, sizes_at(lines, number)) for number in numbers])
    assert found is not None
    assert len(found) == len(lines)
    assert found.at(other).fixed_bytes.tolist() == [a + b * other for a, b in lines]
    assert found.is_valid_at(other) == (numbers[0] <= other <= numbers[-1])


def test_sizes_of_hostile_files_grow_exactly() -> None:
    line = (2**61, 2**60 + 3)
    found = Sizes.through([(1, sizes_at([line], 1)), (3, sizes_at([line], 3))])
    assert found is not None
    assert found.at(10**6).fixed_bytes.tolist() == [2**61 + (2**60 + 3) * 10**6]


@pytest.mark.parametrize(
    "points",
    [
        [(1, [7]), (4, [9])],  # 2/3 of a byte
        [(1, [7]), (2, [9]), (3, [13])],  # the second is not on the line of the others
        [(1, [9]), (2, [7])],  # falls
        [(2, [3]), (3, [7])],  # begins below 0
        [(1, [None]), (2, [7])],
        [(1, [7]), (2, [None])],
    ],
)
def test_sizes_that_are_not_affine_are_rejected(points: list[tuple[int, list[int | None]]]) -> None:
    assert Sizes.through([(number, Sizes.of(sizes)) for number, sizes in points]) is None


CURVES = st.lists(st.tuples(SIZES_BYTES, SIZES_BYTES, SIZES_BYTES))


def squares_at(curves: Sequence[tuple[int, int, int]], number: int) -> Sizes:
    return Sizes.of([a + b * number + c * number**2 for a, b, c in curves])


@given(
    CURVES,
    st.lists(st.integers(1, 500), min_size=4, max_size=6, unique=True).map(sorted),
    st.integers(1, 2**30),
)
def test_sizes_with_squares_are_exact_at_every_number(
    curves: list[tuple[int, int, int]], numbers: list[int], other: int
) -> None:
    found = Sizes.through_squares([(number, squares_at(curves, number)) for number in numbers])
    assert found is not None
    assert found.at(other).fixed_bytes.tolist() == squares_at(curves, other).fixed_bytes.tolist()
    assert found.is_valid_at(other) == (numbers[0] <= other <= numbers[-1])


@pytest.mark.parametrize(
    "sizes",
    [
        [1, 8, 27, 64],  # cubes
        [1, 4, 9],  # three points lie on a square whatever they are
        [1, 3, 6, 10],  # half a square and half a line
        [16, 9, 4, 1],  # falls
        [None, 4, 9, 16],
    ],
)
def test_sizes_that_are_no_squares_are_rejected(sizes: list[int | None]) -> None:
    points = [(number, Sizes.of([each])) for number, each in enumerate(sizes, 1)]
    assert Sizes.through_squares(points) is None


@dataclass(frozen=True)
class Squared:
    """A rule that is no line."""

    factor: int

    def size_bytes(self, count: int) -> int:
        return self.factor * count**2


def derived_at(number: int, factor: int = 3) -> Sizes:
    """One size that is a line, and one that follows from 5 x number + 7."""
    return Sizes.of([11 * number]).with_derived([Derived(1, 5 * number + 7, Squared(factor))])


def test_a_size_that_follows_from_a_count_is_known_at_every_number() -> None:
    assert derived_at(2).fixed_bytes.tolist() == [22, 3 * 17**2]
    found = Sizes.through([(number, derived_at(number)) for number in (2, 3, 7)])
    assert found is not None
    assert found.at(41) == derived_at(41)
    assert found.at(41) != derived_at(41, 5)


@pytest.mark.parametrize(
    "last",
    [
        derived_at(7, 5),
        Sizes.of([77, 0]),
        Sizes.of([77]).with_derived([Derived(1, 43, Squared(3))]),
    ],
)
def test_sizes_that_follow_from_other_counts_or_rules_are_no_lines(last: Sizes) -> None:
    assert Sizes.through([(2, derived_at(2)), (3, derived_at(3)), (7, last)]) is None


def test_sizes_at_one_number_are_those_at_every_one() -> None:
    assert HAND_SIZES.at(19) is HAND_SIZES
    assert HAND_SIZES.is_valid_at(19)
    assert [HAND_SIZES.bytes_of(number) for number in range(4)] == [101, 13, 17, 5]
    assert HAND_SIZES.is_complete


def test_one_program_with_many_sizes_gives_a_batch_curve() -> None:
    program = by_hand().program()
    lines = [(101, 0), (0, 13), (0, 17), (5, 2)]
    grown = Sizes.through([(n, sizes_at(lines, n)) for n in (1, 7)])
    assert grown is not None
    for batch in (1, 2, 7):
        assert replayed(program, grown.at(batch)).peak.size_bytes == 101 + 5 + (13 + 17 + 2) * batch


@given(st.integers(-99, 99), st.integers(-9, 9), POINTS, st.integers(-50, 99))
def test_an_affine_figure_is_recognized(
    fixed: int, slope: int, numbers: list[int], other: int
) -> None:
    found = Affine.through([(number, fixed + slope * number) for number in numbers])
    assert found == Affine(fixed, slope, numbers[0], numbers[-1])
    assert found.at(other) == fixed + slope * other


def test_a_figure_that_is_not_affine_is_not_recognized() -> None:
    assert Affine.through([(1, 7), (3, 10)]) is None
    assert Affine.through([(1, 7), (2, 9), (3, 13)]) is None
    assert Affine.through([(1, 7), (2, 9), (3, 11)]) == Affine(5, 2, 1, 3)


def test_sizes_and_replays_are_equal_if_their_columns_are() -> None:
    builder = ProgramBuilder()
    builder.malloc("a", Category.ACTIVATION)
    builder.malloc("b", Category.ACTIVATION)
    program = builder.program()
    assert Sizes.of([7, 11]) == Sizes.of([7, 11])
    assert Sizes.of([7, 11]) != Sizes.of([7, 13])
    assert Sizes.of([7, 0]) != Sizes.of([7, None])
    assert Sizes.of([7, 11]) != [7, 11]
    affine = [Sizes.through([(1, Sizes.of([7, 11])), (last, Sizes.of([7, 11]))]) for last in (2, 3)]
    assert affine[0] != affine[1]
    assert replayed(program, Sizes.of([7, 11])) == replayed(program, Sizes.of([7, 11]))
    assert replayed(program, Sizes.of([7, 11])) != replayed(program, Sizes.of([7, 13]))
    assert replayed(program, Sizes.of([7, 11])) != program


def test_a_program_without_phases_has_one_unnamed_phase() -> None:
    builder = ProgramBuilder()
    builder.enter_step("one")
    builder.malloc("a", Category.ACTIVATION)
    found = replayed(builder.program(), Sizes.of([7]))
    assert found.program.phase_at(0) == ""
    assert {phase: peak.size_bytes for phase, peak in found.phase_peaks.items()} == {"": 7}


def test_a_builder_rejects_invalid_programs() -> None:
    twice = ProgramBuilder()
    made = twice.malloc("a", Category.ACTIVATION)
    twice.free(made)
    twice.free(made)
    with pytest.raises(ValueError, match="allocation 0 is released twice"):
        twice.program()
    never = ProgramBuilder()
    never.free(3)
    with pytest.raises(ValueError, match="allocation 3 is released and never made"):
        never.program()
    with pytest.raises(ValueError, match="a size is -5 bytes"):
        Sizes.of([7, -5])


def test_a_setup_before_an_empty_first_phase_belongs_to_it() -> None:
    builder = ProgramBuilder()
    builder.enter_phase("a")
    builder.malloc("w", Category.WEIGHT)
    builder.end_setup()
    builder.enter_phase("b")
    builder.malloc("x", Category.ACTIVATION)
    program = builder.program()
    assert dict(program.phase_ranges) == {"a": range(1), "b": range(1, 2)}


def test_a_negative_capacity_is_too_small_for_an_empty_program() -> None:
    found = replayed(ProgramBuilder().program(), Sizes.of([]), capacity_bytes=-1)
    assert found.out_of_memory_at == 0


def test_one_point_determines_no_line() -> None:
    assert Affine.through([(3, 7)]) is None
    assert Sizes.through([(3, Sizes.of([7]))]) is None
