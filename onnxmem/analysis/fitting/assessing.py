"""Whether models fit a device, by how much, and how far they go.

``fit`` gives the verdict of every command; ``assess`` computes what models need, to be compared
with any number of devices. A ``DemandCurve`` gives the bytes at one batch after another. If a
runtime makes the same program at every batch of a range, with sizes affine in the batch, its
allocator is replayed with these sizes and the model is not walked again. That is verified at both
ends of the range and at batches between them. A batch beyond the range is walked; if its program
is the same, the range grows to it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from html import escape
from typing import Final, Self

from onnxmem.analysis.coverage import dims_line, unbound_dims_text
from onnxmem.analysis.fitting.footprints import (
    Deployment,
    Footprint,
    Hardware,
    combined,
    footprint_of,
    footprint_together,
    most_of,
    on_device,
)
from onnxmem.analysis.fitting.searching import (
    FEW_REPLAYS,
    MaxBatch,
    Search,
    largest_fitting,
)
from onnxmem.analysis.fitting.verdicts import (
    ACCEPTABLE,
    DATA,
    PARTIAL,
    UNBOUND,
    Accuracy,
    AnyBasis,
    Basis,
    Comparison,
    Demand,
    Doubt,
    RuntimeBasis,
    Verdict,
    accuracy_of,
    doubts_of,
)
from onnxmem.analysis.request import AnalysisRequest, StageResults
from onnxmem.analysis.scaling import LARGEST_BATCH
from onnxmem.errors import Finding, OnnxmemError, UsageError, listed, nearest, printable, shortened
from onnxmem.model.graph import DType, Role
from onnxmem.runtimes.assumed import Assumed
from onnxmem.runtimes.base import AffineRun, RuntimeRun
from onnxmem.units import format_bytes, format_limit

RunAt = Callable[[int], RuntimeRun | None]
"""A runtime's run at a batch; ``None``: it leaves something out, so it is no complete figure."""
Judged = Callable[[Comparison], Comparison]
"""``Assessment.judged`` on a device."""
_FALLING: Final = frozenset({Basis.TORCH, Basis.ORT_CPU, Basis.ORT_CUDA})
"""Figures of an allocator: these may fall as the batch grows."""
_POWERS: Final = 4
"""How many powers of two below the largest batch that fits the table shows."""
_WORTH: Final = 10
"""A power of two is recommended if it costs at most 1 / 10 of the largest batch."""
_EVENTS: Final = 1_000_000
"""Allocations and releases that one search serves at most where it replays every batch: about a
second of processor time."""
_LEFT_OUT: Final = frozenset({"unknown_runtime_tensors", "unknown_trips"})
"""Warnings of a session on what has no size, or no number of iterations, before a run."""
_FIRST: Final = (1, 2, 8)
"""Where a range of equal programs may begin: at batch 1 some copies are left out."""
_LEAST: Final = 3
"""Two points always lie on a line; a third shows that sizes are affine."""
_MOST_WALKED: Final = 16
"""Batches that are walked at most in search of a range; then each batch is computed in full."""
_BETWEEN: Final = 15
"""Batches between the ends at which a user's own runtime is checked: nothing is known of how its
sizes grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """The memory of a device, and which figure is compared with it."""

    memory_bytes: int
    reserve_bytes: int = 0
    """Memory that stays free for the system or other programs."""
    flash_bytes: int | None = None
    basis: AnyBasis = Basis.TOTAL
    accepted: frozenset[str] = frozenset()
    """Codes of warnings that the user accepts; these raise no doubts."""
    deployment: Deployment = field(default_factory=Deployment)
    dim: str | None = None
    """The dim whose largest value is searched; ``None``: the batch."""

    def __post_init__(self) -> None:
        """Reject a code that has no effect.

        :raises UsageError: a code that never makes a verdict unknown.
        """
        for code in sorted(self.accepted - ACCEPTABLE):
            message = (
                f"--accept {printable(code)!r}: no verdict depends on this code; "
                f"{nearest(code, sorted(ACCEPTABLE))}the codes are {', '.join(sorted(ACCEPTABLE))}"
            )
            raise UsageError(message)

    @property
    def accepts_data(self) -> bool:
        """Whether the user accepts what a run takes at least where data decide what it takes."""
        return DATA in self.accepted or self.accepts_partial

    @property
    def accepts_partial(self) -> bool:
        """Whether the user accepts that what has no size in any run's shapes is left out."""
        is_session = self.basis in {Basis.ORT_CPU, Basis.ORT_CUDA}
        return not self.accepted.isdisjoint({PARTIAL, *(_LEFT_OUT if is_session else ())})

    @property
    def limit_bytes(self) -> int:
        """The memory that figures are compared with."""
        return max(self.memory_bytes - self.reserve_bytes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What models need at the request, to be compared with any device."""

    basis: AnyBasis
    footprint: Footprint
    doubts: tuple[Doubt, ...]
    """Why the verdict is unknown even if the figure is below the limit."""
    findings: tuple[Finding, ...]
    """All warnings of the models."""
    accuracy: Accuracy
    """The error of the compared figure."""
    is_least_accepted: bool = False
    """Whether the user accepts what a run takes at least in place of what it takes."""

    def compared(self, limit_bytes: int, flash_bytes: int | None = None) -> Comparison:
        """Compare with a limit; on a microcontroller the weights must also fit the flash."""
        at_most = self._at_most(limit_bytes)
        found = at_most or self.footprint.demand.compared(limit_bytes, self.accuracy)
        return self._judged(found, self.doubts_at(limit_bytes), flash_bytes)

    def judged(self, compared: Comparison, flash_bytes: int | None) -> Comparison:
        """A comparison at any number with the doubts, and with the weights in flash."""
        doubts = self.doubts
        if compared.lower_bytes is not None:
            # Both ends were compared.
            doubts = tuple(each for each in doubts if each.code != DATA)
        return self._judged(compared, doubts, flash_bytes)

    def _judged(
        self, compared: Comparison, doubts: tuple[Doubt, ...], flash_bytes: int | None
    ) -> Comparison:
        # The flash comes after the doubts: weights that it is too small for fail whatever is
        # unknown of the RAM.
        found, weight_bytes = compared.doubted(doubts), self.footprint.weight_bytes
        if self.basis is not Basis.MCU or flash_bytes is None or weight_bytes is None:
            return found
        return found.with_flash(flash_bytes - weight_bytes)

    def doubts_at(self, limit_bytes: int) -> tuple[Doubt, ...]:
        """The doubts that are left at a limit: what a run takes at most may be within it."""
        is_met = self._at_most(limit_bytes) is not None
        return tuple(each for each in self.doubts if each.code != DATA or not is_met)

    def is_at_most(self, limit_bytes: int) -> bool:
        """Whether the figure is that of the upper ends: data decide how much less a run takes."""
        return self._at_most(limit_bytes) is not None

    def _at_most(self, limit_bytes: int) -> Comparison | None:
        """What a run takes at most, where data decide and even that is within the limit."""
        # Only a verdict that is met says anything of every run: if the most is beyond the limit, a
        # smaller run may still be within it, so the figure stays the least.
        at_most = self.footprint.at_most()
        is_open = self.is_least_accepted or any(each.code == DATA for each in self.doubts)
        if at_most is None or not is_open:
            return None
        found = at_most.demand.compared(limit_bytes, self.accuracy)
        return found if found.verdict.is_met else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow(Comparison):
    """One line of the table: the comparison at a number."""

    number: int

    @property
    def bytes(self) -> int | None:
        """What the run takes of the device at that number."""
        return self.num_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the run succeeds there; ``None``: unknown."""
        return self.verdict.fits

    @classmethod
    def of(cls, number: int, compared: Comparison) -> "TableRow":
        """The comparison at a number."""
        return cls(
            number=number,
            verdict=compared.verdict,
            num_bytes=compared.num_bytes,
            unlimited_bytes=compared.unlimited_bytes,
            flash_margin_bytes=compared.flash_margin_bytes,
            lower_bytes=compared.lower_bytes,
        )


@dataclass(frozen=True, slots=True)
class ModelFit:
    """One of several models, compared by itself."""

    path: str
    batch: int | None
    """``None``: it has none."""
    compared: Comparison
    doubts: tuple[Doubt, ...]
    """Those that are left at the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The verdict on models and a device, and the largest batch that fits."""

    setup: FitRequest
    requested: TableRow
    """At the request; ``number`` is 1 if the model has no batch."""
    has_number: bool
    """Whether the model has a batch, or the dim."""
    assessment: Assessment
    dims: Mapping[str, int]
    """The dims of the first model; a dim without a value is 1."""
    max_batch: MaxBatch | None
    """``None``: there is no batch to vary, or bytes are unknown."""
    limiting: Footprint | None
    """At the largest number that fits; at 1 if none does."""
    power_of_two: TableRow | None
    """The largest power of two that fits."""
    table: tuple[TableRow, ...]
    instances: int | None
    """The largest number of instances; ``None`` if one more needs no memory."""
    remarks: tuple[str, ...] = ()
    is_fixed: bool = False
    """Whether the requested shape of an input fixes the number, so there is no largest one."""
    each: tuple[ModelFit, ...] = ()
    """Several models, each by itself; empty: there is one."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on the request."""
        return self.requested.verdict

    def __repr__(self) -> str:
        """The verdict and the largest batch: the fields hold every figure of the search."""
        return f"<FitResult {self._said()}>"

    def _repr_html_(self) -> str:
        """The same, in a notebook."""
        return f"<p><b>{escape(self._said())}</b></p>"

    def _said(self) -> str:
        taken, limit = self.requested.num_bytes, self.setup.limit_bytes
        largest = None if self.max_batch is None else self.max_batch.number
        name = printable(self.setup.dim or "batch")
        most = "" if largest is None else f", largest {name} {largest:,}"
        return f"{self.verdict}: {format_bytes(taken)} of {format_limit(limit)}{most}"

    @property
    def footprint(self) -> Footprint:
        """What the request needs."""
        return self.assessment.footprint

    @property
    def taken_bytes(self) -> int:
        """What the request takes of the device; where it fails, what it asks for."""
        taken_bytes = self.requested.num_bytes
        return self.footprint.total_bytes if taken_bytes is None else taken_bytes

    @property
    def accuracy(self) -> Accuracy:
        """The accuracy of the compared figure."""
        return self.assessment.accuracy

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Why the verdict is unknown even if the figure is below the limit."""
        return self.assessment.doubts_at(self.setup.limit_bytes)

    @property
    def depends_on_data(self) -> bool:
        """Whether the verdict is unknown because of the data of a run alone."""
        codes = {each.code for each in self.doubts}
        return self.verdict is Verdict.UNKNOWN and codes == {DATA}

    @property
    def is_at_most(self) -> bool:
        """Whether the figure is that of the upper ends: data decide how much less a run takes."""
        return self.assessment.is_at_most(self.setup.limit_bytes)

    @property
    def limited_by(self) -> tuple[str, ...] | None:
        """Which memories of a microcontroller are too small; ``None``: not one with flash."""
        if self.requested.flash_margin_bytes is None:
            return None
        lacks_ram = self.taken_bytes > self.setup.limit_bytes
        lacks = {"ram": lacks_ram, "flash": self.requested.lacks_flash}
        return tuple(name for name in lacks if lacks[name] and self.verdict is Verdict.OVER)

    def to_dict(self) -> dict[str, object]:
        """The verdict in JSON, the same in every command; unknown is null."""
        observed_runs = self.footprint.num_observed
        return {
            "verdict": self.verdict.value,
            "basis": printable(self.basis),
            "bytes": self.bytes,
            "unlimited_bytes": self.unlimited_bytes,
            "limit_bytes": self.limit_bytes,
            "margin_bytes": self.margin_bytes,
            "context_bytes": self.context_bytes.to_dict(),
            "workspace_bytes": self.workspace_bytes.to_dict(),
            "accuracy": self.accuracy.row,
            **({"observed_runs": observed_runs} if observed_runs else {}),
            "doubts": [each.text for each in self.doubts],
            "fits_up_to": self.fits_up_to,
            "tight_from": self.tight_from,
            "fits_again": [list(each) for each in self.fits_again],
        }

    # The same by the names of the keys in JSON.

    @property
    def status(self) -> str:
        """``ok``, or ``partial`` if the figure is a lower bound."""
        return "ok" if self.footprint.is_whole else "partial"

    @property
    def fits(self) -> bool | None:
        """Whether the request fits, perhaps tightly; ``None``: unknown."""
        return self.verdict.fits

    @property
    def basis(self) -> str:
        """The figure that is compared."""
        return self.setup.basis.value

    @property
    def bytes(self) -> int:
        """What the request takes of the device; where it fails, what it asks for."""
        return self.taken_bytes

    @property
    def unlimited_bytes(self) -> int:
        """What it takes of a device where no allocation fails."""
        return self.taken_bytes if self.is_at_most else self.footprint.total_bytes

    @property
    def memory_bytes(self) -> int:
        """The memory of the device."""
        return self.setup.memory_bytes

    @property
    def reserve_bytes(self) -> int:
        """What stays free of it."""
        return self.setup.reserve_bytes

    @property
    def limit_bytes(self) -> int:
        """What the figure is compared with."""
        return self.setup.limit_bytes

    @property
    def margin_bytes(self) -> int:
        """What is left of it; below 0, what it lacks."""
        return self.limit_bytes - self.taken_bytes

    @property
    def flash_bytes(self) -> int | None:
        """The flash of a microcontroller."""
        return self.setup.flash_bytes

    @property
    def flash_margin_bytes(self) -> int | None:
        """What the weights leave of it."""
        return self.requested.flash_margin_bytes

    @property
    def context_bytes(self) -> Assumed:
        """The CUDA context in the figure, and its range."""
        return self.footprint.context

    @property
    def workspace_bytes(self) -> Assumed:
        """The workspace of cuDNN's convolutions in the figure, and its range."""
        return self.footprint.workspace

    @property
    def processes(self) -> int | None:
        """The largest number of processes with one instance each; ``None``: unknown, not of a
        process, or several instances are requested.
        """
        size_bytes = self.requested.num_bytes
        is_one = self.footprint.is_whole and self.setup.deployment.instances == 1
        if not self.common_bytes or not size_bytes or not is_one:
            return None
        return max(self.setup.limit_bytes, 0) // size_bytes

    @property
    def common_bytes(self) -> int:
        """Needed once, however many instances a process serves."""
        return self.footprint.common_bytes

    @property
    def shared_bytes(self) -> int:
        """What instances of a model can share."""
        return self.footprint.shared_bytes

    @property
    def dim(self) -> str:
        """The dim whose largest value is searched."""
        return self.setup.dim or "batch"

    @property
    def has_own_batches(self) -> bool:
        """Whether several models have different batches, so there is no largest one."""
        return not self.has_number and len({each.batch for each in self.each}) > 1

    @property
    def at(self) -> int | None:
        """The number of the request; ``None``: the model has no batch."""
        return self.requested.number if self.has_number else None

    @property
    def fits_up_to(self) -> int | None:
        """The largest number that fits."""
        return None if self.max_batch is None else self.max_batch.number

    @property
    def tight_from(self) -> int | None:
        """From here on it fits tightly; ``None``: it never does."""
        found = self.max_batch
        if found is None or found.comfortable is None or found.comfortable >= (found.number or 0):
            return None
        return found.comfortable + 1

    @property
    def fits_again(self) -> tuple[tuple[int, int], ...]:
        """Ranges beyond that fit again."""
        return () if self.max_batch is None else self.max_batch.above

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All warnings of the models."""
        return self.assessment.findings

    @property
    def is_power_better(self) -> bool:
        """Whether a power of two costs at most a tenth (a rule of thumb for kernel tiles).

        One that is not known to fit, or only by the allocator's retries, is not recommended.
        """
        if self.power_of_two is None or self.max_batch is None or not self.max_batch.number:
            return False
        if self.power_of_two.is_retried or not self.power_of_two.fits:
            return False
        lost = self.max_batch.number - self.power_of_two.number
        return 0 < lost * _WORTH <= self.max_batch.number


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetBatch(MaxBatch):
    """The largest batch within a budget, and the one of the rule of thumb."""

    result: FitResult = field(repr=False, compare=False)
    rule_batch: int | None
    """The largest by rule of thumb; ``None``: sizes are unknown."""

    @classmethod
    def of(cls, result: FitResult, found: MaxBatch, rule_batch: int | None) -> Self:
        """What a comparison with a budget found."""
        values = {each.name: getattr(found, each.name) for each in fields(found)}
        return cls(**values, result=result, rule_batch=rule_batch)

    @property
    def budget_bytes(self) -> int:
        """The budget."""
        return self.result.memory_bytes

    @property
    def limiting_phase(self) -> str | None:
        """The phase of the training step that has the peak; ``None``: inference."""
        return None if self.result.limiting is None else self.result.limiting.peak.phase


@dataclass(slots=True)
class ReplayDemands:
    """The runs of a runtime by batch, and the range in which no walk is needed.

    Invariant: within ``_affine``'s range all batches that were walked gave the same program, and
    sizes on the same lines. The range only grows; ``AffineRun.through`` checks it at each step.
    """

    run_at: RunAt
    is_own: bool
    """Whether the caller made the runtime: then only ``draw_lines`` may find a range."""
    starts_processes: bool = False
    """Whether a walk may start processes: then few batches are tried without a range."""
    num_between: int = 1
    """How many walks between the ends of a range prove it, where the runtime is onnxmem's own."""
    _affine: AffineRun | None = None
    _walked: dict[int, RuntimeRun | None] = field(default_factory=dict)

    def run(self, batch: int) -> RuntimeRun | None:
        """The run at a batch; ``None``: it has to be computed in full.

        :raises OnnxmemError: the runtime does not run the model at the batch.
        """
        affine = self._affine
        if affine is not None and affine.is_valid_at(batch):
            return affine.at(batch)
        # After many walks without a range, or one incomplete run, another walk would gain nothing.
        if self.is_own or len(self._walked) >= _MOST_WALKED or None in self._walked.values():
            return None
        run = self._known(batch)
        if run is not None:
            self._widen(batch)
        return run

    def draw_lines(self, last: int) -> int:
        """Find a range of equal programs; returns up to how many batches all are replayed.

        0: there is no such range, and every batch may cost a second.
        """
        # A batch at which the runtime refuses the model ends the search for a range only: `demand`
        # meets the same error again, at that batch alone.
        with suppress(OnnxmemError):
            # The first start that works is the lowest, so its range is the widest.
            if any(self._draws(first, last) for first in _FIRST) and self._affine is not None:
                num_events = self._affine.run.runtime_program.num_events
                return max(FEW_REPLAYS, _EVENTS // (num_events + 1))
        return 0 if self.starts_processes else FEW_REPLAYS

    def _draws(self, first: int, last: int) -> bool:
        """Whether programs are the same at two batches and at those checked between them."""
        # onnxmem's own runtimes choose by thresholds of sizes, so a program that is equal at both
        # ends is equal between them; one batch there guards against a wrong assumption.
        parts = 1 + (_BETWEEN if self.is_own else self.num_between)
        batches = sorted({first + (last - first) * part // parts for part in range(parts + 1)})
        if first >= last or len(batches) < _LEAST:
            return False
        runs = [(batch, run) for batch in batches if (run := self._known(batch)) is not None]
        found = AffineRun.through(runs) if len(runs) == len(batches) else None
        if found is not None:
            self._affine = self._joined(found)
        return found is not None

    def _joined(self, found: AffineRun) -> AffineRun:
        """A new range, extended to the end of the known one if both lie on the same lines."""
        # Walks may have extended the known range beyond the new one, and that must not be lost.
        drawn = self._affine
        if drawn is None or not drawn.is_valid_at(found.last) or drawn.last == found.last:
            return found
        batches = (found.first, found.last)
        points = [*((n, found.at(n)) for n in batches), (drawn.last, drawn.at(drawn.last))]
        return AffineRun.through(points) or found

    def _known(self, batch: int) -> RuntimeRun | None:
        """The run by affine sizes, or from a walk, which is cached."""
        if self._affine is not None and self._affine.is_valid_at(batch):
            return self._affine.at(batch)
        if batch not in self._walked:
            self._walked[batch] = self.run_at(batch)
        return self._walked[batch]

    def _widen(self, batch: int) -> None:
        """Extend the range to a batch that was walked, or find a range that contains it."""
        affine = self._affine
        runs = [
            (number, run)
            for number, run in sorted(self._walked.items())
            if run is not None and (affine is None or affine.is_valid_at(number) or number == batch)
        ]
        # Small batches may have another program (`_FIRST`), so the longest suffix that works wins.
        for index in range(len(runs) - _LEAST + 1):
            found = AffineRun.through(runs[index:])
            if found is not None and found.is_valid_at(batch):
                self._affine = found
                return


@dataclass(slots=True)
class DemandCurve:
    """What models need at one batch (or value of a dim) after another."""

    requests: tuple[AnalysisRequest, ...]
    setup: FitRequest
    known: dict[int, Footprint] = field(default_factory=dict)
    """By number, those that were computed."""
    _replays: ReplayDemands | None = field(init=False)

    def __post_init__(self) -> None:
        """Replay one model at any batch; several models or another dim are computed in full."""
        is_plain = self.setup.dim is None and self.setup.deployment.instances == 1
        self._replays = None
        if is_plain and len(self.requests) == 1:
            self._replays = replays_of(self.requests[0].at, self.setup.basis)

    def requested(self) -> int | None:
        """The requested number; ``None`` if a model has no batch, or each another one.

        :raises UsageError: a model does not have the dim, or the models have different values.
        """
        numbers = {self._number(request) for request in self.requests}
        if len(numbers) > 1 and self.setup.dim is not None:
            message = f"the models have different {shortened(self.setup.dim)}; pass --dim NAME=N"
            raise UsageError(message)
        return numbers.pop() if len(numbers) == 1 else None

    @property
    def is_fixed(self) -> bool:
        """Whether the requested shape of an input fixes the number."""
        return any(request.is_fixed(self.setup.dim) for request in self.requests)

    @property
    def accepts_least(self) -> bool:
        """Whether each number is compared by the least that a run takes.

        Beside observed runs it is not: they are of one number, and the least of another is lower.
        """
        return self.setup.accepts_data and all(each.observed is None for each in self.requests)

    def at(self, number: int) -> Footprint | None:
        """What all models need at a number, computed in full; ``None`` if that fails."""
        if number in self.known:
            return self.known[number]
        try:
            return footprint_together(self._at(number), self.setup.basis, self.setup.deployment)
        except OnnxmemError:
            return None

    def demand(self, number: int) -> Demand | None:
        """The same as a demand, by a replay if possible; ``None``: something is left out."""
        if self._replays is not None:
            try:
                run = self._replays.run(number)
                if run is not None:
                    return demand_of(run)
            except OnnxmemError:
                return None
        # Without an upper end nothing is compared, whether the lower one is accepted or not.
        footprint = self.at(number)
        at_most = None if footprint is None else footprint.at_most()
        if footprint is None or at_most is None or footprint.is_whole:
            return None if at_most is None else at_most.demand
        if self.accepts_least:
            return footprint.demand
        # A limit between the two ends gives *unknown*, not *does not fit*: `lower_bytes` says so.
        return replace(at_most.demand, lower_bytes=footprint.total_bytes)

    def draw_lines(self, last: int) -> int:
        """Make demands up to a number cheap, if possible; returns up to which all are evaluated."""
        return FEW_REPLAYS if self._replays is None else self._replays.draw_lines(last)

    def search(self) -> Search:
        """A search for the largest number that fits."""
        accuracy = accuracy_of(self.setup.basis, self.requests[0].settings.recipe)
        return Search(self.setup.limit_bytes, accuracy, self.demand, self.draw_lines)

    def _at(self, number: int) -> list[AnalysisRequest]:
        name = self.setup.dim
        if name is None:
            return [request.at(number) for request in self.requests]
        return [request.at(dims={name: number}) for request in self.requests]

    def _number(self, request: AnalysisRequest) -> int | None:
        binding = request.results.bound.binding
        name = self.setup.dim
        if name is None:
            return binding.batch
        if name not in binding.dims:
            known = ", ".join(map(shortened, binding.dims)) or "none"
            message = f"--dim {shortened(name)}=?: the model does not have this dim; it has {known}"
            raise UsageError(message)
        return binding.dims[name]


def fit(requests: Sequence[AnalysisRequest], setup: FitRequest) -> FitResult:
    """The verdict on models and a device, and the largest batch that fits.

    :raises OnnxmemError: a model cannot be analyzed at its request.
    """
    # The request and the first batch that does not fit are computed in full, because a replay with
    # affine sizes has no names of tensors and no findings.
    curve = DemandCurve(tuple(requests), setup)
    each = [footprint_of(request, setup.basis) for request in requests]
    number, footprint = curve.requested(), combined(each, setup.deployment)
    if number is not None:
        curve.known[number] = footprint
    assessment = _assessed(requests, footprint, setup)
    compared = assessment.compared(setup.limit_bytes, setup.flash_bytes)
    judged = partial(assessment.judged, flash_bytes=setup.flash_bytes)
    search = curve.search()
    max_batch = None
    is_fixed = number is not None and curve.is_fixed
    # A fixed number has no neighbors to search, and weights beyond the flash fail at every number.
    is_sought = number is not None and not is_fixed
    if is_sought:
        max_batch = (
            _none_fits(search) if compared.lacks_flash else max_batch_of(search, setup.basis)
        )
    return FitResult(
        setup=setup,
        requested=TableRow.of(number or 1, compared),
        has_number=number is not None,
        assessment=assessment,
        dims=requests[0].results.bound.binding.dims,
        max_batch=max_batch,
        limiting=_limiting(curve, max_batch),
        power_of_two=_power(search, max_batch, judged),
        table=_table(search, number or 1, max_batch, judged) if is_sought else (),
        instances=_instances(setup, each, compared),
        remarks=(*_remarks(setup), *_cache_remarks(requests)),
        is_fixed=is_fixed,
        each=tuple(map(partial(_alone, setup), requests, each)) if len(requests) > 1 else (),
    )


def _alone(setup: FitRequest, request: AnalysisRequest, footprint: Footprint) -> ModelFit:
    assessment = _assessed((request,), combined((footprint,), setup.deployment), setup)
    return ModelFit(
        path=request.model.path,
        batch=request.results.bound.binding.batch,
        compared=assessment.compared(setup.limit_bytes, setup.flash_bytes),
        doubts=assessment.doubts_at(setup.limit_bytes),
    )


@dataclass(slots=True)
class DeviceAssessments:
    """Assessments of the same models for many devices.

    What models need depends on the compared figure, on the CPU or on the kind of GPU, so each
    combination of these is computed once, whatever the memory of the devices is. Errors are cached
    too.
    """

    requests: Sequence[AnalysisRequest]
    setup: FitRequest
    _known: dict[tuple[AnyBasis, object], Assessment | OnnxmemError] = field(default_factory=dict)

    def on(self, basis: AnyBasis, device: Hardware) -> Assessment:
        """The assessment by a figure, as a device runs the models.

        :raises OnnxmemError: a model cannot be analyzed at its request.
        """
        key = basis, self._trait(basis, device)
        if key not in self._known:
            there = [on_device(request, device, basis) for request in self.requests]
            try:
                self._known[key] = assess(there, replace(self.setup, basis=basis))
            except OnnxmemError as fault:
                self._known[key] = fault
        found = self._known[key]
        if isinstance(found, OnnxmemError):
            raise found
        return found

    def _trait(self, basis: AnyBasis, device: Hardware) -> object:
        """What of a device a figure depends on."""
        if basis is Basis.TORCH:
            recipe = self.requests[0].settings.recipe
            return recipe.cublas_bytes(device.compute_capability), device.gpu_threads
        return device.cpu if basis is Basis.ORT_CPU else None


def assess(requests: Sequence[AnalysisRequest], setup: FitRequest) -> Assessment:
    """What models need at their requests, and the doubts about it.

    :raises OnnxmemError: a model cannot be analyzed at its request.
    """
    footprint = footprint_together(requests, setup.basis, setup.deployment)
    return _assessed(requests, footprint, setup)


def _assessed(
    requests: Sequence[AnalysisRequest], footprint: Footprint, setup: FitRequest
) -> Assessment:
    doubts, findings = _doubts(requests, footprint, setup)
    is_left_to_data = setup.accepts_data and any(
        request.results.data_text() for request in requests
    )
    return Assessment(
        basis=setup.basis,
        footprint=footprint,
        doubts=doubts,
        findings=findings,
        accuracy=accuracy_of(setup.basis, requests[0].settings.recipe),
        is_least_accepted=is_left_to_data and not (footprint.is_whole or doubts),
    )


def max_batch_of(search: Search, basis: AnyBasis) -> MaxBatch | None:
    """The largest number that fits; ``None`` if bytes are unknown at 1."""
    return largest_fitting(search, is_rising=not _may_fall(basis))


def _may_fall(basis: AnyBasis) -> bool:
    """Whether a figure is that of an allocator, which may fall as the batch grows."""
    return basis in _FALLING or isinstance(basis, RuntimeBasis)


def demand_of(run: RuntimeRun) -> Demand:
    """The device memory that a run needs."""
    replayed = run.replay()
    return Demand(
        size_bytes=replayed.total_bytes,
        more_bytes=replayed.more_bytes,
        least_bytes=replayed.least_bytes,
        # A process on the CPU gets pages as it touches them: no allocation fails and is retried.
        taken_in=None if run.runtime_program.is_paged else run.taken_in,
    )


RequestAt = Callable[[int], AnalysisRequest]
"""The request at a batch, or at a context.

:raises OnnxmemError: there is none.
"""


def replays_of(
    request_at: RequestAt, basis: AnyBasis, num_between: int = 1
) -> ReplayDemands | None:
    """The runs that a figure is replayed from; ``None``: it is not a figure of an allocator."""
    if isinstance(basis, RuntimeBasis):
        return ReplayDemands(lambda number: request_at(number).own_run(basis.value), is_own=True)
    if basis is Basis.TORCH:
        return ReplayDemands(lambda number: request_at(number).torch_run(), is_own=False)
    if basis in _FALLING:
        return ReplayDemands(
            lambda number: request_at(number).session_run(basis.value),
            is_own=False,
            starts_processes=True,
            num_between=num_between,
        )
    return None


def _doubts(
    requests: Sequence[AnalysisRequest], footprint: Footprint, setup: FitRequest
) -> tuple[tuple[Doubt, ...], tuple[Finding, ...]]:
    """The doubts about a verdict, and all warnings of the models."""
    found: list[Finding] = []
    doubts: list[Doubt] = []
    for request in requests:
        results = request.results
        findings = (*request.findings(results), *footprint.findings)
        found += findings
        # `_unbound` names the flags that settle unbound dims, and leaves out the one searched.
        others = tuple(each for each in findings if each.code != UNBOUND)
        if results.data_text():
            # What a session leaves out is what the data decide, and `_partial` says what bounds it.
            others = tuple(each for each in others if each.code not in _LEFT_OUT)
        doubts += (*doubts_of(others, setup.accepted), *_unbound(request, setup))
        # Any other doubt names the cause of an incomplete figure, so PARTIAL would only repeat it.
        is_open = not results.is_whole or results.data_nodes
        if is_open and not (footprint.is_whole or doubts):
            # Beside other models the share of this one is not known: with a memory of 0 bytes
            # `_settling` names the limits that lower it, not those that would make it fit.
            alone = setup if len(requests) == 1 else replace(setup, memory_bytes=0)
            doubts += _partial(request, footprint, alone)
    # The doubts above are of the file's graph; a runtime's own program may leave out more.
    is_own = isinstance(setup.basis, RuntimeBasis)
    if is_own and not footprint.is_whole and not doubts and PARTIAL not in setup.accepted:
        text = f"{setup.basis.value} leaves out allocations of unknown size"
        doubts.append(Doubt(PARTIAL, text))
    return tuple(dict.fromkeys(doubts)), tuple(dict.fromkeys(found))


def _partial(request: AnalysisRequest, footprint: Footprint, setup: FitRequest) -> Iterator[Doubt]:
    """Tensors that are left out because their size is unknown, or depends on the data of a run."""
    results = request.results
    dims = results.data_text()
    if not dims:
        if PARTIAL not in setup.accepted:
            yield Doubt(PARTIAL, _left_out(results))
    elif not setup.accepts_data:
        upper_bytes = footprint.upper_bytes
        text = f"at least {format_bytes(footprint.total_bytes)}"
        if footprint.num_observed:
            text += f" ({footprint.observed_text})"
        if upper_bytes is not None:
            text += f" and at most {format_bytes(upper_bytes)}"
        yield Doubt(DATA, f"{text}: {dims}", flags=", ".join(_ways(request, footprint, setup)))
    elif not setup.accepts_partial and (left := _unseen(results, footprint)):
        text = f"the figure is a lower bound, without {left}"
        yield Doubt(PARTIAL, text, flags="onnxmem measure has the process")


def _unseen(results: StageResults, footprint: Footprint) -> str:
    """What has no size whatever data are accepted: of the runs that were observed, or strings."""
    if footprint.num_observed:
        names = footprint.unseen
        where = ", which the observed runs do not show"
    else:
        fed = results.graph.fed_tensors
        written = [x for x in results.graph.tensors.values() if x.role is Role.ACTIVATION]
        strings = (each for each in (*fed, *written) if each.dtype is DType.STRING)
        names = tuple(dict.fromkeys(each.name for each in strings if each.size_bytes is None))
        where = ""
    return f"{results.size_text(names)}{where}" if names else ""


def _ways(request: AnalysisRequest, footprint: Footprint, setup: FitRequest) -> Iterator[str]:
    """What settles a figure that the data of a run decide."""
    results = request.results
    if _may_fall(setup.basis) and footprint.upper_bytes is None:
        # More bytes of a tensor may lower what an allocator reserves: no limit on a dim bounds it.
        yield "no proof gives an allocator's figure an upper end"
        if results.at_most is not None:
            yield "--basis tensors has one"
        if not footprint.num_observed:
            yield "--observe or --observed with --accept data_dependent judges by what runs took"
        return
    elif names := _settling(request, footprint, setup):
        yield f"{results.data_flags(names)} bounds it"
    elif inputs := results.deciding_inputs:
        yield f"--value {inputs[0]}=N sets what decides it"
    if not footprint.num_observed:
        yield "--observe or --observed shows what runs took"


def _settling(request: AnalysisRequest, footprint: Footprint, setup: FitRequest) -> tuple[str, ...]:
    """The limits with which the most may be within the memory; without one, those that lower it."""
    results, basis, limit_bytes = request.results, setup.basis, setup.limit_bytes
    upper_bytes = footprint.upper_bytes
    # A limit can settle the verdict only where the least is within the memory and the most is not.
    is_between = footprint.total_bytes <= limit_bytes < (upper_bytes or limit_bytes + 1)
    is_alone = setup.deployment.instances == 1
    if not (is_between and is_alone and isinstance(basis, Basis)):
        return results.deciding_limits
    return results.settling_limits(lambda found: most_of(request, found, basis), limit_bytes)


def _left_out(results: StageResults) -> str:
    """Why a figure is only a lower bound."""
    unknown = results.activations.unknown_tensors
    if not unknown:
        return "the batch size is fixed in this model"
    return f"tensors of unknown size: {listed(unknown)}; the figure is a lower bound"


def _unbound(request: AnalysisRequest, setup: FitRequest) -> Iterator[Doubt]:
    """Dims without a value, except for the one whose largest value is searched."""
    names = [name for name in request.guessed_dims() if name != setup.dim]
    if names and UNBOUND not in setup.accepted:
        at = ", ".join(f"{shortened(name)} = 1" for name in names)
        until = f"{shortened(dims_line(names, 'N'))} {'is' if len(names) == 1 else 'are'} given"
        yield Doubt(UNBOUND, unbound_dims_text(names), flags=dims_line(names), at=at, until=until)


def _none_fits(search: Search) -> MaxBatch:
    """The result where the weights are too large for the flash, whatever the number is."""
    return MaxBatch(0, None, search.bytes_at(1), "one evaluation")


def _instances(
    setup: FitRequest, footprints: Sequence[Footprint], compared: Comparison
) -> int | None:
    """The largest number of instances; retries are replayed for the requested number only."""
    found = setup.deployment.largest(footprints, setup.limit_bytes)
    if compared.lacks_flash:
        return 0
    if found is None or not compared.is_retried:
        return found
    return max(found, setup.deployment.instances)


def _limiting(curve: DemandCurve, max_batch: MaxBatch | None) -> Footprint | None:
    """What the largest number was found by: the upper end, unless the lower one is accepted."""
    if max_batch is None or max_batch.number is None:
        return None
    found = curve.at(max(max_batch.number, 1))
    if found is None or curve.accepts_least:
        return found
    return found.at_most() or found


def _power(search: Search, max_batch: MaxBatch | None, judged: Judged) -> TableRow | None:
    """The largest power of two up to what fits."""
    if max_batch is None or not max_batch.number:
        return None
    return _row(search, 1 << (max_batch.number.bit_length() - 1), judged)


def _table(
    search: Search, number: int, max_batch: MaxBatch | None, judged: Judged
) -> tuple[TableRow, ...]:
    # Powers of two around the answer, and the pair that proves it: the largest that fits and the
    # next one, which does not.
    numbers = {1, number}
    if max_batch is not None and max_batch.number is not None:
        top = max_batch.number.bit_length()
        numbers |= {1 << power for power in range(max(top - _POWERS, 0), top + 1)}
        numbers |= {max_batch.number, max_batch.number + 1}
    return tuple(
        _row(search, number, judged) for number in sorted(numbers) if 0 < number <= LARGEST_BATCH
    )


def _row(search: Search, number: int, judged: Judged) -> TableRow:
    return TableRow.of(number, judged(search.compared(number)))


def _cache_remarks(requests: Sequence[AnalysisRequest]) -> Iterator[str]:
    """Without --context or --dim the dims of a cache count as 1, so it is almost empty."""
    caches = (request.cache for request in requests if request.context is None)
    if any(part.follows_context for cache in caches if cache for part in cache.parts):
        yield "the model has a key-value cache: --context N sets its number of tokens"


def _remarks(setup: FitRequest) -> tuple[str, ...]:
    remarks = []
    if setup.basis is Basis.MCU and setup.flash_bytes is None:
        remarks.append("whether the weights fit the flash is not checked: its size is unknown")
    return tuple(remarks)
