"""A residual sum before a normalisation becomes part of it: SkipLayerNormalization.

Source: onnxruntime/core/optimizer/skip_layer_norm_fusion.cc and bias_skip_layer_norm_fusion.cc. The
sum has no other reader; a bias added on the way goes in too.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, number, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    FLOAT16,
    MICROSOFT,
    has_single_reader,
    is_constant,
    is_op,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain
from onnxmem.runtimes.onnxruntime.optimizer.value_types import Dims

_ADD = frozenset({7, 13, 14})
_TYPES = (FLOAT, FLOAT16)
_RANK = 3
_EPSILON = 1e-5
"""What LayerNormalization takes where its schema is not ONNX's."""
_NUM_INPUTS = 4
"""Input, skip, gamma and beta: a bias may follow."""


def fuse_skip_layer_norm(graph: Graph) -> bool:
    """Fuse residual sums, with the bias before them where there is one."""
    changed: list[bool] = []
    for node in walk(graph, fuse_skip_layer_norm, changed):
        if is_op(node, "LayerNormalization", {1, 17}) and has_kernel(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, norm: Node) -> bool:
    total = graph.parent(norm, 0)
    if total is None or not _is_residual(graph, total) or not _has_types(graph, norm):
        return False
    if integer(norm, "axis", -1) not in (-1, _RANK - 1):
        return False
    inputs = [*total.inputs, norm.inputs[1], norm.input_at(2)]
    nodes = [total, norm]
    for place in (0, 1):
        biased = graph.parent(total, place)
        if biased is not None and _adds_bias(graph, biased):
            inputs[place] = biased.inputs[0]
            inputs.append(biased.inputs[1])
            nodes.insert(0, biased)
            break
    op_type = "SkipLayerNormalization"
    made = add_node(graph, NewNode(op_type, inputs, (), MICROSOFT, op_type))
    put(made, "epsilon", number(norm, "epsilon", _EPSILON))
    replace_chain(graph, nodes, made)
    return True


def _has_types(graph: Graph, node: Node) -> bool:
    return all(graph.elem_type_of(name) in _TYPES for name in node.inputs if name)


def _is_residual(graph: Graph, add: Node) -> bool:
    """A sum of two tensors of rank 3 with equal dims that only the normalisation reads."""
    if not is_op(add, "Add", _ADD) or not has_single_reader(graph, add):
        return False
    one, other = (graph.dims_of(name) for name in add.inputs)
    return _has_types(graph, add) and has_kernel(graph, add) and _are_equal(one, other)


def _are_equal(one: Dims | None, other: Dims | None) -> bool:
    if one is None or other is None or len(one) != _RANK or len(other) != _RANK:
        return False
    return all(a == b and a is not None for a, b in zip(one, other, strict=True))


def _adds_bias(graph: Graph, add: Node) -> bool:
    """Whether a node adds a constant vector, its second input, to a tensor of rank 3."""
    if not is_op(add, "Add", _ADD) or not has_single_reader(graph, add):
        return False
    data, bias = (graph.dims_of(name) for name in add.inputs)
    if not is_constant(graph, add.inputs[1]) or not bias or len(bias) != 1:
        return False
    return data is not None and len(data) == _RANK and bias[0] == data[-1]


def fuse_bias_skip_layer_norm(graph: Graph) -> bool:
    """Take a bias that is added to a product into the SkipLayerNormalization after it."""
    changed: list[bool] = []
    for node in walk(graph, fuse_bias_skip_layer_norm, changed):
        is_open = len(node.inputs) == _NUM_INPUTS and node.domain == MICROSOFT
        if node.op_type == "SkipLayerNormalization" and is_open:
            changed.append(_take_bias(graph, node))
    return any(changed)


def _take_bias(graph: Graph, norm: Node) -> bool:
    for slot in (0, 1):
        add = graph.parent(norm, slot)
        place = None if add is None else _product_place(graph, add)
        if add is None or place is None:
            continue
        inputs = [*norm.inputs, add.inputs[1 - place]]
        inputs[slot] = add.inputs[place]
        made = add_node(
            graph,
            NewNode(norm.op_type, inputs, (), MICROSOFT, norm.name, dict(norm.attributes)),
        )
        replace_chain(graph, [add, norm], made)
        return True
    return False


def _product_place(graph: Graph, add: Node) -> int | None:
    """Where a sum that is read once has a product beside a constant vector."""
    if not is_op(add, "Add", _ADD) or not has_single_reader(graph, add):
        return None
    for place in (1, 0):
        product, bias = graph.parent(add, place), add.inputs[1 - place]
        is_product = product is not None and product.op_type == "MatMul" and not product.domain
        if is_product and rank_of(graph, bias) == 1 and is_constant(graph, bias):
            return place
    return None
