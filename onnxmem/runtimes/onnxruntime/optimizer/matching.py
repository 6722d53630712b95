"""Predicates and look-ups of nodes and values that many passes share.

An *edge* leads from an output of a node to an input of another, as in onnxruntime: a reader with
the same value in two of its inputs has two, and a graph output is none (``has_edges``).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
import onnx
import onnx.defs
import onnx.helper

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.kernels.kernel import Kernel
from onnxmem.runtimes.onnxruntime.kernels.registry import WITHOUT_KERNEL, kernel_of
from onnxmem.runtimes.onnxruntime.optimizer.graph import Dims, Graph, Node, TensorType

# --------------------------------------------------------------------------------------------------
# Predicates and look-ups of nodes and of the values around them.
#
# onnxruntime/core/graph/graph_utils.cc and onnxruntime/core/optimizer/utils.cc.


MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"

FLOAT, UINT8, INT8, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 3, 10, 11, 16
INT16, UINT16, INT32, INT64, INT4, UINT4 = 5, 4, 6, 7, 22, 21
"""Element types, as ``TensorProto.DataType`` numbers them."""
BYTES = frozenset({INT8, UINT8})
"""Quantized to 8 bits."""

_ABSOLUTE, _RELATIVE = 1e-8, 1e-5
"""Tolerances of ``optimizer_utils::IsInitializerWithExpectedValue``."""


def is_op(node: Node | None, op_type: str, versions: Collection[int], domain: str = "") -> bool:
    """Whether a node is an operator in one of some versions.

    Each pass of onnxruntime lists the versions that it supports
    (``IsSupportedOptypeVersionAndDomain``), and leaves nodes of newer ones alone.
    """
    return (
        node is not None
        and node.op_type == op_type
        and node.domain == domain
        and node.since_version in versions
    )


def has_edges(graph: Graph, node: Node, count: int) -> bool:
    """Whether a node has that many edges to readers and no graph output (``CheckOutputEdges``)."""
    return not graph.is_output(node) and graph.num_edges(node) == count


def has_single_reader(graph: Graph, node: Node) -> bool:
    """Whether a node has one edge to a reader and no graph output."""
    return has_edges(graph, node, 1)


def other_operand(node: Node, producer: Node) -> str:
    """The operand of a node with two inputs beside the one that a producer writes."""
    return node.inputs[1] if node.inputs[0] == producer.outputs[0] else node.inputs[0]


def is_constant(graph: Graph, name: str) -> bool:
    """Whether a value is an initializer that no caller can override."""
    return graph.constant(name) is not None


def is_scalar(graph: Graph, name: str) -> bool:
    """Whether a value has rank 0, or rank 1 and one element (``IsScalar``)."""
    return graph.dims_of(name) in ((), (1,))


def scalar_of(graph: Graph, name: str) -> float | None:
    """The number in a constant scalar; ``None`` if it is not one or its data is absent."""
    value = graph.array(name) if name and is_scalar(graph, name) else None
    if value is None or value.size != 1 or value.dtype.kind not in "fiub":
        return None
    return float(value.ravel()[0])


def is_number(graph: Graph, name: str, expected: float) -> bool:
    """Whether a value is a constant scalar float close to a number."""
    value = scalar_of(graph, name)
    if value is None or graph.elem_type_of(name) not in (FLOAT, FLOAT16, DOUBLE):
        return False
    # The tolerance is finer than float16, so a float16 constant is compared after rounding.
    nearest = float(np.float16(expected)) if graph.elem_type_of(name) == FLOAT16 else expected
    return abs(value - nearest) <= _ABSOLUTE + _RELATIVE * abs(expected)


def integers_of(graph: Graph, name: str) -> list[int] | None:
    """The elements of a constant of int32 or int64."""
    value = graph.array(name) if name else None
    if value is None or value.dtype not in (np.int32, np.int64):
        return None
    return [int(element) for element in value.ravel()]


def integer_range(graph: Graph, name: str) -> range | None:
    """The integers that a value's type can represent; ``None`` if no kernel quantizes to it."""
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
    """The first reader with an operator type (``FirstChildByType``)."""
    return next((child for child in graph.children(node) if child.op_type == op_type), None)


def parent_of(graph: Graph, node: Node, op_type: str) -> Node | None:
    """The first parent with an operator type (``FirstParentByType``)."""
    return next((parent for parent in graph.parents(node) if parent.op_type == op_type), None)


def num_input_edges(graph: Graph, node: Node) -> int:
    """Inputs that nodes of the same graph write."""
    return sum(name in graph.producers for name in (*node.inputs, *node.implicit) if name)


def known_size(graph: Graph, name: str) -> int | None:
    """The number of elements of a value; ``None`` if a dim is unknown."""
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
    """The number of dims of a value; ``None`` if it is unknown."""
    known = graph.type_of(name)
    return len(known.dims) if isinstance(known, TensorType) and known.dims is not None else None


def is_gemm_bias(bias: Dims, product: Dims) -> bool:
    """Whether a bias for a product of (M, N) has the shape (N), (1, N), (M, 1) or (M, N)."""
    rows, columns = product[0], product[-1]
    fits = columns is not None and bias[-1:] == (columns,)
    if len(bias) != len(product):
        return fits and len(bias) == 1
    if bias[0] == 1 and fits:
        return True
    return rows is not None and bias[0] == rows and (bias[1] == 1 or fits)


