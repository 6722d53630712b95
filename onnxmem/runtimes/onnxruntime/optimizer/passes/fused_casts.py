"""A float16 constant that only a cast to float32 reads becomes a float32 constant.

Source: onnxruntime/core/optimizer/fuse_initializers_transformer.cc. It runs after the casts are in,
and where it changes something, the levels above the basic one are run once more.
"""

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import FLOAT, FLOAT16
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.passes.cast_insertion import PREFIX
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import add_absent, add_array


def widen_constants(graph: Graph) -> bool:
    """Replace every cast of a constant that has one reader, which runs in float32 only."""
    casts = [node for node in execution_order(graph) if _is_widening(graph, node)]
    for cast in sorted(casts, key=lambda node: node.index):
        _widen(graph, cast)
    return bool(casts)


def _is_widening(graph: Graph, node: Node) -> bool:
    if node.op_type != "Cast" or node.inputs[0] in graph.makers or graph.num_edges(node) != 1:
        return False
    if graph.is_output(node) or node.inputs[0] not in graph.initializers:
        return False
    types = graph.elem_type_of(node.inputs[0]), graph.elem_type_of(node.outputs[0])
    return types == (FLOAT16, FLOAT) and has_kernel(graph, graph.children(node)[0])


def _widen(graph: Graph, cast: Node) -> None:
    source, target = cast.inputs[0], cast.outputs[0]
    name = graph.fresh_name("FusedBack_" + target.replace(PREFIX, ""))
    value = graph.array(source)
    if value is None:
        add_absent(graph, name, FLOAT, graph.initializers[source].dims)
    else:
        add_array(graph, name, value.astype(np.float32))
    reader = graph.children(cast)[0]
    graph.remove(cast)
    graph.set_inputs(reader, [name if read == target else read for read in reader.inputs])
