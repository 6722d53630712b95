"""What a long-running process of onnxruntime takes while it serves requests of changing shapes.

The requests are replayed in order on the arena of a session, which grows and does not shrink. The
same requests are replayed in other orders too, because the order alone may decide what the arena
reserves; the worst order that was tried is a finding, not a bound. With several runs at once the
order of their allocations is random: it is drawn several times, and the figures are an interval.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import accumulate
from random import Random
from statistics import median_low
from typing import Final, Self

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.analysis.compute import compute
from onnxmem.analysis.request import AnalysisRequest, StageResults
from onnxmem.errors import Finding, ShapeError, UsageError
from onnxmem.model.binding import Request, bind
from onnxmem.model.graph import Graph, Node
from onnxmem.model.intervals.limits import requested_names
from onnxmem.model.observed import Observed, by_inputs, shapes_of
from onnxmem.model.requests import BATCH, Requests
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import undecided
from onnxmem.runtimes.onnxruntime.kernels.registry import kernel_of
from onnxmem.runtimes.onnxruntime.memory import (
    SessionRequest,
    at_upper_ends,
    session_findings,
    with_loop_names,
)
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession, Unknowns
from onnxmem.runtimes.onnxruntime.process.figures import HostProcess, ReadPages
from onnxmem.runtimes.onnxruntime.process.loading import ARENAS, Parts, arena_regions
from onnxmem.runtimes.onnxruntime.process.sessions import Arenas, SessionsMemory
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, ExecutionProvider
from onnxmem.runtimes.onnxruntime.served import Cores, Dims, RequestRuns, SessionGroup
from onnxmem.runtimes.onnxruntime.session import SessionRuntime
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    SessionGraph,
    SessionGraphReader,
    session_graph,
)
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import num_cores
from onnxmem.units import plural

MOST_AT_ONCE: Final = 1024
_DEFAULT: Final = "ort-cpu"
_SHUFFLES: Final = 8
_SHUFFLES_WITH_BODIES: Final = 2
"""Bodies have patterns that any earlier request may have stored, so no run serves two orders."""
_INTERLEAVINGS: Final = 40
"""Of so many draws, the range has a further one in nineteen of twenty cases."""
_BUSY_INTERLEAVINGS: Final = 20
"""Draws with half of the cores, as where other work has the others."""
_MOST_NODES: Final = 100_000
_CONVOLUTION: Final = "QLinearConv"
_OF_INTEGERS: Final = frozenset(
    (
        _CONVOLUTION,
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QGemm",
        "QLinearMatMul",
    )
)
"""Operators whose arithmetic is a matrix product of integers."""
_OF_SHAPES_OR_SELECTIONS: Final = frozenset(
    ("GatherElements", "GatherND", "Shape", "Size", "Slice")
)
"""Operators that read no more of their first input than they write; further ones have
``Kernel.reads_rows``."""
_FILTER: Final = 3
"""The index of a QLinearConv's filter among its inputs."""
_CORE_FLOPS: Final = 1e11
_INTEGER_FLOPS: Final = 4e11
"""An instruction of AVX-512 VNNI multiplies four integers where one of AVX-512 multiplies a float:
2.3e11 to 4.3e11 were measured, and 1e11 of floats."""
_DEPTHWISE_FLOPS: Final = 4e10
"""Of a depthwise convolution of integers, which is no matrix product (``qlinearconv.cc``,
``MlasConvDepthwise``): 3.2e10 to 5.2e10 were measured on a core that no other work took away."""
_CORE_BYTES: Final = 1e10
"""Of one core in a second, in the middle of what servers have: only the shares of the nodes in the
time of a run matter."""
_FEWEST_IN_RANGE: Final = 64
_MOST_IN_RANGE: Final = 4096
"""All distinct requests of a range are replayed if they run no more nodes than that, in some ten
seconds; of a wider range, some are."""


Shapes = Mapping[str, tuple[int, ...]]
"""Of the inputs of a request."""
ResultsAt = Callable[[Dims], StageResults]
"""The results of the file at a request."""
Say = Callable[[str], None]
"""Takes what is at work, for a person who waits."""


def _say_nothing(text: str) -> None:
    del text


