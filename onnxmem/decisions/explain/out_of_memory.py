"""Find the tensors of a model whose allocation may have failed with an out-of-memory message.

A tensor's bytes are affine in the batch, so its sizes at two batches give a line, and the line
gives the batch at which the tensor has a requested size. A size that no tensor has may be a
memory-pattern buffer of onnxruntime, or scratch memory of a kernel, which no model file shows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.analysis.fitting.assessing import Assessment, FitRequest, FitResult, assess, fit
from onnxmem.analysis.fitting.verdicts import Basis
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.explain.messages import OutOfMemory, RequestedBytes
from onnxmem.errors import OnnxmemError
from onnxmem.model.graph import Graph, Role, Tensor
from onnxmem.runtimes.assumed import Assumed
from onnxmem.runtimes.onnxruntime.memory import SessionGraphs, SessionRequest
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS
from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

_LARGEST_BATCH: Final = 1 << 20
"""Matches at larger batches are dropped: at some batch, nearly every tensor has any size."""
_MOST: Final = 12
_NEAR_PERCENT: Final = 5.0
"""Within it a run needed what was predicted: sizes in messages are rounded, and fail early."""
_ALWAYS_LIVE: Final = frozenset({Role.WEIGHT.value, Role.INPUT.value})
_OF_GRAPH_OPTIMIZER: Final = ("_nchwc", "_FusedMatMulAndScale", "_fused")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor with a requested size."""

    tensor: str
    node: str | None
    """The node that produces it; ``None`` for an input or a weight."""
    op_type: str | None
    role: str
    size_bytes: int
    batch: int | None
    """The batch at which it has the size; ``None`` if the model has no batch."""
    shape: tuple[int, ...] | None
    is_named: bool
    """Whether the message names its node."""
    graph: str
    """``file``, ``session`` (as onnxruntime optimizes it) or ``training``."""
    is_live_at_peak: bool | None = None
    """Whether its buffer is live at the peak of the step or, without training, of inference, at
    this batch; ``None`` if it is unknown, as in a session's graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far the memory of a run that failed is from the prediction."""

    needed_bytes: int
    """What the run needed when it failed, at least."""
    needed_text: str
    """Of what sizes of the message that is the sum."""
    predicted_bytes: int
    """The peak of the same."""
    is_of_tensors: bool = False
    """Whether tensors are predicted, and the message speaks of a process."""

    @property
    def percent(self) -> float:
        """How much more the run needed than predicted; below 0: less."""
        return 100 * (self.needed_bytes / self.predicted_bytes - 1)

    @property
    def is_above(self) -> bool:
        """Whether the run needed more than was predicted."""
        return self.percent > _NEAR_PERCENT

    @property
    def meaning(self) -> str:
        """What follows from it."""
        if abs(self.percent) <= _NEAR_PERCENT:
            return "as predicted"
        if self.percent < 0:
            return "it failed on its way to the predicted peak"
        if self.is_of_tensors:
            return (
                "more than the tensors of this model take: what the runtime adds (--runtime "
                "ort-cuda, ort-cpu; --train for a training step), another batch, or other tensors"
            )
        return (
            "more than this model takes with these settings: another batch, precision, optimizer "
            "or size of the inputs, or other tensors in the process"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OomReport:
    """A message compared with a model."""

    batch: int | None
    at_batch: tuple[Candidate, ...]
    """The first candidates at the requested batch."""
    num_at_batch: int
    """How many there are in all."""
    at_others: tuple[Candidate, ...]
    """The first candidates at other batches, the smallest batch first."""
    num_at_others: int
    """How many there are in all."""
    pattern_block_bytes: int | None
    """The memory-pattern buffer of a session at this batch; ``None`` if it is unknown, or if
    another program printed the message."""
    is_pattern_block: bool
    """Whether the message may have requested that buffer."""
    basis: Basis
    """The figure that is compared with the capacity."""
    assessment: Assessment | None
    """The memory of the model at this batch; ``None`` if it cannot be computed."""
    fit_result: FitResult | None
    """The verdict on the capacity in the message; ``None`` without one."""
    distance: Distance | None = None
    """``None``: the message does not say what the run needed, or the prediction is unknown."""
    has_own_context: bool = False
    """Whether the CUDA context is that of the message; else it is assumed, on an empty device."""


def oom_report(message: OutOfMemory, request: AnalysisRequest) -> OomReport:
    """Search a model for the tensors that a message may mean.

    :raises OnnxmemError: the dims do not fit the model.
    """
    results = request.results
    batch = results.bound.binding.batch
    graphs = dict(_graphs(request, message))
    found = () if message.sizes is None else tuple(_candidates(request, graphs, message))
    peaks = _Peaks(request)
    here = _ordered(
        map(peaks.marked, (each for each in found if each.batch in {batch, None})), message
    )
    elsewhere = _ordered((each for each in found if each.batch not in {batch, None}), message)
    block_bytes = _pattern_block(request, message) if message.program == "onnxruntime" else None
    basis = _basis(request, message)
    context = _own_context(message, request, basis)
    assessment, fit_result = _verdict(request, basis, message, context)
    return OomReport(
        batch=batch,
        at_batch=here[:_MOST],
        num_at_batch=len(here),
        # Only those that are listed: whether a tensor is live at another batch takes an analysis of
        # it.
        at_others=tuple(map(peaks.marked, elsewhere[:_MOST])),
        num_at_others=len(elsewhere),
        pattern_block_bytes=block_bytes,
        is_pattern_block=bool(
            message.sizes and block_bytes and message.sizes.includes(block_bytes)
        ),
        basis=basis,
        assessment=assessment,
        fit_result=fit_result,
        distance=_distance(message, request, assessment),
        has_own_context=context is not None,
    )


def _own_context(message: OutOfMemory, request: AnalysisRequest, basis: Basis) -> Assumed | None:
    """The context that a message of PyTorch shows; ``None``: none, or the user specified one."""
    size_bytes = message.context_bytes
    is_specified = request.settings.cuda_context_bytes is not None
    if size_bytes is None or basis is not Basis.TORCH or is_specified:
        return None
    is_alone = size_bytes != message.outside_bytes
    of = "in use by this process - reserved" if is_alone else "capacity - reserved - free"
    others = "" if is_alone else ", other processes included"
    return Assumed(size_bytes, size_bytes, size_bytes, f"of the message: {of}{others}")


def _distance(
    message: OutOfMemory, request: AnalysisRequest, assessment: Assessment | None
) -> Distance | None:
    """Compare like with like: tensors with tensors, a process with a process."""
    # What failed was requested on top of what was in use.
    asked_bytes = 0 if message.sizes is None else message.sizes.most_bytes
    asked = " + requested" if asked_bytes else ""
    training = request.results.training
    if message.allocated_bytes is not None and training is not None and training.peak_bytes:
        return Distance(
            needed_bytes=message.allocated_bytes + asked_bytes,
            needed_text=f"allocated{asked}",
            predicted_bytes=training.peak_bytes,
        )
    if assessment is None or not assessment.footprint.is_whole:
        return None
    needed_bytes, text = message.used_bytes, f"in use{asked}"
    if needed_bytes is None and message.capacity_bytes is not None:
        # What is not free is in use, by whatever process.
        needed_bytes = message.capacity_bytes - (message.free_bytes or 0)
        text = f"the capacity{' less what is free' if message.free_bytes else ''}{asked}"
    if needed_bytes is None or not assessment.footprint.total_bytes:
        return None
    return Distance(
        needed_bytes=needed_bytes + asked_bytes,
        needed_text=text,
        predicted_bytes=assessment.footprint.total_bytes,
        is_of_tensors=assessment.basis in {Basis.TOTAL, Basis.STEP},
    )


@dataclass(slots=True)
class _Peaks:
    """Mutable: the tensors that are live at the peak, by batch; a batch is analyzed once."""

    request: AnalysisRequest
    _live: dict[int | None, frozenset[str] | None] = field(default_factory=dict)

    def marked(self, candidate: Candidate) -> Candidate:
        """The candidate, with whether it is live at the peak of its batch."""
        if candidate.role in _ALWAYS_LIVE:
            return replace(candidate, is_live_at_peak=True)
        batch = candidate.batch
        if batch not in self._live:
            self._live[batch] = self._at(batch)
        live = self._live[batch]
        if candidate.graph == "session" or live is None:
            return candidate
        return replace(candidate, is_live_at_peak=candidate.tensor in live)

    def _at(self, batch: int | None) -> frozenset[str] | None:
        request = self.request if batch is None else self.request.at(batch)
        try:
            results = request.results
            replayed = (results.training or results.activations).replay
        except OnnxmemError:
            return None
        program, peak = replayed.program, replayed.peak
        alive = program.alive_after(peak.num_events)
        return frozenset(name for each in alive for name in program.tensors_of(each))


def is_shape(candidate: Candidate, shape: tuple[int, ...] | None) -> bool:
    """Whether a tensor has a message's shape; TensorFlow may have channels on another axis."""
    if shape is None or candidate.shape is None:
        return False
    return sorted(candidate.shape) == sorted(shape)


def _ordered(candidates: Iterable[Candidate], message: OutOfMemory) -> tuple[Candidate, ...]:
    """The most likely first: by the message's node, its shape, its operator, what is live at the
    peak, and the batch.
    """
    ordered = sorted(
        candidates,
        key=lambda each: (
            not each.is_named,
            not is_shape(each, message.shape),
            message.op_type is None or each.op_type != message.op_type,
            not each.is_live_at_peak,
            each.role == "weight",
            each.batch or 0,
        ),
    )
    # A tensor in both graphs, the file's and the session's, is listed once, where it ranks higher.
    first: dict[tuple[str, int | None], Candidate] = {}
    for each in ordered:
        first.setdefault((each.tensor, each.batch), each)
    return tuple(first.values())


def _basis(request: AnalysisRequest, message: OutOfMemory) -> Basis:
    if request.settings.train:
        return Basis.STEP if message.program == "PyTorch on CPU" else Basis.TORCH
    if request.settings.runtimes:
        return Basis(request.settings.runtimes[0])
    is_on_cpu = message.program == "onnxruntime" and not message.is_on_accelerator
    return Basis.ORT_CPU if is_on_cpu else Basis.TOTAL


def _verdict(
    request: AnalysisRequest, basis: Basis, message: OutOfMemory, context: Assumed | None
) -> tuple[Assessment | None, FitResult | None]:
    """The assessment, and the verdict on the capacity in a message, as in other commands.

    With the context that the message shows, the device is as it was, other processes included.
    """
    reserve_bytes = 0
    if context is not None:
        settings = replace(request.settings, cuda_context_bytes=context.size_bytes)
        request = replace(request, settings=settings)
        # Other processes keep theirs.
        reserve_bytes = message.others_bytes or 0
    setup = FitRequest(
        memory_bytes=message.capacity_bytes or 0, reserve_bytes=reserve_bytes, basis=basis
    )
    try:
        if message.capacity_bytes is None:
            return _with_source(assess((request,), setup), context), None
        result = fit((request,), setup)
    except OnnxmemError:
        return None, None
    result = replace(result, assessment=_with_source(result.assessment, context))
    return result.assessment, result


def _with_source(assessment: Assessment, context: Assumed | None) -> Assessment:
    if context is None:
        return assessment
    return replace(assessment, footprint=replace(assessment.footprint, context=context))


def _graphs(request: AnalysisRequest, message: OutOfMemory) -> Iterator[tuple[str, Graph]]:
    """The file's graph, and the session's if onnxruntime printed the message."""
    yield "file", request.results.bound.graph
    if message.program == "onnxruntime":
        try:
            yield "session", _sessions(request, message).graph(SessionOptions()).graph
        except OnnxmemError:
            return


def _runtime(request: AnalysisRequest, message: OutOfMemory) -> str:
    """The runtime whose session the message is of: its kernels differ by execution provider."""
    runtimes = request.settings.runtimes
    return runtimes[0] if runtimes else "ort-cuda" if message.is_on_accelerator else "ort-cpu"


def _sessions(request: AnalysisRequest, message: OutOfMemory) -> SessionGraphs:
    model = ModelAt(request.source, request.prepared, request.results.bound)
    question = SessionRequest(
        name=_runtime(request, message),
        asks_onnxruntime=False,
        cpu=request.settings.cpu,
        values=request.settings.values,
    )
    return SessionGraphs(model, question)


def _pattern_block(request: AnalysisRequest, message: OutOfMemory) -> int | None:
    provider = PROVIDERS[_runtime(request, message)]
    try:
        session = _sessions(request, message).graph(SessionOptions())
        return arena_figures(session, SessionOptions(), provider)[0].pattern_block_bytes
    except OnnxmemError:
        return None


def _candidates(
    request: AnalysisRequest, graphs: Mapping[str, Graph], message: OutOfMemory
) -> Iterator[Candidate]:
    batch = request.results.bound.binding.batch
    for name, graph in graphs.items():
        second = None if batch is None else _graph_at(request, message, name, batch + 1)
        yield from _in_graph(name, graph, second, batch, message)
    if request.settings.train and message.sizes is not None:
        yield from _in_step(request, message.sizes, batch)


def _graph_at(
    request: AnalysisRequest, message: OutOfMemory, name: str, batch: int
) -> Graph | None:
    """The same graph at another batch, as the second point of each tensor's line."""
    try:
        return dict(_graphs(request.at(batch), message)).get(name)
    except OnnxmemError:
        return None


def _in_graph(
    name: str, graph: Graph, second: Graph | None, batch: int | None, message: OutOfMemory
) -> Iterator[Candidate]:
    producers = {output: node for node in graph.all_nodes() for output in node.writes}
    for tensor in graph.tensors.values():
        other = None if second is None else second.tensors.get(tensor.name)
        hit = _batch_of(tensor, other, batch, message)
        if hit is None:
            continue
        at, size_bytes = hit
        node = producers.get(tensor.name)
        shape = _shape_at(tensor, other, batch, at)
        yield Candidate(
            tensor=tensor.name,
            node=None if node is None else node.name,
            op_type=None if node is None else node.op_type,
            role=tensor.role.value,
            size_bytes=size_bytes,
            batch=at,
            shape=shape,
            is_named=node is not None and _is_named(node.name, message.node),
            graph=name,
        )


def _is_named(node: str, named: str | None) -> bool:
    """Whether a message names a node, or a node that onnxruntime fused from it."""
    # A fused node's name is that of one of its nodes with a suffix.
    if not named:
        return False
    for ending in _OF_GRAPH_OPTIMIZER:
        named = named.removesuffix(ending)
    return node == named or any(
        node.removesuffix(ending) == named for ending in _OF_GRAPH_OPTIMIZER
    )


def _batch_of(
    tensor: Tensor, other: Tensor | None, batch: int | None, message: OutOfMemory
) -> tuple[int | None, int] | None:
    """The batch at which a tensor has a requested size, and the size; the request's batch first."""
    size_bytes, sizes = tensor.size_bytes, message.sizes
    if size_bytes is None or sizes is None:
        return None
    if sizes.includes(size_bytes):
        return batch, size_bytes
    more_bytes = None if other is None else other.size_bytes
    if batch is None or more_bytes is None:
        return None
    return _on_line(size_bytes, more_bytes - size_bytes, batch, sizes)


def _on_line(
    size_bytes: int, slope: int, batch: int, sizes: RequestedBytes
) -> tuple[int, int] | None:
    """The smallest batch at which ``fixed + slope x batch`` is a requested size."""
    if slope <= 0:
        return None
    fixed_bytes = size_bytes - slope * batch
    # The first batch that reaches the least size; it is a match unless its step leaps over the
    # range.
    at = max(-(-(sizes.least_bytes - fixed_bytes) // slope), 1)
    found_bytes = fixed_bytes + slope * at
    return (at, found_bytes) if sizes.includes(found_bytes) and at <= _LARGEST_BATCH else None


def _shape_at(
    tensor: Tensor, other: Tensor | None, batch: int | None, at: int | None
) -> tuple[int, ...] | None:
    """The shape at another batch: each dim is affine in the batch too."""
    shape = tensor.shape
    if shape is None or None in shape:
        return None
    known = tuple(dim for dim in shape if dim is not None)
    if batch is None or at is None or at == batch:
        return known
    second = other.shape if other is not None else None
    if second is None or None in second or len(second) != len(known):
        return None
    pairs = zip(known, (dim or 0 for dim in second), strict=True)
    return tuple(dim + (more - dim) * (at - batch) for dim, more in pairs)


def _in_step(
    request: AnalysisRequest, sizes: RequestedBytes, batch: int | None
) -> Iterator[Candidate]:
    """Allocations of the training step with a requested size at this batch or at another one."""
    # A step makes the same allocations in the same order at every batch, unless the graph takes
    # another path; then their numbers differ and no line can be drawn.
    one = request.results.training
    two = None if batch is None else request.at(batch + 1).results.training
    allocations = () if one is None else tuple(one.replay.allocations())
    second = () if two is None else tuple(two.replay.allocations())
    for index, allocation in enumerate(allocations):
        hit: tuple[int | None, int] | None = None
        if sizes.includes(allocation.size_bytes):
            hit = batch, allocation.size_bytes
        elif batch is not None and len(second) == len(allocations):
            slope = second[index].size_bytes - allocation.size_bytes
            hit = _on_line(allocation.size_bytes, slope, batch, sizes)
        if hit is not None:
            yield Candidate(
                tensor=allocation.label,
                node=None,
                op_type=None,
                role=allocation.category.value,
                size_bytes=hit[1],
                batch=hit[0],
                shape=None,
                is_named=False,
                graph="training",
            )
