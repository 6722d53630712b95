"""What the advised settings save, predicted and measured: a table of ``docs/accuracy.md``.

Usage: python tools/onnxruntime/advice_table.py FOLDER

``FOLDER`` is that of ``corpus.py``; ``tests/data/onnxruntime/advice.json`` has the measured rows,
made by ``advice.py``. Advised is what ``onnxmem advise`` ranks first for each model; the saving
is of what a session keeps resident after three runs, weights aside. Arena shrinkage is left out: it
trades memory between the runs for time.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import corpus

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.runtimes.onnxruntime.advice import Choice, combined_choices
from onnxmem.runtimes.onnxruntime.session_graph.loaded import session_graph
from onnxmem.runtimes.onnxruntime.session_graph.optimization import (
    ModelAt,
    SessionConfig,
    optimized_model,
)
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

MEASURED = Path(__file__).parents[2] / "tests" / "data" / "onnxruntime" / "advice.json"
ARENAS = {"kNextPowerOfTwo": "next_power_of_two", "kSameAsRequested": "same_as_requested"}
MIB = 2**20
NEAR_POINTS, NEAR_RATIO = 10, 1.05


@dataclass(frozen=True, slots=True)
class Proof:
    """One model: resident bytes by default and as advised, predicted and measured."""

    model: str
    batch: int
    advised: tuple[str, ...]
    predicted: tuple[int, int]
    measured: tuple[int, int]
    best_bytes: int
    """The least that any settings of the grid were measured to keep."""
    time_ratio: float
    """Of a run's time to the default's, sessions in turn in one process."""

    def saving(self, pair: tuple[int, int]) -> float:
        """Percent of the default that the advised settings save."""
        return 100 * (1 - pair[1] / pair[0])


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1])
    rows = json.loads(MEASURED.read_text())["rows"]
    proofs = [proof(folder / row["model"], row) for row in rows]
    print(
        "| model, batch | advised | resident, default | advised | saving, predicted | measured "
        "| best of the grid | time |\n|---|---|---|---|---|---|---|---|"
    )
    for each in proofs:
        print(line(each))
    savings = [(each.saving(each.predicted), each.saving(each.measured)) for each in proofs]
    print(
        f"| median of {len(proofs)} | | | | {median(one for one, _ in savings):.0f} % "
        f"| {median(other for _, other in savings):.0f} % "
        f"| | {median(each.time_ratio for each in proofs):.2f} x |"
    )
    near = sum(abs(one - other) <= NEAR_POINTS for one, other in savings)
    best = sum(each.measured[1] <= NEAR_RATIO * each.best_bytes for each in proofs)
    print(f"saving within 10 points: {near} of {len(proofs)}; best or within 5 %: {best}")


def proof(folder: Path, row: dict[str, Any]) -> Proof:
    """Predict and rank the settings of one model, and find them among those measured."""
    choices = ranked(folder, row["batch"])
    best = choices[0]
    own = next(choice for choice in choices if not choice.changes)
    grid = [item for item in row["options"] if item["arena"] != "off" and not item["shrink"]]
    default, advised = (measured(grid, choice) for choice in (own, best))
    key = "anonymous_bytes_grown"
    return Proof(
        row["model"],
        row["batch"],
        best.changes,
        (own.resident_bytes, best.resident_bytes),
        (default[key], advised[key]),
        min(item[key] for item in grid),
        advised["time_ratio"],
    )


def ranked(folder: Path, batch: int) -> tuple[Choice, ...]:
    """The combinations of settings for a model of the corpus, the least memory first."""
    entry = corpus.read(folder)
    file = load(folder / "model.onnx")
    prepared = prepare(file)
    symbols = {**entry.dims, **({entry.batch: batch} if entry.batch else {})}
    shapes = {
        name: tuple(symbols[dim] if isinstance(dim, str) else dim for dim in dims)
        for name, dims in entry.shapes.items()
    }
    bound = build(prepared, Request(batch, symbols, shapes))
    made = optimized_model(ModelAt(file, prepared, bound), SessionConfig())
    return combined_choices(session_graph(made, bound.binding.shapes), SessionOptions())


def measured(grid: list[dict[str, Any]], choice: Choice) -> dict[str, Any]:
    """The measured row of the settings that a choice stands for."""
    options = choice.options
    asked = (
        options.enable_mem_reuse,
        options.enable_mem_pattern,
        ARENAS[options.arena_extend_strategy],
    )
    return next(item for item in grid if (item["reuse"], item["pattern"], item["arena"]) == asked)


def line(each: Proof) -> str:
    """A row of the table; sizes in MiB."""
    default, advised = (size / MIB for size in each.measured)
    return (
        f"| {each.model}, {each.batch} | {', '.join(each.advised) or 'as it is'} "
        f"| {default:.1f} | {advised:.1f} "
        f"| {each.saving(each.predicted):.0f} % | {each.saving(each.measured):.0f} % "
        f"| {each.best_bytes / MIB:.1f} | {each.time_ratio:.2f} x |"
    )


if __name__ == "__main__":
    main()
