"""Holds the predicted load peak and process against what ``truth.py`` measured.

Usage: python tools/onnxruntime/process_truth.py FOLDER... [--details]
       python tools/onnxruntime/process_truth.py constants

Each ``FOLDER`` holds a corpus and its records. The session's graph is the one that onnxruntime left
there, so that only the rules of the process and of the arena are judged. The process before, and
the largest array that its feeds freed, are those of the measured process; all other constants are
the package's. ``--details`` lists the settings that are off by more than 10 %. ``constants``
measures, in fresh processes, those constants that need no model.
"""

import argparse
import ctypes
import hashlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import corpus
import onnx
import session_run
from accuracy import values_of

from onnxmem.errors import OnnxmemError
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.traversal import onnx_op
from onnxmem.runtimes.onnxruntime.kernels.prepacking import prepacked
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.process.baselines import BASELINES, Baseline
from onnxmem.runtimes.onnxruntime.process.figures import load_spec, mapped_pages
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.loading import Loading, process_parts
from onnxmem.runtimes.onnxruntime.session_graph.graph_paths import graphs_by_path
from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel, session_graph
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

_MEASURED = "1.31"
"""The release of the records."""
FLOOR_BYTES = 64 << 20
"""Smaller figures are not judged: the process before is as large."""
NEAR_PERCENT = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: what was measured and what was predicted, in bytes."""

    model: str
    setting: str
    is_held_out: bool
    """No constant was measured on it."""
    load_measured: int
    load_predicted: int
    process_measured: int
    process_predicted: int
    is_arena_exact: bool
    """The arena's regions are predicted to the byte."""


