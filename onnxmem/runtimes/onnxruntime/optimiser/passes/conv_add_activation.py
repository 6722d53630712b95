"""A convolution takes in the Add after it, and an activation after that: FusedConv.

Source: onnxruntime/core/optimizer/conv_add_act_fusion.cc. It comes after the layouts, so that it
finds only convolutions that stay in the plain one.
"""

from onnxmem.runtimes.onnxruntime.optimiser.attributes import put
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimiser.matching import MICROSOFT, has_single_reader, is_op
from onnxmem.runtimes.onnxruntime.optimiser.order import walk
from onnxmem.runtimes.onnxruntime.optimiser.passes.conv_activation import activation_parameters
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import NewNode, add_node, replace_chain

_IMAGE_RANK = 4
_INPUTS_WITH_BIAS = 3


def fuse_conv_add(graph: Graph) -> bool:
    """Fuse each Conv with a bias whose only reader adds a value of the very same dims."""
    changed: list[bool] = []
    for node in walk(graph, fuse_conv_add, changed):
        if is_op(node, "Conv", {1, 11, 22}) and has_kernel(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, node: Node) -> bool:
    add = graph.children(node)[0] if has_single_reader(graph, node) else None
    if add is None or not is_op(add, "Add", {7, 13, 14}) or not _adds_alike(graph, add):
        return False
    conv = _first_conv(graph, add)
    if conv is None:
        return False
    added = [name for name in add.inputs if name not in conv.outputs]
    chain = [conv, add]
    activation = graph.children(add)[0] if has_single_reader(graph, add) else None
    parameters = None if activation is None else activation_parameters(graph, activation)
    is_fused = activation is not None and activation.op_type != "HardSigmoid"
    inputs = [*conv.inputs, *added]
    made = add_node(
        graph, NewNode("FusedConv", inputs, (), MICROSOFT, conv.name, dict(conv.attributes))
    )
    if activation is not None and parameters is not None and is_fused:
        put(made, "activation", activation.op_type)
        if parameters:
            put(made, "activation_params", parameters)
        chain.append(activation)
    replace_chain(graph, chain, made)
    return True


def _adds_alike(graph: Graph, add: Node) -> bool:
    one, other = (graph.dims_of(name) for name in add.inputs)
    if one is None or one != other or len(one) != _IMAGE_RANK:
        return False
    return None not in one and 0 not in one


def _first_conv(graph: Graph, add: Node) -> Node | None:
    """The first input of an Add that a Conv with a bias makes for it alone."""
    for name in add.inputs:
        maker = graph.makers.get(name)
        if maker is None or maker.op_type != "Conv" or maker.domain:
            continue
        if len(maker.inputs) == _INPUTS_WITH_BIAS and has_single_reader(graph, maker):
            return maker
    return None
