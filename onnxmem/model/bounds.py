"""Limits of the work on one model: beyond them it is rejected, or a shape stays unknown.

A file of a few bytes can request any amount of work. If a limit is reached, the message names the
environment variable that raises it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from onnxmem.errors import UsageError


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits; the environment variable of each is ``ONNXMEM_MAX_`` and its name in capitals."""

    nodes: int = 1_000_000
    """Nodes of a model after inlining; a model with more is rejected."""
    growth: int = 100
    """Nodes after inlining per node in the file, beyond five thousand; few networks repeat a layer
    so often. A model with more is rejected."""
    elements: int = 4096
    """Elements of a value that is computed to infer shapes; larger values stay unknown."""
    rank: int = 64
    """Dims of a tensor, as numpy (``NPY_MAXDIMS``) and PyTorch (``dim_bitset_size``) have it; the
    shape of a tensor with more is unknown."""


_MANY_ELEMENTS: Final = 2**256
"""Elements of a tensor, far below the largest float, 2^1024; four int64 dims cannot exceed it."""
FEW_DIMS: Final = 4
"""Shapes with at most so many dims never exceed a limit, if that of the rank is not lower."""


def is_past_all(dims: Sequence[int | None]) -> bool:
    """Whether a shape has too many dims or too large ones."""
    if len(dims) <= FEW_DIMS:
        return False
    return len(dims) > BOUNDS.rank or prod(dim for dim in dims if dim) > _MANY_ELEMENTS


def variable(name: str) -> str:
    """The environment variable of a limit."""
    return f"ONNXMEM_MAX_{name.upper()}"


def bounds_in(environment: Mapping[str, str]) -> Bounds:
    """Read the limits from environment variables.

    :raises UsageError: one is not a positive integer.
    """
    texts = {
        name: environment[variable(name)]
        for name in Bounds.__dataclass_fields__
        if variable(name) in environment
    }
    for name, text in texts.items():
        if not (text.isascii() and text.isdigit() and 0 < int(text[:19]) < 2**63):
            message = f"{variable(name)}={text}: not a positive integer of up to 18 digits"
            raise UsageError(message)
    return Bounds(**{name: int(text) for name, text in texts.items()})


BOUNDS: Final = bounds_in(os.environ)
"""The limits in effect; worker processes inherit the environment."""
