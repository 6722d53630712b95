"""How far a model is followed: past these bounds it is refused, or a shape stays unknown.

A few bytes can request any amount of work. A bound that is reached is reported by its name: that of
the environment variable that moves it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from onnxmem.errors import UsageError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Each field is ``ONNXMEM_MAX_`` and its name in capitals, in the environment."""

    nodes: int = 1_000_000
    """Of a model with its local functions written out; more are refused."""
    growth: int = 100
    """Nodes that local functions expand to for each that the file writes, past five thousand; few
    networks repeat a layer so often. More are refused."""
    elements: int = 4096
    """Of a value that is computed to know shapes; larger ones are not made."""
    rank: int = 64
    """Of a tensor; numpy (``NPY_MAXDIMS``) and PyTorch (``dim_bitset_size``) hold no more. The
    shape of one with more dims is unknown."""


_MANY_ELEMENTS: Final = 2**256
"""Of a tensor: no figure comes near the largest float, 2^1024. Four dims cannot have so many."""
FEW_DIMS: Final = 4
"""No shape of so few dims is past any bound, as long as the bound of ranks is none of these."""


def is_past_all(dims: Sequence[int | None]) -> bool:
    """Whether a shape has too many dims, or dims too large, to be followed."""
    if len(dims) <= FEW_DIMS:
        return False
    return len(dims) > BOUNDS.rank or prod(dim for dim in dims if dim) > _MANY_ELEMENTS


def variable(name: str) -> str:
    """Name the environment variable of a bound."""
    return f"ONNXMEM_MAX_{name.upper()}"


def bounds_in(environment: Mapping[str, str]) -> Bounds:
    """Read the bounds of an environment.

    :raises UsageError: one of them is no positive number.
    """
    given = {
        name: environment[variable(name)]
        for name in Bounds.__dataclass_fields__
        if variable(name) in environment
    }
    for name, text in given.items():
        if not (text.isascii() and text.isdigit() and 0 < int(text[:19]) < 2**63):
            message = f"{variable(name)}={text}: no number from 1 to 18 digits"
            raise UsageError(message)
    return Bounds(**{name: int(text) for name, text in given.items()})


BOUNDS: Final = bounds_in(os.environ)
"""Those in effect; worker processes have the same environment."""
