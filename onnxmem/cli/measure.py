"""``onnxmem measure MODEL...``: what each model takes when onnxruntime runs it.

``onnxmem measure --pid PID`` reads a process that runs already instead.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from onnxmem.cli.chosen import arena_options, recipe_from, refuse_contradictions, refuse_untrained
from onnxmem.cli.observing import add_observe, add_save_observed
from onnxmem.cli.options import (
    add_arena_options,
    add_json_option,
    add_model_options,
    add_report_options,
    add_requests,
    add_result_options,
    add_training_options,
)
from onnxmem.cli.output import (
    check_output,
    in_color,
    is_watched,
    notify,
    report_fault,
    settle_json,
    write_file,
    write_result,
)
from onnxmem.cli.parsing import Parser, add_size, dim, seconds
from onnxmem.errors import (
    EXIT_UNANALYZED,
    Fault,
    Finding,
    OnnxmemError,
    UsageError,
    fault_of,
    printable,
    shortened,
    worst_exit_code,
)
from onnxmem.settings import Values

if TYPE_CHECKING:
    from onnxmem.analysis.json_rows import JsonDict, Predicted
    from onnxmem.analysis.observed_memory import ObservedMemory
    from onnxmem.decisions.simulate import Simulation
    from onnxmem.measuring.measurement import Measurement
    from onnxmem.measuring.measuring import MeasureSettings
    from onnxmem.model.binding import Request
    from onnxmem.model.observed import Observed
    from onnxmem.model.requests import Requests
    from onnxmem.report.running_process import ComparedProcess
    from onnxmem.report.served import ComparedServing

_MOST_RUNS: Final = 10**6
SCHEMA: Final = "onnxmem.measurement"
SCHEMA_VERSION: Final = "1.0"
_OF_ARENA: Final = (
    *("requested_peak_bytes", "with_scratch_peak_bytes", "pattern_block_bytes", "base_bytes"),
    *("in_use_peak_bytes", "held_bytes", "held_steady_bytes"),
)
_OF_RUN: Final = ("inputs", "runs", "timeout", "memory_bytes", "layers", "observe", "save_observed")
_OF_MODULE: Final = (
    "a running process: add --pid PID; or from Python: onnxmem.torch.measure(module, inputs)"
)
_OF_SESSION: Final = (
    *("device", "graph", "fixed_dims", "no_mem_pattern", "no_mem_reuse"),
    *("arena_extend_strategy", "shrink_arena"),
    *("threads", "weights", "malloc_trim", "malloc_threshold_bytes"),
)
_OF_ONE_SHAPE: Final = ("inputs", "runs", "layers", "fixed_dims", "device")
_OF_REQUESTS: Final = ("num_requests", "seed", "concurrency", "sessions")
_OF_MODEL: Final = (*("batch", "dims", "shapes", "values", "train"), *_OF_SESSION)
_FLAGS: Final = {
    "memory_bytes": "memory-limit",
    "malloc_threshold_bytes": "malloc-threshold",
    "dims": "dim",
    "shapes": "shape",
    "values": "value",
}
Outcome: TypeAlias = "tuple[str, tuple[Measurement, Predicted | None] | Fault]"


def measure_parser() -> ArgumentParser:
    """The flags of ``onnxmem measure``."""
    parser = Parser(
        "measure",
        "MODEL... [--requests FILE|RANGES] [options]\n"
        "       onnxmem measure --pid PID [MODEL] [options]",
        "Run a model in onnxruntime, in a process of its own, at one shape or as a server of many "
        "requests, and say what it took; or read a process that runs already. A training step of a "
        "PyTorch module is measured from Python, beside its prediction: "
        "onnxmem.torch.measure(module, inputs, export=True); pip install 'onnxmem[train]'.",
        run,
    )
    add_model_options(parser, num_models="*")
    _add_run_options(parser)
    add_requests(parser)
    _add_process_options(parser)
    _add_session_options(parser)
    add_training_options(parser)
    add_report_options(parser)
    add_json_option(add_result_options(parser))
    return parser


def run(arguments: Namespace) -> int:
    """Measure every model in order, one that fails costs no other its row; then write them."""
    for path in (arguments.output, arguments.save_observed):
        check_output(path, arguments.models, force=arguments.force)
    if arguments.save_observed is not None and len(arguments.models) > 1:
        message = f"--save-observed keeps the runs of one model, not of {len(arguments.models)}"
        raise UsageError(message)
    refuse_contradictions(arguments)
    settle_json(arguments)
    _refuse_unused(arguments)
    if arguments.pid is not None:
        return _run_process(arguments)
    if arguments.requests is not None:
        return _run_requests(arguments)
    codes: list[int] = []
    outcomes = list(_outcomes(arguments, codes))
    text = _json(outcomes, arguments) if arguments.json else _text(outcomes, arguments)
    write_result(in_color(text, arguments), arguments)
    return worst_exit_code(codes)


def _add_run_options(parser: ArgumentParser) -> None:
    run = parser.add_argument_group("run")
    run.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    run.add_argument("--inputs", metavar="FILE.npz", help="real inputs: an array for each, by name")
    run.add_argument("--runs", type=_runs, default=3, metavar="N", help="how often (default: 3)")
    run.add_argument(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="of each process that runs the model (default: 300)",
    )
    add_size(
        run,
        "--memory-limit",
        "of each such process, as in 4GiB (default: what is free)",
        dest="memory_bytes",
    )

    add_observe(run, "also figures of more runs, on random or real inputs")
    add_save_observed(run)


def _add_process_options(parser: ArgumentParser) -> None:
    process = parser.add_argument_group("running process")
    process.add_argument(
        "--pid",
        type=dim,
        metavar="PID",
        help="read this process and its children instead; with a MODEL, beside its prediction",
    )
    process.add_argument(
        "--seconds", type=seconds, metavar="SECONDS", help="watch it so long (default: read once)"
    )


def _add_session_options(parser: ArgumentParser) -> None:
    from onnxmem.runtimes.onnxruntime.session_options import LEVELS

    session = parser.add_argument_group("session of onnxruntime")
    session.add_argument(
        "--graph",
        choices=tuple(LEVELS),
        default="ort-all",
        metavar="LEVEL",
        help=f"optimization: {', '.join(LEVELS)} (default: ort-all)",
    )
    session.add_argument(
        "--fixed-dims", action="store_true", help="open it with numbers for the symbolic dims"
    )
    add_arena_options(session)


def _runs(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST_RUNS):
        message = f"{text!r} is not a number of runs"
        raise ArgumentTypeError(message)
    return int(text[:9])


def _refuse_unused(arguments: Namespace) -> None:
    """Refuse what has no effect, and a command line that names nothing to measure.

    :raises UsageError: with the flag, and what it needs.
    """
    refuse_untrained(arguments, trains=arguments.train)
    if arguments.pid is None and not arguments.models:
        message = "name a model to run, or a process that runs already: --pid PID"
        raise UsageError(message)
    number = next(iter(arguments.models), "")
    if arguments.pid is None and number.isdigit() and not os.path.lexists(number):
        message = f"{shortened(number)}: no such file; of a process: --pid {shortened(number)}"
        raise UsageError(message)
    parser = measure_parser()
    for names, is_used, needed in (
        (("seconds",), arguments.pid is not None, "a running process: add --pid PID"),
        (("train",), arguments.pid is not None, _OF_MODULE),
        (_OF_REQUESTS, arguments.requests is not None, "requests: add --requests FILE|RANGES"),
        (_OF_ONE_SHAPE, arguments.requests is None, "runs of one shape: --requests has many"),
        (("requests",), arguments.pid is None, "a run: --pid reads a process that runs already"),
        (_OF_RUN, arguments.pid is None, "a run: --pid reads a process that runs already"),
        (_OF_MODEL, bool(arguments.models), "a model beside --pid"),
        (_OF_SESSION, not arguments.train, "a session: --train compares with a training loop"),
    ):
        for name in () if is_used else names:
            if getattr(arguments, name) not in (parser.get_default(name), [], None):
                flag = f"--{_FLAGS.get(name, name).replace('_', '-')}"
                message = f"{flag}: no effect without {needed}"
                raise UsageError(message)
    if arguments.pid is not None and len(arguments.models) > 1:
        message = f"--pid compares one model with the process, not {len(arguments.models)}"
        raise UsageError(message)


def _run_process(arguments: Namespace) -> int:
    """Read a process that runs already, and write its figures."""
    from onnxmem.analysis.json_rows import document, document_text
    from onnxmem.measuring.running_process import watch
    from onnxmem.report.running_process import process_row, render_process

    try:
        compared = _compared(arguments)
    except Exception as error:  # noqa: BLE001 - every fault is reported with the model's name
        return report_fault(fault_of(error), path=arguments.models[0])
    watched = watch(arguments.pid, arguments.seconds)
    if arguments.json:
        content: JsonDict = {"models": [], "process": process_row(watched, compared)}
        text = document_text(document(SCHEMA, SCHEMA_VERSION, content))
    else:
        text = render_process(watched, compared)
    write_result(in_color(text, arguments), arguments)
    return 0


def _run_requests(arguments: Namespace) -> int:
    """Serve requests with every model, and write what each process took."""
    from onnxmem.analysis.json_rows import document, document_text
    from onnxmem.model.requests import read_requests
    from onnxmem.report.served import ComparedServing, render_served, served_row

    requests = read_requests(arguments.requests, arguments.num_requests, arguments.seed)
    codes: list[int] = []
    texts: list[str] = []
    rows: list[JsonDict] = []
    for path in arguments.models:
        outcome = _served(path, requests, arguments)
        if isinstance(outcome, ComparedServing):
            texts.append(render_served(path, outcome))
            rows.append(_served_row(path, served_row(outcome), outcome.measured.findings))
            continue
        codes.append(report_fault(outcome, path=path))
        error = {"code": outcome.code, "message": printable(outcome.message)}
        rows.append(_served_row(path, None, ()) | {"status": "error", "error": error})
    if arguments.json:
        text = document_text(document(SCHEMA, SCHEMA_VERSION, {"models": rows}))
    else:
        text = "\n\n".join(texts)
    write_result(in_color(text, arguments), arguments)
    return worst_exit_code(codes)


def _served(path: str, requests: Requests, arguments: Namespace) -> ComparedServing | Fault:
    """What a process took that served requests, beside its simulation."""
    from onnxmem.collection.sources import local_file
    from onnxmem.measuring.served import ServedLoad, measure_requests
    from onnxmem.model.binding import Request
    from onnxmem.report.served import ComparedServing

    fixed = Request(arguments.batch, dict(arguments.dims), dict(arguments.shapes))
    load = ServedLoad(requests, arguments.concurrency, arguments.sessions)
    show = _progress_line(path, is_quiet=arguments.quiet)
    try:
        with local_file(path) as file:
            measured = measure_requests(file, load, fixed, _settings(arguments, show))
            if isinstance(measured, Finding):
                return Fault(measured.code, measured.message, EXIT_UNANALYZED)
            simulated = _simulated(file, requests, arguments)
    except Exception as error:  # noqa: BLE001 - every fault is reported with the model's name
        return fault_of(error)
    finally:
        show("")
    return ComparedServing(requests, arguments.concurrency, arguments.sessions, measured, simulated)


def _simulated(path: str, requests: Requests, arguments: Namespace) -> Simulation | None:
    """The simulation of the same; ``None`` where it fails: the measurement stands."""
    from onnxmem.analysis.fitting.footprints import request_of
    from onnxmem.decisions.simulate import Serving, simulate
    from onnxmem.measuring.measuring import no_progress
    from onnxmem.settings import Settings

    settings = Settings(
        batch=arguments.batch,
        dims=dict(arguments.dims),
        shapes=dict(arguments.shapes),
        values=dict(arguments.values),
        runtimes=("ort-cpu",),
        graph=arguments.graph,
    )
    serving = Serving(
        concurrency=arguments.concurrency,
        sessions=arguments.sessions,
        options=_settings(arguments, no_progress).options,
    )
    try:
        return simulate(request_of(path, settings), requests, serving)
    except Exception:  # noqa: BLE001 - whatever it is, the measurement stands
        return None


def _served_row(path: str, served: JsonDict | None, findings: Sequence[Finding]) -> JsonDict:
    row: JsonDict = {"path": printable(path), "status": "ok", "error": None}
    none = {"measured": None, "predicted": None, "layers": None}
    return row | none | {"findings": _finding_rows(findings), "served": served}


def _compared(arguments: Namespace) -> ComparedProcess | None:
    """The prediction for the process: of a training loop on a GPU, or of a session."""
    from onnxmem.analysis.analysis import analyze
    from onnxmem.collection.sources import local_file
    from onnxmem.model.binding import Request
    from onnxmem.report.running_process import ComparedProcess

    if not arguments.models:
        return None
    (path,) = arguments.models
    request = Request(arguments.batch, dict(arguments.dims), dict(arguments.shapes))
    with local_file(path) as file:
        if arguments.train:
            found = analyze(
                file,
                batch=request.batch,
                dims=request.dims,
                shapes=request.shapes,
                values=dict(arguments.values),
                train=True,
                recipe=recipe_from(arguments),
            )
            predicted_bytes = None if found.torch is None else found.torch.total_bytes
            return ComparedProcess(path, "training.cuda.total_bytes", predicted_bytes)
        predicted = _of_session(file, request, arguments, dict(arguments.values))
    predicted_bytes = predicted.figures.get("process_steady_bytes")
    return ComparedProcess(path, "runtime.process_bytes", predicted_bytes)


def _outcomes(arguments: Namespace, codes: list[int]) -> Iterator[Outcome]:
    for path in arguments.models:
        outcome = _outcome(path, arguments)
        fault = outcome if isinstance(outcome, Fault) else _left_out(outcome[0], arguments)
        if fault is not None:
            codes.append(report_fault(fault, path=path))
        yield path, outcome


def _left_out(measurement: Measurement, arguments: Namespace) -> Fault | None:
    """With ``--strict`` a figure of the arena that could not be measured is a fault."""
    if not arguments.strict or None not in (getattr(measurement, name) for name in _OF_ARENA):
        return None
    message = "figures of the arena could not be measured; see Notes"
    return Fault("partial", message, EXIT_UNANALYZED)


def _outcome(path: str, arguments: Namespace) -> tuple[Measurement, Predicted | None] | Fault:
    from onnxmem.collection.sources import local_file
    from onnxmem.measuring.measuring import measure
    from onnxmem.model.binding import Request

    request = Request(arguments.batch, dict(arguments.dims), dict(arguments.shapes))
    show = _progress_line(path, is_quiet=arguments.quiet)
    try:
        with local_file(path) as file:
            found = measure(file, request, _settings(arguments, show))
            predicted = None
            if not isinstance(found, Finding):
                observed = _observed(file, request, arguments)
                predicted = _predicted(file, request, arguments, found.fed, observed)
    except Exception as error:  # noqa: BLE001 - every fault is reported with the model's name
        return fault_of(error)
    finally:
        show("")
    if isinstance(found, Finding):
        return Fault(found.code, found.message, EXIT_UNANALYZED)
    return found, predicted


def _observed(path: str, request: Request, arguments: Namespace) -> Observed | None:
    """The shapes that the data of the measured run decide, and after it those of other observed
    runs; ``None``: they decide none, or a run of the graph as the file has it fails.

    :raises UsageError: requested runs fail, or the file that keeps them cannot be written.
    """
    from onnxmem.measuring.measuring import no_progress
    from onnxmem.measuring.observing import observe

    inputs = "random" if arguments.inputs is None else arguments.inputs
    settings = replace(_settings(arguments, no_progress), provider="cpu", inputs_npz=None)
    try:
        found = observe(path, request, settings, (inputs, *arguments.observe))
    except OnnxmemError as fault:
        found = Finding(fault.code, str(fault))
    is_kept = arguments.save_observed is not None
    if isinstance(found, Finding):
        if is_kept:
            message = f"--save-observed: no shapes to keep: {found.message}"
            raise UsageError(message)
        if arguments.observe:
            message = f"--observe: {found.message}"
            raise UsageError(message)
        return None
    if is_kept:
        write_file(found.to_json(), arguments.save_observed, quiet=arguments.quiet)
    return found


def _predicted(
    path: str,
    request: Request,
    arguments: Namespace,
    fed: Mapping[str, Values],
    observed: Observed | None,
) -> Predicted | None:
    """The prediction for the fed values; ``None`` where it fails: the measurement stands."""
    from onnxmem.measuring.inputs import read_headers

    try:
        if arguments.inputs is not None:
            given = {name: array.shape for name, array in read_headers(arguments.inputs).items()}
            request = replace(request, shapes={**given, **request.shapes})
        found = _of_session(path, request, arguments, fed, observed)
        spread = None
        if arguments.observe and observed is not None:
            spread = _spread(path, arguments, observed)
        return replace(found, observed=spread)
    except Exception:  # noqa: BLE001 - whatever it is, the measurement stands
        return None


def _spread(path: str, arguments: Namespace, observed: Observed) -> ObservedMemory | None:
    """The figures of the measured run and of other observed ones."""
    from onnxmem.analysis.analysis import analyze

    found = analyze(
        path,
        runtimes=[f"ort-{arguments.device}"],
        graph=arguments.graph,
        values=dict(arguments.values),
        observed=observed,
    )
    return found.observed


def _of_session(
    path: str,
    request: Request,
    arguments: Namespace,
    fed: Mapping[str, Values],
    observed: Observed | None = None,
) -> Predicted:
    """The prediction for a session with the options of the command line."""
    from onnxmem.analysis.json_rows import predicted_by
    from onnxmem.measuring.measuring import no_progress
    from onnxmem.model.files import load
    from onnxmem.model.observed import NO_RUN
    from onnxmem.runtimes.from_settings import predict
    from onnxmem.runtimes.onnxruntime.memory import SessionRequest

    question = SessionRequest(
        name=f"ort-{arguments.device}",
        graph=arguments.graph,
        options=_settings(arguments, no_progress).options,
        values=fed,
        observed=NO_RUN if observed is None else observed.runs[0],
    )
    return predicted_by(predict(load(path), request, question))


def _settings(arguments: Namespace, show: Callable[[str], None]) -> MeasureSettings:
    from onnxmem.measuring.measuring import MeasureSettings
    from onnxmem.runtimes.onnxruntime.session_options import LEVELS

    level = LEVELS[arguments.graph]
    options = arena_options(arguments, level=level, fixed_dims=arguments.fixed_dims)
    return MeasureSettings(
        provider=arguments.device,
        runs=arguments.runs,
        options=options,
        inputs_npz=arguments.inputs,
        values=dict(arguments.values),
        seconds=arguments.timeout,
        memory_bytes=arguments.memory_bytes,
        one_of_several=len(arguments.models) > 1,
        progress=show,
    )


def _progress_line(path: str, *, is_quiet: bool) -> Callable[[str], None]:
    """A function that rewrites one line of a terminal with the current step; ``""`` clears it."""
    from onnxmem.measuring.measuring import no_progress

    if is_quiet or not is_watched():
        return no_progress

    def show(step: str) -> None:
        text = f"{shortened(path)}: {step} ..." if step else ""
        notify(f"\r\x1b[K{text}", end="")

    return show


def _text(outcomes: list[Outcome], arguments: Namespace) -> str:
    """The measurements one after another; failures were reported on stderr."""
    from onnxmem.report.measured import render_measured, render_nodes

    return "\n\n".join(
        render_measured(path, *found) + (f"\n{render_nodes(*found)}" if arguments.layers else "")
        for path, found in outcomes
        if not isinstance(found, Fault)
    )


def _json(outcomes: list[Outcome], arguments: Namespace) -> str:
    from onnxmem.analysis.json_rows import document, document_text

    content: JsonDict = {
        "models": [_row(path, found, with_layers=arguments.layers) for path, found in outcomes],
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))


def _row(
    path: str, found: tuple[Measurement, Predicted | None] | Fault, *, with_layers: bool
) -> JsonDict:
    from onnxmem.analysis.json_rows import (
        measured_row,
        node_rows,
        observed_rows,
        predicted_row,
    )

    row: JsonDict = {"path": printable(path), "status": "ok", "error": None}
    row |= {"measured": None, "predicted": None}
    if isinstance(found, Fault):
        error = {"code": found.code, "message": printable(found.message)}
        return row | {"status": "error", "error": error, "layers": None, "findings": []}
    measurement, predicted = found
    findings = _finding_rows(measurement.findings)
    nodes = node_rows(measurement, predicted) if with_layers else None
    return row | {
        "measured": measured_row(measurement, predicted),
        "predicted": predicted_row(predicted, measurement),
        "layers": nodes,
        "findings": findings,
        **({} if predicted is None else observed_rows(predicted.observed)),
    }


def _finding_rows(findings: Iterable[Finding]) -> list[JsonDict]:
    return [
        {"code": each.code, "message": printable(each.message), "node": each.node}
        for each in findings
    ]
