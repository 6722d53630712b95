"""A ranking of devices for models, and the largest batch of a language model by context.

``rank`` compares models with every device of a catalog; ``fit_at`` finds the largest batch at each
context. Each figure is that of ``fit`` at the dims of a decode step or of a prefill, found by the
same search, and evaluated at the number and at the next one. The bytes of a prefill grow with the
square of its context, which the search handles like any other polynomial.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.fitting.assessing import (
    Assessment,
    DemandCurve,
    DeviceAssessments,
    FitRequest,
    FitResult,
    assess,
    demand_of,
    fit,
    max_batch_of,
    replays_of,
)
from onnxmem.analysis.fitting.footprints import footprint_together, on_device
from onnxmem.analysis.fitting.searching import MaxBatch, Search
from onnxmem.analysis.fitting.verdicts import (
    AnyBasis,
    Basis,
    Comparison,
    Demand,
    Verdict,
    accuracy_of,
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
"""How many contexts are tried if one is requested: 512, 1024, 2048 and so on."""
_APART: Final = (
    "past and present are assumed to be separate buffers; one shared buffer needs less memory: see "
    "onnxmem MODEL --context N"
)
_BETWEEN: Final = 2
"""Walks between two contexts that prove the sizes between them to be polynomials of degree two."""
_SLOW: Final = frozenset({Basis.ORT_CPU, Basis.ORT_CUDA})
"""Each figure needs the replay of a session, so only the requested contexts are tried."""


def fit_request(
    memory: Device | int | None,
    *,
    train: bool,
    runtime: str | None,
    basis: str | None,
    accepted: Iterable[str],
    reserve_bytes: int,
) -> FitRequest:
    """What is compared with a device, or with a size in bytes; ``None``: with no limit.

    :raises UsageError: ``basis`` is ``process`` for inference without a runtime.
    """
    device = memory if isinstance(memory, Device) else None
    kind = None if device is None else device.kind
    return FitRequest(
        memory_bytes=(memory.limit_bytes if isinstance(memory, Device) else memory) or 0,
        reserve_bytes=reserve_bytes,
        flash_bytes=None if device is None else device.flash_bytes,
        basis=basis_for(kind, train=train, runtime=runtime, basis=basis),
        accepted=frozenset(accepted),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One device and the verdict on it."""

    device: Device
    assessment: Assessment
    limit_bytes: int
    compared: Comparison
    bound: Bound
    """Of one instance of the first model."""
    cpu: str | None = None
    """The device's CPU, if the figure depends on it."""
    cublas_bytes: int | None = None
    """The workspace of a cuBLAS handle, if it is not that of an unknown GPU."""

    @property
    def basis(self) -> AnyBasis:
        """The figure that is compared."""
        return self.assessment.basis

    @property
    def verdict(self) -> Verdict:
        """The verdict on the device."""
        return self.compared.verdict

    @property
    def taken_bytes(self) -> int:
        """The bytes that the models take of the device; where they fail, those that they need."""
        taken_bytes = self.compared.num_bytes
        return self.assessment.footprint.total_bytes if taken_bytes is None else taken_bytes

    @property
    def margin_bytes(self) -> int:
        """The bytes that stay free; below 0, those that are missing."""
        return self.limit_bytes - self.taken_bytes


@dataclass(frozen=True, slots=True)
class ContextRow:
    """The largest batch at one context; ``None`` if a step or its bytes are unknown."""

    context: int
    max_batches: Mapping[Step, MaxBatch | None]


@dataclass(frozen=True, slots=True)
class Prefill:
    """The verdict on a prompt of all tokens of a context at once, at the requested batch."""

    context: int
    assessment: Assessment
    compared: Comparison


@dataclass(frozen=True, slots=True)
class Contexts:
    """The table, and the longest context at the requested batch."""

    rows: tuple[ContextRow, ...]
    batch: int | None
    """``None``: the model has no batch."""
    longest: Mapping[Step, MaxBatch | None]
    remarks: tuple[str, ...] = ()
    prefill: Prefill | None = None
    """Of the first context; ``None``: the model has no prefill, or cannot be analyzed there."""