def clip_bounds(graph: Graph, node: Node) -> tuple[float, float] | None:
    """A Clip's constant bounds (``GetClipConstantMinMax``); ``None`` if one is not constant."""
    lowest, highest = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)
    if node.since_version < _CLIP_READS_BOUNDS:
        low = node.attributes["min"].f if "min" in node.attributes else lowest
        high = node.attributes["max"].f if "max" in node.attributes else highest
        return low, high
    bounds = []
    for input_index, default in ((1, lowest), (2, highest)):
        name = node.input_at(input_index)
        if name and not is_constant(graph, name):
            return None
        value: Array | None = graph.array(name) if name else None
        bounds.append(default if value is None or not value.size else float(value.ravel()[0]))
    return bounds[0], bounds[1]


_CLIP_READS_BOUNDS = 11
"""Version from which Clip's bounds are inputs."""


# --------------------------------------------------------------------------------------------------
# Attributes of a node as plain values, with the schema's defaults.
#
# onnxruntime/core/graph/graph.cc, ``Graph::VerifyNodeAndOpMatch``, writes the defaults into the
# nodes when it resolves a graph, so its passes see them.


def stated(node: Node, name: str) -> onnx.AttributeProto | None:
    """An attribute of a node, or the schema's default; ``None`` if there is neither."""
    if name in node.attributes or not node.since_version:
        return node.attributes.get(name)
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return None
    attribute = schema.attributes.get(name)
    if attribute is None or not attribute.default_value.name:
        return None
    return attribute.default_value


def integer(node: Node, name: str, default: int = 0) -> int:
    """An integer attribute."""
    attribute = stated(node, name)
    return default if attribute is None else attribute.i


def number(node: Node, name: str, default: float = 0.0) -> float:
    """A float attribute."""
    attribute = stated(node, name)
    return default if attribute is None else attribute.f


def text(node: Node, name: str, default: str = "") -> str:
    """A string attribute."""
    attribute = stated(node, name)
    return default if attribute is None else attribute.s.decode(errors="replace")


def integers(node: Node, name: str) -> list[int] | None:
    """A list of integers; ``None`` if the attribute is absent and has no default."""
    attribute = stated(node, name)
    return None if attribute is None else list(attribute.ints)


def put(node: Node, name: str, value: float | str | Sequence[int] | Sequence[float]) -> None:
    """Set an attribute."""
    node.attributes[name] = onnx.helper.make_attribute(name, value)


def axes_of(graph: Graph, node: Node) -> list[int] | None:
    """The axes in an attribute or, in later versions, in a constant second input; else ``None``."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].ints)
    values = graph.array(node.input_at(1)) if node.input_at(1) else None
    return None if values is None else [int(axis) for axis in values.ravel()]


# --------------------------------------------------------------------------------------------------
# Operators that compute different outputs from the same inputs.
#
# onnxruntime/core/optimizer/utils.cc, ``IsOperationDeterministic``.


_RANDOM = frozenset(
    "RandomUniform RandomNormal RandomUniformLike RandomNormalLike Multinomial Dropout".split()
)
_DETERMINISTIC_OF_MICROSOFT = frozenset({"QuantizeLinear", "DequantizeLinear"})


def is_deterministic(domain: str, op_type: str) -> bool:
    """Whether an operator always computes the same outputs from the same inputs.

    onnxruntime trusts an allow list for com.microsoft, and no operator of any other custom domain.
    """
    if domain == "com.microsoft":
        return op_type in _DETERMINISTIC_OF_MICROSOFT
    return not domain and op_type not in _RANDOM


# --------------------------------------------------------------------------------------------------
# Nodes that onnxruntime has a kernel for, by the records of kernels: on the CPU, which every
# session falls back to, and on CUDA in a session for it.
#
# onnxruntime/core/framework/kernel_registry.cc, ``KernelRegistry::TryFindKernel``.
# A node without a kernel is replaced by the nodes of its ONNX function body; a node without a
# kernel for float16 runs in float32 between casts. Most passes above the basic level only consider
# nodes that are assigned to a provider (``IsSupportedProvider``), which is what this stands for.


def has_kernel(graph: Graph, node: Node) -> bool:
    """Whether a provider of the session has a kernel for a node with its types."""
    if node.is_unassigned:
        return False
    return has_cuda_kernel(graph, node) or has_cpu_kernel(graph, node)


def has_cuda_kernel(graph: Graph, node: Node) -> bool:
    """Whether the session is on CUDA, and that provider has a kernel for a node with its types."""
    if graph.provider != "cuda":
        return False
    from onnxmem.runtimes.onnxruntime.kernels.cuda import cuda_kernel

    kernel = cuda_kernel(node.domain, node.op_type, node.since_version)
    if kernel is None:
        return False
    checked = node.input_at(kernel.checked)
    return kernel.runs(node.since_version, graph.elem_type_of(checked) if checked else 0)


def has_cpu_kernel(graph: Graph, node: Node) -> bool:
    """Whether the CPU provider has a kernel for a node with its types."""
    if not node.domain and node.op_type in WITHOUT_KERNEL:
        return False
    halves = {graph.elem_type_of(name) for name in (*node.inputs, *node.outputs) if name}
    kernel = kernel_of(node.op_type, node.domain)
    halves &= {FLOAT16, BFLOAT16}
    return all(_runs(kernel, node.since_version, half, graph.cpu) for half in halves)


def _runs(kernel: Kernel, version: int, half: int, cpu: Cpu) -> bool:
    if half == BFLOAT16:
        return version in kernel.bfloat16
    return version in kernel.float16 or (cpu.is_arm and version in kernel.float16_on_arm)
