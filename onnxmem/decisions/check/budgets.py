"""A budget: which models it is of, at which setting, and what they may take."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Final

from onnxmem.decisions.check.patterns import matches
from onnxmem.errors import UsageError
from onnxmem.settings import Recipe
from onnxmem.units import format_bytes, parse_size

_PERCENT: Final = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*%\s*")
_LONGEST: Final = 40
"""Characters of a size: more are no size of anything."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a figure may grow by: a share of what it was, or bytes."""

    percent: Fraction | None = None
    size_bytes: int | None = None

    def limit_bytes(self, baseline_bytes: int) -> int:
        """The most that a figure may be now, of what it was; whole bytes, rounded down."""
        if self.percent is None:
            return baseline_bytes + (self.size_bytes or 0)
        return baseline_bytes + int(baseline_bytes * self.percent / 100)

    def __str__(self) -> str:
        if self.percent is None:
            return format_bytes(self.size_bytes)
        return f"{float(self.percent):g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What models may take; a limit that is ``None`` is not held."""

    name: str
    path: str = "**"
    """Pattern of the models' paths, from the configuration's folder."""
    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    train: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    basis: str | None = None
    """What of a training step is compared: ``tensors`` or ``process``; ``None``: the process."""
    accepted: tuple[str, ...] = ()
    """Codes of findings that leave no verdict in doubt."""
    peak_bytes: int | None = None
    """Of weights, inputs and in-place peak."""
    weight_bytes: int | None = None
    training_bytes: int | None = None
    """Of a training step."""
    growth: Growth | None = None
    """Of the peak, and of the training peak where a step is worked out."""
    baseline: Path | None = None
    """What ``growth`` is measured from; ``None``: the baseline of the whole configuration."""

    @property
    def trains(self) -> bool:
        """Whether a training step has to be worked out."""
        return self.train or self.training_bytes is not None

    @property
    def holds_nothing(self) -> bool:
        """Whether it has no limit."""
        limits = (self.peak_bytes, self.weight_bytes, self.training_bytes, self.growth)
        return all(limit is None for limit in limits)

    def covers(self, path: str) -> bool:
        """Whether it is of a model: ``path`` is relative, its parts joined by ``/``."""
        return matches(self.path, path)


def read_size(text: str, likely: str = "GiB") -> int:
    """Read a size in bytes; ``likely`` is the unit that a small number without one lacks.

    :raises UsageError: it is not a size.
    """
    if len(text) > _LONGEST:
        message = "is larger than any size"
        raise UsageError(message)
    return parse_size(text, likely)


def read_percent(text: str) -> Fraction:
    """Read a share, as in ``5%`` or ``2.5 %``.

    :raises UsageError: it is none.
    """
    found = _PERCENT.fullmatch(text if text.rstrip().endswith("%") else f"{text}%")
    if found is None:
        message = f"{text[:_LONGEST]!r} is no share; write 5% or 2.5%"
        raise UsageError(message)
    return Fraction(found[1])


def read_growth(text: str) -> Growth:
    """Read what a figure may grow by: ``5%`` or a size, as in ``10MiB``.

    :raises UsageError: it is neither.
    """
    if text.rstrip().endswith("%"):
        return Growth(percent=read_percent(text))
    return Growth(size_bytes=read_size(text, "%"))
