"""The figures that advice lowers, of a subject: a question and how its session is opened.

Every figure is that of another package, computed anew; none is derived here. A figure that leaves
something out is unknown to advice: a part may grow where the known rest falls.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.fitting.answering import FitRequest, assess
from onnxmem.analysis.fitting.bases import BASES, Basis
from onnxmem.analysis.fitting.verdicts import ACCURACIES, Accuracy, Verdict, verdict_on_bytes
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.analysis.stages import StageResults, stage_results, sum_bytes
from onnxmem.errors import OnnxmemError
from onnxmem.model import BoundModel, DType, Graph
from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion, Sessions
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.process.figures import process_figures
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, CudaTerms
from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.units import sum_known


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


@dataclass(frozen=True, slots=True)
class Subject:
    """What a change changes: a question, the session that answers it, and the width of floats."""

    question: AnalysisRequest
    options: SessionOptions = field(default_factory=SessionOptions)
    has_half_floats: bool = False
    """Whether every float of 32 or 64 bits, weights and inputs too, has 16 instead."""

    def with_batch(self, batch: int) -> "Subject":
        """The same at another batch."""
        return replace(self, question=self.question.at(batch))

    def terms(self) -> StageResults:
        """Walk the stages at the width that floats have.

        :raises OnnxmemError: the dims do not fit the model.
        """
        # Not the request's own results: of a large graph, many subjects would keep many copies.
        terms = stage_results(self.question.prepared, self.question.settings)
        return _in_half(terms) if self.has_half_floats else terms


Change = Callable[[Subject], Subject]


def bytes_of(figure: Figure, subject: Subject) -> int | None:
    """One figure of a subject; ``None`` where it is unknown, in part, or cannot be had."""
    try:
        return _READERS[figure](subject)
    except OnnxmemError:
        return None


def verdict_of(figure: Figure, subject: Subject, limit_bytes: int) -> Verdict:
    """The verdict on a subject, that of every command where the figure has one."""
    basis, asked = _BASES.get(figure), subject.question.settings
    if basis is None or subject.has_half_floats:
        return verdict_on_bytes(bytes_of(figure, subject), limit_bytes)
    setup = FitRequest(memory_bytes=limit_bytes, basis=basis, accepted=frozenset(asked.accepted))
    try:
        return assess((replace(subject.question),), setup).verdict(limit_bytes)
    except OnnxmemError:
        return Verdict.UNKNOWN


def _whole(terms: StageResults, num_bytes: int | None) -> int | None:
    return num_bytes if terms.is_whole else None


def _total(subject: Subject) -> int | None:
    terms = subject.terms()
    return _whole(terms, terms.total_bytes)


def _step(subject: Subject) -> int | None:
    terms = subject.terms()
    return _whole(terms, terms.training_peak_bytes)


def _torch(subject: Subject) -> int | None:
    terms = subject.terms()
    memory = subject.question.torch_memory(terms)
    return None if memory is None else _whole(terms, memory.total_bytes)


def _process(subject: Subject) -> int | None:
    return _session(subject, "ort-cpu")


def _device(subject: Subject) -> int | None:
    return _session(subject, "ort-cuda")


def _session(subject: Subject, runtime: str) -> int | None:
    """What a session takes, opened with the subject's options; its optimiser is emulated."""
    question, options = subject.question, subject.options
    asked, terms = question.settings, stage_results(question.prepared, question.settings)
    model = ModelAt(question.source, question.prepared, terms.bound)
    opened = RuntimeQuestion(
        name=runtime, options=options, asks_onnxruntime=False, cpu=asked.cpu, values=asked.values
    )
    graph = Sessions(model, opened).graph(options)
    arena, unknown = arena_figures(graph, options, PROVIDERS[runtime])
    if unknown.tensors or subject.has_half_floats:
        return None
    if runtime == "ort-cpu":
        return _whole(terms, process_figures(model, graph, options, arena).process_bytes)
    context = asked.cuda_context_bytes
    context_bytes = CudaTerms().context_bytes if context is None else context
    workspace_bytes = asked.cuda_workspace_bytes or 0
    return _whole(terms, arena.held_steady_bytes + workspace_bytes + context_bytes)


def _in_half(terms: StageResults) -> StageResults:
    """The same graph with floats of 16 bits: converters narrow inputs, weights and all between."""
    graph = terms.bound.graph
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
    bound: BoundModel = replace(terms.bound, graph=halved)
    return replace(
        terms,
        bound=bound,
        weight_bytes=sum_bytes(halved.weights),
        inputs_bytes=_inputs_bytes(halved),
    )


def _inputs_bytes(graph: Graph) -> int | None:
    return sum_known(graph.tensors[name].size_bytes for name in graph.inputs)


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
