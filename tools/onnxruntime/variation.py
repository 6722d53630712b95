"""Which figures differ from process to process, and how far.

Usage: python tools/onnxruntime/variation.py FOLDER

onnxruntime puts in the reorder nodes of its NCHWc layout in the order of addresses, which are
random: the order of execution changes with them, and sometimes a peak. Models with several such
nodes are measured in ``NUM_PROCESSES`` fresh processes, at their largest batch with optimization
on. ``tests/data/onnxruntime/variation.json`` lists for each setting the (requested peak, pattern
block, steady held) bytes that occurred, and how often.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import corpus
from truth import Setting, trace

TARGET = Path(__file__).parents[2] / "tests" / "data" / "onnxruntime" / "variation.json"
NUM_PROCESSES = 4
FIGURES = ("requested_peak_bytes", "pattern_block_bytes", "held_steady_bytes")


def main() -> None:
    """Measure the settings that have no figures yet, and write what occurred in all."""
    folder = Path(sys.argv[1])
    settings = {}
    for model, setting in reordered(folder):
        kept = folder / "variation" / f"{model.name}.{setting.name}.json"
        kept.parent.mkdir(exist_ok=True)
        if not kept.exists():
            kept.write_text(json.dumps(occurring(model, setting)))
        name = f"{model.name} {setting.name}"
        settings[name] = json.loads(kept.read_text())
        print(name, settings[name], flush=True)
    head = {"figures": [*FIGURES, "times"]}
    lines = (f"  {json.dumps(name)}: {json.dumps(rows)}" for name, rows in settings.items())
    text = ",\n".join(lines)
    TARGET.write_text(f'{json.dumps(head)[:-1]}, "settings": {{\n{text}\n}}}}\n')


def reordered(folder: Path) -> Iterator[tuple[Path, Setting]]:
    """The settings to measure: folder of the model, setting."""
    for path in sorted(folder.glob("*/*_all_b*/figures.json")):
        row = json.loads(path.read_text())
        setting = Setting(**row["setting"])
        entry = corpus.read(path.parent.parent)
        largest = entry.batches[-1] if entry.batch else None
        reorders = sum(op_type.startswith("Reorder") for _, op_type in row["nodes"])
        if setting.reuse and setting.batch == largest and reorders > 1:
            yield path.parent.parent, setting


def occurring(model: Path, setting: Setting) -> list[list[int]]:
    """The distinct figures of several processes and their number, the most frequent first."""
    entry, here = corpus.read(model), model.parent / "variation" / model.name
    rows = (trace(entry, setting, here) for _ in range(NUM_PROCESSES))
    counts = Counter(tuple(row[key] for key in FIGURES) for row in rows)
    return [[*figures, times] for figures, times in counts.most_common()]


if __name__ == "__main__":
    main()
