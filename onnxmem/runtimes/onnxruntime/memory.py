"""The memory of one model in one session (definition 9), and the findings on its figures."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from onnxmem.errors import Finding
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import Graph, Node
from onnxmem.model.input_values import unused_values
from onnxmem.model.intervals.limits import limits_of
from onnxmem.model.intervals.walk import loop_bounds, with_upper_dims
from onnxmem.model.observed import NO_RUN, GraphRun
from onnxmem.model.type_conflicts import TypeConflictError, type_conflicts
from onnxmem.runtimes.onnxruntime.advice import Choice, combined_choices
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import at_bounds, undecided
from onnxmem.runtimes.onnxruntime.prediction import (
    ArenaFigures,
    PlannedSession,
    PossibleRuns,
    Unknowns,
    returns_sequences,
)
from onnxmem.runtimes.onnxruntime.process.figures import HostProcess
from onnxmem.runtimes.onnxruntime.process.loading import Parts
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, CudaAssumptions, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    OptimizedModel,
    SessionGraph,
    session_graph,
    varying_order,
)
from onnxmem.runtimes.onnxruntime.session_graph.optimization import (
    ModelAt,
    Optimizing,
    SessionConfig,
    optimized_model,
    optimized_together,
)
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions
from onnxmem.settings import Values
from onnxmem.units import format_bytes

VERIFIED: Final = ("1.29", "1.30", "1.31", "1.32")
"""Minor versions of onnxruntime on which the rules were verified; their differences are in
tests/data/onnxruntime/versions.json."""
_NAMED_OPERATORS: Final = 3


@dataclass(frozen=True, kw_only=True)
class RuntimeMemory:
    """The memory of a runtime, in bytes; ``None``: unknown or not applicable."""

    name: str
    """``ort-cpu`` or ``ort-cuda``."""
    graph: str
    """``raw``, ``ort-basic``, ``ort-extended`` or ``ort-all``."""
    graph_optimizer: str
    """What optimized the graph: ``onnxruntime 1.31.1``, or ``onnxmem`` if that was emulated."""
    cpu: str
    """Of the session: ``avx512``, ``avx2`` or ``arm64``."""
    arena: ArenaFigures
    load_peak_bytes: int | None
    process_first_run_bytes: int | None
    """The process after run 1."""
    process_bytes: int | None
    """The process after run 3."""
    requested_peak_lower_bytes: int | None = None
    """The peak requested by kernels at the lower end of the branches and iterations that data
    decide; ``None``: they decide neither."""
    requested_peak_upper_bytes: int | None = None
    """The same where every dim that data decide is at its upper end, and the larger branch runs;
    ``None``: data decide neither, or a dim has no upper end."""
    is_every_run: bool = True
    """Whether the figures are those of every run, or of its larger branches: else the data decide
    sizes or iterations, and only the peak requested by kernels has an upper end."""
    process_parts: Parts = ()
    """Parts of the process, which add up to it."""
    process_range: tuple[int, int] | None = None
    """The least and the most of the process after run 3, where the C library's heap may end in
    states that differ by more than the figure's error; ``None``: it does not."""
    context_bytes: int | None
    """The CUDA context: an assumption that can be set."""
    workspace_bytes: int | None
    """The workspace of cuDNN's convolutions: an assumption that can be set."""
    unknown: Unknowns
    find_advice: Callable[[], tuple[Choice, ...]] = field(repr=False, compare=False)
    """Replays the session with other settings, which takes longer than all other figures."""
    findings: tuple[Finding, ...]

    @property
    def process_while_loading_bytes(self) -> int | None:
        """The whole process at the most that it takes while the session is created."""
        if self.load_peak_bytes is None or not self.process_parts:
            return None
        # The first part is the process before there is a session, which the load adds to.
        (_, before_bytes), *_ = self.process_parts
        return before_bytes + self.load_peak_bytes

    @property
    def process_peak_bytes(self) -> int | None:
        """The most of the process while the session is created and after each run."""
        loading_bytes, first_bytes = self.process_while_loading_bytes, self.process_first_run_bytes
        if loading_bytes is None or first_bytes is None or self.process_bytes is None:
            return None
        return max(loading_bytes, first_bytes, self.process_bytes)

    @property
    def requested_peak_ends(self) -> tuple[int, int | None] | None:
        """The peak requested by kernels at least and at most; ``None``: the data of a run do not
        decide it, else without an upper end.
        """
        least_bytes = self.requested_peak_lower_bytes
        if least_bytes is None and not self.unknown.tensors:
            return None
        known_bytes = self.arena.requested_peak_bytes
        return known_bytes if least_bytes is None else least_bytes, self.requested_peak_upper_bytes

    @property
    def unknown_tensors(self) -> int:
        """How many tensors have no known size."""
        return len(self.unknown.tensors)

    @property
    def unknown_scratch(self) -> int:
        """How many uses of kernels have no known scratch."""
        return sum(self.unknown.scratch.values())

    @property
    def base_bytes(self) -> int:
        """Of the arena: initializers, prepacked weights included."""
        return self.arena.base_bytes

    @property
    def requested_peak_bytes(self) -> int:
        """Of the arena: the peak requested by kernels."""
        return self.arena.requested_peak_bytes

    @property
    def with_scratch_peak_bytes(self) -> int:
        """Of the arena: the same with the scratch of kernels."""
        return self.arena.with_scratch_peak_bytes

    @property
    def pattern_block_bytes(self) -> int:
        """Of the arena: the memory-pattern buffer."""
        return self.arena.pattern_block_bytes

    @property
    def in_use_peak_bytes(self) -> int:
        """Of the arena: the peak of allocated chunks."""
        return self.arena.in_use_peak_bytes

    @property
    def held_bytes(self) -> int:
        """Of the arena: reserved after run 1."""
        return self.arena.held_bytes

    @property
    def held_steady_bytes(self) -> int:
        """Of the arena: reserved after the last run."""
        return self.arena.held_steady_bytes

    @property
    def peak_node(self) -> str | None:
        """The name of the node at the arena's peak."""
        node = self.arena.peak_node
        return None if node is None else node.name

    @property
    def process_least_bytes(self) -> int | None:
        """The lower end of ``process_range``."""
        return None if self.process_range is None else self.process_range[0]

    @property
    def process_most_bytes(self) -> int | None:
        """The upper end of ``process_range``."""
        return None if self.process_range is None else self.process_range[1]

    @cached_property
    def advice(self) -> tuple[Choice, ...]:
        """Other settings of the session on the same graph, the least memory first."""
        return self.find_advice()

    @property
    def own(self) -> Choice:
        """The session's own settings among ``advice``."""
        return next(choice for choice in self.advice if not choice.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """The configuration of a session, and the inputs that are known."""

    name: str = "ort-cpu"
    graph: str = "ort-all"
    options: SessionOptions = field(default_factory=SessionOptions)
    cuda: CudaAssumptions = field(default_factory=CudaAssumptions)
    asks_onnxruntime: bool = True
    """False: emulate its graph optimizer even if it is installed."""
    cpu: str = "native"
    """Of the session: this machine's, or a name in ``CPUS``."""
    values: Mapping[str, Values] = field(default_factory=dict)
    """Known elements of inputs, which may decide branches and numbers of iterations."""
    most: Mapping[str, int] = field(default_factory=dict)
    """What the user knows of the dims that data decide: the upper end by ``TENSOR:AXIS``."""
    observed: GraphRun = NO_RUN
    """What was seen of the run."""

    def config(self) -> SessionConfig:
        """The settings that the session's graph depends on."""
        return self.config_with(self.session_options())

    def config_with(self, options: SessionOptions) -> SessionConfig:
        """The same with other options."""
        return SessionConfig(
            options.level,
            options.fixed_dims,
            self.asks_onnxruntime,
            self.cpu,
            "cpu" if PROVIDERS[self.name].is_host else "cuda",
        )

    def session_options(self) -> SessionOptions:
        """The options at the requested level of optimization."""
        return replace(self.options, level=LEVELS[self.graph])


@dataclass(slots=True)
class SessionGraphs:
    """The graphs of a model's sessions; each is optimized once."""

    model: ModelAt
    request: SessionRequest
    optimized: Optimizing | None = None
    """Creates a session's optimized model, or returns a cached one; ``None``:
    ``optimized_model``."""
    _graphs: dict[SessionConfig, SessionGraph] = field(default_factory=dict)

    def optimize_together(self, others: Iterable[SessionOptions]) -> None:
        """Let one child optimize the graphs of all sessions with these options.

        :raises OnnxmemError: what ``optimized_together`` raises.
        """
        configs = dict.fromkeys(map(self.request.config_with, others))
        for config, found in optimized_together(self.model, [*configs]).items():
            self._graphs[config] = self._session(found)

    def graph(self, options: SessionOptions) -> SessionGraph:
        """The graph of a session with these options.

        :raises OnnxmemError: the optimized graph cannot be read, or a value does not match.
        """
        config = self.request.config_with(options)
        if config not in self._graphs:
            make = self.optimized or optimized_model
            self._graphs[config] = self._session(make(self.model, config))
        return self._graphs[config]

    def _session(self, optimized: OptimizedModel) -> SessionGraph:
        shapes = self.model.bound.binding.shapes
        return session_graph(optimized, shapes, self.request.values, self.request.observed)


def session_memory(sessions: SessionGraphs) -> RuntimeMemory:
    """The memory of the requested session, and of the combinations of its settings.

    :raises TypeConflictError: onnxruntime would refuse the model.
    :raises OnnxmemError: the optimized graph cannot be read, or a value does not match its input.
    """
    model, request = sessions.model, sessions.request
    for _, reason in type_conflicts(model.prepared.proto, model.bound.graph):
        message = f"onnxruntime rejects the types of the model: {reason}"
        raise TypeConflictError(message)
    options = request.session_options()
    session = sessions.graph(options)
    optimized, provider = session.optimized, PROVIDERS[request.name]
    planned = PlannedSession.of(session, options, provider)
    figures, unknown = planned.figures()
    cuda = None if provider.is_host else request.cuda
    process = first_run_bytes = None
    parts: Parts = ()
    outcomes = None
    if provider.is_host:
        process = HostProcess(model.bound.graph, model.file.file_bytes, planned)
        resident = process.resident
        first_run_bytes = resident.total_bytes(figures.first_regions)
        parts = resident.parts(figures.steady_regions)
        outcomes = resident.range_bytes(figures.steady_regions)
    return RuntimeMemory(
        name=request.name,
        graph=request.graph,
        graph_optimizer=optimized.graph_optimizer,
        cpu=optimized.cpu.name,
        arena=figures,
        load_peak_bytes=None if process is None else process.load_peak_bytes,
        process_first_run_bytes=first_run_bytes,
        process_bytes=None if process is None else sum(size_bytes for _, size_bytes in parts),
        requested_peak_lower_bytes=requested_peak_at_least(session, options, provider),
        requested_peak_upper_bytes=(
            requested_peak_at_most(
                session,
                options,
                provider,
                with_loop_names(request, model.bound.graph, session.graph),
            )
            if unknown.tensors or undecided(session.trace).names()
            else None
        ),
        is_every_run=not unknown.tensors and PossibleRuns.of(session).are_all,
        process_parts=parts,
        process_range=outcomes,
        context_bytes=None if cuda is None else cuda.context_bytes,
        workspace_bytes=None if cuda is None else cuda.workspace_bytes,
        unknown=unknown,
        find_advice=partial(combined_choices, session, options, provider),
        findings=(
            *unused_values(model.bound.graph, request.values),
            *session_findings(session, provider, unknown),
            *(() if outcomes is None else (_heap_finding(outcomes),)),
        ),
    )


def with_loop_names(request: SessionRequest, file: Graph, optimized: Graph) -> SessionRequest:
    """The request with the bounds of Loops by their names in the optimized graph.

    A node without a name is named by its index, which the optimizer changes; what it writes keeps
    its name.
    """
    names = {node.writes[0]: node.name for node in file.all_nodes() if node.onnx_op == "Loop"}
    bounds = {
        f"{node.name}:iterations": request.most[f"{names[node.writes[0]]}:iterations"]
        for node in optimized.all_nodes()
        if node.onnx_op == "Loop" and f"{names.get(node.writes[0], '')}:iterations" in request.most
    }
    others = {name: n for name, n in request.most.items() if not name.endswith(":iterations")}
    return replace(request, most={**others, **bounds})


def _heap_finding(outcomes: tuple[int, int]) -> Finding:
    least, most = map(format_bytes, outcomes)
    text = f"the process takes {least} to {most}: small blocks of the heap decide whether a freed "
    text += (
        "weight's place serves the next one; external weights or fixed malloc thresholds avoid it"
    )
    return Finding("heap_outcomes", text)


def requested_peak_at_least(
    session: SessionGraph, options: SessionOptions, provider: ExecutionProvider
) -> int | None:
    """The peak requested by kernels in the least of all runs; ``None``: data decide no branch and
    no number of iterations.

    Unknown sizes count as 0 bytes, which never raises a peak. Each combination of branches is
    replayed; of what is left, an If counts its outputs and a Loop its fewest iterations.
    """
    if not undecided(session.trace).names():
        return None
    return min(
        PlannedSession.of(
            each, options, provider
        ).at_least.recorded.runs.plain.requested_peak.size_bytes
        for each in PossibleRuns.of(session).sessions
    )


def requested_peak_at_most(
    session: SessionGraph,
    options: SessionOptions,
    provider: ExecutionProvider,
    request: SessionRequest,
) -> int | None:
    """The peak requested by kernels at the upper end of every dim; ``None``: there is none.

    onnxruntime plans when it loads a model, without the data of a run. So every run has the same
    requests and releases, and more bytes of one of them never lower the peak. Each combination of
    branches is replayed, or each branch once where they are many. A run that ends a Loop earlier
    has its first iterations, and less of what they collect: so a Loop is replayed up to its bound.
    """
    raised, has_ends = at_upper_ends(session, request)
    # Iterations are equal if what one leaves to the next has one size, whichever branches run. Then
    # no mix of branches has a higher peak than the same ones in all iterations.
    has_equal_iterations = all(
        _is_constant(session.graph, raised.graph, each) for each in _loops(raised.graph)
    )
    possible = PossibleRuns.of_each_branch(raised)
    has_sequences = not has_equal_iterations and returns_sequences(raised.graph)
    if not (possible.are_all and has_ends) or has_sequences:
        return None
    peaks = []
    for each in possible.sessions:
        recorded = PlannedSession.of(each, options, provider).recorded
        has_largest = possible.are_covering or not has_equal_iterations
        runs = replace(recorded, has_largest_outputs=has_largest).runs
        if runs.unsized:
            return None
        peaks.append(runs.plain.requested_peak.size_bytes)
    return max(peaks)


def _loops(graph: Graph) -> list[Node]:
    return [node for node in graph.all_nodes() if node.onnx_op in {"Loop", "Scan"}]


def at_upper_ends(session: SessionGraph, request: SessionRequest) -> tuple[SessionGraph, bool]:
    """The session with the upper end of every dim, in which each Loop runs up to its bound, and
    all of its iterations have the largest shapes of any; and whether every dim has an upper end.
    """
    graph, proto = session.graph, session.optimized.proto
    limits = limits_of(graph, proto, request.most)
    upper = with_upper_dims(graph, proto, limits, request.values)
    left = undecided(session.trace)
    bounds: Mapping[str, int | None] = {} if upper is None else upper.iterations
    # With all dims known there is no graph of upper ends, and the number of iterations may be open
    # all the same.
    if upper is None and (left.loops or left.bounded_loops):
        bounds = loop_bounds(graph, proto, limits, request.values)
    raised, loops = graph if upper is None else upper.graph, _loops(graph)
    # A Scan has as many iterations as the dim that it scans.
    scans = {each.name: trip_count(raised, each) for each in loops if each.onnx_op == "Scan"}
    most = {
        each.name: trip_count(graph, each) or {**bounds, **scans}.get(each.name) for each in loops
    }
    trace = at_bounds(session.trace, most, {each.name: each.subgraphs[0][1] for each in loops})
    has_ends = upper is None or not upper.unbounded
    return replace(session, graph=raised, trace=trace), has_ends


def _is_constant(graph: Graph, upper: Graph, node: Node) -> bool:
    """Whether all tensors in the body of a Loop have one size in every iteration of every run."""
    names: set[str] = set()
    bodies = [body for _, body in node.subgraphs]
    while bodies:
        body = bodies.pop()
        names |= {*body.inputs, *(name for each in body.nodes for name in each.writes)}
        bodies += [inner for each in body.nodes for _, inner in each.subgraphs]
    sizes = [(graph.tensors[n].num_elements, upper.tensors[n].num_elements) for n in names]
    return all(size is not None and size == most for size, most in sizes)


def session_findings(
    session: SessionGraph, provider: ExecutionProvider, unknown: Unknowns
) -> tuple[Finding, ...]:
    """What the figures of a session assume or omit."""
    optimized = session.optimized
    return (
        *optimized.findings,
        *unknown.findings(),
        *(varying_order(session.graph) if optimized.level == "all" else ()),
        *_version_findings(optimized.graph_optimizer, ruled_operators(session.graph, provider)),
    )


def ruled_operators(graph: Graph, provider: ExecutionProvider) -> tuple[str, ...]:
    """Types of the nodes whose kernels have their own rules, which a new version may change.

    Those that only share a buffer come last. All other kernels allocate just their outputs: no
    scratch, no packed weights, no shared buffers.
    """
    nodes = tuple(graph.all_nodes())
    # onnxruntime's own operators may change at any version, even those that allocate nothing.
    taking = (n for n in nodes if n.domain.startswith("com.microsoft") or provider.has_rule(n))
    sharing = (node for node in nodes if provider.aliases(node) or provider.may_overwrite(node))
    return tuple(dict.fromkeys(node.op_type for found in (taking, sharing) for node in found))


def _version_findings(graph_optimizer: str, operators: Sequence[str]) -> Iterator[Finding]:
    """A finding if operators have rules that were not verified on the installed version."""
    _, _, version = graph_optimizer.partition("onnxruntime ")
    # Without a version the optimizer was emulated, as the verified versions have it.
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
    """Up to three names, or two and the number of others: ``A, B and 3 more operators``."""
    if len(operators) > _NAMED_OPERATORS:
        *first, last = (*operators[:2], f"{len(operators) - 2} more operators")
    else:
        *first, last = operators
    return f"{', '.join(first)} and {last}" if first else last
