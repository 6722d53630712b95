"""What a process has before a session and what a load reads of the library, by release.

Usage: python tools/onnxruntime/floors.py OUT.csv FOLDER PYTHON...

Each ``PYTHON`` is the interpreter of an environment with another onnxruntime; ``FOLDER`` holds the
models of ``serving_truth.SERVED`` that are not in ``models/``. A row is a process that loaded one
model with random weights in its file, and ran it three times. Pages of files (the library) do not
depend on the heap's outcome, so what releases differ by is read from them; the anonymous ones are
Python's objects, the weights and the arena. Without ``PYTHON``, the medians of ``OUT.csv`` are
printed: the constants of ``process/baselines.py``.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import onnx
from ort_format import filled
from serving_truth import path_of, served_by_name

COLUMNS = (
    *("onnxruntime", "python", "numpy", "model", "held_out"),
    *("floor_bytes", "floor_file_bytes", "added_bytes", "added_file_bytes"),
)
REPEATS = 3
LOOKED_AT = ("mlp", "lstm_classifier", "gru_tagger")
HELD_OUT = ("mobilenet_v2.int8", "distilbert_fp16", "wav2vec2", "detr")
"""No constant is read from them."""
CHILD = """
import json, sys
import numpy as np
import onnxruntime as ort
DTYPES = {"float": "f4", "float16": "f2", "int64": "i8", "bool": "?"}
def pages():
    lines = [line.split() for line in open("/proc/self/status")]
    sizes = {line[0]: 1024 * int(line[1]) for line in lines if line[0] in ("VmRSS:", "RssFile:")}
    return sizes["VmRSS:"], sizes["RssFile:"]
path, dims = sys.argv[1], json.loads(sys.argv[2])
before = pages()
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
for _ in range(3):
    session.run(None, {
        each.name: np.zeros(
            [dim if isinstance(dim, int) else dims.get(dim, 1) for dim in each.shape],
            DTYPES[each.type[7:-1]],
        )
        for each in session.get_inputs()
    })
added = [after - first for after, first in zip(pages(), before)]
print(json.dumps([ort.__version__, sys.version.split()[0], np.__version__, *before, *added]))
"""
KIB = 1024


def main() -> None:
    """Measure and print, or print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("pythons", nargs="*")
    asked = parser.parse_args()
    if asked.pythons:
        measure(asked.out, asked.folder, asked.pythons)
    with asked.out.open(newline="") as file:
        for line in lines(list(csv.DictReader(file))):
            print(line)


def measure(out: Path, folder: Path, pythons: Iterable[str]) -> None:
    """Write a row for each process."""
    with TemporaryDirectory() as here, out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name in (*LOOKED_AT, *HELD_OUT):
            served = served_by_name(name)
            path = Path(here) / "model.onnx"
            onnx.save(filled(onnx.load(path_of(served, folder), load_external_data=False)), path)
            dims = {dim: high for dim, (_, high) in served.ranges.items()}
            for python in pythons:
                for _ in range(REPEATS):
                    command = [python, "-c", CHILD, str(path), json.dumps(dims)]
                    done = subprocess.run(  # noqa: S603 - the source is above
                        command, capture_output=True, text=True, check=False
                    )
                    if done.returncode:
                        sys.exit(f"{python} {name}: {done.stderr.strip().splitlines()[-1]}")
                    versions, sizes = json.loads(done.stdout)[:3], json.loads(done.stdout)[3:]
                    writer.writerow([*versions, name, int(name in HELD_OUT), *sizes])
                file.flush()


def lines(rows: Iterable[Mapping[str, str]]) -> Iterable[str]:
    """For each release the floor, and pages of the library; those of the held-out models apart."""
    floors, pages = defaultdict(list), defaultdict(lambda: defaultdict(list))
    for row in rows:
        version = row["onnxruntime"]
        floors[version].append(int(row["floor_bytes"]))
        pages[version][row["held_out"], row["model"]].append(int(row["added_file_bytes"]))
    for version, sizes in floors.items():
        by_model = {key: median(found) for key, found in pages[version].items()}
        shown = ", ".join(
            f"{name}{', held out' * (held_out == '1')} {size / KIB:,.0f}"
            for (held_out, name), size in by_model.items()
        )
        own = median(size for (held_out, _), size in by_model.items() if held_out == "0")
        constants = f"floor {median(sizes) / KIB:,.0f} KiB; library {own / KIB:,.0f} KiB"
        yield f"{version}: {constants}: {shown}"


if __name__ == "__main__":
    main()