def rank(
    requests: Sequence[AnalysisRequest],
    devices: Iterable[Device],
    setup: FitRequest,
    runtime: str | None,
) -> tuple[Ranked, ...]:
    """Compare models with every device at the requested batch: what fits first, then by size.

    Microcontrollers are left out for training.

    :raises OnnxmemError: a model cannot be analyzed.
    """
    settings = requests[0].settings
    work = work_of(requests[0].results)
    assessments = DeviceAssessments(requests, setup)
    ranked = []
    for device in devices:
        if settings.train and device.kind == "mcu":
            continue
        basis = basis_for(device.kind, train=settings.train, runtime=runtime, basis=settings.basis)
        # The buffers of sums are those of an unnamed GPU: a replay for each number of threads would
        # take a minute for a large network, to move the figure by less than its error.
        assessment = assessments.on(basis, replace(device, multiprocessors=None))
        # A reserve may exceed a small device.
        limit_bytes = max(device.limit_bytes - setup.reserve_bytes, 0)
        ranked.append(
            Ranked(
                device=device,
                assessment=assessment,
                limit_bytes=limit_bytes,
                compared=assessment.compared(limit_bytes, device.flash_bytes),
                bound=bound(work, device),
                cpu=device.cpu if basis is Basis.ORT_CPU else None,
                cublas_bytes=_own_cublas_bytes(requests, device) if basis is Basis.TORCH else None,
            )
        )
    return tuple(sorted(ranked, key=lambda each: (_ORDER.index(each.verdict), each.limit_bytes)))


def _own_cublas_bytes(requests: Sequence[AnalysisRequest], device: Device) -> int | None:
    """The workspace of a cuBLAS handle on a device, if a model uses it and it is not the usual."""
    steps = (request.results.training for request in requests)
    recipe = requests[0].settings.recipe
    # The size of cuBLAS's workspace follows from the compute capability of the device.
    own_bytes = recipe.cublas_bytes(device.compute_capability)
    is_usual = own_bytes == recipe.cublas_bytes()
    is_used = any(step is not None and step.multiplies_matrices for step in steps)
    return own_bytes if is_used and not is_usual else None


def fit_at(
    requests: Sequence[AnalysisRequest], setup: FitRequest, contexts: Sequence[int]
) -> tuple[FitResult, Contexts | None]:
    """The verdict on a decode step at the first context, that on its prefill, and the table.

    Without a cache or a decode step, the verdict on the model as it is, with a note.

    :raises OnnxmemError: a model cannot be analyzed at its request.
    """
    try:
        at = at_context(requests, contexts[0], Step.DECODE)
    except NoContextError as fault:
        result = fit(requests, setup)
        remark = f"--context has no effect: {fault}"
        return replace(result, remarks=(*result.remarks, remark)), None
    if setup.dim is not None:
        caches = (request.cache for request in requests if request.cache is not None)
        for cache in caches:
            refuse_bound([setup.dim], numbers_at(cache, Step.DECODE, contexts[0])[1])
    table = contexts_of(requests, setup, contexts)
    return fit(at, setup), replace(table, prefill=_prefill(requests, setup, contexts[0]))


def _prefill(
    requests: Sequence[AnalysisRequest], setup: FitRequest, context: int
) -> Prefill | None:
    try:
        at = at_context(_emptied(requests), context, Step.PREFILL)
        assessment = assess(at, setup)
    except OnnxmemError:
        return None
    compared = assessment.compared(setup.limit_bytes, setup.flash_bytes)
    return Prefill(context, assessment, compared)


def in_ram_alone(requests: Sequence[AnalysisRequest], setup: FitRequest) -> Assessment | None:
    """What a microcontroller, whose flash holds the weights, needs of so much RAM.

    ``None`` where the models cannot be analyzed as one runs them.
    """
    try:
        of_mcu = [on_device(request, None, Basis.MCU) for request in requests]
        return assess(of_mcu, replace(setup, basis=Basis.MCU))
    except OnnxmemError:
        return None


