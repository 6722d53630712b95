"""The elements of small constants, in all forms that a file may store them in."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper

from onnxmem.model.graph import Masking
from onnxmem.model.traversal import onnx_op

Array = npt.NDArray[np.generic]
MASKED = -1e4
"""What masks add to masked scores: this or less, for float16 ends at -65504."""
_MASK_RANK = 4
_MOST_IN_A_BYTE = 4
"""Elements per byte of the narrowest types: a tensor with fewer bytes has lost its payload."""
_PLAIN: Final[Mapping[int, np.dtype[np.generic]]] = MappingProxyType(
    {
        onnx.TensorProto.FLOAT: np.dtype("<f4"),
        onnx.TensorProto.DOUBLE: np.dtype("<f8"),
        onnx.TensorProto.INT32: np.dtype("<i4"),
        onnx.TensorProto.INT64: np.dtype("<i8"),
        onnx.TensorProto.BOOL: np.dtype("?"),
    }
)
"""The types of most constants, which are read directly, ten times faster than by onnx."""
_NUMBERS: Final[Mapping[int, Callable[[onnx.TensorProto], Sequence[float]]]] = MappingProxyType(
    {
        onnx.TensorProto.FLOAT: lambda proto: proto.float_data,
        onnx.TensorProto.DOUBLE: lambda proto: proto.double_data,
        onnx.TensorProto.INT32: lambda proto: proto.int32_data,
        onnx.TensorProto.INT64: lambda proto: proto.int64_data,
        onnx.TensorProto.BOOL: lambda proto: proto.int32_data,
    }
)
"""Where their elements are if they are not stored as bytes."""
_FloatOrInt = npt.NDArray[np.float32] | npt.NDArray[np.int64]


def constant_value(proto: onnx.TensorProto) -> Array | None:
    """The elements of a small constant; ``None`` if they are skipped, external or invalid."""
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return None
    # Dims are what the file claims: no array is made of them that the file does not store.
    size = prod(proto.dims)
    if size > _MOST_IN_A_BYTE * proto.ByteSize():
        return None
    dtype, raw = _PLAIN.get(proto.data_type), proto.raw_data
    if raw and dtype is not None:
        is_whole = len(raw) == size * dtype.itemsize and min(proto.dims, default=0) >= 0
        return np.frombuffer(raw, dtype).reshape(proto.dims) if is_whole else None
    if dtype is not None:
        numbers = _NUMBERS[proto.data_type](proto)[:]
        if len(numbers) == size and min(proto.dims, default=0) >= 0:
            return np.array(numbers, dtype).reshape(proto.dims)
    try:
        value = onnx.numpy_helper.to_array(proto)
    except (ValueError, TypeError, RuntimeError, KeyError):
        return None
    return value if value.size == size else None


def is_mask_shape(dims: Sequence[int]) -> bool:
    """Whether dims are those of a mask that all heads share: [batch, 1, rows, rows]."""
    return len(dims) == _MASK_RANK and dims[1] == 1 and dims[2] == dims[3] > 1


def masking_of(proto: onnx.TensorProto) -> Masking | None:
    """What a constant of such dims hides: booleans that are false, or numbers far below 0.

    ``None`` if it is not a mask, or its values are not at hand.
    """
    value = constant_value(proto)
    if value is None or value.dtype.kind not in "bf":
        return None
    if value.dtype.kind == "b":
        is_visible = value.astype(np.bool_)
    else:
        numbers = value.astype(np.float32)
        is_visible = numbers == 0
        if not np.logical_or(is_visible, numbers <= MASKED).all():
            return None
    if is_visible.all():
        return Masking.NOTHING
    is_causal = (is_visible == np.tri(value.shape[-1], dtype=np.bool_)).all()
    return Masking.LATER if is_causal else Masking.OTHER


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The dense tensor of a Constant node, from any of its attributes; ``None`` for other nodes."""
    if onnx_op(node) != "Constant":
        return None
    for attribute in node.attribute:
        if attribute.name == "value":
            return attribute.t
        if attribute.name in {"value_float", "value_floats"}:
            floats = attribute.floats if attribute.name.endswith("s") else [attribute.f]
            return _tensor(onnx.TensorProto.FLOAT, attribute, np.array(floats, np.float32))
        if attribute.name in {"value_int", "value_ints"}:
            integers = attribute.ints if attribute.name.endswith("s") else [attribute.i]
            return _tensor(onnx.TensorProto.INT64, attribute, np.array(integers, np.int64))
        if attribute.name in {"value_string", "value_strings"}:
            # Without the text, which decides no shape.
            dims = [len(attribute.strings)] if attribute.name.endswith("s") else []
            return onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=dims)
    return None


def _tensor(elem_type: int, attribute: onnx.AttributeProto, value: _FloatOrInt) -> onnx.TensorProto:
    dims = [value.size] if attribute.name.endswith("s") else []
    return onnx.TensorProto(data_type=elem_type, dims=dims, raw_data=value.tobytes())
