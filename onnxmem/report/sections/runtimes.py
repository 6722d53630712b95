"""What runtimes take, each figure with what it is, and what a run took beside it."""

from collections.abc import Iterator, Mapping
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.json_rows import FIGURES, Predicted, predicted_by
from onnxmem.errors import shortened
from onnxmem.report.advice import first_line, made_by
from onnxmem.report.sections.replays import live_at
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.units import format_bytes, plural

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.measure.measurement import Measurement
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory

_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"ort-cpu": "ONNXRUNTIME, CPU", "ort-cuda": "ONNXRUNTIME, CUDA"}
)
_CUDA: Final = "ort-cuda"
_CUDA_ALONE: Final = ("CUDA context", "cuDNN workspace")


def _figures(runtime: "RuntimeMemory") -> tuple[tuple[str, str, int | None, str], ...]:
    """Label, key in the JSON report, bytes and what they are; a sum of others has no key."""
    arena = runtime.arena
    # What doubling and the second block hold beyond need.
    growth_bytes = max(arena.held_steady_bytes - arena.in_use_peak_bytes, 0)
    return (
        (
            "requested peak",
            "requested_peak_bytes",
            arena.requested_peak_bytes,
            "peak requested by kernels, in run 1",
        ),
        (
            "with scratch",
            "with_scratch_peak_bytes",
            arena.with_scratch_peak_bytes,
            "with the scratch of kernels",
        ),
        (
            "pattern block",
            "pattern_block_bytes",
            arena.pattern_block_bytes,
            "memory-pattern buffer, from run 2 on",
        ),
        (
            "base",
            "base_bytes",
            arena.base_bytes,
            "arena initializers: prepacked, copied",
        ),
        (
            "in use",
            "in_use_peak_bytes",
            arena.in_use_peak_bytes,
            "allocated chunks, base included",
        ),
        ("held after run 1", "held_bytes", arena.held_bytes, "arena reserved, memory pattern off"),
        (
            "held, steady",
            "held_steady_bytes",
            arena.held_steady_bytes,
            "arena reserved, steady state after run 3",
        ),
        ("arena growth", "growth_bytes", growth_bytes, "reserved beyond the allocated chunks"),
        (
            "load peak",
            "load_peak_bytes",
            runtime.load_peak_bytes,
            "the process while the session loads",
        ),
        ("process", "process_bytes", runtime.process_bytes, "the whole process after run 3"),
        ("CUDA context", "context_bytes", runtime.context_bytes, "assumed, or --cuda-context"),
        ("cuDNN workspace", "workspace_bytes", runtime.workspace_bytes, "as --cuda-workspace says"),
    )


def runtime_sections(analysis: "Analysis") -> Iterator[Section]:
    """A section for each runtime asked for, and one that holds two of them side by side."""
    for number, runtime in enumerate(analysis.runtimes):
        yield _section(runtime, f"runtimes.{number}", f"runtime-{number}")
    if analysis.measurement is not None:
        name = analysis.measurement.backend.replace("onnxruntime", "ort")
        runtime_run = next((each for each in analysis.runtimes if each.name == name), None)
        predicted = None if runtime_run is None else predicted_by(runtime_run)
        yield measured_section(analysis.measurement, predicted)
    if len(analysis.runtimes) > 1:
        lines = tuple(_differences(*analysis.runtimes[:2]))
        names = " against ".join(_NAMES[each.name] for each in analysis.runtimes[:2])
        if lines:
            yield Section(key="runtimes-compared", title=names, lines=lines)


def _section(runtime: "RuntimeMemory", path: str, key: str) -> Section:
    is_cuda = runtime.name == _CUDA
    total = "held_steady_bytes" if is_cuda else "process_bytes"
    lines = [
        Line(label, size_bytes, what, key=f"{path}.{name}", is_total=name == total)
        for label, name, size_bytes, what in _figures(runtime)
        if is_cuda or label not in _CUDA_ALONE
    ]
    if is_cuda:
        lines.insert(0, Line("", text="from onnxruntime's sources; no GPU has confirmed these yet"))
    peak = runtime.arena.peak_node
    if peak is not None:
        text = f"{shortened(peak.name)} ({shortened(peak.op_type)})"
        lines.append(Line("peak at", text=text, words_key=f"{path}.peak_node"))
    lines += live_at(runtime.arena.replay, runtime.arena.peak)
    advice = first_line(runtime)
    if advice is not None:
        lines.append(Line("less with", text=advice, words_key=f"{path}.advice", wraps=True))
    return Section(
        key=key,
        title=_NAMES[runtime.name],
        remark=f"graph {runtime.graph} {made_by(runtime)}",
        lines=tuple(lines),
        notes=tuple(Note(each.code, shortened(each.message, 2000)) for each in runtime.findings),
    )


def _differences(one: "RuntimeMemory", other: "RuntimeMemory") -> Iterator[Line]:
    """A line for every figure in which two runtimes differ."""
    for (label, name, here, _), (_, _, there, _) in zip(
        _figures(one), _figures(other), strict=True
    ):
        sizes = [
            0 if label in _CUDA_ALONE and runtime.name != _CUDA else size_bytes
            for runtime, size_bytes in ((one, here), (other, there))
        ]
        if sizes[0] != sizes[1]:
            text = "  ".join(f"{format_bytes(size):>12}" for size in sizes)
            text = f"{text}  {_difference(*sizes)}"
            yield Line(label, text=text, words_key=f"runtimes.compared.{name}")


def _difference(here: int | None, there: int | None) -> str:
    if here is None or there is None:
        return ""
    sign = "+" if there > here else "-"
    return f"{sign}{format_bytes(abs(there - here))}"


def measured_section(measurement: "Measurement", predicted: Predicted | None = None) -> Section:
    """The figures, beside what was predicted where there is that."""
    foretold = {} if predicted is None else predicted.figures
    lines = [
        Line(label, getattr(measurement, name), remark, predicted=foretold.get(name))
        for name, label, remark in FIGURES
    ]
    known = [line for line in lines if (line.number, line.predicted) != (None, None)]
    runs = plural(measurement.runs, "run")
    return Section(
        key="measured",
        title="MEASURED",
        remark=f"{measurement.backend} {measurement.onnxruntime_version}, {runs}",
        lines=(*known, _time(measurement)),
        layout=Layout.LINES if predicted is None else Layout.COMPARED,
    )


def _time(measurement: "Measurement") -> Line:
    first, *others = measurement.seconds_per_run
    text = f"first run {_milliseconds(first)}"
    if others:
        text += f", then {_milliseconds(median(others))} (median of {len(others):,})"
    return Line("time", text=text)


def _milliseconds(seconds: float) -> str:
    """Three digits of a short time, all of a long one: ``0.0362 ms``, ``12,345 ms``."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:,.0f} ms"  # noqa: PLR2004
