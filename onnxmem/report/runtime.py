"""What a runtime takes, in the text report: each figure with a line that says what it is."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.measured import predicted_by
from onnxmem.errors import shortened
from onnxmem.report.advice import first_line
from onnxmem.report.lines import fact, figure, made_by, prose
from onnxmem.report.measured import measured_section
from onnxmem.units import format_bytes

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis
    from onnxmem.runtimes import RuntimeMemory

_NAMES: Final = {"ort-cpu": "ONNXRUNTIME, CPU", "ort-cuda": "ONNXRUNTIME, CUDA"}


def _growth(runtime: "RuntimeMemory") -> int | None:
    """What doubling and the second block hold beyond need."""
    return max(runtime.arena.held_steady_bytes - runtime.arena.in_use_peak_bytes, 0)


_FIGURES: Final[tuple[tuple[str, Callable[["RuntimeMemory"], int | None], str], ...]] = (
    ("  requested peak", lambda r: r.arena.requested_peak_bytes, "buffers at once in run 1"),
    ("  with scratch", lambda r: r.arena.with_scratch_peak_bytes, "and what kernels take inside"),
    ("  pattern block", lambda r: r.arena.pattern_block_bytes, "one piece, from run 2 on"),
    ("  base", lambda r: r.arena.base_bytes, "weights in the arena"),
    ("  in use", lambda r: r.arena.in_use_peak_bytes, "chunks for all that, base included"),
    ("  held after run 1", lambda r: r.arena.held_bytes, "arena, memory pattern off"),
    ("  held, steady", lambda r: r.arena.held_steady_bytes, "arena after run 3, as it is opened"),
    ("  arena growth", _growth, "held beyond what is in chunks at most"),
    ("  load peak", lambda r: r.load_peak_bytes, "the process while the session is made"),
    ("  process", lambda r: r.process_bytes, "all of it after run 3"),
    ("  CUDA context", lambda r: r.context_bytes, "assumed, or --cuda-context"),
    ("  cuDNN workspace", lambda r: r.workspace_bytes, "as --cuda-workspace says"),
)

_CUDA_ALONE: Final = ("  CUDA context", "  cuDNN workspace")


def runtime_sections(analysis: "Analysis") -> list[list[str]]:
    """A section for each runtime asked for, and one that holds two of them side by side."""
    sections = [_section(runtime) for runtime in analysis.runtimes]
    if analysis.measurement is not None:
        name = analysis.measurement.backend.replace("onnxruntime", "ort")
        runtime = next((each for each in analysis.runtimes if each.name == name), None)
        predicted = None if runtime is None else predicted_by(runtime)
        sections.append(measured_section(analysis.measurement, predicted))
    if len(analysis.runtimes) > 1:
        sections.append(_side_by_side(*analysis.runtimes[:2]))
    return sections


def _section(runtime: "RuntimeMemory") -> list[str]:
    is_cuda = runtime.name == "ort-cuda"
    head = f"{_NAMES[runtime.name]}, graph {runtime.graph} {made_by(runtime)}"
    lines = [head]
    if is_cuda:
        lines.append(fact("", "from onnxruntime's sources; no GPU has confirmed these yet"))
    lines += [
        figure(label, read(runtime), remark)
        for label, read, remark in _FIGURES
        if is_cuda or label not in _CUDA_ALONE
    ]
    peak = runtime.arena.peak_node
    if peak is not None:
        lines.append(fact("  peak at", f"{shortened(peak.name)} ({shortened(peak.op_type)})"))
    advice = first_line(runtime)
    if advice is not None:
        lines.append(fact("  less with", advice, wraps=True))
    for finding in runtime.findings:
        lines += prose(f"  {finding.code}: ", shortened(finding.message, 2000))
    return lines


def _side_by_side(one: "RuntimeMemory", other: "RuntimeMemory") -> list[str]:
    """A line for every figure in which two runtimes differ."""
    lines = [f"{_NAMES[one.name]} against {_NAMES[other.name]}"]
    for label, read, _ in _FIGURES:
        here, there = (
            0 if label in _CUDA_ALONE and runtime.name != "ort-cuda" else read(runtime)
            for runtime in (one, other)
        )
        if here != there:
            sizes = f"{format_bytes(here):>12}  {format_bytes(there):>12}"
            lines.append(fact(label, f"{sizes}  {_difference(here, there)}"))
    return lines if len(lines) > 1 else []


def _difference(here: int | None, there: int | None) -> str:
    if here is None or there is None:
        return ""
    sign = "+" if there > here else "-"
    return f"{sign}{format_bytes(abs(there - here))}"
