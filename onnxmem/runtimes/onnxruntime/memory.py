"""The figures of one model in one runtime, each apart: definition 9 of docs/definitions.md."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.errors import Finding
from onnxmem.model.graph import Graph
from onnxmem.model.input_values import unused_values
from onnxmem.model.type_conflicts import TypeConflictError, type_conflicts
from onnxmem.runtimes.onnxruntime.advice import Choice, combined_choices
from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures, Unknowns, arena_figures
from onnxmem.runtimes.onnxruntime.process.figures import process_figures
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, CudaTerms, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    SessionGraph,
    session_graph,
    varying_order,
)
from onnxmem.runtimes.onnxruntime.session_graph.opening import (
    ModelAt,
    Opening,
    Optimizing,
    optimized_model,
)
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions
from onnxmem.settings import Values

VERIFIED: Final = ("1.29", "1.30", "1.31", "1.32")
"""Minor versions of onnxruntime that the rules were verified on; what differs between them is in
tests/data/onnxruntime/versions.json."""
_NAMED_OPERATORS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeMemory:
    """What a runtime takes, in bytes; ``None`` is unknown or does not apply."""

    name: str
    """``ort-cpu`` or ``ort-cuda``."""
    graph: str
    """``raw``, ``ort-basic``, ``ort-extended`` or ``ort-all``."""
    graph_optimizer: str
    """Who made the graph: ``onnxruntime 1.31.1``, or ``onnxmem`` where that was emulated."""
    cpu: str
    """That the session runs on: ``avx512``, ``avx2`` or ``arm64``."""
    arena: ArenaFigures
    load_peak_bytes: int | None
    process_bytes: int | None
    process_parts: tuple[tuple[str, int], ...] = ()
    """What the process is made of; the parts add up to it."""
    context_bytes: int | None
    """Of the CUDA context: an assumption that can be set."""
    workspace_bytes: int | None
    """Of cuDNN's convolutions: an assumption that can be set."""
    unknown: Unknowns
    advice: tuple[Choice, ...]
    """Other settings of the session on the same graph, the least memory first."""
    findings: tuple[Finding, ...]

    @property
    def own(self) -> Choice:
        """The session's own settings among ``advice``."""
        return next(choice for choice in self.advice if not choice.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeQuestion:
    """How a session is opened, and on what."""

    name: str = "ort-cpu"
    graph: str = "ort-all"
    options: SessionOptions = field(default_factory=SessionOptions)
    cuda: CudaTerms = field(default_factory=CudaTerms)
    asks_onnxruntime: bool = True
    """False: emulate its optimiser even where it is installed."""
    cpu: str = "native"
    """That the session runs on: this machine's, or a name of ``CPUS``."""
    values: Mapping[str, Values] = field(default_factory=dict)
    """What is known of the elements of inputs: it decides which branches run, and how often."""

    def opening(self) -> Opening:
        """How the session's graph is made."""
        return self.opening_with(self.session_options())

    def opening_with(self, options: SessionOptions) -> Opening:
        """How it is made with other options."""
        level = PROVIDERS[self.name].level(options.level)
        return Opening(level, options.fixed_dims, self.asks_onnxruntime, self.cpu)

    def session_options(self) -> SessionOptions:
        """The options at the level of the graph asked for."""
        return replace(self.options, level=LEVELS[self.graph])


@dataclass(slots=True)
class Sessions:
    """The graphs of a model's sessions; onnxruntime is asked for each of them once."""

    model: ModelAt
    question: RuntimeQuestion
    optimized: Optimizing | None = None
    """What makes a session's model; ``None``: ``optimized_model``, for this question alone."""
    _made: dict[Opening, SessionGraph] = field(default_factory=dict)

    def graph(self, options: SessionOptions) -> SessionGraph:
        """The graph of a session that is opened so.

        :raises OnnxmemError: the optimised graph cannot be read, or a value does not fit.
        """
        opening = self.question.opening_with(options)
        if opening not in self._made:
            make = self.optimized or optimized_model
            optimized = make(self.model, opening)
            shapes = self.model.bound.binding.shapes
            self._made[opening] = session_graph(optimized, shapes, self.question.values)
        return self._made[opening]


def runtime_memory(model: ModelAt, question: RuntimeQuestion) -> RuntimeMemory:
    """What a session of onnxruntime takes on a model at one binding of its dims.

    :raises OnnxmemError: the optimised graph cannot be read, or a value does not fit its input.
    """
    return session_memory(Sessions(model, question))


def session_memory(sessions: Sessions) -> RuntimeMemory:
    """The same, for a model whose other sessions may be asked for too.

    :raises TypeConflictError: onnxruntime would refuse the model.
    """
    model, question = sessions.model, sessions.question
    for _, reason in type_conflicts(model.prepared.proto, model.bound.graph):
        message = f"onnxruntime refuses the model, for types do not agree: {reason}"
        raise TypeConflictError(message)
    options = question.session_options()
    session = sessions.graph(options)
    optimized, provider = session.optimized, PROVIDERS[question.name]
    figures, unknown = arena_figures(session, options, provider)
    cuda = None if provider.is_host else question.cuda
    process = None if cuda else process_figures(model, session, options, figures)
    return RuntimeMemory(
        name=question.name,
        graph=question.graph,
        graph_optimizer=optimized.graph_optimizer,
        cpu=optimized.cpu.name,
        arena=figures,
        load_peak_bytes=None if process is None else process.load_peak_bytes,
        process_bytes=None if process is None else process.process_bytes,
        process_parts=() if process is None else process.process_parts,
        context_bytes=None if cuda is None else cuda.context_bytes,
        workspace_bytes=None if cuda is None else cuda.workspace_bytes,
        unknown=unknown,
        advice=combined_choices(session, options, provider),
        findings=(
            *unused_values(model.bound.graph, question.values),
            *session_findings(session, provider, unknown),
        ),
    )


def session_findings(
    session: SessionGraph, provider: ExecutionProvider, unknown: Unknowns
) -> tuple[Finding, ...]:
    """What the figures of a session assume or leave out."""
    optimized = session.optimized
    return (
        *optimized.findings,
        *unknown.findings(),
        *(varying_order(session.graph) if optimized.level == "all" else ()),
        *_version_findings(optimized.graph_optimizer, ruled_operators(session.graph, provider)),
    )


def ruled_operators(graph: Graph, provider: ExecutionProvider) -> tuple[str, ...]:
    """Types of the nodes whose kernels have a rule of their own, which a version may change.

    Those that only share a buffer come last. The rest take their outputs and nothing else: no
    scratch, no packed weights, no shared buffer.
    """
    nodes = tuple(graph.all_nodes())
    # What is onnxruntime's own operator has a rule even where it takes nothing.
    taking = (n for n in nodes if n.domain.startswith("com.microsoft") or provider.has_rule(n))
    sharing = (node for node in nodes if provider.aliases(node) or provider.may_overwrite(node))
    return tuple(dict.fromkeys(node.op_type for found in (taking, sharing) for node in found))


def _version_findings(graph_optimizer: str, operators: Sequence[str]) -> Iterator[Finding]:
    """A finding where operators have rules that were not verified on the installed version."""
    _, _, version = graph_optimizer.partition("onnxruntime ")
    if not version or not operators or version.rpartition(".")[0] in VERIFIED:
        return
    is_newer = _minor(version) > _minor(VERIFIED[-1])
    verified = f"up to {VERIFIED[-1]}" if is_newer else f"on {VERIFIED[0]} to {VERIFIED[-1]}"
    text = f"onnxruntime {version} is installed; the rules of {_shortened(operators)} were verified"
    yield Finding("unverified_runtime", f"{text} {verified}")


def _minor(version: str) -> tuple[int, ...]:
    """Major and minor version, to be compared."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _shortened(operators: Sequence[str]) -> str:
    """Up to three operators by name, or two and how many more: ``A, B and 3 more operators``."""
    if len(operators) > _NAMED_OPERATORS:
        *first, last = (*operators[:2], f"{len(operators) - 2} more operators")
    else:
        *first, last = operators
    return f"{', '.join(first)} and {last}" if first else last
