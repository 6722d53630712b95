"""The dataclasses of the package are those of the standard library, made later."""

import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import KW_ONLY, FrozenInstanceError, field
from functools import cached_property, partial
from typing import Any

import pytest

from onnxmem.dataclass import dataclass

LATE: Any = dataclass
"""The same for a type checker that does not know which of the two makes a class."""
MAKERS = (dataclasses.dataclass, LATE)


@dataclass(frozen=True, slots=True)
class Point:
    """Two numbers; it lies here for pickle."""

    x: int
    y: int = 7


@dataclass(frozen=True, slots=True)
class Named(Point):
    """A subclass with a field."""

    name: str = "origin"


def with_all_kinds(make: Any) -> type[Any]:  # noqa: ANN401 - either decorator
    """A class with a field of each kind."""

    @make(frozen=True, slots=True)
    class Made:
        """A class."""

        first: int
        second: str = "two"
        third: list[int] = field(default_factory=list)
        hidden: int = field(default=3, repr=False, compare=False)
        fixed: tuple[int, ...] = field(default=(5,), init=False)
        counted: dict[str, int] = field(default_factory=dict, init=False, compare=False)
        _: KW_ONLY
        fourth: int
        fifth: float = 11.0

        def __post_init__(self) -> None:
            object.__setattr__(self, "second", self.second.upper())

    return Made


BOTH = tuple(map(with_all_kinds, MAKERS))


def outcome(work: Callable[[], object]) -> object:
    """What a function returns, or the text of its error."""
    try:
        return work()
    except (TypeError, AttributeError) as fault:
        return f"{type(fault).__name__} {fault}"


@pytest.mark.parametrize(
    "work",
    [
        lambda made: repr(made(1, fourth=4)),
        lambda made: repr(made(1, "b", [2], 9, fourth=4, fifth=5.0)),
        lambda made: dataclasses.asdict(made(1, fourth=4)),
        lambda made: dataclasses.astuple(dataclasses.replace(made(1, fourth=4), first=13)),
        lambda made: [each.name for each in dataclasses.fields(made)],
        lambda made: made(1, fourth=4) == made(1, hidden=17, fourth=4),
        lambda made: made(1, fourth=4) != made(1, fourth=5),
        lambda made: made(1, fourth=4) == (1, "TWO"),
        lambda made: made(),
        lambda made: made(1),
        lambda made: made(1, 2, 3, 4, 5),
        lambda made: made(1, fourth=4, sixth=6),
        lambda made: setattr(made(1, fourth=4), "first", 2),
        lambda made: delattr(made(1, fourth=4), "first"),
        lambda made: made.__match_args__,
        lambda made: made.__slots__,
        lambda made: made.__doc__,
        lambda made: made.__init__.__qualname__.replace("<locals>", ""),
        lambda made: [(p.name, p.kind) for p in inspect.signature(made).parameters.values()],
        lambda made: typing.get_type_hints(made.__init__),
        lambda made: hash(made(1, fourth=4)),
    ],
)
def test_a_class_does_what_one_of_the_standard_library_does(
    work: Callable[[type[Any]], object],
) -> None:
    expected, found = (outcome(partial(work, made)) for made in BOTH)
    assert found == expected


@pytest.mark.parametrize("make", MAKERS)
def test_each_object_has_its_own_default(make: Any) -> None:  # noqa: ANN401 - either decorator
    made = with_all_kinds(make)
    one, other = made(1, fourth=4), made(1, fourth=4)
    one.third.append(1)
    assert (other.third, one.third is other.third) == ([], False)


def test_the_hash_is_that_of_the_values_so_that_sets_keep_their_order() -> None:
    twin = dataclasses.make_dataclass("Twin", [("x", int), ("y", int)], frozen=True)
    assert hash(Point(3)) == hash(twin(3, 7)) == hash((3, 7))


def test_copies_and_pickles_of_a_frozen_object_are_equal_to_it() -> None:
    point = Named(3, name="far")
    assert copy(point) == deepcopy(point) == pickle.loads(pickle.dumps(point)) == point  # noqa: S301
    assert Named(3) != Point(3)


def test_the_constructor_is_written_once_it_is_looked_at() -> None:
    @dataclass(slots=True)
    class Late:
        number: int

    assert not inspect.isfunction(vars(Late)["__init__"])
    assert Late(2).number == 2
    assert inspect.isfunction(vars(Late)["__init__"])
    with pytest.raises(TypeError, match="unhashable"):
        hash(Late(2))


def test_own_methods_stay() -> None:
    @dataclass(frozen=True)
    class Own:  # noqa: PLW1641 - the decorator adds __hash__
        number: int

        @cached_property
        def double(self) -> int:
            return 2 * self.number

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __repr__(self) -> str:
            return "own"

    own = Own(3)
    assert (own, repr(own), own.double, hash(own)) == (Own(5), "own", 6, hash((3,)))
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'number'"):
        setattr(own, "number", 5)  # noqa: B010 - a type checker refuses it too


def test_objects_are_compared_by_identity_where_a_class_says_so() -> None:
    @dataclass(frozen=True, eq=False, repr=False)
    class Single:
        number: int

    one = Single(1)
    assert one != Single(1)
    assert hash(one) == object.__hash__(one)
    assert repr(one).startswith("<")
