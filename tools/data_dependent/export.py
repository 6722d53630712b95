"""Export models whose dims the data of a run decide, with the exporters that people use.

``python tools/data_dependent/export.py FAMILY FOLDER [NAME...]`` writes ``NAME.onnx`` with random
weights and ``NAME.json`` with what its runs are fed. A family is a module here, such as
``detectors``, and needs the packages that ``tools/README.md`` names for it. Nothing is downloaded.
What an exporter refuses is reported and left out.
"""

import importlib
import json
import os
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    *("torch", "torchvision", "transformers", "onnxscript", "ultralytics", "tensorflow"),
    *("tensorflow-cpu", "tf2onnx", "skl2onnx", "scikit-learn", "onnxconverter-common", "onnx"),
    *("jax2onnx", "paddle2onnx", "onnxmltools"),
)


def versions() -> dict[str, str]:
    """The packages that are installed here."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Write the models of a family."""
    family, folder, *names = sys.argv[1:]
    target = Path(folder).resolve()
    target.mkdir(parents=True, exist_ok=True)
    cases = importlib.import_module(family).CASES
    warnings.simplefilter("ignore")
    for name in names or cases:
        path = target / f"{name}.onnx"
        if path.exists() and not names:
            continue
        try:
            cases[name].export(os.fspath(path))
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises of a model
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        about = {
            "exporter": cases[name].exporter,
            "versions": versions(),
            "inputs": cases[name].written_inputs(),
        }
        path.with_suffix(".json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
