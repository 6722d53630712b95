"""The verdict on memory: one rule for every command, report and page.

A run *fits* where it has room with everything that is only assumed of it at the high end of its
range, and with the error that its figure is stated with. It is *tight* where the run as it is
predicted gets by all the same, if need be only because the allocator gives cached memory back and
tries again. It *does not fit* where the predicted run fails. Where the figure is known to be too
low, or hangs on something that nobody has said, what has room is *unknown*: only what is too large
in part is too large.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.fitting.bases import AnyBasis, Basis
from onnxmem.errors import Finding


class Verdict(StrEnum):
    """What becomes of a run on a device."""

    FITS = "fits"
    TIGHT = "tight"
    OVER = "does not fit"
    UNKNOWN = "unknown"

    @property
    def is_met(self) -> bool:
        """Whether it runs: it fits, however tightly."""
        return self in {Verdict.FITS, Verdict.TIGHT}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far a figure was off where it was compared with a measurement."""

    percent: float | None
    """``None``: it was never compared."""
    source: str

    def high_bytes(self, size_bytes: int) -> int:
        """A figure with its error on top."""
        return size_bytes + round(size_bytes * (self.percent or 0) / 100)


_DEFINED: Final = Accuracy(0.0, "exact by definition; no runtime's overhead is in it")
_ON_GPU: Final = Accuracy(None, "never measured on a GPU by this project")


class _Accuracies(dict[AnyBasis, Accuracy]):
    def __missing__(self, basis: AnyBasis) -> Accuracy:
        return Accuracy(None, f"{basis.value} was never measured by this project")


ACCURACIES: Final[Mapping[AnyBasis, Accuracy]] = _Accuracies(
    {
        Basis.TORCH: _ON_GPU,
        Basis.STEP: Accuracy(1.0, "all 390 rows within it, the largest 0.11 %"),
        Basis.ORT_CPU: Accuracy(5.0, "nine in ten of 794 settings within it, the largest 21.7 %"),
        Basis.ORT_CUDA: _ON_GPU,
        Basis.TOTAL: _DEFINED,
        Basis.MCU: _DEFINED,
    }
)
"""By the figure that is compared with memory: from the accuracy tables of README.md."""

SETTLED_BY: Final = MappingProxyType(
    {
        "overridden_batch": "one batch, by --batch or by --dim",
        "batch_fixed": "an export with a dynamic batch",
        "control_flow_training": "an export with the loop unrolled",
        "quantised_training": "the float model",
        "unknown_runtime_tensors": "shapes for what is left open",
        "unknown_trips": "--value NAME=VALUE for the input that decides",
        "runtime_failed": "another --runtime",
        "contradictory_types": "a model whose types agree",
    }
)
"""Findings that say of themselves that a figure is too low or of another question; what helps."""


UNBOUND: Final = "unbound_dims"
PARTIAL: Final = "partial"
ACCEPTABLE: Final = frozenset({*SETTLED_BY, UNBOUND, PARTIAL})
"""Codes of all that may leave a verdict in doubt."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a figure that has room passes nothing."""

    code: str
    message: str
    is_lower_bound: bool = True
    """Whether the figure is at least too low: then what is too large is too large for certain."""
    flags: str = ""
    """The flags to type, where they are known."""

    @property
    def settled_by(self) -> str:
        """What removes the doubt."""
        settling = self.flags or SETTLED_BY.get(self.code, "see analyze")
        return f"{settling}; or --accept {self.code}"


_OTHER_QUESTION: Final = frozenset({"overridden_batch", "batch_fixed", "contradictory_types"})


def doubts_of(findings: tuple[Finding, ...], accepted: frozenset[str]) -> tuple[Doubt, ...]:
    """The doubts among findings, but for those that the user accepts."""
    return tuple(
        Doubt(each.code, each.message, is_lower_bound=each.code not in _OTHER_QUESTION)
        for each in findings
        if each.code in SETTLED_BY and each.code not in accepted
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a run wants of a device's memory at one batch, in bytes."""

    size_bytes: int
    """On a device that is large enough."""
    more_bytes: int = 0
    """What assumed terms may take beyond what counts of them."""
    range_bytes: int = 0
    """What it may take beyond that, by what the file leaves open."""
    least_bytes: int = 0
    """Below this it fails for certain; it does not fall as the batch grows."""
    runs_in: Callable[[int], bool] | None = field(default=None, compare=False, repr=False)
    """Whether the run gets by with fewer bytes, by an allocator's retries; ``None``: it does not.
    """

    def needed_bytes(self, accuracy: Accuracy) -> int:
        """What a device must have before it is met without retries."""
        if not self.range_bytes:
            return self.size_bytes
        # Nobody knows which end of the range it is: only with both in it does it run.
        return accuracy.high_bytes(self.size_bytes + self.more_bytes) + self.range_bytes

    def verdict(self, limit_bytes: int, accuracy: Accuracy) -> Verdict:
        """Compare with what there is; the bytes are taken as whole."""
        high_bytes = accuracy.high_bytes(self.size_bytes + self.more_bytes)
        if self.range_bytes and self.size_bytes <= limit_bytes:
            is_met = self.needed_bytes(accuracy) <= limit_bytes
            return Verdict.TIGHT if is_met else Verdict.UNKNOWN
        if high_bytes <= limit_bytes:
            return Verdict.FITS
        if self.size_bytes <= limit_bytes:
            return Verdict.TIGHT
        if self.least_bytes > limit_bytes or self.runs_in is None:
            return Verdict.OVER
        return Verdict.TIGHT if self.runs_in(limit_bytes) else Verdict.OVER


def with_doubts(verdict: Verdict, doubts: tuple[Doubt, ...]) -> Verdict:
    """What is left of a verdict on a figure that is in doubt."""
    if not doubts:
        return verdict
    is_sure = verdict is Verdict.OVER and all(doubt.is_lower_bound for doubt in doubts)
    return Verdict.OVER if is_sure else Verdict.UNKNOWN


def verdict_on_bytes(
    size_bytes: int | None, limit_bytes: int, doubts: tuple[Doubt, ...] = ()
) -> Verdict:
    """The verdict on a figure that is exact by definition, such as the bytes of the weights."""
    if size_bytes is None:
        return Verdict.UNKNOWN
    return with_doubts(Demand(size_bytes=size_bytes).verdict(limit_bytes, _DEFINED), doubts)
