"""``onnxmem advise MODEL...``: what would lower a model's memory, and what it saves."""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from onnxmem.analysis.json_rows import Row, document, document_text
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.cli.answers import refuse_two_answers
from onnxmem.cli.faults import tell
from onnxmem.cli.output import check_output, form_of, settle_json, write_result
from onnxmem.cli.questions import step_questions, verdict_questions
from onnxmem.cli.unused import refuse_unused_options
from onnxmem.decisions.advise.advising import Advised, advised
from onnxmem.decisions.advise.emitting import EMITTERS, settled
from onnxmem.errors import (
    EXIT_GATE_FAILED,
    EXIT_UNANALYSED,
    Fault,
    UsageError,
    fault_of,
    printable,
    worst_exit_code,
)
from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile, load
from onnxmem.model.input_values import refuse_unknown_names
from onnxmem.report.advice import advice_row, render_advice, render_proposals
from onnxmem.report.text import finding_rows
from onnxmem.runtimes.asking import Advice, advise
from onnxmem.runtimes.onnxruntime.advice import Choice
from onnxmem.settings import Settings
from onnxmem.units import format_bytes

SCHEMA: Final = "onnxmem.advice"
SCHEMA_VERSION: Final = "1.1"
_DEFAULT: Final = "ort-cpu"


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to say of a model on a runtime."""

    path: str
    settings: Settings
    advice: Advised
    session: Advice | None
    """``None`` for a training step: no runtime is asked about."""


Outcome = tuple[str, str | None, Found | Fault]
"""Path, runtime, and what there is to say."""


def run(arguments: Namespace) -> int:
    """Advise on every model in order; one that fails costs no other its advice."""
    check_output(arguments.output, arguments.models, force=arguments.force)
    refuse_two_answers(arguments)
    if arguments.emit is None:
        settle_json(arguments)
    else:
        form_of(arguments.output, arguments.emit, ())
    runtimes = _runtimes(arguments)
    refuse_unused_options(arguments, _of_step(_settings(arguments, runtimes[0])))
    if arguments.emit is not None:
        _check_emit(arguments, runtimes)
    codes: list[int] = []
    outcomes = list(_outcomes(arguments, runtimes, codes))
    text = _written(arguments, outcomes)
    if text or arguments.output is None:
        write_result(text, arguments)
    return worst_exit_code([*codes, *_unmet(outcomes)])


def _unmet(outcomes: Iterable[Outcome]) -> Iterator[int]:
    """Tell of budgets that nothing meets, or of which that is not known."""
    for path, _, found in outcomes:
        plan = found.advice.plan if isinstance(found, Found) else None
        if plan is None or plan.is_met:
            continue
        budget = format_bytes(plan.budget_bytes)
        if plan.is_met is None:
            message = f"whether it fits {budget} is unknown; see the notes"
            yield tell(Fault("unknown", message, EXIT_UNANALYSED), path=path)
        else:
            message = f"nothing that is advised meets the budget of {budget}"
            yield tell(Fault("over-budget", message, EXIT_GATE_FAILED), path=path)


def _runtimes(arguments: Namespace) -> tuple[str | None, ...]:
    named = tuple(dict.fromkeys(arguments.runtimes))
    return named or ((None,) if arguments.train else (_DEFAULT,))


def _check_emit(arguments: Namespace, runtimes: tuple[str | None, ...]) -> None:
    if arguments.json:
        message = "--emit and --json: two forms of one result; --emit json is a settings file"
        raise UsageError(message)
    if len(arguments.models) * len(runtimes) > 1:
        message = "--emit: the settings of one model on one runtime; name one of each"
        raise UsageError(message)


def _written(arguments: Namespace, outcomes: list[Outcome]) -> str:
    if arguments.emit is None:
        return _json(outcomes) if arguments.json else _text(outcomes)
    emit = EMITTERS[arguments.emit]
    return "".join(
        emit(settled(found.advice, found.session))
        for _, _, found in outcomes
        if isinstance(found, Found)
    )


def _outcomes(
    arguments: Namespace, runtimes: tuple[str | None, ...], codes: list[int]
) -> Iterator[Outcome]:
    """Advice for each model on each runtime asked for."""
    for path in arguments.models:
        for runtime in runtimes:
            try:
                settings = _settings(arguments, runtime)
                yield path, runtime, _found(load(path), settings, arguments, runtime)
            except Exception as error:  # noqa: BLE001 - a fault of any kind is this model's alone
                fault = fault_of(error)
                codes.append(tell(fault, error, path))
                yield path, runtime, fault


def _found(file: ModelFile, settings: Settings, arguments: Namespace, runtime: str | None) -> Found:
    session = None if runtime is None or settings.train else advise(file, settings)
    asked = replace(settings, runtimes=(), graph=None if settings.train else settings.graph)
    if not settings.one_of_several:
        refuse_unknown_names(file.proto, settings.dims, settings.values)
    question = AnalysisRequest(file, prepare(file), asked, file)
    named = runtime if arguments.runtimes else None
    advice = advised(question, budget_bytes=arguments.budget_bytes, runtime=named, session=session)
    return Found(file.path, settings, advice, session)


def _settings(arguments: Namespace, runtime: str | None) -> Settings:
    return Settings(
        **step_questions(arguments),
        **verdict_questions(arguments),
        runtimes=() if runtime is None else (runtime,),
        graph=arguments.graph,
        fixed_dims=arguments.fixed_dims,
        asks_onnxruntime=not arguments.emulate_optimiser,
        one_of_several=len(arguments.models) > 1,
    )


def _of_step(settings: Settings) -> Settings:
    """The same without the runtime where a training step is advised on, which asks none."""
    return replace(settings, runtimes=()) if settings.train else settings


def _text(outcomes: list[Outcome]) -> str:
    """The advice of each model one after another; failures have been told on stderr."""
    parts = []
    for path, _, found in outcomes:
        if isinstance(found, Found):
            parts.append(render_proposals(path, found.advice, _assumptions(found)))
            if found.session is not None:
                session = found.session
                parts.append(render_advice(path, session.runtime, session.singles))
    return "\n".join(parts)


def _assumptions(found: Found) -> list[str]:
    bound = found.advice.subject.terms().bound
    recipe, symbols = found.settings.recipe, found.advice.subject.request.prepared.batch_symbols
    training = ("training", f"optimizer {recipe.optimizer}", f"precision {recipe.precision}")
    batch = bound.binding.batch
    return [
        *(training if found.settings.train else ("inference",)),
        "no batch" if batch is None else f"batch {batch}",
        *(f"{name} = {n}" for name, n in bound.binding.dims.items() if name not in symbols),
    ]


def _json(outcomes: list[Outcome]) -> str:
    content: Row = {
        "models": [_row(*outcome) for outcome in outcomes],
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))


def _row(path: str, runtime: str | None, found: Found | Fault) -> Row:
    row: Row = {"path": printable(path), "status": "ok", "error": None, "runtime": runtime}
    empty: Row = {"combinations": [], "single_changes": [], "findings": []}
    if isinstance(found, Fault):
        error = {"code": found.code, "message": printable(found.message)}
        nothing: Row = {"figure": None, "before_bytes": None, "advice": [], "budget": None}
        return row | {"status": "error", "error": error} | empty | nothing
    return row | _session_row(found, empty) | advice_row(found.advice)


def _session_row(found: Found, empty: Row) -> Row:
    session, findings = found.session, found.advice.findings
    if session is None:
        return empty | {"findings": finding_rows(findings)}
    return {
        "combinations": [_choice(choice) for choice in session.runtime.advice],
        "single_changes": [_choice(choice) for choice in session.singles],
        "findings": finding_rows((*findings, *session.runtime.findings)),
    }


def _choice(choice: Choice) -> Row:
    return {
        "changes": list(choice.changes),
        "lines": list(choice.lines),
        "resident_bytes": choice.resident_bytes,
        "requested_peak_bytes": choice.figures.requested_peak_bytes,
        "held_steady_bytes": choice.figures.held_steady_bytes,
    }
