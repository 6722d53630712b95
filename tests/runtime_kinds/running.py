"""What onnxruntime makes of a model, run without optimization: the types of all its tensors.

onnxruntime may crash the process, so the kinds run in a child process: this file as a script, which
writes a line of JSON for each kind.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper

from runtime_kinds.kind import Kind, Numbers

_LENGTHS: Final = (2, 5, 3, 7)
"""Of symbols, in the order in which they occur."""

Made = tuple[str, tuple[int, ...]]
"""Element type, as onnxruntime writes it, and dims."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a kind."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of the inputs."""
    outputs: Mapping[str, Made]
    inner: Mapping[str, Made]
    """Tensors of the top-level graph that are no outputs of it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why onnxruntime did not run a kind."""

    message: str

    @property
    def is_cpu(self) -> bool:
        """Whether this machine's CPU lacks the kernel, as opposed to an error of the model."""
        return _NOT_ON_THIS_CPU.search(self.message) is not None


_NOT_ON_THIS_CPU: Final = re.compile(
    r"(not|n't) (yet )?support(ed)? (on|by) (this|the current) (hardware|platform|cpu|processor)",
    re.IGNORECASE,
)


def run_all(kinds: Sequence[Kind]) -> dict[str, Run | Refusal]:
    """Run kinds in a child process; after a crash, the rest of them in another one."""
    found: dict[str, Run | Refusal] = {}
    while left := [kind.name for kind in kinds if kind.name not in found]:
        ended = _run_child(left)
        found |= dict(_read(line) for line in ended.stdout.splitlines())
        crashed = next((name for name in left if name not in found), None)
        if crashed is not None:
            code, said = ended.returncode, ended.stderr[-2000:]
            found[crashed] = Refusal(f"the process ended with code {code}: {said}")
    return found


def _run_child(names: Sequence[str]) -> subprocess.CompletedProcess[str]:
    tests = Path(__file__).parent.parent
    paths = os.pathsep.join((str(tests), str(tests.parent)))
    return subprocess.run(
        [sys.executable, "-m", "runtime_kinds.running"],
        env={**os.environ, "PYTHONPATH": paths},
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=False,
    )


def _read(line: str) -> tuple[str, Run | Refusal]:
    name, parts = json.loads(line)
    if isinstance(parts, str):
        return name, Refusal(parts)
    shapes, *made = parts
    return name, Run({each: tuple(dims) for each, dims in shapes.items()}, *map(_read_made, made))


def _read_made(values: Mapping[str, tuple[str, list[int]]]) -> dict[str, Made]:
    return {name: (elem_type, tuple(dims)) for name, (elem_type, dims) in values.items()}


def run(kind: Kind) -> Run:
    """Run a kind with every tensor as an output, if that works."""
    make = kind.plain or kind.make
    model = make()
    feeds = dict(_feeds(model.graph, kind))
    outputs = [value.name for value in model.graph.output]
    made = [name for node in model.graph.node for name in node.output if name]
    inner = [name for name in dict.fromkeys(made) if name not in outputs]
    try:
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
        found = _run(model, feeds)
    except Exception:  # noqa: BLE001 - some tensors, as of an optional, cannot be put out
        found = _run(make(), feeds)
    return Run(
        {name: array.shape for name, array in feeds.items()},
        {name: found[name] for name in outputs if name in found},
        {name: found[name] for name in inner if name in found},
    )


def main() -> None:
    """Run the kinds named on stdin; write the outputs of each, or why it did not run."""
    names = {*json.load(sys.stdin)}
    for kind in importlib.import_module("runtime_kinds").KINDS:
        if kind.name in names:
            print(json.dumps([kind.name, _result(kind)]), flush=True)


def _result(kind: Kind) -> list[Any] | str:
    try:
        return list(asdict(run(kind)).values())
    except Exception as error:  # noqa: BLE001 - a kind that fails must not stop the others
        return f"{type(error).__name__}: {error}"


def _run(model: onnx.ModelProto, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, Made]:
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    text = model.SerializeToString()
    session = ort.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    # Strings are no OrtValue that numpy can make; bfloat16 and int4 none that it can read.
    if any(array.dtype.kind == "O" for array in feeds.values()):
        made = session.run(names, dict(feeds))
        return {name: _of_array(array) for name, array in zip(names, made, strict=True)}
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    found = session.run_with_ort_values(names, values)
    return {
        name: (value.data_type(), tuple(value.shape()))
        for name, value in zip(names, found, strict=True)
        if value.is_tensor()
    }


def _of_array(array: npt.NDArray[Any]) -> Made:
    names = {"float32": "float", "float64": "double", "object": "string"}
    return f"tensor({names.get(array.dtype.name, array.dtype.name)})", array.shape


def _feeds(graph: onnx.GraphProto, kind: Kind) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """A feed for each input: its kind's own elements, or a few small numbers."""
    stored = {tensor.name for tensor in graph.initializer}
    stored |= {sparse.values.name for sparse in graph.sparse_initializer}
    lengths = iter(_LENGTHS)
    numbers: dict[str, int] = {}
    for value in graph.input:
        dense = value.type.tensor_type
        if value.name in stored or not dense.elem_type:
            continue
        for dim in dense.shape.dim:
            if dim.dim_param and dim.dim_param not in numbers:
                numbers[dim.dim_param] = next(lengths)
        dims = [dim.dim_value or numbers.get(dim.dim_param, 0) for dim in dense.shape.dim]
        own = kind.feeds.get(value.name)
        yield value.name, _array(dense.elem_type, dims, own)


def _array(elem_type: int, dims: list[int], own: Numbers | None) -> npt.NDArray[Any]:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(elem_type)
    if own is not None:
        return np.resize(np.array(own, dtype), dims)
    count = prod(dims)
    if dtype.kind == "f":
        return (np.arange(count) % 7 / 8 + 0.125).astype(dtype).reshape(dims)
    return (np.arange(count) % 2).astype(dtype).reshape(dims)


if __name__ == "__main__":
    main()
