"""``onnxmem sweep MODEL --batch 1..512``: memory, FLOPs and time per sample, batch by batch."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Final

from onnxmem.cli.chosen import (
    fit_request_of,
    refuse_contradictions,
    refuse_unused_of_fit,
    step_settings,
    target_memory,
    verdict_settings,
)
from onnxmem.cli.options import (
    add_compared_runtime,
    add_devices_file,
    add_dims,
    add_most,
    add_one_model,
    add_reserve,
    add_session_options,
    add_shapes,
    add_text_result_options,
    add_training_options,
    add_values,
    add_verdict_options,
)
from onnxmem.cli.output import (
    check_output,
    form_of,
    in_color,
    refuse_same_output,
    report_fault,
    write_file,
    write_result,
)
from onnxmem.cli.parsing import Parser, dim
from onnxmem.errors import EXIT_OK, UsageError, fault_of, printable, shortened
from onnxmem.settings import Settings

if TYPE_CHECKING:
    from onnxmem.analysis.json_rows import JsonDict

SCHEMA: Final = "onnxmem.sweep"
SCHEMA_VERSION: Final = "1.0"
_MOST: Final = 1000
"""Batches of one curve: each is a walk of the model."""
_SPAN: Final = re.compile(
    r"(?P<first>\d+)(?:(?:\.\.|-)(?P<last>\d+)(?::(?P<step>\d+))?)?", re.ASCII
)


def sweep_parser() -> ArgumentParser:
    """The flags of ``onnxmem sweep``."""
    parser = Parser(
        "sweep",
        "MODEL [--batch 1..512] [options]",
        "Say what a model takes at one batch after another, whether memory is "
        "proportional to the batch, and whether a larger batch is faster.",
        run,
    )
    _add_model(parser)
    _add_device(parser)
    _add_runtime(parser)
    add_training_options(parser)
    output = add_text_result_options(parser)
    output.add_argument(
        "--csv", action="store_true", help="write a table of the batches, as -o FILE.csv does"
    )
    output.add_argument("--html", metavar="FILE", help="write a page too: two charts and the table")
    # What shared functions read of the flags of `fit`, of which there are none here.
    parser.set_defaults(batch=None, which_device=False, ask_onnxruntime=False)
    return parser


def _add_model(parser: ArgumentParser) -> None:
    model = add_one_model(parser)
    model.add_argument(
        "--batch",
        dest="batches",
        type=batches,
        default="1..256",
        metavar="A..B[:STEP]",
        help="both ends and the powers of two between them, or every STEP; or a list, as in 1,8,32 "
        "(default: 1..256)",
    )
    add_dims(model)
    add_shapes(model)
    add_values(model)
    add_most(model)


def _add_device(parser: ArgumentParser) -> None:
    device = parser.add_argument_group("device")
    device.add_argument(
        "--device",
        metavar="NAME|SIZE|auto",
        help="as in 'RTX 4090' or 24GiB: verdicts, the largest batch, and of a device times",
    )
    add_devices_file(device)
    add_reserve(device)


def _add_runtime(parser: ArgumentParser) -> None:
    runtime = parser.add_argument_group("runtime")
    add_compared_runtime(runtime)
    add_session_options(runtime)
    add_verdict_options(runtime)


def batches(text: str) -> tuple[int, ...]:
    """Read ``A..B`` or ``A-B``, ``A..B:STEP``, one batch, or a list of these: ``1,8,32``."""
    found = sorted({batch for part in text.split(",") for batch in _span(part)})
    if len(found) > _MOST:
        raise ArgumentTypeError(_too_many(text))
    return tuple(found)


def _span(text: str) -> tuple[int, ...]:
    from onnxmem.decisions.batch_curve import batches_between

    match = _SPAN.fullmatch(text.strip())
    if match is None:
        message = f"{shortened(text)!r} is not one of 1..256, 1..256:16 and 1,8,32"
        raise ArgumentTypeError(message)
    low = dim(match["first"])
    high = dim(match["last"] or match["first"])
    step = dim(match["step"]) if match["step"] else None
    if high < low:
        message = f"{text!r}: the first batch is larger than the last"
        raise ArgumentTypeError(message)
    if step is not None and (high - low) // step >= _MOST:
        raise ArgumentTypeError(_too_many(text))
    return batches_between(low, high, step)


def _too_many(text: str) -> str:
    return f"{shortened(text)!r} is more than {_MOST:,} batches; take a larger STEP"


def run(arguments: Namespace) -> int:
    """Compute the curve; a model that fails is a fault."""
    from onnxmem.analysis.json_rows import document, document_text

    for file in (arguments.output, arguments.html):
        check_output(file, [arguments.model], force=arguments.force)
    refuse_same_output(arguments.html, arguments.output)
    refuse_contradictions(arguments)
    if arguments.json and arguments.csv:
        message = "--json and --csv: choose one"
        raise UsageError(message)
    requested = "json" if arguments.json else "csv" if arguments.csv else None
    form = form_of(arguments.output, requested, ("text", "json", "csv", "html"))
    try:
        texts, row = _curve(arguments, form)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the fault of a model, reported as such
        return report_fault(fault_of(error), error, arguments.model)
    if form == "json":
        content: JsonDict = {"model": printable(arguments.model), **row}
        text = document_text(document(SCHEMA, SCHEMA_VERSION, content))
    else:
        text = texts[form]
    if arguments.html is not None:
        write_file(texts["html"], arguments.html, quiet=arguments.quiet)
    write_result(in_color(text, arguments) if form == "text" else text, arguments)
    return EXIT_OK


def _curve(arguments: Namespace, form: str) -> tuple[dict[str, str], JsonDict]:
    """The curve as text, as CSV and as a page where one is requested, and its JSON object."""
    from onnxmem.analysis.fitting.footprints import on_device, request_of
    from onnxmem.decisions.batch_curve import batch_curve
    from onnxmem.report.batch_curve import curve_csv, curve_row, render_curve

    memory = None if arguments.device is None else target_memory(arguments)
    device = None if memory is None else memory.device
    refuse_unused_of_fit(arguments, device)
    setup = fit_request_of(arguments, memory)
    settings = Settings(
        **(step_settings(arguments) | {"batch": arguments.batches[0]}),
        **verdict_settings(arguments),
        fixed_dims=arguments.fixed_dims,
        asks_onnxruntime=False,
    )
    request = on_device(request_of(arguments.model, settings), device, setup.basis)
    found = batch_curve(request, arguments.batches, setup, device, has_limit=memory is not None)
    texts = {"text": render_curve(arguments.model, found, memory), "csv": curve_csv(found)}
    if arguments.html is not None or form == "html":
        from onnxmem.report.page.curve_page import curve_page

        texts["html"] = curve_page(arguments.model, found, memory)
    return texts, curve_row(found, memory)