def at_context(
    requests: Sequence[AnalysisRequest], context: int, step: Step
) -> list[AnalysisRequest]:
    """Requests at a context; that of a model without a cache is unchanged.

    :raises NoContextError: no model has a cache, or one has no such step.
    """
    if all(request.cache is None for request in requests):
        message = "no key-value cache is recognized among the inputs"
        raise NoContextError(message)
    return [
        request if request.cache is None else request.at_context(context, step)
        for request in requests
    ]


def contexts_of(
    requests: Sequence[AnalysisRequest], setup: FitRequest, contexts: Sequence[int]
) -> Contexts:
    """The largest batch at each context, and the longest context; ``setup.dim`` is ignored."""
    setup = replace(setup, dim=None)
    bases: dict[Step, Sequence[AnalysisRequest]] = {}
    remarks = []
    for step in Step:
        try:
            at_context(requests, contexts[0], step)
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
        for context in (_tried(setup, contexts, longest) if batch is not None else ())
    )
    return Contexts(tuple(rows), batch, MappingProxyType(longest), tuple(remarks))


def _emptied(requests: Sequence[AnalysisRequest]) -> list[AnalysisRequest]:
    """Requests with 0 past tokens in the file, made once so that contexts share its graphs."""
    return [
        request
        if request.cache is None
        else request.without(numbers_at(request.cache, Step.PREFILL, _shortest(request))[1])
        for request in requests
    ]


def _shortest(request: AnalysisRequest) -> int:
    """The shortest context for which the model has a prefill."""
    symbols = request.cache.symbols if request.cache else None
    return (symbols.fixed_sequence if symbols else None) or 1


def _tried(
    setup: FitRequest, contexts: Sequence[int], longest: Mapping[Step, MaxBatch | None]
) -> list[int]:
    """The requested contexts; beside a single one, 512 and its doubles as far as they fit."""
    # Each further context is a search of its own, which replays a runtime's arena at many batches.
    if len(contexts) > 1 or setup.basis in _SLOW:
        return sorted({*contexts})
    ends = [max_batch.number for max_batch in longest.values() if max_batch is not None]
    doubles = [_FIRST << power for power in range(_ROWS)]
    fitting = [context for context in doubles if any(end is None or context <= end for end in ends)]
    return sorted({*contexts, *fitting})


def _largest(
    requests: Sequence[AnalysisRequest], setup: FitRequest, step: Step, context: int
) -> MaxBatch | None:
    """The largest batch at a context."""
    try:
        at = at_context(requests, context, step)
    except OnnxmemError:
        return None
    curve = DemandCurve(tuple(at), setup)
    return None if curve.is_fixed else max_batch_of(curve.search(), setup.basis)


def _longest(requests: Sequence[AnalysisRequest], setup: FitRequest, step: Step) -> MaxBatch | None:
    """The longest context at the requested batch."""
    # A step allocates the same blocks in the same order at every context. Those of a decode step
    # are affine in it, those of a prefill have its square, so that four walks show all of them.
    # A decode step is counted by the tokens before its own, without which no size is below 0.
    other = 1 if step is Step.DECODE else 0
    is_alone = len(requests) == 1 and setup.deployment.instances == 1
    replays = (
        replays_of(
            lambda before: at_context(requests, before + other, step)[0], setup.basis, _BETWEEN
        )
        if is_alone
        else None
    )

    def demand(context: int) -> Demand | None:
        try:
            run = replays.run(context - other) if replays is not None and context > other else None
            if run is not None:
                return demand_of(run)
            at = at_context(requests, context, step)
            footprint = footprint_together(at, setup.basis, setup.deployment)
        except OnnxmemError:
            return None
        return footprint.demand if footprint.is_whole else None

    accuracy = accuracy_of(setup.basis, requests[0].settings.recipe)
    search = Search(setup.limit_bytes, accuracy, demand)
    if replays is not None:
        search.prepare = lambda last: replays.draw_lines(last - other)
    return max_batch_of(search, setup.basis)
