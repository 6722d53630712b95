"""One model's work, and what comes of it as plain values: both cross the border of a process."""

import json
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from onnxmem import collection
from onnxmem.analysis import Analysis
from onnxmem.analysis import json_row as rows
from onnxmem.analysis.analyzing import analyze
from onnxmem.analysis.json_row import Failure, Row
from onnxmem.collecting import without_collection
from onnxmem.collection.sources import is_remote, local_file
from onnxmem.errors import EXIT_UNANALYSED, Fault, fault_of, printable

if TYPE_CHECKING:
    from onnxmem.collection import Cache, Place

Render = Callable[[Analysis], str]
"""A top-level function, which a worker finds by its name."""


Analyse = Callable[..., Analysis]
"""What works a model out: ``analyze``."""


class FaultRow(TypedDict):
    """A fault, and where in the code it was raised, for those who look for that."""

    code: str
    message: str
    exit_code: int
    trace: str | None


class Outcome(TypedDict):
    """What came of one model."""

    row: Row
    """Of the JSON contract; a model that could not be analysed has one too."""
    text: str | None
    """The report, where one was asked for and there is one."""
    page: str | None
    """The HTML page, likewise."""
    faults: list[FaultRow]
    """What is to be told of it, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model, and what is asked of it."""

    name: str
    """As given, and as told."""
    location: str
    """What is opened: a path or a URL."""
    questions: Mapping[str, Any]
    """Keywords of ``analyze``."""
    with_layers: bool = False
    with_peak_rows: bool = True
    """Left out where nobody reads them: to work them out takes as long as an arena."""
    places: "tuple[Place, ...]" = ()
    """What the model is compared with."""
    render: Render | None = None
    render_page: Render | None = None
    cache: "Cache | None" = None
    with_traces: bool = False

    def elsewhere(self) -> "Task":
        """The same for a process that works in another folder."""
        if is_remote(self.location):
            return self
        return replace(self, location=os.path.abspath(self.location))  # noqa: PTH100 - no links

    def failed(self, fault: Fault, error: BaseException | None = None) -> Outcome:
        """The outcome of a model that could not be analysed."""
        trace = None
        if error is not None and self.with_traces:
            trace = "".join(traceback.format_exception(error))
        return Outcome(
            row=_plain(Failure(self.name, fault.code, fault.message).to_dict()),
            text=None,
            page=None,
            faults=[_fault_row(fault, trace)],
        )


@without_collection()
def work(task: Task, analyse: Analyse = analyze) -> Outcome:
    """Work a model out, or take what the cache has of it; a fault of any kind is its own alone."""
    try:
        with local_file(task.location) as path:
            return _kept(task, path, analyse)
    except Exception as error:  # noqa: BLE001 - one that fails costs no other its row
        return task.failed(fault_of(error), error)


def _kept(task: Task, path: str, analyse: Analyse) -> Outcome:
    """What the cache has, or what is worked out and put there; a page is never in it.

    What is told of is not kept: a runtime that failed, or was not there, may be there next time.
    """
    if task.cache is None:
        return _answered(task, path, analyse)
    before = collection.stamp_of(path)
    key = task.cache.key(path, {**task.questions, **_of_row(task)})
    entry = None if task.render_page else task.cache.get(key)
    # The text names the model and breaks its lines by the name.
    if entry is not None and (task.render is None or entry["text_of"] == task.name):
        row = {**entry["row"], "path": printable(task.name)}
        text = entry["text"] if task.render else None
        return Outcome(row=row, text=text, page=None, faults=[])
    outcome = _answered(task, path, analyse)
    if not outcome["faults"] and collection.stamp_of(path) == before:
        text_of = None if outcome["text"] is None else task.name
        task.cache.put(key, {"row": outcome["row"], "text": outcome["text"], "text_of": text_of})
    return outcome


def _answered(task: Task, path: str, analyse: Analyse) -> Outcome:
    analysis = analyse(path, **task.questions)
    if path != task.name:
        analysis = replace(analysis, path=task.name)
    row = rows.row(analysis, with_layers=task.with_layers, with_peak_rows=task.with_peak_rows)
    if task.places:
        row["devices"] = [
            {
                "name": printable(each.place.name),
                "limit_bytes": each.place.limit_bytes,
                "basis": each.basis.value,
                "bytes": each.num_bytes,
                "verdict": each.verdict.value,
            }
            for each in collection.verdicts_on(analysis.question, task.places)
        ]
    return Outcome(
        row=_plain(row),
        text=None if task.render is None else task.render(analysis),
        page=None if task.render_page is None else task.render_page(analysis),
        faults=[
            _fault_row(Fault(finding.code, finding.message, EXIT_UNANALYSED))
            for finding in analysis.findings
            # A runtime or a run that was asked for and came to nothing costs no other figure.
            if finding.code == "runtime_failed" or finding == analysis.measured
        ],
    )


def _of_row(task: Task) -> dict[str, object]:
    """What a row depends on beside the question."""
    places = [astuple(each) for each in task.places]
    return {"layers": task.with_layers, "places": places}


def _fault_row(fault: Fault, trace: str | None = None) -> FaultRow:
    return FaultRow(code=fault.code, message=fault.message, exit_code=fault.exit_code, trace=trace)


def _plain(row: Row) -> Row:
    """The row as JSON gives it back, so that it is the same wherever it was worked out."""
    plain: Row = json.loads(json.dumps(row))
    return plain
