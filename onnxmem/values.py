"""The values of small inputs as a user gives them: a number for all elements, or one for each."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from onnxmem.errors import UsageError

Values = tuple[int | float | bool, ...]
"""Elements, row-major; a single one stands for all."""
GivenValue = int | float | bool | Sequence[int | float | bool]
"""A scalar or a list, as Python users write it."""

_NUMBER: Final = re.compile(
    r"[+-]?(\d{1,20}|\d{1,20}\.|\d{0,20}\.\d{1,20}|\d{1,20}(\.\d{0,20})?[eE][+-]?\d{1,3})", re.ASCII
)
_TRUTHS: Final = {"true": True, "false": False}


def parse_values(text: str) -> Values:
    """Read ``16000``, ``0.5``, ``true`` or ``1,2,3``.

    :raises UsageError: an element that is none of these.
    """
    return tuple(_parsed(part.strip()) for part in text.split(","))


def _parsed(text: str) -> int | float | bool:
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if not _NUMBER.fullmatch(text):
        message = f"{text!r} is no number, true or false"
        raise UsageError(message)
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def read_values(given: Mapping[str, GivenValue]) -> dict[str, Values]:
    """Every value as a tuple of elements.

    :raises UsageError: a value without elements, or with one that is no number.
    """
    values = {name: _elements(value) for name, value in given.items()}
    check_values(values)
    return values


def check_values(values: Mapping[str, Values]) -> None:
    """Refuse what is no value.

    :raises UsageError: a value without elements, or with one that is no number.
    """
    for name, elements in values.items():
        if not elements or not all(isinstance(element, int | float) for element in elements):
            message = f"the value of {name!r} is no number, true, false or list of them"
            raise UsageError(message)


def _elements(value: GivenValue) -> Values:
    plain = value.tolist() if hasattr(value, "tolist") else value  # of numpy
    if isinstance(plain, int | float):
        return (plain,)
    return tuple(plain) if isinstance(plain, Sequence) else ()
