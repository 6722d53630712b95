"""One session of onnxruntime, measured from inside a fresh process.

Usage: python session_run.py plain | traced < request.json > figures.json

``plain`` opens the session as a user would, runs it three times and reads the process's memory.
``traced`` runs it once with the memory pattern off and three times with it on, under the profiler,
and leaves in the request's folder: ``opt.onnx`` (the optimized graph, in the order of the
profiles), ``shapes_at_load.json``, ``profile_off.json``, ``profile_on.json`` and ``stats.csv``.
The files that hold weights, optimized ones and those in ORT format, are deleted.

The request: ``model`` (path), ``folder``, ``level``, ``overrides`` (symbol: number), ``reuse``,
``shapes`` (input: dims), ``values`` (input: number that fills it, 1 for integers).
"""

import gc
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from load_shapes import shapes_at_load
from profiles import first_run

LEVELS = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
DTYPES = {
    "float": np.float32,
    "float16": np.float16,
    "double": np.float64,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "bool": np.bool_,
    "string": np.str_,
}
PROVIDERS = ["CPUExecutionProvider"]
Request = Mapping[str, Any]


def main() -> None:
    """Measure as the command line says; the figures go to stdout as JSON."""
    request = json.load(sys.stdin)
    measure = {"plain": plain, "traced": traced}[sys.argv[1]]
    json.dump(measure(request), sys.stdout)


def plain(request: Request) -> dict[str, int]:
    """Memory of the process around a session with its own settings, in bytes."""
    feeds = made_up(request)
    figures = {f"{key}_before": size for key, size in process_memory().items()}
    forget_high_water_mark()
    session = ort.InferenceSession(request["model"], options(request), providers=PROVIDERS)
    figures |= {f"{key}_loaded": size for key, size in process_memory().items()}
    for run in (1, 2, 3):
        session.run(None, feeds)
        figures |= {f"{key}_run_{run}": size for key, size in process_memory().items()}
    return figures


def traced(request: Request) -> dict[str, object]:
    """Profiles, node statistics and the optimized graph, left in the request's folder."""
    folder = Path(request["folder"])
    feeds = made_up(request)
    profile(request, feeds, pattern=False)
    profile(request, feeds, pattern=True)
    (folder / "opt.bin").unlink(missing_ok=True)
    made: dict[str, object] = {"onnxruntime": ort.__version__}
    made["pattern_traced"] = _take_one_order(folder)
    save = options(request)
    save.optimized_model_filepath = str(folder / "opt.ort")
    save.add_session_config_entry("session.save_model_format", "ORT")
    try:
        ort.InferenceSession(request["model"], save, providers=PROVIDERS)
        shapes = shapes_at_load(folder / "opt.ort")
    except Exception as error:  # noqa: BLE001 - onnxruntime's classes have no common parent
        return {**made, "shapes_error": str(error)[:300]}
    finally:
        (folder / "opt.ort").unlink(missing_ok=True)
    text = json.dumps(shapes, separators=(",", ":"))
    (folder / "shapes_at_load.json").write_text(text)
    return made


def _take_one_order(folder: Path) -> bool:
    """Where the two sessions' orders differ, take the first run with the pattern for both records.

    The NCHWc layout's reorder nodes are put in in the order of addresses. The first run with the
    pattern on asks for the same bytes as one with it off, but in the body of a loop.
    """
    off, on = folder / "profile_off.json", folder / "profile_on.json"
    first = first_run(on)
    if [event["name"] for event in first] == [event["name"] for event in first_run(off)]:
        return False
    off.write_text(json.dumps(first))
    return True


def profile(request: Request, feeds: Mapping[str, object], *, pattern: bool) -> None:
    """One profiled session: one run with its statistics file, or three with the pattern on."""
    folder = Path(request["folder"])
    tag = "on" if pattern else "off"
    asked = options(request)
    asked.enable_mem_pattern = pattern
    asked.enable_profiling = True
    asked.profile_file_prefix = str(folder / tag)
    if pattern:
        asked.optimized_model_filepath = str(folder / "opt.onnx")
        external = "session.optimized_model_external_initializers_"
        asked.add_session_config_entry(f"{external}file_name", "opt.bin")
        asked.add_session_config_entry(f"{external}min_size_in_bytes", "1024")
    else:
        stats = str(folder / "stats.csv")
        asked.add_session_config_entry("session.collect_node_memory_stats_to_file", stats)
    session = ort.InferenceSession(request["model"], asked, providers=PROVIDERS)
    for _ in range(3 if pattern else 1):
        session.run(None, feeds)
    Path(session.end_profiling()).replace(folder / f"profile_{tag}.json")
    del session
    gc.collect()  # the statistics file is written when the session ends


def options(request: Request) -> ort.SessionOptions:
    """The session options of a setting, one thread."""
    asked = ort.SessionOptions()
    asked.graph_optimization_level = LEVELS[request["level"]]
    asked.intra_op_num_threads = 1
    asked.log_severity_level = 3
    asked.enable_mem_reuse = request["reuse"]
    for symbol, number in request["overrides"].items():
        asked.add_free_dimension_override_by_name(symbol, number)
    return asked


def made_up(request: Request) -> dict[str, object]:
    """Inputs of the asked shapes: seeded noise in [0, 1), integers and booleans 1."""
    noise = np.random.default_rng(0)
    feeds: dict[str, object] = {}
    for name, (element, dims) in request["shapes"].items():
        dtype = DTYPES[element]
        if name in request["values"]:
            feeds[name] = np.full(dims, request["values"][name], dtype)
        elif np.issubdtype(dtype, np.floating):
            feeds[name] = np.asarray(noise.random(dims, np.float32)).astype(dtype)
        else:
            feeds[name] = np.ones(dims, dtype)
    return feeds


def forget_high_water_mark() -> None:
    """Let the kernel's high-water mark of this process start anew at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def process_memory() -> dict[str, int]:
    """Resident, anonymous resident and highest resident bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = dict(line.split(":", 1) for line in lines)
    keys = {"rss_bytes": "VmRSS", "anonymous_bytes": "RssAnon", "high_water_bytes": "VmHWM"}
    return {key: int(kib[field].split()[0]) * 1024 for key, field in keys.items()}


if __name__ == "__main__":
    main()
