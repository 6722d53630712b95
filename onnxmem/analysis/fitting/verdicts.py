"""The verdict on memory: which figure is compared with a limit, its error, and the rule.

Every command, report and page uses this rule:

- *fits*: the limit is enough even if every assumed term is at the high end of its range and the
  figure is too low by its stated error;
- *tight*: the run as predicted succeeds, perhaps only because the allocator frees cached memory and
  retries;
- *does not fit*: the run as predicted fails;
- *unknown*: the figure is below the limit, but it is known to be too low or depends on a value that
  nobody gave. A lower bound above the limit still does not fit.

Which figure is compared: ``process`` is the memory of the whole program, and the default with
``--train`` or ``--runtime``:

1. Training on a GPU: what PyTorch's caching allocator reserves, and the CUDA context. Training
   elsewhere: the peak of the step, because no CPU allocator of PyTorch is modeled.
2. Inference: what onnxruntime takes on the CPU (its whole process) or on CUDA (its arena after
   three runs, cuDNN's workspace and the context).

``tensors`` is the memory of the tensors: the peak of the step, or weights + inputs + in-place
peak; on a microcontroller inputs + peak activation memory, because the weights are in flash.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from onnxmem.errors import Finding, UsageError, printable

if TYPE_CHECKING:
    from onnxmem.settings import TrainingConfig


class Basis(StrEnum):
    """The figure that is compared with memory."""

    TORCH = "pytorch-cuda"
    STEP = "training-peak"
    ORT_CPU = "ort-cpu"
    ORT_CUDA = "ort-cuda"
    TOTAL = "total"
    MCU = "activations"


class RuntimeBasis(str):
    """The figure of a runtime that was passed as an object, by its name."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The name, like ``Basis.value``."""
        return str(self)


AnyBasis = Basis | RuntimeBasis


class _Descriptions(dict[AnyBasis, str]):
    def __missing__(self, basis: AnyBasis) -> str:
        return f"what {basis.value} reserves by its allocator, and its overheads"


BASES: Final[Mapping[AnyBasis, str]] = _Descriptions(
    {
        Basis.TORCH: "reserved by PyTorch's allocator on CUDA, and the CUDA context",
        Basis.STEP: "peak of the training step; the allocator of this device is not modeled",
        Basis.ORT_CPU: "the whole process of onnxruntime on the CPU, after three runs",
        Basis.ORT_CUDA: "arena of onnxruntime on CUDA after three runs, workspace and context",
        Basis.TOTAL: "weights + inputs + peak activation memory; no runtime's overhead is in it",
        Basis.MCU: "tensor arena: inputs + peak activation memory; weights lie in flash",
    }
)
"""A description of each."""


def basis_named(name: str) -> AnyBasis:
    """The basis of a name; an unknown name is that of a runtime passed as an object."""
    return Basis(name) if name in set(Basis) else RuntimeBasis(name)


def basis_for(
    kind: str | None, *, train: bool, runtime: str | None, basis: str | None = None
) -> AnyBasis:
    """Choose the figure for a kind of device; ``None`` is a size without a device.

    ``basis`` is ``tensors`` or ``process``; ``None``: ``process`` if training or a runtime is
    requested.

    :raises UsageError: ``process`` for inference without a runtime.

    >>> basis_for("cpu", train=False, runtime="ort-cpu").value
    'ort-cpu'
    """
    if basis == "tensors" or (basis is None and not train and runtime in {None, "none"}):
        tensors = Basis.MCU if kind == "mcu" else Basis.TOTAL
        return Basis.STEP if train else tensors
    if train:
        return Basis.STEP if kind in {"cpu", "mcu"} else Basis.TORCH
    if runtime in {None, "none"}:
        message = "--basis process: choose a process with --runtime or --train"
        raise UsageError(message)
    return basis_named(runtime)


