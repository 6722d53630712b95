"""What a session of onnxruntime takes at one batch after another, its graph optimised once.

The optimised graph keeps its symbols, so that one serves every batch; not where the file fixes the
batch, or dims are numbers at load. Other settings of the session, which a report compares, are left
out: only the session's own are replayed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.analysis.fitting.searching import MOST_REPLAYS
from onnxmem.analysis.fitting.verdicts import Demand
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.analysis.stages import StageResults
from onnxmem.errors import Finding
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.input_values import given_values
from onnxmem.program import Affine
from onnxmem.runtimes.assumed import NO_TERM, Assumed, workspace_of
from onnxmem.runtimes.onnxruntime.affine_session import AffineSession
from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion, session_findings
from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures, PlannedSession
from onnxmem.runtimes.onnxruntime.process.figures import (
    pages_mapped,
    process_figures,
    process_terms,
)
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.loading import Loading, ProcessTerms, process_bytes
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    OptimisedModel,
    SessionGraph,
    session_graph,
)
from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt, optimised_model
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

_FIRST: Final = (1, 2, 8)
"""Batches from which on a session may do the same: at batch 1 some buffers are shared."""


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
    """What its figures assume or leave out."""
    runs_in: Callable[[int], bool] = field(compare=False, repr=False)
    """Whether the arena gets by with so many bytes of a device."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A session on a model at one batch, before it is replayed."""

    model: ModelAt
    graph: SessionGraph
    options: SessionOptions
    session: PlannedSession


