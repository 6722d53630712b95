"""Ten models, three mixes, one and four at once, default and advised settings: predicted, measured.

Usage: python tools/onnxruntime/serving_grid.py measure FOLDER OUT.csv [--models NAME...]
           [--repeats N] [--one-at-a-time] [--num-requests N] [--settings default]
       python tools/onnxruntime/serving_grid.py predict FOLDER OUT.csv [--models NAME...]
       python tools/onnxruntime/serving_grid.py table OUT.csv [--models NAME...]

``FOLDER`` holds the models of ``serving_truth.SERVED`` that are not in ``models/``. Each repeat is
a process of its own, one after another, and a row of the file; what the file has already is not
measured again, so that a later call adds repeats. One at a time there is one repeat, for nothing
depends on chance. Four at once, a row has the intervals that ``onnxmem.simulate`` gives.
``predict`` replays what the file has with the settings that were measured, and measures nothing.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any, Self, TypeVar

from serving_truth import AT_ONCE, MIXES, NEAR, SEED, SERVED, Served, path_of

from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.decisions.serving_advice import advise_serving
from onnxmem.decisions.simulate import Serving, Simulation, simulate
from onnxmem.errors import Finding
from onnxmem.measuring.measuring import MeasureSettings
from onnxmem.measuring.served import ServedLoad, ServedMeasurement, measure_requests
from onnxmem.model.requests import listed_requests
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings, num_cores

Key = tuple[str, str, int, str]
"""Model, mix, number at once, settings."""
DEFAULT, ADVISED = "default", "advised"
NUM_REQUESTS = {
    "mlp": 500,
    "lstm_classifier": 100,
    "bert_base": 30,
    "gpt2": 30,
    "gru_tagger": 100,
    "mobilenet_v2.int8": 50,
    "smollm_cached": 60,
    "distilbert_fp16": 60,
    "wav2vec2": 300,
    "detr": 20,
}
"""By model: fewer of a slow one."""
NAMED: dict[str, dict[str, Any]] = {
    "enable_mem_pattern=False": {"enable_mem_pattern": False},
    "kSameAsRequested": {"arena_extend_strategy": "kSameAsRequested"},
    "arena shrinkage after each run": {"shrinks_arena": True},
    "external weights": {"weights": "external"},
    "enable_mem_reuse=False": {"enable_mem_reuse": False},
    "malloc_trim(0)": {"trims_heap": True},
}
WIDEST = 2
"""An interval is at most so many times as wide as the repeats are apart."""


@dataclass(frozen=True, slots=True)
class Row:
    """One process that served a mix."""

    model: str
    held_out: int
    mix: str
    concurrency: int
    settings: str
    changes: str
    """What the settings change, in words."""
    num_requests: int
    repeat: int
    num_exact: int
    """Requests after which the arena was exact; one at a time."""
    num_near: int
    """And those within 1 %."""
    reserved_peak_bytes: int
    low_bytes: int
    high_bytes: int
    input_bytes: int
    """Of the inputs of all requests, which the measured process holds."""
    process_bytes: int
    """At the end."""
    predicted_process_bytes: int
    process_most_bytes: int
    """In the larger outcome of the heap."""
    process_low_bytes: int
    process_high_bytes: int
    """Of several at once, the least and the most of the draws, without another outcome of the
    heap."""
    process_peak_bytes: int
    predicted_process_peak_bytes: int
    seconds: float
    cores: int
    """Of the machine that measured."""


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("measure", "predict", "table"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--one-at-a-time", action="store_true")
    parser.add_argument("--num-requests", type=int, help="default: fewer of a slow model")
    parser.add_argument("--settings", choices=(DEFAULT, ADVISED), help="default: both")
    asked = parser.parse_args()
    if asked.command == "table":
        rows = read(asked.paths[0])
        table([each for each in rows if not asked.models or each.model in asked.models])
        return
    folder, out = asked.paths
    if asked.command == "predict":
        predict_again(folder, out, asked.models)
        return
    for repeat in range(asked.repeats):
        for cell in cells(asked.models, asked.num_requests):
            if asked.settings not in (None, cell.settings):
                continue
            is_alone = cell.concurrency == 1
            if is_alone if asked.one_at_a_time else repeat == 0 or not is_alone:
                cell.add(folder, out, repeat)


@dataclass(frozen=True, slots=True)
class Cell:
    """A model, a mix, a number at once, and settings."""

    served: Served
    mix: str
    concurrency: int
    settings: str
    num_requests: int | None = None
    """``None``: as ``NUM_REQUESTS`` has them."""

    @property
    def rows(self) -> list[dict[str, int]]:
        """Its requests."""
        draw = Random(SEED)  # noqa: S311 - a reproducible order
        if self.num_requests is not None:
            return MIXES[self.mix](replace(self.served, count=self.num_requests), draw)
        rows = MIXES[self.mix](self.served, draw)
        step = len(rows) // NUM_REQUESTS[self.served.name]
        return rows[::step][: NUM_REQUESTS[self.served.name]]

    @classmethod
    def of(cls, key: Key) -> Self:
        """The cell of a key."""
        served = next(each for each in SERVED if each.name == key[0])
        return cls(served, *key[1:])

    @property
    def key(self) -> Key:
        """What a row of the file has of it."""
        return (self.served.name, self.mix, self.concurrency, self.settings)

    def add(self, folder: Path, out: Path, repeat: int) -> None:
        """Measure a process and append its row, unless the file has it."""
        if (self.key, repeat) in ((key_of(each), each.repeat) for each in read(out)):
            return
        changes, options, predicted = expected(self.key, self.num_requests, folder)
        load = ServedLoad(listed_requests(self.rows), self.concurrency)
        path = str(path_of(self.served, folder))
        found = measure_requests(path, load, settings=MeasureSettings(options=options))
        if isinstance(found, Finding):
            print(*self.key, found.message, flush=True)
            return
        row = compared(self, changes, repeat, predicted, found)
        write(out, row)
        sizes = f"{row.reserved_peak_bytes:,} in {row.low_bytes:,} to {row.high_bytes:,}"
        print(*self.key, repeat, changes, sizes, f"{row.seconds:.1f} s", flush=True)


def cells(names: Sequence[str] | None, num_requests: int | None) -> Iterator[Cell]:
    """All of them; the settings of one mix follow each other."""
    for mix in MIXES:
        for served in SERVED:
            if served.name in NUM_REQUESTS and (not names or served.name in names):
                for concurrency in (1, AT_ONCE):
                    for settings in (DEFAULT, ADVISED):
                        yield Cell(served, mix, concurrency, settings, num_requests)


@cache
def expected(
    key: Key, num_requests: int | None, folder: Path
) -> tuple[str, SessionOptions, Simulation]:
    """What the settings of a cell change, the settings, and what is predicted with them."""
    cell = replace(Cell.of(key), num_requests=num_requests)
    request = request_of(str(path_of(cell.served, folder)), Settings(runtimes=("ort-cpu",)))
    requests = listed_requests(cell.rows)
    changes, options = "", SessionOptions()
    if cell.settings == ADVISED:
        # Of fewer requests, as somebody would ask who has served some.
        some = listed_requests(replace(cell, num_requests=None).rows)
        best = advise_serving(request, some, Serving(concurrency=cell.concurrency)).best_setting
        changes, options = best.name, best.options
    serving = Serving(concurrency=cell.concurrency, options=options)
    return changes, options, simulate(request, requests, serving)


def compared(
    cell: Cell, changes: str, repeat: int, predicted: Simulation, found: ServedMeasurement
) -> Row:
    """The row of a measurement; of several at once, the order of the ends depends on chance."""
    pairs = [
        (one.reserved_bytes, other.reserved_bytes)
        for one, other in zip(predicted.timeline, found.timeline, strict=True)
    ]
    return Row(
        model=cell.served.name,
        held_out=int(cell.served.held_out),
        mix=cell.mix,
        concurrency=cell.concurrency,
        settings=cell.settings,
        changes=changes,
        num_requests=len(pairs),
        repeat=repeat,
        num_exact=sum(one == other for one, other in pairs),
        num_near=sum(abs(one / other - 1) <= NEAR for one, other in pairs if other),
        reserved_peak_bytes=found.arena_reserved_peak_bytes,
        input_bytes=found.input_bytes,
        process_bytes=found.process_bytes or 0,
        process_peak_bytes=found.process_peak_bytes or 0,
        seconds=found.seconds,
        cores=num_cores(),
        **foretold(predicted, found.input_bytes),
    )


def foretold(predicted: Simulation, input_bytes: int) -> dict[str, int]:
    """The columns of a prediction; the measured process held the inputs of all requests."""
    interval, last = predicted.interval, predicted.timeline[-1]
    peak_bytes = predicted.arena_reserved_peak_bytes
    process_bytes = last.process_bytes - last.input_bytes + input_bytes
    held = [each.peak_bytes - each.input_bytes for each in predicted.timeline]
    most_bytes = max(predicted.load_peak_bytes or 0, *held)
    process = predicted.process_interval
    return {
        "low_bytes": peak_bytes if interval is None else interval.low_bytes,
        "high_bytes": peak_bytes if interval is None else interval.high_bytes,
        "predicted_process_bytes": process_bytes,
        "process_most_bytes": process_bytes + predicted.heap_spread_bytes,
        "process_low_bytes": process_bytes if process is None else process.low_bytes + input_bytes,
        "process_high_bytes": (
            process_bytes if process is None else process.high_bytes + input_bytes
        ),
        "predicted_process_peak_bytes": most_bytes + input_bytes,
    }


def predict_again(folder: Path, out: Path, names: Sequence[str] | None) -> None:
    """Write the file with the predictions of this code, setting by setting."""
    rows = read(out)
    chosen = [row for row in rows if not names or row.model in names]
    for (key, changes, cores), same in grouped(chosen, lambda r: (key_of(r), r.changes, r.cores)):
        cell = Cell.of(key)
        requests = listed_requests(cell.rows)
        options = options_named(changes)
        serving = Serving(concurrency=cell.concurrency, options=options, cores=cores)
        request = request_of(str(path_of(cell.served, folder)), Settings(runtimes=("ort-cpu",)))
        predicted = simulate(request, requests, serving)
        for row in same:
            rows[rows.index(row)] = replace(row, **foretold(predicted, row.input_bytes))
        print(*key, changes, flush=True)
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])), lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, rows))


def options_named(changes: str) -> SessionOptions:
    """The settings that a row of the file names."""
    options = SessionOptions()
    for word in changes.split(", "):
        name, _, number = word.rpartition(" ")
        if word in ("", "as it is"):
            continue
        if name == "malloc thresholds":
            options = replace(options, malloc_threshold_bytes=int(number))
        else:
            options = replace(options, **NAMED[word])
    return options


def read(path: Path) -> list[Row]:
    """The rows of a file; none where there is no file."""
    if not path.exists():
        return []
    kinds = {each.name: each.type for each in fields(Row)}
    with path.open(newline="") as file:
        return [
            Row(**{name: kinds[name](value) for name, value in row.items()})
            for row in csv.DictReader(file)
        ]


def write(path: Path, row: Row) -> None:
    """Append a row, below the names of its columns."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(row)), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


