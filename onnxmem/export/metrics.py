"""The figures as one flat mapping of names to numbers, for an experiment tracker.

``mlflow.log_metrics(onnxmem.to_metrics(analysis))`` and its like. A name is the figure's path in
the JSON contract with dots between, of letters, digits, ``_``, ``-`` and ``.`` alone, which every
tracker takes (MLflow: mlflow/utils/validation.py, which adds ``/``, ``:`` and blanks).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from onnxmem.analysis.analysis import Analysis

_NO_FIGURES: Final = frozenset(
    {"path", "status", "error", "settings", "runtime", "recipe", "layers", "findings", "peak_rows"}
)
"""Keys of a row that hold no figures, or hold them a second time."""
_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def to_metrics(analysis: Analysis) -> dict[str, int | float]:
    """Every figure that is known, by name: bytes, counts, the batch; what is unknown is absent."""
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


def _flat(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, int | float]]:
    for key, value in values.items():
        name = prefix + _OTHER.sub("_", key)
        if key in _NO_FIGURES or isinstance(value, bool):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, int | float):
            yield name, value
