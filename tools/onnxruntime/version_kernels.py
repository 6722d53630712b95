"""Which kernels a version of onnxruntime has changed: their scratch and their packed weights.

The rules hold on every row of ``tests/data/onnxruntime_kernels.json.gz`` (``test_scratch.py``,
``test_prepacking.py``), so a version differs where its own rows differ from these.
"""

import gzip
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from version_rules import ROOT, Family

_TRUTH: Final = ROOT / "tests" / "data" / "onnxruntime_kernels.json.gz"
_SCRIPT: Final = ROOT / "tools" / "kernel_truth.py"
_FIGURES: Final = {"kernels: scratch": "temp", "kernels: prepacking": "base"}
Rows = Mapping[str, Mapping[str, Any]]


def kernels(python: Path, kept: Path) -> Mapping[str, Family]:
    """Measure every kernel with the onnxruntime of an environment, unless ``kept`` is there."""
    if not kept.exists():
        with kept.with_suffix(".log").open("w") as log:
            subprocess.run([python, _SCRIPT, kept], stdout=log, stderr=log, check=True)  # noqa: S603
    known, found = _rows(_TRUTH), _rows(kept)
    return {name: _compared(known, found, figure) for name, figure in _FIGURES.items()}


def _compared(known: Rows, found: Rows, figure: str) -> Family:
    here = {node: row for node, row in known.items() if row[figure] is not None}
    both = {node: row for node, row in here.items() if node in found}
    return Family(
        compared=len(both),
        moved=_names(row for node, row in both.items() if found[node][figure] != row[figure]),
        refused=_names(row for node, row in here.items() if node not in found),
    )


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(f"{row['op']}: {row['case']}" for row in rows)


def _rows(path: Path) -> Rows:
    """Measurements by what was measured."""
    rows = json.loads(gzip.decompress(path.read_bytes()))["rows"]
    told = ("temp", "base", "case")
    return {
        json.dumps({key: row[key] for key in sorted(row) if key not in told}): row for row in rows
    }
