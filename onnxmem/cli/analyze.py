"""``onnxmem MODEL...``: what each model takes; ``onnxmem view`` shows the same as a page.

A model that fails costs no other model its row. What works on models is imported where it runs:
onnx takes longer to import than ``onnxmem --help`` should take to answer.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, BooleanOptionalAction, Namespace, _ArgumentGroup
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from onnxmem.cli.chosen import (
    analyze_settings,
    device_catalog,
    refuse_contradictions,
    refuse_unused_options,
    verdict_settings,
)
from onnxmem.cli.observing import add_observing_options, observed_runs
from onnxmem.cli.options import (
    add_context_option,
    add_devices_file,
    add_json_option,
    add_model_options,
    add_most,
    add_order_option,
    add_packing_option,
    add_report_options,
    add_result_options,
    add_runtime_options,
    add_training_options,
    add_verdict_options,
)
from onnxmem.cli.output import (
    check_output,
    form_of,
    is_seen_whole,
    notify,
    pieces_to,
    wants_color,
)
from onnxmem.cli.parsing import Parser, add_repeatable, add_size, dim, seconds
from onnxmem.errors import OnnxmemError, UsageError, fault_of, shortened, worst_exit_code
from onnxmem.files import reason_of
from onnxmem.settings import BACKENDS, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnxmem.analysis.analysis import Analysis
    from onnxmem.cli.results import Page
    from onnxmem.collection.summary import Target
    from onnxmem.collection.task import Outcome, Render, Task

FORMATS: Final = ("text", "json", "jsonl", "csv")
_MAX_REPORTS: Final = 10
"""With more models, text is a line each and a summary."""
_OF_A_SERVER: Final = (
    *("--threads", "--requests", "--concurrency", "--sessions", "--no-mem-pattern"),
    *("--no-mem-reuse", "--arena-extend-strategy", "--shared-arena", "--shrink-arena", "--weights"),
)
_NO_SERVER: Final = (
    "a report is of a session with default options and one thread; onnxmem simulate MODEL "
    "--requests ... predicts a server with others, and onnxmem measure MODEL runs it"
)
"""Why the options of a server are none of a report."""

_EPILOG: Final = """\
commands:
  onnxmem [analyze] MODEL...   what a model takes (this help)
  onnxmem measure MODEL...     run it in onnxruntime and say what it took
  onnxmem view MODEL...        the same as a page in a browser
  onnxmem advise MODEL...      what lowers its memory, how to meet a budget
  onnxmem check PATH...        hold models against budgets, for CI
  onnxmem diff A [B]           what changed between models, settings or dates
  onnxmem fit MODEL...         does it fit a device? the largest batch
  onnxmem sweep MODEL          memory, FLOPs and time per sample, by batch
  onnxmem devices [NAME...]    devices, how fast a model can be on them
  onnxmem export MODEL         traces, tables, graphs, for other tools
  onnxmem annotate MODEL       a copy with its figures as metadata, for Netron
  onnxmem explain WHAT [MODEL] what a figure or an OOM message means
  onnxmem reorder MODEL        a copy whose order of nodes takes less
  onnxmem schema               print the JSON Schema of --json

exit codes: 0 ok, 1 a budget or gate failed, 2 wrong usage or no such file, 3 a
model could not be analyzed (with --strict: or not completely), 70 an internal
error, 130 interrupted
"""


def analyze_parser() -> ArgumentParser:
    """The flags of ``onnxmem MODEL``."""
    parser = Parser(
        "analyze",
        "MODEL... [options]",
        "Say how much memory an ONNX model takes, to run and to train.",
        run,
        epilog=_EPILOG,
    )
    _add_options(parser)
    parser.refused = dict.fromkeys(_OF_A_SERVER, _NO_SERVER)
    parser.add_argument_group("report").add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="every figure: exact bytes, formulas, all peaks, rules of thumb, compute",
    )
    page = parser.add_argument_group("page")
    page.add_argument(
        "--html",
        metavar="FILE",
        help="write a page too: of one model its timeline, layers and figures at other batches, of "
        "several a chart; with FOLDER/ each of several has a page, which the chart opens",
    )
    _add_accuracy(page)
    return parser


def view_parser() -> ArgumentParser:
    """The flags of ``onnxmem view``: those of ``onnxmem MODEL``, but for the page's own."""
    parser = Parser(
        "view",
        "MODEL... [options]",
        "Show what a model takes as a page in the browser: one file, which needs no "
        "network. It is a temporary file, unless -o FILE is given.",
        run_view,
    )
    _add_options(parser)
    parser.refused = dict.fromkeys(_OF_A_SERVER, _NO_SERVER)
    page = parser.add_argument_group("page")
    page.add_argument("--no-open", action="store_true", help="write the page, open no browser")
    _add_accuracy(page)
    return parser


