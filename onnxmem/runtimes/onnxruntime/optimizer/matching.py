"""Questions that many passes ask of a node and of the values around it.

Source: onnxruntime/core/graph/graph_utils.cc and onnxruntime/core/optimizer/utils.cc.
"""

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.value_types import Dims, TensorType

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"

FLOAT, UINT8, INT8, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 3, 10, 11, 16
INT16, UINT16, INT32, INT64, INT4, UINT4 = 5, 4, 6, 7, 22, 21
"""Element types, as ``TensorProto.DataType`` numbers them."""
BYTES = frozenset({INT8, UINT8})
"""Quantised to 8 bits."""

_ABSOLUTE, _RELATIVE = 1e-8, 1e-5
"""Tolerances of ``IsInitializerWithExpectedValue``."""


def is_op(node: Node | None, op_type: str, versions: Collection[int], domain: str = "") -> bool:
    """Whether a node is an operator in one of the versions that a pass knows."""
    return (
        node is not None
        and node.op_type == op_type
        and node.domain == domain
        and node.since_version in versions
    )


def has_single_reader(graph: Graph, node: Node, num_edges: int = 1) -> bool:
    """Whether a node has so many uses and writes no graph output (``CheckOutputEdges``)."""
    return not graph.is_output(node) and graph.num_edges(node) == num_edges


def is_constant(graph: Graph, name: str) -> bool:
    """Whether a value is an initializer that no caller can override."""
    return graph.constant(name) is not None


def is_scalar(graph: Graph, name: str) -> bool:
    """Whether a value is known to be of rank 0, or of rank 1 with one element."""
    return graph.dims_of(name) in ((), (1,))


def scalar_of(graph: Graph, name: str) -> float | None:
    """The number in a constant scalar."""
    value = graph.array(name) if name and is_scalar(graph, name) else None
    if value is None or value.size != 1 or value.dtype.kind not in "fiub":
        return None
    return float(value.ravel()[0])


def is_number(graph: Graph, name: str, expected: float) -> bool:
    """Whether a value is a constant scalar float close to a number."""
    value = scalar_of(graph, name)
    if value is None or graph.elem_type_of(name) not in (FLOAT, FLOAT16, DOUBLE):
        return False
    wanted = float(np.float16(expected)) if graph.elem_type_of(name) == FLOAT16 else expected
    return abs(value - wanted) <= _ABSOLUTE + _RELATIVE * abs(expected)


def integers_of(graph: Graph, name: str) -> list[int] | None:
    """The elements of a constant of int32 or int64."""
    value = graph.array(name) if name else None
    if value is None or value.dtype not in (np.int32, np.int64):
        return None
    return [int(element) for element in value.ravel()]


def integer_range(graph: Graph, name: str) -> range | None:
    """The integers that a value's type holds; ``None`` where no kernel quantises to it."""
    return _RANGES.get(graph.elem_type_of(name))


_RANGES: Final[Mapping[int, range]] = {
    UINT4: range(2**4),
    INT4: range(-(2**3), 2**3),
    UINT8: range(2**8),
    INT8: range(-(2**7), 2**7),
    UINT16: range(2**16),
    INT16: range(-(2**15), 2**15),
}


def child_of(graph: Graph, node: Node, op_type: str) -> Node | None:
    """The first reader of a type (``FirstChildByType``)."""
    return next((child for child in graph.children(node) if child.op_type == op_type), None)


def parent_of(graph: Graph, node: Node, op_type: str) -> Node | None:
    """The first parent of a type (``FirstParentByType``)."""
    return next((parent for parent in graph.parents(node) if parent.op_type == op_type), None)


def num_input_edges(graph: Graph, node: Node) -> int:
    """Inputs that nodes of the same graph write."""
    return sum(name in graph.makers for name in (*node.inputs, *node.implicit) if name)


def known_size(graph: Graph, name: str) -> int | None:
    """Elements of a value of which every dim is known."""
    dims = graph.dims_of(name)
    if dims is None:
        return None
    size = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        size *= dim
    return size


def rank_of(graph: Graph, name: str) -> int | None:
    """Number of dims, where it is known."""
    known = graph.type_of(name)
    return len(known.dims) if isinstance(known, TensorType) and known.dims is not None else None


def is_gemm_bias(bias: Dims, product: Dims) -> bool:
    """Whether a value is of (N), (1, N), (M, 1) or (M, N) beside a product of (M, N)."""
    rows, columns = product[0], product[-1]
    fits = columns is not None and bias[-1:] == (columns,)
    if len(bias) != len(product):
        return fits and len(bias) == 1
    if bias[0] == 1 and fits:
        return True
    return rows is not None and bias[0] == rows and (bias[1] == 1 or fits)


def clip_bounds(graph: Graph, node: Node) -> tuple[float, float] | None:
    """A Clip's constant bounds (``GetClipConstantMinMax``); ``None`` where one is computed."""
    lowest, highest = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)
    if node.since_version < _CLIP_READS_BOUNDS:
        low = node.attributes["min"].f if "min" in node.attributes else lowest
        high = node.attributes["max"].f if "max" in node.attributes else highest
        return low, high
    bounds = []
    for place, default in ((1, lowest), (2, highest)):
        name = node.input_at(place)
        if name and not is_constant(graph, name):
            return None
        value: Array | None = graph.array(name) if name else None
        bounds.append(default if value is None or not value.size else float(value.ravel()[0]))
    return bounds[0], bounds[1]


_CLIP_READS_BOUNDS = 11
"""Version from which Clip's bounds are inputs."""
