"""The request that a child runs, passed as JSON, and the file of its inputs.

``store_inputs`` writes that file in a child of its own, and the processes that run the model map
it. So the memory needed to create the arrays, for ``numpy.random`` or to unpack an archive, is in
none of the measured processes.
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
"""Float types that numpy lacks -> integers of the same width, whose zeros have the same bits."""
_BINARY: Final = 2
"""The spread of integers that are 0 or 1."""
_ALIGNED_BYTES: Final = 64
"""Arrays start at multiples of it, like onnxruntime's own buffers."""
_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


@dataclass(frozen=True, slots=True)
class Feed:
    """One input of the graph."""

    name: str
    dtype: str
    """The name in ``DType`` and numpy."""
    elem_type: int
    """The number in ``TensorProto.DataType``."""
    shape: tuple[int, ...]
    number: int
    """The value of every element, unless the input is a float or a file has it."""
    elements: Values = ()
    """The values set by the caller, repeated to the shape; empty: none."""


@dataclass(frozen=True, slots=True)
class StoredInput:
    """One input in the file written by ``store_inputs``."""

    name: str
    dtype: str
    """``numpy.dtype.str``."""
    shape: tuple[int, ...]
    offset: int
    """Of its first byte in the file."""
    elem_type: int | None = None
    """The number in ``TensorProto.DataType`` of a float type that numpy lacks."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A model on disk, its inputs and the configuration of its session."""

    model: str
    inputs_file: str
    """The bytes of all inputs, one after another."""
    inputs: tuple[StoredInput, ...]
    overrides: Mapping[str, int]
    """Free-dimension overrides: numbers for symbols of the inputs."""
    options: SessionOptions
    provider: Provider
    runs: int


def store_inputs(
    feeds: list[dict[str, Any]],
    inputs_npz: str | None,
    path: str,
    seed: int = _NOISE_SEED,
    spread: int = 0,
) -> dict[str, Sequence[JSON]]:
    """Write the arrays of the inputs to ``path``: those of the file, else random ones.

    Random floats are in [0, 1), all else is equal; with a ``spread``, floats are in [-2, 2) and
    integers below it, and their level is drawn too. The result has ``inputs``: the offset, type and
    shape of each.
    """
    stored = []
    with Path(path).open("wb") as stream:
        for feed, array in _arrays(read_feeds(feeds), inputs_npz, seed, spread):
            # Arrays are mapped where they lie, so each begins aligned.
            stream.write(bytes(-stream.tell() % _ALIGNED_BYTES))
            offset, elem_type = (
                stream.tell(),
                feed.elem_type if feed.dtype in _PLACEHOLDERS else None,
            )
            array.tofile(stream)
            stored.append(StoredInput(feed.name, array.dtype.str, array.shape, offset, elem_type))
        stream.write(bytes(1))  # an empty file cannot be mapped
    return {"inputs": [asdict(each) for each in stored]}


def read_feeds(plain: list[dict[str, Any]]) -> tuple[Feed, ...]:
    """Read feeds that were passed as JSON."""
    lists = ("shape", "elements")
    return tuple(Feed(**{**feed, **{name: tuple(feed[name]) for name in lists}}) for feed in plain)


def read_inputs(plain: list[dict[str, Any]]) -> tuple[StoredInput, ...]:
    """Read stored inputs that were passed as JSON."""
    return tuple(StoredInput(**{**each, "shape": tuple(each["shape"])}) for each in plain)


def read_request(plain: Mapping[str, Any]) -> RunRequest:
    """Read a request that was passed as JSON."""
    inputs = read_inputs(plain["inputs"])
    options = SessionOptions(**plain["options"])
    return RunRequest(**{**plain, "inputs": inputs, "options": options})


def _arrays(
    feeds: Sequence[Feed], inputs_npz: str | None, seed: int, spread: int
) -> Iterator[tuple[Feed, _Array]]:
    if inputs_npz is not None:
        with np.load(inputs_npz, allow_pickle=False) as arrays:
            for feed in feeds:
                yield feed, arrays[feed.name]
        return
    noise = np.random.default_rng(seed)
    for feed in feeds:
        yield feed, _random(feed, noise) if not spread else _varied(feed, noise, spread)


def _random(feed: Feed, noise: np.random.Generator) -> _Array:
    if feed.elements:
        return np.resize(np.array(feed.elements, feed.dtype), feed.shape)
    if feed.dtype == "string":
        return np.full(feed.shape, "a")
    if feed.dtype in _FLOATS:
        return np.asarray(noise.random(feed.shape, np.float32)).astype(feed.dtype)
    if feed.dtype in _PLACEHOLDERS:
        return np.zeros(feed.shape, _PLACEHOLDERS[feed.dtype])
    return np.full(feed.shape, feed.number, feed.dtype)


def _varied(feed: Feed, noise: np.random.Generator, spread: int) -> _Array:
    """Elements that decide other shapes in each run: their level is drawn, and they differ."""
    # One level for each input: all elements of a run are small, or all may be large.
    level = noise.random()
    if feed.elements or feed.dtype in _PLACEHOLDERS:
        return _random(feed, noise)
    drawn = np.asarray(noise.random(feed.shape, np.float32))
    if feed.dtype == "bool":
        return drawn < level
    if feed.dtype in _FLOATS:
        return (2 * (drawn + level) - 2).astype(feed.dtype)
    if feed.dtype in {"int8", "uint8"} and spread > _BINARY:
        spread = int(np.iinfo(feed.dtype).max) + 1  # pixels: no indices, no sizes
    # `number` is 0 where an axis of length 1 is indexed.
    # Exponential in the level, so that small and large numbers are drawn equally often.
    most = int(spread**level) * min(feed.number, 1)
    numbers = (drawn * (most + 1)).astype(np.int64).clip(0, spread - 1)
    return numbers.astype(np.str_ if feed.dtype == "string" else feed.dtype)