def _add_options(parser: ArgumentParser) -> None:
    add_most(add_model_options(parser))
    add_observing_options(parser)
    add_training_options(parser)
    add_runtime_options(parser)
    add_order_option(parser)
    add_packing_option(parser)
    measurement = parser.add_argument_group("measurement")
    measurement.add_argument(
        "--measure",
        choices=BACKENDS,
        help="run the model in onnxruntime too, in a child process, beside the prediction of "
        "--runtime ort-cpu or ort-cuda",
    )
    add_context_option(parser)
    budget = parser.add_argument_group("budget")
    add_size(
        budget,
        "--budget",
        "find the largest batch that fits, as in 24GiB; exit with 1 if this batch does not",
    )
    add_verdict_options(budget)
    add_report_options(parser)
    _add_collection_options(parser)
    add_json_option(add_result_options(parser))


def _add_collection_options(parser: ArgumentParser) -> None:
    """Add what matters where there are several models."""
    group = parser.add_argument_group(
        "many models",
        "MODEL may be a file, a folder, a pattern, @list.txt, - (stdin) or a URL:\n"
        "https://..., hf://ORG/MODEL/FILE, s3://..., gs://..., whose weights are not\n"
        "fetched",
    )
    group.add_argument(
        "--jobs", type=dim, metavar="N", help="processes at once (default: one per core)"
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="skip a model that takes longer, and end its process",
    )
    group.add_argument(
        "--cache", metavar="DIR", help="keep rows there, and take those that are there already"
    )
    group.add_argument(
        "--dask", metavar="ADDRESS", help="work on a dask.distributed cluster, as tcp://host:8786"
    )
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="of the result (default: by the ending of -o FILE, or text); jsonl and csv: a line a "
        "model, as they come",
    )
    group.add_argument(
        "--summary",
        action=BooleanOptionalAction,
        help="as text: a line a model and a summary (default: of more than 10 models)",
    )
    add_repeatable(
        group,
        "--device",
        "targets",
        ("NAME|SIZE", "count the models that fit it (repeatable; JSON and pages: sizes of GPUs)"),
    )
    add_devices_file(group)
    group.add_argument("--no-progress", action="store_true", help="no counter on a terminal")


def _add_accuracy(page: _ArgumentGroup) -> None:
    page.add_argument(
        "--accuracy",
        metavar="FILE.csv",
        help="of several models: a table of model and accuracy, which is then across the chart",
    )


