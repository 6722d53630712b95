"""Tensors that the file holds or points at, without their elements.

Each storage counts once: tensors that point at the same place of an external file are one.
"""

from collections.abc import Sequence
from math import prod

import onnx

from onnxmem.errors import GraphError
from onnxmem.model.bounds import BOUNDS, is_past_all, variable
from onnxmem.model.dtypes import dtype_of
from onnxmem.model.graph import Role, Tensor
from onnxmem.model.traversal import onnx_op


def stored_tensor(name: str, proto: onnx.TensorProto) -> Tensor:
    """An initializer, or the tensor of a Constant.

    :raises GraphError: it has a negative dim, or more of them than are read.
    """
    is_external = proto.data_location == onnx.TensorProto.EXTERNAL
    return Tensor(
        name=name,
        dtype=dtype_of(proto.data_type),
        shape=_stored_shape(name, proto.dims),
        role=Role.WEIGHT,
        storage=_external_place(proto) if is_external else None,
        is_external=is_external,
    )


def stored_sparse(name: str, proto: onnx.SparseTensorProto) -> Tensor:
    """A sparse one, of which the elements that are stored count.

    :raises GraphError: as ``stored_tensor`` does.
    """
    return Tensor(
        name=name,
        dtype=dtype_of(proto.values.data_type),
        shape=_stored_shape(name, proto.dims),
        role=Role.WEIGHT,
        num_stored=prod(_stored_shape(name, proto.values.dims)),
    )


def sparse_constant(node: onnx.NodeProto) -> onnx.SparseTensorProto | None:
    """The sparse tensor of a Constant that has one."""
    if onnx_op(node) != "Constant":
        return None
    return next((a.sparse_tensor for a in node.attribute if a.name == "sparse_value"), None)


def _stored_shape(name: str, dims: Sequence[int]) -> tuple[int, ...]:
    """The dims of a tensor that the file holds: numbers, none of them negative."""
    if is_past_all(dims):
        message = f"weight {name!r} has {len(dims):,} dims, over {BOUNDS.rank} ({variable('rank')})"
        message += " or past all sizes; export the model again"
        raise GraphError(message)
    if min(dims, default=0) < 0:
        message = f"weight {name!r} has a negative dim: {list(dims)}; export the model again"
        raise GraphError(message)
    return tuple(dims)


def _external_place(proto: onnx.TensorProto) -> str | None:
    """Identify the bytes of an external tensor; unknown where the file names no exact place."""
    place = {entry.key: entry.value for entry in proto.external_data}
    if not {"location", "offset", "length"} <= place.keys():
        return None
    return f"external {place['location']} {place['offset']}+{place['length']}"
