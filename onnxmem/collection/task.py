"""One model's work and its outcome as plain values: both are sent from process to process."""

import json
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypedDict

from onnxmem.analysis.analysis import Analysis, analyze
from onnxmem.analysis.json_rows import Failure, JsonDict
from onnxmem.collection.sources import is_remote, local_file
from onnxmem.errors import EXIT_UNANALYZED, Fault, OnnxmemError, fault_of, printable

if TYPE_CHECKING:
    from onnxmem.collection.cache import Cache
    from onnxmem.collection.summary import Target

Render = Callable[[Analysis], str]
"""A top-level function, which a worker finds by its name."""


Analyze = Callable[..., Analysis]
"""``analyze``, or what stands in for it."""


class FaultRow(TypedDict):
    """A fault, and where in the code it was raised, for those who look for that."""

    code: str
    message: str
    exit_code: int
    trace: str | None


class Outcome(TypedDict):
    """What came of one model."""

    row: JsonDict
    """Of the JSON contract; a model that could not be analysed has one too."""
    text: str | None
    """The report, where one was requested and there is one."""
    page: str | None
    """The HTML page, likewise."""
    faults: list[FaultRow]
    """What is to be reported of it, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model, and what is requested of it."""

    name: str
    """As given, and as reported."""
    location: str
    """What is opened: a path or a URL."""
    settings: Mapping[str, Any]
    """Keywords of ``analyze``."""
    with_layers: bool = False
    with_peak_rows: bool = True
    """Left out where nobody reads them: computing them takes as long as packing an arena."""
    targets: "tuple[Target, ...]" = ()
    """Devices and sizes that the model is compared with."""
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
        """The outcome of a model that could not be analyzed."""
        trace = None
        if error is not None and self.with_traces:
            trace = "".join(traceback.format_exception(error))
        return Outcome(
            row=_plain(Failure(self.name, fault.code, fault.message).to_dict()),
            text=None,
            page=None,
            faults=[_fault_row(fault, trace)],
        )


def work(task: Task, analyze_model: Analyze = analyze) -> Outcome:
    """Analyze a model, or take what the cache has of it; a fault of any kind is its own alone.

    A page is never in the cache, nor is an outcome with faults: a runtime that failed, or was not
    there, may be there next time.
    """
    try:
        with local_file(task.location) as path:
            entry = None if task.cache is None else _Entry.of(task, path, task.cache)
            known = None if entry is None else entry.outcome(task)
            if known is not None:
                return known
            analysis = analyze_model(path, **task.settings)
            outcome = _outcome(task, replace(analysis, path=task.name))
            if entry is not None and not outcome["faults"]:
                entry.put(task, outcome)
            return outcome
    except Exception as error:  # noqa: BLE001 - one that fails costs no other its row
        return task.failed(fault_of(error), error)


def worker_died(task: Task, how: str) -> Outcome:
    """The outcome of a model whose worker ended without one."""
    message = f"the process that worked it out died: {how}"
    return task.failed(Fault("worker_died", message, EXIT_UNANALYZED))


def timed_out(task: Task, limit_seconds: float) -> Outcome:
    """The outcome of a model that took longer than it may."""
    message = f"given up after {limit_seconds:g} s; --timeout gives it longer"
    return task.failed(Fault("timeout", message, EXIT_UNANALYZED))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A model's entry in the cache."""

    cache: "Cache"
    path: str
    key: str
    before: object
    """The file's stamp when its key was computed."""

    @classmethod
    def of(cls, task: Task, path: str, cache: "Cache") -> Self:
        before = _stamp_of(path)
        return cls(cache, path, cache.key(path, {**task.settings, **_of_row(task)}), before)

    def outcome(self, task: Task) -> Outcome | None:
        """What the cache has of a task; ``None``: nothing, or not all of it."""
        entry = None if task.render_page else self.cache.get(self.key)
        # The text names the model and breaks its lines by the name.
        if entry is None or (task.render is not None and entry["text_of"] != task.name):
            return None
        row = {**entry["row"], "path": printable(task.name)}
        text = entry["text"] if task.render else None
        return Outcome(row=row, text=text, page=None, faults=[])

    def put(self, task: Task, outcome: Outcome) -> None:
        """Write the outcome, unless the file changed meanwhile."""
        try:
            is_same = _stamp_of(self.path) == self.before
        except OnnxmemError:
            return
        if is_same:
            text, row = outcome["text"], outcome["row"]
            text_of = None if text is None else task.name
            self.cache.put(self.key, {"row": row, "text": text, "text_of": text_of})


def _stamp_of(path: str) -> object:
    from onnxmem.collection.cache import stamp_of

    return stamp_of(path)


def _outcome(task: Task, analysis: Analysis) -> Outcome:
    row = analysis.to_dict(layers=task.with_layers, peak_rows=task.with_peak_rows)
    if task.targets:
        from onnxmem.collection.summary import verdicts_on

        row["devices"] = [
            {
                "name": printable(each.target.name),
                "limit_bytes": each.target.limit_bytes,
                "basis": each.basis.value,
                "bytes": each.num_bytes,
                "verdict": each.verdict.value,
            }
            for each in verdicts_on(analysis.request, task.targets)
        ]
    return Outcome(
        row=_plain(row),
        text=None if task.render is None else task.render(analysis),
        page=None if task.render_page is None else task.render_page(analysis),
        faults=[
            _fault_row(Fault(finding.code, finding.message, EXIT_UNANALYZED))
            for finding in analysis.findings
            # A runtime or a run that was requested and failed costs no other figure.
            if finding.code == "runtime_failed" or finding == analysis.measured
        ],
    )


def _of_row(task: Task) -> dict[str, object]:
    """What a row depends on beside the settings."""
    targets = [astuple(each) for each in task.targets]
    return {"layers": task.with_layers, "places": targets}


def _fault_row(fault: Fault, trace: str | None = None) -> FaultRow:
    return FaultRow(code=fault.code, message=fault.message, exit_code=fault.exit_code, trace=trace)


def _plain(row: JsonDict) -> JsonDict:
    """The row as JSON gives it back, so that it is the same whichever process made it."""
    plain: JsonDict = json.loads(json.dumps(row))
    return plain
