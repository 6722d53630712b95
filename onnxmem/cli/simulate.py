"""``onnxmem simulate MODEL --requests FILE``: a process that serves requests for days."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from onnxmem.cli.chosen import arena_options, refuse_contradictions
from onnxmem.cli.observing import add_observed, saved_runs
from onnxmem.cli.options import (
    add_arena_options,
    add_cuda_sizes,
    add_dims,
    add_emulation,
    add_most,
    add_one_model,
    add_requests,
    add_shapes,
    add_text_result_options,
    add_values,
)
from onnxmem.cli.output import (
    WAITING,
    check_output,
    form_of,
    in_color,
    report_fault,
    write_result,
)
from onnxmem.cli.parsing import Parser, add_repeatable, add_size, dim
from onnxmem.errors import EXIT_OK, EXIT_UNANALYZED, Fault, UsageError, fault_of
from onnxmem.settings import CPUS, GRAPHS, NATIVE, RUNTIMES, Settings

if TYPE_CHECKING:
    from onnxmem.analysis.request import AnalysisRequest
    from onnxmem.decisions.serving_advice import ServingAdvice
    from onnxmem.decisions.simulate import ServedModel, Serving, Simulation
    from onnxmem.decisions.sizing import ServedProcess
    from onnxmem.model.observed import Observed
    from onnxmem.model.requests import Requests

_OBSERVE: Final = (
    "runs are observed by onnxmem MODEL --dim NAME=N --observe FILE --save-observed SEEN.json, "
    "which --observed takes, one file for each shape of the requests"
)
_SIZED: Final = ("k8s", "triton", "json")
SCHEMA: Final = "onnxmem.simulation"
SCHEMA_VERSION: Final = "1.0"


def simulate_parser() -> ArgumentParser:
    """The flags of ``onnxmem simulate``."""
    parser = Parser(
        "simulate",
        "MODEL [--requests FILE|RANGES] [options]",
        "Say what a long-running process of onnxruntime takes: its arena keeps what the largest "
        "requests so far needed, and the order of requests decides how much that is.",
        run,
    )
    model = add_one_model(parser)
    add_dims(model)
    add_shapes(model)
    add_values(model)
    add_most(model)
    add_observed(parser.add_argument_group("data-dependent dims"))
    add_requests(parser)
    _add_session(parser)
    advice = parser.add_argument_group("advice")
    advice.add_argument(
        "--advise",
        action="store_true",
        help="replay settings of the session, the largest request first and padded lengths too, "
        "and show these in place of the timeline",
    )
    advice.add_argument(
        "--emit",
        choices=("python", *_SIZED),
        help="write the best settings as onnxruntime's Python; or the memory of a pod that serves "
        "this with these settings, with --advise the best ones, as a patch for Kubernetes, as "
        "Triton's instance groups, or as JSON",
    )
    _add_pod(parser)
    add_text_result_options(parser)
    parser.refused = {"--observe": _OBSERVE}
    return parser


def _add_pod(parser: ArgumentParser) -> None:
    pod = parser.add_argument_group("pod, with --emit k8s, triton or json")
    add_repeatable(
        pod,
        "--beside",
        "beside",
        ("FILE.json", "a model that each process serves too: what simulate --json wrote of it"),
    )
    pod.add_argument(
        "--workers", type=dim, metavar="N", help="such processes in the pod (default: 1)"
    )
    pod.add_argument(
        "--preload",
        action="store_true",
        help="the workers are forked from a process that has loaded the sessions, as with gunicorn "
        "--preload",
    )


def _add_session(parser: ArgumentParser) -> None:
    session = parser.add_argument_group("session of onnxruntime")
    session.add_argument(
        "--runtime", choices=RUNTIMES, default=RUNTIMES[0], help=f"default: {RUNTIMES[0]}"
    )
    session.add_argument(
        "--graph",
        choices=GRAPHS,
        default="ort-all",
        metavar="LEVEL",
        help=f"optimization: {', '.join(GRAPHS)} (default: ort-all)",
    )
    add_emulation(session)
    session.add_argument("--cpu", choices=CPUS, default=NATIVE, help=f"default: {NATIVE}")
    session.add_argument(
        "--cores",
        type=dim,
        metavar="N",
        help="cores that runs at once share (default: this machine's)",
    )
    add_arena_options(session)
    add_cuda_sizes(session)
    add_size(session, "--gpu-mem-limit", "gpu_mem_limit of ort-cuda", dest="gpu_mem_limit_bytes")


def run(arguments: Namespace) -> int:
    """Simulate the process; a model that fails is a fault."""
    from onnxmem.analysis.json_rows import document, document_text
    from onnxmem.report.simulation import failed_row, render_simulation, simulation_row

    read = [*filter(None, (arguments.model, arguments.requests)), *arguments.beside]
    check_output(arguments.output, read, force=arguments.force)
    refuse_contradictions(arguments)
    form = form_of(arguments.output, "json" if arguments.json else None, ("text", "json"))
    if arguments.emit is not None and arguments.json:
        message = "--emit and --json: two forms of one result; --advise --json has the code too"
        raise UsageError(message)
    _refuse_without_pod(arguments)
    beside = _beside(arguments)
    code = EXIT_OK
    try:
        if arguments.emit is not None:
            text, code = _emitted(arguments, beside)
            write_result(text, arguments)
            return code
        found, advice = _simulated(arguments)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the fault of a model, reported as such
        fault = fault_of(error)
        code = report_fault(fault, error, arguments.model)
        if form == "text":
            return code
        row = failed_row(arguments.model, fault.code, fault.message)
    else:
        if form == "text":
            text = render_simulation(arguments.model, found, advice)
            write_result(in_color(text, arguments), arguments)
            return code
        row = simulation_row(arguments.model, found, advice)
    text = document_text(document(SCHEMA, SCHEMA_VERSION, {"models": [row]}))
    write_result(text, arguments)
    return code


def _simulated(arguments: Namespace) -> tuple[Simulation, ServingAdvice | None]:
    from onnxmem.decisions.serving_advice import advise_serving
    from onnxmem.decisions.simulate import simulate

    asked = _asked(arguments)
    # Of both: a shape is planned once for all settings.
    model = _served(asked, saved_runs(arguments.observed))
    found = simulate(*asked, model)
    return found, advise_serving(*asked, model) if arguments.advise else None


def _served(
    asked: tuple[AnalysisRequest, Requests, Serving], observed: list[Observed]
) -> ServedModel:
    from onnxmem.decisions.simulate import ServedModel

    request, requests, serving = asked
    return ServedModel.of(request, requests, serving.options, WAITING.say, observed)


def _refuse_without_pod(arguments: Namespace) -> None:
    """Refuse options of a pod where none is written.

    :raises UsageError: with the flag.
    """
    if arguments.emit in _SIZED:
        return
    for name in ("beside", "workers", "preload"):
        if getattr(arguments, name):
            message = f"--{name}: no effect without --emit k8s, triton or json"
            raise UsageError(message)


def _beside(arguments: Namespace) -> tuple[ServedProcess, ...]:
    """The other models of each process; what is no pod is refused before anything is simulated.

    :raises OnnxmemError: a file is not a simulation, or there are too many workers.
    """
    if arguments.emit not in _SIZED:
        return ()
    from onnxmem.decisions.sizing import read_process, refuse_workers

    refuse_workers(arguments.workers or 1)
    return tuple(map(read_process, arguments.beside))


def _sized(arguments: Namespace, beside: tuple[ServedProcess, ...]) -> tuple[str, int]:
    """A pod in the form that is requested, and the exit code: its limit may be a lower bound."""
    from onnxmem.decisions.serving_advice import advise_serving
    from onnxmem.decisions.simulate import simulate
    from onnxmem.decisions.sizing import SIZERS, ServedProcess, Sizing

    request, requests, serving = asked = _asked(arguments)
    observed = saved_runs(arguments.observed)
    model = _served(asked, observed)
    if arguments.advise:
        best = advise_serving(*asked, model).best_setting
        serving = replace(serving, options=best.options)
        # Without reuse of buffers it has another plan.
        model = _served((request, requests, serving), observed)
    found = simulate(request, requests, serving, model)
    processes = (ServedProcess.of(arguments.model, found), *beside)
    pod = Sizing(processes, arguments.workers or 1, is_forked=arguments.preload)
    code = EXIT_OK if pod.is_complete else _report_least("limit", arguments)
    return SIZERS[arguments.emit](pod), code


def _report_least(what: str, arguments: Namespace) -> int:
    """Say that what is written leaves something out; the exit code."""
    message = f"the {what} is a lower bound, and may end the pod; measure --requests shows more"
    return report_fault(Fault("partial", message, EXIT_UNANALYZED), path=arguments.model)


def _emitted(arguments: Namespace, beside: tuple[ServedProcess, ...]) -> tuple[str, int]:
    """The best settings of the session as a Python program, or a pod; and the exit code."""
    if arguments.emit in _SIZED:
        return _sized(arguments, beside)
    from onnxmem.decisions.advise.emitting import session_code
    from onnxmem.decisions.serving_advice import advise_serving

    asked = _asked(arguments)
    model = _served(asked, saved_runs(arguments.observed))
    advice = advise_serving(*asked, model)
    own, best = advice.own, advice.best_setting
    saved = (
        f"process: {best.process_peak_bytes:,} B at most instead of {own.process_peak_bytes:,} B, "
        f"arena: {best.reserved_peak_bytes:,} B instead of {own.reserved_peak_bytes:,} B"
    )
    load = f"requests: {asked[1].source}, {arguments.concurrency} at once in each session"
    notes, code = [saved, load], EXIT_OK
    if not model.is_complete:
        notes.append("lower bounds: both leave out what is unknown of a run")
        code = _report_least("figure", arguments)
    return session_code(arguments.model, arguments.runtime, best.lines, tuple(notes)), code


def _asked(arguments: Namespace) -> tuple[AnalysisRequest, Requests, Serving]:
    from onnxmem.analysis.fitting.footprints import request_of
    from onnxmem.model.requests import read_requests

    requests = read_requests(arguments.requests, arguments.num_requests, arguments.seed)
    settings = Settings(
        dims=dict(arguments.dims),
        shapes=dict(arguments.shapes),
        values=dict(arguments.values),
        most=dict(arguments.most),
        runtimes=(arguments.runtime,),
        graph=arguments.graph,
        asks_onnxruntime=not arguments.emulate_optimizer,
        cpu=arguments.cpu,
        cuda_context_bytes=arguments.cuda_context_bytes,
        cuda_workspace_bytes=arguments.cuda_workspace_bytes,
    )
    return request_of(arguments.model, settings), requests, _serving(arguments)


def _serving(arguments: Namespace) -> Serving:
    from onnxmem.decisions.simulate import Serving

    if arguments.shared_arena and arguments.runtime != RUNTIMES[0]:
        message = f"--shared-arena: of the CPU's arena; it needs --runtime {RUNTIMES[0]}"
        raise UsageError(message)
    options = arena_options(arguments, gpu_mem_limit_bytes=arguments.gpu_mem_limit_bytes)
    return Serving(
        concurrency=arguments.concurrency,
        sessions=arguments.sessions,
        options=options,
        **({} if arguments.cores is None else {"cores": arguments.cores}),
    )