def table(rows: Sequence[Row]) -> None:
    """Print the arenas one at a time, those of four at once by cell, and the processes."""
    for held_out in (0, 1):
        for settings in (DEFAULT, ADVISED):
            chosen = [r for r in rows if r.held_out == held_out and r.settings == settings]
            title = f"{'held out' if held_out else 'looked at'}, {settings}"
            print(f"{title}: {one_at_a_time([r for r in chosen if r.concurrency == 1])}")
            print(f"  {at_once([r for r in chosen if r.concurrency > 1])}")
            for number in (1, AT_ONCE):
                here = [r for r in chosen if r.concurrency == number]
                print(f"  process at the end, {number} at once: {processes(here)}")
    print(savings(rows))


def one_at_a_time(rows: Sequence[Row]) -> str:
    """How many requests left the arena as predicted."""
    total = sum(row.num_requests for row in rows)
    exact, near = (sum(each) for each in ((r.num_exact for r in rows), (r.num_near for r in rows)))
    return f"one at a time, {exact:,} exact and {near:,} within 1 % of {total:,} requests"


def at_once(rows: Sequence[Row]) -> str:
    """How many repeats are in their interval, and how wide it is beside them."""
    inside = sum(map(is_inside, rows))
    by_cell = [alike(each) for _, each in grouped(rows, key_of)]
    narrow = sum(is_narrow(each) for each in by_cell)
    covered = sum(sum(map(is_inside, each)) >= 0.9 * len(each) for each in by_cell)
    return (
        f"{AT_ONCE} at once, {inside} of {len(rows)} repeats in the interval; of {len(by_cell)} "
        f"cells {covered} have nine in ten, {narrow} an interval of at most {WIDEST} x the spread"
    )


