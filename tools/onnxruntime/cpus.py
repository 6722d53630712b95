"""Graphs of the tests as onnxruntime optimizes them on other CPUs, as data for the tests.

Usage:
    python tools/onnxruntime/cpus.py texts TEXTS.json
    PYTHON_OF_A_CPU tools/onnxruntime/cpus.py graphs TEXTS.json GRAPHS.json
    python tools/onnxruntime/cpus.py join TEXTS.json CPU=GRAPHS.json...
    python tools/onnxruntime/cpus.py figures CPU PYTHON_OF_THE_CPU FOLDER [NAME...]
    python tools/onnxruntime/cpus.py without-avx512 ENVIRONMENT

``texts`` runs ``tests/runtimes/onnxruntime`` and writes every graph text that is compared with
onnxruntime. ``graphs`` writes them as optimized by the onnxruntime of the Python that runs it.
``join`` writes the texts of which the CPUs' graphs differ to ``tests/data/optimizer/cpus.json.gz``.
``figures`` measures models of ``corpus.py``'s folder at their smallest batch, and writes the
figures of the arena to ``tests/data/onnxruntime/cpus.json``.

``without-avx512`` changes the onnxruntime of a virtual environment so that it takes an x86-64 CPU
for one without AVX-512 and AMX: where its code asks the CPU which registers the system saves
(``xgetbv``, twice or more), it then reads 7, which is x87, SSE and AVX. It then runs the code
for AVX2, at full speed. Set ``NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"`` for
numpy to say the same. For ARM, an emulator runs the aarch64 wheels of Python's packages: QEMU's
``qemu-aarch64 -cpu neoverse-n1`` with a ``/proc/cpuinfo`` of such a CPU in the folder given by
``-L``.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import corpus
import pytest
import truth

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "tests" / "data" / "optimizer" / "cpus.json.gz"
FIGURES = ROOT / "tests" / "data" / "onnxruntime" / "cpus.json"
KEYS = (
    "base_bytes",
    "requested_peak_bytes",
    "with_scratch_peak_bytes",
    "pattern_block_bytes",
    "in_use_peak_bytes",
    "held_bytes",
    "held_steady_bytes",
)
sys.path.insert(0, str(ROOT / "tests"))

from runtimes.onnxruntime import optimized_graphs as graphs  # noqa: E402 - a helper of the tests

READS_SAVED_REGISTERS = bytes.fromhex("0f01d0 89c0")
"""``xgetbv; mov eax, eax``"""
HAS_AVX_ALONE = bytes.fromhex("b807000000")
"""``mov eax, 7``"""


def main() -> None:
    """Run the command in the first argument."""
    what, *rest = sys.argv[1:]
    {
        "texts": record_texts,
        "graphs": make_graphs,
        "join": join,
        "figures": measure,
        "without-avx512": patch,
    }[what](*rest)


def record_texts(out: str) -> None:
    """Run the tests with a comparison that only records the texts."""
    texts: dict[str, None] = {}

    def compare_with_onnxruntime(
        model: Any,  # noqa: ANN401 - a text or a model
        level: str = "all",
        *,
        opset: int = 21,
        dims: dict[str, int] | None = None,
        has_order: bool = True,
    ) -> list[str]:
        del has_order
        if isinstance(model, str):
            texts[json.dumps([model, level, opset, dims or {}])] = None
        return []

    graphs.compare_with_onnxruntime = compare_with_onnxruntime
    files = sorted(map(str, (ROOT / "tests/runtimes/onnxruntime").glob("test_*.py")))
    pytest.main(["-q", "--tb=no", "-p", "no:xdist", *files])
    Path(out).write_text("[" + ",\n".join(texts) + "]")
    print(f"{len(texts)} texts")


def make_graphs(texts: str, out: str) -> None:
    """The nodes of each text after optimization, as whole expressions, sorted."""
    found = []
    for text, level, opset, dims in json.loads(Path(texts).read_text()):
        model = graphs.filled(graphs.parsed(text, opset))
        found.append(sorted(graphs.expressions(graphs.by_onnxruntime(model, level, dims).graph)))
    Path(out).write_text(json.dumps(found))


def join(texts: str, *named: str) -> None:
    """Write the texts whose graphs differ between CPUs."""
    pairs = [name.split("=", 1) for name in named]
    graphs_of = {cpu: json.loads(Path(path).read_text()) for cpu, path in pairs}
    rows = []
    for number, (text, level, opset, dims) in enumerate(json.loads(Path(texts).read_text())):
        by_cpu = {cpu: found[number] for cpu, found in graphs_of.items()}
        if len({json.dumps(nodes) for nodes in by_cpu.values()}) > 1:
            row = {"text": text, "level": level, "opset": opset, "dims": dims, "nodes": by_cpu}
            rows.append(row)
    data = {"onnxruntime": "1.32.0", "rows": rows}
    TARGET.write_bytes(gzip.compress(json.dumps(data, indent=0).encode(), mtime=0))
    print(f"{len(rows)} rows, {TARGET.stat().st_size:,} bytes")


def measure(cpu: str, python: str, folder: str, *names: str) -> None:
    """Measure models with the onnxruntime of a CPU at level ``all``; other figures stay."""
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in names or sorted(path.parent.name for path in Path(folder).glob("*/entry.json")):
        entry = corpus.read(Path(folder, name))
        setting = truth.Setting(entry.batches[0] if entry.batch else None, "all", fixed=False)
        here = Path(folder, name, f"{setting.name}_{cpu}")
        figures = truth.trace(entry, setting, here, python)
        known.setdefault(cpu, {})[name] = {key: figures[key] for key in KEYS}
        print(cpu, name, flush=True)
        FIGURES.write_text(json.dumps(known, indent=1) + "\n")


def patch(environment: str) -> None:
    """Make the onnxruntime of an environment detect AVX2 only."""
    pattern = "lib/python*/site-packages/onnxruntime/capi/onnxruntime_pybind11_state*.so"
    (library,) = Path(environment).glob(pattern)
    code = library.read_bytes()
    library.write_bytes(code.replace(READS_SAVED_REGISTERS, HAS_AVX_ALONE))
    print(f"{code.count(READS_SAVED_REGISTERS)} occurrences changed in {library}")


if __name__ == "__main__":
    main()
