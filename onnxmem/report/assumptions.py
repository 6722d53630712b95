"""What a report assumes, said before any figure, and where its peak is."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from onnxmem.errors import shortened
from onnxmem.settings import Recipe
from onnxmem.units import format_bytes, format_count, plural

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis


def model_facts(analysis: "Analysis") -> list[str]:
    """Nodes, parameters, the element type of most weights, the file's size."""
    return [
        plural(analysis.coverage.num_nodes, "node"),
        f"{format_count(analysis.num_parameters)} parameters",
        *_weight_dtype(analysis),
        f"file {format_bytes(analysis.file_bytes)}",
    ]


def assumptions(analysis: "Analysis") -> list[str]:
    """The setting that all figures are of."""
    settings = analysis.settings
    symbols = analysis.request.prepared.batch_symbols
    training = ("training", *_recipe(settings.recipe))
    stands_in = f" ({', '.join(shortened(name) for name in sorted(symbols))})" if symbols else ""
    return [
        *(training if settings.train else ("inference",)),
        *_batchnorms(analysis),
        "no batch" if settings.batch is None else f"batch {settings.batch:,}{stands_in}",
        *(
            f"{shortened(name)} = {number:,}"
            for name, number in settings.dims.items()
            if name not in symbols
        ),
        *(f"input {shortened(name)} of {_dims(dims)}" for name, dims in settings.shapes.items()),
        f"graph {settings.graph or 'raw'}",
        *((f"order {settings.order}",) if settings.order != "file" else ()),
        *(("sessions opened with fixed dims",) if settings.fixed_dims else ()),
    ]


def partial_texts(analysis: "Analysis") -> Iterator[str]:
    """Which figures are known in part alone; nothing where the status is ``ok``."""
    if analysis.doubts:
        yield f"PARTIAL: {shortened('; '.join(analysis.doubts), 2000)}"
    for name in analysis.partial_runtimes:
        is_known = any(runtime.name == name for runtime in analysis.runtimes)
        left_out = "lower bounds: tensors or scratch of unknown size are left out"
        yield f"PARTIAL: the figures of {name} are {left_out if is_known else 'unknown'}"


def _batchnorms(analysis: "Analysis") -> list[str]:
    """What became of BatchNormalizations that the export folded away."""
    if analysis.training is None:
        return []
    found = analysis.training.batchnorms
    return [
        f"{len(names):,} BatchNormalization {what}"
        for names, what in (
            (found.put_back, "put back that the export folded"),
            (found.left_out, "left out that the export folded"),
            (found.unknown, "possibly folded, not put back"),
        )
        if names
    ]


def _recipe(recipe: Recipe) -> list[str]:
    """The three that every step has, and what else is not the default."""
    defaults = Recipe()
    named = ("optimizer", "precision", "loss")
    others = [field.name for field in fields(Recipe) if field.name not in named]
    changed = [name for name in others if getattr(recipe, name) != getattr(defaults, name)]
    return [_said(name, getattr(recipe, name)) for name in (*named, *changed)]


def _said(name: str, value: object) -> str:
    words = name.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"no {words}"
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{words} {shortened(text)}"


def _dims(dims: tuple[int, ...]) -> str:
    return "x".join(map(str, dims)) or "scalar"


def _weight_dtype(analysis: "Analysis") -> list[str]:
    """The element type that most bytes of weights have."""
    sizes: Counter[str] = Counter()
    for weight in analysis.graph.weights:
        sizes[weight.dtype or "unknown"] += weight.size_bytes or 0
    return [dtype for dtype, _ in sizes.most_common(1)]
