"""Suggested changes and what they save, by analyzing the changed model.

A subject is a request with the options of its session. Every figure comes from the package that
defines it; nothing is derived here. A figure that leaves something out counts as unknown: the part
left out may grow while the rest falls.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Final

import onnx

from onnxmem.analysis.fitting.assessing import DemandCurve, FitRequest, assess, max_batch_of
from onnxmem.analysis.fitting.footprints import Footprint, footprint_of
from onnxmem.analysis.fitting.searching import MaxBatch, crossing
from onnxmem.analysis.fitting.verdicts import (
    BASES,
    Accuracy,
    Basis,
    Comparison,
    Verdict,
    accuracy_of,
    compared_bytes,
)
from onnxmem.analysis.request import AnalysisRequest, StageResults, stage_results, sum_bytes
from onnxmem.errors import OnnxmemError
from onnxmem.model.building import BoundModel, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import DType
from onnxmem.runtimes.onnxruntime.memory import SessionGraphs, SessionRequest
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession
from onnxmem.runtimes.onnxruntime.process.figures import HostProcess
from onnxmem.runtimes.onnxruntime.process.loading import Region
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, CudaAssumptions
from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions


class Objective(StrEnum):
    """A figure that a change lowers; the values are keys of the JSON report."""

    TOTAL = "total_bytes"
    STEP = "training_peak_bytes"
    TORCH = "training_process_bytes"
    PROCESS = "process_bytes"
    DEVICE = "device_bytes"
    RESIDENT = "resident_bytes"
    PEAK = "peak_bytes"
    WEIGHTS = "weight_bytes"
    FILE = "file_bytes"


OBJECTIVES: Final[Mapping[Objective, str]] = MappingProxyType(
    {
        Objective.TOTAL: "weights + inputs + peak activation memory",
        Objective.STEP: "peak of the training step",
        Objective.TORCH: BASES[Basis.TORCH],
        Objective.PROCESS: "whole process of onnxruntime on CPU",
        Objective.DEVICE: BASES[Basis.ORT_CUDA],
        Objective.RESIDENT: "resident in onnxruntime's arena, weights aside",
        Objective.PEAK: "activations live at once",
        Objective.WEIGHTS: "weights",
        Objective.FILE: "the file, and the weights outside it",
    }
)
"""The description of each figure."""


_LEAST_SHARE: Final = 200


class Tradeoff(IntEnum):
    """What a change costs, from cheap to expensive."""

    NOTHING = 0
    TIME = 1
    SAMPLES = 2
    """Fewer samples at once."""
    ACCURACY = 3
    """The model's outputs may change, so it has to be evaluated again."""
    DEVICES = 4
    """More devices."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A request, the options of its session, and the width of its floats: all a change can set."""

    request: AnalysisRequest
    options: SessionOptions = field(default_factory=SessionOptions)
    has_half_floats: bool = False
    """Whether all floats of 32 or 64 bits, in weights and inputs too, are replaced by 16 bits."""

    def with_batch(self, batch: int) -> "Subject":
        """The subject at another batch."""
        return replace(self, request=self.request.at(batch))

    def results(self) -> StageResults:
        """Compute the stages, with the requested width of floats.

        :raises OnnxmemError: the dims do not fit the model.
        """
        # ``request.results`` would cache them: many subjects would each hold a large graph.
        results = stage_results(self.request.prepared, self.request.settings)
        return _in_half(results) if self.has_half_floats else results


