"""``onnxmem advise MODEL...``: settings of a session that take less memory on this model."""

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from onnxmem import __version__
from onnxmem.commands.answers import refuse_two_answers
from onnxmem.commands.faults import Fault, fault_of, tell
from onnxmem.commands.output import check_output, write_file, write_stdout
from onnxmem.errors import worst_exit_code
from onnxmem.escaping import printable
from onnxmem.model import load
from onnxmem.report.advice import render_advice
from onnxmem.rows import Row
from onnxmem.runtimes import Advice, Choice, advise
from onnxmem.settings import Settings

SCHEMA: Final = "onnxmem.advice"
SCHEMA_VERSION: Final = "1.0"
_DEFAULT: Final = "ort-cpu"
Outcome = tuple[str, str, Advice | Fault]
"""Path, runtime, and what there is to say."""


def run(arguments: Namespace) -> int:
    """Advise on every model in order; one that fails costs no other its advice."""
    check_output(arguments.output, arguments.models, force=arguments.force)
    refuse_two_answers(arguments)
    codes: list[int] = []
    outcomes = list(_outcomes(arguments, codes))
    text = _json(outcomes) if arguments.json else _text(outcomes)
    if arguments.output is None:
        write_stdout(text)
    else:
        write_file(text, arguments.output, quiet=arguments.quiet)
    return worst_exit_code(codes)


def _outcomes(arguments: Namespace, codes: list[int]) -> Iterator[Outcome]:
    """Advice for each model on each runtime asked for."""
    for path in arguments.models:
        for runtime in dict.fromkeys(arguments.runtimes or (_DEFAULT,)):
            try:
                yield path, runtime, advise(load(path), _settings(arguments, runtime))
            except Exception as error:  # noqa: BLE001 - a fault of any kind is this model's alone
                fault = fault_of(error)
                codes.append(tell(fault, error, path))
                yield path, runtime, fault


def _settings(arguments: Namespace, runtime: str) -> Settings:
    return Settings(
        batch=arguments.batch,
        dims=dict(arguments.dims),
        shapes=dict(arguments.shapes),
        values=dict(arguments.values),
        runtimes=(runtime,),
        graph=arguments.graph,
        fixed_dims=arguments.fixed_dims,
        cuda_context_bytes=arguments.cuda_context_bytes,
        cuda_workspace_bytes=arguments.cuda_workspace_bytes,
        asks_onnxruntime=not arguments.emulate_optimiser,
    )


def _text(outcomes: list[Outcome]) -> str:
    """The tables one after another; failures have been told on stderr."""
    return "\n".join(
        render_advice(path, found.runtime, found.singles)
        for path, _, found in outcomes
        if isinstance(found, Advice)
    )


def _json(outcomes: list[Outcome]) -> str:
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "onnxmem", "version": __version__},
        "models": [_row(*outcome) for outcome in outcomes],
    }
    return json.dumps(document, indent=1) + "\n"


def _row(path: str, runtime: str, found: Advice | Fault) -> Row:
    row: Row = {"path": printable(path), "status": "ok", "error": None, "runtime": runtime}
    if isinstance(found, Fault):
        error = {"code": found.code, "message": printable(found.message)}
        empty: Row = {"combinations": [], "single_changes": [], "findings": []}
        return row | {"status": "error", "error": error} | empty
    return row | {
        "combinations": [_choice(choice) for choice in found.runtime.advice],
        "single_changes": [_choice(choice) for choice in found.singles],
        "findings": [
            {"code": finding.code, "message": printable(finding.message)}
            for finding in found.runtime.findings
        ],
    }


def _choice(choice: Choice) -> Row:
    return {
        "changes": list(choice.changes),
        "lines": list(choice.lines),
        "resident_bytes": choice.resident_bytes,
        "requested_peak_bytes": choice.figures.requested_peak_bytes,
        "held_steady_bytes": choice.figures.held_steady_bytes,
    }
