"""What runtimes take: sessions of onnxruntime, a measurement beside them, and given runtimes.

A section for each runtime; two sessions are also compared, and what a run took stands beside what
was predicted of it.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.json_rows import FIGURES, Predicted, predicted_by
from onnxmem.errors import shortened
from onnxmem.report.sections.section import SESSIONS, Layout, Line, Note, Section
from onnxmem.units import format_bytes, plural

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.measuring.measurement import Measurement
    from onnxmem.program.replay import Peak, Replay
    from onnxmem.runtimes.base import RuntimeReplay
    from onnxmem.runtimes.onnxruntime.advice import Choice
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory

_CUDA: Final = "ort-cuda"
_WORTHWHILE: Final = 0.95
"""Settings are advised that leave at most this share of the resident bytes."""
_MOST_LIVE: Final = 50
"""Allocations alive at a peak that are listed, the largest, as of a training step."""
_CUDA_ALONE: Final = ("CUDA context", "cuDNN workspace")
_OF_THE_PROCESS: Final = frozenset(
    {
        *("load_peak_bytes", "process_first_run_bytes", "process_bytes"),
        *("context_bytes", "workspace_bytes"),
    }
)
"""Figures that are not the arena's."""
_FIGURES: Final = (
    ("peak requested by kernels", "requested_peak_bytes", "in run 1"),
    ("with scratch", "with_scratch_peak_bytes", "with the scratch of kernels"),
    ("memory-pattern buffer", "pattern_block_bytes", "from run 2 on"),
    ("arena initializers", "base_bytes", "prepacked and copied weights"),
    ("allocated chunks", "in_use_peak_bytes", "peak, arena initializers included"),
    ("arena reserved", "held_bytes", "after run 1, memory pattern off"),
    ("arena reserved (steady state)", "held_steady_bytes", "after run 3"),
    ("arena growth", "growth_bytes", "reserved beyond the allocated chunks"),
    ("load peak", "load_peak_bytes", "growth over Python and imports, while the session loads"),
    ("process after run 1", "process_first_run_bytes", "the whole process"),
    ("process", "process_bytes", "the whole process after run 3"),
    ("CUDA context", "context_bytes", "assumed, or --cuda-context"),
    ("cuDNN workspace", "workspace_bytes", "assumed, or --cuda-workspace"),
)
"""Label of a session's figure, its key in the JSON report, and what it is."""


def runtime_sections(analysis: "Analysis") -> Iterator[Section]:
    """A section for each runtime requested, one of a measurement, and one that compares two."""
    for number, runtime in enumerate(analysis.runtimes):
        yield _section(runtime, f"runtimes.{number}", f"runtime-{number}")
    if analysis.measurement is not None:
        name = analysis.measurement.backend.replace("onnxruntime", "ort")
        measured = next((each for each in analysis.runtimes if each.name == name), None)
        predicted = None if measured is None else predicted_by(measured)
        title = "Measured inference" if analysis.settings.train else "Measured"
        yield measured_section(analysis.measurement, predicted, title)
    if len(analysis.runtimes) > 1:
        lines = tuple(_differences(*analysis.runtimes[:2]))
        names = " compared with ".join(SESSIONS[each.name] for each in analysis.runtimes[:2])
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
        lines.insert(0, Line("", text="what cuDNN takes in the arena is not in it"))
    peak = runtime.arena.peak_node
    if peak is not None:
        text = f"{shortened(peak.name)} ({shortened(peak.op_type)})"
        lines.append(Line("peak at", text=text, words_key=f"{path}.peak_node"))
    lines += _live_set(runtime.arena.replay, runtime.arena.peak)
    advice = advice_line(runtime)
    if advice is not None:
        lines.append(Line("lower with", text=advice, words_key=f"{path}.advice"))
    return Section(
        key=key,
        title=SESSIONS[runtime.name],
        remark=f"graph {runtime.graph} {optimized_by(runtime)}",
        lines=tuple(lines),
        notes=tuple(Note(each.code, shortened(each.message, 2000)) for each in runtime.findings),
    )


def _differences(one: "RuntimeMemory", other: "RuntimeMemory") -> Iterator[Line]:
    """A line for every figure in which two sessions differ."""
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


def _figures(runtime: "RuntimeMemory") -> Iterator[tuple[str, str, int | None, str]]:
    """Label, key in the JSON report, bytes and what they are."""
    arena = runtime.arena
    # The JSON report leaves this to be added up: doubling, and the block of the memory pattern.
    growth_bytes = max(arena.held_steady_bytes - arena.in_use_peak_bytes, 0)
    for label, key, remark in _FIGURES:
        owner = runtime if key in _OF_THE_PROCESS else arena
        size_bytes = growth_bytes if key == "growth_bytes" else getattr(owner, key)
        yield label, key, size_bytes, remark


