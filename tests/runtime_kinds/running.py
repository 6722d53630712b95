"""What onnxruntime makes of a model, run without optimisations: the types of all its tensors.

As a script it runs every kind and writes a line of JSON for each: onnxruntime may end the process.
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
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


def run(kind: Kind) -> Run:
    """Run a kind, with all that its nodes make put out where that works."""
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
    """Write what every kind makes, those left out that onnxruntime does not run."""
    kinds = importlib.import_module("runtime_kinds").KINDS
    for kind in kinds:
        if kind.runs:
            print(json.dumps([kind.name, *asdict(run(kind)).values()]), flush=True)  # noqa: T201


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
    """Something to feed each input with: its kind's own elements, or a few small numbers."""
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
