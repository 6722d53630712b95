"""What a change is, and what it saves: figures of a subject, changes of it, and proposals.

A subject is a request and how its session is opened. Every figure is that of another package,
computed anew; none is derived here. A figure that leaves something out is unknown to advice: a part
may grow where the known rest falls.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Final

import onnx

from onnxmem.analysis.fitting.assessing import FitRequest, assess
from onnxmem.analysis.fitting.verdicts import (
    ACCURACIES,
    BASES,
    Accuracy,
    Basis,
    Verdict,
    verdict_on_bytes,
)
from onnxmem.analysis.request import AnalysisRequest, StageResults, stage_results, sum_bytes
from onnxmem.errors import OnnxmemError
from onnxmem.model.building import BoundModel, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import DType
from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion, Sessions
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.process.figures import process_figures
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, CudaTerms
from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions


class Figure(StrEnum):
    """What is lowered, by its key in JSON."""

    TOTAL = "total_bytes"
    STEP = "training_peak_bytes"
    TORCH = "training_process_bytes"
    PROCESS = "process_bytes"
    DEVICE = "device_bytes"
    RESIDENT = "resident_bytes"
    PEAK = "peak_bytes"
    WEIGHTS = "weight_bytes"
    FILE = "file_bytes"


FIGURES: Final[Mapping[Figure, str]] = MappingProxyType(
    {
        Figure.TOTAL: "weights + inputs + in-place peak",
        Figure.STEP: "peak of the training step",
        Figure.TORCH: BASES[Basis.TORCH],
        Figure.PROCESS: "whole process of onnxruntime on CPU",
        Figure.DEVICE: BASES[Basis.ORT_CUDA],
        Figure.RESIDENT: "resident in onnxruntime's arena, weights aside",
        Figure.PEAK: "activations live at once",
        Figure.WEIGHTS: "weights",
        Figure.FILE: "the file, and the weights outside it",
    }
)
"""Each in words."""


class Tradeoff(IntEnum):
    """In what advice is paid, the lightest first: of two that do, the lighter one is taken."""

    NOTHING = 0
    TIME = 1
    SAMPLES = 2
    """Fewer samples at once."""
    ACCURACY = 3
    """What the model says may change: to be checked on data."""
    DEVICES = 4
    """More machines."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a change changes: a request, the session that answers it, and the width of floats."""

    request: AnalysisRequest
    options: SessionOptions = field(default_factory=SessionOptions)
    has_half_floats: bool = False
    """Whether every float of 32 or 64 bits, weights and inputs too, has 16 instead."""

    def with_batch(self, batch: int) -> "Subject":
        """The same at another batch."""
        return replace(self, request=self.request.at(batch))

    def results(self) -> StageResults:
        """Walk the stages at the width that floats have.

        :raises OnnxmemError: the dims do not fit the model.
        """
        # Not the request's own results: of a large graph, many subjects would keep many copies.
        results = stage_results(self.request.prepared, self.request.settings)
        return _in_half(results) if self.has_half_floats else results


