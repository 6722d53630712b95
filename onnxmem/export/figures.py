"""Figures as text for other tools: flat metrics, a table of nodes, a section of a model card.

Metrics are for ``mlflow.log_metrics(onnxmem.to_metrics(analysis))`` and the like: a name is the
path of a figure in the JSON report, joined by dots, with only letters, digits, ``_``, ``-`` and
``.``, which every tracker accepts (MLflow: mlflow/utils/validation.py, which also accepts ``/``,
``:`` and spaces). The section of a model card is between markers, so that a script can replace it,
and names are in code spans, in which Markdown has no effect.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.errors import no_formula, printable, shortened
from onnxmem.report.check import code
from onnxmem.report.text import csv_line, shape_text
from onnxmem.settings import TrainingConfig, flags_of
from onnxmem.units import format_bytes
from onnxmem.version import __version__

_NAMED: Final = ("optimizer", "precision", "loss")
"""Fields of a training configuration that are listed even if they have the default value."""
_NO_FIGURES: Final = frozenset(
    {"path", "status", "error", "settings", "runtime", "recipe", "layers", "findings", "peak_rows"}
)
"""Keys of the JSON without figures, or with a second copy of them."""
_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]+")
COLUMNS: Final = (
    *("step", "node", "op_type", "output_shape", "dtype", "output_bytes", "live_bytes"),
    *("parameters", "weight_bytes", "macs", "flops"),
)
"""``step`` and ``live_bytes`` are empty for a node inside an If, a Loop or a Scan."""


def to_metrics(analysis: Analysis) -> dict[str, int | float]:
    """All known figures by name: bytes, counts, the batch; unknown ones are omitted.

    :param analysis: of one model.
    """
    row = analysis.to_dict()
    figures = dict(_flat(row, ""))
    runtimes = row["runtimes"]
    for runtime in runtimes if isinstance(runtimes, list) else ():
        figures.update(_flat(runtime, f"runtime.{runtime['name']}."))
    if analysis.settings.batch is not None:
        figures["batch"] = analysis.settings.batch
    return figures


def metrics_file(analysis: Analysis) -> Iterator[str]:
    """Write the figures as one JSON object."""
    yield json.dumps(to_metrics(analysis), indent=1) + "\n"


def layer_table(analysis: Analysis) -> Iterator[str]:
    """Write a line per node, in order of execution; an unknown figure is an empty cell.

    A name that a spreadsheet would evaluate as a formula is prefixed with ``'``.
    """
    steps = {node.name: step for step, node in enumerate(analysis.graph.nodes)}
    live = live_bytes(analysis)
    yield csv_line(COLUMNS)
    for layer in layers(analysis.graph, analysis.parameters, analysis.compute):
        step = steps.get(layer.node)
        yield csv_line(_cells(layer, step, None if step is None else live[step]))


def model_card(analysis: Analysis) -> Iterator[str]:
    """Write a table of the known figures, the assumptions, and the command."""
    yield "<!-- onnxmem begin -->\n### Memory\n\n"
    yield "| figure | size | bytes |\n|---|---:|---:|\n"
    for name, size_bytes in named_figures(analysis):
        if size_bytes is not None:
            yield f"| {name} | {format_bytes(size_bytes)} | {size_bytes:,} |\n"
    yield "\n"
    if analysis.status == "partial":
        yield f"Partial: {'; '.join(code(each) for each in analysis.doubts)}.\n\n"
    yield f"Parameters: {analysis.num_parameters:,}. "
    yield f"Assumed: {', '.join(code(each) for each in assumptions(analysis))}.\n\n"
    yield f"Predicted from the file by onnxmem {__version__}, without running the model:\n\n"
    yield f"    {command(analysis)}\n<!-- onnxmem end -->\n"


def live_bytes(analysis: Analysis) -> tuple[int | None, ...]:
    """Bytes of live activations at each node of the main graph, in order (definition 4).

    All are ``None`` if no activation has a known size.
    """
    known = analysis.activations.live_bytes
    return (None,) * len(known) if analysis.activations.in_place_peak_bytes is None else known


def assumptions(analysis: Analysis) -> Iterator[str]:
    """The batch, other dims, the training configuration and the graph as printable text."""
    settings = analysis.settings
    symbols = analysis.request.prepared.batch_symbols
    if settings.train:
        yield "training"
        yield from (
            f"{name.replace('_', ' ')} {_as_text(value)}" for name, value in _recipe(analysis)
        )
    else:
        yield "inference"
    yield "no batch" if settings.batch is None else f"batch {settings.batch}"
    for name, number in settings.dims.items():
        if name not in symbols:
            yield f"{shortened(name)} = {number}"
    for name, dims in settings.shapes.items():
        yield f"input {shortened(name)} of {shape_text(dims)}"
    yield f"graph {settings.graph or 'raw'}"


def command(analysis: Analysis) -> str:
    """The command that prints the same figures, without the folder of the model."""
    settings = analysis.request.settings
    name = PurePath(analysis.path).name or analysis.path
    words = ["onnxmem", name]
    words += [word for flag in settings.model_flags for word in flag]
    if settings.train:
        words.append("--train")
        words += [word for name, value in _recipe(analysis) for word in flags_of(name, value)]
    for runtime in settings.runtimes:
        words += ["--runtime", runtime]
    if settings.graph is not None:
        words += ["--graph", settings.graph]
    return printable(shlex.join(words))


def _recipe(analysis: Analysis) -> Iterator[tuple[str, object]]:
    """The training configuration: the three main fields, and those not at their default."""
    recipe, defaults = analysis.settings.recipe, TrainingConfig()
    for field in fields(TrainingConfig):
        value = getattr(recipe, field.name)
        if field.name in _NAMED or value != getattr(defaults, field.name):
            yield field.name, value


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return shortened(" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _flat(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, int | float]]:
    for key, value in values.items():
        name = prefix + _OTHER.sub("_", key)
        # A bool is an int in Python, but no figure.
        if key in _NO_FIGURES or isinstance(value, bool):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, int | float):
            yield name, value


def _cells(layer: Layer, step: int | None, live: int | None) -> Iterator[str]:
    yield _number(step)
    yield _text(layer.node)
    yield _text(layer.op_type)
    yield "" if layer.output_shape is None else shape_text(layer.output_shape)
    yield _text(layer.dtype or "")
    for figure in (
        *(layer.output_bytes, live, layer.num_parameters),
        *(layer.weight_bytes, layer.macs, layer.flops),
    ):
        yield _number(figure)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _text(name: str) -> str:
    return no_formula(shortened(name))


def named_figures(analysis: Analysis) -> Iterator[tuple[str, int | None]]:
    """The figures of a model card in bytes, by the words of the report; ``None`` is unknown."""
    activations = analysis.activations
    yield "file", analysis.file_bytes
    yield "weights", analysis.weight_bytes
    yield "inference: weights + inputs + peak activation memory", analysis.total_bytes
    yield "peak activation memory", activations.in_place_peak_bytes
    yield "sum of all activations", activations.naive_bytes
    yield from _runtime_figures(analysis)
    if analysis.training is not None:
        yield "training step", analysis.training.peak_bytes
        yield "training step: optimizer state", analysis.training.optimizer_state_bytes
        yield "training step: saved for backward", analysis.training.saved_activation_bytes
    if analysis.torch is not None:
        yield "training step: GPU memory (PyTorch)", analysis.torch.total_bytes


def _runtime_figures(analysis: Analysis) -> Iterator[tuple[str, int | None]]:
    for runtime in analysis.runtimes:
        yield f"{runtime.name}: arena reserved (steady state)", runtime.arena.held_steady_bytes
        yield f"{runtime.name}: process", runtime.process_bytes
