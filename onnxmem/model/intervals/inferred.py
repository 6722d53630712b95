"""Dims of operators without a rule, as onnx infers them: twice.

With names in place of the dims that data decide, an output with such a name has the same dim. With
the upper ends of these dims, the rest has its upper ends: the dims of an output do not fall as
those of an input grow, except for the operators of ``_NO_RULE``.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.bounds import BOUNDS
from onnxmem.model.constants import Array
from onnxmem.model.graph import DType, Node, dtype_of
from onnxmem.model.intervals.interval import (
    DimInterval,
    DimIntervals,
)
from onnxmem.model.intervals.site import Site
from onnxmem.model.shapes.node_inference import NodeInference

_NO_RULE: Final = frozenset({"DynamicSlice", "SplitToSequence", "STFT"})
"""Operators whose dims may fall as those of an input grow, and that have no rule."""

_MAX_DIM: Final = 2**62

_NUMPY: Final = frozenset(
    {DType.BOOL, DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64, DType.FLOAT16, DType.UINT8}
)


def inferred(
    inference: NodeInference, site: Site, *, uses_upper: bool
) -> tuple[list[DimIntervals | None], list[DType | None]]:
    """The dims and types of the outputs as onnx infers them."""
    node = site.node
    proto = _proto_of(node)
    values = dict(_arrays(site))
    named: dict[str, DimInterval] = {}
    symbolic = inference.onnx_types(proto, dict(_types(site, named)), values)
    upper: Mapping[str, onnx.TypeProto] = {}
    if uses_upper and node.onnx_op not in _NO_RULE:
        inference.refused.clear()
        upper = inference.output_types(proto, dict(_types(site, None)), values)
    shapes: list[DimIntervals | None] = []
    dtypes: list[DType | None] = []
    for index, name in enumerate(node.outputs):
        one, other = symbolic.get(name), upper.get(name)
        elem_type = next(
            (each.tensor_type.elem_type for each in (one, other) if each is not None), 0
        )
        dtypes.append(dtype_of(elem_type))
        shapes.append(_read(site, index, (one, other), named))
    return shapes, dtypes


def _types(
    site: Site, named: dict[str, DimInterval] | None
) -> Iterator[tuple[str, onnx.TypeProto]]:
    """The types of inputs: with a symbol for each open dim, added to ``named``, or with their
    upper ends.
    """
    symbols: dict[str, str] = {}
    for name, known in zip(site.node.inputs, site.inputs, strict=True):
        if known is None or known.dtype is None or known.count is not None:
            continue
        proto = onnx.TypeProto()
        proto.tensor_type.elem_type = list(DType).index(known.dtype) + 1
        if known.dims is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in known.dims:
                added = proto.tensor_type.shape.dim.add()
                if dim.number is not None:
                    added.dim_value = dim.number
                elif named is not None:
                    symbol = symbols.setdefault(dim.name, f"data_dim_{len(symbols)}")
                    added.dim_param = symbol
                    named[symbol] = dim
                # A larger dim would overflow where onnx multiplies dims.
                elif dim.high is not None and dim.high < _MAX_DIM:
                    added.dim_value = dim.high
        yield name, proto


def _arrays(site: Site) -> Iterator[tuple[str, Array]]:
    """The inputs of which all elements are known."""
    for name, known in zip(site.node.inputs, site.inputs, strict=True):
        exact = None if known is None else known.exact
        if known is None or exact is None or known.dtype is None:
            continue
        if exact.size <= BOUNDS.elements and known.dtype in _NUMPY and np.isfinite(exact).all():
            yield name, exact.astype(np.dtype(known.dtype.value))


def _proto_of(node: Node) -> onnx.NodeProto:
    """A node for onnx's inference; attributes that are tensors or graphs are missing."""
    proto = onnx.helper.make_node(node.op_type, node.inputs, node.outputs, domain=node.domain)
    # The type of an empty list is unknown, and the element of a ConstantOfShape is a tensor.
    fills = node.onnx_op == "ConstantOfShape"
    given = {} if fills else {key: each for key, each in node.attributes.items() if each != ()}
    proto.attribute.extend(onnx.helper.make_attribute(*each) for each in given.items())
    return proto


def _read(
    site: Site,
    output: int,
    protos: tuple[onnx.TypeProto | None, onnx.TypeProto | None],
    named: Mapping[str, DimInterval],
) -> DimIntervals | None:
    """The dims of an output: equal to one of an input by its symbol, else the upper end."""
    rows = [
        list(each.tensor_type.shape.dim)
        if each is not None and each.tensor_type.HasField("shape")
        else None
        for each in protos
    ]
    rank = next((len(row) for row in rows if row is not None), None)
    if rank is None:
        return None
    symbolic, upper = ([None] * rank if row is None or len(row) != rank else row for row in rows)
    made = []
    for axis, (one, other) in enumerate(zip(symbolic, upper, strict=True)):
        if one is not None and one.HasField("dim_value"):
            made.append(DimInterval.exact(one.dim_value))
        # A symbol that comes out says to which dim this one is equal in every run, which is more
        # than an upper end of its own says.
        elif one is not None and one.dim_param in named:
            made.append(named[one.dim_param])
        else:
            high = other.dim_value if other is not None and other.HasField("dim_value") else None
            made.append(site.dim(output, axis, 0, high))
    return tuple(made)