class Verdict(StrEnum):
    """Whether a run succeeds on a device."""

    FITS = "fits"
    TIGHT = "tight"
    OVER = "does not fit"
    UNKNOWN = "unknown"

    @property
    def is_met(self) -> bool:
        """Whether the run succeeds: it fits, perhaps tightly."""
        return self in {Verdict.FITS, Verdict.TIGHT}

    @property
    def fits(self) -> bool | None:
        """The same; ``None``: unknown."""
        return None if self is Verdict.UNKNOWN else self.is_met


OF_SEVERAL: Final[Mapping[Verdict, str]] = {
    Verdict.FITS: "fit",
    Verdict.TIGHT: "tight",
    Verdict.OVER: "do not fit",
    Verdict.UNKNOWN: "unknown",
}
"""What is said of a number of models."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The error of a figure, from comparisons with measurements."""

    percent: float | None
    """``None``: it was never compared."""
    source: str
    share: str = ""
    """How many of the measurements it holds for; empty: the source has no such number."""

    @classmethod
    def measured(cls, percent: float, share: str, worst_percent: float) -> Self:
        """The error that a share of measurements is within, and the largest of all."""
        source = f"{share} are within it, the largest is {worst_percent} %"
        return cls(percent, source, share)

    @property
    def row(self) -> dict[str, object]:
        """The same in JSON."""
        return {"percent": self.percent, "source": self.source}

    def high_bytes(self, size_bytes: int) -> int:
        """A figure plus its error."""
        return size_bytes + round(size_bytes * (self.percent or 0) / 100)


_DEFINED: Final = Accuracy(0.0, "exact by definition; no runtime's overhead is in it")
_OF_TENSORS: Final = Accuracy(
    0.0, "exact for the tensors; a runtime takes more: --runtime ort-cuda, ort-cpu"
)
_IN_ARENA: Final = Accuracy(
    None, "an H200 confirmed what tensors request; what cuDNN takes in the arena is unknown"
)


class _Accuracies(dict[AnyBasis, Accuracy]):
    def __missing__(self, basis: AnyBasis) -> Accuracy:
        return Accuracy(None, f"{basis.value} was never measured by this project")


ACCURACIES: Final[Mapping[AnyBasis, Accuracy]] = _Accuracies(
    {
        Basis.TORCH: Accuracy.measured(11.0, "90 % of 138 settings on an H100 or H200", 22.2),
        Basis.STEP: Accuracy.measured(1.0, "all 390 measurements", 0.11),
        Basis.ORT_CPU: Accuracy.measured(7.0, "90 % of 153 files", 26.2),
        Basis.ORT_CUDA: _IN_ARENA,
        Basis.TOTAL: _OF_TENSORS,
        Basis.MCU: _DEFINED,
    }
)
"""By the figure that is compared; from the accuracy tables of README.md."""
_ON_HOPPER: Final = "90 % of 138 settings on an H100 or H200 with the card's cuBLAS workspace"
_WITH_WORKSPACE: Final[Mapping[AnyBasis, Accuracy]] = MappingProxyType(
    {
        Basis.TORCH: Accuracy(
            9.0, f"{_ON_HOPPER} are within it, the largest is 15.2 %", share=_ON_HOPPER
        )
    }
)
"""The same where the size of cuBLAS's workspace is set, by the device or by an option."""
LOAD_ACCURACY: Final = Accuracy.measured(12.0, "90 % of 153 files", 35.7)
"""Of the growth of the process while a session is created, from the same tables."""


def accuracy_of(basis: AnyBasis, recipe: "TrainingConfig") -> Accuracy:
    """The error of a figure, of the measurements with the settings that are nearest."""
    found = None if recipe.cublas_workspace_bytes is None else _WITH_WORKSPACE.get(basis)
    return ACCURACIES[basis] if found is None else found