Change = Callable[[Subject], Subject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A change that has not been worked out."""

    id: str
    """A stable word."""
    group: str
    """Of several of a group one alone can be followed."""
    what: str
    """What to do."""
    tradeoff: Tradeoff
    cost: str
    """The same in words, with numbers where there are any."""
    change: Change | None = None
    """``None``: it is worked out elsewhere, and joins no combination."""
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """What a settings file says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A suggestion and what it saves, in bytes of one figure."""

    suggestion: Suggestion
    figure: Figure
    before_bytes: int
    after_bytes: int
    is_exact: bool
    """Whether the changed model was analyzed; else a formula on its weights estimates."""

    @property
    def saved_bytes(self) -> int:
        """What it saves."""
        return self.before_bytes - self.after_bytes


def evaluated(
    suggestions: Iterator[Suggestion], subject: Subject, figure: Figure, before_bytes: int
) -> Iterator[Proposal]:
    """Analyze again with each suggestion followed; one whose figure cannot be had is left out."""
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
    """Those that save anything, the most first; of equals the one of the lighter tradeoff."""
    saving = (each for each in proposals if each.saved_bytes > 0)
    return tuple(sorted(saving, key=lambda each: (-each.saved_bytes, each.suggestion.tradeoff)))


def bytes_of(figure: Figure, subject: Subject) -> int | None:
    """One figure of a subject; ``None`` where it is unknown, in part, or cannot be had."""
    try:
        return _READERS[figure](subject)
    except OnnxmemError:
        return None


def verdict_of(figure: Figure, subject: Subject, limit_bytes: int) -> Verdict:
    """The verdict on a subject, that of every command where the figure has one."""
    basis, asked = _BASES.get(figure), subject.request.settings
    if basis is None or subject.has_half_floats:
        return verdict_on_bytes(bytes_of(figure, subject), limit_bytes)
    setup = FitRequest(memory_bytes=limit_bytes, basis=basis, accepted=frozenset(asked.accepted))
    try:
        return assess((replace(subject.request),), setup).verdict(limit_bytes)
    except OnnxmemError:
        return Verdict.UNKNOWN


def with_recipe(**fields: Any) -> Change:  # noqa: ANN401 - the fields of TrainingConfig
    """Train in another way."""

    def change(subject: Subject) -> Subject:
        settings = subject.request.settings
        recipe = replace(settings.recipe, **fields)
        request = replace(subject.request, settings=replace(settings, recipe=recipe))
        return replace(subject, request=request)

    return change


def with_shapes(shapes: dict[str, tuple[int, ...]], freed: frozenset[str]) -> Change:
    """Give inputs other shapes; ``freed`` dims were given for them and follow from them now."""

    def change(subject: Subject) -> Subject:
        settings = subject.request.settings
        dims = {name: number for name, number in settings.dims.items() if name not in freed}
        changed = replace(settings, dims=dims, shapes={**settings.shapes, **shapes})
        return replace(subject, request=replace(subject.request, settings=changed))

    return change


def with_file(edit: Callable[[onnx.ModelProto], None]) -> Change:
    """Change the file itself; ``edit`` works on a copy."""

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
    """Open the session in another way."""
    return lambda subject: replace(subject, options=replace(subject.options, **fields))


def _whole(results: StageResults, num_bytes: int | None) -> int | None:
    return num_bytes if results.is_whole else None


def _total(subject: Subject) -> int | None:
    results = subject.results()
    return _whole(results, results.total_bytes)


def _step(subject: Subject) -> int | None:
    results = subject.results()
    return _whole(results, results.training_peak_bytes)


def _torch(subject: Subject) -> int | None:
    results = subject.results()
    memory = subject.request.torch_memory(results)
    return None if memory is None else _whole(results, memory.total_bytes)


def _process(subject: Subject) -> int | None:
    return _session(subject, "ort-cpu")


def _device(subject: Subject) -> int | None:
    return _session(subject, "ort-cuda")


def _session(subject: Subject, runtime: str) -> int | None:
    """What a session takes, opened with the subject's options; its graph optimizer is emulated."""
    request, options = subject.request, subject.options
    asked, results = request.settings, stage_results(request.prepared, request.settings)
    model = ModelAt(request.source, request.prepared, results.bound)
    opened = RuntimeQuestion(
        name=runtime, options=options, asks_onnxruntime=False, cpu=asked.cpu, values=asked.values
    )
    graph = Sessions(model, opened).graph(options)
    arena, unknown = arena_figures(graph, options, PROVIDERS[runtime])
    if unknown.tensors or subject.has_half_floats:
        return None
    if runtime == "ort-cpu":
        return _whole(results, process_figures(model, graph, options, arena).process_bytes)
    context = asked.cuda_context_bytes
    context_bytes = CudaTerms().context_bytes if context is None else context
    workspace_bytes = asked.cuda_workspace_bytes or 0
    return _whole(results, arena.held_steady_bytes + workspace_bytes + context_bytes)


def _in_half(results: StageResults) -> StageResults:
    """The same graph with floats of 16 bits: converters narrow inputs, weights and all between."""
    graph = results.bound.graph
    narrow = {
        name: replace(tensor, dtype=DType.FLOAT16)
        if tensor.dtype in {DType.FLOAT32, DType.FLOAT64}
        else tensor
        for name, tensor in graph.tensors.items()
    }
    nodes = tuple(
        replace(
            node,
            subgraphs=tuple(
                (name, replace(inner, tensors=narrow)) for name, inner in node.subgraphs
            ),
        )
        for node in graph.nodes
    )
    halved = replace(graph, nodes=nodes, tensors=narrow)
    bound: BoundModel = replace(results.bound, graph=halved)
    return replace(
        results,
        bound=bound,
        weight_bytes=sum_bytes(halved.weights),
        inputs_bytes=sum_bytes(halved.tensors[name] for name in halved.inputs),
    )


ERRORS: Final[Mapping[Figure, Accuracy]] = MappingProxyType(
    {
        Figure.TOTAL: ACCURACIES[Basis.TOTAL],
        Figure.STEP: ACCURACIES[Basis.STEP],
        Figure.TORCH: ACCURACIES[Basis.TORCH],
        Figure.PROCESS: ACCURACIES[Basis.ORT_CPU],
        Figure.DEVICE: ACCURACIES[Basis.ORT_CUDA],
    }
)
"""How far those that a budget is compared with may be off."""
_BASES: Final[Mapping[Figure, Basis]] = MappingProxyType(
    {Figure.TOTAL: Basis.TOTAL, Figure.STEP: Basis.STEP, Figure.TORCH: Basis.TORCH}
)
_READERS: Final[Mapping[Figure, Callable[[Subject], int | None]]] = MappingProxyType(
    {
        Figure.TOTAL: _total,
        Figure.STEP: _step,
        Figure.TORCH: _torch,
        Figure.PROCESS: _process,
        Figure.DEVICE: _device,
    }
)
"""Those that a change can be asked about; the others are reckoned where they are advised on."""
