"""The sum of a process, and the settings that lower it most, as text and as JSON."""

from collections.abc import Iterator, Sequence

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.coverage import unbound_dims_text
from onnxmem.analysis.fitting.verdicts import LOAD_ACCURACY
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.decisions.advise.proposals import Proposal
from onnxmem.decisions.explain.glossary import MetricValue
from onnxmem.decisions.explain.process import ExplainedProcess, stored_bytes
from onnxmem.errors import printable, shell_words, shortened
from onnxmem.report.explain import spread_text
from onnxmem.report.sections.summary import KEPT_BY
from onnxmem.report.text import fact, multiple_text, rounded
from onnxmem.report.verdict import error_text
from onnxmem.runtimes.onnxruntime.process.loading import KEPT, LIBRARY, PYTHON
from onnxmem.units import format_bytes, unit_power

_NOTHING = "no setting of the session saves 1 %"


def render_process(
    path: str, found: ExplainedProcess, value: MetricValue, flags: Sequence[str]
) -> str:
    """The sum, its total, and what lowers it; ends with a newline. ``flags`` chose the dims."""
    return "\n".join([*_sum(path, found, value), "", *_settings(path, found, flags)]) + "\n"


def load_lines(analysis: Analysis) -> Iterator[str]:
    """The growth of the process while the session is created, up to the whole process."""
    runtime = next(iter(analysis.runtimes), None)
    process_bytes = None if runtime is None else runtime.process_while_loading_bytes
    if runtime is None or runtime.load_peak_bytes is None or process_bytes is None:
        return
    yield fact("  growth", _times(analysis, runtime.load_peak_bytes))
    yield rounded("  + Python and imports", process_bytes - runtime.load_peak_bytes, "before it")
    yield rounded("  = process, loading", process_bytes, _times(analysis, process_bytes))
    yield fact("  accuracy", f"{error_text(LOAD_ACCURACY)} (load peak)")


def file_lines(analysis: Analysis) -> Iterator[str]:
    """The weights that are not in the model file, if there are any."""
    outside_bytes = stored_bytes(analysis) - analysis.request.source.file_bytes
    if outside_bytes:
        yield rounded("  weights outside it", outside_bytes)


def multiple_lines(analysis: Analysis) -> Iterator[str]:
    """How many times the file, with the weights outside it, the process is."""
    runtime = next(iter(analysis.runtimes), None)
    if runtime is not None and runtime.process_bytes is not None:
        yield fact("  multiple", _times(analysis, runtime.process_bytes))


def _times(analysis: Analysis, num_bytes: int) -> str:
    stored = stored_bytes(analysis)
    is_whole = stored == analysis.request.source.file_bytes
    outside = "" if is_whole else " and the weights outside it"
    return f"{multiple_text(num_bytes, stored)} the file{outside}"


def process_row(found: ExplainedProcess) -> JsonDict:
    """What the text has beside the figure and its parts."""
    return {
        "file_bytes": found.file_bytes,
        "measured_bytes": found.measured_bytes,
        "lowered_by": [
            {
                "id": each.suggestion.id,
                "what": printable(each.suggestion.what),
                "cost": printable(each.suggestion.cost),
                "saved_bytes": each.saved_bytes,
            }
            for each in found.settings
        ],
    }


def _sum(path: str, found: ExplainedProcess, value: MetricValue) -> Iterator[str]:
    outside = " and the weights outside it" if found.has_external_weights else ""
    multiple = multiple_text(found.total_bytes, found.file_bytes)
    remark = f"{multiple} the model"
    floor_bytes = sum(size for name, size in found.parts if name in {PYTHON, LIBRARY})
    floor = f"{format_bytes(floor_bytes)} are Python and onnxruntime, whatever the model"
    yield rounded("Process", found.total_bytes, f"{remark}; {floor}")
    yield rounded("Model", found.file_bytes, f"{shortened(path)}{outside}")
    yield ""
    power = unit_power(found.total_bytes)
    for name, size_bytes in found.parts:
        share = f"{100 * size_bytes / found.total_bytes:3.0f} %"
        why = f"; {KEPT_BY}" if name == KEPT else ""
        yield rounded("", size_bytes, f"{share}   {name}{why}", power=power)
    if value.ends is not None:
        remark = f"at least, what the data of a run decide is left out; {remark}"
    yield rounded("= process, predicted", found.total_bytes, remark)
    if value.ends is not None:
        yield rounded("  at most", value.ends[1], value.ways)
    if value.observed is not None:
        yield rounded("  observed", value.observed.most, spread_text(value.observed))
    if found.range_bytes is not None:
        least, most = map(format_bytes, found.range_bytes)
        yield fact("  range", f"{least} to {most}, by the state that the C library's heap is in")
    if found.guessed_dims:
        yield fact("  warning", shortened(unbound_dims_text(found.guessed_dims)))
    if found.measured_bytes is None:
        yield fact("  accuracy", error_text(found.accuracy))
    else:
        off = 100 * (found.total_bytes / found.measured_bytes - 1)
        remark = f"after the last run; the prediction is {off:+.1f} % off"
        yield rounded("  measured", found.measured_bytes, remark)


def _settings(path: str, found: ExplainedProcess, flags: Sequence[str]) -> Iterator[str]:
    yield fact("What lowers it most", "each alone, by replay" if found.settings else _NOTHING)
    for proposal in found.settings:
        yield _setting(proposal)
        yield fact("", f"cost: {proposal.suggestion.cost}")
    command = f"onnxmem advise {shortened(path)} {shell_words(flags)}".rstrip()
    yield fact("Next", f"{command} lists every change, of the model too")


def _setting(proposal: Proposal) -> str:
    share = 100 * (proposal.after_bytes / proposal.before_bytes - 1)
    return rounded("  saves", proposal.saved_bytes, f"{share:+.0f} %: {proposal.suggestion.what}")
