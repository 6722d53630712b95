"""What onnxruntime's CUDA arena reserves, read from the lines that onnxruntime logs.

    PYTHONPATH=. python tools/onnxruntime/gpu_arena.py FILE.jsonl [--jobs N] [--alone]
    python tools/onnxruntime/gpu_arena.py --table

Each file of ``models/`` at two batches, with the session's settings of ``SETTINGS``, in a process
of its own: every extension of the arena, after the load and after each of three runs, and what the
process takes of the device by NVML. Figures of the device are of one process only with ``--alone``,
which runs one at a time. ``--table`` needs no GPU: it prints what was measured on an H200
(``tests/data/onnxruntime/cuda_arena.json``) beside what is predicted.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[2] / "tests" / "data" / "onnxruntime" / "cuda_arena.json"
MODELS = Path(__file__).parents[2] / "models"
BATCHES = (1, 8)
SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "same": {"arena_extend_strategy": "kSameAsRequested"},
    "search_heuristic": {"cudnn_conv_algo_search": "HEURISTIC"},
    "small_workspace": {"cudnn_conv_use_max_workspace": "0"},
    "no_pattern": {"pattern": "0"},
}
DIMS = {
    ("bert_base", "sequence"): 128,
    ("gpt2", "sequence_length"): 64,
    ("smollm_cached", "sequence"): 4,
    ("smollm_cached", "past + sequence"): 16,
    ("smollm_cached", "past"): 12,
    ("tinyllama.int4", "sequence"): 16,
    ("lstm_classifier", "time"): 50,
    ("greedy_translator", "source_length"): 12,
}
"""Symbols beside the batch, as in models/README.md."""
EXTENDED = re.compile(r"Extended allocation by (\d+) bytes")
EXTENDING = re.compile(r"Extending BFCArena for (\w+)\. .*?requested.*?: ?(\d+)")
RUNS = 3


def main() -> None:
    """Measure every model, or one where ``--here`` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--here", nargs=4, metavar=("MODEL", "BATCH", "SETTING", "FOLDER"))
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(MEASURED.read_text(encoding="utf-8"))))
        return
    if options.here:
        name, batch, setting, folder = options.here
        print(json.dumps(run(name, int(batch), setting, Path(folder))))
        return
    asked = [
        (path.stem, batch, setting)
        for setting in (("default",) if options.alone else SETTINGS)
        for path in sorted(MODELS.glob("*.onnx"))
        for batch in (BATCHES if setting == "default" and not options.alone else BATCHES[1:])
        if ".train" not in path.name
    ]
    with ThreadPoolExecutor(1 if options.alone else options.jobs) as pool:
        found = pool.map(lambda each: one(*each), asked)
        with options.target.open("a", encoding="utf-8") as file:
            for row in found:
                file.write(json.dumps(row) + "\n")
                file.flush()


def one(name: str, batch: int, setting: str) -> dict[str, Any]:
    """The row of a process; its last words where it failed."""
    key = {"model": name, "batch": batch, "setting": setting}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "-", "--here", name, str(batch), setting, folder]
        start = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)  # noqa: S603
        except subprocess.TimeoutExpired:
            return key | {"error": "more than 150 s"}
    seconds = round(time.monotonic() - start, 1)
    if done.returncode:
        return key | {"error": done.stderr.strip()[-300:], "seconds": seconds}
    lines = done.stderr.splitlines()
    sample = [each for each in lines if "BFCArena" in each][:3]
    last = json.loads(done.stdout.splitlines()[-1])
    return key | last | {"extensions": extensions(lines), "seconds": seconds, "sample": sample}


def extensions(lines: list[str]) -> list[dict[str, list[list[int]]]]:
    """Between the marks, by arena: the request that did not fit, and what the arena added."""
    phases: list[dict[str, list[list[int]]]] = [{}]
    asked_bytes, arena = 0, ""
    for line in lines:
        if line.startswith("== "):
            phases.append({})
        elif match := EXTENDING.search(line):
            arena, asked_bytes = match[1], int(match[2])
        elif match := EXTENDED.search(line):
            phases[-1].setdefault(arena, []).append([asked_bytes, int(match[1])])
    return phases


