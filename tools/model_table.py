"""The table of `models/README.md`, from the recipes, `expected.json` and the files."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recipe import Recipe

BEGIN, END = "<!-- begin: table -->", "<!-- end: table -->"
"""Marks in the README; what stands between them is made by `update_table`."""

_HEADER = (
    "file",
    "what it is",
    "architecture",
    "code",
    "exporter, opset",
    "symbols",
    "parameters",
    "MACs per sample",
    "bytes",
)


def update_table(readme: Path, recipes: Iterable[Recipe]) -> None:
    """Write the table anew in `readme`, which lies beside the models."""
    expected = json.loads((readme.parent / "expected.json").read_text())
    files = [(recipe, readme.parent / f"{recipe.name}.onnx") for recipe in recipes]
    rows = [_row(recipe, path, expected[path.name]) for recipe, path in files if path.exists()]
    lines = [_line(_HEADER), _line(("---",) * 6 + ("---:",) * 3), *map(_line, rows)]
    before, _, rest = readme.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    readme.write_text("\n".join((before + BEGIN, "", *lines, "", END + after)))


def _row(recipe: Recipe, path: Path, expected: dict[str, Any]) -> tuple[str, ...]:
    macs = expected["forward_macs_per_sample"]
    return (
        f"`{path.name}`",
        recipe.what,
        recipe.source,
        recipe.licence,
        f"{recipe.exporter}, {recipe.opset}",
        _symbols(recipe),
        f"{expected['parameters']:,}",
        "unknown" if macs is None else f"{macs:,}",
        f"{path.stat().st_size:,}",
    )


def _symbols(recipe: Recipe) -> str:
    """The batch, then each other symbol with its number in the export."""
    if isinstance(recipe.batch, int):
        return f"batch fixed at {recipe.batch}"
    others = (f"`{name}` {n}" for name, n in recipe.bound_dims.items() if name != recipe.batch)
    return ", ".join((f"`{recipe.batch}`", *others))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
