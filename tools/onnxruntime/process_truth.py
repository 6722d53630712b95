"""Holds the predicted load peak and process against what ``truth.py`` measured.

Usage: python tools/onnxruntime/process_truth.py FOLDER... [--out FILE.json]
       python tools/onnxruntime/process_truth.py constants

Each ``FOLDER`` holds a corpus and its records. The session's graph is the one that onnxruntime left
there, so that only the rules of the process and of the arena are judged. The process before, and
the largest array that its feeds freed, are those of the measured process; all other constants are
the package's. ``--out`` keeps every setting's figures, and the terms of one setting of each model.
``constants`` measures, in fresh processes, those constants that need no model.
"""

import argparse
import ctypes
import hashlib
import inspect
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any

import corpus
import onnx
import session_run

from onnxmem.errors import OnnxmemError
from onnxmem.measure.options import SessionOptions
from onnxmem.model import Request, build, load, prepare
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.prepacking import prepacked
from onnxmem.runtimes.onnxruntime.process import (
    MEASURED,
    Baseline,
    ProcessTerms,
    load_peak_bytes,
    load_terms,
    mapped_bytes,
    process_bytes,
)
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimisedModel, session_graph

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
    terms: ProcessTerms


def main() -> None:
    """Print the table, and write the data of the tests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.folders == ["constants"]:
        return print(json.dumps(constants(), indent=1))
    rows = [row for folder in asked.folders for row in compared(Path(folder))]
    print(table(rows))
    if asked.out:
        asked.out.write_text(json.dumps(packed(rows), separators=(",", ":")))
    return None


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
    """Errors in percent, of figures over 64 MiB."""
    known = list(rows)
    parts = (
        ("two thirds", [row for row in known if not row.is_held_out]),
        ("other third, held out", [row for row in known if row.is_held_out]),
        ("all", known),
        ("all, arena's regions exact", [row for row in known if row.is_arena_exact]),
    )
    lines = ["| figure | models | settings | within 10 % | min | median | max |"]
    lines.append("|---|---|---|---|---|---|---|")
    for figure in ("load", "process"):
        for name, chosen in parts:
            errors = [error for row in chosen if (error := _error(row, figure)) is not None]
            if errors:
                near = 100 * sum(abs(error) <= NEAR_PERCENT for error in errors) / len(errors)
                spread = (min(errors), statistics.median(errors), max(errors))
                figures = " | ".join(f"{error:+.1f} %" for error in spread)
                lines.append(f"| {figure} | {name} | {len(errors)} | {near:.1f} % | {figures} |")
    return "\n".join(lines)


def packed(rows: Iterable[Row]) -> dict[str, Any]:
    """The rows as plain data; terms of the last setting of each model that keeps its symbols."""
    known = list(rows)
    last = {row.model: row for row in known if row.setting.startswith("sym_all")}
    return {
        "keys": [field.name for field in fields(Row) if field.name != "terms"],
        "rows": [_figures(row) for row in known],
        "terms": {
            row.model: {"setting": row.setting, **_plain(row.terms)}
            for row in last.values()
            if max(row.load_measured, row.process_measured) > FLOOR_BYTES
        },
    }


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
    terms, held_bytes = _terms(here, request, before)
    return Row(
        model=here.parent.name,
        setting=here.name,
        is_held_out=is_held_out,
        load_measured=measured["high_water_bytes_loaded"] - before,
        load_predicted=load_peak_bytes(terms.load),
        process_measured=measured["rss_bytes_run_3"],
        process_predicted=process_bytes(terms),
        is_arena_exact=held_bytes == figures["held_steady_bytes"],
        terms=terms,
    )


def _terms(here: Path, request: Mapping[str, Any], before: int) -> tuple[ProcessTerms, int]:
    """The terms of a setting, and the bytes that its arena holds."""
    path = Path(request["model"])
    shapes = {name: tuple(dims) for name, (_, dims) in request["shapes"].items()}
    graph = build(prepare(load(path)), Request(shapes=shapes)).graph
    session = session_graph(_optimised(here, request), shapes)
    options = SessionOptions(level=request["level"], enable_mem_reuse=request["reuse"])
    arena, _ = arena_figures(session, options)
    kept = prepacked(session.graph)
    feeds = sum(
        prod(dims) * session_run.DTYPES[element]().itemsize
        for element, dims in request["shapes"].values()
    )
    made = load_terms(graph, session.graph, kept, path.stat().st_size)
    made = replace(made, regions=arena.loaded_regions, baseline=_baseline(request, before - feeds))
    terms = ProcessTerms(
        load=made,
        regions=arena.steady_regions,
        mapped_bytes=mapped_bytes(graph, session.graph, kept),
        feed_bytes=feeds,
    )
    return terms, arena.held_steady_bytes


def _optimised(here: Path, request: Mapping[str, Any]) -> OptimisedModel:
    plain = json.loads((here / "shapes_at_load.json").read_text())
    shapes = {
        place: {name: None if dims is None else tuple(dims) for name, dims in values.items()}
        for place, values in plain.items()
    }
    proto = load(here / "opt.onnx").proto
    is_changed = _nodes(proto) != _nodes(onnx.load(request["model"], load_external_data=False))
    in_order = is_changed or request["level"] != "off"
    return OptimisedModel(proto, shapes, in_order, request["level"], "onnxruntime")


def _baseline(request: Mapping[str, Any], process_bytes: int) -> Baseline:
    """The constants, as the measured process had them: the noise of its feeds was freed before."""
    noise = [prod(dims) * 4 for element, dims in request["shapes"].values() if "float" in element]
    freed = max(noise, default=0)
    threshold = MEASURED.mmap_threshold_bytes
    if threshold <= freed <= 32 << 20:
        threshold = -(-(freed + 16) // PAGE_BYTES) * PAGE_BYTES
    return replace(MEASURED, process_bytes=process_bytes, mmap_threshold_bytes=threshold)


def _nodes(model: onnx.ModelProto) -> list[tuple[str, ...]]:
    return [(node.op_type, *node.input, "", *node.output) for node in model.graph.node]


def _error(row: Row, figure: str) -> float | None:
    measured, predicted = (
        (row.load_measured, row.load_predicted)
        if figure == "load"
        else (row.process_measured, row.process_predicted)
    )
    return 100 * (predicted / measured - 1) if measured > FLOOR_BYTES else None


def _figures(row: Row) -> list[str | int]:
    values = (getattr(row, field.name) for field in fields(row) if field.name != "terms")
    return [int(value) if isinstance(value, bool) else value for value in values]


def _plain(terms: ProcessTerms) -> dict[str, Any]:
    """Terms as numbers: weights by their place, external ones below zero."""
    made = terms.load
    places = {each.name: place for place, each in enumerate(made.stored)}
    for each in (each for level in made.made for each in level):
        places.setdefault(each.name, len(places))
    for name in sorted({*made.kept, *(each.weight for each in made.packed)}):
        places.setdefault(name, len(places))
    return {
        "file": made.file_bytes,
        "nodes": made.num_nodes,
        "stored": [-e.size_bytes if e.is_external else e.size_bytes for e in made.stored],
        "made": [[_made(each, places) for each in level] for level in made.made],
        "kept": sorted(places[name] for name in made.kept),
        "packed": [
            [places[e.weight], e.weight_bytes, e.packed_bytes, e.is_reserved, e.is_kept, e.is_last]
            for e in made.packed
        ],
        "regions": [[each.size_bytes, each.touched_bytes] for each in terms.regions],
        "loaded_regions": len(made.regions),
        "mapped": terms.mapped_bytes,
        "feeds": terms.feed_bytes,
        "before": made.baseline.process_bytes,
        "threshold": made.baseline.mmap_threshold_bytes,
    }


def _made(each: Any, places: Mapping[str, int]) -> list[Any]:  # noqa: ANN401 - a MadeWeight
    source = None if each.source is None else places[each.source]
    return [places[each.name], each.size_bytes, each.making.value, source, each.source_bytes]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


if __name__ == "__main__":
    main()