class DataEnd(Enum):
    """Of which run a request is, where its data decide sizes, branches or iterations."""

    OBSERVED = "observed"
    """The largest that was observed at its dims."""
    AT_MOST = "at_most"
    """One with the upper end of every dim."""
    AT_LEAST = "at_least"
    """One without the tensors that have no upper end, or with one iteration of a Loop."""


_TAKEN: Final = {
    DataEnd.OBSERVED: "take what the largest observed run at their dims took",
    DataEnd.AT_MOST: "have the upper end of every dim, which bounds a run and no arena",
    DataEnd.AT_LEAST: "take at least what is counted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How requests are served."""

    concurrency: int = 1
    """Runs at once in each session."""
    sessions: int = 1
    """In the process; they are handed requests in turn. Each has an arena of its own, unless its
    options share one."""
    options: SessionOptions = field(default_factory=SessionOptions)
    """Of each session, except the level of optimization, which the request has."""
    cores: int = field(default_factory=num_cores)
    """Of the machine, which runs at once share; by default this one's."""

    def __post_init__(self) -> None:
        """Refuse numbers that no process has.

        :raises UsageError: with the number.
        """
        numbers = ("concurrency", self.concurrency), ("sessions", self.sessions)
        for name, number in (*numbers, ("cores", self.cores)):
            if not 1 <= number <= MOST_AT_ONCE:
                message = f"{name} is {number:,}; it is between 1 and {MOST_AT_ONCE:,}"
                raise UsageError(message)

    @property
    def shares_arena(self) -> bool:
        """Whether its sessions have one arena."""
        return self.sessions > 1 and self.options.shares_arena

    @property
    def num_arenas(self) -> int:
        """One for each session, unless they share one."""
        return 1 if self.shares_arena else self.sessions

    @property
    def runs_of_arena(self) -> int:
        """Runs at once that one arena serves."""
        return self.sessions // self.num_arenas * self.concurrency

    @property
    def cores_of_arena(self) -> int:
        """Its share of the cores: arenas are replayed one beside the other."""
        return max(self.cores // self.num_arenas, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """The process when a request has ended, in bytes; all sessions together."""

    dims: Mapping[str, int]
    reserved_bytes: int
    """Arena reserved."""
    reserved_peak_bytes: int
    """The same during the request: more only where the arena shrinks at the end of a run."""
    allocated_peak_bytes: int
    """Peak of the allocated chunks during the request."""
    process_bytes: int
    """The process, or on a GPU the arena, the context and the workspace."""
    input_bytes: int
    """Of that, the inputs of as many requests like this one as run at once."""

    @property
    def peak_bytes(self) -> int:
        """The process during the request."""
        return self.process_bytes + self.reserved_peak_bytes - self.reserved_bytes

    @classmethod
    def of(cls, dims: Dims, process: "Process", memory: "ProcessMemory") -> Self:
        """The process now, at the end of a request."""
        served = process.runs.graph(dims).graph
        feed_bytes = sum(served.tensors[name].size_bytes or 0 for name in served.inputs)
        is_host = memory.sessions is not None
        feeds_bytes = feed_bytes * process.serving.concurrency * is_host
        return cls(
            dims=dict(dims),
            reserved_bytes=sum(each.reserved_bytes for each in process.now),
            reserved_peak_bytes=sum(each.reserved_peak_bytes for each in process.now),
            allocated_peak_bytes=sum(each.allocated_peak_bytes for each in process.now),
            process_bytes=memory.total_bytes(process.arenas) + feeds_bytes,
            input_bytes=feeds_bytes,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """What the arenas reserve if the requests come in some order."""

    name: str
    reserved_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure over several draws of the order in which concurrent runs allocate."""

    low_bytes: int
    median_bytes: int
    high_bytes: int
    num_draws: int

    @classmethod
    def of(cls, sizes: Sequence[int], busy: Sequence[int]) -> Self:
        """Of the draws with all cores, whose middle counts, and of those with half of them."""
        both = (*sizes, *busy)
        return cls(min(both), median_low(sizes), max(both), len(both))


@dataclass(frozen=True, slots=True)
class Draw:
    """A draw of the order in which concurrent runs allocate."""

    peak_bytes: int
    """What the arenas reserve at most."""
    process_bytes: int
    """After the last request, beside the inputs."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulated process; bytes."""

    runtime: str
    requests: Requests
    serving: Serving
    """With the level of optimization."""
    timeline: tuple[ServedRequest, ...]
    """One for each request, in the order of their ends; with concurrency, of the draw whose process
    is in the middle at the end."""
    loaded_bytes: int
    """Arena reserved before the first request."""
    load_peak_bytes: int | None
    """Peak of the process while the sessions are created; ``None``: on a GPU."""
    interval: Interval | None
    """Of the arena reserved at most; ``None``: one run at a time."""
    process_interval: Interval | None
    """Of the process after the last request, beside the inputs, over the draws and over which rows
    of mapped weights requests read; ``None``: neither matters, or on a GPU."""
    orders: tuple[Order, ...]
    """The order as given first."""
    is_bounded: bool | None
    """Whether no request of the range will ever make the arena reserve more than it reserved while
    it served the requests. False: one does. ``None``: none that was replayed does, which proves
    nothing of the others, or of runs at once; or tensors of unknown size are left out."""
    num_replayed: int
    """Distinct requests of the range that were replayed for that."""
    heap_spread_bytes: int
    """How much more the process takes in the larger outcome of the C library's heap."""
    parts: Parts
    """Of the process after the last request, beside the inputs; empty on a GPU."""
    findings: tuple[Finding, ...]
    is_complete: bool
    """False: figures are lower bounds."""
    ends: Mapping[DataEnd, int] = field(default_factory=dict)
    """How many requests are of each run; empty: their data decide nothing."""

    @property
    def arena_reserved_bytes(self) -> int:
        """After the last request."""
        return self.timeline[-1].reserved_bytes

    @property
    def arena_reserved_peak_bytes(self) -> int:
        """The most that the arenas reserve."""
        most = max(each.reserved_peak_bytes for each in self.timeline)
        return max(self.loaded_bytes, most)

    @property
    def allocated_peak_bytes(self) -> int:
        """The most that the arenas' allocated chunks hold."""
        return max(each.allocated_peak_bytes for each in self.timeline)

    @property
    def process_peak_bytes(self) -> int:
        """The most that the process takes, its load included."""
        return max(self.load_peak_bytes or 0, *(each.peak_bytes for each in self.timeline))

    @property
    def own_bytes(self) -> int | None:
        """Of the process after the last request, what a worker that was forked from the loaded
        process has to itself: arenas and inputs; ``None``: on a GPU.
        """
        if not self.parts:
            return None
        return dict(self.parts)[ARENAS] + self.timeline[-1].input_bytes

    @property
    def worst(self) -> Order:
        """The order that takes most, of those that were tried."""
        return max(self.orders, key=lambda order: order.reserved_peak_bytes)

    @property
    def process_most_bytes(self) -> int:
        """The most of all that was tried: in the worst order and the largest draw, and with the
        larger outcome of the heap.
        """
        more_bytes = self.worst.reserved_peak_bytes - self.arena_reserved_peak_bytes
        return self.process_peak_bytes + max(more_bytes, 0) + self.heap_spread_bytes

    @cached_property
    def maxima(self) -> tuple[int, ...]:
        """The requests after which the arenas reserve more than ever before, by index."""
        reserved = [each.reserved_peak_bytes for each in self.timeline]
        before = [self.loaded_bytes, *accumulate(reserved, max)]
        return tuple(i for i, size_bytes in enumerate(reserved) if size_bytes > before[i])

    @property
    def last_maximum(self) -> int | None:
        """The index of the last new maximum; ``None``: the load reserved enough for all."""
        return self.maxima[-1] if self.maxima else None


def simulate(
    request: AnalysisRequest,
    requests: Requests,
    serving: Serving,
    model: "ServedModel | None" = None,
) -> Simulation:
    """Replay requests on the sessions of a process.

    ``model`` is that of the same request, requests and options, whose runs it has or adds. A
    request whose data decide sizes is one of its runs (``DataEnd``).

    :raises RequestsError: the model does not have a dim of the requests.
    :raises OnnxmemError: the session cannot be created, or its arena cannot serve a request.
    """
    model = model or ServedModel.of(request, requests, serving.options)
    ordered = [dims_of(row) for row in requests.rows]
    is_random = serving.concurrency > 1
    memory = model.memory(serving, ordered)
    draws = model.draws(ordered, serving, memory) if is_random else []
    peaks = [each.peak_bytes for each in draws]
    processes = [each.process_bytes for each in draws]
    # The index of a draw is its seed, so the timeline is that of the median draw.
    median_draw = processes.index(median_low(processes)) if is_random else 0
    process = Process(model.runs, serving)
    timeline = tuple(
        ServedRequest.of(dims, process, memory) for dims in process.serve(ordered, median_draw)
    )
    parts, spread_bytes = memory.parts(process.arenas), memory.spread_bytes(process.arenas)
    busy = model.busy_draws(ordered, serving, memory) if is_random else []
    # Before the further requests below, which may make the arenas grow.
    process_interval = memory.interval(process.arenas, draws, busy)
    peaks = peaks or [process.peak_bytes]
    num_nodes = len(model.runs.planned.recorded.graph.graph.nodes)
    # Fewer requests of larger graphs, so that the search for a bound takes a similar time.
    most = min(max(_MOST_NODES // max(num_nodes, 1), _FEWEST_IN_RANGE), _MOST_IN_RANGE)
    if model.runs.planned.recorded.has_bodies or model.data_runs.ends:
        most = _FEWEST_IN_RANGE
    in_range = [dims_of(row) for row in requests.in_range(most)]
    is_closed = process.is_closed_under(model.largest_first(in_range))
    is_all = not is_random and len(in_range) == requests.num_in_range
    unknowns = model.unknowns
    is_bounded = is_closed if is_all or is_closed is False else None
    # Runs whose data decide less leave other holes in an arena.
    is_proven = not (unknowns.is_lower_bound or model.data_runs.ends)
    return Simulation(
        runtime=model.runtime.name,
        requests=requests,
        serving=replace(
            serving, options=replace(serving.options, level=model.runtime.options.level)
        ),
        timeline=timeline,
        loaded_bytes=Process(model.runs, serving).peak_bytes,
        load_peak_bytes=memory.load_peak_bytes,
        interval=Interval.of(peaks, [each.peak_bytes for each in busy]) if is_random else None,
        process_interval=process_interval,
        orders=(Order("as given", max(peaks)), *_other_orders(model, ordered, serving)),
        is_bounded=is_bounded if is_proven else None,
        num_replayed=len(in_range),
        heap_spread_bytes=spread_bytes,
        parts=parts,
        findings=(
            *model.findings,
            *model.session_findings(unknowns),
            *model.data_findings(ordered),
        ),
        is_complete=model.is_complete,
        ends=model.ends_of(ordered),
    )


def dims_of(row: Mapping[str, int]) -> Dims:
    """A request as a key."""
    return tuple(row.items())


def _other_orders(
    model: "ServedModel", requests: Sequence[Dims], serving: Serving
) -> Iterator[Order]:
    largest_first = model.largest_first(requests)
    shuffle = Random(0)  # noqa: S311 - a reproducible order, not a secret
    orders = {"largest first": largest_first, "smallest first": largest_first[::-1]}
    has_bodies = model.runs.planned.recorded.has_bodies
    for number in range(1, (_SHUFFLES_WITH_BODIES if has_bodies else _SHUFFLES) + 1):
        orders[f"shuffle {number}"] = shuffle.sample(requests, len(requests))
    for name, ordered in orders.items():
        model.say(f"replaying requests in the order {name}")
        yield Order(name, Process(model.runs, serving).peak_of(ordered, 0))


def node_seconds(graph: Graph) -> dict[str, float]:
    """How long each node runs on one core, by name: its FLOPs, and what it reads and writes."""
    by_node = compute(graph).by_node
    found = {}
    for node in graph.all_nodes():
        if node.subgraphs:  # its bodies have steps of their own
            continue
        flops = by_node[node.name].flops or 0
        found[node.name] = flops / _flops_of(graph, node) + _moved_bytes(graph, node) / _CORE_BYTES
    return found


def _moved_bytes(graph: Graph, node: Node) -> int:
    """What a node reads and writes: nothing of a view, and only the elements that it selects."""
    aliases = PROVIDERS[_DEFAULT].aliases(node)
    viewed, views = {source for source, _ in aliases}, {output for _, output in aliases}
    written_bytes = sum(
        graph.tensors[name].size_bytes or 0
        for index, name in enumerate(node.outputs)
        if name and index not in views
    )
    read = [
        graph.tensors[name].size_bytes or 0
        for index, name in enumerate(node.inputs)
        if name and index not in viewed
    ]
    if read and (
        node.op_type in _OF_SHAPES_OR_SELECTIONS or kernel_of(node.op_type, node.domain).reads_rows
    ):
        read[0] = min(read[0], written_bytes)
    return written_bytes + sum(read)


def _flops_of(graph: Graph, node: Node) -> float:
    """The rate of a node."""
    if node.op_type not in _OF_INTEGERS:
        return _CORE_FLOPS
    if node.op_type != _CONVOLUTION or len(node.inputs) <= _FILTER:
        return _INTEGER_FLOPS
    shape = graph.tensors[node.inputs[_FILTER]].shape
    is_depthwise = shape is not None and len(shape) > 1 and shape[1] == 1 and shape[0] != 1
    return _DEPTHWISE_FLOPS if is_depthwise else _INTEGER_FLOPS


@dataclass(slots=True)
class DataRuns:
    """What runs leave to data, settled for the session of each request; mutable."""

    session: SessionRequest
    """With the limits of the user."""
    graph: Graph
    """Of the file."""
    observed: Sequence[Observed]
    """Each at other shapes of the inputs."""
    options: SessionOptions
    provider: ExecutionProvider
    ends: dict[Dims, DataEnd] = field(default_factory=dict)
    """By request; one that its data do not change is omitted."""

    def settled(
        self, dims: Dims, found: SessionGraph, inputs: Shapes, results_at: ResultsAt
    ) -> SessionGraph:
        """The session of a request as one of its runs: the largest observed one, else one at the
        upper ends.

        :raises ObservedFileError: an observed run is beyond a limit.
        """
        is_open = any(tensor.is_open for tensor in found.graph.tensors.values())
        if not is_open and not undecided(found.trace).names():
            return found
        for each in self.observed:
            if each.inputs == inputs:
                self.ends[dims] = DataEnd.OBSERVED
                return self._largest(each, found, results_at(dims))
        session = with_loop_names(self.session, self.graph, found.graph)
        raised, has_ends = at_upper_ends(found, session)
        is_most = has_ends and not undecided(raised.trace).loops
        self.ends[dims] = DataEnd.AT_MOST if is_most else DataEnd.AT_LEAST
        return raised

    def _largest(self, seen: Observed, found: SessionGraph, results: StageResults) -> SessionGraph:
        requested = requested_names(results.prepared.proto, self.session.most)
        sessions = []
        for run in {repr(run): run for run in seen.runs}.values():
            shapes_of(run, results.graph).refuse_more(results.limits, requested)
            of_run = session_graph(found.optimized, seen.inputs, self.session.values, run)
            runs = PlannedSession.of(of_run, self.options, self.provider).recorded.runs
            sessions.append((runs.plain.requested_peak.size_bytes, of_run))
        return max(sessions, key=lambda each: each[0])[1]


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model, and its session at any dims: optimized once, and planned once."""

    runtime: SessionRuntime
    graph: Graph
    """Of the file, at the first request."""
    runs: RequestRuns
    findings: tuple[Finding, ...]
    """On the file and its dims."""
    batch_names: frozenset[str]
    """What requests call the batch."""
    results_at: ResultsAt = field(repr=False)
    data_runs: DataRuns
    say: Say
    pages: dict[tuple[str | None, Dims], Mapping[str, ReadPages]] = field(default_factory=dict)
    """Of mapped weights, by where the weights are and by request; those needed so far."""

    @classmethod
    def of(
        cls,
        request: AnalysisRequest,
        requests: Requests,
        options: SessionOptions,
        say: Say = _say_nothing,
        observed: Sequence[Observed] = (),
    ) -> Self:
        """Create the session of a request; ``say`` is told what is at work.

        ``observed`` are runs of this model, at any shapes of its inputs: each serves the requests
        of these shapes.

        :raises RequestsError: the model does not have a dim of the requests.
        :raises ObservedFileError: all observed runs are of another model, or of other dims.
        :raises OnnxmemError: the session cannot be created, or a limit is of no dim that data
            decide.
        """
        given = (*observed, *(() if request.observed is None else (request.observed,)))
        request = request.without_observed()
        inputs, settings = request.prepared.inputs, request.settings
        fixed = Request(settings.batch, settings.dims, settings.shapes)
        request_at = requests.binder(request.prepared, fixed)

        def shapes_at(dims: Dims) -> Shapes:
            return bind(inputs, request_at(dict(dims))).shapes

        def results_at(dims: Dims) -> StageResults:
            return request.at(None, request_at(dict(dims)).dims).results

        def graph_at(dims: Dims) -> SessionGraph:
            say(f"planning a request of {', '.join(f'{name}={n}' for name, n in dims)}")
            shapes = shapes_at(dims)
            return data_runs.settled(dims, reader.at(shapes), shapes, results_at)

        first = dims_of(requests.rows[0])
        at_first = request.at(None, request_at(dict(first)).dims)
        for message in at_first.results.limit_faults(settings.most):
            raise ShapeError(message)
        runtime, graph = at_first.session(request.runtime_name or _DEFAULT)
        runtime = replace(runtime, options=replace(options, level=runtime.options.level))
        provider = PROVIDERS[runtime.name]
        reader = SessionGraphReader(runtime.optimized, settings.values)
        data_runs = DataRuns(
            session=SessionRequest(values=settings.values, most=settings.most),
            graph=at_first.results.graph,
            observed=_observed(given, at_first, map(shapes_at, map(dims_of, requests.shapes))),
            options=runtime.options,
            provider=provider,
        )
        planned = PlannedSession.of(graph_at(first), runtime.options, provider)
        findings = at_first.findings(at_first.results)
        return cls(
            runtime=runtime,
            graph=graph,
            runs=RequestRuns(planned, graph_at, node_seconds),
            findings=findings,
            batch_names=request.prepared.batch_symbols | {BATCH},
            results_at=results_at,
            data_runs=data_runs,
            say=say,
        )

    @property
    def unknowns(self) -> Unknowns:
        """What is unknown of the runs so far."""
        tensors = dict.fromkeys(name for each in self.runs.unsized.values() for name in each)
        return replace(self.runs.planned.unknowns, tensors=tuple(tensors))

    @property
    def is_complete(self) -> bool:
        """False: figures are lower bounds."""
        is_least = DataEnd.AT_LEAST in self.data_runs.ends.values()
        return not (is_least or self.unknowns.is_lower_bound)

    def ends_of(self, requests: Sequence[Dims]) -> Mapping[DataEnd, int]:
        """How many requests are of each run."""
        ends = (self._end(dims) for dims in requests)
        return dict(sorted(Counter(filter(None, ends)).items(), key=lambda each: each[0].value))

    def _end(self, dims: Dims) -> DataEnd | None:
        found = self.data_runs.ends.get(dims)
        return found and (DataEnd.AT_LEAST if self.runs.unsized.get(dims) else found)

    def data_findings(self, requests: Sequence[Dims]) -> Iterator[Finding]:
        """Of which runs the figures are, where data decide sizes."""
        for end, count in self.ends_of(requests).items():
            first = next(dims for dims in requests if self._end(dims) is end)
            results = self.results_at(first)
            text = f"{plural(count, 'request')} of {len(requests):,} {_TAKEN[end]}: "
            text += results.data_text() or "the data of a run decide sizes"
            flags = results.data_flags() if end is DataEnd.AT_LEAST else ""
            bounds = [f"{flags} bounds it"] if flags else []
            shows = [] if end is DataEnd.OBSERVED else ["--observed shows what runs took"]
            ways = ", ".join((*bounds, *shows))
            yield Finding("data_dependent", f"{text} ({ways})" if ways else text)

    def session_findings(self, unknowns: Unknowns) -> tuple[Finding, ...]:
        """What the figures of the session assume or leave out."""
        recorded = self.runs.planned.recorded
        return session_findings(recorded.graph, recorded.provider, unknowns)

    def draws(
        self,
        requests: Sequence[Dims],
        serving: Serving,
        memory: "ProcessMemory",
        num_draws: int = _INTERLEAVINGS,
    ) -> list[Draw]:
        """By the seed that orders concurrent runs."""
        found = []
        for seed in range(num_draws):
            process = Process(self.runs, serving)
            peak_bytes = process.peak_of(requests, seed)
            found.append(Draw(peak_bytes, memory.total_bytes(process.arenas)))
        return found

    def busy_draws(
        self, requests: Sequence[Dims], serving: Serving, memory: "ProcessMemory"
    ) -> list[Draw]:
        """Draws with half of the cores; none where no run then waits that did not before."""
        half = replace(serving, cores=max(serving.cores // 2, 1))
        # The same cores, or more than runs, would give the first draws once more.
        if half.cores_of_arena >= min(serving.cores_of_arena, serving.runs_of_arena):
            return []
        return self.draws(requests, half, memory, _BUSY_INTERLEAVINGS)

    def largest_first(self, requests: Sequence[Dims]) -> list[Dims]:
        """Requests by the peak that their kernels request."""
        peaks = {dims: self.runs.run(dims, ()).replay.peak_bytes for dims in set(requests)}
        return sorted(requests, key=lambda dims: (-peaks[dims], dims))

    def memory(self, serving: Serving, requests: Iterable[Dims]) -> "ProcessMemory":
        """What a process that serves requests takes, beside their inputs."""
        planned = self.runs.planned
        if not planned.recorded.provider.is_host:
            return ProcessMemory(outside_bytes=self.runtime.overheads(self.graph).outside_bytes)
        host = HostProcess(self.graph, self.runtime.file_bytes, planned)
        served = dict.fromkeys(requests)
        pages = ReadPages.of_runs(self._pages_of(host, dims) for dims in served)
        shares_arena = serving.shares_arena
        is_at_once = serving.concurrency > 1
        sessions = SessionsMemory(
            host=host,
            pages=pages,
            num_sessions=serving.sessions,
            shares_arena=shares_arena,
            num_callers=serving.sessions * serving.concurrency * is_at_once,
        )
        return ProcessMemory(sessions=sessions)

    def _pages_of(self, host: HostProcess, dims: Dims) -> Mapping[str, ReadPages]:
        """What a request reads of mapped weights: of the options, only ``weights`` decides it."""
        key = (host.session.options.weights, dims)
        if key not in self.pages:
            self.pages[key] = host.pages_of(self.runs.graph(dims).graph)
        return self.pages[key]


def _observed(
    given: Sequence[Observed], at_first: AnalysisRequest, requests: Iterable[Shapes]
) -> Sequence[Observed]:
    """Observed runs by the shapes of their inputs; ``at_first`` is the first request.

    :raises ObservedFileError: all are of other models, or none is at the dims of a request.
    """
    if not given:
        return ()
    found = by_inputs(given, at_first.source)
    served = list(requests)
    if not any(each.inputs in served for each in found):
        found[0].refuse_other_inputs(at_first.results.graph)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """The memory of a process, given its arenas, without inputs."""

    sessions: SessionsMemory | None = None
    """``None``: on a GPU."""
    outside_bytes: int = 0
    """On a GPU, the context and the workspace."""

    @property
    def load_peak_bytes(self) -> int | None:
        """On the CPU, the peak while the sessions are created one after another."""
        return None if self.sessions is None else self.sessions.load_peak_bytes

    def total_bytes(self, arenas: Sequence[BfcArena]) -> int:
        """The process; on a GPU the arenas and what is outside of them."""
        if self.sessions is None:
            return self.outside_bytes + sum(arena.reserved_bytes for arena in arenas)
        return self.sessions.total_bytes(_regions(arenas))

    def interval(
        self, arenas: Sequence[BfcArena], draws: Sequence[Draw], busy: Sequence[Draw]
    ) -> Interval | None:
        """The process with these arenas, or over the draws of concurrent runs, and over the rows of
        mapped weights that they read; ``None``: nothing depends on either, or on a GPU.
        """
        if self.sessions is None:
            return None
        less_bytes, more_bytes = self.sessions.rows_bytes
        if not (draws or less_bytes or more_bytes):
            return None
        sizes = [each.process_bytes for each in draws] or [self.total_bytes(arenas)]
        found = Interval.of(sizes, [each.process_bytes for each in busy])
        return replace(
            found,
            low_bytes=found.low_bytes - less_bytes,
            high_bytes=found.high_bytes + more_bytes,
        )

    def spread_bytes(self, arenas: Sequence[BfcArena]) -> int:
        """How much more the process takes in the larger outcome of the heap."""
        return 0 if self.sessions is None else self.sessions.spread_bytes(_regions(arenas))

    def parts(self, arenas: Sequence[BfcArena]) -> Parts:
        """The process by part; empty on a GPU."""
        return () if self.sessions is None else self.sessions.parts(_regions(arenas))


def _regions(arenas: Sequence[BfcArena]) -> Arenas:
    return tuple(map(arena_regions, arenas))


class Process:
    """Sessions of one model that serve requests; mutable."""

    def __init__(self, runs: RequestRuns, serving: Serving) -> None:
        self.runs = runs
        self.serving = serving
        shared = serving.sessions // serving.num_arenas
        self.groups = [
            SessionGroup.of(runs, shared, 1 + index * serving.runs_of_arena)
            for index in range(serving.num_arenas)
        ]
        self.now = [group.idle for group in self.groups]
        """By arena, its last request."""
        self._peaks_bytes = [each.reserved_bytes for each in self.now]
        """By arena, the most that it reserved."""

    @property
    def arenas(self) -> list[BfcArena]:
        """All of the process."""
        return [group.arena for group in self.groups]

    def serve(self, requests: Sequence[Dims], seed: int) -> Iterator[Dims]:
        """Serve requests, which the sessions take in turn; yields each when it has ended.

        The seed draws the order in which concurrent runs allocate.

        :raises ReplayError: an arena cannot serve a request.
        """
        draw = Random(seed)  # noqa: S311 - a reproducible order, not a secret
        count = len(self.groups)
        at_once, num_cores = self.serving.concurrency, self.serving.cores_of_arena
        ends = [
            group.serve_all(requests[index::count], at_once, Cores(num_cores, draw))
            for index, group in enumerate(self.groups)
        ]
        for number in range(len(requests)):
            index = number % count
            dims, self.now[index] = next(ends[index])
            peak_bytes = self.now[index].reserved_peak_bytes
            self._peaks_bytes[index] = max(self._peaks_bytes[index], peak_bytes)
            yield dims

    def peak_of(self, requests: Sequence[Dims], seed: int) -> int:
        """What the arenas reserve at most while they serve requests: the sum over the sessions.

        :raises ReplayError: an arena cannot serve a request.
        """
        for _ in self.serve(requests, seed):
            pass
        return self.peak_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that the arenas reserved so far: the sum over the sessions."""
        # Arenas peak at different times: the sum is the most that all may have reserved at once.
        return sum(self._peaks_bytes)

    def is_closed_under(self, requests: Sequence[Dims]) -> bool | None:
        """Whether these requests, in any order from now on and on any session, one at a time,
        reserve no more than was reserved before; ``None``: in some order they may.

        :raises ReplayError: an arena cannot serve a request.
        """
        # If each request, without its pattern and with it, leaves the arena as it was, then every
        # order of them does.
        peaks = zip(self.groups, self._peaks_bytes, strict=True)
        sessions = [(each, peak_bytes) for group, peak_bytes in peaks for each in group.sessions]
        is_proof = not any(each.patterns.depends_on_order(requests) for each, _ in sessions)
        for session, peak_bytes in sessions:
            for dims in (*requests, *requests):
                before = session.state
                if session.serve(dims).reserved_peak_bytes > peak_bytes:
                    return False
                is_proof &= session.state == before
        return is_proof or None
