"""Shapes of operators of any domain but onnxruntime's own, which no library has.

Neither onnx nor onnx-shape-inference has a rule for:

1. Version 1 of most operators, by onnx's Changelog.md: operands were broadcast to the first one, by
   ``broadcast`` and ``axis``, and what are inputs today were attributes.
2. Operators that ONNX dropped and onnxruntime still runs under any opset (``contrib_defs.cc``,
   ``RegisterContribSchemas``); the statistics that BatchNormalization put out up to opset 13
   (``nn/old.cc``); LayerNormalization, which onnxruntime writes in ONNX's domain under opsets that
   do not know it yet; Range by its elements; Gradient.
3. Operators of ai.onnx.ml, which read rows: [N, C], or one of them as [C]
   (``onnx/defs/traditionalml/defs.cc``, and onnxruntime's kernels in ``core/providers/cpu/ml``).
"""

from collections.abc import Callable, Mapping, Sequence
from math import floor, prod
from types import MappingProxyType
from typing import Final

import onnx

from onnxmem.model.constants import Array
from onnxmem.model.shapes.microsoft import Rule, counted, layer_normalization
from onnxmem.model.shapes.node_context import Found, InferenceContext, Types
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, dims_of
from onnxmem.ops.spec import Dims

_FLOAT: Final = onnx.TensorProto.FLOAT
_IMAGE_RANK: Final = 4
_TWO: Final = 2
_BOOL_MASK: Final = 10
"""From this version on Dropout's mask is bool; before, it has the data's type."""
_FIRST_WITH_INFERENCE: Final = 6
"""The opset from which on onnx infers these; Reshape and Upsample have other versions too."""
_LIKE_THE_FIRST = frozenset("Add Sub Mul Div Max Min Mean Sum".split())
_SPATIAL_FROM = 2

_Attributes = Mapping[str, onnx.AttributeProto]
_Shapes = Sequence[Dims] | None


def onnx_rule_types(
    node: onnx.NodeProto,
    types: Types,
    values: Mapping[str, Array] = MappingProxyType({}),
    opset: int = onnx.defs.onnx_opset_version(),
) -> Found:
    """The types of a node's outputs at a version of ONNX's operators; empty without a rule."""
    if onnx_op(node) == "Dropout" and opset < _BOOL_MASK:
        return _dropout(node, types)
    if opset < _FIRST_WITH_INFERENCE and (found := _first_version_types(node, types)):
        return found
    rule = _RULES.get((node.domain, node.op_type))
    return rule(InferenceContext(node, types, values)) if rule else {}


def _dropout(node: onnx.NodeProto, types: Types) -> Found:
    """Output and mask are shaped like the data."""
    data = types.get(node.input[0])
    return {} if data is None else dict.fromkeys(node.output, data)


def _first_version_types(node: onnx.NodeProto, types: Types) -> Found:
    """The types of a node's outputs by the first version of its operator; empty without a rule."""
    shapes = [dims_of(types.get(name)) for name in node.input if name]
    known = [dims for dims in shapes if dims is not None]
    data = types.get(node.input[0]) if node.input else None
    operator = onnx_op(node)
    if data is None or len(known) < len(shapes) or operator not in _FIRST_VERSIONS:
        return {}
    attributes = {attribute.name: attribute for attribute in node.attribute}
    made = _FIRST_VERSIONS[operator](known, attributes, len(node.output))
    if made is None:
        return {}
    elem_type = data.tensor_type.elem_type
    if operator == "Cast":
        elem_type = onnx.TensorProto.DataType.DESCRIPTOR.values_by_name[_cast_to(attributes)].number
    return {
        name: dense_type(elem_type, dims)
        for name, dims in zip(node.output, made, strict=False)
        if name
    }


def _cast_to(attributes: _Attributes) -> str:
    return attributes["to"].s.decode("ascii", "replace").upper() if "to" in attributes else ""


