"""Workers that are forked from a process which has loaded a session: predicted, measured.

Usage: python tools/onnxruntime/forked.py FOLDER WORKERS [MODEL...]

Each model of ``serving_truth.SERVED`` gets random weights in its file. A process loads it, forks
the workers, and each of them serves three requests of the first mix; then the PSS of all is read,
in which a page that several share counts once. A line has what each worker adds, and what
``simulate --emit json --preload`` counts for one more. Other processes on the machine that use
onnxruntime share its library too, so the sum itself is low.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import onnx
from ort_format import filled
from serving_truth import SEED, SERVED, path_of, uniform

import onnxmem
from onnxmem.decisions.sizing import ServedProcess
from onnxmem.runtimes.onnxruntime.process.sessions import FORKED_BYTES

if TYPE_CHECKING:
    import onnxruntime as ort

COUNT = 3
CHILD = "--child"
DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
KIB = 1024


def main() -> None:
    """Print a line for each model, and the median error."""
    if sys.argv[1:2] == [CHILD]:
        serve_forked(sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args()
    errors = []
    for served in SERVED:
        if asked.models and served.name not in asked.models:
            continue
        rows = uniform(served, Random(SEED))[:COUNT]  # noqa: S311 - a reproducible order
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            model = onnx.load(path_of(served, asked.folder), load_external_data=False)
            onnx.save(filled(model), path)
            found = onnxmem.simulate(str(path), rows)
            process = ServedProcess.of(str(path), found)
            command = [sys.executable, __file__, CHILD, str(path), json.dumps(rows)]
            done = subprocess.run(  # noqa: S603 - this file
                [*command, str(asked.workers)], check=True, capture_output=True, text=True
            )
        alone_bytes, all_bytes = json.loads(done.stdout)
        added_bytes = (all_bytes - alone_bytes) // asked.workers
        predicted_bytes = process.own_bytes + FORKED_BYTES
        errors.append(predicted_bytes - added_bytes)
        whole_bytes = process.steady_bytes
        sizes = f"each worker adds {added_bytes:,} B, predicted {predicted_bytes:,} B"
        print(f"{served.name}: {sizes}; not forked {whole_bytes:,} B", flush=True)
    print(f"median error of {len(errors)}: {median(map(abs, errors)):,} B of a worker")


def serve_forked(path: str, rows: list[dict[str, int]], workers: int) -> None:
    """Load, fork, serve, and print the PSS before the fork and that of all after the requests."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    alone_bytes = pss_bytes("self")
    reading, writing = os.pipe()
    children = []
    for _ in range(workers):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            serve(session, rows)
        except BaseException:  # noqa: BLE001 - the parent sees that a worker is missing
            os._exit(1)
        os.write(writing, b".")
        signal.pause()
    os.close(writing)
    num_ended = 0
    while num_ended < workers:
        ended = os.read(reading, workers)
        if not ended:
            sys.exit("a worker failed")
        num_ended += len(ended)
    total_bytes = pss_bytes("self") + sum(map(pss_bytes, map(str, children)))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(json.dumps([alone_bytes, total_bytes]))


def serve(session: "ort.InferenceSession", rows: list[dict[str, int]]) -> None:
    """Run each request."""
    import numpy as np

    for row in rows:
        feeds = {
            each.name: np.zeros(
                [dim if isinstance(dim, int) else row.get(dim, 1) for dim in each.shape],
                DTYPES[each.type],
            )
            for each in session.get_inputs()
        }
        session.run(None, feeds)


def pss_bytes(process: str) -> int:
    """Proportional resident bytes of a process."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(KIB * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