Change = Callable[[Subject], Subject]
Ends = tuple[int, int | None]
"""At least and at most; ``None``: it has no upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A change whose saving is not computed yet."""

    id: str
    """A stable identifier."""
    group: str
    """A combination has at most one change of each group: they exclude each other."""
    what: str
    """What to do."""
    tradeoff: Tradeoff
    cost: str
    """The tradeoff in words, with figures if there are any."""
    change: Change | None = None
    """``None``: the saving is computed elsewhere, and no combination contains the change."""
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """The change as a settings file has it."""
    changes_training: bool = False
    """Whether a training step then trains something else, or converges in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A suggestion and what it saves, in bytes of one figure."""

    suggestion: Suggestion
    figure: Objective
    before_bytes: int
    after_bytes: int
    is_exact: bool
    """Whether the changed model was analyzed; otherwise the saving is an estimate."""

    @property
    def saved_bytes(self) -> int:
        """The bytes that it saves."""
        return self.before_bytes - self.after_bytes


def evaluated(
    suggestions: Iterator[Suggestion], subject: Subject, figure: Objective, before_bytes: int
) -> Iterator[Proposal]:
    """Analyze the model with each suggestion; those whose figure is then unknown are left out."""
    for suggestion in suggestions:
        if suggestion.change is None:
            continue
        after_bytes = bytes_of(figure, suggestion.change(subject))
        if after_bytes is not None:
            yield Proposal(
                suggestion=suggestion,
                figure=figure,
                before_bytes=before_bytes,
                after_bytes=after_bytes,
                is_exact=True,
            )


def ranked(proposals: Iterator[Proposal]) -> tuple[Proposal, ...]:
    """Proposals that save memory, the largest saving first, and the cheaper first among equals.

    What saves less than half a percent is left out: it would be listed as 0 %.
    """
    saving = (
        each
        for each in proposals
        if each.saved_bytes > 0 and each.saved_bytes * _LEAST_SHARE >= each.before_bytes
    )
    return tuple(sorted(saving, key=lambda each: (-each.saved_bytes, each.suggestion.tradeoff)))


def bytes_of(figure: Objective, subject: Subject) -> int | None:
    """One figure of a subject; ``None`` if it is unknown, incomplete, or raises an error."""
    try:
        return _READERS[figure](subject)
    except OnnxmemError:
        return None


def error_of(figure: Objective, subject: Subject) -> Accuracy | None:
    """The error of a figure that a budget can be compared with; ``None``: of another one."""
    basis = BASIS_OF.get(figure)
    return None if basis is None else accuracy_of(basis, subject.request.settings.recipe)


def compared_with(limit_bytes: int, figure: Objective, subject: Subject) -> Comparison:
    """Compare a subject with a limit, as other commands do if they have the figure."""
    basis, settings = _BASES.get(figure), subject.request.settings
    # Sessions are not among these: their options are the subject's, of which a request knows
    # nothing.
    if basis is None or subject.has_half_floats:
        found = compared_bytes(bytes_of(figure, subject), limit_bytes)
        # What a run takes at most may be over the limit although no run is.
        is_sure = found.verdict is not Verdict.OVER or subject.results().is_whole
        return found if is_sure else replace(found, verdict=Verdict.UNKNOWN)
    setup = FitRequest(memory_bytes=limit_bytes, basis=basis, accepted=frozenset(settings.accepted))
    try:
        # A copy of the request, so that its cached results go with it and not with the subject.
        return assess((replace(subject.request),), setup).compared(limit_bytes)
    except OnnxmemError:
        return compared_bytes(None, limit_bytes)


def largest_batch(limit_bytes: int, figure: Objective, subject: Subject) -> MaxBatch | None:
    """The largest batch within a limit, as ``fit`` finds it; ``None`` if it is unknown or fixed.

    A figure that ``fit`` does not have, such as the weights, never falls as the batch grows.
    """
    basis, settings = BASIS_OF.get(figure), subject.request.settings
    if basis is None:
        return crossing(lambda number: bytes_of(figure, subject.with_batch(number)), limit_bytes)
    setup = FitRequest(memory_bytes=limit_bytes, basis=basis, accepted=frozenset(settings.accepted))
    curve = DemandCurve((replace(subject.request),), setup)
    return None if curve.is_fixed else max_batch_of(curve.search(), basis)


