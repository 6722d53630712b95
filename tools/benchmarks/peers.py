"""onnxmem beside its peers: whole-process time and peak memory on the same models, in turns.

Usage: python tools/benchmarks/peers.py [--rounds N] [--cache FOLDER] [MODEL ...]

Each tool runs in a process and a virtual environment of its own, which are made in the cache folder
when first needed, as are the models: those of ``models/`` with random weights written back into the
file, and a decoder of 10,000 nodes. Medians of the rounds and ratios to onnxmem; tools take turns,
so that a busy machine weighs on all of them alike. CPU time is the steadier figure.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from scale import chain, measured

MODELS = Path(__file__).parent.parent.parent / "models"
FILLED = ("resnet50", "vgg16", "densenet121", "bert_base")
DECODER = "decoder_10k"

_ONNXSIM = """
import sys, onnx, onnxsim
model = onnx.load(sys.argv[1])
"""
_PEERS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "onnxsim info": (
            "onnxsim==0.8.1",
            _ONNXSIM
            + "from onnxsim.model_info import ModelInfo\nprint(ModelInfo(model).memory_footprint)",
        ),
        "onnxsim plan": (
            "onnxsim==0.8.1",
            _ONNXSIM
            + "from onnxsim import plan_activation_memory\nprint(plan_activation_memory(model))",
        ),
        "onnx-tool": (
            "onnx-tool==1.0.1",
            "import sys, onnx_tool\nonnx_tool.model_profile(sys.argv[1])",
        ),
    }
)
"""Tool -> the package and the program that asks it for a model's memory."""

_BOUND: Final = {"batch": 1, "sequence": 128, "sequence_length": 128}


def environment(package: str, cache: Path) -> Path:
    """The interpreter of a package's own virtual environment, made where it is missing."""
    folder = cache / package.partition("==")[0]
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)  # noqa: S603
        install = [str(python), "-m", "pip", "install", "-q", package]
        subprocess.run(install, check=True)  # noqa: S603
    return python


def filled(path: Path) -> onnx.ModelProto:
    """A model whose absent weights are random numbers in the file, its dims bound.

    Peers need the weights there, and numbers for the dims of the inputs.
    """
    model = onnx.load(str(path), load_external_data=False)
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            values = random.standard_normal(tuple(tensor.dims), dtype=np.float32)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype), tensor.name))
    return bound(model)


def bound(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write numbers over the symbols of the inputs, in place."""
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                dim.dim_value = _BOUND.get(dim.dim_param, 1 if axis == 0 else 128)
    return model


def decoder() -> onnx.ModelProto:
    """10,000 nodes with inline weights, 64 x 64 each: a graph of many nodes and few bytes."""
    model = bound(chain(10_000, width=64))
    values = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


def made(name: str, cache: Path) -> Path:
    """A model of the set as a file with its weights inside."""
    path = cache / f"{name}.onnx"
    if not path.exists():
        model = decoder() if name == DECODER else filled(MODELS / f"{name}.onnx")
        onnx.save(model, str(path))
    return path


def medians(
    commands: Mapping[str, Sequence[str]], rounds: int
) -> dict[str, tuple[float, ...] | None]:
    """Let the tools take turns; ``None`` for one that fails."""
    turns: dict[str, list[tuple[float, ...]]] = {name: [] for name in commands}
    failed: set[str] = set()
    for _ in range(rounds):
        for name in commands.keys() - failed:
            try:
                turns[name].append(measured([*commands[name]]))
            except RuntimeError:
                failed.add(name)
    return {
        name: None
        if name in failed
        else tuple(statistics.median(column) for column in zip(*turns[name], strict=True))
        for name in commands
    }


def main() -> None:
    """Print a row for each model and tool."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[*FILLED, DECODER], metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    default = Path.home() / ".cache" / "onnxmem-benchmarks"
    parser.add_argument("--cache", type=Path, default=default, metavar="FOLDER")
    parser.add_argument("--remove", action="store_true", help="remove the cache at the end")
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    pythons = {name: environment(package, asked.cache) for name, (package, _) in _PEERS.items()}
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {asked.rounds} rounds")
    print(f"{'model':<14}{'MB':>6}  {'tool':<14}{'wall s':>8}{'CPU s':>8}{'MiB':>7}{'ratios':>21}")
    for model in asked.models:
        path = made(model, asked.cache)
        commands = {"onnxmem": [sys.executable, "-m", "onnxmem", str(path)]}
        for name, (_, program) in _PEERS.items():
            commands[name] = [str(pythons[name]), "-c", program, str(path)]
        _print_rows(model, path, medians(commands, asked.rounds))
    if asked.remove:
        shutil.rmtree(asked.cache)


def _print_rows(model: str, path: Path, found: Mapping[str, tuple[float, ...] | None]) -> None:
    ours = found["onnxmem"]
    size = f"{path.stat().st_size / 1e6:.0f}"
    for name, row in found.items():
        if row is None or ours is None:
            print(f"{model:<14}{size:>6}  {name:<14}  fails", flush=True)
            continue
        ratios = "".join(f"{theirs / mine:>7.1f}" for theirs, mine in zip(row, ours, strict=True))
        figures = f"{row[0]:>8.2f}{row[1]:>8.2f}{row[2]:>7.0f}"
        print(f"{model:<14}{size:>6}  {name:<14}{figures}{ratios}", flush=True)


if __name__ == "__main__":
    main()
