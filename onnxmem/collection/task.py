"""Analyze one model: a task and its outcome are plain values that are sent between processes."""

import json
import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypedDict

from onnxmem.analysis.analysis import Analysis, analyze
from onnxmem.analysis.json_rows import Failure, JsonDict
from onnxmem.collection.sources import local_file
from onnxmem.errors import EXIT_UNANALYZED, Fault, OnnxmemError, fault_of, printable
from onnxmem.model.files import (
    FileWindow,
    ModelWindow,
    is_remote,
    model_in,
    opened_model,
    regular_file,
)

if TYPE_CHECKING:
    from onnxmem.collection.cache import Cache, Results, RunResults
    from onnxmem.collection.summary import Target

Render = Callable[[Analysis], str]
"""A top-level function, because it is pickled by its name."""


Analyze = Callable[..., Analysis]
"""``analyze``, or a replacement for it."""


class FaultRow(TypedDict):
    """An error, with its traceback if requested."""

    code: str
    message: str
    exit_code: int
    trace: str | None


class Outcome(TypedDict):
    """The result for one model."""

    row: JsonDict
    """Its JSON object; there is one even if the model could not be analyzed."""
    text: str | None
    """The report, if requested and if the model was analyzed."""
    page: str | None
    """The HTML page, likewise."""
    faults: list[FaultRow]
    """Errors to report, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model and the requested results."""

    name: str
    """The name of the model in reports."""
    location: str
    """The path or URL that is opened."""
    settings: Mapping[str, Any]
    """Keywords of ``analyze``."""
    with_row: bool = True
    """False if only the text is shown: the JSON object then has only what a run's status reads."""
    with_layers: bool = False
    with_peak_rows: bool = True
    """False if the output does not contain them: they take as long as packing an arena."""
    targets: "tuple[Target, ...]" = ()
    """Devices and sizes that the model is compared with."""
    render: Render | None = None
    render_page: Render | None = None
    cache: "Cache | None" = None
    with_traces: bool = False

    def elsewhere(self) -> "Task":
        """The task for a process with another working directory."""
        if is_remote(self.location):
            return self
        return replace(self, location=os.path.abspath(self.location))

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


def work(
    task: Task, analyze_model: Analyze = analyze, run_results: "RunResults | None" = None
) -> Outcome:
    """Analyze a model, or take its outcome from the cache; errors of any kind become an outcome.

    Without a cache it is taken from ``run_results``, those of equal files of one run, unless the
    model is measured or fetched. Pages are not cached, and neither are outcomes with errors: a
    runtime that failed or was missing may work next time.
    """
    try:
        with ExitStack() as stack:
            path = task.location
            if needs_weights(task.settings):
                path = stack.enter_context(local_file(path))
            results: Results | None = task.cache
            if results is None and not (is_remote(path) or task.settings.get("measure")):
                results = run_results
            if results is None:
                return _outcome(task, analyze_model(path, **task.settings))
            # The key and the model are read in one opening: of a URL, each costs requests.
            with opened_model(path) as window:
                entry = _Entry.of(task, window, path, results)
                known = entry.outcome(task)
                if known is not None:
                    return known
                model = model_in(window, path)
            outcome = _outcome(task, analyze_model(model, **task.settings))
            if not outcome["faults"]:
                entry.put(task, outcome)
            return outcome
    except Exception as error:  # noqa: BLE001 - other models must not be affected
        return task.failed(fault_of(error), error)


def needs_weights(settings: Mapping[str, Any]) -> bool:
    """Whether onnxruntime loads the model: then all of a file at a URL is fetched."""
    has_session = settings.get("runtimes") or settings.get("graph") not in {None, "raw"}
    is_loaded = has_session and settings.get("asks_onnxruntime", True)
    return settings.get("measure") is not None or bool(is_loaded)


def worker_died(task: Task, how: str) -> Outcome:
    """The outcome of a model whose worker died."""
    message = f"the worker process died: {how}"
    return task.failed(Fault("worker_died", message, EXIT_UNANALYZED))


def timed_out(task: Task, limit_seconds: float) -> Outcome:
    """The outcome of a model that took longer than the limit."""
    message = f"skipped: timed out after {limit_seconds:g} s; increase --timeout"
    return task.failed(Fault("timeout", message, EXIT_UNANALYZED))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A model's entry in the cache."""

    cache: "Results"
    path: str
    key: str
    before: object
    """The file's stamp when its key was computed; ``None``: a URL, all of whose ranges are of one
    version."""

    @classmethod
    def of(cls, task: Task, window: ModelWindow, path: str, cache: "Results") -> Self:
        before = _stamp_of(window)
        key = cache.key(window, path, {**task.settings, **_of_row(task)})
        return cls(cache, path, key, before)

    def outcome(self, task: Task) -> Outcome | None:
        """The cached outcome of a task; ``None`` if it is missing or incomplete."""
        entry = None if task.render_page else self.cache.get(self.key)
        # The text contains the name of the model and wraps lines by its length, so it cannot be
        # reused for another name.
        if entry is None or (task.render is not None and entry["text_of"] != task.name):
            return None
        row = {**entry["row"], "path": printable(task.name)}
        text = entry["text"] if task.render else None
        return Outcome(row=row, text=text, page=None, faults=[])

    def put(self, task: Task, outcome: Outcome) -> None:
        """Write the outcome, unless the file changed while it was analyzed."""
        if self._is_unchanged():
            text = outcome["text"]
            row = {key: value for key, value in outcome["row"].items() if key != "fetched"}
            text_of = None if text is None else task.name
            self.cache.put(self.key, {"row": row, "text": text, "text_of": text_of})

    def _is_unchanged(self) -> bool:
        if self.before is None:
            return True
        try:
            with regular_file(self.path) as window:
                return _stamp_of(window) == self.before
        except OnnxmemError:
            return False


def _stamp_of(window: ModelWindow) -> object:
    from onnxmem.collection.cache import stamp_of

    return stamp_of(window) if isinstance(window, FileWindow) else None


def _outcome(task: Task, analysis: Analysis) -> Outcome:
    analysis = replace(analysis, path=task.name)
    row = (
        analysis.to_dict(layers=task.with_layers, peak_rows=task.with_peak_rows)
        if task.with_row
        else analysis.status_dict()
    )
    if task.targets:
        from onnxmem.collection.summary import verdicts_on

        row["devices"] = [
            {
                "name": printable(each.target.name),
                "limit_bytes": each.target.limit_bytes,
                "basis": each.basis.value,
                "bytes": each.compared.num_bytes,
                "verdict": each.compared.verdict.value,
                "accuracy": None if each.assessment is None else each.assessment.accuracy.row,
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
    """What a JSON object depends on besides the settings."""
    targets = [astuple(each) for each in task.targets]
    return {"layers": task.with_layers, "targets": targets}


def _fault_row(fault: Fault, trace: str | None = None) -> FaultRow:
    return FaultRow(code=fault.code, message=fault.message, exit_code=fault.exit_code, trace=trace)


def _plain(row: JsonDict) -> JsonDict:
    """The object after a round trip through JSON, so that it is the same from every process."""
    plain: JsonDict = json.loads(json.dumps(row))
    return plain
