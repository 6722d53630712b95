"""How far models go on devices: a ranking of devices, and the contexts of a language model.

``rank`` compares models with every device of a catalog; ``fit_at`` has the largest batch at each
context: each figure is that of ``fit`` at the dims of a decode step or of a prefill, found by the
same search, and evaluated at the number and at the next one. A prefill's bytes are a square of its
context, which the search solves like any other polynomial.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.fitting.assessing import (
    Assessment,
    DemandCurve,
    FitRequest,
    FitResult,
    assess,
    fit,
    max_batch_of,
)
from onnxmem.analysis.fitting.footprints import footprint_together, on_device
from onnxmem.analysis.fitting.searching import MaxBatch, Search
from onnxmem.analysis.fitting.verdicts import (
    ACCURACIES,
    AnyBasis,
    Basis,
    Demand,
    Verdict,
    basis_for,
)
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.devices import Device
from onnxmem.decisions.roofline import Bound, bound, work_of
from onnxmem.errors import OnnxmemError
from onnxmem.kv_cache.steps import NoContextError, Step, numbers_at, refuse_bound

_ORDER: Final = (Verdict.FITS, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.OVER)
_FIRST: Final = 512
_ROWS: Final = 8
"""Contexts that are tried where one is asked for: 512 and its doubles."""
_APART: Final = (
    "past and present are held apart; in one buffer they take less: see onnxmem MODEL --context N"
)
_SLOW: Final = frozenset({Basis.ORT_CPU, Basis.ORT_CUDA})
"""A session is replayed for each figure: then only the contexts asked for are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One device, and what a model does on it."""

    device: Device
    assessment: Assessment
    limit_bytes: int
    verdict: Verdict
    bound: Bound
    """Of one instance of the first model."""
    cpu: str | None = None
    """The device's CPU, where the figure is of it."""

    @property
    def basis(self) -> AnyBasis:
        """The figure that is compared."""
        return self.assessment.basis

    @property
    def num_bytes(self) -> int:
        """What is wanted."""
        return self.assessment.footprint.total_bytes

    @property
    def margin_bytes(self) -> int:
        """What is left; below 0, what is missing."""
        return self.limit_bytes - self.num_bytes


@dataclass(frozen=True, slots=True)
class ContextRow:
    """The largest batch at one context; ``None`` where a step or its bytes are unknown."""

    context: int
    max_batches: Mapping[Step, MaxBatch | None]


@dataclass(frozen=True, slots=True)
class Contexts:
    """The table, and the longest context at the batch asked for."""

    rows: tuple[ContextRow, ...]
    batch: int | None
    """``None``: the model has none."""
    longest: Mapping[Step, MaxBatch | None]
    remarks: tuple[str, ...] = ()


def rank(
    requests: Sequence[AnalysisRequest],
    devices: Iterable[Device],
    setup: FitRequest,
    runtime: str | None,
) -> tuple[Ranked, ...]:
    """Compare models with every device, at the batch asked for: what fits first, then by size.

    Microcontrollers are left out of training.

    :raises OnnxmemError: a model cannot be worked out.
    """
    asked = requests[0].settings
    work = work_of(requests[0].results)
    found: dict[tuple[AnyBasis, str | None], Assessment] = {}
    ranked = []
    for device in devices:
        if asked.train and device.kind == "mcu":
            continue
        basis = basis_for(device.kind, train=asked.train, runtime=runtime, basis=asked.basis)
        cpu = device.cpu if basis is Basis.ORT_CPU else None
        if (basis, cpu) not in found:
            there = [on_device(request, cpu, basis) for request in requests]
            found[basis, cpu] = assess(there, replace(setup, basis=basis))
        assessment = found[basis, cpu]
        limit_bytes = max(device.limit_bytes - setup.reserve_bytes, 0)
        ranked.append(
            Ranked(
                device=device,
                assessment=assessment,
                limit_bytes=limit_bytes,
                verdict=assessment.verdict(limit_bytes, device.flash_bytes),
                bound=bound(work, device),
                cpu=cpu,
            )
        )
    return tuple(sorted(ranked, key=lambda each: (_ORDER.index(each.verdict), each.limit_bytes)))