@dataclass(slots=True)
class Sessions:
    """The optimised graphs of models, each made once where that will do."""

    _made: dict[tuple[int, str], OptimisedModel] = field(default_factory=dict)

    def memory(self, question: AnalysisRequest, terms: StageResults, runtime: str) -> SessionMemory:
        """What a session takes on a model at the dims of ``terms``.

        :raises OnnxmemError: the optimised graph cannot be read, or a value does not fit its input.
        """
        opened = self._opened(question, terms, runtime)
        arena, unknown = opened.session.figures()
        provider = PROVIDERS[runtime]
        process = process_figures(opened.model, opened.graph, opened.options, arena)
        return SessionMemory(
            arena,
            process.process_bytes if provider.is_host else None,
            NO_TERM if provider.is_host else question.runtime_context,
            NO_TERM if provider.is_host else question.workspace(terms),
            bool(unknown.tensors),
            session_findings(opened.graph, provider, unknown),
            opened.session.runs_in,
        )

    def demands(
        self, question: AnalysisRequest, runtime: str, last: int
    ) -> "SessionDemands | None":
        """Demands up to a batch by affine sizes; ``None`` where these do not hold.

        :raises OnnxmemError: as ``memory``.
        """
        for first in _FIRST:
            batches = (first, (first + last) // 2, last)
            if not first < batches[1] < last:
                return None
            walked = []
            for batch in batches:
                asked = question.at(batch)
                terms = asked.results
                if not terms.is_whole:
                    return None
                walked.append((batch, terms, self._opened(asked, terms, runtime)))
            session = AffineSession.through([(batch, each.session) for batch, _, each in walked])
            made = None if session is None else _demands(question, runtime, session, walked)
            if made is not None:
                return made
        return None

    def _opened(self, question: AnalysisRequest, terms: StageResults, runtime: str) -> _Opened:
        asked = question.settings
        given_values(terms.bound.graph, asked.values)
        opened = RuntimeQuestion(
            name=runtime,
            graph=asked.graph or "ort-all",
            options=SessionOptions(fixed_dims=asked.fixed_dims),
            asks_onnxruntime=asked.asks_onnxruntime,
            cpu=asked.cpu,
        )
        options = opened.session_options()
        model = _model_at(question, terms)
        optimised = self._optimised(model, opened)
        graph = session_graph(optimised, model.bound.binding.shapes, asked.values)
        return _Opened(model, graph, options, PlannedSession.of(graph, options, PROVIDERS[runtime]))

    def _optimised(self, model: ModelAt, opened: RuntimeQuestion) -> OptimisedModel:
        opening = opened.opening()
        if opening.fixed_dims or model.bound.binding.old_batch is not None:
            return optimised_model(model, opening)
        key = id(model.file), opened.name
        if key not in self._made:
            self._made[key] = optimised_model(model, opening)
        return self._made[key]


def _model_at(question: AnalysisRequest, terms: StageResults) -> ModelAt:
    """The file that a session opens, at the dims of the graph that the figures are of."""
    asked = question.settings
    if asked.graph in {None, "raw"}:
        return ModelAt(question.source, question.prepared, terms.bound)
    # The optimised graph has no symbols left to bind dims by where they are fixed.
    prepared = prepare(question.source)
    bound = build(prepared, Request(asked.batch, asked.dims, asked.shapes))
    return ModelAt(question.source, prepared, bound)


_EVENTS: Final = 2_000_000
"""Requests and releases that one search replays: some seconds."""


@dataclass(frozen=True, slots=True)
class SessionDemands:
    """What a session takes at the batches for which its sizes hold."""

    session: AffineSession
    feed: Affine
    pages: tuple[tuple[int, int], ...]
    """Of each mapped weight that is read by rows: pages per sample, and at most."""
    workspace: Affine
    """cuDNN's at its largest."""
    context: Assumed
    given_workspace_bytes: int | None
    process: ProcessTerms | None
    """On CPU: the process at one batch."""
    loaded: Loading | None
    """Its load, which is the same at every batch."""

    @property
    def most_replays(self) -> int:
        """Batches that one search may replay: each is three runs."""
        return max(MOST_REPLAYS, _EVENTS // (self.session.num_events + 1))

    def holds_at(self, batch: int) -> bool:
        """Whether the sizes hold at a batch."""
        return self.session.holds_at(batch)

    def demand(self, batch: int) -> Demand:
        """What a session wants at a batch.

        :raises ReplayError: no arena could serve it.
        """
        session = self.session.at(batch)
        steady = session.steady()
        if self.process is not None:
            pages = sum(min(each * batch, most) for each, most in self.pages)
            process = replace(
                self.process,
                regions=steady.regions,
                feed_bytes=self.feed.at(batch),
                mapped_bytes=PAGE_BYTES * pages,
            )
            size_bytes = process_bytes(process, self.loaded)
            return Demand(size_bytes=size_bytes, least_bytes=steady.requested_peak_bytes)
        workspace = workspace_of(self.workspace.at(batch), self.given_workspace_bytes)
        beside_bytes = self.context.size_bytes + workspace.size_bytes

        def runs_in(limit_bytes: int) -> bool:
            return session.runs_in(max(limit_bytes - beside_bytes, 0))

        return Demand(
            size_bytes=steady.held_bytes + beside_bytes,
            more_bytes=self.context.more_bytes + workspace.more_bytes,
            least_bytes=steady.requested_peak_bytes + beside_bytes,
            runs_in=runs_in,
        )


def _demands(
    question: AnalysisRequest,
    runtime: str,
    session: AffineSession,
    walked: Sequence[tuple[int, StageResults, _Opened]],
) -> SessionDemands | None:
    feed = Affine.through([(batch, _feed_bytes(each.model)) for batch, _, each in walked])
    high = [(batch, question.workspace(terms).high_bytes) for batch, terms, _ in walked]
    workspace = Affine.through(high)
    pages = _pages([(batch, each) for batch, _, each in walked])
    if feed is None or workspace is None or pages is None:
        return None
    process = None
    if PROVIDERS[runtime].is_host:
        opened = walked[0][2]
        arena, _ = opened.session.figures()
        process = process_terms(opened.model, opened.graph, opened.options, arena)
    return SessionDemands(
        session,
        feed,
        pages,
        workspace,
        question.runtime_context,
        question.settings.cuda_workspace_bytes,
        process,
        None if process is None else Loading(process.load).run(),
    )


def _pages(walked: Sequence[tuple[int, _Opened]]) -> tuple[tuple[int, int], ...] | None:
    """Pages of mapped weights: as many rows as there are indices, and at most all."""
    mapped = [pages_mapped(each.model, each.graph, each.options) for _, each in walked]
    found = []
    for name, first in mapped[0].items():
        most = max(each.get(name, 0) for each in mapped)
        of_sample = most if first == most else first // walked[0][0]
        known = zip((batch for batch, _ in walked), mapped, strict=True)
        if any(min(of_sample * batch, most) != each.get(name) for batch, each in known):
            return None
        found.append((of_sample, most))
    return tuple(found)


def _feed_bytes(model: ModelAt) -> int:
    graph = model.bound.graph
    return sum(graph.tensors[name].size_bytes or 0 for name in graph.inputs)
