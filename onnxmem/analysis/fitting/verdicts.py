"""The verdict on memory: which figure is compared, how far off it may be, and what comes of it.

One rule for every command, report and page. A run *fits* where it has room with everything that is
only assumed of it at the high end of its range, and with the error that its figure is stated with.
It is *tight* where the run as it is predicted gets by all the same, if need be only because the
allocator gives cached memory back and tries again. It *does not fit* where the predicted run fails.
Where the figure is known to be too low, or hangs on something that nobody has said, what has room
is *unknown*: only what is too large in part is too large.

Which figure is compared: ``process`` is what the program takes, and what counts with ``--train`` or
``--runtime``:

1. Training on a GPU: what PyTorch's caching allocator reserves, and the CUDA context. Training
   elsewhere: the peak of the step, for no allocator of a CPU is modeled.
2. Running: what onnxruntime takes on the CPU (its whole process) or on CUDA (its arena after three
   runs, cuDNN's workspace and the context).

``tensors`` is what the tensors take: the peak of the step, or weights + inputs + in-place peak; on
a microcontroller inputs + in-place peak, weights being in flash.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from onnxmem.errors import Finding, UsageError


class Basis(StrEnum):
    """The figure that is compared with memory."""

    TORCH = "pytorch-cuda"
    STEP = "training-peak"
    ORT_CPU = "ort-cpu"
    ORT_CUDA = "ort-cuda"
    TOTAL = "total"
    MCU = "activations"


class RuntimeBasis(str):
    """What a runtime takes that was given as an object, by its name."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The name, as that of a ``Basis``."""
        return str(self)


AnyBasis = Basis | RuntimeBasis


class _Descriptions(dict[AnyBasis, str]):
    def __missing__(self, basis: AnyBasis) -> str:
        return f"what {basis.value} reserves by its allocator, and its overheads"


BASES: Final[Mapping[AnyBasis, str]] = _Descriptions(
    {
        Basis.TORCH: "reserved by PyTorch's allocator on CUDA, and the CUDA context",
        Basis.STEP: "peak of the training step; no allocator of this device is modelled",
        Basis.ORT_CPU: "process_bytes of onnxruntime on CPU: the whole process",
        Basis.ORT_CUDA: "arena of onnxruntime on CUDA after three runs, workspace and context",
        Basis.TOTAL: "weights + inputs + in-place peak; no runtime's overhead is in it",
        Basis.MCU: "inputs + in-place peak in RAM; weights are taken to lie in flash",
    }
)
"""What each is, in words."""


def basis_named(name: str) -> AnyBasis:
    """The basis of a name; one that is not built in is a runtime's."""
    return Basis(name) if name in set(Basis) else RuntimeBasis(name)


def basis_for(
    kind: str | None, *, train: bool, runtime: str | None, basis: str | None = None
) -> AnyBasis:
    """Choose the figure for a kind of device; ``None`` is a bare size.

    ``basis`` is ``tensors`` or ``process``; ``None``: ``process`` where a training or a runtime is
    named.

    :raises UsageError: the process of a run without a runtime.

    >>> basis_for("cpu", train=False, runtime="ort-cpu").value
    'ort-cpu'
    """
    if basis == "tensors" or (basis is None and not train and runtime in {None, "none"}):
        tensors = Basis.MCU if kind == "mcu" else Basis.TOTAL
        return Basis.STEP if train else tensors
    if train:
        return Basis.STEP if kind in {"cpu", "mcu"} else Basis.TORCH
    if runtime in {None, "none"}:
        message = "--basis process: name whose process, by --runtime or --train"
        raise UsageError(message)
    return basis_named(runtime)


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

    def without_run(self) -> "Demand":
        """The same figures, without what replays the run."""
        return Demand(
            size_bytes=self.size_bytes,
            more_bytes=self.more_bytes,
            range_bytes=self.range_bytes,
            least_bytes=self.least_bytes,
        )

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
