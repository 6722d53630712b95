"""``onnxmem MODEL...``: what each model takes; one that fails costs no other its row."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from onnxmem import devices, registry, report
from onnxmem.analysis import Analysis, analyze
from onnxmem.commands.answers import refuse_two_answers
from onnxmem.commands.faults import tell
from onnxmem.commands.forms import FORMS, SUMMED, WHOLE, Look
from onnxmem.commands.output import check_output, wants_colour
from onnxmem.commands.paging import Pages, pages
from onnxmem.commands.progress import Counter, counter
from onnxmem.commands.questions import questions_of
from onnxmem.commands.streaming import write_pieces
from onnxmem.errors import EXIT_UNANALYSED, UsageError, worst_exit_code
from onnxmem.faults import Fault
from onnxmem.registry.many import outcomes
from onnxmem.registry.task import Outcome, Render, Task
from onnxmem.report.colour import coloured
from onnxmem.rows import Row, bytes_at
from onnxmem.sources import STDIN, model_names, staged_stdin
from onnxmem.units import plural

if TYPE_CHECKING:
    from onnxmem.registry import Place, Tally

_MAX_REPORTS: Final = 10
"""Of more models, text is a line each and a summary."""


@dataclass(slots=True)
class _Run:
    """Mutable: what the models so far have come to."""

    strict: bool
    counter: Counter
    tally: "Tally | None"
    """Where there is something to be summed up."""
    codes: list[int] = field(default_factory=list)

    def told(self, found: Iterator[Outcome], names: Sequence[str]) -> Iterator[Outcome]:
        """The outcomes, each with its faults told first, on stderr."""
        for name, outcome in zip(names, found, strict=True):
            row = outcome["row"]
            if self.tally is not None:
                self.tally.add(row)
            self.counter.count(failed=row["status"] == "error")
            faults = [*outcome["faults"], *(_left_out(row) if self.strict else ())]
            if faults:
                self.counter.clear()
            for each in faults:
                fault = Fault(each["code"], each["message"], each["exit_code"])
                self.codes.append(tell(fault, path=name))
                if each["trace"]:
                    print(each["trace"], file=sys.stderr)
            yield outcome

    def cleared(self, pieces: Iterator[str]) -> Iterator[str]:
        """What is written, the counter being out of its way."""
        for piece in pieces:
            self.counter.clear()
            yield piece


def run(arguments: Namespace) -> int:
    """Analyse every model, and write what comes of them in the order of their names."""
    refuse_two_answers(arguments)
    names = model_names(arguments.models)
    check_output(arguments.output, names, force=arguments.force)
    form = _form(arguments, len(names))
    shown = pages(arguments, names)
    is_summed = form in SUMMED or arguments.html is not None
    held = _places(arguments, is_needed=is_summed and len(names) > 1)
    progress = counter(len(names), declined=arguments.no_progress or arguments.quiet)
    tally = registry.Tally() if len(names) > 1 or arguments.html is not None else None
    summed = None if tally is None else partial(tally.summary, held)
    state = _Run(arguments.strict, progress, tally)
    with ExitStack() as stack:
        tasks = _tasks(names, arguments, form, shown, stack)
        found = _outcomes(tasks, len(names), arguments, stack)
        look = Look(
            paint=coloured if _is_coloured(arguments) else str,
            train=arguments.train,
            summed=summed if len(names) > 1 else None,
        )
        pieces = FORMS[form](shown.kept(state.told(found, names)), look)
        write_pieces(state.cleared(pieces), arguments.output, quiet=arguments.quiet)
        progress.clear()
        if summed is not None:
            shown.write(summed, held, quiet=arguments.quiet)
    return worst_exit_code(state.codes)


def _form(arguments: Namespace, num_models: int) -> str:
    """The form of the result; text is a table where there are many models.

    :raises UsageError: two forms are asked for.
    """
    form: str = arguments.format or ("json" if arguments.json else "text")
    if arguments.json and form != "json":
        message = f"--json and --format {form} are two forms; choose one"
        raise UsageError(message)
    is_many = num_models > _MAX_REPORTS and not arguments.layers
    wants_table = is_many if arguments.summary is None else arguments.summary
    return "table" if form == "text" and wants_table else form


def _places(arguments: Namespace, *, is_needed: bool) -> "tuple[Place, ...]":
    """What a summary holds models against; a name that is wrong is told in any case."""
    if not (is_needed or arguments.places):
        return ()
    return registry.places_of(arguments.places, devices.catalogue(arguments.devices_file))


def _tasks(
    names: Sequence[str], arguments: Namespace, form: str, shown: Pages, stack: ExitStack
) -> Iterator[Task]:
    """One task at a time: what is asked is the same of all."""
    task = Task(
        name="",
        location="",
        questions=_questions(arguments),
        with_layers=arguments.layers and form in WHOLE,
        with_peak_rows=form in WHOLE or arguments.cache is not None,
        render=_render(arguments) if form == "text" else None,
        render_page=shown.render,
        cache=None if arguments.cache is None else registry.open_cache(arguments.cache),
        with_traces=bool(os.environ.get("ONNXMEM_DEBUG")),
    )
    stdin = stack.enter_context(staged_stdin()) if STDIN in names else STDIN
    places_of = {STDIN: stdin}
    return (replace(task, name=name, location=places_of.get(name, name)) for name in names)


def _questions(arguments: Namespace) -> Mapping[str, Any]:
    return questions_of(arguments) | {"order": arguments.order, "measure": arguments.measure}


def _outcomes(
    tasks: Iterator[Task], num_models: int, arguments: Namespace, stack: ExitStack
) -> Iterator[Outcome]:
    executor = None
    if arguments.dask is not None:
        for flag, number in (("--jobs", arguments.jobs), ("--timeout", arguments.timeout)):
            if number is not None:
                message = f"{flag} is for this machine; a cluster has the workers that it has"
                raise UsageError(message)
        executor = stack.enter_context(registry.dask_executor(arguments.dask))
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


def _left_out(row: Row) -> Iterator[Any]:
    """With ``--strict`` a figure that leaves something out is a fault."""
    if row["status"] != "partial":
        return
    num_unknown = bytes_at(row, ("coverage", "unknown_tensors")) or 0
    message = f"{plural(num_unknown, 'tensor')} of unknown size: figures are lower bounds"
    message += "; see COVERAGE" if num_unknown else ", or those of a runtime; see FINDINGS"
    yield {"code": "partial", "message": message, "exit_code": EXIT_UNANALYSED, "trace": None}


def _render(arguments: Namespace) -> Render:
    """What a worker writes of a model, which it finds by its name."""
    return _with_layers if arguments.layers else report.render


def _with_layers(analysis: Analysis) -> str:
    return f"{report.render(analysis)}\n{report.render_layers(analysis)}"


def _is_coloured(arguments: Namespace) -> bool:
    return wants_colour(arguments.color, to_file=arguments.output is not None)
