"""What a session of onnxruntime takes at one batch after another, its graph optimised once.

The optimised graph keeps its symbols, so that one serves every batch; not where the file fixes the
batch, or dims are numbers at load. Other settings of the session, which a report compares, are left
out: only the session's own are replayed.
"""

from dataclasses import dataclass, field

from onnxmem.measure.options import SessionOptions
from onnxmem.model import BoundModel
from onnxmem.model.given_values import given_values
from onnxmem.question import Question
from onnxmem.runtimes.onnxruntime.memory import KERNELS, CudaTerms, RuntimeQuestion
from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures, arena_figures
from onnxmem.runtimes.onnxruntime.process_figures import process_figures
from onnxmem.runtimes.onnxruntime.session_graph import (
    ModelAt,
    OptimisedModel,
    optimised_model,
    session_graph,
)


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What one session takes; bytes."""

    arena: ArenaFigures
    process_bytes: int | None
    """``None`` on CUDA."""
    context_bytes: int
    workspace_bytes: int
    is_whole: bool
    """False: tensors of unknown size are left out."""


@dataclass(slots=True)
class Sessions:
    """The optimised graphs of models, each made once where that will do."""

    _made: dict[tuple[int, str], OptimisedModel] = field(default_factory=dict)

    def memory(self, question: Question, bound: BoundModel, runtime: str) -> SessionMemory:
        """What a session takes on a model at the dims of ``bound``.

        :raises OnnxmemError: the optimised graph cannot be read, or a value does not fit its input.
        """
        asked = question.settings
        given_values(bound.graph, asked.values)
        opened = RuntimeQuestion(
            name=runtime,
            options=SessionOptions(fixed_dims=asked.fixed_dims),
            asks_onnxruntime=asked.asks_onnxruntime,
            cpu=asked.cpu,
        )
        options, kernels = opened.session_options(), KERNELS[runtime]
        model = ModelAt(question.source, question.prepared, bound)
        optimised = self._optimised(model, opened)
        session = session_graph(optimised, bound.binding.shapes, asked.values)
        arena, unknown = arena_figures(session, options, kernels)
        is_whole = not unknown.tensors
        if runtime == "ort-cpu":
            process = process_figures(model, session, options, arena)
            return SessionMemory(arena, process.process_bytes, 0, 0, is_whole)
        assumed, context = CudaTerms(), asked.cuda_context_bytes
        return SessionMemory(
            arena,
            None,
            assumed.context_bytes if context is None else context,
            asked.cuda_workspace_bytes or 0,
            is_whole,
        )

    def _optimised(self, model: ModelAt, opened: RuntimeQuestion) -> OptimisedModel:
        opening = opened.opening()
        if opening.fixed_dims or model.bound.binding.old_batch is not None:
            return optimised_model(model, opening)
        key = id(model.file), opened.name
        if key not in self._made:
            self._made[key] = optimised_model(model, opening)
        return self._made[key]
