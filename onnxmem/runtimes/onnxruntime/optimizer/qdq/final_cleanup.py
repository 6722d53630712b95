"""A DequantizeLinear and the QuantizeLinear that undoes it go.

Source: onnxruntime/core/optimizer/qdq_transformer/qdq_final_cleanup.cc. Pairs the other way round
stay, unless the session asks for more. That one node alone may read what comes out, and that a
value with more uses is handed to a graph output by an Identity, is measured on onnxruntime 1.31.1.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import has_single_reader
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import (
    is_dequantise,
    is_quantise,
    same_quantisation,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, redirect


def drop_pairs(graph: Graph) -> bool:
    """Remove every such pair; true if there was one."""
    changed: list[bool] = []
    for node in walk(graph, drop_pairs, changed):
        if is_dequantise(node) and has_single_reader(graph, node):
            changed.append(_drop(graph, node, graph.children(node)[0]))
    return any(changed)


def _drop(graph: Graph, first: Node, second: Node) -> bool:
    if not is_quantise(second) or not same_quantisation(graph, second, first):
        return False
    source, target = first.inputs[0], second.outputs[0]
    is_output = target in graph.outputs
    if len(graph.readers(target)) != (0 if is_output else 1):
        return False
    graph.remove(first)
    graph.remove(second)
    if is_output:
        _hand_out(graph, source, target)
    else:
        redirect(graph, target, source)
    return True


def _hand_out(graph: Graph, source: str, target: str) -> None:
    """Make a value a graph output, under the output's name if it has no other use."""
    maker = graph.makers.get(source)
    if maker is None or source in graph.outputs or graph.readers(source):
        name = graph.fresh_node_name("QDQFinalCleanupTransformer")
        add_node(graph, NewNode("Identity", [source], [target], "", name))
    else:
        outputs = [target if name == source else name for name in maker.outputs]
        graph.set_outputs(maker, outputs)