def run(name: str, batch: int, setting: str, folder: Path) -> dict[str, Any]:
    """Open a session on CUDA and run it; marks between the runs go to stderr."""
    import numpy as np
    import onnxruntime as ort

    path, feeds = made(name, batch, folder)
    used = device_used_bytes()
    ort.set_default_logger_severity(1)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    cuda = dict(SETTINGS[setting])
    options.enable_mem_pattern = cuda.pop("pattern", "1") == "1"
    mark("before")
    providers = [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]
    session = ort.InferenceSession(str(path), options, providers=providers)
    mark("loaded")
    figures: dict[str, Any] = {"providers": session.get_providers(), "before_bytes": used}
    figures["loaded_bytes"] = device_used_bytes()
    given = {each: np.asarray(value) for each, value in feeds.items()}
    by_run = []
    for index in range(RUNS):
        session.run(None, given)
        mark(f"run {index + 1}")
        by_run.append(device_used_bytes())
    return figures | {"by_run_bytes": by_run, "version": ort.__version__}


def made(name: str, batch: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The model with weights drawn, and inputs at the batch."""
    import numpy as np
    import onnx

    model = onnx.load(MODELS / f"{name}.onnx", load_external_data=False)
    random = np.random.default_rng(0)
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            values = random.random(tuple(tensor.dims), np.float32) * 0.05
            tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(kind), tensor.name))
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=1024)
    weights = {each.name for each in model.graph.initializer}
    feeds = {}
    for given in model.graph.input:
        if given.name in weights:
            continue
        sizes = [
            each.dim_value or DIMS.get((name, each.dim_param), batch)
            for each in given.type.tensor_type.shape.dim
        ]
        kind = onnx.helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
        feeds[given.name] = (
            random.random(sizes, np.float32).astype(kind)
            if np.issubdtype(kind, np.floating)
            else np.ones(sizes, kind)
        )
    return path, feeds


def _tensors(graph: Any) -> Iterator[Any]:  # noqa: ANN401
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


# --------------------------------------------------------------------------------------------------
# Predicted and measured. Where the arena grows by what is requested (the setting "same"), each
# extension is one request, after those that a chunk already there served.


@dataclass(frozen=True)
class Compared:
    """One measured row, and what is predicted of it."""

    row: Mapping[str, Any]
    load_bytes: int
    """Predicted, with each request rounded up as the arena does."""
    pattern_bytes: int
    runs: tuple[list[list[int]], list[list[int]]]
    """The predicted extensions of both runs: what was requested, and what the arena added."""

    @property
    def load_error_bytes(self) -> int:
        """Predicted less measured."""
        return self.load_bytes - int(self.row["load_bytes"])

    @property
    def measured_pattern_bytes(self) -> int | None:
        """The memory-pattern buffer; `None`: a chunk that was free served it, without a trace."""
        first = {request for request, _ in self.row["run_1"]}
        requests = [request for request, _ in self.row["run_2"]]
        return next((each for each in requests if each not in first), None)

    @property
    def unpredicted(self) -> list[int]:
        """Requests of the first run, measured and not predicted."""
        return self._beyond(self.row["run_1"], self.runs[0])

    @property
    def served(self) -> list[int]:
        """Requests of the first run, predicted to need a region and served without one."""
        return self._beyond(self.runs[0], self.row["run_1"])

    @property
    def total_bytes(self) -> tuple[int, int]:
        """The arena after the second run, predicted and measured."""
        measured = [self.row["load_bytes"], *(more for _, more in self._measured)]
        predicted = [self.load_bytes, *(more for run in self.runs for _, more in run)]
        return sum(predicted), sum(measured)

    @property
    def _measured(self) -> list[list[int]]:
        return [*self.row["run_1"], *self.row["run_2"]]

    @staticmethod
    def _beyond(some: list[list[int]], others: list[list[int]]) -> list[int]:
        left = Counter(each for each, _ in some) - Counter(each for each, _ in others)
        return sorted(left.elements())


def compared(rows: list[Mapping[str, Any]]) -> Iterator[Compared]:
    """Predict the measured rows, as where no GPU and no onnxruntime is at hand."""
    from onnxmem.model.binding import Request
    from onnxmem.model.building import build, prepare
    from onnxmem.model.files import load
    from onnxmem.runtimes.onnxruntime.prediction import PlannedSession
    from onnxmem.runtimes.onnxruntime.providers import CUDA
    from onnxmem.runtimes.onnxruntime.session_graph import optimization as graphs
    from onnxmem.runtimes.onnxruntime.session_graph.loaded import session_graph
    from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

    for row in rows:
        file = load(MODELS / f"{row['model']}.onnx")
        prepared = prepare(file)
        dims = {
            symbol: number
            for (model, symbol), number in DIMS.items()
            if model == row["model"] and "+" not in symbol
        }
        # A batch that is fixed in the file stayed as it is.
        batch = row["batch"] if prepared.batch_symbols else None
        bound = build(prepared, Request(batch, dims, {}))
        model = graphs.ModelAt(file, prepared, bound)
        made = graphs.optimized_model(model, graphs.SessionConfig(provider="cuda"))
        options = SessionOptions(
            enable_mem_pattern=row["setting"] != "no_pattern",
            arena_extend_strategy=(
                "kSameAsRequested" if row["setting"] == "same" else "kNextPowerOfTwo"
            ),
        )
        session = PlannedSession.of(session_graph(made, bound.binding.shapes), options, CUDA)
        arena, runs = session.loaded_arena(), session.recorded.runs
        loaded_bytes = arena.reserved_bytes
        first, later, *_ = runs.until_steady(uses_pattern=options.enable_mem_pattern)
        grown = _grown(arena, first), _grown(arena, later)
        yield Compared(row, loaded_bytes, runs.pattern_bytes, grown)


def _grown(arena: Any, run: Any) -> list[list[int]]:  # noqa: ANN401
    grown = []
    sizes_bytes = run.sizes.fixed_bytes.tolist()
    for event in run.program.events.tolist():
        size_bytes, before_bytes = sizes_bytes[max(event, ~event)], arena.reserved_bytes
        if size_bytes and event >= 0:
            arena.malloc(event, size_bytes)
        elif size_bytes:
            arena.free(~event)
        if arena.reserved_bytes > before_bytes:
            grown.append([size_bytes, arena.reserved_bytes - before_bytes])
    return grown


def table(measured: Mapping[str, Any]) -> str:
    """Predicted and measured of each model, in bytes, then how many of the others are alike."""
    head = (
        "| model | load | error | memory-pattern buffer | error | requests of the first run that "
        "are not predicted |\n|---|---|---|---|---|---|"
    )
    lines = [head]
    for each in compared([row for row in measured["rows"] if row["setting"] == "same"]):
        pattern = each.measured_pattern_bytes
        shown = ["not seen", "-"] if pattern is None else [pattern, each.pattern_bytes - pattern]
        row = [each.row["model"], each.row["load_bytes"], each.load_error_bytes, *shown]
        text = ", ".join(f"{size:,}" for size in each.unpredicted) or "none"
        cells = (f"{cell:,}" if isinstance(cell, int) else cell for cell in row)
        lines.append(f"| {' | '.join(cells)} | {text} |")
    rest = [row for row in measured["rows"] if row["setting"] != "same"]
    totals = [each.total_bytes for each in compared(rest)]
    right = sum(predicted == found for predicted, found in totals)
    near = sum(found <= 2 * predicted and predicted <= 2 * found for predicted, found in totals)
    lines.append("")
    lines.append(
        f"{len(totals)} sessions whose arena doubles: {right} of the predicted size after two "
        f"runs, {near} within a factor of two."
    )
    return "\n".join(lines)


def mark(text: str) -> None:
    """Write a mark between the lines of the log."""
    os.write(2, f"== {text}\n".encode())


def device_used_bytes() -> int | None:
    """What is in use on the device; `None`: NVML does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except Exception:  # noqa: BLE001
        return None


if __name__ == "__main__":
    main()
