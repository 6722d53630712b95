"""What a model took before, out of a saved report: the same model at the same setting."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.json_row import recipe_row
from onnxmem.analysis.saved_json import Saved, read_saved
from onnxmem.errors import printable, shortened

_AGAIN = "write the baseline again, with onnxmem MODEL --json -o FILE"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The rows of a saved report."""

    file: str
    rows: tuple[Saved, ...]
    folders: tuple[Path, ...]
    """From which its paths may be told: the working directory, and the configuration's folder."""

    def peak_bytes(self, analysis: Analysis) -> int | str:
        """Weights, inputs and in-place peak as they were, or why that is unknown."""
        row = self._row(analysis)
        return row if isinstance(row, str) else _sure(row, "total_bytes")

    def training_bytes(self, analysis: Analysis) -> int | str:
        """The training peak as it was, or why that is unknown."""
        row = self._row(analysis)
        if isinstance(row, str):
            return row
        step = row.part("training")
        if step is None:
            return f"the baseline has no training step; {_AGAIN}, with --train"
        recipe = step.part("recipe")
        now = recipe_row(analysis.settings.recipe)
        differs = _difference(now, {} if recipe is None else recipe.values)
        if differs:
            return f"the baseline is of another recipe ({differs}); {_AGAIN}"
        doubt = _doubt(row)
        return doubt or _sure(step, "peak_bytes")

    def _row(self, analysis: Analysis) -> Saved | str:
        rows = [row for row in self.rows if self._is_of(row, analysis.path)]
        if not rows:
            return f"the baseline {shortened(self.file)} has no such model; {_AGAIN}"
        differences = [_other_setting(analysis, row) for row in rows]
        for row, difference in zip(rows, differences, strict=True):
            if not difference:
                return row
        return f"the baseline is of another setting ({differences[0]}); {_AGAIN}"

    def _is_of(self, row: Saved, path: str) -> bool:
        here = printable(os.path.abspath(path))  # noqa: PTH100 - links are not followed
        there = row.text("path") or ""
        return any(here == _whole(folder, there) for folder in self.folders)


def read_baseline(file: str, folder: Path | None) -> Baseline:
    """Read a baseline.

    :raises OnnxmemError: the file cannot be opened or is no report.
    """
    folders = (Path.cwd(),) if folder is None else (Path.cwd(), folder)
    return Baseline(file, read_saved(file), folders)


def _whole(folder: Path, path: str) -> str:
    return printable(os.path.normpath(os.path.join(os.path.abspath(folder), path)))  # noqa: PTH100, PTH118


def _other_setting(analysis: Analysis, row: Saved) -> str:
    """What differs in the setting; ``""`` where nothing does."""
    settings = row.part("settings")
    if settings is None:
        return row.text("status") or "no settings"
    asked = analysis.settings
    shapes = {name: list(shape) for name, shape in asked.shapes.items()}
    now = {"batch": asked.batch, "graph": asked.graph or "raw"}
    there = settings.values
    return (
        _difference(now, {key: there.get(key) for key in now})
        or _difference(asked.dims, _inner(settings, "dims"))
        or _difference(shapes, _inner(settings, "shapes"))
    )


def _inner(row: Saved, key: str) -> Mapping[str, object]:
    part = row.part(key)
    return {} if part is None else part.values


def _difference(now: Mapping[str, object], before: Mapping[str, object]) -> str:
    """The first key that both have and that differs, with both values."""
    for key in _shared(now, before):
        if now[key] != before[key]:
            return f"{key} {before[key]}, not {now[key]}"
    return ""


def _shared(now: Iterable[str], before: Mapping[str, object]) -> Iterable[str]:
    return (key for key in now if key in before)


def _doubt(row: Saved) -> str:
    if row.text("status") == "ok":
        return ""
    return f"the baseline knows it in part only (status {row.text('status')})"


def _sure(row: Saved, key: str) -> int | str:
    if row.values.get("status") is not None and (doubt := _doubt(row)):
        return doubt
    size_bytes = row.size_bytes(key)
    return "the baseline does not know it" if size_bytes is None else size_bytes
