"""Holds what onnxmem predicts of onnxruntime against the measured truth, setting by setting.

Usage: python tools/onnxruntime/accuracy.py [FOLDER] [--emulated] [--held-out] [--details]

Without ``FOLDER``: the models of ``models/`` and the ``light_*`` ones of the onnx package; its
table is in ``docs/accuracy.md``. With the ``FOLDER`` of ``corpus.py``: those of packages too.
Predictions start from the model's own file, and know the small integer inputs that were fed.
``--emulated``: as where onnxruntime is not installed.
``--held-out``: the models that no rule was made on. ``--details``: every setting that is not exact,
with its figures.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Graph
from onnxmem.model.input_values import may_be_setting
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel, session_graph
from onnxmem.runtimes.onnxruntime.session_graph.optimization import (
    ModelAt,
    SessionConfig,
    optimized_model,
)
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Values

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
DATA = HERE.parents[1] / "tests" / "data" / "onnxruntime"
TRUTH, HELD_OUT = DATA / "truth.json.gz", DATA / "truth_held_out.json.gz"
LABELS = {
    "requested_peak_bytes": "peak requested by kernels",
    "with_scratch_peak_bytes": "peak with scratch",
    "pattern_block_bytes": "memory-pattern buffer",
    "base_bytes": "arena initializers",
    "in_use_peak_bytes": "allocated chunks",
    "held_bytes": "arena reserved",
    "held_steady_bytes": "arena reserved (steady state)",
    "node by node": "node by node",
}
FIGURES = tuple(LABELS)
"""The last is exact or not: what is requested at the end of every node."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One setting: predicted and measured by figure; of the nodes 1 where all are exact."""

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
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--details", action="store_true")
    asked = parser.parse_args()
    truth = read_truth(HELD_OUT if asked.held_out else TRUTH)
    rows = list(compared(truth, asked.folder, emulated=asked.emulated))
    for row in rows if asked.details else ():
        wrong = {name: row.pairs[name] for name in FIGURES if row.error(name)}
        if wrong:
            print(row.setting, wrong, *row.remarks, flush=True)
    print(table(rows))


def read_truth(path: Path) -> dict[str, Any]:
    """The measured rows and what their models are fed."""
    with gzip.open(path) as data:
        truth: dict[str, Any] = json.load(data)
    return truth


def compared(
    truth: Mapping[str, Any], folder: Path | None, *, emulated: bool = False
) -> Iterator[Compared]:
    """Every measured setting of the models that are at hand."""
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for row in truth["rows"]:
        by_model.setdefault(row["model"], []).append(row)
    for name, rows in by_model.items():
        path = located(name, truth["models"][name], folder)
        if path is not None:
            yield from _of_model(path, truth["models"][name], rows, emulated=emulated)


def located(name: str, fed: Mapping[str, Any], folder: Path | None) -> Path | None:
    """A model's file; ``None`` where it is not at hand."""
    if folder is not None and (folder / name / "model.onnx").exists():
        return folder / name / "model.onnx"
    if fed.get("rebatched") or fed.get("package"):
        return None
    own = name.removesuffix(".own")
    return LIGHT / f"{own}.onnx" if own.startswith("light_") else MODELS / f"{own}.onnx"


def _of_model(
    path: Path, fed: Mapping[str, Any], rows: list[Mapping[str, Any]], *, emulated: bool
) -> Iterator[Compared]:
    file = load(path)
    prepared = prepare(file)
    made: dict[Any, OptimizedModel] = {}
    for measured in rows:
        try:
            bound = build(prepared, request_of(fed, measured["batch"]))
            config = SessionConfig(
                measured["level"], measured["fixed"], asks_onnxruntime=not emulated, cpu="avx512"
            )
            key = (config, measured["batch"] if config.fixed_dims else None)
            if key not in made:
                made[key] = optimized_model(ModelAt(file, prepared, bound), config)
            values = values_of(fed, bound.graph)
            session = session_graph(made[key], bound.binding.shapes, values)
            options = SessionOptions(enable_mem_reuse=measured["reuse"])
            figures, unknown = arena_figures(session, options)
        except Exception as fault:  # noqa: BLE001 - a fault is a result of its own here
            nothing = {name: (0, measured.get(name, 1)) for name in FIGURES}
            yield Compared(setting_of(measured), nothing, (f"{type(fault).__name__}: {fault}",))
            continue
        trajectory = [sample.requested_bytes for sample in figures.nodes]
        base = measured["base_bytes"] - figures.base_bytes
        pairs = {name: (getattr(figures, name), measured[name]) for name in FIGURES[:-1]}
        same = [step - base for step in measured["requested"]] == trajectory
        remarks = tuple(f"{f.code}: {f.message}"[:200] for f in unknown.findings())
        yield Compared(setting_of(measured), {**pairs, FIGURES[-1]: (int(same), 1)}, remarks)


def request_of(fed: Mapping[str, Any], batch: int | None) -> Request:
    """The dims that a model was fed with."""
    symbols = dict(fed.get("dims", {}))
    if batch is not None and fed.get("batch"):
        symbols[fed["batch"]] = batch
    shapes = {
        name: tuple(symbols[dim] if isinstance(dim, str) else dim for dim in dims)
        for name, dims in fed.get("shapes", {}).items()
    }
    return Request(batch, symbols, shapes)


def values_of(fed: Mapping[str, Any], graph: Graph) -> dict[str, Values]:
    """The elements of small inputs that a model was fed with: 1, where nothing else is said."""
    given = {name: (value,) for name, value in fed.get("values", {}).items()}
    tensors = (graph.tensors[name] for name in graph.inputs)
    return {tensor.name: (1,) for tensor in tensors if may_be_setting(tensor)} | given


def setting_of(row: Mapping[str, Any]) -> str:
    """A name for a row."""
    dims = "fixed" if row["fixed"] else "symbolic"
    reuse = "" if row["reuse"] else ", no reuse"
    return f"{row['model']}, batch {row['batch']}, level {row['level']}, {dims}{reuse}"


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
            if name != FIGURES[-1]
            else ["", "", ""]
        )
        label = LABELS[name]
        lines.append("| " + " | ".join([label, str(len(errors)), *shares, *spread]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
