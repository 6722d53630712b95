"""What the figures and codes of reports mean.

``codes.toml`` lists the codes of findings, checks and errors, ``metrics.toml`` the figures;
``value_of`` reads a figure from an analysis, and splits it into its parts.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final, cast

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.json_rows import JsonDict, ends_of
from onnxmem.analysis.observed_memory import Spread
from onnxmem.analysis.request import sum_bytes
from onnxmem.runtimes.assumed import ORT_CONTEXT, Assumed, context, workspace

_MOST_PARTS: Final = 8
_REST: Final = "the rest"
_ROWS: Final = "activations.peak_rows"
"""The figure that is a list in JSON; its value is the length of the list."""
Parts = tuple[tuple[str, int | None], ...]
Ends = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a finding, a check or an error."""

    id: str
    """Its number: ``OM101``."""
    word: str
    """Its name in reports: ``unbound_dims``."""
    title: str
    why: str
    """Why it matters."""
    act: str
    """What to do."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of reports."""

    key: str
    """Its path in the JSON of a model."""
    labels: tuple[str, ...]
    """Its names in reports."""
    definition: int | None
    """Its number in docs/definitions.md."""
    text: str
    formula: str
    beside: tuple[str, ...] = ()
    """Keys of what people ask for together with it."""

    @property
    def needs_training(self) -> bool:
        """Whether only a training step has it."""
        return self.key.startswith("training")

    @property
    def needs_runtime(self) -> bool:
        """Whether only a runtime has it."""
        return self.key.startswith("runtime.")

    @property
    def is_bytes(self) -> bool:
        """Whether it is a size."""
        return "bytes" in self.key.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The value of a figure on one model."""

    number: int | None
    """``None`` if it is unknown or does not apply."""
    parts: Parts
    """The parts that add up to it, the largest first if they are tensors; empty if it has none."""
    assumed: Assumed | None = None
    """The assumption that it is, with the range of its sources."""
    ends: Ends | None = None
    """At least and at most, where the data of a run decide it; an end is ``None``: there is none.
    The value itself then leaves out what is of unknown size."""
    ways: str = ""
    """What settles it then, where nothing bounds it."""
    observed: Spread | None = None
    """What it was in observed runs; ``None``: none are given, or they do not show it."""


@cache
def codes() -> tuple[Code, ...]:
    """All codes, by number."""
    text = files("onnxmem.decisions.explain").joinpath("codes.toml").read_text(encoding="utf-8")
    return tuple(Code(**entry) for entry in tomllib.loads(text)["codes"])


def code_named(name: str) -> Code | None:
    """The code with a word or number; case, hyphens, underscores and spaces do not matter."""
    wanted = name.strip().casefold().replace("-", "_").replace(" ", "_")
    return next(
        (each for each in codes() if wanted in {each.id.casefold(), each.word.replace("-", "_")}),
        None,
    )


@cache
def metrics() -> tuple[Metric, ...]:
    """All figures, in the order of a report."""
    text = files("onnxmem.decisions.explain").joinpath("metrics.toml").read_text(encoding="utf-8")
    return tuple(
        Metric(
            entry["key"],
            tuple(entry["labels"]),
            entry["definition"] or None,
            entry["text"],
            entry["formula"],
            tuple(entry.get("beside", ())),
        )
        for entry in tomllib.loads(text)["metrics"]
    )


def metrics_named(name: str, *, is_whole: bool = False) -> tuple[Metric, ...]:
    """The figures with a name: a label, a key, or the last word of keys, which several may share.

    A label wins over a key, and a whole key over a last word, which does not count if ``is_whole``.
    """
    wanted = _plain(name)
    # Labels come first, so that the label of one figure is not taken for the last word of other
    # keys.
    for names_of in (_labels, _keys) if is_whole else (_labels, _keys, _last_words):
        found = tuple(each for each in metrics() if wanted in names_of(each))
        if found:
            return found
    return ()


def value_of(metric: Metric, analysis: Analysis) -> MetricValue:
    """The value of a figure on a model, and its parts."""
    report = analysis.to_dict()
    row: object = report
    for word in metric.key.split("."):
        row = cast("JsonDict", row).get(word) if isinstance(row, dict) else None
    if metric.key == _ROWS and isinstance(row, dict):
        row = len(row["in_place_peak"])
    number = row if isinstance(row, int) else None
    if metric.key in _ASSUMED:
        assumed = _ASSUMED[metric.key](analysis)
        return MetricValue(None if assumed is None else assumed.size_bytes, (), assumed)
    reader = _PARTS.get(metric.key)
    parts = () if number is None or reader is None else _whole(reader(analysis), number)
    ends = _ends(metric, analysis, report, number)
    return MetricValue(
        number,
        parts,
        ends=ends,
        ways="" if ends is None or ends[1] is not None else _ways(metric, analysis),
        observed=_observed(metric, analysis),
    )


def _ends(metric: Metric, analysis: Analysis, report: JsonDict, number: int | None) -> Ends | None:
    """A figure at least and at most; ``None``: the data of a run do not decide it.

    ``number`` is the figure in the report.
    """
    runtime = next(iter(analysis.runtimes), None)
    if metric.key == "outputs_bytes":
        return _ends_of_outputs(analysis)
    if runtime is not None and metric.key == "runtime.requested_peak_bytes":
        return runtime.requested_peak_ends
    if _is_without_end(metric, analysis):
        return number, None
    return ends_of(report, _name_of(metric).removesuffix("_bytes"))


def _ends_of_outputs(analysis: Analysis) -> Ends | None:
    """The outputs of known size, and all at the upper end of what data decide."""
    if analysis.outputs_bytes is not None:
        return None
    outputs = [analysis.graph.tensors[name] for name in analysis.graph.outputs]
    known = [each.size_bytes for each in outputs if each.size_bytes is not None]
    upper = None if analysis.at_most is None else analysis.at_most.graph
    most = None if upper is None else sum_bytes(upper.tensors[name] for name in upper.outputs)
    return sum(known) if known else None, most


def _name_of(metric: Metric) -> str:
    """What a report calls a figure that has two ends."""
    return metric.key.removeprefix("activations.").replace("training.", "training_")


def _is_without_end(metric: Metric, analysis: Analysis) -> bool:
    """Whether a figure is an allocator's, which no proof bounds where data decide sizes."""
    name = analysis.runtimes[0].name if analysis.runtimes else ""
    key = metric.key.replace("runtime.", f"runtimes.{name}.", 1)
    return key in analysis.without_upper_end


