"""What a child runs: the request, which travels as JSON, and the file of its inputs.

``store_inputs`` writes that file in a child of its own, and the processes that run the model map
it: what it takes to make the arrays, such as ``numpy.random`` or unpacking an archive, is in no
process whose memory is measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from onnxmem.children.running import JSON
from onnxmem.runtimes.onnxruntime.session_options import Provider, SessionOptions
from onnxmem.settings import Values

_NOISE_SEED: Final = 0
_FLOATS: Final = ("float16", "float32", "float64", "complex64", "complex128")
_PLACEHOLDERS: Final = {
    "bfloat16": np.uint16,
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), np.uint8),
}
"""Integers whose zeros are those of a float type that numpy lacks."""
_ALIGNED_BYTES: Final = 64
"""Where an array may begin: onnxruntime aligns its own buffers alike."""
_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


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
    """The value of every element where the input is not a float and no file is given."""
    elements: Values = ()
    """Its value where that is given: one element is all of them."""


@dataclass(frozen=True, slots=True)
class StoredInput:
    """One input in the file of inputs, as ``store_inputs`` writes it."""

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


def store_inputs(
    feeds: list[dict[str, Any]], inputs_npz: str | None, path: str
) -> dict[str, Sequence[JSON]]:
    """Write the arrays of the inputs to ``path``: those of the file, or seeded noise.

    Noise is in [0, 1) for floats and whole numbers else. The result has ``inputs``: the offset,
    type and shape of each.
    """
    stored = []
    with Path(path).open("wb") as stream:
        for feed, array in _arrays(read_feeds(feeds), inputs_npz):
            stream.write(bytes(-stream.tell() % _ALIGNED_BYTES))
            offset, elem_type = (
                stream.tell(),
                feed.elem_type if feed.dtype in _PLACEHOLDERS else None,
            )
            array.tofile(stream)
            stored.append(StoredInput(feed.name, array.dtype.str, array.shape, offset, elem_type))
        stream.write(bytes(1))  # nothing cannot be mapped
    return {"inputs": [asdict(each) for each in stored]}


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


def _arrays(feeds: Sequence[Feed], inputs_npz: str | None) -> Iterator[tuple[Feed, _Array]]:
    if inputs_npz is not None:
        with np.load(inputs_npz, allow_pickle=False) as arrays:
            for feed in feeds:
                yield feed, arrays[feed.name]
        return
    noise = np.random.default_rng(_NOISE_SEED)
    for feed in feeds:
        yield feed, _random(feed, noise)


def _random(feed: Feed, noise: np.random.Generator) -> _Array:
    if feed.elements:
        given = np.array(feed.elements, feed.dtype)
        return np.resize(given, feed.shape)
    if feed.dtype == "string":
        return np.full(feed.shape, "a")
    if feed.dtype in _FLOATS:
        return np.asarray(noise.random(feed.shape, np.float32)).astype(feed.dtype)
    if feed.dtype in _PLACEHOLDERS:
        return np.zeros(feed.shape, _PLACEHOLDERS[feed.dtype])
    return np.full(feed.shape, feed.number, feed.dtype)
