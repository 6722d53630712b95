"""How much faster a registry is on several processes, and whether its memory stays flat.

Makes a folder of copies of small models, then runs ``onnxmem FOLDER`` with each number of
processes in turn, round after round, and prints the wall time, its ratio to one process, and what
the parent and its workers hold early (at a tenth of the models) and at most later. Linux alone.

    python tools/benchmarks/registry.py [--models 1000] [--jobs 1 2] [--rounds 2]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MODELS = Path(__file__).resolve().parents[2] / "models"
SMALL: Final = (
    *("mlp", "plain_conv_block", "depthwise_separable_block", "lstm_classifier", "alexnet"),
    "vgg16",
)
"""Up to 14 KiB, 2 to 39 nodes."""
_NAMES = (
    *SMALL,
    *("unet", "resnet50", "mobilenet_v2", "whisper_tiny_encoder", "efficientnet_b0"),
)
_DOC_STRING: Final = 6
"""Field number of ModelProto in onnx.proto3."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_EARLY = 0.1
_SAMPLE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its seconds, and bytes of the parent and of all its workers together."""

    jobs: int
    wall_seconds: float
    cpu_seconds: float
    """Of the parent and of all its workers, as last seen."""
    early_bytes: tuple[int, int]
    """At most until a tenth of the models is done."""
    late_bytes: tuple[int, int]
    """At most after that."""


@dataclass(frozen=True, slots=True)
class _Held:
    parent_bytes: int
    workers_bytes: int
    cpu_seconds: Mapping[int, float]
    """Of each process, by its number."""


def main() -> None:
    """Make the folder, run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copies(_NAMES, asked.models, Path(folder))
        runs = [watched(folder, jobs) for _ in range(asked.rounds) for jobs in asked.jobs]
    print(f"{asked.models:,} models, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    base_seconds = min(run.wall_seconds for run in runs if run.jobs == asked.jobs[0])
    for run in runs:
        parent = run.early_bytes[0], run.late_bytes[0]
        workers = run.early_bytes[1], run.late_bytes[1]
        speed = base_seconds / run.wall_seconds
        print(f"--jobs {run.jobs}: {run.wall_seconds:6.1f} s, {speed:.2f} x", end="")
        print(f", CPU {run.cpu_seconds:6.1f} s", end="")
        print(f"; early, and at most later: parent {_mib(parent)}, workers {_mib(workers)}")


def copies(
    names: Sequence[str], num_files: int, folder: Path, *, are_distinct: bool = False
) -> None:
    """Fill a folder with copies of models, each name in turn.

    Distinct files differ in their ``doc_string``, so that none is known by its content.
    """
    for number in range(num_files):
        path = folder / f"{number:06}.onnx"
        shutil.copy(_MODELS / f"{names[number % len(names)]}.onnx", path)
        if are_distinct:
            text = f"{number:06}".encode()
            with path.open("ab") as file:
                file.write(bytes([_DOC_STRING << 3 | 2, len(text)]) + text)


def watched(folder: str, jobs: int) -> Run:
    """Run the command over a folder and look at its processes meanwhile."""
    words = [sys.executable, "-m", "onnxmem", folder, "--format", "jsonl", "--jobs", str(jobs)]
    num_early = _EARLY * len(os.listdir(folder))  # noqa: PTH208 - a count
    with tempfile.NamedTemporaryFile() as rows, Path(rows.name).open("rb") as done:
        start = time.perf_counter()
        process = subprocess.Popen(words, stdout=rows)  # noqa: S603 - this interpreter
        early, late, num_done = (0, 0), (0, 0), 0
        cpu_seconds: dict[int, float] = {}
        while process.poll() is None:
            held = _held(process.pid)
            cpu_seconds |= held.cpu_seconds
            num_done += done.read().count(b"\n")
            if num_done < num_early:
                early = _larger(early, held)
            else:
                late = _larger(late, held)
            time.sleep(_SAMPLE_SECONDS)
        seconds = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"onnxmem ended with {process.returncode}")
    return Run(jobs, seconds, sum(cpu_seconds.values()), early, late)


def _larger(most: tuple[int, int], held: _Held) -> tuple[int, int]:
    return max(most[0], held.parent_bytes), max(most[1], held.workers_bytes)


def _held(pid: int) -> _Held:
    """Resident bytes and CPU time of a process, and of all that descend from it."""
    parents, sizes, seconds = {}, {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(stat.parent.name)
        parents[number], sizes[number] = int(fields[1]), int(fields[21]) * _PAGE_BYTES
        seconds[number] = (int(fields[11]) + int(fields[12])) / _TICKS
    below = {pid}
    while grown := {each for each, parent in parents.items() if parent in below} - below:
        below |= grown
    workers_bytes = sum(sizes.get(each, 0) for each in below - {pid})
    cpu_seconds = {each: seconds[each] for each in below if each in seconds}
    return _Held(sizes.get(pid, 0), workers_bytes, cpu_seconds)


def _mib(sizes: tuple[int, int]) -> str:
    return ", ".join(f"{size / 2**20:.0f} MiB" for size in sizes)


if __name__ == "__main__":
    main()