def fit_at(
    requests: Sequence[AnalysisRequest], setup: FitRequest, asked: Sequence[int]
) -> tuple[FitResult, Contexts | None]:
    """The answer for a decode step at the first context, and the table over contexts.

    Without a cache, or such a step, the answer is that of the model as it is, with a remark.

    :raises OnnxmemError: a model cannot be worked out at what is asked.
    """
    try:
        at = at_context(requests, asked[0], Step.DECODE)
    except NoContextError as fault:
        answer = fit(requests, setup)
        remark = f"--context has no effect: {fault}"
        return replace(answer, remarks=(*answer.remarks, remark)), None
    if setup.dim is not None:
        caches = (request.cache for request in requests if request.cache is not None)
        for cache in caches:
            refuse_bound([setup.dim], numbers_at(cache, Step.DECODE, asked[0])[1])
    answer = fit(at, setup)
    return answer, contexts_of(requests, answer.setup, asked)


def at_context(
    requests: Sequence[AnalysisRequest], context: int, step: Step
) -> list[AnalysisRequest]:
    """Requests at a context; a model without a cache is asked as it was.

    :raises NoContextError: no model has a cache, or one has no such step.
    """
    if all(request.cache is None for request in requests):
        message = "no key-value cache is recognised among the inputs"
        raise NoContextError(message)
    return [
        request if request.cache is None else request.at_context(context, step)
        for request in requests
    ]


def contexts_of(
    requests: Sequence[AnalysisRequest], setup: FitRequest, asked: Sequence[int]
) -> Contexts:
    """The largest batch at each context, and the longest context; a dim is not sought here."""
    setup = replace(setup, dim=None)
    bases: dict[Step, Sequence[AnalysisRequest]] = {}
    remarks = []
    for step in Step:
        try:
            at_context(requests, asked[0], step)
            bases[step] = _emptied(requests) if step is Step.PREFILL else requests
        except NoContextError as fault:
            remarks.append(f"no {step.value} figures: {fault}")
    if any(request.cache and request.cache.shared for request in requests):
        remarks.append(_APART)
    longest = {step: _longest(base, setup, step) for step, base in bases.items()}
    batch = requests[0].results.bound.binding.batch
    rows = (
        ContextRow(
            context,
            {step: _largest(base, setup, step, context) for step, base in bases.items()},
        )
        for context in (_tried(setup, asked, longest) if batch is not None else ())
    )
    return Contexts(tuple(rows), batch, MappingProxyType(longest), tuple(remarks))


def _emptied(requests: Sequence[AnalysisRequest]) -> list[AnalysisRequest]:
    """Once for all contexts, so that what is made of the file is made once too."""
    return [
        request
        if request.cache is None
        else request.without(numbers_at(request.cache, Step.PREFILL, _shortest(request))[1])
        for request in requests
    ]


def _shortest(request: AnalysisRequest) -> int:
    """A context that has a prefill."""
    symbols = request.cache.symbols if request.cache else None
    return (symbols.fixed_sequence if symbols else None) or 1


def _tried(
    setup: FitRequest, asked: Sequence[int], longest: Mapping[Step, MaxBatch | None]
) -> list[int]:
    """Contexts as asked; one alone, among 512 and its doubles as far as they fit."""
    if len(asked) > 1 or setup.basis in _SLOW:
        return sorted({*asked})
    ends = [max_batch.number for max_batch in longest.values() if max_batch is not None]
    doubles = [_FIRST << power for power in range(_ROWS)]
    fitting = [context for context in doubles if any(end is None or context <= end for end in ends)]
    return sorted({*asked, *fitting})


def _largest(
    requests: Sequence[AnalysisRequest], setup: FitRequest, step: Step, context: int
) -> MaxBatch | None:
    """The largest batch at a context."""
    try:
        at = at_context(requests, context, step)
    except OnnxmemError:
        return None
    search = DemandCurve(tuple(at), setup).search()
    return max_batch_of(search, setup.basis)


def _longest(requests: Sequence[AnalysisRequest], setup: FitRequest, step: Step) -> MaxBatch | None:
    """The longest context at the batch asked for."""

    def demand(context: int) -> Demand | None:
        try:
            at = at_context(requests, context, step)
            footprint = footprint_together(at, setup.basis, setup.deployment)
        except OnnxmemError:
            return None
        return footprint.demand if footprint.is_whole else None

    search = Search(setup.limit_bytes, ACCURACIES[setup.basis], demand)
    return max_batch_of(search, setup.basis)
