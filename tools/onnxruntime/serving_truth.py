"""What a process of onnxruntime takes while it serves requests of changing shapes: the truth.

Usage: python tools/onnxruntime/serving_truth.py measure FOLDER OUT.json.gz [MODEL...]
       python tools/onnxruntime/serving_truth.py at-once FOLDER OUT.json.gz [MODEL...]
       python tools/onnxruntime/serving_truth.py compare FOLDER OUT.json.gz [MODEL...]

``FOLDER`` holds the models of ``SERVED`` that are not in ``models/``. ``measure`` serves each mix
of requests one at a time, ``at-once`` serves the first mix four at a time in so many processes, and
``compare`` holds ``onnxmem.simulate`` against either file.
"""

import argparse
import gzip
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import onnxmem
from onnxmem.decisions.simulate import Interval, Simulation
from onnxmem.errors import Finding, OnnxmemError
from onnxmem.measuring.served import ServedLoad, ServedMeasurement, measure_requests
from onnxmem.model.requests import listed_requests

SEED = 27
REPEATS = 20
SHARE_OF_LARGE = 0.05
NEAR = 0.01
AT_ONCE = 4
MODELS = Path(__file__).resolve().parents[2] / "models"
Row = dict[str, int]


@dataclass(frozen=True, slots=True)
class Served:
    """A model and the ranges of its requests."""

    name: str
    ranges: Mapping[str, tuple[int, int]]
    count: int
    """Requests: fewer of a slow model."""
    held_out: bool = False
    """No rule was made on it."""


SERVED = (
    Served("mlp", {"batch": (1, 512)}, 500),
    Served("lstm_classifier", {"batch": (1, 16), "time": (1, 64)}, 500),
    Served("resnet50", {"batch": (1, 6)}, 120),
    Served("unet", {"N": (1, 6)}, 80),
    Served("bert_base", {"batch": (1, 4), "sequence": (8, 64)}, 150),
    Served("gpt2", {"batch_size": (1, 4), "sequence_length": (8, 64)}, 150),
    Served("gru_tagger", {"batch": (1, 16), "sequence": (1, 96)}, 500, held_out=True),
    Served("mobilenet_v2.int8", {"batch": (1, 8)}, 250, held_out=True),
    Served(
        "smollm_cached",
        {"batch": (1, 3), "sequence": (1, 8), "past": (1, 96)},
        200,
        held_out=True,
    ),
    Served("distilbert_fp16", {"batch": (1, 6), "sequence": (4, 96)}, 400, held_out=True),
    Served("wav2vec2", {"batch": (1, 3), "length": (2000, 12000)}, 300, held_out=True),
    Served("detr", {"batch": (1, 2), "height": (64, 224), "width": (64, 224)}, 200, held_out=True),
)


def served_by_name(name: str) -> Served:
    """The model of a name."""
    return next(each for each in SERVED if each.name == name)


def uniform(served: Served, draw: Random) -> list[Row]:
    """Each number of a range as likely as any other."""
    ranges = served.ranges.items()
    return [{name: draw.randint(*ends) for name, ends in ranges} for _ in range(served.count)]


def mostly_small(served: Served, draw: Random) -> list[Row]:
    """Nineteen of twenty requests from the lowest quarter of each range, one from the highest."""
    found = []
    for _ in range(served.count):
        is_large = draw.random() < SHARE_OF_LARGE
        row = {}
        for name, (low, high) in served.ranges.items():
            quarter = (high - low) // 4
            row[name] = (
                draw.randint(high - quarter, high) if is_large else draw.randint(low, low + quarter)
            )
        found.append(row)
    return found


def up_and_down(served: Served, draw: Random) -> list[Row]:
    """Half of the requests from small to large, the others back."""
    rows = sorted(uniform(served, draw), key=lambda row: (_size(row), tuple(row.values())))
    return rows[::2] + rows[1::2][::-1]


MIXES = {each.__name__: each for each in (uniform, mostly_small, up_and_down)}


