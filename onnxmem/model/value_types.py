"""Types of values: read them, check whether they are complete, and merge two of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import onnx

from onnxmem.model.bounds import BOUNDS, is_past_all
from onnxmem.model.graph import DType, dtype_of
from onnxmem.ops.spec import Dims, Shape, known_dims

_MAX_SHORT = 256
"""Types up to this size, serialized, are cached."""


def dense_type(elem_type: int, dims: Iterable[int]) -> onnx.TypeProto:
    """The type of a dense tensor of known shape."""
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = elem_type
    shape = proto.tensor_type.shape
    shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in dims)
    return proto


def shape_of(proto: onnx.TypeProto) -> Shape | None:
    """The dims of a dense tensor's type; negative, symbolic and missing dims are unknown."""
    return known_of(proto).shape


@dataclass(frozen=True, slots=True)
class Known:
    """A type, as far as it is known."""

    dtype: DType | None
    """``None``: unknown, or not a dense tensor."""
    shape: Shape | None
    """``None``: unknown rank, or not a dense tensor."""
    is_complete: bool
    """Whether nothing is left to infer."""


NOTHING_KNOWN = Known(None, None, is_complete=False)


def known_of(proto: onnx.TypeProto) -> Known:
    """Read a type; short ones are cached, because a graph has few types and reading is slow."""
    text = proto.SerializeToString()
    return _read(proto) if len(text) > _MAX_SHORT else _read_short(text)


def known_types(graph: onnx.GraphProto) -> dict[str, Known]:
    """The types that a graph has for its inputs, outputs and activations."""
    values = (*graph.value_info, *graph.output, *graph.input)
    return {value.name: known_of(value.type) for value in values}


@lru_cache(maxsize=4096)
def _read_short(text: bytes) -> Known:
    return _read(onnx.TypeProto.FromString(text))


def _read(proto: onnx.TypeProto) -> Known:
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        # A sequence, an optional or a map has no size to infer.
        return Known(None, None, is_complete=kind is not None)
    elem_type, shape = proto.tensor_type.elem_type, _dense_shape(proto)
    is_whole = bool(elem_type) and shape is not None and None not in shape
    return Known(dtype_of(elem_type), shape, is_whole)


def _dense_shape(proto: onnx.TypeProto) -> Shape | None:
    dense = proto.tensor_type
    if not dense.HasField("shape") or len(dense.shape.dim) > BOUNDS.rank:
        return None
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in dense.shape.dim
    )
    return None if is_past_all(shape) else shape


def dims_of(proto: onnx.TypeProto | None) -> Dims | None:
    """The dims of a dense tensor's type; ``None`` unless all are known."""
    return None if proto is None else known_dims(shape_of(proto))


def is_complete(proto: onnx.TypeProto | None) -> bool:
    """Whether nothing is left to infer; a sequence, an optional or a map has no size to infer."""
    return proto is not None and known_of(proto).is_complete


def merged(known: onnx.TypeProto | None, derived: onnx.TypeProto) -> onnx.TypeProto:
    """Complete ``known`` with ``derived``; ``known`` wins if they differ."""
    if known is None or known.WhichOneof("value") is None:
        return derived
    kinds = {known.WhichOneof("value"), derived.WhichOneof("value")}
    if kinds != {"tensor_type"}:
        return known
    elem_type = known.tensor_type.elem_type or derived.tensor_type.elem_type
    dims = _merged_dims(shape_of(known), shape_of(derived))
    out = onnx.TypeProto()
    out.tensor_type.elem_type = elem_type
    if dims is not None:
        out.tensor_type.shape.dim.extend(
            onnx.TensorShapeProto.Dimension()
            if dim is None
            else onnx.TensorShapeProto.Dimension(dim_value=dim)
            for dim in dims
        )
    return out


def _merged_dims(known: Shape | None, derived: Shape | None) -> Shape | None:
    if known is None or derived is None or len(known) != len(derived):
        return derived if known is None else known
    return tuple(b if a is None else a for a, b in zip(known, derived, strict=True))


def common(before: onnx.TypeProto, after: onnx.TypeProto) -> onnx.TypeProto:
    """What two types of a value have in common: ``before`` without the dims that differ."""
    one, other = shape_of(before), shape_of(after)
    if before.WhichOneof("value") != "tensor_type" or one is None or one == other:
        return before
    out = onnx.TypeProto()
    out.tensor_type.elem_type = before.tensor_type.elem_type
    if other is not None and len(one) == len(other):
        for a, b in zip(one, other, strict=True):
            dim = out.tensor_type.shape.dim.add()
            if a == b and a is not None:
                dim.dim_value = a
    return out


def forget_shapes(graph: onnx.GraphProto) -> None:
    """Remove the inferred shapes of one graph, in place; inputs keep their types."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
