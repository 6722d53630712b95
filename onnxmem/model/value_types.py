"""What is known of a value's type: complete or not, and two sources of knowledge made one."""

from collections.abc import Iterable

import onnx

from onnxmem.ops.spec import Dims, Shape, known_dims


def dense_type(elem_type: int, dims: Iterable[int]) -> onnx.TypeProto:
    """A dense tensor's type with every dim known."""
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = elem_type
    shape = proto.tensor_type.shape
    shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in dims)
    return proto


def shape_of(proto: onnx.TypeProto) -> Shape | None:
    """The dims of a dense tensor's type: a negative, symbolic or missing one is unknown."""
    dense = proto.tensor_type
    if not dense.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in dense.shape.dim
    )


def dims_of(proto: onnx.TypeProto | None) -> Dims | None:
    """The dims of a dense tensor's type, where every one is known."""
    return None if proto is None else known_dims(shape_of(proto))


def is_complete(proto: onnx.TypeProto | None) -> bool:
    """Whether nothing is left to infer; a sequence, an optional or a map has no size to infer."""
    if proto is None or proto.WhichOneof("value") is None:
        return False
    if proto.WhichOneof("value") != "tensor_type":
        return True
    shape = shape_of(proto)
    return bool(proto.tensor_type.elem_type) and shape is not None and None not in shape


def merged(known: onnx.TypeProto | None, derived: onnx.TypeProto) -> onnx.TypeProto:
    """Fill what ``known`` leaves open from ``derived``; ``known`` stays right where both speak."""
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
    """What two types of one value agree on: ``before``, less the dims that differ."""
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
    """Clear what was inferred of one graph, in place; its inputs keep their types."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
