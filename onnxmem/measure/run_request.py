"""What a child is asked to run; it travels as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxmem.measure.options import Provider, SessionOptions
from onnxmem.values import Values


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
class RunRequest:
    """A model on disk, what it is fed, and how its session is opened."""

    model: str
    feeds: tuple[Feed, ...]
    inputs_npz: str | None
    overrides: Mapping[str, int]
    """Numbers for symbols of the inputs, set when the session is opened."""
    options: SessionOptions
    provider: Provider
    runs: int


def read_request(plain: Mapping[str, Any]) -> RunRequest:
    """Read what ``asdict`` wrote, after its way through JSON."""
    lists = ("shape", "elements")
    feeds = tuple(
        Feed(**{**feed, **{name: tuple(feed[name]) for name in lists}}) for feed in plain["feeds"]
    )
    return RunRequest(**{**plain, "feeds": feeds, "options": SessionOptions(**plain["options"])})
