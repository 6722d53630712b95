"""The accuracy of models, from a table of the reader's own: a CSV of ``model`` and ``accuracy``."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TextIO

from onnxmem.errors import UsageError, shortened


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Numbers by how a table names its models, in whatever unit it has."""

    by_name: Mapping[str, float]

    def of(self, path: str) -> float | None:
        """That of a model: by its path, else its file's name, else that without its suffix."""
        file = PurePosixPath(path.replace("\\", "/"))
        names = (path, file.name, file.stem)
        return next((self.by_name[name] for name in names if name in self.by_name), None)


def read_accuracies(path: str) -> Accuracies:
    """Read a CSV with a head; columns other than ``model`` and ``accuracy`` are left alone.

    :raises UsageError: it is no such table; the message says in which line.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return Accuracies(_read(file, shortened(path)))
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else fault
        message = f"{shortened(path)}: cannot be read as CSV: {reason}"
        raise UsageError(message) from fault


def _read(file: TextIO, place: str) -> dict[str, float]:
    rows = csv.DictReader(file)
    missing = [name for name in ("model", "accuracy") if name not in (rows.fieldnames or ())]
    if missing:
        message = (
            f"{place}: has no column {' and no '.join(missing)}; its first line names the columns, "
            "as in model,accuracy"
        )
        raise UsageError(message)
    found: dict[str, float] = {}
    for row in rows:
        where = f"{place}, line {rows.line_num}"
        name = row["model"] or ""
        if name in found:
            message = f"{where}: names {shortened(name)} again; keep one of the two lines"
            raise UsageError(message)
        found[name] = _number(row["accuracy"], where)
    return found


def _number(text: str | None, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        message = f"{where}: accuracy {shortened(text or '')!r} is no number; write it as in 76.13"
        raise UsageError(message)
    return number
