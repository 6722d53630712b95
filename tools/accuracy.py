"""Predicted against measured: prints the README's accuracy table, in Markdown.

Usage: python tools/accuracy.py

The measured side lies in ``tests/data/training/truth.json``: live bytes of one steady training step
of 17 native PyTorch networks at two batches each. The predicted side is worked out here, from
the ONNX files beside it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import onnxmem

DATA = Path(__file__).parent.parent / "tests" / "data" / "training"
OPTIMIZERS = ("sgd", "momentum", "adam")
TERMS = {
    "weights": "weight_bytes",
    "gradients": "gradient_bytes",
    "saved activations": "saved_activation_bytes",
    "inputs and targets": "input_bytes",
    "optimizer state": "optimizer_state_bytes",
    "peak of the step": "peak_bytes",
}


def errors_percent() -> dict[str, list[float]]:
    """The error of each term on every row: 34 rows by 3 optimizers."""
    found: dict[str, list[float]] = {term: [] for term in TERMS}
    for row in json.loads((DATA / "truth.json").read_text())["rows"]:
        for optimizer in OPTIMIZERS:
            for term, error in _row_errors(row, optimizer):
                found[term].append(error)
    return found


def _row_errors(row: dict[str, object], optimizer: str) -> Iterator[tuple[str, float]]:
    path = DATA / str(row["file"])
    batch = row["batch"]
    measured = {**row, **_mapping(row[optimizer])}
    analysis = onnxmem.analyze(path, batch=int(str(batch)), train=True, optimizer=optimizer)
    for term, key in TERMS.items():
        predicted, truth = getattr(analysis.training, key), int(str(measured[key]))
        if truth:
            yield term, 100 * (predicted / truth - 1)


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


def table() -> str:
    """The table in Markdown."""
    lines = [
        "| term of a training step | rows | exact | median error | largest error |",
        "|---|---|---|---|---|",
    ]
    for term, errors in errors_percent().items():
        sizes = sorted(map(abs, errors))
        exact = sum(size == 0 for size in sizes)
        median, largest = sizes[len(sizes) // 2], sizes[-1]
        cells = (term, len(sizes), exact, f"{median:.2f} %", f"{largest:.2f} %")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
