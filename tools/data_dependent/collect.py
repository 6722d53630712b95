"""Take what was exported and measured to the folder that the tests read.

``python tools/data_dependent/collect.py FOLDER tests/data/data_dependent`` writes each model
without weights, and ``runs.json.gz`` with what its runs showed.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any, Final

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))
import stripping

# Anchors, thresholds and shapes keep their elements: a bound may follow from them.
stripping.LARGEST_INLINE_BYTES = 1 << 12
LEVEL: Final = 9


def compressed(data: bytes) -> bytes:
    """The same bytes for the same data."""
    return gzip.compress(data, LEVEL, mtime=0)


def main() -> None:
    """Write the folder."""
    source, target = map(Path, sys.argv[1:])
    target.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(source.glob("*.runs.json")):
        name = path.name.removesuffix(".runs.json")
        about = json.loads((source / f"{name}.json").read_text("utf-8"))
        rows[name] = {**about, **json.loads(path.read_text("utf-8"))}
        model = onnx.load(source / f"{name}.onnx")
        stripping.drop_annotations(model)
        stripping.strip_weights(model, "absent")
        data = compressed(model.SerializeToString(deterministic=True))
        (target / f"{name}.onnx.gz").write_bytes(data)
        print(f"{name}: {len(data):,} bytes")
    text = json.dumps(rows, separators=(",", ":"), sort_keys=True)
    (target / "runs.json.gz").write_bytes(compressed(text.encode()))


if __name__ == "__main__":
    main()
