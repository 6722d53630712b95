"""The child's side: the inputs of a run in one file, which the processes that run the model map.

Whatever it takes to make them, ``numpy.random`` or what unpacks an archive, is in no process whose
memory is measured.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from onnxmem.children.running import JSON
from onnxmem.measure.run_request import Feed, StoredInput, read_feeds

_NOISE_SEED: Final = 0
_FLOATS: Final = ("float16", "float32", "float64", "complex64", "complex128")
_STAND_INS: Final = {
    "bfloat16": np.uint16,
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), np.uint8),
}
"""Integers whose zeros are those of a float type that numpy lacks."""
_ALIGNED_BYTES: Final = 64
"""Where an array may begin: onnxruntime aligns its own buffers alike."""

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def store_inputs(
    feeds: list[dict[str, Any]], inputs_npz: str | None, path: str
) -> dict[str, Sequence[JSON]]:
    """Write the arrays of the inputs: those of the file, or seeded noise in [0, 1) and whole
    numbers. Comes back: ``inputs``, where each lies in ``path``.
    """
    stored = []
    with Path(path).open("wb") as stream:
        for feed, array in _arrays(read_feeds(feeds), inputs_npz):
            stream.write(bytes(-stream.tell() % _ALIGNED_BYTES))
            offset, elem_type = stream.tell(), feed.elem_type if feed.dtype in _STAND_INS else None
            array.tofile(stream)
            stored.append(StoredInput(feed.name, array.dtype.str, array.shape, offset, elem_type))
        stream.write(bytes(1))  # nothing cannot be mapped
    return {"inputs": [asdict(each) for each in stored]}


def _arrays(feeds: Sequence[Feed], inputs_npz: str | None) -> Iterator[tuple[Feed, _Array]]:
    if inputs_npz is not None:
        with np.load(inputs_npz, allow_pickle=False) as arrays:
            for feed in feeds:
                yield feed, arrays[feed.name]
        return
    noise = np.random.default_rng(_NOISE_SEED)
    for feed in feeds:
        yield feed, _made_up(feed, noise)


def _made_up(feed: Feed, noise: np.random.Generator) -> _Array:
    if feed.elements:
        given = np.array(feed.elements, feed.dtype)
        return np.resize(given, feed.shape)
    if feed.dtype == "string":
        return np.full(feed.shape, "a")
    if feed.dtype in _FLOATS:
        return np.asarray(noise.random(feed.shape, np.float32)).astype(feed.dtype)
    if feed.dtype in _STAND_INS:
        return np.zeros(feed.shape, _STAND_INS[feed.dtype])
    return np.full(feed.shape, feed.number, feed.dtype)
