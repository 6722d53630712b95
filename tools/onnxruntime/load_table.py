"""What a load leaves in the process, predicted and then measured, by how the weights are stored.

Usage: python tools/onnxruntime/load_table.py [MODEL...]

Each model of ``models/``, with random weights, is measured at batch 1 with its weights in the file
and beside it, with adaptive and with fixed thresholds of the C library, and with ``malloc_trim``.
Bytes are of the whole process after three runs (MiB, measured, and the error of the prediction).
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from onnxmem.errors import Finding
from onnxmem.measuring.measuring import MeasureSettings, measure
from onnxmem.model.binding import Request
from onnxmem.model.files import load
from onnxmem.runtimes.from_settings import predict
from onnxmem.runtimes.onnxruntime.memory import SessionRequest
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

MODELS: Final = Path(__file__).parents[2] / "models"
CHOSEN: Final[Mapping[str, Mapping[str, int]]] = {
    "resnet50": {},
    "bert_base": {"sequence": 64},
    "densenet121": {},
    "gpt2": {"sequence_length": 64},
    "alexnet": {},
    "vgg16": {},
    "convnext_tiny": {},
    "inception_v3": {},
    "vit_tiny": {},
    "efficientnet_b0": {},
    "unet": {},
}
LOOKED_AT: Final = 4
"""The first ones were looked at while the rules were made; the others were held out."""
_FIXED: Final = {"malloc_threshold_bytes": 128 << 10}
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "inline": {"weights": "inline"},
    "external": {"weights": "external"},
    "inline, thresholds": {"weights": "inline", **_FIXED},
    "external, thresholds": {"weights": "external", **_FIXED},
    "inline, trim": {"weights": "inline", "trims_heap": True},
}
_MIB: Final = 1 << 20


def main() -> None:
    """Print the table, and the errors of both halves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args().models
    print("| model | " + " | ".join(SETTINGS) + " | saved, predicted | saved | time |")
    print("|---" * (len(SETTINGS) + 4) + "|")
    errors: dict[str, list[float]] = {}
    for name, dims in CHOSEN.items():
        if not asked or name in asked:
            errors[name] = compared(name, dims)
    for title, names in (("looked at", [*CHOSEN][:LOOKED_AT]), ("held out", [*CHOSEN][LOOKED_AT:])):
        known = sorted(abs(each) for name in names for each in errors.get(name, ()))
        if known:
            ninth = known[int(0.9 * (len(known) - 1))]
            text = f"median {median(known):.1f} %, 90th {ninth:.1f} %, largest {known[-1]:.1f} %"
            print(f"{title}: {len(known)} processes, {text}")


def compared(name: str, dims: Mapping[str, int]) -> list[float]:
    """Print the line of a model; the errors of its predictions in percent."""
    path, request = str(MODELS / f"{name}.onnx"), Request(1, dict(dims))
    cells, found = [], {}
    for title, fields in SETTINGS.items():
        options = SessionOptions(**fields)
        measured = measure(path, request, MeasureSettings(options=options))
        if isinstance(measured, Finding):
            raise SystemExit(measured.message)
        predicted = predict(load(path), request, SessionRequest(options=options)).process_bytes
        steady = measured.process_steady_bytes
        if steady is None or predicted is None:
            raise SystemExit(title)
        found[title] = (predicted, steady, min(measured.seconds_per_run))
        cells.append(f"{steady / _MIB:,.0f} ({100 * (predicted / steady - 1):+.1f} %)")
    own = found["inline"]
    best = min(found.values())
    saved = (1 - best[0] / own[0], 1 - best[1] / own[1])
    cells += [f"{100 * each:.0f} %" for each in saved] + [f"{best[2] / own[2]:.2f} x"]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return [100 * (predicted / steady - 1) for predicted, steady, _ in found.values()]


if __name__ == "__main__":
    main()