def _ways(metric: Metric, analysis: Analysis) -> str:
    """What settles a figure that nothing bounds."""
    shows = "" if analysis.observed else "--observed FILE has what it was in runs"
    if _is_without_end(metric, analysis) and not metric.key.endswith("requested_peak_bytes"):
        return "; ".join(filter(None, ("no proof gives an allocator's figure an upper end", shows)))
    flags = analysis.results.data_flags()
    text = f"{flags} bounds it" if flags else analysis.results.data_text()
    return "; ".join(filter(None, (text, shows)))


def _observed(metric: Metric, analysis: Analysis) -> Spread | None:
    seen = analysis.observed
    if seen is None:
        return None
    if metric.needs_runtime and analysis.runtimes:
        name = analysis.runtimes[0].name
        of_runtimes = {
            "runtime.requested_peak_bytes": seen.runtimes,
            "runtime.process_bytes": seen.processes,
        }
        return of_runtimes.get(metric.key, {}).get(name)
    return seen.figures.get(_name_of(metric))


def _whole(parts: Parts, number: int) -> Parts:
    """The first parts, and one for the rest, so that they add up to the figure."""
    shown = parts if len(parts) <= _MOST_PARTS else parts[: _MOST_PARTS - 1]
    rest_bytes = number - sum(size_bytes or 0 for _, size_bytes in shown)
    return (*shown, (_REST, rest_bytes)) if rest_bytes else shown


def _plain(name: str) -> str:
    return name.strip().casefold().replace("_", " ").replace("-", " ")