def main() -> None:
    """Print the table, or the constants."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--details", action="store_true")
    asked = parser.parse_args()
    if asked.folders == ["constants"]:
        return print(json.dumps(constants(), indent=1))
    rows = [row for folder in asked.folders for row in compared(Path(folder))]
    for line in details(rows) if asked.details else ():
        print(line)
    return print(table(rows))


def compared(folder: Path) -> Iterator[Row]:
    """The measured settings of a corpus, each with its prediction."""
    for entry in sorted(folder.glob("*/entry.json")):
        is_held_out = bool(corpus.read(entry.parent).held_out) or in_other_third(entry.parent.name)
        for figures in sorted(entry.parent.glob("*/figures.json")):
            try:
                yield _row(figures.parent, is_held_out=is_held_out)
            except OnnxmemError as fault:
                print(f"{figures.parent}: {fault}", file=sys.stderr)


def in_other_third(name: str) -> bool:
    """Whether a model is of the third that no constant was measured on, by a hash of its name."""
    digest = hashlib.sha256(name.split(".", 1)[0].encode()).hexdigest()
    return int(digest, 16) % 3 == 0


def table(rows: Iterable[Row]) -> str:
    """Errors in percent, of figures over 64 MiB; the largest with its sign."""
    known = list(rows)
    parts = (
        ("two thirds", [row for row in known if not row.is_held_out]),
        ("others, held out", [row for row in known if row.is_held_out]),
        ("all", known),
        ("all, arena's regions exact", [row for row in known if row.is_arena_exact]),
    )
    head = "| figure | models | settings | within 10 % | median | 90th percentile | largest |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for figure in ("load", "process"):
        for name, chosen in parts:
            found = (_error(row, figure) for row in chosen)
            errors = sorted((error for error in found if error is not None), key=abs)
            if errors:
                near = 100 * sum(abs(error) <= NEAR_PERCENT for error in errors) / len(errors)
                middle, ninth = (abs(errors[int(part * (len(errors) - 1))]) for part in (0.5, 0.9))
                lines.append(
                    f"| {figure} | {name} | {len(errors)} | {near:.1f} % "
                    f"| {middle:.1f} % | {ninth:.1f} % | {errors[-1]:+.1f} % |"
                )
    return "\n".join(lines)


def details(rows: Iterable[Row]) -> Iterator[str]:
    """The figures that are further off, setting by setting."""
    for row in rows:
        for figure in ("load", "process"):
            error = _error(row, figure)
            if error is not None and abs(error) > NEAR_PERCENT:
                remark = "" if row.is_arena_exact else ", the arena's regions are not exact"
                yield f"{row.model} {row.setting} {figure} {error:+.1f} %{remark}"


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


def _row(here: Path, *, is_held_out: bool) -> Row:
    figures = json.loads((here / "figures.json").read_text())
    request = json.loads((here / "request.json").read_text())
    measured = figures["process"]
    before = measured["rss_bytes_before"]
    loaded, predicted_bytes, reserved_bytes = _predicted(here, request, before)
    return Row(
        model=here.parent.name,
        setting=here.name,
        is_held_out=is_held_out,
        load_measured=measured["high_water_bytes_loaded"] - before,
        load_predicted=loaded.peak_bytes,
        process_measured=measured["rss_bytes_run_3"],
        process_predicted=predicted_bytes,
        is_arena_exact=reserved_bytes == figures["held_steady_bytes"],
    )


def _predicted(here: Path, request: Mapping[str, Any], before: int) -> tuple[Loading, int, int]:
    """The load of a setting, and the bytes of its process and of what its arena reserves."""
    path = Path(request["model"])
    shapes = {name: tuple(dims) for name, (_, dims) in request["shapes"].items()}
    graph = build(prepare(load(path)), Request(shapes=shapes)).graph
    session = session_graph(_optimized(here, request), shapes, values_of(request, graph))
    options = SessionOptions(level=request["level"], enable_mem_reuse=request["reuse"])
    arena, _ = arena_figures(session, options)
    packed = prepacked(session.graph)
    feeds = sum(
        prod(dims) * session_run.DTYPES[element]().itemsize
        for element, dims in request["shapes"].values()
    )
    spec = load_spec(graph, session.graph, packed, path.stat().st_size)
    spec = replace(spec, regions=arena.loaded_regions, baseline=_baseline(request, before - feeds))
    loaded = Loading(spec).run()
    grown = loaded.with_regions(arena.steady_regions)
    mapped_bytes = PAGE_BYTES * sum(mapped_pages(graph, session.graph, packed).values())
    parts = process_parts([grown], grown.heap, mapped_bytes)
    return loaded, feeds + sum(size for _, size in parts), arena.held_steady_bytes


def _optimized(here: Path, request: Mapping[str, Any]) -> OptimizedModel:
    plain = json.loads((here / "shapes_at_load.json").read_text())
    shapes = {
        place: {name: None if dims is None else tuple(dims) for name, dims in values.items()}
        for place, values in plain.items()
    }
    proto = load(here / "opt.onnx").proto
    before, after = _nodes(load(request["model"]).proto), _nodes(proto)
    kept = frozenset(place for place, nodes in after.items() if before.get(place) == nodes)
    is_changed = len(kept) < len(after)
    return OptimizedModel(
        proto, shapes, is_changed, request["level"], "onnxruntime", in_file_order=kept
    )


def _baseline(request: Mapping[str, Any], process_bytes: int) -> Baseline:
    """The constants, as the measured process had them: the noise of its feeds was freed before."""
    noise = [prod(dims) * 4 for element, dims in request["shapes"].values() if "float" in element]
    freed = max(noise, default=0)
    known = BASELINES[_MEASURED]
    threshold = known.mmap_threshold_bytes
    if threshold <= freed <= 32 << 20:
        threshold = -(-(freed + 16) // PAGE_BYTES) * PAGE_BYTES
    return replace(known, process_bytes=process_bytes, mmap_threshold_bytes=threshold)


def _nodes(model: onnx.ModelProto) -> dict[str, list[tuple[str, list[str], list[str]]]]:
    """What each graph runs, by its place, as ``saving.py`` compares it."""
    return {
        place: [
            (node.op_type, list(node.input), list(node.output))
            for node in graph.node
            if onnx_op(node) != "Constant"
        ]
        for place, graph in graphs_by_path(model.graph)
    }


def _error(row: Row, figure: str) -> float | None:
    measured, predicted = (
        (row.load_measured, row.load_predicted)
        if figure == "load"
        else (row.process_measured, row.process_predicted)
    )
    return 100 * (predicted / measured - 1) if measured > FLOOR_BYTES else None


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


if __name__ == "__main__":
    main()
