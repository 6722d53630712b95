"""Records made by the hundred thousand: frozen to whoever reads the code, plain at run time.

A frozen dataclass sets each field by a call of ``object.__setattr__``, and takes four times as long
to make as a plain one: of a graph of 100,000 nodes half a second. mypy holds writers off as before.
"""

from dataclasses import field, fields, make_dataclass
from typing import TypeVar

_Record = TypeVar("_Record")


def quickly_made(record: type[_Record]) -> type[_Record]:
    """Take the guard of a frozen dataclass away, which is the same class otherwise."""
    named = [
        (each.name, each.type, field(default=each.default, default_factory=each.default_factory))
        for each in fields(record)  # type: ignore[arg-type]
    ]
    plain = vars(make_dataclass(record.__name__, named))
    setattr(record, "__init__", plain["__init__"])  # noqa: B010 - as a method mypy refuses it
    del record.__setattr__, record.__delattr__
    return record
