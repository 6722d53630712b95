"""What would lower the memory of a process that serves requests, each replayed with its cost.

Settings of the session change what its arena reserves for the same requests: the combinations of
memory patterns, of how the arena grows, of whether it shrinks at the end of each run, and of
whether several sessions share it; with the best of them, whether buffers are reused. With
the best of all, weights in a file of their own and fixed thresholds of the C library change what
the load leaves in the heap. Several sessions may also share the weights and their packed copies,
which takes a program in C, C++ or C#. A server may change the requests too: serve the largest one
first, before any other, or pad a dim to one of a few lengths, so that fewer shapes come. Padding
costs arithmetic; its share is counted.

The process decides, not the arena: an arena that returns its regions leaves holes in the heap, and
the process may take more with it than without.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from statistics import quantiles
from typing import Any, Final

from onnxmem.analysis.compute import compute
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.advise.settings import LOAD_CHANGES
from onnxmem.decisions.simulate import Process, ServedModel, ServedRequest, Serving, dims_of
from onnxmem.model.requests import Requests
from onnxmem.runtimes.onnxruntime.advice import option_lines, option_names
from onnxmem.runtimes.onnxruntime.served import Dims
from onnxmem.runtimes.onnxruntime.session_options import GROWTHS, SessionOptions

_FEWEST, _MOST = 3, 6
"""Lengths of a dim that requests are padded to."""
_OWN: Final = "as it is"
_SHARED: Final = "weights and packed copies that all sessions share (C, C++, C#)"
_SHARED_LINES: Final = (
    "# not in Python. OrtApi::AddInitializer gives each session the weights of the program;",
    "# CreateSessionWithPrepackedWeightsContainer, with one container, keeps one copy of each",
    "# a session is refused where a kernel cannot share its copies, as some of int8 convolutions",
)
_FIRST_DRAW: Final = 0
"""The seed of the order in which concurrent runs allocate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingChange:
    """A change of a server, and what its arenas reserve with it, in bytes."""

    name: str
    options: SessionOptions
    lines: tuple[str, ...]
    """Python code that makes it: statements on ``options`` and ``run_options``, or on requests."""
    reserved_peak_bytes: int
    """At most; of concurrent runs, in one draw of their order."""
    reserved_bytes: int
    """After the last request."""
    process_peak_bytes: int
    """What the process takes at most: less falls than of the arena, where pages stay resident."""
    more_flops: float = 0.0
    """The share of further arithmetic, by padding."""
    padded: tuple[Mapping[str, int], ...] | None = None
    """The requests as they are served then; ``None``: as given."""
    is_setting: bool = True
    """Whether the options of the session change; else the requests or the program do."""


@dataclass(frozen=True, slots=True)
class ServingAdvice:
    """What a server may change, the least process first."""

    own: ServingChange
    changes: tuple[ServingChange, ...]

    @property
    def ranked(self) -> list[ServingChange]:
        """The server as it is among its changes."""
        return sorted((self.own, *self.changes), key=_cost)

    @property
    def best_setting(self) -> ServingChange:
        """The settings of the session that take least; its own where none takes less."""
        settings = (each for each in self.changes if each.is_setting)
        return min((self.own, *settings), key=_cost)


def advise_serving(
    request: AnalysisRequest,
    requests: Requests,
    serving: Serving,
    model: ServedModel | None = None,
) -> ServingAdvice:
    """Replay requests with each change.

    ``model`` is that of the same request, requests and options, whose runs it has or adds.

    :raises RequestsError: the model does not have a dim of the requests.
    :raises OnnxmemError: the session cannot be created, or its arena cannot serve a request.
    """
    model = model or ServedModel.of(request, requests, serving.options)
    rows = [dims_of(row) for row in requests.rows]
    own, *others = _by_settings(model, rows, serving)
    best, planned = min((own, *others), key=_cost), model
    # Only beside the best of the others: a session without reuse has another plan, so all its runs
    # are simulated anew.
    options = replace(best.options, enable_mem_reuse=not best.options.enable_mem_reuse)
    observed = model.data_runs.observed
    replanned = ServedModel.of(request.without_observed(), requests, options, model.say, observed)
    replanned.runs.graphs = model.runs.graphs  # another plan of the same shapes
    other = _with_options(replanned, rows, options, serving)
    if other.process_peak_bytes < best.process_peak_bytes:
        others.append(other)
        best, planned = other, replanned
    changes = (
        *others,
        *_by_load(planned, rows, best, serving),
        *_by_sharing(planned, rows, best, serving),
        _warmed_up(model, rows, serving),
        # No run was observed at padded dims: they would be compared by other runs.
        *(() if observed else _by_buckets(model, rows, serving)),
    )
    return ServingAdvice(own, tuple(sorted(changes, key=_cost)))


