"""The largest batch at each context, as text and as JSON."""

from collections.abc import Mapping

from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.analysis.json_rows import Row
from onnxmem.analysis.scaling.capacity import LARGEST_BATCH
from onnxmem.decisions.fit import Contexts
from onnxmem.kv_cache.steps import Step
from onnxmem.report.text import fact, prose
from onnxmem.units import format_bytes

_COLUMN = 28
_EACH = "each evaluated in full, and too large at the next number"


def contexts_section(contexts: Contexts | None) -> list[str]:
    """The table and the longest contexts; nothing where no context is asked for."""
    if contexts is None:
        return []
    lines = []
    if contexts.rows:
        steps = (f"{_say(step):<{_COLUMN}}" for step in contexts.longest)
        lines.append(fact("LARGEST BATCH AT", "".join(steps)).rstrip())
    for row in contexts.rows:
        cells = (f"{_cell(reach):<{_COLUMN}}" for reach in row.reaches.values())
        lines.append(fact(f"  {row.context:,} tokens", "".join(cells)).rstrip())
    at = "" if contexts.batch is None else f", at batch {contexts.batch:,}"
    lines.append(f"LONGEST CONTEXT{at}")
    lines += [fact(f"  {_say(step)}", _cell(reach)) for step, reach in contexts.longest.items()]
    lines += prose("  ", _EACH)
    for remark in contexts.remarks:
        lines += prose("  note: ", remark)
    return lines


def contexts_row(contexts: Contexts | None) -> Row | None:
    """The same in JSON; ``null`` for a step that there is not."""
    if contexts is None:
        return None
    return {
        "batch": contexts.batch,
        "rows": [{"context": row.context, **_reaches(row.reaches)} for row in contexts.rows],
        "longest": _reaches(contexts.longest),
        "remarks": list(contexts.remarks),
    }


def _say(step: Step) -> str:
    return "decode step" if step is Step.DECODE else "prefill"


def _cell(reach: MaxBatch | None) -> str:
    if reach is None:
        return "unknown"
    if reach.number is None:
        return f"no limit up to {LARGEST_BATCH:,}"
    if reach.num_bytes is None:
        return "none"
    stopped = ", where the model ends" if reach.is_stopped else ""
    return f"{reach.number:,}  ({format_bytes(reach.num_bytes)}{stopped})"


def _reaches(reaches: Mapping[Step, MaxBatch | None]) -> Row:
    return {step.value: reach_row(reaches.get(step)) for step in Step}


def reach_row(reach: MaxBatch | None) -> Row | None:
    """How far a model goes, as plain values; ``None`` where that is not known."""
    if reach is None:
        return None
    return {
        "number": reach.number,
        "bytes": reach.num_bytes,
        "over_bytes": reach.over_bytes,
        "found_by": reach.method,
        "is_stopped_by_model": reach.is_stopped,
    }
