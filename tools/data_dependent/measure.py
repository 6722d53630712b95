"""Run exported models in onnxruntime and record what their data decided.

``python tools/data_dependent/measure.py FOLDER [NAME...]`` reads what ``export.py`` wrote, runs
each model on 100 random inputs and on inputs that push toward the bound, and writes
``NAME.runs.json``: the least and the largest dims of every tensor of the main graph, its shape in
the run with the most elements, and the peak requested by kernels in each run: of the graph as it is
in the file and as onnxruntime optimizes it, memory pattern off.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from cases import PUSHES, Feeds, Input, pushed_feeds, random_feeds, read_inputs

NUM_RUNS: Final = 100
PROVIDERS: Final = ["CPUExecutionProvider"]
LEVELS: Final = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def every_feed(inputs: Mapping[str, Input]) -> Iterator[tuple[str, Feeds]]:
    """What each run is fed, and what the run is called."""
    for seed in range(NUM_RUNS):
        yield str(seed), random_feeds(inputs, seed)
    for kind in PUSHES:
        yield kind, pushed_feeds(inputs, kind)


def report(where: str, error: Exception) -> None:
    """Say that a node rejected the inputs of a run."""
    print(f"  {where}: {str(error)[:100]}", file=sys.stderr)


def options(level: str) -> ort.SessionOptions:
    """Quiet, on one thread, each buffer a request."""
    native = ort.SessionOptions()
    native.graph_optimization_level = LEVELS[level]
    native.intra_op_num_threads = 1
    native.enable_mem_pattern = False
    native.log_severity_level = 4
    return native


def all_shapes(path: Path, inputs: Mapping[str, Input]) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of the tensors of the main graph in each run that no node rejects."""
    model = onnx.load(path)
    shown = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if "Sequence" in node.op_type and node.op_type not in ("SequenceAt", "ConcatFromSequence"):
            continue
        more = [name for name in node.output if name and name not in shown]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    session = ort.InferenceSession(model.SerializeToString(), options("off"), providers=PROVIDERS)
    names = [value.name for value in session.get_outputs()]
    found = {}
    for run, feeds in every_feed(inputs):
        try:
            made = session.run(names, feeds)
        except Exception as error:  # noqa: BLE001 - onnxruntime's classes have no common parent
            report(f"every tensor, {run}", error)
            continue
        rows = zip(names, made, strict=True)
        found[run] = {n: np.shape(each) for n, each in rows if not isinstance(each, list)}
    return found


def requested_peaks(path: Path, inputs: Mapping[str, Input], level: str) -> dict[str, int]:
    """The peak that kernels requested in each run, above what was requested before the first."""
    with tempfile.TemporaryDirectory() as folder:
        native = options(level)
        native.enable_profiling = True
        native.profile_file_prefix = os.fspath(Path(folder) / "profile")
        session = ort.InferenceSession(os.fspath(path), native, providers=PROVIDERS)
        names, failed = list[str](), set[str]()
        for run, feeds in every_feed(inputs):
            names.append(run)
            try:
                session.run(None, feeds)
            except Exception as error:  # noqa: BLE001 - onnxruntime's classes have no common parent
                report(f"level {level}, {run}", error)
                failed.add(run)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    runs: list[list[Mapping[str, Any]]] = [[]]
    for event in events:
        if event.get("name") == "model_run":
            runs.append([])
        elif event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            runs[-1].append(event)
    rows = zip(names, runs[:-1], strict=True)
    return {name: _peak(steps) for name, steps in rows if name not in failed}


def _peak(steps: list[Mapping[str, Any]]) -> int:
    first = min(reversed(steps), key=lambda step: step["ts"])["args"]
    key = "mem_bytes_requested_in_use"
    before = int(first[key]) - int(first["mem_requested_in_use_delta"])
    return max(int(step["args"][key]) for step in steps) - before


def measured(path: Path) -> dict[str, object]:
    """All figures of a model."""
    inputs = read_inputs(json.loads(path.with_suffix(".json").read_text("utf-8"))["inputs"])
    shapes = all_shapes(path, inputs)
    varied = {
        name
        for name in next(iter(shapes.values()))
        if len({run.get(name) for run in shapes.values()}) > 1
    }

    def elements(run: str) -> int:
        return sum(prod(shapes[run][name]) for name in varied)

    random = {run for run in shapes if run.isdigit()}
    largest = max(shapes, key=elements)
    tensors = {
        name: {
            "least": [min(dims) for dims in zip(*every, strict=True)],
            "most": [max(dims) for dims in zip(*every, strict=True)],
            "largest_run": shapes[largest][name],
            "most_elements": max(map(prod, every)),
        }
        for name in shapes[largest]
        if len(every := {run[name] for run in shapes.values()}) > 1
    }
    return {
        "num_random_runs": len(random),
        "pushes": sorted(set(shapes) - random),
        "largest_run": largest,
        "constant": {name: dims for name, dims in shapes[largest].items() if name not in tensors},
        "tensors": tensors,
        "requested_peak_bytes": {level: requested_peaks(path, inputs, level) for level in LEVELS},
        "onnxruntime": ort.__version__,
        "cpu": platform.processor() or platform.machine(),
    }


def main() -> None:
    """Measure the models named, or all of a folder that have no figures yet."""
    folder, *names = sys.argv[1:]
    paths = [Path(folder) / f"{name}.onnx" for name in names] or sorted(Path(folder).glob("*.onnx"))
    for path in paths:
        target = path.with_suffix(".runs.json")
        if target.exists() and not names:
            continue
        print(path.stem, flush=True)
        target.write_text(json.dumps(measured(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
