"""An Unsqueeze of a constant is a constant.

Source: onnxruntime/core/optimizer/unsqueeze_elimination.cc.
"""

import onnx

from onnxmem.runtimes.onnxruntime.optimizer.attributes import axes_of
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import replace_by_constant
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, removed_if


def fold_unsqueeze(graph: Graph, node: Node) -> Effect:
    """Replace an Unsqueeze of a constant by the same elements with more dims."""
    tensor = graph.constant(node.inputs[0])
    axes = axes_of(graph, node)
    if tensor is None or axes is None or graph.is_output(node):
        return Effect.NONE
    rank = len(tensor.dims) + len(axes)
    places = {axis % rank for axis in axes}
    left = iter(tensor.dims)
    reshaped = onnx.TensorProto()
    reshaped.CopyFrom(tensor)
    del reshaped.dims[:]
    reshaped.dims.extend(1 if place in places else next(left) for place in range(rank))
    reshaped.name = graph.fresh_name(f"UnsqueezeElimination_{node.inputs[0]}")
    graph.add_initializer(reshaped)
    return removed_if(replace_by_constant(graph, node, reshaped.name))
