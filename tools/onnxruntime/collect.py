"""Packs the records of ``truth.py`` into the data of the tests.

Usage: python tools/onnxruntime/collect.py FOLDER tests/data/onnxruntime/truth.json.gz

``FOLDER`` holds the corpus and its records. Nothing of a model but names and sizes is written.
"""

import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import corpus

KEYS = {
    "requested_peak_bytes": "above the base, sampled when each node ends",
    "with_scratch_peak_bytes": "the same with the scratch that the node took and gave back",
    "base_bytes": "requested before the first node: prepacked and small weights",
    "pattern_block_bytes": "the one block of the second run, pattern on",
    "in_use_peak_bytes": "chunks in use at most, base included, pattern off",
    "held_bytes": "regions held after run 1, pattern off",
    "held_steady_bytes": "regions held after run 3, pattern on",
    "requested": "bytes at the end of each step, base included; pattern off, run 1",
    "in_use": "chunks in use at the end of each step",
    "held": "(step, regions held from there on)",
    "scratch": "(step, sum of the node's scratch blocks)",
    "nodes": "index into node_lists: (name, operator) of each step",
    "pattern_traced": "two sessions ran in different orders: all is of the pattern's session",
    "process": "the process before, with the session loaded, after each run: resident bytes, "
    "those not of files, the high-water mark since just before loading",
}
FACTS = ("batch", "dims", "shapes", "values", "rebatched", "held_out")


def main() -> None:
    """Write one file of rows."""
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    lists: dict[str, int] = {}
    rows = [_row(figures, lists) for figures in _read(folder, "figures.json")]
    failures = [_place(path) | json.loads(path.read_text()) for path in _failures(folder)]
    names = {row["model"] for row in [*rows, *failures]}
    data = {
        "keys": KEYS,
        "onnxruntime": sorted({row.pop("onnxruntime") for row in rows}),
        "cpu_flags": _cpu_flags(),
        "models": {name: facts for name, facts in _models() if name in names},
        "node_lists": [json.loads(text) for text in lists],
        "rows": rows,
        "failures": failures,
    }
    text = json.dumps(data, separators=(",", ":"))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(text.encode(), mtime=0))
    steps = sum(len(row["requested"]) for row in rows)
    counts = f"{len(names)} models, {len(rows)} settings, {steps:,} steps, {len(failures)} failures"
    print(f"{target}: {counts}, {target.stat().st_size:,} bytes")


def _row(figures: dict[str, Any], lists: dict[str, int]) -> dict[str, Any]:
    nodes = lists.setdefault(json.dumps(figures.pop("nodes"), separators=(",", ":")), len(lists))
    return {"model": figures.pop("model"), **figures.pop("setting"), **figures, "nodes": nodes}


def _read(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(f"*/*/{name}")):
        yield json.loads(path.read_text())


def _failures(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*/failure.json"))


def _place(path: Path) -> dict[str, str]:
    return {"model": path.parent.parent.name, "setting": path.parent.name}


def _models() -> Iterator[tuple[str, Mapping[str, object]]]:
    listed = json.loads((corpus.HERE / "corpus.json").read_text())["packages"]
    origins = {item["name"]: item for item in listed}
    for entry in corpus.entries():
        facts: dict[str, object] = {key: getattr(entry, key) for key in FACTS}
        keys = ("package", "version", "file", "licence", "exporter")
        origin = origins.get(entry.name)
        facts |= {key: origin[key] for key in keys} if origin else {"file": entry.path.name}
        yield entry.name, {key: value for key, value in facts.items() if value}


def _cpu_flags() -> list[str]:
    """The instruction sets that choose kernels and channel blocks."""
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].splitlines()[0].split()
    return sorted(flag for flag in flags if flag.startswith(("avx", "fma", "amx", "sse4")))


if __name__ == "__main__":
    main()
