"""Dataclasses whose constructor is written when it is first needed.

``dataclasses.dataclass`` writes up to six methods of a class as text and compiles each: half a
millisecond for a frozen class. A report of a small model imports more than a hundred of them, which
took a sixth of its time, and creates objects of half of them. Here a class is made in a twentieth
of that: its constructor is written and compiled at the first look at it, and the other methods are
closures over the names of the fields, as fast as compiled ones.

All else is that of ``dataclasses``: ``fields``, ``replace``, ``asdict`` and ``field`` work with
these classes. Only ``order``, ``InitVar`` and ``field(hash=...)`` are missing.
"""

import dataclasses
from collections.abc import Callable, Hashable
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, Final, TypeVar, cast, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type)
_Key = Callable[[object], Hashable]
_Method = Callable[..., object]
_MISSING: Final = dataclasses.MISSING


@overload
def dataclass(described: _Class, /) -> _Class: ...


@overload
def dataclass(
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
    repr: bool = True,
    unsafe_hash: bool = False,
) -> Callable[[_Class], _Class]: ...


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(described: type | None = None, /, **options: bool) -> type | Callable[[type], type]:
    """Make a dataclass; options are those of ``dataclasses.dataclass``."""
    if described is not None:
        return _made(described)
    return lambda described: _made(described, **options)


def _made(described: type, *, slots: bool = False, kw_only: bool = False, **options: bool) -> type:
    own = {name for name, value in vars(described).items() if value is not None}
    # Without methods it makes the fields and the slots, and compiles nothing.
    make = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
    made: type = make(described)
    is_frozen = options.get("frozen", False)
    methods: dict[str, object] = {"__init__": _Constructor(made, is_frozen=is_frozen)}
    if options.get("repr", True):
        methods["__repr__"] = _repr_of(made)
    if options.get("eq", True):
        methods |= _comparison(made, is_hashed=is_frozen or options.get("unsafe_hash", False))
    if is_frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name in methods.keys() - own:
        setattr(made, name, methods[name])
    return made


class _Constructor:
    """``__init__`` of a class until somebody looks at it, which writes it.

    A call is a look, and so is a signature in a help text.
    """

    def __init__(self, made: type, *, is_frozen: bool) -> None:
        self._made, self._is_frozen = made, is_frozen

    def __get__(self, instance: object | None, _: type | None = None) -> _Method:
        written = _written(self._made, is_frozen=self._is_frozen)
        setattr(self._made, "__init__", written)  # noqa: B010 - types know it already
        return written if instance is None else cast("_Method", written.__get__(instance))


def _written(made: type, *, is_frozen: bool) -> Any:  # noqa: ANN401 - a function of any signature
    """The constructor: it assigns each field, and then calls ``__post_init__``."""
    fields = dataclasses.fields(made)
    # Names that no field has: text that is compiled holds nothing of a file or of a user.
    scope: dict[str, object] = {"_set_": object.__setattr__, "_missing_": _MISSING}
    positional, by_name, lines = ["self"], ["*"], []
    for number, each in enumerate(fields):
        parameter = value = each.name
        if each.default is not _MISSING:
            scope[f"_default_{number}"] = each.default
            parameter = f"{each.name}=_default_{number}"
            value = value if each.init else f"_default_{number}"
        elif each.default_factory is not _MISSING:
            scope[f"_factory_{number}"] = each.default_factory
            parameter, new = f"{each.name}=_missing_", f"_factory_{number}()"
            value = f"{new} if {each.name} is _missing_ else {each.name}" if each.init else new
        elif not each.init:
            continue
        if each.init:
            (by_name if each.kw_only else positional).append(parameter)
        to = "_set_(self, {!r}, {})" if is_frozen else "self.{} = {}"
        lines.append(to.format(each.name, value))
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(by_name if len(by_name) > 1 else ())])
    exec(f"def __init__({parameters}):\n  " + "\n  ".join(lines or ["pass"]), scope)  # noqa: S102
    written: Any = scope["__init__"]
    written.__qualname__, written.__module__ = f"{made.__qualname__}.__init__", made.__module__
    written.__annotations__ = {each.name: each.type for each in fields if each.init}
    written.__annotations__["return"] = None
    return written


def _comparison(made: type, *, is_hashed: bool) -> dict[str, object]:
    key = _key_of([each.name for each in dataclasses.fields(made) if each.compare])

    def __eq__(self: object, other: object) -> bool:  # noqa: N807 - a method
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807 - a method
        return hash(key(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if is_hashed else None}


def _key_of(names: list[str]) -> _Key:
    """A function that returns the values as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple([getattr(record, name) for name in names])


def _repr_of(made: type) -> Callable[[object], str]:
    names = [each.name for each in dataclasses.fields(made) if each.repr]

    @recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807 - a method
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return __repr__


def _refuse_to_set(_: object, name: str, __: object) -> None:
    message = f"cannot assign to field {name!r}"
    raise dataclasses.FrozenInstanceError(message)


def _refuse_to_delete(_: object, name: str) -> None:
    message = f"cannot delete field {name!r}"
    raise dataclasses.FrozenInstanceError(message)


def _state(self: Any) -> list[object]:  # noqa: ANN401 - any dataclass
    """What a copy or another process gets of an object with slots that refuses assignments."""
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:  # noqa: ANN401 - any dataclass
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
