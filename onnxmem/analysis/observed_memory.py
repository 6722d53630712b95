"""What inference took in observed runs: the figures of the shapes that they had."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Self

from onnxmem.analysis.request import AnalysisRequest, StageResults
from onnxmem.errors import Finding
from onnxmem.model.intervals.walk import with_upper_dims
from onnxmem.model.observed import GraphRun, Observed, Shapes, graph_of, shapes_of


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a figure in several runs; each is that of one of the runs."""

    least: int
    median: int
    p99: int
    most: int

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Of at least one number."""
        found = sorted(numbers)
        last = len(found) - 1
        return cls(found[0], found[last // 2], found[ceil(0.99 * len(found)) - 1], found[last])


@dataclass(frozen=True, slots=True)
class RunMemory:
    """The figures of one run, in bytes."""

    results: StageResults
    shapes: Shapes
    runtimes: Mapping[str, int]
    """The peak requested by kernels, by the name of the runtime."""


@dataclass(frozen=True, kw_only=True)
class ObservedMemory:
    """The figures of observed runs."""

    sources: tuple[str, ...]
    """What each run was fed."""
    figures: Mapping[str, Spread]
    """By their names in the JSON report; those that are unknown in a run are omitted."""
    runtimes: Mapping[str, Spread]
    """The peak requested by kernels, by the name of the runtime."""
    dims: Mapping[str, Spread]
    """By the names of dims that data decide; largest of a run."""
    iterations: Mapping[str, Spread]
    """By the names of Loops."""
    runs: tuple[RunMemory, ...] = field(repr=False)

    @property
    def total_bytes(self) -> Spread | None:
        """What inference took."""
        return self.figures.get("total_bytes")


def observed_memory(request: AnalysisRequest, observed: Observed) -> ObservedMemory | None:
    """The figures of observed runs; ``None``: the data decide no dim of the model.

    :raises ObservedFileError: the runs are of another model, or of other dims.
    """
    results = request.results
    observed.refuse_other(request.source)
    observed.refuse_other_inputs(results.bound.graph)
    if results.upper is None:
        return None
    made: dict[str, RunMemory] = {}
    runs = []
    for run in observed.runs:
        key = repr(run)
        if key not in made:
            made[key] = _run_memory(request, results, run)
        runs.append(made[key])
    return ObservedMemory(
        sources=observed.sources,
        figures=dict(_spreads([dict(_figures(each.results)) for each in runs])),
        runtimes=dict(_spreads([each.runtimes for each in runs])),
        dims=dict(_spreads([_dims(each.shapes, results.upper.data_dims) for each in runs])),
        iterations=dict(_spreads([each.shapes.iterations for each in runs])),
        runs=tuple(runs),
    )


def _run_memory(request: AnalysisRequest, results: StageResults, run: GraphRun) -> RunMemory:
    graph, seen = results.graph, shapes_of(run, results.graph)
    upper = results.upper
    hidden = [
        name
        for name, tensor in graph.tensors.items()
        if tensor.is_open and name not in seen.of and name not in seen.idle
    ]
    if hidden:
        limits = {**results.limits, **seen.limits()}
        upper = with_upper_dims(graph, results.prepared.proto, limits, results.values)
    of_run = graph if upper is None else graph_of(graph, upper.graph, seen)
    found = replace(results, bound=replace(results.bound, graph=of_run), order="file")
    return RunMemory(found, seen, dict(_requested_peaks(request, run)))


def _requested_peaks(request: AnalysisRequest, run: GraphRun) -> Iterator[tuple[str, int]]:
    if not request.settings.runtimes:
        return
    from onnxmem.runtimes.from_settings import runtime_memories

    found = runtime_memories(
        request.source,
        request.results.bound,
        request.settings,
        optimized=request.optimized_model,
        observed=run,
    )
    for each in found:
        if not isinstance(each, Finding):
            yield each.name, each.arena.requested_peak_bytes


def _figures(results: StageResults) -> Iterator[tuple[str, int]]:
    memory = results.activations
    if memory.unknown_tensors:
        return
    for name, size_bytes in (
        ("total_bytes", results.total_bytes),
        ("naive_bytes", memory.naive_bytes),
        ("naive_in_place_bytes", memory.naive_in_place_bytes),
        ("peak_bytes", memory.peak_bytes),
        ("in_place_peak_bytes", memory.in_place_peak_bytes),
        ("arena_bytes", memory.arena_bytes),
        ("training_peak_bytes", results.training_peak_bytes),
    ):
        if size_bytes is not None:
            yield name, size_bytes


def _dims(shapes: Shapes, names: Sequence[str]) -> dict[str, int]:
    """The largest number of each dim in one run."""
    limits = shapes.limits()
    return {name: limits[name][1] for name in names if name in limits}


def _spreads(rows: Sequence[Mapping[str, int]]) -> Iterator[tuple[str, Spread]]:
    for name in rows[0]:
        numbers = [row[name] for row in rows if name in row]
        if len(numbers) == len(rows):
            yield name, Spread.of(numbers)
