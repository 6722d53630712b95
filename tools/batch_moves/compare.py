"""Hold a moved batch against the same network exported at that batch.

``python tools/batch_moves/compare.py FOLDER [OUT.json]`` reads what ``export.py`` wrote and prints
a row for each network, exporter and direction: ``equal``, ``warned`` (a figure differs and a
finding speaks of the batch) or ``silent`` (it differs and nothing does). Needs onnxmem alone.
"""

import ast
import json
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from onnxmem import analyze

BATCHES = (1, 7)
CODES = {"batch_fixed", "batch_in_constants", "batch_of_one"}


def figures(row: Mapping[str, Any]) -> dict[str, int | None]:
    """The figures that are held against each other, by name, in bytes."""
    activations, training = row["activations"], row["training"] or {}
    return {
        "naive_bytes": activations["naive_bytes"],
        "peak_bytes": activations["peak_bytes"],
        "in_place_peak_bytes": activations["in_place_peak_bytes"],
        "total_bytes": row["total_bytes"],
        "training_peak_bytes": training.get("peak_bytes"),
    }


def compared(folder: Path, name: str, exporter: str, old: int, new: int) -> dict[str, Any]:
    """A row: what the file of one batch says of the other, and what that one's file says."""
    moved = analyze(folder / f"{name}.{exporter}.{old}.onnx", batch=new, train=True).to_dict()
    fresh = analyze(folder / f"{name}.{exporter}.{new}.onnx", train=True).to_dict()
    of_moved, of_fresh = figures(moved), figures(fresh)
    codes = sorted({finding["code"] for finding in moved["findings"]} & CODES)
    differing = {
        figure: [of_moved[figure], of_fresh[figure]]
        for figure in of_fresh
        if of_moved[figure] != of_fresh[figure]
    }
    result = "equal" if not differing else "warned" if codes else "silent"
    return {
        "network": name,
        "held_out": name in held_out(),
        "exporter": exporter,
        "old_batch": old,
        "new_batch": new,
        "result": result,
        "codes": codes,
        "moved_and_fresh": differing,
    }


@cache
def held_out() -> frozenset[str]:
    """The names in ``HELD_OUT`` of ``networks.py``, which cannot be imported without torch."""
    tree = ast.parse(Path(__file__).with_name("networks.py").read_text(encoding="utf-8"))
    assigned = {
        node.target.id: node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    names = ast.walk(assigned["HELD_OUT"])
    keys = (key for node in names if isinstance(node, ast.Dict) for key in node.keys)
    return frozenset(key.value for key in keys if isinstance(key, ast.Constant))


def main() -> None:
    """Compare every pair of files in a folder."""
    folder, *out = map(Path, sys.argv[1:3])
    found = sorted({tuple(path.name.split(".")[:2]) for path in folder.glob("*.onnx")})
    rows = []
    for name, exporter in found:
        if not all((folder / f"{name}.{exporter}.{batch}.onnx").exists() for batch in BATCHES):
            continue
        for old, new in (BATCHES, BATCHES[::-1]):
            rows.append(compared(folder, name, exporter, old, new))
            print(*_line(rows[-1]), flush=True)
    print(Counter(row["result"] for row in rows))
    if out:
        lines = ",\n".join(json.dumps(row) for row in rows)
        out[0].write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    percent = {
        figure.removesuffix("_bytes"): (
            f"{100 * moved / fresh - 100:+.2f} %" if moved is not None and fresh else "unknown"
        )
        for figure, (moved, fresh) in row["moved_and_fresh"].items()
    }
    direction = f"{row['old_batch']} -> {row['new_batch']}"
    name = f"{row['network']}.{row['exporter']}"
    return f"{row['result']:7}{name:40}{direction:8}", str(percent or ""), *row["codes"]


if __name__ == "__main__":
    main()