def main() -> None:
    """Measure or compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("measure", "at-once", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args()
    chosen = [each for each in SERVED if not asked.models or each.name in asked.models]
    if asked.command == "compare":
        compare(asked.folder, asked.out, {each.name for each in chosen})
        return
    cases = at_once(chosen) if asked.command == "at-once" else one_at_a_time(chosen)
    for served, mix, concurrency in cases:
        row = measured(served, path_of(served, asked.folder), mix, concurrency)
        if row is not None:
            _add(asked.out, row)


def one_at_a_time(chosen: list[Served]) -> Iterator[tuple[Served, str, int]]:
    """Every mix of each model."""
    yield from ((served, mix, 1) for served in chosen for mix in MIXES)


def at_once(chosen: list[Served]) -> Iterator[tuple[Served, str, int]]:
    """The first mix of each model, several times."""
    yield from ((served, "uniform", AT_ONCE) for served in chosen for _ in range(REPEATS))


def path_of(served: Served, folder: Path) -> Path:
    """Where the model lies."""
    own = MODELS / f"{served.name}.onnx"
    return own if own.exists() else folder / f"{served.name}.onnx"


def measured(served: Served, path: Path, mix: str, concurrency: int) -> dict[str, Any] | None:
    """A row of the truth."""
    rows = MIXES[mix](served, Random(SEED))  # noqa: S311 - a reproducible order
    load = ServedLoad(listed_requests(rows), concurrency)
    start = time.time()
    found = measure_requests(str(path), load)
    if isinstance(found, Finding):
        print(f"{served.name} {mix}: {found.message}", file=sys.stderr)
        return None
    took = f"{found.arena_reserved_bytes:,} B, {time.time() - start:.0f} s"
    print(f"{served.name} {mix} x{concurrency}: {took}", flush=True)
    return _row(served, mix, concurrency, rows, found)


def _row(
    served: Served, mix: str, concurrency: int, rows: list[Row], found: ServedMeasurement
) -> dict[str, Any]:
    reserved = [found.loaded_bytes, *(each.reserved_bytes for each in found.timeline)]
    return {
        "model": served.name,
        "held_out": served.held_out,
        "mix": mix,
        "concurrency": concurrency,
        "seed": SEED,
        "onnxruntime": found.onnxruntime_version,
        "processor": _processor(),
        "dims": list(rows[0]),
        "requests": [list(row.values()) for row in rows],
        "loaded_bytes": found.loaded_bytes,
        # The arena changes after few requests: number of requests served, bytes.
        "reserved": [[i, size] for i, size in enumerate(reserved) if i and size != reserved[i - 1]],
        "reserved_peak_bytes": found.arena_reserved_peak_bytes,
        # Of several at once only the end: the file would have it twenty times.
        "process": [each.resident_bytes for each in found.timeline][-1 if concurrency > 1 else 0 :],
        "input_bytes": found.input_bytes,
        "process_floor_bytes": found.process_floor_bytes,
        "process_peak_bytes": found.process_peak_bytes,
        "proportional_bytes": found.proportional_bytes,
        "load_peak_bytes": found.load_peak_bytes,
    }


def compare(folder: Path, truth: Path, names: set[str]) -> None:
    """Print a line for each mix of each model."""
    by_name = {each.name: each for each in SERVED}
    mixes: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in read_rows(truth):
        if row["model"] in names:
            mixes.setdefault((row["model"], row["mix"], row["concurrency"]), []).append(row)
    for (name, mix, concurrency), rows in mixes.items():
        path, row = path_of(by_name[name], folder), rows[0]
        requests = [dict(zip(row["dims"], each, strict=True)) for each in row["requests"]]
        try:
            found = onnxmem.simulate(str(path), requests, concurrency=concurrency)
        except OnnxmemError as fault:
            print(f"{name} {mix}: {fault}", flush=True)
            continue
        held_out = ", held out" if row["held_out"] else ""
        told = one(row, found) if found.interval is None else several(rows, found.interval)
        print(f"{name} {mix}{held_out}: {told}", flush=True)


def one(row: Mapping[str, Any], found: Simulation) -> str:
    """Requests after which the arena is exact and within 1 %, and the error of the process."""
    pairs = list(
        zip((each.reserved_bytes for each in found.timeline), reserved_after(row), strict=True)
    )
    exact = sum(predicted == measured for predicted, measured in pairs)
    near = sum(abs(predicted / measured - 1) <= NEAR for predicted, measured in pairs)
    # The measured process holds the inputs of all requests from the start on.
    held = [each.process_bytes - each.input_bytes + row["input_bytes"] for each in found.timeline]
    load_peak = (found.load_peak_bytes or 0) + row["input_bytes"]
    errors = (
        ("at the end", _percent(held[-1], row["process"][-1])),
        ("at its peak", _percent(max(load_peak, *held), row["process_peak_bytes"])),
        ("loading", _percent(load_peak, row["load_peak_bytes"])),
    )
    shares = f"{exact} exact, {near} within 1 % of {len(pairs)}"
    return f"{shares}; process " + ", ".join(f"{what} {error}" for what, error in errors)


def several(rows: list[dict[str, Any]], interval: Interval) -> str:
    """The share of repeats within the interval, and its width beside their spread."""
    peaks = [row["reserved_peak_bytes"] for row in rows]
    low, high = interval.low_bytes, interval.high_bytes
    inside = sum(low <= peak <= high for peak in peaks)
    shares = f"{inside} of {len(peaks)} repeats in {low:,} to {high:,}"
    spread = f"they are {min(peaks):,} to {max(peaks):,}"
    return f"{shares}; {spread}"


def _percent(predicted: int, measured: int) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %"


def reserved_after(row: Mapping[str, Any]) -> list[int]:
    """Arena reserved after each request of a row."""
    changes, now, found = dict(row["reserved"]), row["loaded_bytes"], []
    for index in range(1, len(row["requests"]) + 1):
        now = changes.get(index, now)
        found.append(now)
    return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of the truth; none where there is no file."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        rows += json.loads(gzip.decompress(path.read_bytes()))
    return rows


def _add(path: Path, row: Mapping[str, Any]) -> None:
    content = "[\n" + ",\n".join(json.dumps(each) for each in (*read_rows(path), row)) + "\n]\n"
    path.write_bytes(gzip.compress(content.encode(), mtime=0))


def _size(row: Row) -> int:
    size = 1
    for number in row.values():
        size *= number
    return size


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = "AVX-512" if any(" avx512f " in line for line in lines) else "AVX2"
    return f"{names[0] if names else platform.processor()}, {flags}"


if __name__ == "__main__":
    main()