def optimized_by(runtime: "RuntimeMemory") -> str:
    """What optimized a session's graph, and for which CPU where that matters."""
    where = "" if runtime.name == "ort-cuda" else f" on {runtime.cpu}"
    return f"as {runtime.graph_optimizer} makes it{where}"


def advice_line(runtime: "RuntimeMemory") -> str | None:
    """The best settings in one line; ``None`` where they save less than a twentieth, or sizes that
    are left out may change too.
    """
    if runtime.unknown.tensors:
        return None
    best, own = runtime.advice[0], runtime.own
    if not best.changes or best.resident_bytes > _WORTHWHILE * own.resident_bytes:
        return None
    return (
        f"{', '.join(best.changes)}: {format_bytes(best.resident_bytes)} resident in the arena "
        f"instead of {format_bytes(own.resident_bytes)} ({change_percent(best, own)})"
    )


def change_percent(choice: "Choice", own: "Choice") -> str:
    """By how much settings change the resident bytes of the default session options."""
    if not own.resident_bytes:
        return "+0 %"
    return f"{100 * (choice.resident_bytes / own.resident_bytes - 1):+.0f} %"


def measured_section(
    measurement: "Measurement", predicted: Predicted | None, title: str = "Measured"
) -> Section:
    """The measured figures, each beside its prediction if there is one."""
    predictions = {} if predicted is None else predicted.figures
    lines = [
        Line(label, getattr(measurement, name), remark, predicted=predictions.get(name))
        for name, label, remark in FIGURES
    ]
    known = [line for line in lines if (line.number, line.predicted) != (None, None)]
    runs = plural(measurement.runs, "run")
    return Section(
        key="measured",
        title=title,
        remark=f"{measurement.backend} {measurement.onnxruntime_version}, {runs}",
        lines=(*known, *_utilization(measurement), _time(measurement)),
        layout=Layout.LINES if predicted is None else Layout.COMPARED,
    )


def _utilization(measurement: "Measurement") -> Iterator[Line]:
    """How busy the GPU was, where that was sampled."""
    mean, peak = (
        measurement.device_utilization_percent,
        measurement.device_utilization_peak_percent,
    )
    if mean is not None and peak is not None:
        text = f"{mean} % on average during the runs, {peak} % at most, as nvidia-smi shows it"
        yield Line("GPU utilization", text=text)


def _time(measurement: "Measurement") -> Line:
    first, *others = measurement.seconds_per_run
    text = f"first run {_milliseconds(first)}"
    if others:
        text += f", then {_milliseconds(median(others))} (median of {len(others):,})"
    return Line("time", text=text)


def _milliseconds(seconds: float) -> str:
    """Three digits of a short time, all of a long one: ``0.0362 ms``, ``12,345 ms``."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:,.0f} ms"  # noqa: PLR2004 - three digits, then all of them


def replay_sections(replays: "Sequence[RuntimeReplay]") -> Iterator[Section]:
    """A section for each runtime that was given as an object."""
    for number, each in enumerate(replays):
        path, peak = f"replays.{number}", each.replay.peak
        outside_bytes = each.run.overheads.outside_bytes
        alive = "of live allocations" + (f", at {shortened(peak.node)}" if peak.node else "")
        total_key = f"{path}.total_bytes"
        total = Line("total", each.total_bytes, "with overheads", key=total_key, is_total=True)
        yield Section(
            key=f"replay-{number}",
            title=shortened(each.name),
            lines=(
                total,
                *_reserved(each, path),
                Line("peak", peak.size_bytes, alive, key=f"{path}.peak_bytes"),
                Line(
                    "overheads", outside_bytes, "context and process", key=f"{path}.outside_bytes"
                ),
                *_live_set(each.replay, peak),
            ),
        )


def _reserved(each: "RuntimeReplay", path: str) -> Iterator[Line]:
    """What the allocator reserves, or what its workspaces take where it has none."""
    reserved, workspaces = each.replay.reserved, each.run.overheads.served_bytes
    if reserved is not None:
        key = f"{path}.reserved_bytes"
        yield Line("reserved", reserved.peak_bytes, "by its allocator", key=key)
    elif any(workspaces):
        yield Line("workspaces", sum(workspaces), "of libraries")


def _live_set(replay: "Replay", peak: "Peak") -> Iterator[Line]:
    """The largest allocations that are alive at a peak."""
    live = [each for each in replay.live_set(peak) if each.size_bytes]
    if live:
        yield Line("live at the peak", text=f"{plural(len(live), 'allocation')}, the largest:")
    for each in live[:_MOST_LIVE]:
        yield Line(shortened(each.label), each.size_bytes, each.category.value, depth=2)
    if len(live) > _MOST_LIVE:
        yield Line("", text=f"and {len(live) - _MOST_LIVE:,} more: onnxmem export --format chrome")