SETTLED_BY: Final = MappingProxyType(
    {
        "overridden_batch": "set one batch, by --batch or by --dim",
        "batch_fixed": "export with a dynamic batch",
        "control_flow_training": "export with the loop unrolled",
        "quantized_training": "analyze the float model",
        "unknown_runtime_tensors": "set the dynamic dims, or --value",
        "unknown_trips": "--value NAME=VALUE for the input that decides",
        "runtime_failed": "choose another --runtime",
        "contradictory_types": "correct the types of the model",
        "data_dependent": "set the dims with --max, or see --observe",
    }
)
"""Warnings that make a figure too low or not the requested one, and what settles each."""
UNBOUND: Final = "unbound_dims"
DATA: Final = "data_dependent"
PARTIAL: Final = "partial"
ACCEPTABLE: Final = frozenset({*SETTLED_BY, UNBOUND, PARTIAL})
"""Every code that can make a verdict unknown."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a figure below its limit gives *unknown* instead of *fits*."""

    code: str
    message: str
    is_lower_bound: bool = True
    """Whether the true figure can only be larger: then *does not fit* is certain."""
    flags: str = ""
    """The flags that settle it, if known."""
    at: str = ""
    """The dims that the figure is of, where nothing gave them: ``sequence = 1``."""
    until: str = ""
    """What has to be given first, where that is what is missing: ``--dim sequence=N is given``."""

    @property
    def text(self) -> str:
        """The code and the message, as JSON has them."""
        return f"{self.code}: {printable(self.message)}"

    @property
    def settling(self) -> str:
        """What removes the doubt, except for accepting it."""
        return self.flags or SETTLED_BY.get(self.code, "see analyze")

    @property
    def settled_by(self) -> str:
        """What removes the doubt, beside what its message says."""
        accepting = f"or --accept {self.code}"
        is_said = self.flags and self.flags in self.message
        return accepting if is_said else f"{self.settling}; {accepting}"


_NO_BOUND: Final = frozenset({"overridden_batch", "batch_fixed", "contradictory_types"})
"""The figure is of another batch, or of a model that no runtime accepts: it bounds nothing."""