def alike(rows: Sequence[Row]) -> list[Row]:
    """Those of a cell with the settings that most of them have: the advice changes with time."""
    (changes, _), *_ = Counter(row.changes for row in rows).most_common()
    return [row for row in rows if row.changes == changes]


def is_inside(row: Row) -> bool:
    """Whether the arena is in the interval."""
    return row.low_bytes <= row.reserved_peak_bytes <= row.high_bytes


def is_narrow(rows: Sequence[Row]) -> bool:
    """Whether the interval is at most twice as wide as the repeats are apart."""
    peaks = [row.reserved_peak_bytes for row in rows]
    return rows[0].high_bytes - rows[0].low_bytes <= WIDEST * (max(peaks) - min(peaks))


def key_of(row: Row) -> Key:
    """The cell of a row."""
    return (row.model, row.mix, row.concurrency, row.settings)


Of = TypeVar("Of")


def grouped(rows: Iterable[Row], key: Callable[[Row], Of]) -> Iterable[tuple[Of, list[Row]]]:
    """The rows by a key, in the order in which the keys first come."""
    found: dict[Of, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found.items()


def processes(rows: Sequence[Row]) -> str:
    """Errors of the process in percent: median and 90th percentile."""
    errors = [abs(100 * (r.predicted_process_bytes / r.process_bytes - 1)) for r in rows]
    inside = sum(r.process_low_bytes <= r.process_bytes <= r.process_high_bytes for r in rows)
    is_random = any(r.process_low_bytes < r.process_high_bytes for r in rows)
    return spread(errors) + f", {inside} of {len(rows)} in their interval" * is_random


def spread(errors: Sequence[float]) -> str:
    """Median, 90th percentile and the largest."""
    if len(errors) < 2:  # noqa: PLR2004 - quantiles need two
        return "too few"
    ninth = quantiles(errors, n=10, method="inclusive")[-1]
    return (
        f"median {median(errors):.1f} %, 90th percentile {ninth:.1f} %, largest {max(errors):.1f} %"
    )


def savings(rows: Sequence[Row]) -> str:
    """What the advised settings save of the process's peak, and what they cost."""
    shares = list(_shares(rows))
    if not shares:
        return ""
    sizes, arenas, times = (median(each) for each in zip(*shares, strict=True))
    return (
        f"advised against default, median of {len(shares)} pairs: process peak "
        f"{100 * sizes:.0f} %, arena peak {100 * arenas:.0f} %, time {times:.2f} x"
    )


def _shares(rows: Iterable[Row]) -> Iterator[tuple[float, float, float]]:
    by_key = {(key_of(each), each.repeat): each for each in rows}
    for ((*cell, settings), repeat), own in by_key.items():
        other = by_key.get(((*cell, ADVISED), repeat)) if settings == DEFAULT else None
        if other is not None:
            yield (
                other.process_peak_bytes / own.process_peak_bytes,
                other.reserved_peak_bytes / own.reserved_peak_bytes,
                other.seconds / own.seconds,
            )


if __name__ == "__main__":
    main()
