"""Shapes of onnxruntime's own operators: domains com.microsoft and com.microsoft.nchwc.

The rules are those of onnxruntime's ``core/graph/contrib_ops``: ``contrib_defs.cc``,
``bert_defs.cc``, ``shape_inference_functions.cc``, ``quantization_defs.cc``,
``nchwc_schema_defs.cc``, ``nhwc_schema_defs.cc`` and ``range_schema_defs.cc``.
Those of operators that a session writes (``SYMBOLIC``) keep symbolic and unknown dims, as
onnxruntime does while it optimizes a graph; the others need every dim.

Most operators that onnxruntime puts in place of ONNX's own shape their output as that one does,
which is inferred instead (``as_onnx``). The blocked image operators see channels rounded up to the
block of the CPU (8 or 16 of them): the session's, or that which the nodes of a file imply.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from math import ceil
from types import MappingProxyType
from typing import Final

import onnx
import onnx.defs
import onnx.helper

from onnxmem.model.constants import Array
from onnxmem.model.shapes.node_context import (
    Found,
    InferenceContext,
    SymbolicShape,
    Types,
    broadcast,
    product,
)
from onnxmem.model.traversal import graphs_in
from onnxmem.ops.spec import Dims

Rule = Callable[[InferenceContext], Found]

MICROSOFT: Final = "com.microsoft"
NCHWC: Final = "com.microsoft.nchwc"

_FLOAT, _INT32, _UINT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.UINT8
_INT64: Final = onnx.TensorProto.INT64
_STRING: Final = onnx.TensorProto.STRING
_NUM_NOT_SPATIAL: Final = 2
"""Batch and channels."""
_LARGEST_DIM: Final = 2**63 - 1
_IMAGE_RANK: Final = 4
_SUM: Final = 3
"""The output of a skip normalization that is the sum it normalizes."""
_EQUIVALENTS: Final[Mapping[tuple[str, str], tuple[str, int]]] = {
    (NCHWC, "Conv"): ("Conv", 3),
    (NCHWC, "MaxPool"): ("MaxPool", 1),
    (NCHWC, "AveragePool"): ("AveragePool", 1),
    (NCHWC, "GlobalMaxPool"): ("GlobalMaxPool", 1),
    (NCHWC, "GlobalAveragePool"): ("GlobalAveragePool", 1),
    (MICROSOFT, "FusedConv"): ("Conv", 3),
    (MICROSOFT, "FusedGemm"): ("Gemm", 3),
    (MICROSOFT, "GatherND"): ("GatherND", 2),
    (MICROSOFT, "GridSample"): ("GridSample", 2),
    (MICROSOFT, "Pad"): ("Pad", 3),
}
"""The ONNX operator of the same shapes, and how many inputs it has."""
_POOLS: Final = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
_BLOCK: Final = "onnxmem.channel_block"
"""A key of ``metadata_props``."""
# ``MlasNchwcGetBlockSize``: the floats of a register, 16 with AVX-512, else 8.
_LARGE: Final = 16
_SMALL: Final = 8
_LENGTH: Final = 8
"""The input index of MultiHeadAttention's ``past_sequence_length``."""
_ROWS, _HEADS = 3, 4
"""Ranks of [B, S, N * H] and of [B, N, S, H]."""
_SAME: Final = frozenset({"SAME_UPPER", "SAME_LOWER"})
_GEMM_SCALE, _GEMM_ZERO_POINT = 7, 8
"""Input indices of the output's scale and zero point in QGemm; without them it returns floats."""
_BITS_PER_BYTE: Final = 8


def microsoft_types(
    node: onnx.NodeProto, types: Types, values: Mapping[str, Array] = MappingProxyType({})
) -> Found:
    """The types of a node's outputs; empty for an operator that has no rule here."""
    rule = _RULES.get(node.op_type) if node.domain == MICROSOFT else None
    return rule(InferenceContext(node, types, values)) if rule else {}


