"""Arenas of a server with four runs at once: repeated measurements, and the predicted interval.

Usage: python tools/onnxruntime/at_once_table.py FOLDER OUT.csv [MODEL...] [--repeats N]

``FOLDER`` holds the models of ``serving_truth.SERVED`` that are not in ``models/``. The first mix
of each model is served in so many processes, one after another. A row has what its arena reserved
at most, and the interval that ``onnxmem.simulate`` gives for the same requests; it is written when
it was measured.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from serving_truth import AT_ONCE, REPEATS, SEED, SERVED, measured, path_of, uniform

import onnxmem

COLUMNS = ("model", "num_requests", "repeat", "reserved_peak_bytes", "low_bytes", "high_bytes")


def main() -> None:
    """Measure each model, and append its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    asked = parser.parse_args()
    if not asked.out.exists():
        add(asked.out, COLUMNS)
    for served in SERVED:
        if asked.models and served.name not in asked.models:
            continue
        path = path_of(served, asked.folder)
        requests = uniform(served, Random(SEED))  # noqa: S311 - a reproducible order
        interval = onnxmem.simulate(str(path), requests, concurrency=AT_ONCE).interval
        if interval is None:
            sys.exit("one run at a time has no interval")
        for repeat in range(asked.repeats):
            row = measured(served, path, "uniform", AT_ONCE)
            if row is not None:
                figures = (row["reserved_peak_bytes"], interval.low_bytes, interval.high_bytes)
                add(asked.out, (served.name, len(requests), repeat, *figures))


def add(path: Path, row: Sequence[object]) -> None:
    """Append a row."""
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