def doubts_of(findings: tuple[Finding, ...], accepted: frozenset[str]) -> tuple[Doubt, ...]:
    """The doubts that findings raise, except for the codes that the user accepts."""
    return tuple(
        Doubt(each.code, each.message, is_lower_bound=each.code not in _NO_BOUND)
        for each in findings
        if each.code in SETTLED_BY and each.code not in accepted
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A run compared with the memory of a device: what every output shows of it.

    A figure beside a verdict is what the run takes of that device. If an allocator succeeds there
    only after it has released its cache or asked for less, that is less than on a larger device.
    """

    verdict: Verdict
    num_bytes: int | None
    """What the run takes of the device, at most its memory; where it fails, what it asks for."""
    unlimited_bytes: int | None
    """What it takes of a device where no allocation fails."""
    flash_margin_bytes: int | None = None
    """What the weights leave of a microcontroller's flash, below 0 what they lack; ``None``: the
    weights are not in flash, or its size is unknown."""
    lower_bytes: int | None = None
    """What a run takes at least, where data decide and ``num_bytes`` is the most."""

    @property
    def is_at_most(self) -> bool:
        """Whether data decide how much less than ``num_bytes`` a run takes."""
        most_bytes = self.unlimited_bytes
        return None not in {self.lower_bytes, most_bytes} and self.lower_bytes != most_bytes

    @property
    def lacks_flash(self) -> bool:
        """Whether the weights do not fit the flash."""
        return self.flash_margin_bytes is not None and self.flash_margin_bytes < 0

    def with_flash(self, free_bytes: int) -> "Comparison":
        """The same on a microcontroller whose flash holds the weights."""
        verdict = Verdict.OVER if free_bytes < 0 else self.verdict
        return replace(self, verdict=verdict, flash_margin_bytes=free_bytes)

    @property
    def is_retried(self) -> bool:
        """Whether the run succeeds only by retries of its allocator."""
        return self.verdict.is_met and self.num_bytes != self.unlimited_bytes

    def doubted(self, doubts: "tuple[Doubt, ...]") -> "Comparison":
        """The same if there are doubts: *does not fit* where that is certain, else unknown."""
        if not doubts:
            return self
        # A lower bound that does not fit settles the verdict, whatever is left out of it.
        is_sure = self.verdict is Verdict.OVER and all(doubt.is_lower_bound for doubt in doubts)
        return replace(self, verdict=Verdict.OVER if is_sure else Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The device memory that a run needs at one batch, in bytes."""

    size_bytes: int
    """On a device where no allocation fails."""
    more_bytes: int = 0
    """How much more assumed terms may take than the values in ``size_bytes``."""
    range_bytes: int = 0
    """How much more the run may take because of what the file does not show."""
    least_bytes: int = 0
    """With less the run fails for certain; it never falls as the batch grows."""
    lower_bytes: int | None = None
    """What a run takes at least, where the data of a run decide and ``size_bytes`` is the most;
    ``None``: they decide nothing."""
    taken_in: Callable[[int], int | None] | None = field(default=None, compare=False, repr=False)
    """What the run takes of a device with fewer bytes, by retries of its allocator; ``None``: it
    fails there. Without the function it always does."""

    def without_run(self) -> "Demand":
        """The same figures without ``taken_in``, which refers to a whole walk of the model."""
        return Demand(
            size_bytes=self.size_bytes,
            more_bytes=self.more_bytes,
            range_bytes=self.range_bytes,
            least_bytes=self.least_bytes,
            lower_bytes=self.lower_bytes,
        )

    def needed_bytes(self, accuracy: Accuracy) -> int:
        """What a device must have for the run to succeed without retries."""
        if not self.range_bytes:
            return self.size_bytes
        # The true figure may be at either end of the range, so the device must have the high end.
        return accuracy.high_bytes(self.size_bytes + self.more_bytes) + self.range_bytes

    def compared(self, limit_bytes: int, accuracy: Accuracy) -> Comparison:
        """Compare with a limit."""
        # From the certain to the doubtful: even the high end fits; the predicted figure fits; the
        # lower bound does not fit; else the allocator is replayed with the limit as its capacity.
        high_bytes = accuracy.high_bytes(self.size_bytes + self.more_bytes)
        if self.range_bytes and self.size_bytes <= limit_bytes:
            # With a range the verdict is never `fits`: where the high end does not fit, nothing is
            # known.
            is_met = self.needed_bytes(accuracy) <= limit_bytes
            return self._as(Verdict.TIGHT if is_met else Verdict.UNKNOWN)
        if self.size_bytes <= limit_bytes:
            return self._as(Verdict.FITS if high_bytes <= limit_bytes else Verdict.TIGHT)
        if self.lower_bytes is not None and self.lower_bytes <= limit_bytes:
            return self._as(Verdict.UNKNOWN)
        if self.least_bytes > limit_bytes or self.taken_in is None:
            return self._as(Verdict.OVER)
        # Full devices get smaller regions (onnxruntime) or cached memory back (PyTorch), so a run
        # that succeeds there takes less than it would of a larger device.
        taken_bytes = self.taken_in(limit_bytes)
        if taken_bytes is None:
            return self._as(Verdict.OVER)
        return replace(self._as(Verdict.TIGHT), num_bytes=taken_bytes)

    def _as(self, verdict: Verdict) -> Comparison:
        """A verdict without retries."""
        return Comparison(
            verdict=verdict,
            num_bytes=self.size_bytes,
            unlimited_bytes=self.size_bytes,
            lower_bytes=self.lower_bytes,
        )


def compared_bytes(
    size_bytes: int | None, limit_bytes: int, doubts: tuple[Doubt, ...] = ()
) -> Comparison:
    """Compare a figure that is exact by definition, like the bytes of the weights."""
    if size_bytes is None:
        return Comparison(verdict=Verdict.UNKNOWN, num_bytes=None, unlimited_bytes=None)
    return Demand(size_bytes=size_bytes).compared(limit_bytes, _DEFINED).doubted(doubts)