def _of_the_first(shapes: Sequence[Dims], _attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """The others are broadcast to the first, or equal to it."""
    return [shapes[0]]


def _cast(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    is_known = _cast_to(attributes) in onnx.TensorProto.DataType.DESCRIPTOR.values_by_name
    return [shapes[0]] if is_known else None


def _gemm(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """[M, K] x [K, N]; C is broadcast to the product."""
    if any(len(dims) != 2 for dims in shapes[:2]) or len(shapes) < 2:  # noqa: PLR2004 - matrices
        return None
    # A: [M, K], or [K, M] if transposed; B: [K, N], or [N, K].
    rows = shapes[0][1 if _number(attributes, "transA", 0) else 0]
    columns = shapes[1][0 if _number(attributes, "transB", 0) else 1]
    return [(rows, columns)]


def _concat(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """Version 1 joins along axis 1 if it has no other."""
    axis = _axis(shapes[0], attributes, 1)
    if axis is None or len({len(dims) for dims in shapes}) > 1:
        return None
    total = sum(dims[axis] for dims in shapes)
    return [_with_dim(shapes[0], axis, total)]


def _split(shapes: Sequence[Dims], attributes: _Attributes, num_outputs: int) -> _Shapes:
    """By the lengths in ``split``, else in equal parts; a second input may hold the lengths too."""
    axis = _axis(shapes[0], attributes, 0)
    if axis is None or len(shapes) > 1:
        return None
    lengths = list(attributes["split"].ints) if "split" in attributes else []
    if not lengths and shapes[0][axis] % num_outputs == 0:
        lengths = [shapes[0][axis] // num_outputs] * num_outputs
    return [_with_dim(shapes[0], axis, length) for length in lengths] or None


def _reshape(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """The target is an attribute: 0 copies a dim, -1 is the rest."""
    if len(shapes) > 1 or "shape" not in attributes:
        return None
    data = shapes[0]
    target = list(attributes["shape"].ints)
    if any(dim == 0 and axis >= len(data) for axis, dim in enumerate(target)):
        return None
    dims = [data[axis] if dim == 0 else dim for axis, dim in enumerate(target)]
    rest = prod(dim for dim in dims if dim != -1)
    whole = prod(data)
    # A -1 beside a dim of 0 is ambiguous: it stays, and the return below refuses it.
    if -1 in dims and rest:
        dims[dims.index(-1)] = whole // rest
    return [tuple(dims)] if prod(dims) == whole and min(dims, default=0) >= 0 else None


def _upsample(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """``height_scale`` and ``width_scale`` of images."""
    names = ("height_scale", "width_scale")
    if len(shapes[0]) != _SPATIAL_FROM + 2 or not attributes.keys() >= {*names}:
        return None
    scales = [attributes[name].f for name in names]
    spatial = (floor(d * s) for d, s in zip(shapes[0][_SPATIAL_FROM:], scales, strict=True))
    return [(*shapes[0][:_SPATIAL_FROM], *spatial)]


_FIRST_VERSIONS: Mapping[str, Callable[[Sequence[Dims], _Attributes, int], _Shapes]] = {
    **dict.fromkeys(_LIKE_THE_FIRST, _of_the_first),
    "Cast": _cast,
    "Concat": _concat,
    "Gemm": _gemm,
    "Reshape": _reshape,
    "Split": _split,
    "Upsample": _upsample,
}


def _number(attributes: _Attributes, name: str, default: int) -> int:
    return attributes[name].i if name in attributes else default


def _axis(dims: Dims, attributes: _Attributes, default: int) -> int | None:
    axis = _number(attributes, "axis", default)
    return axis % len(dims) if -len(dims) <= axis < len(dims) else None


def _with_dim(dims: Dims, axis: int, length: int) -> Dims:
    return (*dims[:axis], length, *dims[axis + 1 :])


def _like_first(context: InferenceContext) -> Found:
    return context.outputs(context.dims(0), elem_type=context.elem_type(0))


def _normalized(context: InferenceContext) -> Found:
    """All that comes out behind the data is as long as the scale: one element a channel."""
    channels = context.dims(1)
    statistics = (channels,) * (len(context.node.output) - 1)
    found = context.outputs(None, *statistics, elem_type=context.elem_type(1))
    return found | _like_first(context)


def _cropped(context: InferenceContext) -> Found:
    """X: [N, C, H, W] without a border (left, top, right, bottom), or its corner of a size."""
    dims, border, scale = context.dims(0), context.integers("border"), context.integers("scale")
    if dims is None or len(dims) != _IMAGE_RANK or len(border) != _IMAGE_RANK:
        return {}
    left, top, right, bottom = border
    image = scale or (dims[2] - top - bottom, dims[3] - left - right)
    return context.outputs((*dims[:2], *image), elem_type=context.elem_type(0))


def _sliced(context: InferenceContext) -> Found:
    """From starts to ends, by axes or from the first axis on."""
    dims, starts, ends = context.dims(0), context.whole_numbers(1), context.whole_numbers(2)
    if dims is None or starts is None or ends is None:
        return {}
    axes = context.whole_numbers(3) if context.has(3) else tuple(range(len(starts)))
    if axes is None or not len(starts) == len(ends) == len(axes):
        return {}
    if not all(-len(dims) <= axis < len(dims) for axis in axes):
        return {}
    made = list(dims)
    for axis, start, end in zip(axes, starts, ends, strict=True):
        # Starts and ends beyond the dim are clamped, as a slice of Python clamps them.
        made[axis] = len(range(*slice(start, end).indices(dims[axis])))
    return context.outputs(tuple(made), elem_type=context.elem_type(0))


def _filled(context: InferenceContext) -> Found:
    """By an attribute, by the elements of the input, or as the input is with more axes behind."""
    shape: Dims | None = context.integers("shape")
    if not shape and context.integer("input_as_shape"):
        shape = context.whole_numbers(0)
    elif not shape:
        shape = context.dims(0)
        shape = None if shape is None else (*shape, *context.integers("extra_shape"))
    return context.outputs(shape, elem_type=context.elem_type(0))


def _gradients(context: InferenceContext) -> Found:
    """One of each tensor that is derived by, of its dims; those come first among the inputs."""
    count = len(context.attributes["xs"].strings) if "xs" in context.attributes else 0
    dims = (context.dims(index) for index in range(count))
    return context.outputs(*dims, elem_type=context.elem_type(0))


def _floats(context: InferenceContext) -> Found:
    """Scaler and Normalizer: numbers of any type in, floats out."""
    return context.outputs(context.dims(0), elem_type=_FLOAT)


def _regression(context: InferenceContext) -> Found:
    """X: [N, C] or [C] -> [N, targets] or [1, targets]."""
    rows = _num_rows(context.dims(0))
    return context.outputs(
        None if rows is None else (rows, context.integer("targets", 1)), elem_type=_FLOAT
    )


def _support_vectors(context: InferenceContext) -> Found:
    """X: [N, C] or [C] -> [N, 1] or [1, 1]."""
    rows = _num_rows(context.dims(0))
    return context.outputs(None if rows is None else (rows, 1), elem_type=_FLOAT)


def _columns(context: InferenceContext) -> Found:
    """X: [*N, C] or [C] and the indices of k columns -> [*N, k] or [1, k]."""
    dims, columns = context.dims(0), context.dims(1)
    if not dims or columns is None:
        return {}
    return context.outputs((*(dims[:-1] or (1,)), prod(columns)), elem_type=context.elem_type(0))


def _joined(context: InferenceContext) -> Found:
    """FeatureVectorizer: columns side by side, [N, C], [N, D] -> [N, C + D]."""
    rows, widths = _num_rows(context.dims(0)), context.integers("inputdimensions")
    if rows is None or not widths:
        return {}
    return context.outputs((rows, sum(widths)), elem_type=_FLOAT)


def _num_rows(dims: Dims | None) -> int | None:
    if not dims:
        return None
    return dims[0] if len(dims) > 1 else 1


def _trees(context: InferenceContext) -> Found:
    """X: [N, C] -> a label and the scores of all classes for each row."""
    return _labeled(context, len(_labels(context)))


def _tree_regression(context: InferenceContext) -> Found:
    """X: [N, C] -> [N, targets]."""
    rows = _num_rows(context.dims(0))
    made = None if rows is None or "n_targets" not in context.attributes else rows
    shape = None if made is None else (made, context.integer("n_targets"))
    return context.outputs(shape, elem_type=_FLOAT)


def _support_vector_classes(context: InferenceContext) -> Found:
    """X: [N, C] -> a label for each row, and scores: of each class, or of each pair of classes.

    By pairs where there are vectors, no probabilities and more classes than two
    (``svmclassifier.cc``). Without vectors the coefficients tell, which nothing here reads.
    """
    classes = len(_labels(context))
    if not context.integers("vectors_per_class"):
        return _labeled(context, None)
    probabilities = context.attributes.get("prob_a")
    has_pairs = classes > _TWO and not (probabilities and probabilities.floats)
    return _labeled(context, classes * (classes - 1) // 2 if has_pairs else classes)


def _labels(context: InferenceContext) -> Sequence[bytes | int]:
    for name in ("classlabels_strings", "classlabels_ints", "classlabels_int64s"):
        attribute = context.attributes.get(name)
        if attribute is not None and (attribute.strings or attribute.ints):
            return attribute.strings or attribute.ints
    return ()


def _labeled(context: InferenceContext, scores: int | None) -> Found:
    """A label and some scores for each row."""
    rows, labels = _num_rows(context.dims(0)), _labels(context)
    if rows is None or not labels:
        return {}
    elem_type = onnx.TensorProto.INT64 if isinstance(labels[0], int) else onnx.TensorProto.STRING
    found = context.outputs((rows,), elem_type=elem_type)
    made = None if scores is None else (rows, scores)
    return found | context.outputs(None, made, elem_type=_FLOAT)


_ONNX: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        "Affine ImageScaler ParametricSoftplus Scale ScaledTanh ThresholdedRelu".split(),
        _like_first,
    ),
    "BatchNormalization": _normalized,
    "Crop": _cropped,
    "DynamicSlice": _sliced,
    "GivenTensorFill": _filled,
    "LayerNormalization": layer_normalization,
    "Range": counted,
    "SimplifiedLayerNormalization": layer_normalization,
}
_ML: Final[Mapping[str, Rule]] = {
    "ArrayFeatureExtractor": _columns,
    "FeatureVectorizer": _joined,
    "Imputer": _like_first,
    "LinearRegressor": _regression,
    "Normalizer": _floats,
    "Scaler": _floats,
    "SVMClassifier": _support_vector_classes,
    "SVMRegressor": _support_vectors,
    "TreeEnsembleClassifier": _trees,
    "TreeEnsembleRegressor": _tree_regression,
}
_RULES: Final[Mapping[tuple[str, str], Rule]] = {
    **{("", op_type): rule for op_type, rule in _ONNX.items()},
    **{("ai.onnx.ml", op_type): rule for op_type, rule in _ML.items()},
    ("ai.onnx.preview.training", "Gradient"): _gradients,
}
