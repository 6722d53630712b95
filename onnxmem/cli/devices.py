"""``onnxmem devices [NAME...]``: what is known of devices, and how fast a model can be on them."""

from argparse import Namespace
from typing import Final

from onnxmem.analysis.fitting.holding import request_of
from onnxmem.analysis.json_rows import Row, document, document_text
from onnxmem.cli.output import (
    check_output,
    in_colour,
    settle_json,
    write_result,
)
from onnxmem.cli.training_options import recipe_from
from onnxmem.cli.unused import refuse_untrained
from onnxmem.decisions.devices import Device, catalog
from onnxmem.decisions.roofline import bound, work_of
from onnxmem.errors import EXIT_OK, printable
from onnxmem.report.devices import (
    device_row,
    render_bounds,
    render_details,
    render_devices,
    work_row,
)
from onnxmem.settings import Settings

SCHEMA: Final = "onnxmem.devices"
SCHEMA_VERSION: Final = "1.0"


def run(arguments: Namespace) -> int:
    """List devices; with a model, the roofline bound on each."""
    models = () if arguments.model is None else (arguments.model,)
    check_output(arguments.output, models, force=arguments.force)
    settle_json(arguments)
    refuse_untrained(arguments, trains=arguments.train)
    known = catalog(arguments.devices_file)
    devices = tuple(known.find(name) for name in arguments.names) or known.devices
    if arguments.model is None:
        text, row = _listed(devices, is_named=bool(arguments.names))
    else:
        text, row = _bounded(devices, arguments)
    if arguments.json:
        text = document_text(document(SCHEMA, SCHEMA_VERSION, row))
    write_result(in_colour(text, arguments), arguments)
    return EXIT_OK


def _listed(devices: tuple[Device, ...], *, is_named: bool) -> tuple[str, Row]:
    text = render_details(devices) if is_named else render_devices(devices)
    return text, {"model": None, "work": None, "devices": [device_row(each) for each in devices]}


def _bounded(devices: tuple[Device, ...], arguments: Namespace) -> tuple[str, Row]:
    settings = Settings(
        batch=arguments.batch,
        dims=dict(arguments.dims),
        train=arguments.train,
        recipe=recipe_from(arguments),
    )
    question = request_of(arguments.model, settings)
    terms = question.results
    work = work_of(terms)
    bounds = [(device, bound(work, device)) for device in devices]
    text = render_bounds(question, terms.bound.binding.batch, work, bounds)
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
        "batch": terms.bound.binding.batch,
        "work": work_row(work),
        "devices": rows,
    }