def _cost(change: ServingChange) -> tuple[int, int, float, int]:
    # Not the arena: what a smaller arena returns often stays resident in the heap.
    sizes = (change.process_peak_bytes, change.reserved_peak_bytes)
    return (*sizes, change.more_flops, len(change.lines))


def _by_settings(
    model: ServedModel, rows: Sequence[Dims], serving: Serving
) -> Iterator[ServingChange]:
    """Combinations of settings; the session's own first. Patterns alone change the runs."""
    own = serving.options
    provider = model.runs.planned.recorded.provider
    grid = [
        replace(own, **arena, enable_mem_pattern=pattern, shrinks_arena=shrinks)
        for pattern, arena, shrinks in product(
            (True, False), _arenas(own, serving.sessions if provider.is_host else 1), (False, True)
        )
    ]
    # The own options first: what comes out first is what others are compared with.
    for options in sorted(grid, key=lambda each: each != own):
        yield _with_options(model, rows, options, serving)


def _arenas(own: SessionOptions, num_sessions: int) -> Iterator[dict[str, Any]]:
    """How the arenas grow, and whether sessions share one; the own choice is among them.

    On the CPU the arena of the environment alone extends by what is requested, and so all sessions
    share it.
    """
    if num_sessions == 1:
        yield from ({"arena_extend_strategy": growth} for growth in GROWTHS)
        return
    if not own.shares_arena:
        yield {}
    yield from ({"arena_extend_strategy": growth, "shares_arena": True} for growth in GROWTHS)


def _by_load(
    model: ServedModel, rows: Sequence[Dims], best: ServingChange, serving: Serving
) -> Iterator[ServingChange]:
    """Where the weights are, and how the C library is set, beside the best settings."""
    provider = model.runs.planned.recorded.provider
    for fields in LOAD_CHANGES.values() if provider.is_host else ():
        found = _with_options(model, rows, replace(best.options, **fields), serving)
        if found.process_peak_bytes < best.process_peak_bytes:
            yield found


def _by_sharing(
    model: ServedModel, rows: Sequence[Dims], best: ServingChange, serving: Serving
) -> Iterator[ServingChange]:
    """Weights that the program holds once, beside the best settings."""
    if serving.sessions == 1 or not model.runs.planned.recorded.provider.is_host:
        return
    served = _served(model, serving, best.options)
    found = _change(_SHARED, _SHARED_LINES, served, rows, shares_weights=True)
    if found.process_peak_bytes < best.process_peak_bytes:
        yield replace(found, is_setting=False)


def _with_options(
    model: ServedModel, rows: Sequence[Dims], options: SessionOptions, serving: Serving
) -> ServingChange:
    """The server with other options that leave the plan of the model as it is."""
    own, provider = serving.options, model.runs.planned.recorded.provider
    return _change(
        ", ".join(option_names(own, options)) or _OWN,
        option_lines(own, options, provider),
        _served(model, serving, options),
        rows,
    )


def _served(
    model: ServedModel, serving: Serving, options: SessionOptions
) -> tuple[ServedModel, Serving]:
    return replace(model, runs=model.runs.with_options(options)), replace(serving, options=options)


