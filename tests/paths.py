"""Where the tests, their data and the models lie, and how a Python of its own finds them."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import onnx

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
MODELS: Final = ROOT / "models"
DATA: Final = TESTS / "data"
LIGHT: Final = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Networks of onnx's backend suite, whose weights the file makes itself."""


def environment() -> dict[str, str]:
    """Variables for a Python that imports what the tests import."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def script_module(path: Path) -> ModuleType:
    """The script of ``tools/`` as a module, which dataclasses and processes look up by its name.

    The folder is part of the name: two scripts are called ``accuracy.py``.
    """
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