def as_onnx(node: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """The node with the ONNX operator that has the same shapes; the node itself if none has."""
    equivalent = _EQUIVALENTS.get((node.domain, node.op_type))
    if equivalent is None:
        return node
    op_type, num_inputs = equivalent
    try:
        known = onnx.defs.get_schema(op_type, opset).attributes
    except onnx.defs.SchemaError:  # ONNX has it from a later opset on
        return node
    # onnx infers nothing for a node with an attribute that the schema lacks.
    attributes = [attribute for attribute in node.attribute if attribute.name in known]
    return onnx.NodeProto(
        op_type=op_type,
        input=node.input[:num_inputs],
        output=node.output,
        attribute=attributes,
        name=node.name,
    )


def blocked_types(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], block: int
) -> dict[str, onnx.TypeProto]:
    """The types of a reordering's or an Upsample's output; empty for any other node.

    Dims may be symbolic or unknown.
    """
    rule = _BLOCKED.get(node.op_type) if node.domain == NCHWC else None
    if rule is None:
        return {}
    context = InferenceContext(node, types)
    dims = context.shape(0)
    if dims is None or len(dims) != _IMAGE_RANK:
        return {}
    return context.outputs(rule(context, dims, block), elem_type=context.elem_type(0))


def with_channel_block(model: onnx.ModelProto, block: int) -> None:
    """Record in a model the channel block for which it was optimized; 0: none."""
    onnx.helper.set_model_props(
        model, {entry.key: entry.value for entry in model.metadata_props} | {_BLOCK: str(block)}
    )


def channel_block(model: onnx.ModelProto) -> int:
    """The channel block: as recorded in the model, or the one that fits all of its nodes.

    If both 16 and 8 divide all numbers of channels, 16 is assumed.
    """
    recorded = {entry.value for entry in model.metadata_props if entry.key == _BLOCK}
    for block in (_LARGE, _SMALL):
        if str(block) in recorded:
            return block
    numbers = (number for graph in graphs_in(model.graph) for number in _whole_blocks(graph))
    return _LARGE if all(number % _LARGE == 0 for number in numbers) else _SMALL


def _whole_blocks(graph: onnx.GraphProto) -> Iterator[int]:
    """Numbers of channels that make whole blocks.

    core/optimizer/nchwc_transformer.cc: ``TransformConv`` rounds the filters up to blocks, while
    ``TransformPool`` leaves an image in its plain layout whose channels make no whole blocks.
    """
    filters = {tensor.name: tensor.dims for tensor in graph.initializer if tensor.dims}
    reordered: set[str] = set()
    pooled: set[str] = set()
    for node in graph.node:
        if node.domain != NCHWC:
            continue
        if node.op_type == "Conv":
            yield from (filters[name][0] for name in node.input[1:2] if name in filters)
        elif node.op_type == "ReorderInput":
            reordered.update(node.output)
        elif node.op_type in _POOLS and not (reordered | pooled).isdisjoint(node.input[:1]):
            pooled.update(node.output)
        elif node.op_type == "ReorderOutput" and not pooled.isdisjoint(node.input[:1]):
            yield InferenceContext(node, {}).integer("channels")


