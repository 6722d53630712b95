"""What inference took in observed runs: the figures of the shapes that they had."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Self

from onnxmem.analysis.request import AnalysisRequest, StageResults
from onnxmem.errors import Finding
from onnxmem.model.observed import GraphRun, Shapes

if TYPE_CHECKING:
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory


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
        # By nearest rank: every figure is that of a run, none is a mean of two.
        return cls(found[0], found[last // 2], found[ceil(0.99 * len(found)) - 1], found[last])


@dataclass(frozen=True, kw_only=True)
class ObservedMemory:
    """The figures of observed runs."""

    sources: tuple[str, ...]
    """What each run was fed."""
    figures: Mapping[str, Spread]
    """By their names in the JSON report; those that are unknown in a run are omitted."""
    runtimes: Mapping[str, Spread]
    """The peak requested by kernels, by the name of the runtime; not where it is unknown."""
    processes: Mapping[str, Spread]
    """The process after three runs of one input each, by the same names."""
    dims: Mapping[str, Spread]
    """By the names of dims that data decide; largest of a run."""
    iterations: Mapping[str, Spread]
    """By the names of Loops."""
    declared: Mapping[str, str] = field(default_factory=dict)
    """The names that the file declares for some of the dims."""

    @property
    def total_bytes(self) -> Spread | None:
        """What inference took."""
        return self.figures.get("total_bytes")


def observed_memory(request: AnalysisRequest) -> ObservedMemory | None:
    """The figures of observed runs; ``None``: none are given, or the data decide nothing.

    :raises ObservedFileError: the runs are of another model, or of other dims.
    """
    runs, upper = request.observed_runs, request.results.upper
    if request.observed is None or not runs:
        return None
    dims = () if upper is None else upper.data_dims
    # Runs of equal shapes are one object: a session is replayed once for all of them.
    distinct = {id(each): each.run for each in runs}
    sessions = {key: tuple(_sessions(request, run)) for key, run in distinct.items()}
    peaks = {
        key: {each.name: each.requested_peak_bytes for each in of_run}
        for key, of_run in sessions.items()
    }
    processes = {
        key: {each.name: each.process_bytes for each in of_run if each.process_bytes is not None}
        for key, of_run in sessions.items()
    }
    return ObservedMemory(
        sources=request.observed.sources,
        figures=dict(_spreads([dict(_figures(each.results)) for each in runs])),
        runtimes=dict(_spreads([peaks[id(each)] for each in runs])),
        processes=dict(_spreads([processes[id(each)] for each in runs])),
        dims=dict(_spreads([_dims(each.shapes, dims) for each in runs])),
        iterations=dict(_spreads([each.shapes.iterations for each in runs])),
        declared=dict(zip(dims, request.results.shown(dims), strict=True)),
    )


def _sessions(request: AnalysisRequest, run: GraphRun) -> "Iterator[RuntimeMemory]":
    """The requested runtimes with the shapes of a run, if it has those of all tensors."""
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
        if not isinstance(each, Finding) and not each.unknown.tensors:
            yield each


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
        # A spread of only those runs in which a figure is known would read as that of all.
        if len(numbers) == len(rows):
            yield name, Spread.of(numbers)
