"""PyTorch is imported by ``onnxmem.torch`` alone, which says how to install it."""

import subprocess
import sys
from pathlib import Path

import grimp
from models_on_disk import write_model

MISSING = """
import sys
sys.modules["torch"] = None
try:
    import onnxmem.torch
except ModuleNotFoundError as fault:
    print(fault.name, fault)
"""


def python(program: str, *words: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_only_one_package_imports_torch() -> None:
    found = grimp.build_graph("onnxmem", include_external_packages=True, cache_dir=None)
    importers = found.find_modules_that_directly_import("torch")
    assert importers
    assert {each.rpartition(".")[0] for each in importers} == {"onnxmem.torch"}


def test_an_analysis_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    path = write_model(tmp_path / "net.onnx")
    program = "import sys, onnxmem; onnxmem.analyze(sys.argv[1], train=True).to_dict(); print(7)"
    assert python(program, path, folder=tmp_path) == "7\n"


def test_without_torch_the_extra_is_named(tmp_path: Path) -> None:
    said = python(MISSING, folder=tmp_path)
    assert said == "torch onnxmem.torch needs PyTorch: pip install 'onnxmem[train]'\n"
