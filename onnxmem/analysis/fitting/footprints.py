"""The device memory that one instance of a model needs, and what instances share.

``total = common + shared + own``: n instances in one process take ``common + n x (shared + own)``,
or ``common + shared + n x own`` if they share weights (``Deployment``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, Self

from onnxmem.analysis.fitting.verdicts import AnyBasis, Basis, Demand, RuntimeBasis
from onnxmem.analysis.request import AnalysisRequest, StageResults, at_observed, request_for
from onnxmem.errors import Finding, OnnxmemError, shortened
from onnxmem.model.files import ModelSource, load
from onnxmem.model.input_values import InputValueError
from onnxmem.program.program import Allocation
from onnxmem.runtimes.assumed import NO_TERM, Assumed
from onnxmem.runtimes.base import RuntimeFailedError, RuntimeRun
from onnxmem.runtimes.ideal.activation_memory import ActivationMemory
from onnxmem.settings import Settings
from onnxmem.units import sum_known

if TYPE_CHECKING:
    from onnxmem.model.observed import GraphRun, Observed
    from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures
    from onnxmem.runtimes.torch.memory import TrainingMemory

_SEVERAL: Final = 2
_LISTED: Final = 3
"""How many of the largest tensors at the peak are listed."""


_INTEGERS: Final = (
    "pairs of QuantizeLinear and DequantizeLinear are fused into integer kernels, as runtimes of "
    "microcontrollers have them; onnxmem MODEL has the figures of the file's graph"
)


class NoFigureError(OnnxmemError):
    """The requested figure does not exist for this model."""

    code: ClassVar[str] = "no_figure"


@dataclass(frozen=True, slots=True)
class PeakAt:
    """Where a peak is, and what is alive there."""

    phase: str | None = None
    """Of a training step."""
    node: str | None = None
    tensors: tuple[Allocation, ...] = ()
    """The largest."""

    @classmethod
    def of_inference(cls, memory: ActivationMemory) -> Self:
        """The peak of activations."""
        return cls(None, memory.peak_node, memory.live_at_peak[:_LISTED])

    @classmethod
    def of_step(cls, training: "TrainingMemory") -> Self:
        """The peak of a training step."""
        live = training.live_at_peak()[:_LISTED]
        return cls(training.peak_phase.value, training.peak_node, live)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one instance of a model needs of a device, in bytes."""

    total_bytes: int
    least_bytes: int = 0
    """A lower bound for every allocator; it never falls as the batch grows."""
    context: Assumed = NO_TERM
    """The CUDA context, included in the total."""
    workspace: Assumed = NO_TERM
    """The workspace of cuDNN's convolutions, included in the total."""
    heap_bytes: int = 0
    """Beyond the total: what the process takes more where its heap ends in the worst state."""
    range_bytes: int = 0
    """Beyond the total: what BatchNormalizations add that the file may or may not have folded."""
    common_bytes: int = 0
    """Needed once, however many instances one process serves: the process or its CUDA context."""
    shared_bytes: int = 0
    """What instances of one model can share: its weights."""
    weight_bytes: int | None = None
    """Bytes of the weights in the file."""
    is_whole: bool = True
    """False: the total is a lower bound."""
    upper_bytes: int | None = None
    """The total at the upper end of what the data of a run decide; ``None``: a dim has no upper
    end, the batch is fixed in the model, or the figure is that of an allocator, which may fall as
    tensors grow."""
    peak: PeakAt = PeakAt()
    """Where the total is."""
    upper_peak: PeakAt | None = None
    """Where the upper end is; ``None``: where the total is."""
    findings: tuple[Finding, ...] = ()
    """What the figure of a runtime does not include."""
    num_observed: int = 0
    """Runs that were observed: the total is that of the largest, and other inputs may take more."""
    are_random: bool = False
    """Whether all of them were of random inputs."""
    iterations: Mapping[str, int] = field(default_factory=dict)
    """The iterations of each Loop in the largest of them."""
    unseen: tuple[str, ...] = ()
    """Tensors whose size one of them does not show, such as strings."""
    taken_in: Callable[[int], int | None] | None = field(default=None, compare=False, repr=False)
    """What it takes of a device with fewer bytes, by retries of its allocator (``Demand``)."""

    @property
    def fixed_bytes(self) -> int:
        """What several instances share."""
        return self.common_bytes + self.shared_bytes

    @property
    def own_bytes(self) -> int:
        """What each instance needs for itself."""
        return self.total_bytes - self.common_bytes - self.shared_bytes

    @property
    def observed_text(self) -> str:
        """Of which run the total is; empty: of none that was observed."""
        if not self.num_observed:
            return ""
        counts = [f"{shortened(name)}: {count:,}" for name, count in self.iterations.items()]
        of_loops = f", iterations of {', '.join(counts[:_LISTED])}" if counts else ""
        inputs = " of random inputs" if self.are_random else ""
        if self.num_observed < _SEVERAL:
            return f"an observed run{inputs}{of_loops}"
        return f"the largest of {self.num_observed:,} observed runs{inputs}{of_loops}"

    @property
    def ends(self) -> dict[str, object]:
        """The keys of both ends in JSON; none where every run takes the total."""
        if self.is_whole:
            return {}
        return {"lower_bytes": self.total_bytes, "upper_bytes": self.upper_bytes}

    def at_most(self) -> "Footprint | None":
        """The footprint at the upper end of every dim; ``None``: there is none."""
        if self.is_whole:
            return self
        if self.upper_bytes is None:
            return None
        return replace(
            self,
            total_bytes=self.upper_bytes,
            is_whole=True,
            taken_in=None,
            peak=self.upper_peak or self.peak,
        )

    @property
    def demand(self) -> Demand:
        """The figures that a verdict compares."""
        return Demand(
            size_bytes=self.total_bytes,
            more_bytes=self.context.more_bytes + self.workspace.more_bytes + self.heap_bytes,
            range_bytes=self.range_bytes,
            least_bytes=self.least_bytes,
            taken_in=self.taken_in,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How many instances of each model run, and whether they share weights."""

    instances: int = 1
    shares_weights: bool = False

    def bytes_of(self, footprints: Sequence[Footprint]) -> int:
        """Bytes of all instances of all models in one server process.

        Training steps have no common bytes: each is a process of its own.
        """
        # One process has one context, so the largest common part counts once.
        return max((each.common_bytes for each in footprints), default=0) + sum(
            self.instances * each.own_bytes
            + each.shared_bytes * (1 if self.shares_weights else self.instances)
            for each in footprints
        )

    def least_bytes_of(self, footprints: Sequence[Footprint]) -> int:
        """A lower bound for any allocator; it never falls as the batch grows."""
        least = [
            replace(each, total_bytes=max(each.least_bytes, each.fixed_bytes))
            for each in footprints
        ]
        return self.bytes_of(least)

    def largest(self, footprints: Sequence[Footprint], limit_bytes: int) -> int | None:
        """The largest number of instances of each; ``None`` if one more needs no memory."""
        # Bytes are affine in the number of instances.
        one, two = (replace(self, instances=count).bytes_of(footprints) for count in (1, 2))
        if one > limit_bytes:
            return 0
        return None if two == one else 1 + (limit_bytes - one) // (two - one)


def footprint_of(request: AnalysisRequest, basis: AnyBasis) -> Footprint:
    """Compute what one instance needs, in full.

    :raises OnnxmemError: the dims do not fit the model, or the figure does not exist for it.
    """
    results = request.results
    if isinstance(basis, RuntimeBasis):
        footprint = _of_runtime(request, results, basis.value)
    else:
        footprint = _of_basis(request, results, basis)
        if not footprint.is_whole:
            footprint = _observed(request, basis, footprint) or footprint
    return replace(footprint, weight_bytes=results.weight_bytes)


def most_of(request: AnalysisRequest, results: StageResults, basis: Basis) -> int | None:
    """What an instance takes at most, at other results of the request."""
    at_most = _of_basis(request, results, basis).at_most()
    return None if at_most is None else at_most.total_bytes


def _of_basis(
    request: AnalysisRequest, results: StageResults, basis: Basis, run: "GraphRun | None" = None
) -> Footprint:
    """What an instance needs; ``run``: in an observed run, of which ``results`` are."""
    if basis in {Basis.ORT_CPU, Basis.ORT_CUDA}:
        return _session(request, results, basis, run)
    return _READERS[basis](request, results)


def _observed(request: AnalysisRequest, basis: Basis, footprint: Footprint) -> Footprint | None:
    """The largest of observed runs; ``None``: there are none.

    It is one of the runs that the data may lead to, so the most that a run takes is not less.
    """
    runs = {id(each): each for each in request.observed_runs}.values()
    if not runs:
        return None
    found = [
        replace(
            _of_basis(request, each.at_least, basis, each.run), iterations=each.shapes.iterations
        )
        for each in runs
    ]
    largest = max(found, key=lambda each: (each.total_bytes, each.least_bytes))
    unseen = (name for each in runs for name in each.at_least.activations.unknown_tensors)
    upper_bytes = footprint.upper_bytes
    if upper_bytes is not None and upper_bytes < largest.total_bytes:
        upper_bytes = None  # A run was beyond what rules say: they bound no other one either.
    return replace(
        largest,
        upper_bytes=upper_bytes,
        is_whole=largest.is_whole and upper_bytes == largest.total_bytes,
        num_observed=len(request.observed_runs),
        are_random=request.observed is not None and request.observed.are_random,
        unseen=tuple(dict.fromkeys(unseen)),
    )


def footprint_together(
    requests: Sequence[AnalysisRequest], basis: AnyBasis, deployment: Deployment
) -> Footprint:
    """What a deployment of several models needs.

    :raises OnnxmemError: the dims do not fit a model, or the figure does not exist for one.
    """
    return combined([footprint_of(request, basis) for request in requests], deployment)


def combined(footprints: Sequence[Footprint], deployment: Deployment) -> Footprint:
    """Several models as one footprint: its node and tensors are those of the largest model.

    Retries of one allocator under the pressure of the others are not replayed.
    """
    if len(footprints) == 1 and deployment.instances == 1:
        return footprints[0]
    largest = max(footprints, key=lambda each: each.total_bytes)
    contexts = [each.context for each in footprints]
    if not largest.common_bytes:
        # Each training step is a process of its own, with a context of its own.
        contexts *= deployment.instances
    else:
        contexts = [max(contexts, key=lambda term: term.high_bytes)]
    upper = [found for each in footprints if (found := each.at_most()) is not None]
    return replace(
        largest,
        total_bytes=deployment.bytes_of(footprints),
        upper_bytes=deployment.bytes_of(upper) if len(upper) == len(footprints) else None,
        least_bytes=deployment.least_bytes_of(footprints),
        taken_in=None,
        context=Assumed.total(contexts),
        workspace=Assumed.total([each.workspace for each in footprints] * deployment.instances),
        heap_bytes=deployment.instances * sum(each.heap_bytes for each in footprints),
        range_bytes=deployment.instances * sum(each.range_bytes for each in footprints),
        common_bytes=max(each.common_bytes for each in footprints),
        shared_bytes=sum(each.shared_bytes for each in footprints),
        weight_bytes=sum_known(each.weight_bytes for each in footprints),
        is_whole=all(each.is_whole for each in footprints),
        num_observed=max(each.num_observed for each in footprints),
        are_random=all(each.are_random for each in footprints if each.num_observed),
        findings=tuple(finding for each in footprints for finding in each.findings),
    )


def request_of(
    source: ModelSource, settings: Settings, observed: "Sequence[Observed]" = ()
) -> AnalysisRequest:
    """Read a model and prepare a request; nothing is computed yet.

    ``observed`` are runs of this model, or of several.

    :raises OnnxmemError: the model cannot be read, or all observed runs are of other models.
    """
    file = load(source)
    settings, seen = at_observed(settings, file, observed)
    is_unobserved = bool(observed) and seen is None
    request = request_for(file, settings, file)
    return replace(request, observed=seen, is_unobserved=is_unobserved)


class Hardware(Protocol):
    """What of a device a figure depends on, beside its memory."""

    @property
    def cpu(self) -> str | None:
        """The CPU by its name in ``--cpu``."""

    @property
    def compute_capability(self) -> str | None:
        """Of an NVIDIA GPU: ``9.0``."""

    @property
    def gpu_threads(self) -> int | None:
        """The threads that an NVIDIA GPU runs at once; ``None``: unknown."""


def on_device(
    request: AnalysisRequest, device: Hardware | None, basis: AnyBasis
) -> AnalysisRequest:
    """The same request as a device runs it; ``None``: only its memory is known.

    onnxruntime's CPU kernels depend on the CPU; the workspace that PyTorch gives cuBLAS and the
    buffers of its sums depend on the GPU. A microcontroller computes on quantized tensors.
    """
    if basis is Basis.MCU:
        return in_integers(request)
    if device is None:
        return request
    settings = request.settings
    if basis is Basis.ORT_CPU and device.cpu is not None:
        return replace(request, settings=replace(settings, cpu=device.cpu))
    if basis is Basis.TORCH:
        recipe = settings.recipe
        workspace_bytes = recipe.cublas_bytes(device.compute_capability)
        if workspace_bytes != recipe.cublas_bytes():
            recipe = replace(recipe, cublas_workspace_bytes=workspace_bytes)
        if recipe.gpu_threads is None:
            recipe = replace(recipe, gpu_threads=device.gpu_threads)
        if recipe != settings.recipe:
            return replace(request, settings=replace(settings, recipe=recipe))
    return request


def in_integers(request: AnalysisRequest) -> AnalysisRequest:
    """The request on a graph of integer kernels, if the file's graph quantizes its tensors.

    In the file each quantized tensor is followed by its float copy (QDQ). Runtimes of
    microcontrollers (TensorFlow Lite Micro, CMSIS-NN) have kernels that read and write the integers
    and no copies; onnxruntime's extended graph fuses the same pairs.
    """
    nodes = request.source.proto.graph.node
    is_quantized = any(node.op_type == "DequantizeLinear" for node in nodes)
    # A user who chose the graph, or a context whose dims are bound in this one, gets what was
    # asked.
    if not is_quantized or request.settings.graph is not None or request.context is not None:
        return request
    from onnxmem.runtimes.from_settings import optimized_file

    settings = replace(request.settings, graph="ort-extended")
    model, _ = optimized_file(request.source, settings)
    remark = Finding("optimized_graph", _INTEGERS)
    return request_for(model, settings, request.source, (remark,))


def _torch(request: AnalysisRequest, results: StageResults) -> Footprint:
    # An allocator may reserve less where tensors are larger, so its figure has the lower end alone.
    step, results = _step(request, results), results.at_least
    memory = request.torch_memory(results)
    if memory is None:
        message = "no training is requested"
        raise NoFigureError(message)
    context = request.torch_context

    def taken_in(limit_bytes: int) -> int | None:
        # The context is allocated first; the allocator has the rest of the device.
        left_bytes = max(limit_bytes - context.size_bytes, 0)
        replayed = request.torch_memory(results, left_bytes)
        if replayed is None or replayed.is_out_of_memory:
            return None
        return replayed.total_bytes

    return replace(
        step,
        upper_bytes=None,
        total_bytes=memory.total_bytes,
        least_bytes=memory.requested_peak_bytes + context.size_bytes,
        context=context,
        workspace=request.workspace(results),
        taken_in=taken_in,
    )


def _of_runtime(request: AnalysisRequest, results: StageResults, name: str) -> Footprint:
    """What a runtime that was passed as an object needs."""
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
        is_whole=run.runtime_program.is_complete and results.bound.follows_batch,
        peak=PeakAt(peak.phase or None, peak.node or None, tuple(live[:_LISTED])),
        findings=run.runtime_program.diagnostics,
        taken_in=run.taken_in,
    )


def _step(request: AnalysisRequest, results: StageResults) -> Footprint:  # noqa: ARG001 - one of several readers
    training = results.at_least.training
    if training is None:
        message = "no training is requested"
        raise NoFigureError(message)
    # A figure of a batch that is fixed in the file is not the requested one and bounds nothing.
    at_most = results.at_most if results.bound.follows_batch else None
    upper_bytes = None if at_most is None else at_most.training_peak_bytes
    larger = None if at_most is None or upper_bytes is None else at_most.training
    return Footprint(
        upper_bytes=upper_bytes,
        upper_peak=None if larger is None else PeakAt.of_step(larger),
        total_bytes=training.peak_bytes,
        range_bytes=_range_bytes(results),
        least_bytes=training.peak_bytes,
        is_whole=results.is_whole and training.peak_bytes == results.training_peak_bytes,
        peak=PeakAt.of_step(training),
    )


def _range_bytes(results: StageResults) -> int:
    """How much larger the peak may be because of what the file does not show; 0: it shows all."""
    if results.training is None or not results.training.batchnorms.unknown:
        return 0
    peaks = results.training_range
    return 0 if peaks is None else peaks.high_bytes - peaks.low_bytes


def _total(request: AnalysisRequest, results: StageResults) -> Footprint:  # noqa: ARG001 - one of several readers
    # Upper and lower ends are of the same batch, the requested one, or there is no upper end.
    at_least, follows_batch = results.at_least, results.bound.follows_batch
    at_most = results.at_most if follows_batch else None
    memory, num_bytes = at_least.activations, at_least.total_bytes
    if num_bytes is None:
        message = "the sizes of all tensors are unknown"
        raise NoFigureError(message)
    upper_bytes = at_most.total_bytes if at_most else None
    return Footprint(
        total_bytes=num_bytes,
        upper_bytes=upper_bytes,
        upper_peak=PeakAt.of_inference(at_most.activations) if at_most else None,
        least_bytes=num_bytes,
        shared_bytes=results.weight_bytes or 0,
        # Data may decide sizes that are not alive at the peak.
        is_whole=follows_batch and upper_bytes == num_bytes,
        peak=PeakAt.of_inference(memory),
    )


def _mcu(request: AnalysisRequest, results: StageResults) -> Footprint:
    footprint = _total(request, results)
    upper_bytes, weight_bytes = footprint.upper_bytes, footprint.shared_bytes
    num_bytes = footprint.total_bytes - weight_bytes
    # Inputs and activations share the tensor arena; the weights are read in place from the flash.
    return replace(
        footprint,
        total_bytes=num_bytes,
        upper_bytes=None if upper_bytes is None else upper_bytes - weight_bytes,
        least_bytes=num_bytes,
        shared_bytes=0,
    )


def _session(
    request: AnalysisRequest, results: StageResults, basis: Basis, observed: "GraphRun | None"
) -> Footprint:
    """What a session of onnxruntime needs.

    Sessions of one process can share the weights that are not in an arena.
    """
    footprint = _total(request, results)
    try:
        runtime, graph = request.session(basis.value, observed)
        made, overheads = runtime.program(graph), runtime.overheads(graph)
        possible, are_all = runtime.possible_programs(graph, made)
        arenas = [each.session.figures()[0] for each in possible]
    # A value that does not fit its input is an error of the request, not a figure that is missing.
    except InputValueError:
        raise
    except OnnxmemError as fault:
        raise NoFigureError(str(fault)) from fault
    outside_bytes = overheads.outside_bytes
    totals = [
        each.total_bytes(arena.held_steady_bytes, arena.steady_regions) + outside_bytes
        for each, arena in zip(possible, arenas, strict=True)
    ]
    # Data decide which of these programs runs: the least is the figure, the most its upper end.
    num_bytes = min(totals)
    made, arena = possible[totals.index(num_bytes)], arenas[totals.index(num_bytes)]
    largest = arenas[totals.index(max(totals))]
    own_bytes = arena.resident_peak_bytes + overheads.workspace.size_bytes
    is_sized = made.is_complete and (results.is_whole or footprint.is_whole)
    # One process has one CUDA context. On the CPU it is the process itself that sessions share: the
    # interpreter and the libraries.
    common_bytes = overheads.context.size_bytes
    if made.resident is not None:
        common_bytes = min(made.resident.process.baseline.shared_bytes, num_bytes)
    run = RuntimeRun(runtime, made, overheads)
    return replace(
        footprint,
        total_bytes=num_bytes,
        # Every combination of branches is replayed, so the largest is the most.
        upper_bytes=max(totals) if are_all and is_sized else None,
        peak=_in_arena(footprint.peak, arena),
        upper_peak=footprint.upper_peak and _in_arena(footprint.upper_peak, largest),
        least_bytes=outside_bytes
        + min(each.base_bytes + each.requested_peak_bytes for each in arenas),
        context=overheads.context,
        workspace=overheads.workspace,
        heap_bytes=made.more_bytes(arena.steady_regions),
        common_bytes=common_bytes,
        # Weights in the arena, prepacked or small ones, belong to one session, so at most what is
        # neither common nor in the arena can be shared.
        shared_bytes=max(min(footprint.shared_bytes, num_bytes - common_bytes - own_bytes), 0),
        is_whole=is_sized and are_all and num_bytes == max(totals),
        findings=made.diagnostics,
        # A process on the CPU gets pages as it touches them: no allocation fails and is retried.
        taken_in=None if made.is_paged else run.taken_in,
    )


def _in_arena(peak: PeakAt, arena: "ArenaFigures") -> PeakAt:
    """The peak at the node that has it in a session, if that is known."""
    return peak if arena.peak_node is None else replace(peak, node=arena.peak_node.name)


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
