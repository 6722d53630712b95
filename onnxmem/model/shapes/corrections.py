"""Dims that onnxruntime gives an output where onnx infers other ones.

Pools: onnxruntime counts windows in one way under every opset
(``core/providers/cpu/nn/pool_attributes.h``): with ``ceil_mode`` a last window that would start
behind the image, in the padding at its end, is left out, and ``SAME`` padding is that of windows
without dilations. onnx counts that last window up to opset 21, and widens ``SAME`` padding by the
dilations. Windows that do not fit at all are 0 in onnxruntime and 1 in onnx if they are dilated.

NonZero of a scalar: onnxruntime reads it as one element, [1, n]
(``core/providers/cpu/tensor/nonzero_op.cc``); onnx infers [0, n], by the rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import onnx

from onnxmem.model.shapes.node_context import Dim, Found, InferenceContext, Types
from onnxmem.model.traversal import graphs_in

_POOLS: Final = frozenset({"AveragePool", "LpPool", "MaxPool"})
_NON_ZERO: Final = "NonZero"
_MAY_DIFFER: Final = frozenset({*_POOLS, _NON_ZERO})
_NUM_NOT_SPATIAL: Final = 2
"""Batch and channels."""
_SAME: Final = frozenset({"SAME_UPPER", "SAME_LOWER"})
_MAX_DIM: Final = 2**63 - 1


def may_differ(node: onnx.NodeProto) -> bool:
    """Whether onnx may infer other dims of a node's outputs than onnxruntime gives them."""
    if node.op_type not in _MAY_DIFFER or node.domain:
        return False
    if node.op_type == _NON_ZERO:
        return True
    context = InferenceContext(node, {})
    is_dilated = any(dilation != 1 for dilation in context.integers("dilations"))
    return bool(context.integer("ceil_mode")) or (is_dilated and context.text("auto_pad") in _SAME)


def corrected(node: onnx.NodeProto, types: Types, inferred: Types) -> Found:
    """Those outputs of a node that onnxruntime shapes otherwise than onnx has inferred."""
    if not may_differ(node):
        return {}
    context = InferenceContext(node, types)
    dims = context.shape(0)
    if dims is None:
        return {}
    found: Sequence[int | None]
    if node.op_type == _NON_ZERO:
        first, found = 0, () if dims else (1, None)
    else:
        first, found = _NUM_NOT_SPATIAL, _counts(context, dims[_NUM_NOT_SPATIAL:]) or ()
    before = ((name, inferred[name]) for name in node.output if name in inferred)
    after = ((name, _with_dims(proto, first, found)) for name, proto in before)
    return {name: proto for name, proto in after if proto != inferred[name]}


def nodes_that_may_differ(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Those of a graph and of the graphs inside it."""
    for each in graphs_in(graph):
        # Without a call for each node: large graphs have few of these.
        yield from (node for node in each.node if node.op_type in _MAY_DIFFER and may_differ(node))


def has_other_dims(model: onnx.ModelProto) -> bool:
    """Whether an output has other dims than onnx has inferred for the whole model."""
    nodes = list(nodes_that_may_differ(model.graph))
    if not nodes:
        return False
    # The names of a graph and of those around it differ; where two branches have the same one, a
    # node may be taken for another, and the model is inferred node by node for nothing.
    types: dict[str, list[onnx.TypeProto]] = {}
    for graph in graphs_in(model.graph):
        for value in (*graph.value_info, *graph.output, *graph.input):
            types.setdefault(value.name, []).append(value.type)
    return any(
        corrected(node, {node.input[0]: before}, {node.output[0]: after})
        for node in nodes
        for before in types.get(node.input[0], ())
        for after in types.get(node.output[0], ())
    )


def _with_dims(proto: onnx.TypeProto, first: int, found: Sequence[int | None]) -> onnx.TypeProto:
    """A type with these dims from an axis to the last, as far as they are known."""
    made = onnx.TypeProto()
    made.CopyFrom(proto)
    dims = made.tensor_type.shape.dim[first:]
    if len(dims) == len(found):
        for dim, number in zip(dims, found, strict=True):
            if number is not None:
                dim.dim_value = number
    return made


def _counts(context: InferenceContext, spatial: Sequence[Dim]) -> Sequence[int | None] | None:
    """The number of windows along each axis; ``None`` for attributes that do not fit the image."""
    kernel, rank = context.integers("kernel_shape"), len(spatial)
    strides = context.integers("strides") or (1,) * rank
    dilations = context.integers("dilations") or (1,) * rank
    pads = context.integers("pads") or (0,) * (2 * rank)
    lengths = {len(kernel), len(strides), len(dilations), len(pads) // 2}
    if lengths != {rank} or min(1, *strides, *dilations, *kernel) < 1:
        return None
    windows = map(_Window, kernel, strides, dilations, pads[:rank], pads[rank:])
    counts = [
        _count(context, size, window) if isinstance(size, int) else None
        for size, window in zip(spatial, windows, strict=True)
    ]
    is_valid = all(count is None or 0 <= count <= _MAX_DIM for count in counts)
    return counts if is_valid else None


@dataclass(frozen=True, slots=True)
class _Window:
    """A window along one axis."""

    kernel: int
    stride: int
    dilation: int
    before: int
    behind: int


def _count(context: InferenceContext, size: int, window: _Window) -> int | None:
    before, behind = window.before, window.behind
    padding = context.text("auto_pad")
    if padding == "VALID":
        before = behind = 0
    elif padding in _SAME:
        # SAME: ceil(size / stride) windows, and the padding that they need; the odd element is
        # behind for SAME_UPPER and before for SAME_LOWER.
        whole = (-(-size // window.stride) - 1) * window.stride + window.kernel - size
        before = (whole + (padding == "SAME_LOWER")) // 2
        behind = whole - before
    elif not 0 <= min(before, behind) <= max(before, behind) < window.kernel:
        return None
    rest = size + before + behind - (window.kernel - 1) * window.dilation - 1
    if not context.integer("ceil_mode"):
        return _quotient(rest, window.stride) + 1
    count = -(-rest // window.stride) + 1
    return count - 1 if (count - 1) * window.stride >= size + before else count


def _quotient(number: int, divisor: int) -> int:
    """Rounded toward 0, as in C++."""
    return number // divisor if number >= 0 else -(-number // divisor)
