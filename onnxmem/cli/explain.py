"""``onnxmem explain WHAT [MODEL]``: what a figure, a code or an out-of-memory message means."""

from __future__ import annotations

import os
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from onnxmem.cli.chosen import (
    refuse_contradictions,
    refuse_untrained,
    refuse_unused_options,
    step_settings,
)
from onnxmem.cli.observing import add_observed
from onnxmem.cli.options import (
    add_batch_and_dims,
    add_context_option,
    add_json_option,
    add_most,
    add_order_option,
    add_result_options,
    add_runtime_options,
    add_shapes,
    add_training_options,
    add_values,
)
from onnxmem.cli.output import check_output, report_fault, settle_json, write_result
from onnxmem.cli.parsing import Parser
from onnxmem.errors import UsageError, fault_of, printable, shortened
from onnxmem.files import blocks, reason_of
from onnxmem.settings import BACKENDS, Settings

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.json_rows import JsonDict
    from onnxmem.report.explanation import Needs

SCHEMA: Final = "onnxmem.explain"
SCHEMA_VERSION: Final = "1.0"
_MOST_BYTES: Final = 2**30
"""Of a log on stdin."""
_TAIL_BYTES: Final = 2**20
"""Of it that is looked at: the message stands at its end."""
_TYPE_BESIDE: Final = "the type stands beside the shape: onnxmem explain '1000x1000 float16'"
_LOG_ALONE: Final = "a log is named without an option: onnxmem explain train.log"
_DEVICE_IN_WORDS: Final = (
    "a device stands in the question: onnxmem explain 'the largest batch on a T4' MODEL"
)
_MODEL_SUFFIX: Final = ".onnx"
_PEAK: Final = "activations.in_place_peak_bytes"
_PEAK_OF_STEP: Final = "training.peak_bytes"
_PEAK_OF_SESSION: Final = "runtime.requested_peak_bytes"


def explain_parser() -> ArgumentParser:
    """The flags of ``onnxmem explain``."""
    parser = Parser(
        "explain",
        "[WHAT [MODEL]] [options]",
        "Say what a figure, a code or an out-of-memory message means, and what a model "
        "says to it; or answer a question.",
        run,
    )
    parser.refused = {"--dtype": _TYPE_BESIDE, "--file": _LOG_ALONE, "--device": _DEVICE_IN_WORDS}
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WHAT [MODEL]",
        help="a figure (process), a code (OM301, batch_fixed), a tensor or a node of MODEL by its "
        "name, a tensor (2x3x5 float16), rules (of thumb), a message, a question; a log, or - for "
        "stdin (default: list what is known); and the path of an .onnx file",
    )
    model = parser.add_argument_group("model")
    add_batch_and_dims(model)
    add_shapes(model)
    add_values(model)
    add_most(model)
    add_observed(model)
    add_training_options(parser)
    add_runtime_options(parser)
    add_order_option(parser)
    measurement = parser.add_argument_group("measurement")
    measurement.add_argument(
        "--measure", choices=BACKENDS, help="measure the process too, where it is explained"
    )
    add_context_option(parser)
    add_json_option(add_result_options(parser))
    return parser


def run(arguments: Namespace) -> int:
    """Say what is meant; a model that fails is a fault."""
    words, model = split_words(arguments.words)
    check_output(arguments.output, [model] if model else [], force=arguments.force)
    refuse_contradictions(arguments)
    settle_json(arguments)
    what = _what(words)
    try:
        text, rows = _explained(what, model, arguments)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the fault of a model, reported as such
        return report_fault(fault_of(error), error, model)
    if arguments.json:
        text = _document(model, rows)
    write_result(text, arguments)
    return 0


def split_words(words: list[str]) -> tuple[str | None, str | None]:
    """What is asked, and the model: the last of several words if it is a file or named like one.

    What is no regular file is a model that cannot be read, if it is written as a path.
    """
    last = words[-1] if len(words) > 1 else ""
    is_file = os.path.exists(last) if "/" in last else os.path.isfile(last)
    is_model = bool(last) and (last.endswith(_MODEL_SUFFIX) or is_file)
    asked = words[:-1] if is_model else words
    return " ".join(asked) if asked else None, words[-1] if is_model else None