def run(arguments: Namespace) -> int:
    """Analyze every model, and write the results in the order of their names."""
    from onnxmem.cli.results import (
        BY_ROW,
        FORMS,
        SUMMED,
        Progress,
        RenderOptions,
        RunStatus,
        page_of,
        write_results,
    )
    from onnxmem.collection.sources import model_names
    from onnxmem.report.text import colored

    # All that can be refused is refused before the first model is read.
    refuse_contradictions(arguments)
    names = model_names(arguments.models)
    check_output(arguments.output, names, force=arguments.force)
    form = _form(arguments, len(names))
    settings = _settings(arguments)
    _refuse_unused(arguments, settings)
    if observed := observed_runs(arguments, names):
        settings["observed"] = observed
    page = page_of(arguments, names)
    is_collection = len(names) > 1
    is_summed = form in SUMMED or arguments.html is not None
    # Nobody who reads a table asked for the common sizes of GPUs, which JSON and the page have.
    is_compared = is_collection and (form == "json" or arguments.html is not None)
    targets = _targets(arguments, is_compared=is_compared, is_summed=is_summed and is_collection)
    status = RunStatus(
        Progress.for_terminal(len(names), declined=arguments.no_progress or arguments.quiet),
        strict=arguments.strict,
        targets=targets,
        is_summed=is_collection or arguments.html is not None,
        says_verdict=form == "text" and is_seen_whole(to_file=arguments.output is not None),
    )
    with ExitStack() as stack:
        settings["one_of_several"] = is_collection
        task = _task(arguments, settings, form, targets, page)
        found = _found(task, names, arguments, stack)
        is_colored = wants_color(arguments.color, to_file=arguments.output is not None)
        render = RenderOptions(
            paint=colored if is_colored else str,
            train=arguments.train,
            runtimes=settings["runtimes"],
            summary=status.summary if is_collection else None,
        )
        is_by_row = form in BY_ROW
        with pieces_to(arguments.output, quiet=arguments.quiet, is_by_row=is_by_row) as write:
            pairs = zip(names, found, strict=True)
            write_results(pairs, FORMS[form](render), status, page, write)
        status.progress.finish()
        if not arguments.quiet:
            status.warn_of_names(len(names))
            status.report_fetched()
        if status.tally is not None:
            page.write(status.summary, targets, quiet=arguments.quiet)
    return worst_exit_code(status.codes)


def run_view(arguments: Namespace) -> int:
    """Write the page as ``onnxmem MODEL --html`` does, without the text, and open it."""
    import tempfile
    import webbrowser
    from pathlib import Path

    if arguments.json or arguments.format:
        message = "view shows a page; onnxmem MODEL --html FILE writes one beside another form"
        raise UsageError(message)
    path = arguments.output
    if path is None:
        # In a folder of its own, named like the model; the system removes it some day.
        stem = Path(arguments.models[0]).stem if len(arguments.models) == 1 else ""
        safe = "".join(char if char.isalnum() else "-" for char in stem[:60]).strip("-")
        try:
            folder = tempfile.mkdtemp(prefix="onnxmem-")
        except OSError as fault:
            message = f"no temporary folder can be made: {reason_of(fault)}; pass -o FILE"
            raise UsageError(message) from fault
        path = str(Path(folder) / f"{safe or 'models'}.html")
    arguments.html, arguments.output, arguments.format = path, None, "nothing"
    code = run(arguments)
    if not arguments.no_open and not webbrowser.open(Path(path).absolute().as_uri()):
        hint = "open it yourself, or pass -o FILE for another place"
        notify(f"no browser could be opened; the page is {shortened(path)}; {hint}")
    return code


def _settings(arguments: Namespace) -> dict[str, Any]:
    # A page draws the packed block.
    pack = arguments.pack or ("quick" if arguments.html is None else "best")
    own = {"order": arguments.order, "pack": pack, "measure": arguments.measure}
    found = analyze_settings(arguments) | verdict_settings(arguments) | own
    if arguments.measure and not found["runtimes"]:
        # What was measured stands beside what is predicted of the same runtime.
        found["runtimes"] = (f"ort-{arguments.measure}",)
    return found


def _refuse_unused(arguments: Namespace, settings: dict[str, Any]) -> None:
    """Refuse once, before any model is read, what changes the figures of none."""
    own = {name: value for name, value in settings.items() if name != "context"}
    refuse_unused_options(arguments, Settings(**own))


def _form(arguments: Namespace, num_models: int) -> str:
    """The form of the result; text is a table where there are many models.

    :raises UsageError: two forms are requested.
    """
    if arguments.json and arguments.format not in {None, "json"}:
        message = f"--json and --format {arguments.format} are two forms; choose one"
        raise UsageError(message)
    requested: str | None = arguments.format or ("json" if arguments.json else None)
    form = form_of(arguments.output, requested, (*FORMATS, "html"))
    if form == "html":
        if arguments.html is not None:
            message = f"--html and -o {shortened(arguments.output)} are two pages; choose one"
            raise UsageError(message)
        # The page alone, in place of a result that goes to a file of that ending.
        arguments.html, arguments.output = arguments.output, None
        form = "nothing"
    is_many = num_models > _MAX_REPORTS and not arguments.layers
    wants_table = is_many if arguments.summary is None else arguments.summary
    if form != "text" or not wants_table:
        return form
    return "line" if arguments.quiet and num_models > 1 and arguments.output is None else "table"