def _change(
    name: str,
    lines: Sequence[str],
    served: tuple[ServedModel, Serving],
    rows: Sequence[Dims],
    *,
    shares_weights: bool = False,
) -> ServingChange:
    model, serving = served
    model.say(f"replaying requests with {name}")
    process, memory = Process(model.runs, serving), model.memory(serving, rows)
    outside_bytes = 0
    if shares_weights and memory.sessions is not None:
        sessions = replace(memory.sessions, shares_weights=True)
        memory = replace(memory, sessions=sessions)
        # Packed copies in the program's container are in no arena.
        outside_bytes = sessions.num_sessions * sessions.shared_packed_bytes
    timeline = [
        ServedRequest.of(dims, process, memory) for dims in process.serve(rows, _FIRST_DRAW)
    ]
    return ServingChange(
        name=name,
        options=serving.options,
        lines=tuple(lines),
        reserved_peak_bytes=process.peak_bytes - outside_bytes,
        reserved_bytes=timeline[-1].reserved_bytes - outside_bytes,
        process_peak_bytes=max(
            memory.load_peak_bytes or 0, *(each.peak_bytes for each in timeline)
        ),
    )


def _warmed_up(model: ServedModel, rows: Sequence[Dims], serving: Serving) -> ServingChange:
    largest = model.largest_first(rows)[0]
    text = ", ".join(f"{name}={number}" for name, number in largest)
    lines = (f"# before any other request, run one with {text}",)
    served = (model, serving)
    first = _change("the largest request first", lines, served, [largest, *rows])
    return replace(first, is_setting=False)


def _by_buckets(
    model: ServedModel, rows: Sequence[Dims], serving: Serving
) -> Iterator[ServingChange]:
    """For each number of lengths the best of two ways to place them."""
    name = _dim_to_pad(model, rows)
    numbers = [dict(row)[name] for row in rows]
    flops = _Flops(model)
    own_flops = sum(map(flops.at, rows))
    # As many buckets as there are lengths would change nothing, so one less is the most. Even steps
    # serve a flat distribution, quantiles a skewed one; which it is, the replay decides.
    for count in range(_FEWEST, min(_MOST, len(set(numbers)) - 1) + 1):
        found = []
        for buckets in dict.fromkeys((_even(numbers, count), _by_quantiles(numbers, count))):
            padded = [_padded(row, name, buckets) for row in rows]
            lines = (
                f"BUCKETS = {buckets!r}  # of {name}; mask what is added",
                "padded = next(each for each in BUCKETS if each >= length)",
            )
            title = f"{name} padded to {', '.join(map(str, buckets))}"
            change = _change(title, lines, (model, serving), padded)
            more = sum(map(flops.at, padded)) / own_flops - 1 if own_flops else 0.0
            served = tuple(dict(row) for row in padded)
            found.append(replace(change, more_flops=more, padded=served, is_setting=False))
        yield min(found, key=_cost)


def _dim_to_pad(model: ServedModel, rows: Sequence[Dims]) -> str:
    """The dim with most numbers; not the batch where there is another, which has no mask."""
    batch = model.batch_names
    values = {name: {dict(row)[name] for row in rows} for name, _ in rows[0]}
    # Padding a batch adds whole samples, so another dim is preferred.
    others = {name: found for name, found in values.items() if name not in batch} or values
    return max(others, key=lambda name: len(others[name]))


def _padded(row: Dims, name: str, buckets: Sequence[int]) -> Dims:
    """The request with its dim at the least length that has room for it."""
    return tuple(
        (dim, next(each for each in buckets if each >= number) if dim == name else number)
        for dim, number in row
    )


def _even(numbers: Sequence[int], count: int) -> tuple[int, ...]:
    """Lengths in equal steps up to the largest number."""
    largest = max(numbers)
    return tuple(dict.fromkeys(-(-largest * step // count) for step in range(1, count + 1)))


def _by_quantiles(numbers: Sequence[int], count: int) -> tuple[int, ...]:
    """Lengths of which each serves as many requests as any other."""
    inner = (ceil(each) for each in quantiles(numbers, n=count, method="inclusive"))
    return tuple(dict.fromkeys((*inner, max(numbers))))


class _Flops:
    """The arithmetic of requests; keeps what it counted."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._known: dict[Dims, int] = {}

    def at(self, dims: Dims) -> int:
        """FLOPs of one request."""
        if dims not in self._known:
            graph = self._model.runs.graph(dims).graph
            self._known[dims] = compute(graph).forward_flops or 0
        return self._known[dims]
