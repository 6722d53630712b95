"""``onnxmem explain WHAT [MODEL]``: what a figure, a code or an out-of-memory message means."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Final

from onnxmem.cli.options import (
    Parser,
    add_context_option,
    add_dims,
    add_json_option,
    add_order_option,
    add_result_options,
    add_runtime_options,
    add_shapes,
    add_training_options,
    add_values,
    dim,
    refuse_contradictions,
    refuse_untrained,
    refuse_unused_options,
    step_settings,
)
from onnxmem.cli.output import check_output, report_fault, settle_json, write_result
from onnxmem.errors import UsageError, fault_of, printable, shortened
from onnxmem.files import blocks, reason_of
from onnxmem.settings import Settings

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.json_rows import JsonDict
    from onnxmem.decisions.explain.glossary import Metric, MetricValue
    from onnxmem.decisions.explain.messages import OutOfMemory

SCHEMA: Final = "onnxmem.explain"
SCHEMA_VERSION: Final = "1.0"
_MOST_BYTES: Final = 2**30
"""Of a log on stdin."""
_TAIL_BYTES: Final = 2**20
"""Of it that is looked at: the message stands at its end."""
_RULES: Final = frozenset({"rules", "rules of thumb"})
_ON_CUDA: Final = frozenset({"runtime.context_bytes", "runtime.workspace_bytes"})


def explain_parser() -> ArgumentParser:
    """The flags of ``onnxmem explain``."""
    parser = Parser(
        prog="onnxmem explain",
        usage="onnxmem explain [WHAT [MODEL]] [options]",
        description="Say what a figure, a code or an out-of-memory message means, and what a model "
        "says to it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="a figure (arena reserved), a code (OM301, batch_fixed), a tensor (2x3x5 float16), "
        "rules (of thumb) or a message, quoted; - reads it from stdin (default: list figures and "
        "codes)",
    )
    model = parser.add_argument_group("model")
    model.add_argument("model", nargs="?", metavar="MODEL", help="path of an .onnx file")
    model.add_argument("--batch", type=dim, metavar="N", help="samples at once")
    add_dims(model)
    add_shapes(model)
    add_values(model)
    add_training_options(parser)
    add_runtime_options(parser)
    add_order_option(parser)
    add_context_option(parser)
    add_json_option(add_result_options(parser))
    parser.set_defaults(run=run)
    return parser


def run(arguments: Namespace) -> int:
    """Say what is meant; a model that fails is a fault."""
    model = arguments.model
    check_output(arguments.output, [model] if model else [], force=arguments.force)
    refuse_contradictions(arguments)
    settle_json(arguments)
    try:
        text, rows = _explained(arguments)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the fault of a model, reported as such
        return report_fault(fault_of(error), error, model)
    if arguments.json:
        text = _document(arguments, rows)
    write_result(text, arguments)
    return 0


def _explained(arguments: Namespace) -> tuple[str, list[JsonDict]]:
    from onnxmem.decisions.explain.glossary import code_named, codes, metrics, metrics_named
    from onnxmem.decisions.explain.messages import read_message
    from onnxmem.decisions.explain.tensors import read_tensor
    from onnxmem.report.explain import (
        code_row,
        metric_row,
        render_code,
        render_list,
        render_tensor,
        tensor_row,
    )

    if arguments.what is None:
        rows = [*(metric_row(each, None) for each in metrics()), *map(code_row, codes())]
        return render_list(), rows
    what = _what(arguments)
    if what.strip().casefold() in _RULES:
        return _rules(arguments)
    code = code_named(what)
    if code is not None:
        return render_code(code), [code_row(code)]
    found = metrics_named(what)
    is_of_step = any(each.needs_training for each in found)
    refuse_untrained(arguments, trains=arguments.train or is_of_step)
    if found:
        return _metrics(found, arguments)
    tensor = read_tensor(what)
    if tensor is not None:
        return render_tensor(tensor), [tensor_row(tensor)]
    message = read_message(what)
    if message is None:
        raise UsageError(_unknown(what))
    return _message(message, arguments)


def _what(arguments: Namespace) -> str:
    if arguments.what != "-":
        return str(arguments.what)
    tail = b""
    try:
        for block in blocks(sys.stdin.buffer, _MOST_BYTES):
            tail = (tail + block)[-_TAIL_BYTES:]
    except OSError as fault:
        message = f"stdin cannot be read: {reason_of(fault)}"
        raise UsageError(message) from fault
    return tail.decode("utf-8", "replace")


def _unknown(what: str) -> str:
    from difflib import get_close_matches

    from onnxmem.decisions.explain.glossary import codes, metrics

    names = [
        *(each.word for each in codes()),
        *(label for each in metrics() for label in each.labels),
        *(each.key.rpartition(".")[2] for each in metrics()),
    ]
    close = get_close_matches(what.strip(), names, n=3)
    hint = f"did you mean {', '.join(close)}" if close else "onnxmem explain lists what is known"
    return f"{shortened(' '.join(what.split()))}: no figure, code or message that is known; {hint}"


def _metrics(found: tuple[Metric, ...], arguments: Namespace) -> tuple[str, list[JsonDict]]:
    from onnxmem.report.explain import metric_row, render_metric

    values = _values(found, arguments) if arguments.model else [None] * len(found)
    texts = [
        render_metric(metric, arguments.model, value)
        for metric, value in zip(found, values, strict=True)
    ]
    rows = [metric_row(metric, value) for metric, value in zip(found, values, strict=True)]
    return "\n".join(texts), rows


def _rules(arguments: Namespace) -> tuple[str, list[JsonDict]]:
    """The rules of thumb; on a model beside its training step, which most of them are of."""
    from onnxmem.analysis.analysis import analyze
    from onnxmem.decisions.explain.rules import explained_rules
    from onnxmem.report.rules import render_rules, rule_rows

    found = None
    if arguments.model is not None:
        settings = step_settings(arguments) | {"train": True}
        refuse_unused_options(arguments, Settings(**settings))
        found = explained_rules(analyze(arguments.model, **settings))
    return render_rules(arguments.model, found), rule_rows(found)


def _values(found: tuple[Metric, ...], arguments: Namespace) -> list[MetricValue | None]:
    from onnxmem.decisions.explain.glossary import value_of

    analysis = _analysis(found, arguments)
    return [value_of(metric, analysis) for metric in found]


def _analysis(found: tuple[Metric, ...], arguments: Namespace) -> Analysis:
    """With a training step and a runtime where one of the figures is theirs."""
    from onnxmem.analysis.analysis import analyze

    runtime = "ort-cuda" if _ON_CUDA.issuperset(each.key for each in found) else "ort-cpu"
    needs_runtime = any(each.needs_runtime for each in found)
    settings = step_settings(arguments)
    settings["train"] |= any(each.needs_training for each in found)
    settings |= {
        "runtimes": tuple(arguments.runtimes) or ((runtime,) if needs_runtime else ()),
        "graph": arguments.graph,
        "fixed_dims": arguments.fixed_dims,
        "asks_onnxruntime": not arguments.emulate_optimiser,
    }
    refuse_unused_options(arguments, Settings(**settings, order=arguments.order))
    return analyze(arguments.model, **settings, order=arguments.order, context=arguments.context)


def _message(message: OutOfMemory, arguments: Namespace) -> tuple[str, list[JsonDict]]:
    from onnxmem.analysis.fitting.footprints import request_of
    from onnxmem.decisions.explain.out_of_memory import oom_report
    from onnxmem.report.explain import message_row, render_message

    if arguments.model is None:
        return render_message(message, None, None), [message_row(message, None)]
    settings = Settings(**step_settings(arguments))
    report = oom_report(message, request_of(arguments.model, settings))
    return render_message(message, arguments.model, report), [message_row(message, report)]


def _document(arguments: Namespace, rows: list[JsonDict]) -> str:
    from onnxmem.analysis.json_rows import document, document_text

    content: JsonDict = {
        "model": None if arguments.model is None else printable(arguments.model),
        "explained": rows,
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))
