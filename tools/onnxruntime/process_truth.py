"""The whole process of onnxruntime, predicted and then measured, of models as exporters write them.

Usage: python tools/onnxruntime/process_truth.py measure FOLDER... > processes.csv
       python tools/onnxruntime/process_truth.py predict FOLDER... > processes.csv
       python tools/onnxruntime/process_truth.py table
       python tools/onnxruntime/process_truth.py constants

``measure`` predicts and runs each ``.onnx`` file of the folders, at the batch of the file or 1:
``models/``, whose weights are made up beside the file, and what ``exported_networks.py`` wrote,
whose weights are in it. ``predict`` keeps what was measured, ``table`` prints the errors, and
``constants`` measures, in fresh processes, those constants that need no model.
"""

import csv
import ctypes
import hashlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Final

from onnxmem.errors import Finding
from onnxmem.measuring.measuring import MeasureSettings, measure
from onnxmem.model.binding import Request
from onnxmem.model.files import load
from onnxmem.runtimes.from_settings import predict
from onnxmem.runtimes.onnxruntime.memory import SessionRequest

HERE: Final = Path(__file__).parent
DATA: Final = HERE.parents[1] / "tests" / "data" / "onnxruntime" / "processes.csv"
NEAR_PERCENT: Final = 5
RANGE_PERCENT: Final = 2
"""A figure so near an end of the heap's range is inside it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model: bytes predicted and measured, after three runs and at the load's peak."""

    model: str
    exporter: str
    """``models`` is this repository's folder."""
    onnxruntime: str
    process_predicted: int
    process_least: int
    process_most: int
    process_measured: int
    load_predicted: int
    load_measured: int

    @property
    def is_held_out(self) -> bool:
        """Whether no constant was measured on it: half of the networks, by a hash of the name."""
        digest = hashlib.md5(self.model.encode(), usedforsecurity=False).hexdigest()
        return self.exporter != "models" and int(digest, 16) % 2 == 0

    @property
    def process_error(self) -> float:
        """In percent."""
        return 100 * (self.process_predicted / self.process_measured - 1)

    @property
    def load_error(self) -> float:
        """In percent."""
        return 100 * (self.load_predicted / self.load_measured - 1)

    @property
    def is_in_range(self) -> bool:
        """Whether the measured process is inside the heap's range."""
        near = RANGE_PERCENT / 100
        least, most = (1 - near) * self.process_least, (1 + near) * self.process_most
        return least <= self.process_measured <= most


def main() -> None:
    """Print the table, the constants, or the rows of all models of the folders."""
    command, *folders = sys.argv[1:]
    if command == "constants":
        print(json.dumps(constants(), indent=1))
    elif command == "table":
        print(table(read()))
    else:
        known = {(row.model, row.exporter): row for row in read()} if command == "predict" else {}
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([each.name for each in fields(Row)])
        for folder in folders:
            for path in sorted(Path(folder).glob("*.onnx")):
                row = _predicted(path, known) if known else _measured(path)
                if row is not None:
                    writer.writerow(astuple(row))
                    sys.stdout.flush()


def _predicted(path: Path, known: Mapping[tuple[str, str], Row]) -> Row | None:
    """The row of a model with what is predicted now; ``None``: it was not measured."""
    row = known.get(name_of(path))
    return None if row is None else replace(row, **prediction(path))


def _measured(path: Path) -> Row | None:
    """The row of a model; ``None``: onnxruntime refuses it."""
    found = measure(str(path), Request(), MeasureSettings())
    if isinstance(found, Finding):
        print(f"{path.name}: {found.message}", file=sys.stderr)
        return None
    steady, peak = found.process_steady_bytes, found.load_peak_bytes
    if steady is None or peak is None:
        message = f"{path.name}: the process cannot be measured here"
        raise SystemExit(message)
    figures = {"process_measured": steady, "load_measured": peak, **prediction(path)}
    return Row(*name_of(path), found.onnxruntime_version or "", **figures)


def name_of(path: Path) -> tuple[str, str]:
    """The model and the exporter."""
    name, _, exporter = path.stem.rpartition(".")
    return (name, exporter) if exporter in {"dynamo", "script"} else (path.stem, "models")


def prediction(path: Path) -> dict[str, int]:
    """What is predicted of a model, by the names of ``Row``."""
    found = predict(load(str(path)), Request(), SessionRequest())
    total, peak = found.process_bytes, found.load_peak_bytes
    if total is None or peak is None:
        message = f"{path.name}: the process is unknown"
        raise SystemExit(message)
    least, most = found.process_range or (total, total)
    return {
        "process_predicted": total,
        "process_least": least,
        "process_most": most,
        "load_predicted": peak,
    }


def read(path: Path = DATA) -> list[Row]:
    """The rows of a file that ``measure`` wrote."""
    with path.open(newline="") as file:
        return [_row(each) for each in csv.DictReader(file)]


def _row(cells: Mapping[str, str]) -> Row:
    names = [each.name for each in fields(Row)]
    return Row(*(cells[name] for name in names[:3]), *(int(cells[name]) for name in names[3:]))


def table(rows: Iterable[Row]) -> str:
    """Errors in percent; the largest with its sign."""
    known = list(rows)
    parts = (
        ("half, and `models/`", [row for row in known if not row.is_held_out]),
        ("other half, held out", [row for row in known if row.is_held_out]),
        ("all", known),
    )
    head = "| figure | models | files | within 5 % | median | 90th percentile | largest | inside |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for title, chosen in parts:
        inside = sum(row.is_in_range for row in chosen)
        line = _line("process", title, [row.process_error for row in chosen])
        lines.append(f"{line} {inside} of {len(chosen)} |")
    for title, chosen in parts:
        lines.append(f"{_line('load', title, [row.load_error for row in chosen])} |")
    return "\n".join(lines)


def _line(figure: str, title: str, found: list[float]) -> str:
    errors = sorted(found, key=abs)
    near = 100 * sum(abs(error) <= NEAR_PERCENT for error in errors) / len(errors)
    ninth = ninetieth_percent(errors)
    middle = median(map(abs, errors))
    return (
        f"| {figure} | {title} | {len(errors)} | {near:.0f} % | {middle:.1f} % | {ninth:.1f} % "
        f"| {errors[-1]:+.1f} % |"
    )


def ninetieth_percent(errors: Iterable[float]) -> float:
    """What nine of ten errors are within."""
    known = sorted(map(abs, errors))
    return known[-(-9 * len(known) // 10) - 1]


def constants() -> dict[str, int]:
    """Resident bytes of a process with the imports alone, and its C library's mmap threshold."""
    found = {}
    for function in (resident_bytes, mmap_threshold_bytes):
        extra = ", ctypes" if function is mmap_threshold_bytes else ""
        imports = f"import numpy, onnxruntime{extra}\nfrom pathlib import Path"
        parts = (imports, inspect.getsource(_lines), inspect.getsource(function))
        source = "\n".join((*parts, f"print({function.__name__}())"))
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - ourselves
        found[function.__name__] = int(done.stdout)
    return found


def resident_bytes() -> int:
    """What is resident of this process."""
    line = next(line for line in _lines("/proc/self/status") if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def mmap_threshold_bytes() -> int:
    """The least request that the C library gives pages of its own: it asks, and frees nothing."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    for size in range(128 << 10, 32 << 20, 64):
        address = library.malloc(size)
        heap = next(line for line in _lines("/proc/self/maps") if line.endswith("[heap]"))
        start, stop = (int(part, 16) for part in heap.split()[0].split("-"))
        if not start <= address < stop:
            return size
    return 32 << 20


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


if __name__ == "__main__":
    main()