def with_recipe(**fields: Any) -> Change:  # noqa: ANN401 - the fields of TrainingConfig
    """Replace fields of the training configuration."""

    def change(subject: Subject) -> Subject:
        settings = subject.request.settings
        recipe = replace(settings.recipe, **fields)
        request = replace(subject.request, settings=replace(settings, recipe=recipe))
        return replace(subject, request=request)

    return change


def with_shapes(shapes: dict[str, tuple[int, ...]], freed: frozenset[str]) -> Change:
    """Replace the shapes of inputs; ``freed`` are dims of theirs, which the shapes now bind."""

    def change(subject: Subject) -> Subject:
        settings = subject.request.settings
        dims = {name: number for name, number in settings.dims.items() if name not in freed}
        changed = replace(settings, dims=dims, shapes={**settings.shapes, **shapes})
        # Observed runs are of their own shapes alone.
        request = replace(subject.request, settings=changed, observed=None)
        return replace(subject, request=request)

    return change


def with_file(edit: Callable[[onnx.ModelProto], None]) -> Change:
    """Edit a copy of the file."""

    def change(subject: Subject) -> Subject:
        request = subject.request
        proto = onnx.ModelProto()
        proto.CopyFrom(request.source.proto)
        edit(proto)
        file = ModelFile(request.source.path, proto, request.source.file_bytes)
        edited = AnalysisRequest(file, prepare(file), request.settings, file, request.remarks)
        return replace(subject, request=edited)

    return change


def with_options(**fields: Any) -> Change:  # noqa: ANN401 - the fields of SessionOptions
    """Replace session options."""
    return lambda subject: replace(subject, options=replace(subject.options, **fields))


def _whole(results: StageResults, num_bytes: int | None) -> int | None:
    return num_bytes if results.is_whole else None


def _bounding(subject: Subject) -> StageResults | None:
    """The results, where data decide sizes those at most; ``None``: something has no upper end."""
    results = subject.results()
    if results.is_whole:
        return results
    return results.at_most if results.bound.follows_batch else None


def _total(subject: Subject) -> int | None:
    results = _bounding(subject)
    return None if results is None else results.total_bytes


def _step(subject: Subject) -> int | None:
    results = _bounding(subject)
    return None if results is None else _whole(results, results.training_peak_bytes)


def decided(figure: Objective, subject: Subject) -> tuple[Footprint, str] | None:
    """What is taken at both ends of what the data of a run decide, and what settles it; ``None``:
    they decide nothing of it.
    """
    basis, results = BASIS_OF.get(figure), subject.results()
    if basis is None or results.is_whole or not results.data_text():
        return None
    try:
        footprint = footprint_of(replace(subject.request), basis)
    except OnnxmemError:
        return None
    if figure in _WITHOUT_END:
        tensors = f", {_WITHOUT_END[figure]}" if results.at_most is not None else ""
        return footprint, f"no proof gives an allocator's figure an upper end{tensors}"
    flags = results.data_flags()
    return footprint, f"{flags} bounds it" if flags else results.data_text()


def _torch(subject: Subject) -> int | None:
    results = subject.results()
    memory = subject.request.torch_memory(results)
    return None if memory is None else _whole(results, memory.total_bytes)


def _process(subject: Subject) -> int | None:
    return _session(subject, "ort-cpu")


def _device(subject: Subject) -> int | None:
    return _session(subject, "ort-cuda")


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """The process of a planned session on the CPU."""

    host: HostProcess
    regions: tuple[Region, ...]
    """Of its arena in the steady state."""

    @property
    def total_bytes(self) -> int:
        """Resident memory."""
        return self.host.resident.total_bytes(self.regions)

    def with_options(self, **fields: Any) -> "PlannedProcess":  # noqa: ANN401 - the fields of SessionOptions
        """The same with other ``LOAD_OPTIONS``, which leave the plan as it is."""
        session = self.host.session
        options = replace(session.options, **fields)
        return replace(self, host=replace(self.host, session=replace(session, options=options)))


