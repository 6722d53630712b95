"""What a child is asked to run; it travels as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxmem.runtimes.onnxruntime.session_options import Provider, SessionOptions
from onnxmem.settings import Values


@dataclass(frozen=True, slots=True)
class Feed:
    """One input of the graph."""

    name: str
    dtype: str
    """As ``DType`` and numpy name it."""
    elem_type: int
    """As ``TensorProto.DataType`` numbers it."""
    shape: tuple[int, ...]
    number: int
    """What fills it, where it is no float and no file of inputs is given."""
    elements: Values = ()
    """Its value where that is given: one element is all of them."""


@dataclass(frozen=True, slots=True)
class StoredInput:
    """One input in the file of inputs, as ``storing.store_inputs`` writes it."""

    name: str
    dtype: str
    """As ``numpy.dtype.str`` names it."""
    shape: tuple[int, ...]
    offset: int
    """Where its first byte lies in the file."""
    elem_type: int | None = None
    """As ``TensorProto.DataType`` numbers it, of a float type that numpy lacks."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A model on disk, what it is fed, and how its session is opened."""

    model: str
    inputs_file: str
    """Holds the bytes of all inputs, one after another."""
    inputs: tuple[StoredInput, ...]
    overrides: Mapping[str, int]
    """Numbers for symbols of the inputs, set when the session is opened."""
    options: SessionOptions
    provider: Provider
    runs: int


def read_feeds(plain: list[dict[str, Any]]) -> tuple[Feed, ...]:
    """Read feeds that ``asdict`` wrote, after their way through JSON."""
    lists = ("shape", "elements")
    return tuple(Feed(**{**feed, **{name: tuple(feed[name]) for name in lists}}) for feed in plain)


def read_inputs(plain: list[dict[str, Any]]) -> tuple[StoredInput, ...]:
    """Read stored inputs that ``asdict`` wrote, after their way through JSON."""
    return tuple(StoredInput(**{**each, "shape": tuple(each["shape"])}) for each in plain)


def read_request(plain: Mapping[str, Any]) -> RunRequest:
    """Read what ``asdict`` wrote, after its way through JSON."""
    inputs = read_inputs(plain["inputs"])
    options = SessionOptions(**plain["options"])
    return RunRequest(**{**plain, "inputs": inputs, "options": options})
