"""A Relu before a Clip becomes the Clip's lower bound.

Source: onnxruntime/core/optimizer/relu_clip_fusion.cc.
"""

import numpy as np
import onnx
import onnx.helper

from onnxmem.runtimes.onnxruntime.optimizer.attributes import put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import FLOAT, is_op
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    add_array,
    can_remove,
    remove_handing_through,
)
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, removed_if


def fuse_relu_clip(graph: Graph, node: Node) -> Effect:
    """Remove a Relu that only a Clip with a constant lower bound reads."""
    if not is_op(node, "Relu", {6, 13, 14}) or graph.num_edges(node) != 1:
        return Effect.NONE
    clip = graph.children(node)[0]
    if not is_op(clip, "Clip", {6, 11, 12, 13}) or not can_remove(graph, node):
        return Effect.NONE
    if clip.since_version < _READS_BOUNDS:
        if "min" not in clip.attributes or clip.attributes["min"].f < 0:
            put(clip, "min", 0.0)
        return removed_if(remove_handing_through(graph, node))
    name = clip.input_at(1)
    bound = graph.array(name) if name else None
    if name and bound is None:
        return Effect.NONE
    if bound is None or float(bound.ravel()[0]) < 0:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(graph.elem_type_of(clip.inputs[0]) or FLOAT)
        zero = graph.fresh_name("FuseReluClip_" + clip.name)
        graph.set_input(clip, 1, add_array(graph, zero, np.zeros((), dtype)))
    return removed_if(remove_handing_through(graph, node))


_READS_BOUNDS = 11
"""Version from which Clip's bounds are inputs."""