def planned_process(subject: Subject) -> PlannedProcess | None:
    """The process of a session with the subject's options; ``None`` if it is not complete."""
    try:
        results, planned = _planned(subject, "ort-cpu")
        arena, unknown = planned.figures()
    except OnnxmemError:
        return None
    if unknown.tensors or subject.has_half_floats or not results.is_whole:
        return None
    host = HostProcess(results.bound.graph, subject.request.source.file_bytes, planned)
    return PlannedProcess(host, arena.steady_regions)


def _session(subject: Subject, runtime: str) -> int | None:
    """The memory of a session with the subject's options."""
    if runtime == "ort-cpu":
        process = planned_process(subject)
        return None if process is None else process.total_bytes
    settings = subject.request.settings
    results, planned = _planned(subject, runtime)
    arena, unknown = planned.figures()
    if unknown.tensors or subject.has_half_floats:
        return None
    context = settings.cuda_context_bytes
    context_bytes = CudaAssumptions().context_bytes if context is None else context
    workspace_bytes = settings.cuda_workspace_bytes or 0
    return _whole(results, arena.held_steady_bytes + workspace_bytes + context_bytes)


def _planned(subject: Subject, runtime: str) -> tuple[StageResults, PlannedSession]:
    """A session with the subject's options; the graph optimizer is emulated."""
    request, options = subject.request, subject.options
    settings, results = request.settings, stage_results(request.prepared, request.settings)
    model = ModelAt(request.source, request.prepared, results.bound)
    opened = SessionRequest(
        name=runtime,
        options=options,
        asks_onnxruntime=False,
        cpu=settings.cpu,
        values=settings.values,
    )
    graph = SessionGraphs(model, opened).graph(options)
    return results, PlannedSession.of(graph, options, PROVIDERS[runtime])


def _in_half(results: StageResults) -> StageResults:
    """The same graph with floats of 16 bits, as converters make it: inputs and weights too."""
    graph = results.bound.graph
    narrow = {
        name: replace(tensor, dtype=DType.FLOAT16)
        if tensor.dtype in {DType.FLOAT32, DType.FLOAT64}
        else tensor
        for name, tensor in graph.tensors.items()
    }
    halved = graph.with_tensors(narrow)
    bound: BoundModel = replace(results.bound, graph=halved)
    return replace(
        results,
        bound=bound,
        weight_bytes=sum_bytes(halved.weights),
        inputs_bytes=sum_bytes(halved.tensors[name] for name in halved.inputs),
    )


_BASES: Final[Mapping[Objective, Basis]] = MappingProxyType(
    {Objective.TOTAL: Basis.TOTAL, Objective.STEP: Basis.STEP, Objective.TORCH: Basis.TORCH}
)
_WITHOUT_END: Final[Mapping[Objective, str]] = MappingProxyType(
    {
        Objective.TORCH: "--basis tensors has one",
        Objective.PROCESS: "the tensors have one: omit --runtime",
        Objective.DEVICE: "the tensors have one: omit --runtime",
    }
)
"""Figures of allocators, and which figure has an upper end in their place."""
BASIS_OF: Final[Mapping[Objective, Basis]] = MappingProxyType(
    {**_BASES, Objective.PROCESS: Basis.ORT_CPU, Objective.DEVICE: Basis.ORT_CUDA}
)
"""What a verdict compares, by the figure."""
_READERS: Final[Mapping[Objective, Callable[[Subject], int | None]]] = MappingProxyType(
    {
        Objective.TOTAL: _total,
        Objective.STEP: _step,
        Objective.TORCH: _torch,
        Objective.PROCESS: _process,
        Objective.DEVICE: _device,
    }
)
"""Figures that an analysis of the changed model gives; the others belong to single proposals."""
