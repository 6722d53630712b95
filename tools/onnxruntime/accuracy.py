"""Holds what onnxmem predicts of onnxruntime against the measured truth, setting by setting.

Usage: python tools/onnxruntime/accuracy.py FOLDER [NAME...] [--emulated] [--held-out] [--json FILE]

``FOLDER`` is that of ``corpus.py`` and ``truth.py``. Every prediction starts from the model's own
file. ``--emulated``: as where onnxruntime is not installed. ``--held-out``: the models that no rule
was made on, and no others. Prints a table, and every setting that is not exact with its figures.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from onnxmem.measure.options import SessionOptions
from onnxmem.model import Request, build, load, prepare
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.session_graph import (
    ModelAt,
    Opening,
    optimised_model,
    session_graph,
)

FIGURES = (
    "requested_peak_bytes",
    "trajectory",
    "with_scratch_peak_bytes",
    "pattern_block_bytes",
    "base_bytes",
    "in_use_peak_bytes",
    "held_bytes",
    "held_steady_bytes",
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One setting: predicted and measured by figure; of the trajectory 1 where it is exact."""

    setting: str
    pairs: Mapping[str, tuple[int, int]]
    remarks: tuple[str, ...]

    def error(self, figure: str) -> float:
        """100 x (predicted / measured - 1)."""
        predicted, measured = self.pairs[figure]
        if predicted == measured:
            return 0.0
        return 100 * (predicted / measured - 1) if measured else 100.0


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[Compared] = []
    for folder in sorted(path.parent for path in asked.folder.glob("*/entry.json")):
        entry = json.loads((folder / "entry.json").read_text())
        is_wanted = folder.name in asked.names if asked.names else True
        if is_wanted and entry["held_out"] == asked.held_out:
            rows.extend(compared(folder, emulated=asked.emulated))
    for row in rows:
        wrong = {name: row.pairs[name] for name in FIGURES if row.error(name)}
        if wrong:
            print(row.setting, wrong, *row.remarks)
    print(table(rows))
    if asked.json:
        asked.json.write_text(json.dumps({row.setting: row.pairs for row in rows}, indent=1))


def compared(folder: Path, *, emulated: bool) -> Iterator[Compared]:
    """Every measured setting of one model."""
    file = load(folder / "model.onnx")
    prepared = prepare(file)
    made: dict[Any, Any] = {}
    for path in sorted(folder.glob("*/figures.json")):
        measured = json.loads(path.read_text())
        setting = measured["setting"]
        if measured.get("requested_peak_bytes") is None:
            continue
        shapes = json.loads((path.parent / "request.json").read_text())["shapes"]
        request = Request(shapes={name: tuple(dims) for name, (_, dims) in shapes.items()})
        try:
            bound = build(prepared, request)
            opening = Opening(setting["level"], setting["fixed"], not emulated)
            key = (opening, setting["batch"] if opening.fixed_dims or emulated else None)
            if key not in made:
                made[key] = optimised_model(ModelAt(file, prepared, bound), opening)
            session = session_graph(made[key], bound.binding.shapes)
            options = SessionOptions(enable_mem_reuse=setting["reuse"])
            figures, unknown = arena_figures(session, options)
        except Exception as fault:  # noqa: BLE001 - a fault is a result of its own here
            print(path.parent, type(fault).__name__, fault)
            zero = {name: (0, measured.get(name) or 1) for name in FIGURES}
            yield Compared(f"{folder.name}/{path.parent.name}", zero, ())
            continue
        trajectory = [sample.requested_bytes - figures.base_bytes for sample in figures.nodes]
        truth = [step - measured["base_bytes"] for step in measured["requested"]]
        pairs = {
            name: (getattr(figures, name), measured[name])
            for name in FIGURES
            if name != "trajectory"
        }
        pairs["trajectory"] = (int(trajectory == truth), 1)
        remarks = tuple(f"{f.code}: {f.message}"[:200] for f in unknown.findings())
        yield Compared(f"{folder.name}/{path.parent.name}", pairs, remarks)


def table(rows: list[Compared]) -> str:
    """A row for each figure: exact, within 5 and 10 %, and the spread of the error."""
    lines = ["| figure | settings | exact | within 5 % | within 10 % | min | median | max |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name in FIGURES:
        errors = [row.error(name) for row in rows]
        if not errors:
            continue
        shares = [
            f"{sum(abs(e) <= limit for e in errors) / len(errors):.1%}" for limit in (0, 5, 10)
        ]
        spread = (
            [f"{e:+.1f} %" for e in (min(errors), median(errors), max(errors))]
            if name != "trajectory"
            else ["", "", ""]
        )
        lines.append("| " + " | ".join([name, str(len(errors)), *shares, *spread]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
