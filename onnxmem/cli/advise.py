"""``onnxmem advise MODEL...``: what would lower a model's memory, and what it saves and costs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from onnxmem.cli.chosen import (
    refuse_contradictions,
    refuse_unused_options,
    step_settings,
    verdict_settings,
)
from onnxmem.cli.observing import add_observed, saved_runs
from onnxmem.cli.options import (
    add_json_option,
    add_model_options,
    add_most,
    add_result_options,
    add_runtime_options,
    add_training_options,
    add_verdict_options,
)
from onnxmem.cli.output import check_output, form_of, report_fault, settle_json, write_result
from onnxmem.cli.parsing import Parser, add_size
from onnxmem.errors import (
    EXIT_GATE_FAILED,
    EXIT_UNANALYZED,
    Fault,
    UsageError,
    fault_of,
    printable,
    worst_exit_code,
)
from onnxmem.settings import Settings
from onnxmem.units import format_limit

if TYPE_CHECKING:
    from onnxmem.analysis.json_rows import JsonDict
    from onnxmem.decisions.advise.advising import Advised
    from onnxmem.model.files import ModelFile
    from onnxmem.model.observed import Observed
    from onnxmem.runtimes.from_settings import Advice
    from onnxmem.runtimes.onnxruntime.advice import Choice

EMITTED: Final = ("python", "json", "triton")
SCHEMA: Final = "onnxmem.advice"
SCHEMA_VERSION: Final = "1.2"
_DEFAULT: Final = "ort-cpu"
Outcome = tuple[str, str | None, "AdvisedModel | Fault"]
"""Path, runtime, and the advice or why there is none."""


@dataclass(frozen=True, slots=True)
class AdvisedModel:
    """A model, and the advice on it for one runtime."""

    path: str
    settings: Settings
    advice: Advised
    session: Advice | None
    """``None`` for a training step, which no runtime is advised for."""


def advise_parser() -> ArgumentParser:
    """The flags of ``onnxmem advise``."""
    parser = Parser(
        "advise",
        "MODEL... [options]",
        "Work out what would lower a model's memory, what it saves and what it costs.",
        run,
    )
    model = add_model_options(parser)
    add_most(model)
    add_observed(model)
    advice = parser.add_argument_group("advice")
    add_size(advice, "--budget", "find what meets it, alone or together, as in 24GiB or 512MiB")
    add_verdict_options(advice)
    advice.add_argument(
        "--emit",
        choices=EMITTED,
        help="write the settings that meet the budget (or the best) as onnxruntime's Python, a "
        "settings file, or lines of Triton's config.pbtxt",
    )
    add_training_options(parser)
    add_runtime_options(parser)
    add_json_option(add_result_options(parser))
    return parser


def run(arguments: Namespace) -> int:
    """Advise on every model in order; one that fails costs no other its advice."""
    check_output(arguments.output, arguments.models, force=arguments.force)
    refuse_contradictions(arguments)
    if arguments.emit is None:
        settle_json(arguments)
    else:
        form_of(arguments.output, arguments.emit, ())
    runtimes = _runtimes(arguments)
    refuse_unused_options(arguments, _of_step(_settings(arguments, runtimes[0])))
    if arguments.emit is not None:
        _check_emit(arguments, runtimes)
    codes: list[int] = []
    observed = saved_runs(arguments.observed)
    outcomes = list(_outcomes(arguments, runtimes, codes, observed))
    text = _written(arguments, outcomes)
    if text or arguments.output is None:
        write_result(text, arguments)
    return worst_exit_code([*codes, *_unmet(outcomes)])


def _unmet(outcomes: Iterable[Outcome]) -> Iterator[int]:
    """Report budgets that nothing meets, or of which that is not known."""
    for path, _, found in outcomes:
        plan = found.advice.plan if isinstance(found, AdvisedModel) else None
        if plan is None or plan.is_met:
            continue
        budget = format_limit(plan.budget_bytes)
        if plan.is_met is None:
            message = f"whether it fits {budget} is unknown; see the notes"
            yield report_fault(Fault("unknown", message, EXIT_UNANALYZED), path=path)
        else:
            message = f"nothing that is advised meets the budget of {budget}"
            yield report_fault(Fault("over-budget", message, EXIT_GATE_FAILED), path=path)


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
    from onnxmem.decisions.advise.emitting import EMITTERS, settled

    if arguments.emit is None:
        return _json(outcomes) if arguments.json else _text(outcomes)
    emit = EMITTERS[arguments.emit]
    return "".join(
        emit(settled(found.advice, found.session))
        for _, _, found in outcomes
        if isinstance(found, AdvisedModel)
    )


def _outcomes(
    arguments: Namespace,
    runtimes: tuple[str | None, ...],
    codes: list[int],
    observed: Sequence[Observed],
) -> Iterator[Outcome]:
    """Advice for each model on each requested runtime."""
    from onnxmem.model.files import load

    for path in arguments.models:
        for runtime in runtimes:
            try:
                settings = _settings(arguments, runtime)
                yield path, runtime, _found(load(path), settings, arguments, runtime, observed)
            except Exception as error:  # noqa: BLE001 - a fault of any kind is this model's alone
                fault = fault_of(error)
                codes.append(report_fault(fault, error, path))
                yield path, runtime, fault


def _found(
    file: ModelFile,
    settings: Settings,
    arguments: Namespace,
    runtime: str | None,
    observed: Sequence[Observed],
) -> AdvisedModel:
    from onnxmem.analysis.request import AnalysisRequest, at_observed
    from onnxmem.decisions.advise.advising import advised
    from onnxmem.model.building import prepare
    from onnxmem.model.input_values import refuse_unknown_names
    from onnxmem.runtimes.from_settings import advise

    settings, seen = at_observed(settings, file, observed)
    session = None if runtime is None or settings.train else advise(file, settings)
    own = replace(settings, runtimes=(), graph=None if settings.train else settings.graph)
    if not settings.one_of_several:
        refuse_unknown_names(file.proto, settings.dims, settings.values)
    request = AnalysisRequest(
        file,
        prepare(file),
        own,
        file,
        observed=seen,
        is_unobserved=bool(observed) and seen is None,
    )
    named = runtime if arguments.runtimes else None
    advice = advised(request, budget_bytes=arguments.budget_bytes, runtime=named, session=session)
    return AdvisedModel(file.path, settings, advice, session)


def _settings(arguments: Namespace, runtime: str | None) -> Settings:
    return Settings(
        **step_settings(arguments),
        **verdict_settings(arguments),
        runtimes=() if runtime is None else (runtime,),
        graph=arguments.graph,
        fixed_dims=arguments.fixed_dims,
        asks_onnxruntime=not arguments.emulate_optimizer,
        one_of_several=len(arguments.models) > 1,
    )


def _of_step(settings: Settings) -> Settings:
    """The same without the runtime where a training step is advised on, which uses none."""
    return replace(settings, runtimes=()) if settings.train else settings


def _text(outcomes: list[Outcome]) -> str:
    """The advice of each model one after another; failures were reported on stderr."""
    from onnxmem.report.advice import render_advice, render_proposals

    parts = []
    for path, _, found in outcomes:
        if isinstance(found, AdvisedModel):
            parts.append(render_proposals(path, found.advice, _assumptions(found)))
            if found.session is not None:
                parts.append(render_advice(path, found.session))
    return "\n".join(parts)


def _assumptions(found: AdvisedModel) -> list[str]:
    bound = found.advice.subject.results().bound
    recipe, symbols = found.settings.recipe, found.advice.subject.request.prepared.batch_symbols
    training = ("training", f"optimizer {recipe.optimizer}", f"precision {recipe.precision}")
    batch = bound.binding.batch
    return [
        *(training if found.settings.train else ("inference",)),
        "no batch" if batch is None else f"batch {batch}",
        *(f"{name} = {n}" for name, n in bound.binding.dims.items() if name not in symbols),
    ]


def _json(outcomes: list[Outcome]) -> str:
    from onnxmem.analysis.json_rows import document, document_text

    content: JsonDict = {
        "models": [_row(*outcome) for outcome in outcomes],
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))


def _row(path: str, runtime: str | None, found: AdvisedModel | Fault) -> JsonDict:
    from onnxmem.report.advice import advice_row

    row: JsonDict = {"path": printable(path), "status": "ok", "error": None, "runtime": runtime}
    empty: JsonDict = {"combinations": [], "single_changes": [], "findings": []}
    if isinstance(found, Fault):
        error = {"code": found.code, "message": printable(found.message)}
        nothing: JsonDict = {"figure": None, "before_bytes": None, "advice": [], "budget": None}
        return row | {"status": "error", "error": error} | empty | nothing
    return row | _session_row(found, empty) | advice_row(found.advice)


def _session_row(found: AdvisedModel, empty: JsonDict) -> JsonDict:
    from onnxmem.report.text import finding_rows

    session, findings = found.session, found.advice.findings
    if session is None:
        return empty | {"findings": finding_rows(findings)}
    return {
        "combinations": [_choice(choice) for choice in session.runtime.advice],
        "single_changes": [_choice(choice) for choice in session.singles],
        "findings": finding_rows((*findings, *session.runtime.findings)),
    }


def _choice(choice: Choice) -> JsonDict:
    return {
        "changes": list(choice.changes),
        "lines": list(choice.lines),
        "resident_bytes": choice.resident_bytes,
        "requested_peak_bytes": choice.figures.requested_peak_bytes,
        "held_steady_bytes": choice.figures.held_steady_bytes,
    }
