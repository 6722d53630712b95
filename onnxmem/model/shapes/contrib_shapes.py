"""Shapes of onnxruntime's own operators, where neither onnx nor onnx-shape-inference knows them.

The rules are those of ``contrib_defs.cc`` and ``bert_defs.cc``. LayerNormalization stands here too:
the optimiser writes it in ONNX's domain under opsets that do not know it yet.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx

from onnxmem.model.constants import Array
from onnxmem.model.shapes.contrib_attention_shapes import ATTENTION_RULES
from onnxmem.model.shapes.contrib_image_shapes import IMAGE_RULES
from onnxmem.model.shapes.contrib_quantised_shapes import QUANTISED_RULES
from onnxmem.model.shapes.contrib_value_shapes import VALUE_RULES
from onnxmem.model.shapes.dropped_shapes import DROPPED_RULES
from onnxmem.model.shapes.matrix_shapes import product
from onnxmem.model.shapes.ml_shapes import ML_RULES
from onnxmem.model.shapes.node_facts import Found, NodeFacts, Types
from onnxmem.ops.spec import Dims

_SUM_PLACE: Final = 3
_BITS_PER_BYTE: Final = 8
_FLOAT, _UINT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8


def contrib_types(
    node: onnx.NodeProto, types: Types, values: Mapping[str, Array] = MappingProxyType({})
) -> Found:
    """The types of a node's outputs; empty for an operator that has no rule here."""
    rule = _RULES.get((node.domain, node.op_type))
    return rule(NodeFacts(node, types, values)) if rule else {}


def _like_first(facts: NodeFacts) -> Found:
    """The first output is shaped like the first input, and so is a sum that is put out fourth."""
    dims, outputs = facts.dims(0), facts.node.output
    shapes = [dims if place in {0, _SUM_PLACE} else None for place in range(len(outputs))]
    return facts.outputs(*shapes, elem_type=facts.elem_type(0))


def _layer_normalisation(facts: NodeFacts) -> Found:
    """X: [*B, *N] -> Y: [*B, *N], mean and 1 / deviation: [*B, 1, ...], floats."""
    dims, axis = facts.dims(0), facts.integer("axis", -1)
    if dims is None or not -len(dims) <= axis < len(dims):
        return {}
    axis %= len(dims)
    statistics = dims[:axis] + (1,) * (len(dims) - axis)
    found = facts.outputs(None, statistics, statistics, elem_type=_FLOAT)
    return found | facts.outputs(dims, elem_type=facts.elem_type(0))


def _fused_matmul(facts: NodeFacts) -> Found:
    left, right = (_as_read(facts, place, side) for place, side in enumerate("AB"))
    return facts.outputs(product(left, right), elem_type=facts.elem_type(0))


def _as_read(facts: NodeFacts, place: int, side: str) -> Dims | None:
    """The dims as the product reads them: ``transBatch`` moves the first dim before the last."""
    dims = facts.dims(place)
    if dims is None or len(dims) < 2:  # noqa: PLR2004 - a vector has nothing to transpose
        return dims
    if facts.integer(f"transBatch{side}"):
        dims = (*dims[1:-1], dims[0], dims[-1])
    if facts.integer(f"trans{side}"):
        dims = (*dims[:-2], dims[-1], dims[-2])
    return dims


def _packed_product(facts: NodeFacts) -> Found:
    """A: [*B, K], weights packed -> Y: [*B, N]."""
    dims = facts.dims(0)
    made = (*dims[:-1], facts.integer("N")) if dims and "N" in facts.attributes else None
    return facts.outputs(made, elem_type=facts.elem_type(0))


def _gathered_blocks(facts: NodeFacts) -> Found:
    """Rows of a packed table, unpacked: [A, C] and indices [*I] -> [*I, C], of the scales' type.

    Eight bits of ``uint8`` hold two elements of 4 bits along the last axis.
    """
    data, indices, axis = facts.dims(0), facts.dims(1), facts.integer("gather_axis")
    if data is None or indices is None or not -len(data) <= axis < len(data):
        return {}
    axis %= len(data)
    if facts.elem_type(0) == _UINT8:
        per_byte = _BITS_PER_BYTE // max(facts.integer("bits", 4), 1)
        data = (*data[:-1], data[-1] * per_byte)
    dims = (*data[:axis], *indices, *data[axis + 1 :])
    return facts.outputs(dims, elem_type=facts.elem_type(2))


def _hashes(facts: NodeFacts) -> Found:
    """One hash for each element, unsigned unless the operator is told otherwise."""
    is_unsigned = facts.integer("positive", 1)
    elem_type = onnx.TensorProto.UINT32 if is_unsigned else onnx.TensorProto.INT32
    return facts.outputs(facts.dims(0), elem_type=elem_type)


