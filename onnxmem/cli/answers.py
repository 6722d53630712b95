"""Flags of a model that answer one question twice."""

from argparse import Namespace
from collections.abc import Iterable

from onnxmem.errors import UsageError, shortened


def refuse_two_answers(arguments: Namespace) -> None:
    """A dim or an input that is given twice, each time otherwise, is a slip.

    :raises UsageError: with its name and both answers.
    """
    _refuse("--dim", arguments.dims)
    _refuse("--shape", arguments.shapes)
    _refuse("--value", arguments.values)


def _refuse(flag: str, pairs: Iterable[tuple[str, object]]) -> None:
    given: dict[str, object] = {}
    for name, value in pairs:
        if given.setdefault(name, value) != value:
            message = f"{flag} {shortened(name)} is given twice: {given[name]} and {value}"
            raise UsageError(message)