def _targets(arguments: Namespace, *, is_compared: bool, is_summed: bool) -> tuple[Target, ...]:
    """The devices and sizes that a collection is compared with: those named, or common ones.

    :raises UsageError: some are named, and there is no collection that is summed up.
    :raises DeviceError: a name that is neither.
    """
    if arguments.targets and not is_summed:
        message = (
            "--device: compares a collection, in its summary, page or JSON: add --summary; "
            "onnxmem fit MODEL --device NAME compares one model"
        )
        raise UsageError(message)
    if not (arguments.targets or is_compared):
        return ()
    from onnxmem.collection.summary import targets_of

    return targets_of(arguments.targets, device_catalog(arguments))


def _task(
    arguments: Namespace,
    settings: dict[str, Any],
    form: str,
    targets: tuple[Target, ...],
    page: Page,
) -> Task:
    """What is requested of every model; the name is still open."""
    from onnxmem.cli.results import WHOLE
    from onnxmem.collection.task import Task

    cache = None
    if arguments.cache is not None:
        from onnxmem.collection.cache import open_cache

        cache = open_cache(arguments.cache)
    needs_row = form != "text" or settings["one_of_several"] or page.path is not None
    return Task(
        name="",
        location="",
        settings=settings,
        with_row=needs_row or cache is not None,
        with_layers=arguments.layers and form in WHOLE,
        with_peak_rows=form in WHOLE or cache is not None,
        targets=targets,
        render=_render(arguments) if form == "text" else None,
        render_page=page.render,
        cache=cache,
        with_traces=bool(os.environ.get("ONNXMEM_DEBUG")),
    )


def _render(arguments: Namespace) -> Render:
    """What a worker writes of a model: functions and partials that it finds by their names."""
    from onnxmem.report.terminal import render, render_answer, render_line

    # To a file -q writes the same without a message.
    is_short = arguments.quiet and arguments.output is None
    chosen = render_line if is_short else render if arguments.verbose else render_answer
    return partial(_with_layers, chosen) if arguments.layers else chosen


def _with_layers(render: Render, analysis: Analysis) -> str:
    from onnxmem.report.terminal import render_layers

    return f"{render(analysis)}\n{render_layers(analysis)}"


def _found(
    task: Task, names: Sequence[str], arguments: Namespace, stack: ExitStack
) -> Iterator[Outcome]:
    """The outcome of each model, one at a time; a stdin that cannot be read costs its own."""
    from onnxmem.collection.sources import STDIN, staged_stdin

    stdin, failed = STDIN, None
    if STDIN in names:
        try:
            stdin = stack.enter_context(staged_stdin())
        except OnnxmemError as error:
            failed = replace(task, name=STDIN).failed(fault_of(error))
    tasks = (
        replace(task, name=name, location=stdin if name == STDIN else name)
        for name in names
        if name != STDIN or failed is None
    )
    found = _outcomes(tasks, len(names), arguments, stack)
    if failed is None:
        return found
    return (failed if name == STDIN else next(found) for name in names)


def _outcomes(
    tasks: Iterator[Task], num_models: int, arguments: Namespace, stack: ExitStack
) -> Iterator[Outcome]:
    from onnxmem.analysis.analysis import analyze
    from onnxmem.collection.many import outcomes

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
        analyze_model=analyze,
    )
    # An end before the last outcome must leave no worker behind.
    return stack.enter_context(closing(found))


def _silence_dask() -> None:
    """Keep dask's log off stderr: what it says of connections comes back as exceptions too."""
    with suppress(ImportError):
        import_module("distributed")  # sets the levels of its loggers as it is imported
    logging = import_module("logging")  # is not loaded otherwise
    # Several of its loggers have a level and a handler of their own.
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)
