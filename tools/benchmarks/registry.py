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
from dataclasses import dataclass
from pathlib import Path

_MODELS = Path(__file__).resolve().parents[2] / "models"
_NAMES = (
    *("mlp", "plain_conv_block", "depthwise_separable_block", "lstm_classifier", "alexnet"),
    *("vgg16", "unet", "resnet50", "mobilenet_v2", "whisper_tiny_encoder", "efficientnet_b0"),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_EARLY = 0.1
_SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Run:
    """One run: its seconds, and bytes of the parent and of all its workers together."""

    jobs: int
    wall_seconds: float
    early_bytes: tuple[int, int]
    late_bytes: tuple[int, int]


def main() -> None:
    """Make the folder, run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.models):
            name = _NAMES[number % len(_NAMES)]
            shutil.copy(_MODELS / f"{name}.onnx", Path(folder, f"{number:06}.onnx"))
        runs = [_run(folder, jobs) for _ in range(asked.rounds) for jobs in asked.jobs]
    print(f"{asked.models:,} models, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    base_seconds = min(run.wall_seconds for run in runs if run.jobs == asked.jobs[0])
    for run in runs:
        parent = run.early_bytes[0], run.late_bytes[0]
        workers = run.early_bytes[1], run.late_bytes[1]
        speed = base_seconds / run.wall_seconds
        print(f"--jobs {run.jobs}: {run.wall_seconds:6.1f} s, {speed:.2f} x", end="")
        print(f"; early, and at most later: parent {_mib(parent)}, workers {_mib(workers)}")


def _run(folder: str, jobs: int) -> Run:
    words = [sys.executable, "-m", "onnxmem", folder, "--format", "jsonl", "--jobs", str(jobs)]
    with tempfile.NamedTemporaryFile() as rows:
        start = time.perf_counter()
        process = subprocess.Popen(words, stdout=rows)  # noqa: S603 - this interpreter
        early, late = (0, 0), (0, 0)
        num_models = len(os.listdir(folder))  # noqa: PTH208 - a count
        while process.poll() is None:
            held = _held(process.pid)
            if Path(rows.name).read_bytes().count(b"\n") < _EARLY * num_models:
                early = max(early[0], held[0]), max(early[1], held[1])
            else:
                late = max(late[0], held[0]), max(late[1], held[1])
            time.sleep(_SAMPLE_SECONDS)
        seconds = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"onnxmem ended with {process.returncode}")
    return Run(jobs, seconds, early, late)


def _held(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, and of all that descend from it."""
    parents, sizes = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(stat.parent.name)
        parents[number], sizes[number] = int(fields[1]), int(fields[21]) * _PAGE_BYTES
    below = {pid}
    while grown := {each for each, parent in parents.items() if parent in below} - below:
        below |= grown
    return sizes.get(pid, 0), sum(sizes.get(each, 0) for each in below - {pid})


def _mib(sizes: tuple[int, int]) -> str:
    return ", ".join(f"{size / 2**20:.0f} MiB" for size in sizes)


if __name__ == "__main__":
    main()
