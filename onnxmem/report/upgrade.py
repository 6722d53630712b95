"""Two releases of onnxruntime on one model: text, JSON (schema ``onnxmem.upgrade`` 1.0)."""

from collections.abc import Iterator
from typing import Final

from onnxmem.analysis.json_rows import JsonDict, document, document_text
from onnxmem.decisions.diff import Change
from onnxmem.decisions.upgrade import ReleaseMemory, Upgrade
from onnxmem.errors import printable, shortened
from onnxmem.report.text import finding_lines, finding_rows, joined, prose
from onnxmem.units import format_bytes

_SCHEMA: Final = "onnxmem.upgrade"
_SCHEMA_VERSION: Final = "1.0"
_FLOOR: Final = "process_floor_bytes"
_LABELS: Final = {
    "requested_peak_bytes": "peak requested by kernels",
    "held_bytes": "arena reserved",
    "held_steady_bytes": "arena reserved (steady state)",
    _FLOOR: "process floor",
    "process_bytes": "process",
}
_LABEL: Final = 32
_WIDTH: Final = 12
_AT_LEAST: Final = "at least "


def render_upgrade(found: Upgrade) -> str:
    """The figures of both releases, then what was verified; the text ends with a newline."""
    path, batch = found.analysis.path, found.analysis.settings.batch
    at = "" if batch is None else f"  batch {batch:,}"
    sides = (("A", found.before), ("B", found.after))
    return joined(
        [
            [f"{shortened(path)}{at}"],
            list(_rows(found)),
            [line for letter, side in sides for line in _verified(letter, side, found)],
            list(_heap(found)),
            list(finding_lines(found.findings)),
        ]
    )


def upgrade_as_json(found: Upgrade) -> str:
    """Everything, in ASCII: no name can reach a terminal as a command."""
    least, most = found.process_range or (None, None)
    content: JsonDict = {
        "model": printable(found.analysis.path),
        "status": found.analysis.status,
        "batch": found.analysis.settings.batch,
        "before": _side(found.before),
        "after": _side(found.after),
        "figures": {
            each.name: {
                "before_bytes": each.before_bytes,
                "after_bytes": each.after_bytes,
                "change_bytes": each.change_bytes,
            }
            for each in found.figures
        },
        "process_least_bytes": least,
        "process_most_bytes": most,
        "findings": finding_rows(found.findings),
    }
    return document_text(document(_SCHEMA, _SCHEMA_VERSION, content))


def _rows(found: Upgrade) -> Iterator[str]:
    """The heading, then a row for each figure; columns are wider for lower bounds."""
    width = _WIDTH if found.is_complete else _WIDTH + len(_AT_LEAST)
    names = (found.before.release.name, found.after.release.name)
    rows = [("onnxruntime", *names, "change"), *(_cells(each, found) for each in found.figures)]
    for label, before, after, change in rows:
        yield f"{label:<{_LABEL}}{before:>{width}}{after:>{width}}{change:>20}"


def _cells(change: Change, found: Upgrade) -> tuple[str, str, str, str]:
    moved = "unknown" if change.change_bytes is None else f"{change.change_bytes:+,} B"
    sizes = (change.before_bytes, change.after_bytes)
    before, after = (
        format_bytes(each)
        if found.is_complete or each is None or change.name == _FLOOR
        else f"{_AT_LEAST}{format_bytes(each)}"
        for each in sizes
    )
    return _LABELS[change.name], before, after, moved


def _verified(letter: str, side: ReleaseMemory, found: Upgrade) -> Iterator[str]:
    release = side.release
    if not side.unverified:
        what = "nothing" if found.is_complete else "nothing that is known"
        text = f"verified: {what} in this model is treated otherwise than by the rules"
    else:
        named = "; ".join(each.what for each in side.unverified)
        text = f"not verified: this model has what it treats otherwise than the rules: {named}"
    yield from prose(f"{letter}  onnxruntime {release.measured}  ", text)


def _heap(found: Upgrade) -> Iterator[str]:
    if found.process_range is None:
        return
    least, most = map(format_bytes, found.process_range)
    yield from prose(
        "",
        f"The process is not verified: {least} to {most} in any release, for small blocks of the "
        "heap decide whether a freed weight's place serves the next one.",
    )


def _side(side: ReleaseMemory) -> JsonDict:
    return {
        "onnxruntime": side.release.name,
        "measured": side.release.measured,
        "verified": not side.unverified,
        "unverified": [
            {"name": each.name, "last": each.last, "what": each.what} for each in side.unverified
        ],
    }
