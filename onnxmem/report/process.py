"""The sum of a process, and the settings that lower it most, as text and as JSON."""

from collections.abc import Iterator

from onnxmem.analysis.coverage import unbound_dims_text
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.decisions.advise.proposals import Proposal
from onnxmem.decisions.explain.process import ExplainedProcess
from onnxmem.errors import printable, shortened
from onnxmem.report.text import fact, figure, multiple_text
from onnxmem.report.verdict import error_text
from onnxmem.units import format_bytes

_NOTHING = "no setting of the session saves 1 %"


def render_process(path: str, found: ExplainedProcess) -> str:
    """The sum, its total, and what lowers it; ends with a newline."""
    return "\n".join([*_sum(path, found), "", *_settings(path, found)]) + "\n"


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


def _sum(path: str, found: ExplainedProcess) -> Iterator[str]:
    yield figure("Model", found.file_bytes, f"{shortened(path)} and the weights outside it")
    yield ""
    for name, size_bytes in found.parts:
        yield figure("", size_bytes, name)
    multiple = multiple_text(found.total_bytes, found.file_bytes)
    yield figure("= process, predicted", found.total_bytes, f"{multiple} the model")
    if found.guessed_dims:
        yield fact("  warning", shortened(unbound_dims_text(found.guessed_dims)))
    if found.measured_bytes is None:
        yield fact("  error", error_text(found.accuracy))
    else:
        off = 100 * (found.total_bytes / found.measured_bytes - 1)
        remark = f"after the last run; the prediction is {off:+.1f} % off"
        yield figure("  measured", found.measured_bytes, remark)


def _settings(path: str, found: ExplainedProcess) -> Iterator[str]:
    yield fact("What lowers it most", "each alone, by replay" if found.settings else _NOTHING)
    for proposal in found.settings:
        yield _setting(proposal)
        yield fact("", f"cost: {proposal.suggestion.cost}")
    yield fact("Next", f"onnxmem advise {shortened(path)} lists every change, of the model too")


def _setting(proposal: Proposal) -> str:
    share = 100 * (proposal.after_bytes / proposal.before_bytes - 1)
    after = f"{format_bytes(proposal.after_bytes)} ({share:+.0f} %)"
    return figure("  saves", proposal.saved_bytes, f"{proposal.suggestion.what}: {after}")
