"""What a session of onnxruntime takes at one batch after another, its graph optimised once.

The optimised graph keeps its symbols, so that one serves every batch; not where the file fixes the
batch, or dims are numbers at load. Other settings of the session, which a report compares, are left
out: only the session's own are replayed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from onnxmem.findings import Finding
from onnxmem.measure.options import SessionOptions
from onnxmem.model import Request, build, prepare
from onnxmem.model.given_values import given_values
from onnxmem.question import Question
from onnxmem.runtimes.assumed import NO_TERM, Assumed
from onnxmem.runtimes.onnxruntime.memory import KERNELS, RuntimeQuestion
from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures, arena_figures, arena_pressure
from onnxmem.runtimes.onnxruntime.process_figures import process_figures
from onnxmem.runtimes.onnxruntime.session_graph import (
    ModelAt,
    OptimisedModel,
    optimised_model,
    session_graph,
)
from onnxmem.terms import Terms


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What one session takes; bytes."""

    arena: ArenaFigures
    process_bytes: int | None
    """``None`` on CUDA."""
    context: Assumed
    workspace: Assumed
    leaves_out_tensors: bool
    """Whether tensors of unknown size count as nothing."""
    findings: tuple[Finding, ...]
    """What its figures leave out."""
    runs_in: Callable[[int], bool] = field(compare=False, repr=False)
    """Whether the arena gets by with so many bytes of a device."""


@dataclass(slots=True)
class Sessions:
    """The optimised graphs of models, each made once where that will do."""

    _made: dict[tuple[int, str], OptimisedModel] = field(default_factory=dict)

    def memory(self, question: Question, terms: Terms, runtime: str) -> SessionMemory:
        """What a session takes on a model at the dims of ``terms``.

        :raises OnnxmemError: the optimised graph cannot be read, or a value does not fit its input.
        """
        asked = question.settings
        given_values(terms.bound.graph, asked.values)
        opened = RuntimeQuestion(
            name=runtime,
            graph=asked.graph or "ort-all",
            options=SessionOptions(fixed_dims=asked.fixed_dims),
            asks_onnxruntime=asked.asks_onnxruntime,
            cpu=asked.cpu,
        )
        options, kernels = opened.session_options(), KERNELS[runtime]
        model = _model_at(question, terms)
        optimised = self._optimised(model, opened)
        session = session_graph(optimised, model.bound.binding.shapes, asked.values)
        arena, unknown = arena_figures(session, options, kernels)
        is_cpu = runtime == "ort-cpu"
        return SessionMemory(
            arena,
            process_figures(model, session, options, arena).process_bytes if is_cpu else None,
            NO_TERM if is_cpu else question.runtime_context,
            NO_TERM if is_cpu else question.workspace(terms),
            bool(unknown.tensors),
            tuple(unknown.findings()),
            lambda capacity_bytes: not arena_pressure(
                session, options, kernels, capacity_bytes
            ).is_out_of_memory,
        )

    def _optimised(self, model: ModelAt, opened: RuntimeQuestion) -> OptimisedModel:
        opening = opened.opening()
        if opening.fixed_dims or model.bound.binding.old_batch is not None:
            return optimised_model(model, opening)
        key = id(model.file), opened.name
        if key not in self._made:
            self._made[key] = optimised_model(model, opening)
        return self._made[key]


def _model_at(question: Question, terms: Terms) -> ModelAt:
    """The file that a session opens, at the dims of the graph that the figures are of."""
    asked = question.settings
    if asked.graph in {None, "raw"}:
        return ModelAt(question.source, question.prepared, terms.bound)
    # The optimised graph has no symbols left to bind dims by where they are fixed.
    prepared = prepare(question.source)
    bound = build(prepared, Request(asked.batch, asked.dims, asked.shapes))
    return ModelAt(question.source, prepared, bound)
