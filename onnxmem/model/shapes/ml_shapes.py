"""Shapes of the operators of ai.onnx.ml that onnx itself has no shape function for.

They read rows: [N, C], or one of them as [C]. Source: ``onnx/defs/traditionalml/defs.cc``, and the
kernels of ``core/providers/cpu/ml`` of onnxruntime.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Final

import onnx

from onnxmem.model.shapes.node_facts import Found, NodeFacts
from onnxmem.ops.spec import Dims

_FLOAT: Final = onnx.TensorProto.FLOAT


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


ML_RULES: Final[Mapping[str, Callable[[NodeFacts], Found]]] = {
    "ArrayFeatureExtractor": _columns,
    "FeatureVectorizer": _joined,
    "Imputer": _like_first,
    "LinearRegressor": _regression,
    "Normalizer": _floats,
    "Scaler": _floats,
    "SVMRegressor": _support_vectors,
}
