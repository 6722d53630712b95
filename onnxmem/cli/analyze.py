"""``onnxmem MODEL...``: what each model takes; one that fails costs no other its row."""

import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.analyzing import analyze
from onnxmem.analysis.coverage import guess_told
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.json_rows import Row, bytes_at, guessed_dims
from onnxmem.cli.answers import refuse_two_answers
from onnxmem.cli.faults import tell
from onnxmem.cli.forms import FORMS, SUMMED, WHOLE, Form, Look
from onnxmem.cli.output import check_output, form_of, wants_colour
from onnxmem.cli.paging import Pages, pages
from onnxmem.cli.progress import Counter as Progress
from onnxmem.cli.progress import counter
from onnxmem.cli.questions import devices_asked, questions_of, verdict_questions
from onnxmem.cli.registry_options import FORMATS
from onnxmem.cli.streaming import writing
from onnxmem.cli.unused import refuse_unused_options
from onnxmem.collection.many import outcomes
from onnxmem.collection.sources import STDIN, model_names, staged_stdin
from onnxmem.collection.task import FaultRow, Outcome, Render, Task
from onnxmem.errors import (
    EXIT_GATE_FAILED,
    EXIT_UNANALYSED,
    Fault,
    UsageError,
    shortened,
    worst_exit_code,
)
from onnxmem.report.text import colored
from onnxmem.settings import Settings
from onnxmem.units import format_bytes, plural

if TYPE_CHECKING:
    from onnxmem.collection.cache import Cache
    from onnxmem.collection.summary import Tally, Target

_LACKING: Final = frozenset({"unused_dim", "unused_value"})
_MAX_REPORTS: Final = 10
"""Of more models, text is a line each and a summary."""


@dataclass(slots=True)
class _Run:
    """Mutable: what the models so far have come to."""

    strict: bool
    counter: Progress
    tally: "Tally | None"
    """Where there is something to be summed up."""
    codes: list[int] = field(default_factory=list)
    lacking: Counter[str] = field(default_factory=Counter)
    """Models that have no dim, or no input, of a name that is given."""

    def tell(self, name: str, outcome: Outcome) -> None:
        """Count an outcome, and tell its faults on stderr."""
        row = outcome["row"]
        if self.tally is not None:
            self.tally.add(row)
        self.lacking.update(_lacking(row))
        self.counter.count(failed=row["status"] == "error")
        faults = [
            *outcome["faults"],
            *(_left_out(row) if self.strict else ()),
            *_budget_fault(row),
        ]
        if faults:
            self.counter.clear()
        for each in faults:
            fault = Fault(each["code"], each["message"], each["exit_code"])
            self.codes.append(tell(fault, path=name))
            if each["trace"]:
                print(each["trace"], file=sys.stderr)

    def warn_of_names(self, num_models: int) -> None:
        """Say which names some of the models lack; one model alone refuses them."""
        for flag, count in self.lacking.items():
            what = "dim" if flag.startswith("--dim ") else "input"
            which = plural(num_models, "model")
            text = f"warning: {flag}: {count:,} of {which} have no {what} of that name"
            print(text, file=sys.stderr)


