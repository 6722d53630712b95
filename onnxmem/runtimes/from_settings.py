"""Sessions of onnxruntime as the settings of an analysis request them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from onnxmem.errors import Finding, OnnxmemError
from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.input_values import input_arrays
from onnxmem.model.observed import NO_RUN, GraphRun
from onnxmem.runtimes.onnxruntime.advice import (
    Choice,
    GraphOf,
    changed_alone,
    combined_choices,
    single_choices,
)
from onnxmem.runtimes.onnxruntime.memory import (
    RuntimeMemory,
    SessionGraphs,
    SessionRequest,
    at_upper_ends,
    session_memory,
    with_loop_names,
)
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, CudaAssumptions
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_graph.optimization import (
    ModelAt,
    Optimizing,
    SessionConfig,
    optimized_model,
)
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions
from onnxmem.settings import Settings, Values


@dataclass(frozen=True, slots=True)
class Advice:
    """The memory of a session with other settings."""

    runtime: RuntimeMemory
    """With every combination of reuse, pattern and growth."""
    singles: tuple[Choice, ...]
    """Each setting changed alone, other optimization levels and fixed dims included."""
    is_at_most: bool = False
    """Whether all of them are of a run with the upper end of every dim that data decide."""
    is_partial: bool = False
    """Whether tensors of unknown size are left out of all of them."""


def advise(file: ModelFile, settings: Settings) -> Advice:
    """Compute the memory with other settings of the session, for the first requested runtime.

    :raises OnnxmemError: the model or an optimized graph cannot be read.
    """
    prepared = prepare(file)
    bound = build(prepared, Request(settings.batch, settings.dims, settings.shapes))
    model = ModelAt(file, prepared, bound)
    sessions = SessionGraphs(model, next(_session_requests(settings)))
    options, dims = sessions.request.session_options(), bound.binding.dims
    sessions.optimize_together((options, *changed_alone(options, dims)))
    runtime = session_memory(sessions)
    provider = PROVIDERS[runtime.name]
    graph_of: GraphOf = sessions.graph
    has_ends = False
    if runtime.unknown.tensors:
        # What is left out may grow while the rest falls: settings are compared at the upper ends.
        raised, has_ends = _raised(sessions, options)
        graph_of = partial(_raised_graph, sessions)
        has_ends &= not PlannedSession.of(raised, options, provider).unknowns.tensors
        find_advice = partial(combined_choices, raised, options, provider)
        runtime = replace(runtime, find_advice=find_advice)
    singles = single_choices(graph_of, options, provider, dims)
    is_partial = bool(runtime.unknown.tensors) and not has_ends
    return Advice(runtime, singles, is_at_most=has_ends, is_partial=is_partial)


def _raised(sessions: SessionGraphs, options: SessionOptions) -> tuple[SessionGraph, bool]:
    """A session at the upper ends of what its data decide, and whether all have one."""
    found = sessions.graph(options)
    request = with_loop_names(sessions.request, sessions.model.bound.graph, found.graph)
    return at_upper_ends(found, request)


def _raised_graph(sessions: SessionGraphs, options: SessionOptions) -> SessionGraph:
    return _raised(sessions, options)[0]


def predict(file: ModelFile, request: Request, session: SessionRequest) -> RuntimeMemory:
    """The memory of a session at the requested dims.

    :raises OnnxmemError: the model or its optimized graph cannot be read.
    """
    prepared = prepare(file)
    model = ModelAt(file, prepared, build(prepared, request))
    return session_memory(SessionGraphs(model, session))


def runtime_memories(
    file: ModelFile,
    bound: BoundModel,
    settings: Settings,
    fed: Mapping[str, Values] = MappingProxyType({}),
    optimized: Optimizing | None = None,
    observed: GraphRun = NO_RUN,
) -> tuple[RuntimeMemory | Finding, ...]:
    """The memory of each requested runtime at the dims of ``bound``.

    ``fed`` are the input values of a measured run; ``optimized`` creates a session's model or
    returns a cached one; ``observed`` is what was seen of a run. A runtime that fails becomes a
    finding, ``runtime_failed``.

    :raises InputValueError: a value does not match its input.
    """
    if not settings.runtimes:
        return ()
    # Values that fit no input are refused once, before a session is simulated.
    input_arrays(bound.graph, settings.values)
    prepared = prepare(file)
    if settings.graph not in {None, "raw"}:
        # ``bound`` belongs to the optimized graph, which has no symbols if dims are fixed.
        bound = build(prepared, Request(settings.batch, settings.dims, settings.shapes))
    model = ModelAt(file, prepared, bound)
    return tuple(
        _memory_or_finding(
            SessionGraphs(
                model,
                replace(session, values={**fed, **session.values}, observed=observed),
                optimized,
            )
        )
        for session in _session_requests(settings)
    )


def _memory_or_finding(sessions: SessionGraphs) -> RuntimeMemory | Finding:
    try:
        return session_memory(sessions)
    except OnnxmemError as fault:
        return Finding("runtime_failed", f"{sessions.request.name} failed: {fault}")


def _session_requests(settings: Settings) -> Iterator[SessionRequest]:
    assumed = CudaAssumptions()
    context_bytes = settings.cuda_context_bytes
    cuda = CudaAssumptions(
        assumed.context_bytes if context_bytes is None else context_bytes,
        settings.cuda_workspace_bytes,
    )
    for name in settings.runtimes:
        yield SessionRequest(
            name=name,
            graph=settings.graph or "ort-all",
            options=SessionOptions(fixed_dims=settings.fixed_dims),
            cuda=cuda,
            asks_onnxruntime=settings.asks_onnxruntime,
            cpu=settings.cpu,
            values=settings.values,
            most=settings.most,
        )


def optimized_file(file: ModelFile, settings: Settings) -> tuple[ModelFile, tuple[Finding, ...]]:
    """The model to analyze: that of the file, or the graph that onnxruntime optimizes it to.

    :raises OnnxmemError: what ``prepare`` and ``build`` raise.
    """
    if settings.graph is None or settings.graph == "raw":
        return file, ()
    prepared = prepare(file)
    bound = build(prepared, Request(settings.batch, settings.dims, settings.shapes))
    config = SessionConfig(
        LEVELS[settings.graph], settings.fixed_dims, settings.asks_onnxruntime, settings.cpu
    )
    made = optimized_model(ModelAt(file, prepared, bound), config)
    text = f"figures are for the graph optimized by {made.graph_optimizer} at level {made.level}"
    remark = Finding("optimized_graph", text)
    return ModelFile(file.path, made.proto, file.file_bytes), (remark, *made.findings)
