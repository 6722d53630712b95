"""How much longer an analysis takes with a training step than without one, for each model.

Usage: python tools/benchmarks/training_time.py [--batch N] [--rounds N] [--chain N ... | MODEL ...]

``--chain`` measures chains of so many nodes, as ``scale.py`` makes them, in place of models. Prints
milliseconds of CPU time, the least of some rounds in which the two analyses take turns, and their
ratio. Without MODEL all of ``models/``. Exits with 1 where a ratio is above ``--at-most``.
"""

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scale import chain

from onnxmem import analyze

MODELS = Path(__file__).parent.parent.parent / "models"


def milliseconds(model: Path | bytes, batch: int, *, train: bool) -> float:
    """CPU time of one analysis of a model."""
    gc.collect()  # else one analysis pays for what another left behind
    start = time.process_time_ns()
    analyze(model, batch=batch, train=train)
    return (time.process_time_ns() - start) / 1e6


def least(model: Path | bytes, batch: int, rounds: int) -> tuple[float, float]:
    """The shortest analysis without training, and the shortest with it."""
    for train in (False, True):
        milliseconds(model, batch, train=train)
    turns = [
        (milliseconds(model, batch, train=False), milliseconds(model, batch, train=True))
        for _ in range(rounds)
    ]
    without, trained = zip(*turns, strict=True)
    return min(without), min(trained)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per model, and the largest ratio; 1: it is too large."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-most", type=float, default=2.0, metavar="RATIO")
    parser.add_argument("--chain", type=int, nargs="+", default=(), metavar="NODES")
    options = parser.parse_args(arguments)
    print(f"{'ms of CPU time':32}{'inference':>11}{'training':>11}{'ratio':>8}")
    worst = 0.0
    models: dict[str, Path | bytes] = {
        f"chain of {count:,} nodes": chain(count).SerializeToString() for count in options.chain
    }
    if not models:
        models = {path.name: path for path in options.models or sorted(MODELS.glob("*.onnx"))}
    for name, model in models.items():
        without, trained = least(model, options.batch, options.rounds)
        ratio = trained / without
        worst = max(worst, ratio)
        print(f"{name:32}{without:11.1f}{trained:11.1f}{ratio:8.2f}", flush=True)
    print(f"{'largest':32}{worst:30.2f}")
    return int(worst > options.at_most)


if __name__ == "__main__":
    sys.exit(main())