def run(arguments: Namespace) -> int:
    """Analyse every model, and write what comes of them in the order of their names."""
    refuse_two_answers(arguments)
    names = model_names(arguments.models)
    check_output(arguments.output, names, force=arguments.force)
    _refuse_unused(arguments)
    form = _form(arguments, len(names))
    shown = pages(arguments, names)
    is_summed = form in SUMMED or arguments.html is not None
    if arguments.places and not (is_summed and len(names) > 1):
        message = (
            "--device: compares a collection, in its summary, page or JSON: add --summary; "
            "onnxmem fit MODEL --device NAME compares one model"
        )
        raise UsageError(message)
    held = _places(arguments, is_needed=is_summed and len(names) > 1)
    progress = counter(len(names), declined=arguments.no_progress or arguments.quiet)
    tally = _tally() if len(names) > 1 or arguments.html is not None else None
    summed = None if tally is None else partial(tally.summary, held)
    state = _Run(arguments.strict, progress, tally)
    with ExitStack() as stack:
        tasks = _tasks(names, arguments, form, held, shown, stack)
        found = _outcomes(tasks, len(names), arguments, stack)
        look = Look(
            paint=colored if _is_coloured(arguments) else str,
            train=arguments.train,
            summed=summed if len(names) > 1 else None,
        )
        with writing(arguments.output, quiet=arguments.quiet) as write:
            _write_all(zip(names, found, strict=True), FORMS[form](look), state, shown, write)
        progress.clear()
        if not arguments.quiet:
            state.warn_of_names(len(names))
        if summed is not None:
            shown.write(summed, held, quiet=arguments.quiet)
    return worst_exit_code(state.codes)


def _write_all(
    found: Iterable[tuple[str, Outcome]],
    form: Form,
    state: _Run,
    shown: Pages,
    write: Callable[[str], bool],
) -> None:
    """Write each outcome as it comes, until the reader of stdout goes away."""
    is_read = write(form.head())
    for name, outcome in found if is_read else ():
        state.tell(name, outcome)
        shown.keep(outcome)
        piece = form.of_model(outcome)
        state.counter.clear()
        if piece and not write(piece):
            return
    if is_read:
        write(form.tail())


def _form(arguments: Namespace, num_models: int) -> str:
    """The form of the result; text is a table where there are many models.

    :raises UsageError: two forms are asked for.
    """
    if arguments.json and arguments.format not in {None, "json"}:
        message = f"--json and --format {arguments.format} are two forms; choose one"
        raise UsageError(message)
    asked: str | None = arguments.format or ("json" if arguments.json else None)
    form = form_of(arguments.output, asked, (*FORMATS, "html"))
    if form == "html":
        _page_alone(arguments)
        form = "nothing"
    is_many = num_models > _MAX_REPORTS and not arguments.layers
    wants_table = is_many if arguments.summary is None else arguments.summary
    return "table" if form == "text" and wants_table else form


def _page_alone(arguments: Namespace) -> None:
    """The page in place of a result that goes to a file of that ending.

    :raises UsageError: ``--html`` asks for another page.
    """
    if arguments.html is not None:
        message = f"--html and -o {shortened(arguments.output)} are two pages; choose one"
        raise UsageError(message)
    arguments.html, arguments.output = arguments.output, None


def _places(arguments: Namespace, *, is_needed: bool) -> "tuple[Target, ...]":
    """What a summary holds models against; a name that is wrong is told in any case."""
    if not (is_needed or arguments.places):
        return ()
    from onnxmem.collection.summary import targets_of

    return targets_of(arguments.places, devices_asked(arguments))


def _tally() -> "Tally":
    from onnxmem.collection.summary import Tally

    return Tally()


def _cache(folder: str) -> "Cache":
    from onnxmem.collection.cache import open_cache

    return open_cache(folder)


def _tasks(
    names: Sequence[str],
    arguments: Namespace,
    form: str,
    held: "tuple[Target, ...]",
    shown: Pages,
    stack: ExitStack,
) -> Iterator[Task]:
    """One task at a time: what is asked is the same of all."""
    task = Task(
        name="",
        location="",
        settings=_questions(arguments) | {"one_of_several": len(names) > 1},
        with_layers=arguments.layers and form in WHOLE,
        with_peak_rows=form in WHOLE or arguments.cache is not None,
        targets=held,
        render=_render(arguments) if form == "text" else None,
        render_page=shown.render,
        cache=None if arguments.cache is None else _cache(arguments.cache),
        with_traces=bool(os.environ.get("ONNXMEM_DEBUG")),
    )
    stdin = stack.enter_context(staged_stdin()) if STDIN in names else STDIN
    targets_of = {STDIN: stdin}
    return (replace(task, name=name, location=targets_of.get(name, name)) for name in names)


