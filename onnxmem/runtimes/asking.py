"""What the settings of an analysis ask of the runtimes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from onnxmem.errors import Finding, OnnxmemError
from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.input_values import input_arrays
from onnxmem.runtimes.onnxruntime.advice import Choice, single_choices
from onnxmem.runtimes.onnxruntime.memory import (
    RuntimeMemory,
    RuntimeQuestion,
    Sessions,
    runtime_memory,
    session_memory,
)
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, CudaTerms
from onnxmem.runtimes.onnxruntime.session_graph.opening import (
    ModelAt,
    Opening,
    Optimizing,
    optimized_model,
)
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions
from onnxmem.settings import Settings, Values


@dataclass(frozen=True, slots=True)
class Advice:
    """What other settings of a session would take."""

    runtime: RuntimeMemory
    """With every combination of reuse, pattern and growth."""
    singles: tuple[Choice, ...]
    """Every setting changed alone, other graph levels and dims among them."""


def advise(file: ModelFile, settings: Settings) -> Advice:
    """Work out what other settings of a session take, for the first runtime asked for.

    :raises OnnxmemError: the model or an optimised graph cannot be read.
    """
    prepared = prepare(file)
    bound = build(prepared, Request(settings.batch, settings.dims, settings.shapes))
    model = ModelAt(file, prepared, bound)
    sessions = Sessions(model, next(_questions(settings)))
    runtime = session_memory(sessions)
    provider = PROVIDERS[runtime.name]
    return Advice(
        runtime, single_choices(sessions.graph, runtime.own.options, provider, bound.binding.dims)
    )


def predict(file: ModelFile, request: Request, question: RuntimeQuestion) -> RuntimeMemory:
    """What a session takes on a model at the dims asked for.

    :raises OnnxmemError: the model or its optimised graph cannot be read.
    """
    prepared = prepare(file)
    return runtime_memory(ModelAt(file, prepared, build(prepared, request)), question)


def runtime_memories(
    file: ModelFile,
    bound: BoundModel,
    settings: Settings,
    fed: Mapping[str, Values] = MappingProxyType({}),
    optimized: Optimizing | None = None,
) -> tuple[RuntimeMemory | Finding, ...]:
    """What each runtime asked for takes on a model at the dims of ``bound``.

    ``fed`` are values of inputs that were fed to a run beside it; ``optimized`` makes a session's
    model, or has it from before. A runtime that cannot be worked
    out is a finding, ``runtime_failed``.

    :raises InputValueError: a value does not fit its input.
    """
    if not settings.runtimes:
        return ()
    input_arrays(bound.graph, settings.values)
    prepared = prepare(file)
    if settings.graph not in {None, "raw"}:
        # ``bound`` is of the optimized graph, which has no symbols left where dims are fixed.
        bound = build(prepared, Request(settings.batch, settings.dims, settings.shapes))
    model = ModelAt(file, prepared, bound)
    return tuple(
        _memory_or_finding(
            Sessions(model, replace(question, values={**fed, **question.values}), optimized)
        )
        for question in _questions(settings)
    )


def _memory_or_finding(sessions: Sessions) -> RuntimeMemory | Finding:
    try:
        return session_memory(sessions)
    except OnnxmemError as fault:
        return Finding("runtime_failed", f"{sessions.question.name} cannot be worked out: {fault}")


def _questions(settings: Settings) -> Iterator[RuntimeQuestion]:
    assumed = CudaTerms()
    context_bytes = settings.cuda_context_bytes
    cuda = CudaTerms(
        assumed.context_bytes if context_bytes is None else context_bytes,
        settings.cuda_workspace_bytes,
    )
    for name in settings.runtimes:
        yield RuntimeQuestion(
            name=name,
            graph=settings.graph or "ort-all",
            options=SessionOptions(fixed_dims=settings.fixed_dims),
            cuda=cuda,
            asks_onnxruntime=settings.asks_onnxruntime,
            cpu=settings.cpu,
            values=settings.values,
        )


def optimized_file(file: ModelFile, settings: Settings) -> tuple[ModelFile, tuple[Finding, ...]]:
    """The model that the figures are of: the file's own, or what onnxruntime makes of it.

    :raises OnnxmemError: what ``prepare`` and ``build`` raise.
    """
    if settings.graph is None or settings.graph == "raw":
        return file, ()
    prepared = prepare(file)
    bound = build(prepared, Request(settings.batch, settings.dims, settings.shapes))
    opening = Opening(
        LEVELS[settings.graph], settings.fixed_dims, settings.asks_onnxruntime, settings.cpu
    )
    made = optimized_model(ModelAt(file, prepared, bound), opening)
    text = f"the figures are of the graph that {made.graph_optimizer} makes at level {made.level}"
    remark = Finding("optimised_graph", text)
    return ModelFile(file.path, made.proto, file.file_bytes), (remark, *made.findings)
