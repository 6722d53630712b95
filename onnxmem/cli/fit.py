"""``onnxmem fit MODEL... --device NAME|SIZE``: whether it fits, and how far it goes."""

from argparse import Namespace
from typing import Final

from onnxmem.analysis.fitting.answering import FitRequest, fit
from onnxmem.analysis.fitting.holding import Deployment, on_device, request_of
from onnxmem.analysis.fitting.verdicts import Verdict, basis_for
from onnxmem.analysis.json_rows import Row, document, document_text
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.cli.answers import refuse_two_answers
from onnxmem.cli.faults import tell
from onnxmem.cli.output import (
    check_output,
    in_colour,
    settle_json,
    write_result,
)
from onnxmem.cli.questions import devices_asked, step_questions, verdict_questions
from onnxmem.cli.unused import refuse_unused_of_fit
from onnxmem.decisions.devices import Catalog, Device
from onnxmem.decisions.fit import at_context, fit_at, rank
from onnxmem.errors import (
    EXIT_GATE_FAILED,
    EXIT_OK,
    EXIT_UNANALYSED,
    UsageError,
    fault_of,
    printable,
    shortened,
)
from onnxmem.kv_cache.steps import Step
from onnxmem.report.devices import ranking_rows, render_ranking
from onnxmem.report.fit import Target, fit_row, render_fit
from onnxmem.report.verdict import fits_row
from onnxmem.settings import Settings

SCHEMA: Final = "onnxmem.fit"
SCHEMA_VERSION: Final = "1.0"
_CODES: Final = {
    Verdict.FITS: EXIT_OK,
    Verdict.TIGHT: EXIT_OK,
    Verdict.OVER: EXIT_GATE_FAILED,
    Verdict.UNKNOWN: EXIT_UNANALYSED,
}


def run(arguments: Namespace) -> int:
    """Hold the models, all together, against one device or against every device."""
    check_output(arguments.output, arguments.models, force=arguments.force)
    refuse_two_answers(arguments)
    settle_json(arguments)
    place = None if arguments.which_device else _place(arguments)
    known = devices_asked(arguments) if place is None else None
    settings, free = _settings(arguments), _free_dim(arguments)
    refuse_unused_of_fit(arguments, None if place is None else place.device)
    path = None
    try:
        questions = []
        for path in arguments.models:
            questions.append(request_of(path, settings))  # noqa: PERF401 - a fault names its path
        path = arguments.models[0] if len(arguments.models) == 1 else None
        if place is None:
            verdict, text, row = _ranked(questions, known or devices_asked(arguments), arguments)
        else:
            verdict, text, row = _answered(questions, place, free, arguments)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the fault of a model, told as such
        fault = fault_of(error)
        if arguments.json:
            told: Row = {"code": fault.code, "message": printable(fault.message)}
            write_result(_document(arguments, {"status": "error", "error": told}), arguments)
        return tell(fault, error, path)
    text = _document(arguments, row) if arguments.json else in_colour(text, arguments)
    write_result(text, arguments)
    return _CODES[verdict]


def _answered(
    questions: list[AnalysisRequest], place: Target, free: str | None, arguments: Namespace
) -> tuple[Verdict, str, Row]:
    device, train = place.device, arguments.train
    kind = None if device is None else device.kind
    setup = FitRequest(
        memory_bytes=place.memory_bytes,
        reserve_bytes=arguments.reserve_bytes,
        flash_bytes=None if device is None else device.flash_bytes,
        basis=basis_for(kind, train=train, runtime=arguments.runtime, basis=arguments.basis),
        accepted=frozenset(arguments.accepted),
        fleet=_fleet(arguments),
        dim=free,
    )
    if device is not None:
        questions = [on_device(question, device.cpu, setup.basis) for question in questions]
    asked = arguments.contexts
    answer, contexts = fit_at(questions, setup, asked) if asked else (fit(questions, setup), None)
    text = render_fit(answer, place, questions, contexts)
    return answer.verdict, text, {"error": None, **fit_row(answer, place, contexts)}


def _ranked(
    questions: list[AnalysisRequest], devices: Catalog, arguments: Namespace
) -> tuple[Verdict, str, Row]:
    setup = FitRequest(
        memory_bytes=0,
        reserve_bytes=arguments.reserve_bytes,
        accepted=frozenset(arguments.accepted),
        fleet=_fleet(arguments),
    )
    if arguments.contexts:
        questions = at_context(questions, arguments.contexts[0], Step.DECODE)
    ranked = rank(questions, devices.devices, setup, arguments.runtime)
    verdicts = {each.verdict for each in ranked}
    order = (Verdict.FITS, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.OVER)
    verdict = next((each for each in order if each in verdicts), Verdict.OVER)
    status = "partial" if Verdict.UNKNOWN in verdicts else "ok"
    row: Row = {
        "status": status,
        "error": None,
        "fits": fits_row(verdict),
        "verdict": verdict.value,
        "devices": ranking_rows(ranked),
    }
    return verdict, render_ranking(ranked, questions), row


def _place(arguments: Namespace) -> Target:
    """The device, or a size alone.

    :raises UsageError: none is named, or what is named is neither.
    """
    name = arguments.device
    if name is None:
        message = "name a device or a size: --device 'RTX 4090', --device 24GiB; or --which-device"
        raise UsageError(message)
    found = devices_asked(arguments).device_or_size(name)
    if isinstance(found, Device):
        return Target(found.name, found.limit_bytes, found)
    return Target(shortened(name), found, None)


def _free_dim(arguments: Namespace) -> str | None:
    """The one dim whose largest number is sought, where it is not the batch.

    :raises UsageError: there are several, or one on every device.
    """
    free = [name for name, number in arguments.dims if number is None]
    if len(set(free)) > 1:
        message = f"one dim at a time can be free: --dim {shortened(free[0])}=? is given already"
        raise UsageError(message)
    if free and arguments.which_device:
        message = "--which-device ranks at one size: give the dim a number"
        raise UsageError(message)
    return free[0] if free else None


def _fleet(arguments: Namespace) -> Deployment:
    if arguments.train and arguments.share_weights:
        message = "--share-weights: trainings share no weights"
        raise UsageError(message)
    return Deployment(instances=arguments.instances, shares_weights=arguments.share_weights)


def _settings(arguments: Namespace) -> Settings:
    return Settings(
        **step_questions(arguments),
        **verdict_questions(arguments),
        fixed_dims=arguments.fixed_dims,
        asks_onnxruntime=arguments.ask_onnxruntime,
        one_of_several=len(arguments.models) > 1,
    )


def _document(arguments: Namespace, row: Row) -> str:
    content: Row = {
        "models": [printable(path) for path in arguments.models],
        **row,
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))