def _labels(metric: Metric) -> set[str]:
    return {_plain(label) for label in metric.labels}


def _keys(metric: Metric) -> set[str]:
    return {_plain(metric.key), _plain(metric.key.replace(".", " "))}


def _last_words(metric: Metric) -> set[str]:
    last = metric.key.rpartition(".")[2]
    return {_plain(last), _plain(last.removesuffix("_bytes"))}


def _total(analysis: Analysis) -> Parts:
    peak_bytes = analysis.activations.in_place_peak_bytes
    return (
        ("weights", analysis.weight_bytes),
        ("inputs", analysis.inputs_bytes),
        ("peak activation memory", peak_bytes),
    )


def _live(analysis: Analysis) -> Parts:
    live = analysis.activations.live_at_peak
    return tuple((each.label, each.size_bytes) for each in live)


def _live_in_session(analysis: Analysis) -> Parts:
    arena = analysis.runtimes[0].arena
    live = arena.replay.live_set(arena.peak)
    return tuple((each.label, each.size_bytes) for each in live if each.size_bytes)


def _weights(analysis: Analysis) -> Parts:
    sizes = ((weight.name, weight.size_bytes) for weight in analysis.graph.weights)
    return tuple(sorted(sizes, key=lambda each: -(each[1] or 0)))


def _step(analysis: Analysis) -> Parts:
    training = analysis.training
    live = training.live_by_category().items() if training else ()
    return tuple((category.value, size) for category, size in live)


def _cuda(analysis: Analysis) -> Parts:
    torch = analysis.torch
    if torch is None:
        return ()
    return (("reserved", torch.reserved_bytes), ("context", torch.context_bytes))


def _tensorflow(analysis: Analysis) -> Parts:
    memory = analysis.tensorflow
    if memory is None:
        return ()
    return (("reserved", memory.reserved_bytes), ("context", memory.context_bytes))


def _process(analysis: Analysis) -> Parts:
    return tuple(part for part in analysis.runtimes[0].process_parts if part[1])


def _arena(analysis: Analysis) -> Parts:
    """The buffers that are live at the peak, and fragmentation."""
    peak_bytes = analysis.activations.in_place_peak_bytes
    return (("peak activation memory", peak_bytes), ("gap", analysis.activations.packing.gap_bytes))


def _context(analysis: Analysis) -> Assumed | None:
    is_on_cpu = all(each.name == "ort-cpu" for each in analysis.runtimes)
    return None if is_on_cpu else context(ORT_CONTEXT, analysis.settings.cuda_context_bytes)


def _workspace(analysis: Analysis) -> Assumed | None:
    is_on_cpu = all(each.name == "ort-cpu" for each in analysis.runtimes)
    specified_bytes = analysis.settings.cuda_workspace_bytes
    return None if is_on_cpu else workspace(analysis.graph, specified_bytes)


def _step_workspace(analysis: Analysis) -> Assumed | None:
    """That of a training step, with the range of the same graph."""
    if analysis.torch is None:
        return None
    assumed = workspace(analysis.graph, analysis.settings.cuda_workspace_bytes)
    return replace(assumed, size_bytes=analysis.torch.cudnn_workspace_bytes)


_ASSUMED: Final[Mapping[str, Callable[[Analysis], Assumed | None]]] = MappingProxyType(
    {
        "runtime.context_bytes": _context,
        "runtime.workspace_bytes": _workspace,
        "training.cuda.cudnn_workspace_bytes": _step_workspace,
    }
)
"""Figures that no file has."""

_PARTS: Final[Mapping[str, Callable[[Analysis], Parts]]] = MappingProxyType(
    {
        "total_bytes": _total,
        "activations.in_place_peak_bytes": _live,
        "activations.arena_bytes": _arena,
        "weights.bytes": _weights,
        "training.peak_bytes": _step,
        "training.cuda.total_bytes": _cuda,
        "training.tensorflow.total_bytes": _tensorflow,
        "runtime.process_bytes": _process,
        "runtime.requested_peak_bytes": _live_in_session,
    }
)
