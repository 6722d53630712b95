"""``onnxmem measure MODEL...``: what each model takes when onnxruntime runs it."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from onnxmem.analysis.json_rows import (
    Predicted,
    Row,
    document,
    document_text,
    measured_row,
    node_rows,
    predicted_by,
)
from onnxmem.cli.answers import refuse_two_answers
from onnxmem.cli.faults import tell
from onnxmem.cli.output import (
    check_output,
    in_colour,
    settle_json,
    write_result,
)
from onnxmem.errors import (
    EXIT_UNANALYSED,
    Fault,
    Finding,
    fault_of,
    printable,
    shortened,
    worst_exit_code,
)
from onnxmem.measure.inputs import read_headers
from onnxmem.measure.measurement import Measurement
from onnxmem.measure.measuring import MeasureSettings, measure, no_progress
from onnxmem.model.binding import Request
from onnxmem.model.files import load
from onnxmem.report.measured import render_measured, render_nodes
from onnxmem.runtimes.asking import predict
from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions
from onnxmem.settings import Values

SCHEMA: Final = "onnxmem.measurement"
SCHEMA_VERSION: Final = "1.0"
_OF_ARENA: Final = (
    *("requested_peak_bytes", "with_scratch_peak_bytes", "pattern_block_bytes", "base_bytes"),
    *("in_use_peak_bytes", "held_bytes", "held_steady_bytes"),
)
Outcome = tuple[str, tuple[Measurement, Predicted | None] | Fault]


def run(arguments: Namespace) -> int:
    """Measure every model in order, one that fails costs no other its row; then write them."""
    check_output(arguments.output, arguments.models, force=arguments.force)
    refuse_two_answers(arguments)
    settle_json(arguments)
    codes: list[int] = []
    outcomes = list(_outcomes(arguments, codes))
    text = _json(outcomes, arguments) if arguments.json else _text(outcomes, arguments)
    write_result(in_colour(text, arguments), arguments)
    return worst_exit_code(codes)


def _outcomes(arguments: Namespace, codes: list[int]) -> Iterator[Outcome]:
    for path in arguments.models:
        outcome = _outcome(path, arguments)
        fault = outcome if isinstance(outcome, Fault) else _left_out(outcome[0], arguments)
        if fault is not None:
            codes.append(tell(fault, path=path))
        yield path, outcome


def _left_out(measurement: Measurement, arguments: Namespace) -> Fault | None:
    """With ``--strict`` a figure of the arena that could not be measured is a fault."""
    if not arguments.strict or None not in (getattr(measurement, name) for name in _OF_ARENA):
        return None
    message = "figures of the arena could not be measured; see FINDINGS"
    return Fault("partial", message, EXIT_UNANALYSED)


def _outcome(path: str, arguments: Namespace) -> tuple[Measurement, Predicted | None] | Fault:
    request = Request(arguments.batch, dict(arguments.dims), dict(arguments.shapes))
    show = _progress_line(path, is_quiet=arguments.quiet)
    try:
        found = measure(path, request, _settings(arguments, show))
    except Exception as error:  # noqa: BLE001 - every fault is told with the model's name
        return fault_of(error)
    finally:
        show("")
    if isinstance(found, Finding):
        return Fault(found.code, found.message, EXIT_UNANALYSED)
    return found, _predicted(path, request, arguments, found.fed)


def _predicted(
    path: str, request: Request, arguments: Namespace, fed: Mapping[str, Values]
) -> Predicted | None:
    """What is said without a run, of the values that were fed; ``None`` where that fails, for the
    measurement stands.
    """
    question = RuntimeQuestion(
        name=f"ort-{arguments.device}",
        graph=arguments.graph,
        options=_settings(arguments, no_progress).options,
        values=fed,
    )
    try:
        if arguments.inputs is not None:
            given = {name: array.shape for name, array in read_headers(arguments.inputs).items()}
            request = replace(request, shapes={**given, **request.shapes})
        return predicted_by(predict(load(path), request, question))
    except Exception:  # noqa: BLE001 - whatever it is, what was measured is told
        return None


def _settings(arguments: Namespace, show: Callable[[str], None]) -> MeasureSettings:
    options = SessionOptions(
        level=LEVELS[arguments.graph],
        fixed_dims=arguments.fixed_dims,
        enable_mem_pattern=not arguments.no_mem_pattern,
        enable_mem_reuse=not arguments.no_mem_reuse,
    )
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
    """What rewrites one line of a terminal with the step at hand, and clears it for ``""``."""
    if is_quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return no_progress

    def show(step: str) -> None:
        text = f"{shortened(path)}: {step} ..." if step else ""
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return show


def _text(outcomes: list[Outcome], arguments: Namespace) -> str:
    """The measurements one after another; failures have been told on stderr."""
    return "\n\n".join(
        render_measured(path, *found) + (f"\n{render_nodes(*found)}" if arguments.layers else "")
        for path, found in outcomes
        if not isinstance(found, Fault)
    )


def _json(outcomes: list[Outcome], arguments: Namespace) -> str:
    content: Row = {
        "models": [_row(path, found, with_layers=arguments.layers) for path, found in outcomes],
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))


def _row(
    path: str, found: tuple[Measurement, Predicted | None] | Fault, *, with_layers: bool
) -> Row:
    row: Row = {"path": printable(path), "status": "ok", "error": None, "measured": None}
    if isinstance(found, Fault):
        error = {"code": found.code, "message": printable(found.message)}
        return row | {"status": "error", "error": error, "layers": None, "findings": []}
    measurement, predicted = found
    findings = [
        {"code": finding.code, "message": printable(finding.message), "node": finding.node}
        for finding in measurement.findings
    ]
    nodes = node_rows(measurement) if with_layers else None
    return row | {
        "measured": measured_row(measurement, predicted),
        "layers": nodes,
        "findings": findings,
    }
