"""Which nodes work on blocks of channels, in the order of execution.

Source: onnxruntime/core/optimizer/nchwc_transformer.cc, ``NchwcTransformerImpl::Transform``.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import MICROSOFT, NCHWC, is_op
from onnxmem.runtimes.onnxruntime.optimizer.nchwc.combining import (
    transform_activation,
    transform_batch_norm,
    transform_binary,
    transform_concat,
    transform_transpose,
)
from onnxmem.runtimes.onnxruntime.optimizer.nchwc.convolving import (
    transform_conv,
    transform_pool,
)
from onnxmem.runtimes.onnxruntime.optimizer.nchwc.layout import Layout
from onnxmem.runtimes.onnxruntime.optimizer.nchwc.resizing import transform_resize
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order

_POOLS = {"MaxPool": {1, 8, 10, 11, 12, 22}, "AveragePool": {1, 7, 10, 11, 19, 22}}
_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Tanh", "HardSigmoid", "Gelu", "QuickGelu"})
"""As onnxruntime 1.31.1 has them; the first four may go into a convolution."""


def block_channels(graph: Graph, block: int) -> bool:
    """Transform a graph and its subgraphs; true if anything changed.

    :param block: channels of a block, 8 with AVX2 and 16 with AVX-512.
    """
    layout = Layout(graph, block)
    changed = False
    for node in execution_order(graph):
        for body in node.bodies.values():
            changed |= block_channels(body, block)
        if has_kernel(graph, node):
            _transform(layout, node)
    return layout.finish() or changed


def _transform(layout: Layout, node: Node) -> None:
    if is_op(node, "Conv", {1, 11, 22}) or is_op(node, "FusedConv", {1}, MICROSOFT):
        transform_conv(layout, node)
    elif node.op_type in _ACTIVATIONS and node.domain in ("", MICROSOFT):
        transform_activation(layout, node)
    elif node.domain:
        return
    elif node.op_type in _POOLS and node.since_version in _POOLS[node.op_type]:
        transform_pool(layout, node)
    elif node.op_type == "Transpose":
        transform_transpose(layout, node)
    elif not any(_is_plain_result(layout, name) for name in node.inputs):
        _transform_reader(layout, node)


def _is_plain_result(layout: Layout, name: str) -> bool:
    """Whether a node makes a value in its plain layout, so that the reader keeps its edge."""
    maker = layout.graph.makers.get(name)
    return maker is not None and maker.domain != NCHWC and name not in layout.values


def _transform_reader(layout: Layout, node: Node) -> None:
    """Nodes none of whose inputs a plain node makes; most of them ask for an input in blocks.

    A global pooling does not: it takes a graph input into blocks as well.
    """
    if node.op_type in {"Add", "Sum"}:
        transform_binary(layout, node, is_sum=True)
    elif node.op_type == "Mul":
        transform_binary(layout, node, is_sum=False)
    elif node.op_type == "Concat":
        transform_concat(layout, node)
    elif node.op_type == "BatchNormalization":
        transform_batch_norm(layout, node)
    elif node.op_type in {"Resize", "Upsample"}:
        transform_resize(layout, node)
    elif node.op_type in {"GlobalMaxPool", "GlobalAveragePool"}:
        transform_pool(layout, node)
