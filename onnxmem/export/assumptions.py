"""What figures were worked out under, in words and as the command that works them out again."""

import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import PurePath
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import printable, shortened
from onnxmem.settings import Recipe

_NAMED: Final = ("optimizer", "precision", "loss")
"""Of a recipe: said even where they are the default."""


def assumptions(analysis: Analysis) -> Iterator[str]:
    """The batch, other dims, the training and the graph, in words; names are printable."""
    settings = analysis.settings
    symbols = analysis.question.prepared.batch_symbols
    if settings.train:
        yield "training"
        yield from (f"{name.replace('_', ' ')} {_said(value)}" for name, value in _recipe(analysis))
    else:
        yield "inference"
    yield "no batch" if settings.batch is None else f"batch {settings.batch}"
    for name, number in settings.dims.items():
        if name not in symbols:
            yield f"{shortened(name)} = {number}"
    for name, dims in settings.shapes.items():
        yield f"input {shortened(name)} of {_shape(dims)}"
    yield f"graph {settings.graph or 'raw'}"


def command(analysis: Analysis) -> str:
    """The command line that prints the same figures, without the folder of the model."""
    settings = analysis.question.settings
    name = PurePath(analysis.path).name or analysis.path
    words = ["onnxmem", name]
    if settings.batch is not None:
        words += ["--batch", str(settings.batch)]
    for dim, number in settings.dims.items():
        words += ["--dim", f"{dim}={number}"]
    for tensor, dims in settings.shapes.items():
        words += ["--shape", f"{tensor}:{','.join(map(str, dims))}"]
    if settings.train:
        words.append("--train")
        words += [word for name, value in _recipe(analysis) for word in _flags(name, value)]
    for runtime in settings.runtimes:
        words += ["--runtime", runtime]
    if settings.graph is not None:
        words += ["--graph", settings.graph]
    return printable(shlex.join(words))


def _recipe(analysis: Analysis) -> Iterator[tuple[str, object]]:
    """What was asked of the training: the three that matter most, and what is not the default."""
    recipe, defaults = analysis.settings.recipe, Recipe()
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if field.name in _NAMED or value != getattr(defaults, field.name):
            yield field.name, value


def _flags(name: str, value: object) -> list[str]:
    flag = f"--{'loss-output' if name == 'outputs' else name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        return [word for each in value for word in (flag, str(each))]
    return [flag, str(value)]


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return shortened(" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _shape(dims: tuple[int, ...]) -> str:
    return "x".join(map(str, dims)) or "scalar"