def _questions(arguments: Namespace) -> dict[str, Any]:
    own = {"order": arguments.order, "measure": arguments.measure}
    return questions_of(arguments) | verdict_questions(arguments) | own


def _refuse_unused(arguments: Namespace) -> None:
    """Refuse once, before any model is read, what changes the figures of none."""
    asked = _questions(arguments)
    del asked["context"]
    refuse_unused_options(arguments, Settings(**asked))


def _outcomes(
    tasks: Iterator[Task], num_models: int, arguments: Namespace, stack: ExitStack
) -> Iterator[Outcome]:
    executor = None
    if arguments.dask is not None:
        for flag, number in (("--jobs", arguments.jobs), ("--timeout", arguments.timeout)):
            if number is not None:
                message = f"{flag} is for this machine; a cluster has the workers that it has"
                raise UsageError(message)
        _silence_dask()
        from onnxmem.collection.executors import dask_executor

        executor = stack.enter_context(dask_executor(arguments.dask))
    jobs = None if arguments.jobs is None else min(arguments.jobs, num_models)
    found = outcomes(
        tasks,
        executor=executor,
        jobs=jobs,
        timeout_seconds=arguments.timeout,
        analyse=analyze,
    )
    # An end before the last outcome must leave no worker behind.
    return stack.enter_context(closing(found))


def _silence_dask() -> None:
    """Keep dask's log off stderr: what it says of connections comes back as exceptions too."""
    with suppress(ImportError):
        import_module("distributed")  # sets the levels of its loggers as it is imported
    logging = import_module("logging")  # is not loaded otherwise
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


def _left_out(row: Row) -> Iterator[FaultRow]:
    """With ``--strict`` a figure that leaves something out is a fault."""
    if row["status"] != "partial":
        return
    unknown = bytes_at(row, ("coverage", "unknown_tensors"))
    guessed = guessed_dims(row)
    if unknown or not guessed:
        tensors = plural(unknown or 0, "tensor")
        message = f"{tensors} of unknown size: figures are lower bounds"
        message += "; see COVERAGE" if unknown else ", or those of a runtime; see FINDINGS"
    else:
        message = guess_told(guessed)
    yield FaultRow(code="partial", message=message, exit_code=EXIT_UNANALYSED, trace=None)


def _lacking(row: Row) -> Iterator[str]:
    """The flags of a row's findings on names that the model lacks."""
    for finding in cast("list[dict[str, str]]", row["findings"] or ()):
        flag, colon, _ = finding["message"].rpartition(": ")
        if finding["code"] in _LACKING and colon and flag.startswith("--"):
            yield shortened(flag)


def _budget_fault(row: Row) -> Iterator[FaultRow]:
    """A budget that is not met at the batch asked for, or of which that is not known."""
    found = cast("dict[str, Any] | None", row["verdict"])
    if found is None or found["verdict"] in {Verdict.FITS, Verdict.TIGHT}:
        return
    if found["verdict"] == Verdict.UNKNOWN:
        message = "whether it fits is unknown: " + "; ".join(found["doubts"])
        yield FaultRow(code="unknown", message=message, exit_code=EXIT_UNANALYSED, trace=None)
        return
    over, budget = format_bytes(-found["margin_bytes"]), format_bytes(found["limit_bytes"])
    message = f"takes {format_bytes(found['bytes'])}, {over} over the budget of {budget}"
    yield FaultRow(code="over-budget", message=message, exit_code=EXIT_GATE_FAILED, trace=None)


def _render(arguments: Namespace) -> Render:
    """What a worker writes of a model, which it finds by its name."""
    from onnxmem.report.terminal import render

    return _with_layers if arguments.layers else render


def _with_layers(analysis: Analysis) -> str:
    from onnxmem.report.terminal import render, render_layers

    return f"{render(analysis)}\n{render_layers(analysis)}"


def _is_coloured(arguments: Namespace) -> bool:
    return wants_colour(arguments.color, to_file=arguments.output is not None)
