"""What onnxruntime knows of a value at load: its element type and the dims that it could infer.

A dim is a number, a symbol, or ``None`` where neither is known. onnxruntime keeps what it knows and
fills gaps: a symbol that a file stores for a value outlives an override of the symbol at the input.
"""

from dataclasses import dataclass

import onnx

Dim = int | str | None
Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor's type."""

    elem_type: int
    """``TensorProto.DataType``; 0 where it is unknown."""
    dims: Dims | None
    """``None`` where not even the rank is known."""


ValueType = TensorType | onnx.TypeProto
"""A dense tensor's type, or that of a sequence, a map or an optional as the file writes it."""


def read_type(proto: onnx.TypeProto) -> ValueType | None:
    """The type that a file or an inference states; ``None`` where it states nothing."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        return proto
    dense = proto.tensor_type
    if not dense.HasField("shape"):
        return TensorType(dense.elem_type, None)
    return TensorType(dense.elem_type, tuple(_read_dim(dim) for dim in dense.shape.dim))


def _read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """A negative number counts as unknown, as ``utils::HasDimValue`` sees it after loading."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def write_type(known: ValueType) -> onnx.TypeProto:
    """Write a type as ONNX does."""
    if isinstance(known, onnx.TypeProto):
        return known
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = known.elem_type
    if known.dims is None:
        return proto
    shape = proto.tensor_type.shape
    shape.SetInParent()
    for dim in known.dims:
        if dim is None:
            shape.dim.add()
        elif isinstance(dim, str):
            shape.dim.add(dim_param=dim)
        else:
            shape.dim.add(dim_value=dim)
    return proto


def merged_dims(inferred: Dims, known: Dims) -> Dims | None:
    """Fill what is known with what is inferred; ``None`` where two numbers or the ranks differ.

    A number beats a symbol, and a known symbol beats an inferred one (onnx's
    ``mergeInDimensionInfo``).
    """
    if len(inferred) != len(known):
        return None
    dims: list[Dim] = []
    for new, old in zip(inferred, known, strict=True):
        if isinstance(new, int) and isinstance(old, int) and new != old:
            return None
        if isinstance(new, int):
            dims.append(new)
        else:
            dims.append(new if old is None else old)
    return tuple(dims)


def common_dims(inferred: Dims, known: Dims) -> Dims | None:
    """What two shapes of one value agree on (onnx's ``UnionShapeInfo``); no rank, no shape."""
    if len(inferred) != len(known):
        return None
    return tuple(
        old if new == old and new is not None else None
        for new, old in zip(inferred, known, strict=True)
    )


def merged_type(inferred: ValueType | None, known: ValueType | None) -> ValueType | None:
    """What is known of a value after one more inference.

    Source: onnxruntime/core/graph/graph.cc, ``Graph::InferAndVerifyTypeMatch`` and
    ``MergeShapeInfo``: a clash is a warning, and what both agree on stays.
    """
    if inferred is None or known is None:
        return _as_inferred(inferred) if known is None else known
    if not isinstance(inferred, TensorType) or not isinstance(known, TensorType):
        return known
    elem_type = inferred.elem_type or known.elem_type
    if inferred.dims is None or known.dims is None:
        return TensorType(elem_type, known.dims if inferred.dims is None else inferred.dims)
    dims = merged_dims(inferred.dims, known.dims)
    if dims is None:
        dims = common_dims(inferred.dims, known.dims)
    return TensorType(elem_type, dims)


def _as_inferred(inferred: ValueType | None) -> ValueType | None:
    """Of sequences, maps and optionals onnxruntime keeps the inferred type without its shapes."""
    if not isinstance(inferred, onnx.TypeProto):
        return inferred
    bare = onnx.TypeProto()
    bare.CopyFrom(inferred)
    inner = bare
    while (kind := inner.WhichOneof("value")) in _NESTED:
        held = getattr(inner, kind)
        inner = held.value_type if kind == "map_type" else held.elem_type
    if kind == "tensor_type":
        inner.tensor_type.ClearField("shape")
    return bare


_NESTED = frozenset({"sequence_type", "optional_type", "map_type"})
