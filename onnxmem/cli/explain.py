"""``onnxmem explain WHAT [MODEL]``: what a figure, a code or an out-of-memory message means."""

import sys
from argparse import Namespace
from difflib import get_close_matches
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.analyzing import analyze
from onnxmem.analysis.fitting.holding import request_of
from onnxmem.analysis.json_rows import Row, document, document_text
from onnxmem.cli.answers import refuse_two_answers
from onnxmem.cli.faults import tell
from onnxmem.cli.output import check_output, settle_json, write_result
from onnxmem.cli.questions import step_questions
from onnxmem.cli.unused import refuse_untrained, refuse_unused_options
from onnxmem.decisions.explain.glossary import (
    Metric,
    MetricValue,
    code_named,
    codes,
    metrics,
    metrics_named,
    value_of,
)
from onnxmem.decisions.explain.out_of_memory import OutOfMemory, oom_report, read_message
from onnxmem.errors import UsageError, fault_of, printable, shortened
from onnxmem.report.explain import (
    code_row,
    message_row,
    metric_row,
    render_code,
    render_list,
    render_message,
    render_metric,
)
from onnxmem.settings import Settings

SCHEMA: Final = "onnxmem.explain"
SCHEMA_VERSION: Final = "1.0"
_MOST_CHARACTERS: Final = 1 << 20
"""Of a message on stdin: a log may hold more, and the message stands at its end."""
_ON_CUDA: Final = frozenset({"runtime.context_bytes", "runtime.workspace_bytes"})
Told = tuple[str, list[Row]]


def run(arguments: Namespace) -> int:
    """Say what is meant; a model that fails is a fault."""
    model = arguments.model
    check_output(arguments.output, [model] if model else [], force=arguments.force)
    refuse_two_answers(arguments)
    settle_json(arguments)
    try:
        text, rows = _told(arguments)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the fault of a model, told as such
        return tell(fault_of(error), error, model)
    if arguments.json:
        text = _document(arguments, rows)
    write_result(text, arguments)
    return 0


def _told(arguments: Namespace) -> Told:
    if arguments.what is None:
        rows = [*(metric_row(each, None) for each in metrics()), *map(code_row, codes())]
        return render_list(), rows
    what = _what(arguments)
    code = code_named(what)
    if code is not None:
        return render_code(code), [code_row(code)]
    found = metrics_named(what)
    is_of_step = any(each.needs_training for each in found)
    refuse_untrained(arguments, trains=arguments.train or is_of_step)
    if found:
        return _metrics(found, arguments)
    message = read_message(what)
    if message is None:
        raise UsageError(_unknown(what))
    return _message(message, arguments)


def _what(arguments: Namespace) -> str:
    if arguments.what != "-":
        return str(arguments.what)
    return sys.stdin.read()[-_MOST_CHARACTERS:]


def _unknown(what: str) -> str:
    names = [
        *(each.word for each in codes()),
        *(label for each in metrics() for label in each.labels),
        *(each.key.rpartition(".")[2] for each in metrics()),
    ]
    close = get_close_matches(what.strip(), names, n=3)
    hint = f"did you mean {', '.join(close)}" if close else "onnxmem explain lists what is known"
    return f"{shortened(' '.join(what.split()))}: no figure, code or message that is known; {hint}"


def _metrics(found: tuple[Metric, ...], arguments: Namespace) -> Told:
    values = _values(found, arguments) if arguments.model else [None] * len(found)
    texts = [
        render_metric(metric, arguments.model, value)
        for metric, value in zip(found, values, strict=True)
    ]
    rows = [metric_row(metric, value) for metric, value in zip(found, values, strict=True)]
    return "\n".join(texts), rows


def _values(found: tuple[Metric, ...], arguments: Namespace) -> list[MetricValue | None]:
    analysis = _analysis(found, arguments)
    return [value_of(metric, analysis) for metric in found]


def _analysis(found: tuple[Metric, ...], arguments: Namespace) -> Analysis:
    """With a training step and a runtime where one of the figures is theirs."""
    runtime = "ort-cuda" if _ON_CUDA.issuperset(each.key for each in found) else "ort-cpu"
    needs_runtime = any(each.needs_runtime for each in found)
    asked = step_questions(arguments)
    asked["train"] |= any(each.needs_training for each in found)
    asked |= {
        "runtimes": tuple(arguments.runtimes) or ((runtime,) if needs_runtime else ()),
        "graph": arguments.graph,
        "fixed_dims": arguments.fixed_dims,
        "asks_onnxruntime": not arguments.emulate_optimiser,
    }
    refuse_unused_options(arguments, Settings(**asked, order=arguments.order))
    return analyze(arguments.model, **asked, order=arguments.order, context=arguments.context)


def _message(message: OutOfMemory, arguments: Namespace) -> Told:
    if arguments.model is None:
        return render_message(message, None, None), [message_row(message, None)]
    settings = Settings(**step_questions(arguments))
    inquest = oom_report(message, request_of(arguments.model, settings))
    return render_message(message, arguments.model, inquest), [message_row(message, inquest)]


def _document(arguments: Namespace, rows: list[Row]) -> str:
    content: Row = {
        "model": None if arguments.model is None else printable(arguments.model),
        "explained": rows,
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))
