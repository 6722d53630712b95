"""The flags that name models and their dims, and the types of arguments."""

from argparse import ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Callable

from onnxmem.errors import UsageError
from onnxmem.settings import Values, parse_values
from onnxmem.units import parse_size

_MAX_DIGITS = 18
_MOST_SECONDS = 7 * 24 * 3600
"""Of a dim: larger numbers are no size of anything."""


def add_model_options(
    parser: ArgumentParser,
    dim_type: Callable[[str], tuple[str, int | None]] | None = None,
) -> None:
    """Add the models and what is asked of them; ``dim_type`` reads what follows ``--dim``."""
    add_values(add_sized_models(parser, dim_type))


def add_sized_models(
    parser: ArgumentParser,
    dim_type: Callable[[str], tuple[str, int | None]] | None = None,
) -> _ArgumentGroup:
    """Add the models and their sizes alone: what inputs hold is a matter of runtimes."""
    model = parser.add_argument_group("model")
    model.add_argument("models", nargs="+", metavar="MODEL", help="path of an .onnx file")
    model.add_argument("--batch", type=dim, metavar="N", help="samples at once")
    add_dims(model, dim_type)
    add_shapes(model)
    return model


def add_dims(
    parser: ArgumentParser | _ArgumentGroup,
    dim_type: Callable[[str], tuple[str, int | None]] | None = None,
) -> None:
    """Add the numbers of symbolic dims; ``dim_type`` reads each."""
    parser.add_argument(
        "--dim",
        dest="dims",
        type=dim_type or named_dim,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a number for a symbolic dim (repeatable)",
    )


def add_shapes(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add whole shapes of inputs."""
    parser.add_argument(
        "--shape",
        dest="shapes",
        type=named_shape,
        action="append",
        default=[],
        metavar="INPUT:1,3,224,224",
        help="the whole shape of an input (repeatable)",
    )


def add_values(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add what small inputs hold."""
    parser.add_argument(
        "--value",
        dest="values",
        type=named_value,
        action="append",
        default=[],
        metavar="INPUT=16000",
        help="what a small input holds, where shapes or a runtime follow from it (repeatable; "
        "lists with commas)",
    )


def add_context_option(parser: ArgumentParser) -> None:
    """Add the length of a language model's cache."""
    cache = parser.add_argument_group("language models")
    cache.add_argument(
        "--context",
        type=dim,
        metavar="N",
        help="tokens that the cache holds: a decode step after N - 1, and a prefill of N",
    )


def seconds(text: str) -> float:
    """Read a time in seconds, of at most a week."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= _MOST_SECONDS:
        message = f"{text!r} is no time: seconds, above 0 and up to {_MOST_SECONDS:,}"
        raise ArgumentTypeError(message)
    return number


def dim(text: str) -> int:
    """Read a positive number of at most 18 digits."""
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        message = f"{text!r} is no positive number"
        raise ArgumentTypeError(message)
    if len(text) > _MAX_DIGITS:
        message = f"{text!r} is larger than any size"
        raise ArgumentTypeError(message)
    return int(text)


def named_dim(text: str) -> tuple[str, int]:
    """Read ``NAME=N``, split at the last equals sign."""
    name, equals, number = text.rpartition("=")
    if not (name and equals):
        message = f"{text!r} is not NAME=N, as in seq_len=512"
        raise ArgumentTypeError(message)
    return name, dim(number)


def named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Split at the last colon: an input's name may hold others."""
    name, colon, dims = text.rpartition(":")
    if not (name and colon):
        message = f"{text!r} is not INPUT:1,3,224,224"
        raise ArgumentTypeError(message)
    return name, tuple(dim(each.strip()) for each in dims.split(",")) if dims else ()


def named_value(text: str) -> tuple[str, Values]:
    """Read ``INPUT=VALUE``, split at the last equals sign."""
    name, equals, value = text.rpartition("=")
    if not (name and equals):
        message = f"{text!r} is not INPUT=VALUE, as in sr=16000"
        raise ArgumentTypeError(message)
    try:
        return name, parse_values(value)
    except UsageError as fault:
        raise ArgumentTypeError(str(fault)) from None


def size(text: str) -> int:
    """Read a size in bytes."""
    try:
        return parse_size(text)
    except UsageError as fault:
        raise ArgumentTypeError(str(fault)) from None
