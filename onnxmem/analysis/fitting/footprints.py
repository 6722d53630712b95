"""What one instance of a model takes of a device's memory, and what instances share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, Final

from onnxmem.analysis.fitting.verdicts import AnyBasis, Basis, Demand, RuntimeBasis
from onnxmem.analysis.request import AnalysisRequest, StageResults, request_for
from onnxmem.errors import Finding, OnnxmemError
from onnxmem.model.files import ModelSource, load
from onnxmem.model.input_values import InputValueError
from onnxmem.program.program import Allocation
from onnxmem.runtimes.assumed import NO_TERM, Assumed
from onnxmem.runtimes.base import RuntimeFailedError, RuntimeRun
from onnxmem.runtimes.onnxruntime.process.loading import MEASURED
from onnxmem.settings import Settings
from onnxmem.units import sum_known

_LISTED: Final = 3
"""Tensors that are named where a size is limited."""


class NoFigureError(OnnxmemError):
    """The figure that was asked for cannot be had of this model."""

    code: ClassVar[str] = "no_figure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a device must have for one instance of a model, in bytes."""

    total_bytes: int
    least_bytes: int = 0
    """Of that: what no allocator gets by without; it does not fall as the batch grows."""
    context: Assumed = NO_TERM
    """Of that: CUDA itself."""
    workspace: Assumed = NO_TERM
    """Of that: cuDNN's convolutions."""
    range_bytes: int = 0
    """Beyond that: with the BatchNormalizations of which the file does not tell."""
    common_bytes: int = 0
    """Of that: once, however many instances one process serves: the process, or its context."""
    shared_bytes: int = 0
    """Of that: what instances of one model can have in common, its weights."""
    weight_bytes: int | None = None
    """Of the file."""
    is_whole: bool = True
    """False: something is left out, and the total is a lower bound."""
    phase: str | None = None
    """Of a training step, in which the most is alive."""
    node: str | None = None
    """At which the most is alive."""
    tensors: tuple[Allocation, ...] = ()
    """The largest that are alive there."""
    findings: tuple[Finding, ...] = ()
    """What the figure of a runtime leaves out."""
    runs_in: Callable[[int], bool] | None = field(default=None, compare=False, repr=False)
    """Whether it gets by with fewer bytes of the device, by its allocator's retries."""

    @property
    def fixed_bytes(self) -> int:
        """What no instance has to itself."""
        return self.common_bytes + self.shared_bytes

    @property
    def own_bytes(self) -> int:
        """What every instance has to itself."""
        return self.total_bytes - self.common_bytes - self.shared_bytes

    @property
    def demand(self) -> Demand:
        """What it wants of a device."""
        return Demand(
            size_bytes=self.total_bytes,
            more_bytes=self.context.more_bytes + self.workspace.more_bytes,
            range_bytes=self.range_bytes,
            least_bytes=self.least_bytes,
            runs_in=self.runs_in,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How many of each model there are, and whether they share weights."""

    instances: int = 1
    shares_weights: bool = False

    def bytes_of(self, footprints: Sequence[Footprint]) -> int:
        """All instances of all models together, as one server's process; trainings are apart."""
        return max((each.common_bytes for each in footprints), default=0) + sum(
            self.instances * each.own_bytes
            + each.shared_bytes * (1 if self.shares_weights else self.instances)
            for each in footprints
        )

    def least_bytes_of(self, footprints: Sequence[Footprint]) -> int:
        """Below this they fail for certain; it does not fall as the batch grows."""
        least = [
            replace(each, total_bytes=max(each.least_bytes, each.fixed_bytes))
            for each in footprints
        ]
        return self.bytes_of(least)

    def largest(self, footprints: Sequence[Footprint], limit_bytes: int) -> int | None:
        """The largest number of instances of each; ``None`` where one more takes nothing."""
        one, two = (replace(self, instances=count).bytes_of(footprints) for count in (1, 2))
        if one > limit_bytes:
            return 0
        return None if two == one else 1 + (limit_bytes - one) // (two - one)


def footprint_of(request: AnalysisRequest, basis: AnyBasis) -> Footprint:
    """Work out what one instance takes, in full.

    :raises OnnxmemError: the dims do not fit the model, or it has no such figure.
    """
    results = request.results
    if isinstance(basis, RuntimeBasis):
        footprint = _of_runtime(request, results, basis.value)
    elif basis in {Basis.ORT_CPU, Basis.ORT_CUDA}:
        footprint = _session(request, results, basis)
    else:
        footprint = _READERS[basis](request, results)
    return replace(footprint, weight_bytes=results.weight_bytes)


def footprint_together(
    requests: Sequence[AnalysisRequest], basis: AnyBasis, deployment: Deployment
) -> Footprint:
    """What a deployment of several models takes.

    :raises OnnxmemError: the dims do not fit a model, or one has no such figure.
    """
    return combined([footprint_of(request, basis) for request in requests], deployment)


def combined(footprints: Sequence[Footprint], deployment: Deployment) -> Footprint:
    """Several models as one: the node and the tensors are those of the largest.

    What each allocator makes of the others' pressure is not replayed.
    """
    if len(footprints) == 1 and deployment.instances == 1:
        return footprints[0]
    largest = max(footprints, key=lambda each: each.total_bytes)
    contexts = [each.context for each in footprints]
    if not largest.common_bytes:
        # Each training is a process of its own.
        contexts *= deployment.instances
    else:
        contexts = [max(contexts, key=lambda term: term.high_bytes)]
    return replace(
        largest,
        total_bytes=deployment.bytes_of(footprints),
        least_bytes=deployment.least_bytes_of(footprints),
        runs_in=None,
        context=Assumed.together(contexts),
        workspace=Assumed.together([each.workspace for each in footprints] * deployment.instances),
        range_bytes=deployment.instances * sum(each.range_bytes for each in footprints),
        common_bytes=max(each.common_bytes for each in footprints),
        shared_bytes=sum(each.shared_bytes for each in footprints),
        weight_bytes=sum_known(each.weight_bytes for each in footprints),
        is_whole=all(each.is_whole for each in footprints),
        findings=tuple(finding for each in footprints for finding in each.findings),
    )


def request_of(source: ModelSource, settings: Settings) -> AnalysisRequest:
    """Read a model and what is asked of it; nothing is worked out yet.

    :raises OnnxmemError: the model cannot be read.
    """
    file = load(source)
    return request_for(file, settings, file)


def on_device(request: AnalysisRequest, device_cpu: str | None, basis: AnyBasis) -> AnalysisRequest:
    """Ask the same on a device's CPU; only onnxruntime's CPU kernels depend on it."""
    if device_cpu is None or basis is not Basis.ORT_CPU:
        return request
    return replace(request, settings=replace(request.settings, cpu=device_cpu))


def _torch(request: AnalysisRequest, results: StageResults) -> Footprint:
    step = _step(request, results)
    memory = request.torch_memory(results)
    if memory is None:
        message = "no training is asked for"
        raise NoFigureError(message)
    context = request.torch_context

    def runs_in(limit_bytes: int) -> bool:
        left_bytes = max(limit_bytes - context.size_bytes, 0)
        replayed = request.torch_memory(results, left_bytes)
        return replayed is not None and not replayed.is_out_of_memory

    return replace(
        step,
        total_bytes=memory.total_bytes,
        least_bytes=memory.requested_peak_bytes + context.size_bytes,
        context=context,
        workspace=request.workspace(results),
        runs_in=runs_in,
    )


def _of_runtime(request: AnalysisRequest, results: StageResults, name: str) -> Footprint:
    """What a runtime takes that was given as an object."""
    try:
        run = request.own_run(name)
        replayed = run.replay()
    except RuntimeFailedError as fault:
        raise NoFigureError(str(fault)) from fault
    peak, overheads = replayed.replay.peak, run.overheads
    live = [each for each in replayed.replay.live_set(peak) if each.size_bytes]
    return Footprint(
        total_bytes=replayed.total_bytes,
        least_bytes=replayed.least_bytes,
        context=overheads.context,
        workspace=overheads.workspace,
        common_bytes=overheads.outside_bytes,
        is_whole=run.made.is_complete and results.bound.follows_batch,
        phase=peak.phase or None,
        node=peak.node or None,
        tensors=tuple(live[:_LISTED]),
        findings=run.made.diagnostics,
        runs_in=run.runs_in,
    )


def _step(request: AnalysisRequest, results: StageResults) -> Footprint:  # noqa: ARG001 - one of several readers
    training = results.training
    if training is None:
        message = "no training is asked for"
        raise NoFigureError(message)
    live = training.live_at_peak()[:_LISTED]
    return Footprint(
        total_bytes=training.peak_bytes,
        range_bytes=_range_bytes(results),
        least_bytes=training.peak_bytes,
        is_whole=results.is_whole,
        phase=training.peak_phase.value,
        node=training.peak_node,
        tensors=live,
    )


def _range_bytes(results: StageResults) -> int:
    """By how much the step's peak is larger with what the file leaves open; 0 where it does not."""
    if results.training is None or not results.training.batchnorms.unknown:
        return 0
    peaks = results.training_range
    return 0 if peaks is None else peaks.high_bytes - peaks.low_bytes


def _total(request: AnalysisRequest, results: StageResults) -> Footprint:  # noqa: ARG001 - one of several readers
    memory, num_bytes = results.activations, results.total_bytes
    if num_bytes is None:
        message = "no tensor's size is known"
        raise NoFigureError(message)
    live = memory.live_at_peak[:_LISTED]
    return Footprint(
        total_bytes=num_bytes,
        least_bytes=num_bytes,
        shared_bytes=results.weight_bytes or 0,
        is_whole=results.is_whole,
        node=memory.peak_node,
        tensors=live,
    )


def _mcu(request: AnalysisRequest, results: StageResults) -> Footprint:
    footprint = _total(request, results)
    num_bytes = footprint.total_bytes - footprint.shared_bytes
    return replace(footprint, total_bytes=num_bytes, least_bytes=num_bytes, shared_bytes=0)


def _session(request: AnalysisRequest, results: StageResults, basis: Basis) -> Footprint:
    """A session's figure; sessions of one process can share weights that no arena holds."""
    footprint = _total(request, results)
    try:
        runtime, graph = request.session(basis.value)
        made, overheads = runtime.program(graph), runtime.overheads(graph)
        arena, unknown = made.session.figures()
    except InputValueError:
        raise
    except OnnxmemError as fault:
        raise NoFigureError(str(fault)) from fault
    outside_bytes = overheads.outside_bytes
    own_bytes = arena.resident_peak_bytes + overheads.workspace.size_bytes
    num_bytes = made.total_bytes(arena.held_steady_bytes, arena.steady_regions) + outside_bytes
    common_bytes = min(_BEFORE, num_bytes) if made.is_paged else overheads.context.size_bytes
    run = RuntimeRun(runtime, made, overheads)
    return replace(
        footprint,
        total_bytes=num_bytes,
        least_bytes=arena.base_bytes + arena.requested_peak_bytes + outside_bytes,
        context=overheads.context,
        workspace=overheads.workspace,
        common_bytes=common_bytes,
        shared_bytes=max(min(footprint.shared_bytes, num_bytes - common_bytes - own_bytes), 0),
        node=footprint.node if arena.peak_node is None else arena.peak_node.name,
        is_whole=footprint.is_whole and not unknown.tensors,
        findings=made.diagnostics,
        # A CPU's pages are taken as they are touched: there nothing fails and is tried again.
        runs_in=None if made.is_paged else run.runs_in,
    )


_BEFORE: Final = MEASURED.process_bytes + MEASURED.library_bytes + MEASURED.running_bytes
"""What a process on the CPU has however many sessions there are."""
_READERS: Final[Mapping[Basis, Callable[[AnalysisRequest, StageResults], Footprint]]] = (
    MappingProxyType(
        {
            Basis.TORCH: _torch,
            Basis.STEP: _step,
            Basis.TOTAL: _total,
            Basis.MCU: _mcu,
        }
    )
)