def _reordered_input(context: InferenceContext, dims: SymbolicShape, block: int) -> SymbolicShape:
    """X: [N, C, H, W] or [N, H, W, C] -> [N, blocks x block, H, W]."""
    is_last = context.integer("channels_last")
    batch, channels, *image = (dims[0], dims[3], *dims[1:3]) if is_last else dims
    # RegisterNchwcSchemas rounds by ``MlasNchwcGetBlockSize``, which asks the CPU that it runs on.
    padded = -(-channels // block) * block if isinstance(channels, int) else channels
    return (batch, padded, *image)


def _reordered_output(
    context: InferenceContext,
    dims: SymbolicShape,
    block: int,  # noqa: ARG001 - a rule like the others
) -> SymbolicShape | None:
    """X: [N, blocks x block, H, W] -> [N, channels, H, W] or [N, H, W, channels]."""
    if "channels" not in context.attributes:
        return None
    channels, (batch, _, *image) = context.integer("channels"), dims
    return (
        (batch, *image, channels) if context.integer("channels_last") else (batch, channels, *image)
    )


def _upsampled(
    context: InferenceContext,
    dims: SymbolicShape,
    block: int,  # noqa: ARG001 - a rule like the others
) -> SymbolicShape | None:
    """X: [N, C, H, W] -> its dims times ``scales``, integers for all axes."""
    scales = context.integers("scales")
    if len(scales) != _IMAGE_RANK:
        return None
    pairs = zip(dims, scales, strict=True)
    # RegisterNchwcSchemas multiplies numbers only: a scaled symbol is an unknown dim.
    return tuple(dim * scale if isinstance(dim, int) else None for dim, scale in pairs)


_BLOCKED: Final[
    Mapping[str, Callable[[InferenceContext, SymbolicShape, int], SymbolicShape | None]]
] = {
    "ReorderInput": _reordered_input,
    "ReorderOutput": _reordered_output,
    "Upsample": _upsampled,
}


def _like_first(context: InferenceContext) -> Found:
    return context.outputs(context.shape(0), elem_type=context.elem_type(0))


def _like_second(context: InferenceContext) -> Found:
    return context.outputs(context.dims(1), elem_type=context.elem_type(1))


def _with_sum(context: InferenceContext) -> Found:
    """X, skip -> Y and, fourth, X + skip, both shaped as X is."""
    shape, outputs = context.shape(0), context.node.output
    shapes = [shape if index in {0, _SUM} else None for index in range(len(outputs))]
    return context.outputs(*shapes, elem_type=context.elem_type(0))


def layer_normalization(context: InferenceContext) -> Found:
    """X: [*B, *N] -> Y: [*B, *N], mean and 1 / deviation: [*B, 1, ...], floats."""
    shape, axis = context.shape(0), context.integer("axis", -1)
    if shape is None or not -len(shape) <= axis < len(shape):
        return {}
    axis %= len(shape)
    statistics = shape[:axis] + (1,) * (len(shape) - axis)
    found = context.outputs(None, statistics, statistics, elem_type=_FLOAT)
    return found | context.outputs(shape, elem_type=context.elem_type(0))


def _fused_matmul(context: InferenceContext) -> Found:
    # contrib_defs.cc: FusedMatMulShapeInference.
    left, right = (_as_read(context, index, side) for index, side in enumerate("AB"))
    return context.outputs(product(left, right), elem_type=context.elem_type(0))


def _as_read(context: InferenceContext, index: int, side: str) -> SymbolicShape | None:
    """The dims as the product reads them: ``transBatch`` moves the first dim before the last."""
    shape = context.shape(index)
    if shape is None or len(shape) < 2:  # noqa: PLR2004 - a vector has nothing to transpose
        return shape
    # First the batch, then the matrix: ``trans`` swaps the last two dims of what ``transBatch``
    # moved.
    if context.integer(f"transBatch{side}"):
        shape = (*shape[1:-1], shape[0], shape[-1])
    if context.integer(f"trans{side}"):
        shape = (*shape[:-2], shape[-1], shape[-2])
    return shape


def _packed_product(context: InferenceContext) -> Found:
    """A: [*B, K], weights packed -> Y: [*B, N]."""
    dims = context.dims(0)
    made = (*dims[:-1], context.integer("N")) if dims and "N" in context.attributes else None
    return context.outputs(made, elem_type=context.elem_type(0))


def _gathered_blocks(context: InferenceContext) -> Found:
    """Rows of a packed table, unpacked: [A, C] and indices [*I] -> [*I, C], of the scales' type.

    Eight bits of ``uint8`` hold two elements of 4 bits along the last axis.
    """
    data, indices, axis = context.dims(0), context.dims(1), context.integer("gather_axis")
    if data is None or indices is None or not -len(data) <= axis < len(data):
        return {}
    axis %= len(data)
    if context.elem_type(0) == _UINT8:
        # Types of 4 bits have their own elements in the shape; only in ``uint8`` they are packed.
        per_byte = _BITS_PER_BYTE // max(context.integer("bits", 4), 1)
        data = (*data[:-1], data[-1] * per_byte)
    dims = (*data[:axis], *indices, *data[axis + 1 :])
    return context.outputs(dims, elem_type=context.elem_type(2))


def _hashes(context: InferenceContext) -> Found:
    """One hash for each element, unsigned unless the operator says otherwise."""
    is_unsigned = context.integer("positive", 1)
    elem_type = onnx.TensorProto.UINT32 if is_unsigned else onnx.TensorProto.INT32
    return context.outputs(context.dims(0), elem_type=elem_type)


def _unfolded(context: InferenceContext) -> Found:
    """Windows along one axis: it becomes their number, a new last axis their elements."""
    dims, axis, size = context.dims(0), context.integer("dim", -1), context.integer("size")
    step = context.integer("step", 1)
    if not dims or not -len(dims) <= axis < len(dims) or step < 1:
        return {}
    axis %= len(dims)
    if not 0 < size <= dims[axis]:
        return {}
    windows = (dims[axis] - size) // step + 1
    made = (*dims[:axis], windows, *dims[axis + 1 :], size)
    return context.outputs(made, elem_type=context.elem_type(0))


def _words(context: InferenceContext) -> Found:
    """Characters of words: [*S, C], filters: [M, 1, K, E] -> [*S, M]."""
    words, filters = context.dims(0), context.dims(1)
    made = (*words[:-1], filters[0]) if words and filters else None
    return context.outputs(made, elem_type=context.elem_type(1))


def _found_once(context: InferenceContext) -> Found:
    """Unique: which elements come out depends on them; each element of the input has an index."""
    return context.outputs(None, context.dims(0), elem_type=_INT64)


def _ids_matched(context: InferenceContext) -> Found:
    return context.outputs(None, (), elem_type=_INT64)


def _tokens(context: InferenceContext) -> Found:
    """Texts [*I] -> their tokens [*I, D], of which the longest text decides D."""
    texts = context.shape(0)
    return {} if texts is None else context.outputs((*texts, None), elem_type=_STRING)


def _gathered(context: InferenceContext) -> Found:
    """GatherND of indices of either width: [*I, k] and [*D] -> [*I, *D after the first k]."""
    data, indices = context.dims(0), context.dims(1)
    if data is None or not indices or indices[-1] > len(data):
        return {}
    return context.outputs((*indices[:-1], *data[indices[-1] :]), elem_type=context.elem_type(0))


def _distances(context: InferenceContext) -> Found:
    """A: [M, K], B: [N, K] -> [M, N]."""
    left, right = context.dims(0), context.dims(1)
    dims = None if not left or not right else (left[0], right[0])
    return context.outputs(dims, elem_type=context.elem_type(0))


def _quantized(context: InferenceContext) -> Found:
    """x, scale, zero point -> x in the zero point's type, uint8 where that is left out."""
    # quantization_defs.cc. Of a zero point that a node leaves out, releases up to 1.30 know no
    # type.
    elem_type = context.elem_type(2) if context.has(2) else _UINT8
    return context.outputs(context.shape(0), elem_type=elem_type)


def _dequantized(context: InferenceContext) -> Found:
    """x, scale, zero point -> x in the scale's type."""
    return context.outputs(context.shape(0), elem_type=context.elem_type(1))


def _broadcast(context: InferenceContext) -> Found:
    """QLinearAdd and QLinearMul: operands stand first and fourth."""
    # quantization_defs.cc: QLinearMathDocGenerator. Scale and zero point follow each operand.
    shape = broadcast(context.shape(0), context.shape(3))
    return context.outputs(shape, elem_type=context.elem_type(0))


def _integer_product(context: InferenceContext) -> Found:
    return context.outputs(product(context.shape(0), context.shape(1)), elem_type=_INT32)


def _float_product(context: InferenceContext) -> Found:
    """A product of quantized matrices, put out as floats."""
    return context.outputs(product(context.shape(0), context.shape(1)), elem_type=_FLOAT)


def _scaled_product(context: InferenceContext) -> Found:
    """The same in the type of the first scale."""
    return context.outputs(
        product(context.shape(0), context.shape(1)), elem_type=context.elem_type(2)
    )


def _gemm(context: InferenceContext) -> Found:
    """A: [M, K] or transposed, B: [K, N] or transposed, first and fourth input -> Y: [M, N]."""
    left, right = context.shape(0), context.shape(3)
    if left is None or right is None or len(left) != 2 or len(right) != 2:  # noqa: PLR2004 - matrices
        return {}
    # Without both, the sums are scaled to floats by the scales of A and B alone.
    is_quantized = context.has(_GEMM_SCALE) and context.has(_GEMM_ZERO_POINT)
    elem_type = context.elem_type(_GEMM_ZERO_POINT) if is_quantized else _FLOAT
    rows = left[1] if context.integer("transA") else left[0]
    columns = right[0] if context.integer("transB") else right[1]
    return context.outputs((rows, columns), elem_type=elem_type)


def _lstm(context: InferenceContext) -> Found:
    """X: [S, B, I], R: [D, H, 4H] -> Y: [S, D, B, H], Y_h and Y_c: [D, B, H]."""
    data, recurrence = context.dims(0), context.dims(2)
    if data is None or recurrence is None or len(data) != 3 or len(recurrence) != 3:  # noqa: PLR2004 - ranks of the docstring
        return {}
    # onnx's RNNShapeInference; it takes H from an attribute, which the recurrent weight has too.
    steps, batch = data[:2]
    directions, hidden = recurrence[:2]
    last = (directions, batch, hidden)
    return context.outputs(
        (steps, directions, batch, hidden), last, last, elem_type=context.elem_type(0)
    )


def _embedding(context: InferenceContext) -> Found:
    """Ids: [B, S], words: [V, H] third input -> [B, S, H], floats; the mask's sums: [B]."""
    ids, words = context.dims(0), context.dims(2)
    if ids is None or words is None or len(words) != 2:  # noqa: PLR2004 - a matrix
        return {}
    # shape_inference_functions.cc: EmbedLayerNormalizationShapeInference. The quantized operator
    # adds up tables of 8 bits, but its output is in floats.
    found = context.outputs(None, ids[:1], elem_type=_INT32)
    return found | context.outputs((*ids, words[1]), elem_type=_FLOAT)


def _multi_head(context: InferenceContext) -> Found:
    """Q: [B, S, N * H], K: [B, T, N * H], V: [B, T, N * E] -> [B, S, N * E], caches by head."""
    heads, query = context.integer("num_heads"), context.dims(0)
    keys, values = (_split(context.dims(index), heads) for index in (1, 2))
    if query is None or len(query) != _ROWS or keys is None or values is None:
        return {}
    found = context.outputs((*query[:2], heads * values[-1]), elem_type=context.elem_type(0))
    if len(context.dims(1) or ()) != _ROWS:
        return found
    # bert_defs.cc, MultiHeadAttentionTypeAndShapeInference, has them with a past only; without one
    # the kernel returns the keys and values of this call.
    present = (_cached(context, 6, keys), _cached(context, 7, values))
    return found | context.outputs(None, *present, elem_type=context.elem_type(0))


def _split(dims: Dims | None, heads: int) -> Dims | None:
    """[B, T, N * H] or [B, N, T, H] -> [B, N, T, H]."""
    if dims is None or heads < 1 or len(dims) not in {_ROWS, _HEADS}:
        return None
    if len(dims) == _HEADS:
        return dims
    return (dims[0], heads, dims[1], dims[2] // heads) if dims[2] % heads == 0 else None


def _cached(context: InferenceContext, index: int, new: Dims) -> Dims | None:
    if not context.has(index):
        return new
    past = context.dims(index)
    if past is None or len(past) != _HEADS:
        return None
    return past if context.has(_LENGTH) else (*past[:2], past[2] + new[2], past[3])


def _pooled(context: InferenceContext, *, is_last: bool | None = None) -> Found:
    """X: [N, C, *S] or [N, *S, C] -> [N, C, *windows] or [N, *windows, C]."""
    # nhwc_schema_defs.cc, convPoolShapeInferenceNhwc: that of ONNX on dims with channels moved to
    # axis 1, and back afterwards.
    last = bool(context.integer("channels_last")) if is_last is None else is_last
    dims = context.dims(0)
    spatial = _spatial(dims, last=last)
    windows = _windows(context, spatial, context.integers("kernel_shape")) if spatial else None
    return _image(context, dims, windows, last=last)


def _pooled_to_one(context: InferenceContext) -> Found:
    """X: [N, C, *S] or [N, *S, C] -> the same with 1 for each of S."""
    last, dims = bool(context.integer("channels_last")), context.dims(0)
    spatial = _spatial(dims, last=last)
    return _image(context, dims, (1,) * len(spatial) if spatial else None, last=last)


def _pooled_last(context: InferenceContext) -> Found:
    return _pooled(context, is_last=True)


def _convolved_last(context: InferenceContext) -> Found:
    """X: [N, *S, C], W: [M, C / g, *K] -> [N, *windows, M]."""
    shape = _convolved(context, context.dims(1), is_last=True)
    return context.outputs(shape, elem_type=context.elem_type(0))


def _convolved_quantized(context: InferenceContext) -> Found:
    """x: [N, C, *S] or [N, *S, C], w: [M, C / g, *K] -> [N, M, *windows] or [N, *windows, M]."""
    # quantization_defs.cc, QLinearConv: `channels_last` is of x and y, and y has the type of its
    # zero point.
    is_last = bool(context.integer("channels_last"))
    shape = _convolved(context, context.dims(3), is_last=is_last)
    return context.outputs(shape, elem_type=context.elem_type(7))


def _convolved(context: InferenceContext, filters: Dims | None, *, is_last: bool) -> Dims | None:
    dims = context.dims(0)
    spatial = _spatial(dims, last=is_last)
    if dims is None or not spatial or filters is None:
        return None
    windows = _windows(context, spatial, filters[_NUM_NOT_SPATIAL:])
    return None if windows is None else _laid_out(dims[0], filters[0], windows, last=is_last)


def _spatial(dims: Dims | None, *, last: bool) -> Dims | None:
    if dims is None or len(dims) <= _NUM_NOT_SPATIAL:
        return None
    return dims[1:-1] if last else dims[2:]


def _image(
    context: InferenceContext, dims: Dims | None, spatial: Dims | None, *, last: bool
) -> Found:
    """The dims of an image with others for its spatial ones."""
    if dims is None or spatial is None:
        return {}
    made = _laid_out(dims[0], dims[-1] if last else dims[1], spatial, last=last)
    return context.outputs(made, elem_type=context.elem_type(0))


def _laid_out(batch: int, channels: int, spatial: Dims, *, last: bool) -> Dims:
    return (batch, *spatial, channels) if last else (batch, channels, *spatial)


def _windows(context: InferenceContext, spatial: Dims, kernel: Dims) -> Dims | None:
    """How many windows there are along each axis; ``None`` where they do not fit."""
    rank = len(spatial)
    strides = context.integers("strides") or (1,) * rank
    dilations = context.integers("dilations") or (1,) * rank
    pads = _pads(context, rank)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        return None
    if min(*strides, *dilations, *kernel) < 1 or min(pads) < 0:
        return None
    axes = zip(spatial, kernel, dilations, strides, pads[:rank], pads[rank:], strict=True)
    counts = tuple(chain.from_iterable(_counts(context, axis) for axis in axes))
    return counts if min(counts) >= 0 else None


def _pads(context: InferenceContext, rank: int) -> Dims:
    """Before and behind the image; none where the image alone counts."""
    explicit = context.text("auto_pad") in {"", "NOTSET"}
    return (context.integers("pads") if explicit else ()) or (0,) * (2 * rank)


def _counts(context: InferenceContext, axis: tuple[int, ...]) -> Iterator[int]:
    size, kernel, dilation, stride, before, behind = axis
    if context.text("auto_pad") in _SAME:
        yield -(-size // stride)
        return
    span = size + before + behind - (kernel - 1) * dilation - 1
    if not context.integer("ceil_mode"):
        yield span // stride + 1
        return
    # onnx's convPoolShapeInference: a window that would begin beyond the image and the padding
    # before it does not count, for it would see padding only.
    count = -(-span // stride) + 1
    yield count - 1 if (count - 1) * stride >= size + before else count


def _with_axis(context: InferenceContext) -> Found:
    """ExpandDims: an axis of length 1, counted from the end where it is negative."""
    dims, axis = context.dims(0), context.whole_numbers(1)
    if dims is None or axis is None or len(axis) != 1 or not -len(dims) <= axis[0] + 1:
        return {}
    position = axis[0] if axis[0] >= 0 else len(dims) + axis[0] + 1
    if position > len(dims):
        return {}
    return context.outputs((*dims[:position], 1, *dims[position:]), elem_type=context.elem_type(0))


def _padded(context: InferenceContext) -> Found:
    """Pad: as many elements before each axis as the first half says, behind it as the second."""
    dims, pads = context.dims(0), context.whole_numbers(1)
    if dims is None or pads is None or len(pads) != 2 * len(dims):
        return {}
    sides = zip(dims, pads[: len(dims)], pads[len(dims) :], strict=True)
    return context.outputs(tuple(map(sum, sides)), elem_type=context.elem_type(0))


def counted(context: InferenceContext) -> Found:
    """Range: from start to limit by delta, 1 where that is left out."""
    names = (*context.node.input, "", "", "")[:3]
    given = [context.values.get(name) for name in names if name]
    if any(value is None or value.size != 1 for value in given):
        return {}
    start, limit, delta = (*(value.item() for value in given if value is not None), 1)[:3]
    if not delta or not all(abs(end) < float("inf") for end in (start, limit, delta)):
        return {}
    # Onnxruntime divides in floats too, and large ones overflow to infinity.
    steps = (limit - start) / delta
    if not abs(steps) <= _LARGEST_DIM:
        return {}
    return context.outputs((max(ceil(steps), 0),), elem_type=context.elem_type(0))


def _cropped(context: InferenceContext) -> Found:
    """CropAndResize: X: [N, C, H, W], boxes: [R, 4], size: two elements -> [R, C, *size]."""
    image, boxes, size = context.dims(0), context.dims(1), context.whole_numbers(3)
    if image is None or len(image) != _IMAGE_RANK or not boxes or size is None:
        return {}
    return context.outputs((boxes[0], image[1], *size), elem_type=context.elem_type(0))


def _product_of_packed(context: InferenceContext) -> Found:
    """MatMulFpQ4: A: [*B, K], the dims of what is packed: K and N -> [*B, N]."""
    made = product(context.dims(0), context.whole_numbers(2))
    return context.outputs(made, elem_type=context.elem_type(0))


def _transposed(context: InferenceContext) -> Found:
    """ConvTransposeWithDynamicPads: X: [N, C, *S], W: [C, M / g, *K] -> [N, M, *sizes].

    A size is stride x (S - 1) + output padding + reach of the filter - both pads.
    """
    dims, filters = context.dims(0), context.dims(1)
    if dims is None or filters is None or len(dims) != len(filters):
        return {}
    rank = len(dims) - _NUM_NOT_SPATIAL
    pads = context.whole_numbers(2) if context.has(2) else (0,) * (2 * rank)
    strides, dilations = (context.integers(name) for name in ("strides", "dilations"))
    extra = context.integers("output_padding") or (0,) * rank
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    lists: tuple[Dims, ...] = (strides, dilations, extra)
    if rank < 1 or pads is None or len(pads) != 2 * rank or {*map(len, lists)} != {rank}:
        return {}
    sizes = tuple(
        strides[axis] * (dims[axis + 2] - 1)
        + extra[axis]
        + (filters[axis + 2] - 1) * dilations[axis]
        + 1
        - pads[axis]
        - pads[axis + rank]
        for axis in range(rank)
    )
    # contrib_defs.cc: convTransposeWithDynamicPadsShapeInference.
    channels = filters[1] * context.integer("group", 1)
    return context.outputs((dims[0], channels, *sizes), elem_type=context.elem_type(0))


SYMBOLIC: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        "BiasDropout BiasGelu BiasSoftmax FastGelu Gelu Inverse QLinearLeakyRelu QLinearSigmoid "
        "QuickGelu Trilu".split(),
        _like_first,
    ),
    "DequantizeLinear": _dequantized,
    "DynamicQuantizeMatMul": _float_product,
    "FusedMatMul": _fused_matmul,
    "MatMulInteger16": _integer_product,
    "MatMulIntegerToFloat": _scaled_product,
    "QGemm": _gemm,
    "QLinearAdd": _broadcast,
    "QLinearMul": _broadcast,
    "QuantizeLinear": _quantized,
    "SkipLayerNormalization": _with_sum,
    "SkipSimplifiedLayerNormalization": _with_sum,
}
"""Operators that a session writes: dims may be symbolic or unknown."""

_RULES: Final[Mapping[str, Rule]] = {
    **SYMBOLIC,
    "BifurcationDetector": _ids_matched,
    "CDist": _distances,
    "ConvTransposeWithDynamicPads": _transposed,
    "CropAndResize": _cropped,
    "DynamicQuantizeLSTM": _lstm,
    "ExpandDims": _with_axis,
    "GatherBlockQuantized": _gathered_blocks,
    "GatherND": _gathered,
    "MatMulBnb4": _packed_product,
    "MatMulFpQ4": _product_of_packed,
    "MaxpoolWithMask": _pooled,
    "MultiHeadAttention": _multi_head,
    "MurmurHash3": _hashes,
    "NGramRepeatBlock": _like_second,
    "NhwcFusedConv": _convolved_last,
    "NhwcMaxPool": _pooled_last,
    "Pad": _padded,
    "QEmbedLayerNormalization": _embedding,
    "QLinearAveragePool": _pooled,
    "QLinearConv": _convolved_quantized,
    "QLinearGlobalAveragePool": _pooled_to_one,
    "Range": counted,
    "SampleOp": _like_first,
    "Tokenizer": _tokens,
    "UnfoldTensor": _unfolded,
    "Unique": _found_once,
    "WordConvEmbedding": _words,
}