def _unfolded(facts: NodeFacts) -> Found:
    """Windows along one axis: its place holds their number, a new last axis their elements."""
    dims, axis, size = facts.dims(0), facts.integer("dim", -1), facts.integer("size")
    step = facts.integer("step", 1)
    if not dims or not -len(dims) <= axis < len(dims) or step < 1:
        return {}
    axis %= len(dims)
    if not 0 < size <= dims[axis]:
        return {}
    windows = (dims[axis] - size) // step + 1
    made = (*dims[:axis], windows, *dims[axis + 1 :], size)
    return facts.outputs(made, elem_type=facts.elem_type(0))


def _words(facts: NodeFacts) -> Found:
    """Characters of words: [*S, C], filters: [M, 1, K, E] -> [*S, M]."""
    words, filters = facts.dims(0), facts.dims(1)
    made = (*words[:-1], filters[0]) if words and filters else None
    return facts.outputs(made, elem_type=facts.elem_type(1))


def _found_once(facts: NodeFacts) -> Found:
    """Unique: which elements come out depends on them; each of the input has a place there."""
    return facts.outputs(None, facts.dims(0), elem_type=onnx.TensorProto.INT64)


def _ids_matched(facts: NodeFacts) -> Found:
    return facts.outputs(None, (), elem_type=onnx.TensorProto.INT64)


def _like_second(facts: NodeFacts) -> Found:
    return facts.outputs(facts.dims(1), elem_type=facts.elem_type(1))


def _gathered(facts: NodeFacts) -> Found:
    """GatherND of indices of either width: [*I, k] and [*D] -> [*I, *D after the first k]."""
    data, indices = facts.dims(0), facts.dims(1)
    if data is None or not indices or indices[-1] > len(data):
        return {}
    return facts.outputs((*indices[:-1], *data[indices[-1] :]), elem_type=facts.elem_type(0))


def _gradients(facts: NodeFacts) -> Found:
    """One of each tensor that is derived by, of its dims; those come first among the inputs."""
    asked = len(facts.attributes["xs"].strings) if "xs" in facts.attributes else 0
    dims = (facts.dims(place) for place in range(asked))
    return facts.outputs(*dims, elem_type=facts.elem_type(0))


def _distances(facts: NodeFacts) -> Found:
    """A: [M, K], B: [N, K] -> [M, N]."""
    left, right = facts.dims(0), facts.dims(1)
    dims = None if not left or not right else (left[0], right[0])
    return facts.outputs(dims, elem_type=facts.elem_type(0))


_MICROSOFT: Final = "com.microsoft"
_ONNX: Final = ""
_LIKE_FIRST: Final = (
    *("BiasDropout", "BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "Inverse", "QuickGelu"),
    *("SampleOp", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Trilu"),
)
_RULES: Final[Mapping[tuple[str, str], Callable[[NodeFacts], Found]]] = {
    **{(_MICROSOFT, op_type): _like_first for op_type in _LIKE_FIRST},
    (_MICROSOFT, "BifurcationDetector"): _ids_matched,
    (_MICROSOFT, "CDist"): _distances,
    (_MICROSOFT, "FusedMatMul"): _fused_matmul,
    (_MICROSOFT, "GatherBlockQuantized"): _gathered_blocks,
    (_MICROSOFT, "GatherND"): _gathered,
    (_MICROSOFT, "MatMulBnb4"): _packed_product,
    (_MICROSOFT, "MurmurHash3"): _hashes,
    (_MICROSOFT, "NGramRepeatBlock"): _like_second,
    (_MICROSOFT, "UnfoldTensor"): _unfolded,
    (_MICROSOFT, "Unique"): _found_once,
    (_MICROSOFT, "WordConvEmbedding"): _words,
    ("ai.onnx.preview.training", "Gradient"): _gradients,
    (_ONNX, "Range"): VALUE_RULES["Range"],
    (_ONNX, "LayerNormalization"): _layer_normalisation,
    (_ONNX, "SimplifiedLayerNormalization"): _layer_normalisation,
    **{(_MICROSOFT, op_type): rule for op_type, rule in QUANTISED_RULES.items()},
    **{(_MICROSOFT, op_type): rule for op_type, rule in IMAGE_RULES.items()},
    **{(_MICROSOFT, op_type): rule for op_type, rule in ATTENTION_RULES.items()},
    **{(_MICROSOFT, op_type): rule for op_type, rule in VALUE_RULES.items()},
    **{(_ONNX, op_type): rule for op_type, rule in DROPPED_RULES.items()},
    **{("ai.onnx.ml", op_type): rule for op_type, rule in ML_RULES.items()},
}
