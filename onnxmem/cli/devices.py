"""``onnxmem devices [NAME...]``: what is known of devices, and how fast a model can be on them."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Final

from onnxmem.cli.chosen import recipe_from, refuse_untrained
from onnxmem.cli.options import (
    add_batch_and_dims,
    add_devices_file,
    add_text_result_options,
    add_training_options,
)
from onnxmem.cli.output import check_output, in_color, settle_json, write_result
from onnxmem.cli.parsing import Parser
from onnxmem.errors import EXIT_OK, UsageError, printable, shortened
from onnxmem.settings import Settings

if TYPE_CHECKING:
    from onnxmem.analysis.json_rows import JsonDict
    from onnxmem.decisions.devices import Device

SCHEMA: Final = "onnxmem.devices"
SCHEMA_VERSION: Final = "1.0"


def devices_parser() -> ArgumentParser:
    """The flags of ``onnxmem devices``."""
    parser = Parser(
        "devices",
        "[NAME...] [options]",
        "List devices, or bound the time that a model takes on each.",
        run,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="devices to list (default: all)")
    add_devices_file(parser)
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="MODEL", help="bound its time by the roofline")
    add_batch_and_dims(model)
    add_training_options(parser)
    add_text_result_options(parser)
    return parser


def run(arguments: Namespace) -> int:
    """List devices; with a model, the roofline bound on each."""
    from onnxmem.analysis.json_rows import document, document_text
    from onnxmem.decisions.devices import catalog

    models = () if arguments.model is None else (arguments.model,)
    check_output(arguments.output, models, force=arguments.force)
    settle_json(arguments)
    refuse_untrained(arguments, trains=arguments.train)
    known = catalog(arguments.devices_file)
    for name in arguments.names:
        _refuse_model(name)
    devices = tuple(known.find(name) for name in arguments.names) or known.devices
    if arguments.model is None:
        text, row = _listed(devices, is_named=bool(arguments.names))
    else:
        text, row = _bounded(devices, arguments)
    if arguments.json:
        text = document_text(document(SCHEMA, SCHEMA_VERSION, row))
    write_result(in_color(text, arguments), arguments)
    return EXIT_OK


def _refuse_model(name: str) -> None:
    """A device is a name; of a model there are two questions.

    :raises UsageError: the name is that of a model.
    """
    if name.lower().endswith(".onnx") or os.path.isfile(name):
        model = shortened(name)
        message = (
            f"{model} is a model: onnxmem fit {model} --which-device says which devices it fits, "
            f"onnxmem devices --model {model} how fast it can be on each"
        )
        raise UsageError(message)


def _listed(devices: tuple[Device, ...], *, is_named: bool) -> tuple[str, JsonDict]:
    from onnxmem.report.devices import device_row, render_details, render_devices

    text = render_details(devices) if is_named else render_devices(devices)
    return text, {"model": None, "work": None, "devices": [device_row(each) for each in devices]}


def _bounded(devices: tuple[Device, ...], arguments: Namespace) -> tuple[str, JsonDict]:
    from onnxmem.analysis.fitting.footprints import request_of
    from onnxmem.decisions.roofline import bound, work_of
    from onnxmem.report.devices import device_row, render_bounds, work_row

    settings = Settings(
        batch=arguments.batch,
        dims=dict(arguments.dims),
        train=arguments.train,
        recipe=recipe_from(arguments),
    )
    request = request_of(arguments.model, settings)
    results = request.results
    work = work_of(results)
    bounds = [(device, bound(work, device)) for device in devices]
    text = render_bounds(request, results.bound.binding.batch, work, bounds)
    rows = [
        {
            **device_row(device),
            "bound": {
                "seconds": each.seconds,
                "compute_seconds": each.compute_seconds,
                "memory_seconds": each.memory_seconds,
                "limited_by": each.limited_by,
            },
        }
        for device, each in bounds
    ]
    return text, {
        "model": printable(arguments.model),
        "batch": results.bound.binding.batch,
        "work": work_row(work),
        "devices": rows,
    }