def _explained(
    what: str | None, path: str | None, arguments: Namespace
) -> tuple[str, tuple[JsonDict, ...]]:
    from onnxmem.report.explanation import (
        Model,
        batch_of,
        explanation,
        figures_of,
        is_rules,
        needs_of,
    )

    runtime = next(iter(arguments.runtimes), None)
    figures = figures_of(what, runtime)
    if arguments.batch is None and path is not None:
        arguments.batch = batch_of(what)
    if [each.key for each in figures] == [_PEAK] and what != _PEAK:
        # ``explain peak MODEL --train`` asks for the peak of the step.
        of_run = _PEAK_OF_STEP if arguments.train else _PEAK_OF_SESSION if runtime else what
        what, figures = of_run, figures_of(of_run, runtime)
    needs = needs_of(figures)
    # Flags without an effect are refused without a model too, or where it has no figure.
    trains = needs.training or (what is not None and is_rules(what))
    refuse_untrained(arguments, trains=arguments.train or trains)
    if arguments.measure is not None and not (needs.measurement and path):
        message = "--measure: measures a process: onnxmem explain process MODEL --measure cpu"
        raise UsageError(message)

    def analyze(needs: Needs) -> Analysis:
        from onnxmem.analysis.analysis import analyze

        settings = _settings(arguments, needs)
        if not needs.session:
            checked = {name: value for name, value in settings.items() if name != "context"}
            refuse_unused_options(arguments, Settings(**checked))
        return analyze(path or "", observed=tuple(arguments.observed), **settings)

    model = None if path is None else Model(path, analyze)
    given = Settings(**step_settings(arguments), runtimes=tuple(arguments.runtimes))
    found = explanation(what, model, given)
    return found.text, found.explained


def _settings(arguments: Namespace, needs: Needs) -> Mapping[str, Any]:
    """With a training step and a runtime where one of the figures is theirs."""
    needed = () if needs.runtime is None else (needs.runtime,)
    settings = step_settings(arguments)
    return settings | {
        "train": settings["train"] or needs.training,
        "runtimes": tuple(arguments.runtimes) or needed,
        "graph": arguments.graph,
        "fixed_dims": arguments.fixed_dims,
        "asks_onnxruntime": not arguments.emulate_optimizer,
        "order": arguments.order,
        "context": arguments.context,
        "measure": arguments.measure,
    }


def _what(words: str | None) -> str | None:
    """What is asked: the words, or the end of a log on stdin or in the file that they name."""
    if words == "-":
        return _stdin()
    if words is None and _is_redirected():
        return _stdin().strip() or None
    is_named = words is not None and ("." in words or os.sep in words) and os.path.isfile(words)
    return _message_in(words) if is_named and words is not None else words


def _message_in(path: str) -> str:
    """The end of a log that has a message; the name of any other file, which may be a model.

    :raises UsageError: it is a text without a message.
    """
    from onnxmem.decisions.explain.messages import read_message

    try:
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - _TAIL_BYTES, 0))
            end = file.read(_TAIL_BYTES)
    except OSError as fault:
        message = f"{shortened(path)} cannot be read: {reason_of(fault)}"
        raise UsageError(message) from fault
    if path.endswith(_MODEL_SUFFIX) or b"\0" in end:
        return path
    text = end.decode("utf-8", "replace")
    if read_message(text) is None:
        message = f"{shortened(path)}: no out-of-memory message is in it"
        raise UsageError(message)
    return text


def _is_redirected() -> bool:
    """Whether a file or another program is behind stdin, as in ``onnxmem explain < log.txt``."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _stdin() -> str:
    tail = b""
    try:
        for block in blocks(sys.stdin.buffer, _MOST_BYTES):
            tail = (tail + block)[-_TAIL_BYTES:]
    except OSError as fault:
        message = f"stdin cannot be read: {reason_of(fault)}"
        raise UsageError(message) from fault
    return tail.decode("utf-8", "replace")


def _document(model: str | None, rows: tuple[JsonDict, ...]) -> str:
    from onnxmem.analysis.json_rows import document, document_text

    content: JsonDict = {
        "model": None if model is None else printable(model),
        "explained": list(rows),
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))
