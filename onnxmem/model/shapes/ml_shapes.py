"""Shapes of the operators of ai.onnx.ml that onnx itself has no shape function for.

They read rows: [N, C], or one of them as [C]. Source: ``onnx/defs/traditionalml/defs.cc``, and the
kernels of ``core/providers/cpu/ml`` of onnxruntime.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

import onnx

from onnxmem.model.shapes.node_facts import Found, NodeFacts
from onnxmem.ops.spec import Dims

_FLOAT: Final = onnx.TensorProto.FLOAT
_TWO: Final = 2


def _floats(facts: NodeFacts) -> Found:
    """Scaler and Normalizer: numbers of any type in, floats out."""
    return facts.outputs(facts.dims(0), elem_type=_FLOAT)


def _like_first(facts: NodeFacts) -> Found:
    return facts.outputs(facts.dims(0), elem_type=facts.elem_type(0))


def _regression(facts: NodeFacts) -> Found:
    """X: [N, C] or [C] -> [N, targets] or [1, targets]."""
    rows = _num_rows(facts.dims(0))
    return facts.outputs(
        None if rows is None else (rows, facts.integer("targets", 1)), elem_type=_FLOAT
    )


def _support_vectors(facts: NodeFacts) -> Found:
    """X: [N, C] or [C] -> [N, 1] or [1, 1]."""
    rows = _num_rows(facts.dims(0))
    return facts.outputs(None if rows is None else (rows, 1), elem_type=_FLOAT)


def _columns(facts: NodeFacts) -> Found:
    """X: [*N, C] or [C] and the places of k columns -> [*N, k] or [1, k]."""
    dims, places = facts.dims(0), facts.dims(1)
    if not dims or places is None:
        return {}
    return facts.outputs((*(dims[:-1] or (1,)), prod(places)), elem_type=facts.elem_type(0))


def _joined(facts: NodeFacts) -> Found:
    """FeatureVectorizer: columns side by side, [N, C], [N, D] -> [N, C + D]."""
    rows, widths = _num_rows(facts.dims(0)), facts.integers("inputdimensions")
    if rows is None or not widths:
        return {}
    return facts.outputs((rows, sum(widths)), elem_type=_FLOAT)


def _num_rows(dims: Dims | None) -> int | None:
    if not dims:
        return None
    return dims[0] if len(dims) > 1 else 1


def _trees(facts: NodeFacts) -> Found:
    """X: [N, C] -> a label and the scores of all classes for each row."""
    return _labelled(facts, len(_labels(facts)))


def _tree_regression(facts: NodeFacts) -> Found:
    """X: [N, C] -> [N, targets]."""
    rows = _num_rows(facts.dims(0))
    made = None if rows is None or "n_targets" not in facts.attributes else rows
    shape = None if made is None else (made, facts.integer("n_targets"))
    return facts.outputs(shape, elem_type=_FLOAT)


def _support_vector_classes(facts: NodeFacts) -> Found:
    """X: [N, C] -> a label for each row, and scores: of each class, or of each pair of classes.

    By pairs where there are vectors, no probabilities and more classes than two
    (``svmclassifier.cc``). Without vectors the coefficients tell, which nothing here reads.
    """
    classes = len(_labels(facts))
    if not facts.integers("vectors_per_class"):
        return _labelled(facts, None)
    probabilities = facts.attributes.get("prob_a")
    has_pairs = classes > _TWO and not (probabilities and probabilities.floats)
    return _labelled(facts, classes * (classes - 1) // 2 if has_pairs else classes)


def _labels(facts: NodeFacts) -> Sequence[bytes | int]:
    for name in ("classlabels_strings", "classlabels_ints", "classlabels_int64s"):
        attribute = facts.attributes.get(name)
        if attribute is not None and (attribute.strings or attribute.ints):
            return attribute.strings or attribute.ints
    return ()


def _labelled(facts: NodeFacts, scores: int | None) -> Found:
    """A label and some scores for each row."""
    rows, labels = _num_rows(facts.dims(0)), _labels(facts)
    if rows is None or not labels:
        return {}
    elem_type = onnx.TensorProto.INT64 if isinstance(labels[0], int) else onnx.TensorProto.STRING
    found = facts.outputs((rows,), elem_type=elem_type)
    made = None if scores is None else (rows, scores)
    return found | facts.outputs(None, made, elem_type=_FLOAT)


ML_RULES: Final[Mapping[str, Callable[[NodeFacts], Found]]] = {
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
