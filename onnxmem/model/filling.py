"""Replace missing weights, so that a model without them can be run.

The memory of a runtime depends on the sizes of weights, and hardly on their values, except that

* weights with equal bytes may share one packed copy, so the first bytes of each tensor are unique;
* a bias whose scale is not that of input and weight prevents the fusion of a quantized operator, so
  scales, zero points and short 8-bit vectors stay zero;
* indices must be in range, so they stay zero.

The file is sparse: 30 GB of weights take no disk space.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from onnxmem.model.graph import DType, dtype_of
from onnxmem.model.traversal import graphs_in, model_nodes

WEIGHTS_FILE: Final = "weights.bin"
_ALIGNMENT: Final = 4096
"""Offsets are multiples of the page size, so that a runtime can map them."""
_QUANTIZERS: Final = ("QuantizeLinear", "DequantizeLinear")
_LARGEST_HALVES: Final = {DType.FLOAT16: 0x7BFF, DType.BFLOAT16: 0x7F7F}
"""The bits of the largest finite number; all smaller bit patterns are finite too."""
_PAYLOADS: Final = (
    *("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"),
    "string_data",
)


@dataclass(frozen=True, slots=True)
class FilledModel:
    """A model file that a runtime can open."""

    path: Path
    num_filled: int
    """How many tensors were replaced."""


def absent_tensors(model: onnx.ModelProto, folder: Path) -> list[onnx.TensorProto]:
    """The external tensors whose file is not in ``folder`` or is too short."""
    return [tensor for tensor in stored_tensors(model) if _is_absent(tensor, folder)]


def is_hollow(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor in the model file has elements but no payload."""
    is_own = tensor.data_location != onnx.TensorProto.EXTERNAL
    has_payload = any(len(getattr(tensor, field)) for field in _PAYLOADS)
    return is_own and not has_payload and stored_bytes(tensor) > 0


def write_filled(
    model: onnx.ModelProto, absent: Iterable[onnx.TensorProto], folder: Path
) -> FilledModel:
    """Write a model, and a sparse file for its absent tensors, into an empty ``folder``.

    ``model`` is changed: the absent tensors refer to that file afterwards. Other external tensors
    refer to files in ``folder`` with the names of those next to the model.

    :raises OSError: the folder cannot be written.
    """
    # Only the first bytes of each tensor are written; the gaps are holes of the file, which read as
    # zeros and take no disk space.
    zero = _kept_zero(model)
    end = count = 0
    with (folder / WEIGHTS_FILE).open("wb") as weights:
        for count, tensor in enumerate(absent, start=1):
            size_bytes = stored_bytes(tensor)
            _refer(tensor, end, size_bytes)
            if tensor.name not in zero:
                weights.seek(end)
                weights.write(_mark(tensor, count)[:size_bytes])
            end = -(-(end + size_bytes) // _ALIGNMENT) * _ALIGNMENT
        weights.truncate(end)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return FilledModel(path, count)


def stored_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors that a model stores in initializers and attributes, also of functions."""
    for graph in graphs_in(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in model_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """The bytes of a tensor by its dims; 0 for strings, whose size depends on their text."""
    dtype = dtype_of(tensor.data_type)
    return -(-prod(tensor.dims) * ((dtype and dtype.bits) or 0) // 8)


def _is_absent(tensor: onnx.TensorProto, folder: Path) -> bool:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return False
    where = {entry.key: entry.value for entry in tensor.external_data}
    try:
        size = (folder / where["location"]).stat().st_size
        return size < int(where.get("offset", 0)) + stored_bytes(tensor)
    except (OSError, ValueError, KeyError):
        return True


def _refer(tensor: onnx.TensorProto, offset: int, size_bytes: int) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", size_bytes)):
        tensor.external_data.add(key=key, value=str(value))


def _mark(tensor: onnx.TensorProto, count: int) -> bytes:
    """Unique first bytes: a small number of the type of the tensor."""
    dtype = dtype_of(tensor.data_type)
    if dtype is DType.FLOAT32:
        return np.float32(count / 1024).tobytes()
    if dtype is DType.FLOAT64:
        return np.float64(count / 1024).tobytes()
    if dtype in _LARGEST_HALVES:
        return (count % _LARGEST_HALVES[dtype] + 1).to_bytes(2, "little")
    is_matrix_of_bytes = dtype is not None and (dtype.bits or 0) <= 8 and len(tensor.dims) > 1  # noqa: PLR2004 - a byte; a vector has one dim
    return count.to_bytes(4, "little") if is_matrix_of_bytes else b""


def _kept_zero(model: onnx.ModelProto) -> set[str]:
    """Names of scales and zero points."""
    return {
        name
        for node in model_nodes(model)
        if node.op_type in _QUANTIZERS
        for name in node.input[1:]
    }
