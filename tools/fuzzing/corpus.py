"""Write the first inputs of the fuzzers: hostile files and small models of onnx's backend suite."""

import sys
import tempfile
from pathlib import Path

from onnx.backend.test.loader import load_model_tests

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import hostile

LARGEST_BYTES = 4096
"""Small inputs are mutated more often."""
NOT_FILES = {"special", "external"}


def hostile_files() -> dict[str, bytes]:
    """Bytes of the small hostile files, by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for place, file in enumerate(hostile.ALL):
            path = Path(folder, str(place))
            if file.kind not in NOT_FILES:
                file.write(path)
                found[f"hostile_{place}"] = path.read_bytes()
    return found


def backend_files() -> dict[str, bytes]:
    """Bytes of the backend suite's models that lie on the disk, by name."""
    tests = [
        test for kind in ("simple", "pytorch-operator") for test in load_model_tests(kind=kind)
    ]
    return {
        f"backend_{test.name}": Path(test.model_dir, "model.onnx").read_bytes()
        for test in tests
        if test.model_dir and Path(test.model_dir, "model.onnx").exists()
    }


def main() -> None:
    """Write them into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    inputs = hostile_files() | backend_files()
    kept = {name: data for name, data in inputs.items() if len(data) <= LARGEST_BYTES}
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    print(f"{len(kept)} inputs in {folder}")


if __name__ == "__main__":
    main()
