"""Fusion of layer and RMS normalizations, and of the residual Add before them."""

from collections.abc import Iterable

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Dims, Graph, Node, walk
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    DOUBLE,
    FLOAT,
    FLOAT16,
    MICROSOFT,
    axes_of,
    child_of,
    has_edges,
    has_kernel,
    has_single_reader,
    integer,
    is_constant,
    is_number,
    is_op,
    number,
    other_operand,
    parent_of,
    put,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

# --------------------------------------------------------------------------------------------------
# The nodes of a layer normalization become LayerNormalization.
#
# onnxruntime/core/optimizer/layer_norm_fusion.cc, ``LayerNormFusion``: mean, difference, square,
# mean, epsilon, root, quotient, scale and bias, with optional casts at three points. This matcher
# tells whether the pass fires: it has the pass's conditions on versions, types, kernels and
# readers, and sees a graph that earlier passes changed. ``composites.layers`` of the torch runtime
# has a second one, which tells whether the arithmetic in the file is a layer normalization, because
# a training step then runs torch's.


ARITHMETIC = frozenset({7, 13, 14})
MEAN = frozenset({1, 11, 13, 18})
POWER = frozenset({7, 12, 13, 15})
ROOT = frozenset({6, 13})
_CAST = frozenset({9, 13, 19, 21, 23, 24, 25})
FLOATS = (FLOAT16, FLOAT, DOUBLE)
# ``DEFAULT_LAYERNORM_EPSILON``, which is the operator's default too.
_DEFAULT_EPSILON = 1e-5
_MAX_DIFFERENCES = 2
"""Older exporters compute the difference twice."""


def fuse_layer_norm(graph: Graph) -> bool:
    """Replace every layer normalization over the last axis."""
    changed: list[bool] = []
    for node in walk(graph, fuse_layer_norm, changed):
        if is_float_op(graph, node, "ReduceMean", MEAN, 1):
            changed.append(_fuse_layer_norm(graph, node))
    return any(changed)


def _fuse_layer_norm(graph: Graph, mean: Node) -> bool:
    differences = graph.children(mean)
    if graph.is_output(mean) or not 1 <= len(differences) <= _MAX_DIFFERENCES:
        return False
    if any(not is_float_op(graph, node, "Sub", ARITHMETIC) for node in differences):
        return False
    if any(other_operand(node, mean) != mean.inputs[0] for node in differences):
        return False
    # From the differences down to the quotient, from there up to the square, then down again to
    # scale and bias: each part must end at the one before, or the nodes belong to something else.
    cast = _cast_difference(graph, differences)
    quotient = _quotient(graph, differences, cast)
    variance = None if quotient is None else _variance(graph, quotient, [*differences, *cast])
    ending = None if quotient is None else _ending(graph, quotient)
    if quotient is None or variance is None or ending is None:
        return False
    # Both means must be over the last axis, for the fused node is given axis -1.
    if not last_axes(graph, mean) == last_axes(graph, variance[0]) == [-1]:
        return False
    # LayerNormalization has the scale and the bias as vectors of the normalized axis.
    scale, bias = (vector_of(graph, node.inputs) for node in ending[-2:])
    if scale is None or bias is None or graph.dims_of(scale) != graph.dims_of(bias):
        return False
    epsilon = epsilon_of(graph, variance[1])
    if epsilon is None:
        return False
    first = [*_leading_cast(graph, mean, len(differences)), mean]
    inputs = [first[0].inputs[0], scale, bias]
    name = "LayerNormalization"
    fused = add_node(graph, NewNode(name, inputs, (), "", name))
    put(fused, "epsilon", epsilon)
    put_stash_type(graph, fused)
    put(fused, "axis", -1)
    replace_chain(graph, [*first, *differences, *cast, quotient, *variance, *ending], fused)
    return True


def _leading_cast(graph: Graph, mean: Node, num_differences: int) -> list[Node]:
    """The Cast before the normalization, if only the mean and the differences read it."""
    cast = graph.parent(mean, 0)
    if cast is None or not is_op(cast, "Cast", _CAST):
        return []
    return [cast] if has_edges(graph, cast, num_differences + 1) else []


def _cast_difference(graph: Graph, differences: list[Node]) -> list[Node]:
    """The Cast between the difference and its two readers, the square and the quotient."""
    if len(differences) > 1 or graph.num_edges(differences[0]) != 1:
        return []
    cast = graph.children(differences[0])[0]
    is_between = is_op(cast, "Cast", _CAST) and has_edges(graph, cast, 2)
    return [cast] if is_between else []


def _quotient(graph: Graph, differences: list[Node], cast: list[Node]) -> Node | None:
    num_readers = 2 if len(differences) == 1 and not cast else 1
    if not has_edges(graph, differences[0], num_readers):
        return None
    sources = cast or differences
    found = next((div for s in sources if (div := child_of(graph, s, "Div")) is not None), None)
    if found is None or not is_float_op(graph, found, "Div", ARITHMETIC):
        return None
    return found if has_single_reader(graph, found) else None


def _variance(graph: Graph, quotient: Node, differences: list[Node]) -> list[Node] | None:
    """The nodes from the square to the root: mean, Add of epsilon, Sqrt, Pow, and an extra Cast."""
    root = parent_of(graph, quotient, "Sqrt")
    add = None if root is None or not graph.parents(root) else graph.parents(root)[0]
    mean = None if add is None else parent_of(graph, add, "ReduceMean")
    if root is None or add is None or mean is None or not graph.parents(mean):
        return None
    power = graph.parents(mean)[0]
    checks = (
        is_float_op(graph, root, "Sqrt", ROOT),
        is_float_op(graph, add, "Add", ARITHMETIC),
        is_float_op(graph, mean, "ReduceMean", MEAN, 1),
        is_float_op(graph, power, "Pow", POWER),
        *(has_single_reader(graph, node) for node in (root, add, mean, power)),
    )
    if not all(checks):
        return None
    nodes = [mean, add, root, power]
    cast = parent_of(graph, power, "Cast")
    # The square must be of one of the differences, directly or behind a Cast of its own.
    if cast is None:
        return nodes if parent_of(graph, power, "Sub") in differences else None
    if cast in differences:
        return nodes
    return [*nodes, cast] if has_single_reader(graph, cast) else None


def _ending(graph: Graph, quotient: Node) -> list[Node] | None:
    """The Mul by the scale and the Add of the bias, after an optional Cast."""
    nodes = [graph.children(quotient)[0]]
    if is_op(nodes[0], "Cast", _CAST) and has_single_reader(graph, nodes[0]):
        nodes.append(graph.children(nodes[0])[0])
    product = nodes[-1]
    if not is_float_op(graph, product, "Mul", ARITHMETIC) or not has_single_reader(graph, product):
        return None
    last = graph.children(product)[0]
    return [*nodes, last] if is_float_op(graph, last, "Add", ARITHMETIC) else None


def vector_of(graph: Graph, names: Iterable[str]) -> str | None:
    """The last of some values that has rank 1."""
    return next((name for name in reversed(list(names)) if rank_of(graph, name) == 1), None)


def last_axes(graph: Graph, mean: Node) -> list[int] | None:
    """The axes of a ReduceMean, counted from the end; ``None`` if they are unknown."""
    axes = axes_of(graph, mean)
    if not axes:
        return None
    rank = rank_of(graph, mean.inputs[0])
    if max(axes) < 0:
        return sorted(axes)
    return None if rank is None else sorted(a - rank if a >= 0 else a for a in axes)


def epsilon_of(graph: Graph, add: Node) -> float | None:
    """The constant with one element that an Add adds to the variance; ``None`` if there is none.

    The attribute is a float, so a double that no float equals does not match. If the element is
    absent, it is taken to be the operator's default. Measured on onnxruntime 1.32.0; earlier
    releases matched any Add, and used the default unless the second operand was constant.
    """
    names = [name for name in add.inputs if graph.constant(name) is not None]
    sizes = [graph.dims_of(name) for name in names]
    if len(names) != 1 or sizes[0] is None or any(dim != 1 for dim in sizes[0]):
        return None
    value = graph.array(names[0])
    if value is None:
        return _DEFAULT_EPSILON
    epsilon = float(value.ravel()[0])
    with np.errstate(over="ignore"):
        is_float = float(np.float32(epsilon)) == epsilon
    return epsilon if is_float else None


def put_stash_type(graph: Graph, norm: Node) -> None:
    """Make a normalization compute in double if its scale is double."""
    if graph.elem_type_of(norm.inputs[1]) == DOUBLE:
        put(norm, "stash_type", DOUBLE)


def is_float_op(
    graph: Graph, node: Node, op_type: str, versions: frozenset[int], num_inputs: int = 9
) -> bool:
    """Whether a node is an operator with a kernel and its first inputs are floats."""
    if not is_op(node, op_type, versions) or not has_kernel(graph, node):
        return False
    return all(graph.elem_type_of(name) in FLOATS for name in node.inputs[:num_inputs])


# --------------------------------------------------------------------------------------------------
# The nodes of an RMS normalization become SimplifiedLayerNormalization.
#
# onnxruntime/core/optimizer/layer_norm_fusion.cc, ``SimplifiedLayerNormFusion``. Its patterns with
# casts inside apply to other providers only, and are omitted.


_STEPS = (("ReduceMean", MEAN), ("Add", ARITHMETIC), ("Sqrt", ROOT), ("Div", ARITHMETIC))


def fuse_simplified_layer_norm(graph: Graph) -> bool:
    """Replace the square, mean, epsilon, root, quotient and scale."""
    changed: list[bool] = []
    for node in walk(graph, fuse_simplified_layer_norm, changed):
        is_square = is_float_op(graph, node, "Pow", POWER) and has_single_reader(graph, node)
        if is_square and is_number(graph, node.inputs[1], 2.0):
            changed.append(_fuse_simplified_layer_norm(graph, node))
    return any(changed)


def _fuse_simplified_layer_norm(graph: Graph, power: Node) -> bool:
    nodes = [power]
    for op_type, versions in _STEPS:
        reader = child_of(graph, nodes[-1], op_type)
        count = 1 if op_type == "ReduceMean" else 9
        if reader is None or not is_float_op(graph, reader, op_type, versions, count):
            return False
        if not has_single_reader(graph, reader):
            return False
        nodes.append(reader)
    # The quotient divides what was squared, or the root belongs to another value.
    if nodes[-1].inputs[0] != power.inputs[0]:
        return False
    mul = graph.children(nodes[-1])[0]
    if not is_float_op(graph, mul, "Mul", ARITHMETIC) or last_axes(graph, nodes[1]) != [-1]:
        return False
    scale = vector_of(graph, mul.inputs)
    epsilon = epsilon_of(graph, nodes[2])
    if scale is None or epsilon is None:
        return False
    op_type = "SimplifiedLayerNormalization"
    fused = add_node(graph, NewNode(op_type, [power.inputs[0], scale], (), "", op_type))
    put(fused, "epsilon", epsilon)
    put_stash_type(graph, fused)
    replace_chain(graph, [*nodes, mul], fused)
    return True


# --------------------------------------------------------------------------------------------------
# A residual Add and the LayerNormalization after it become SkipLayerNormalization.
#
# onnxruntime/core/optimizer/skip_layer_norm_fusion.cc and bias_skip_layer_norm_fusion.cc. The Add
# must have no other reader; an Add of a bias before it is fused too.


_ADD = frozenset({7, 13, 14})
_TYPES = (FLOAT, FLOAT16)
_RANK = 3
_EPSILON = 1e-5
"""Default of LayerNormalization's attribute in onnxruntime's own schema."""
_NUM_INPUTS = 4
"""Input, skip, gamma and beta; an optional bias follows."""


def fuse_skip_layer_norm(graph: Graph) -> bool:
    """Fuse residual Adds, and the Add of a bias before them if there is one."""
    changed: list[bool] = []
    for node in walk(graph, fuse_skip_layer_norm, changed):
        if is_op(node, "LayerNormalization", {1, 17}) and has_kernel(graph, node):
            changed.append(_fuse_skip_layer_norm(graph, node))
    return any(changed)


def _fuse_skip_layer_norm(graph: Graph, norm: Node) -> bool:
    total = graph.parent(norm, 0)
    if total is None or not _is_residual(graph, total) or not _has_types(graph, norm):
        return False
    if integer(norm, "axis", -1) not in (-1, _RANK - 1):
        return False
    inputs = [*total.inputs, norm.inputs[1], norm.input_at(2)]
    nodes = [total, norm]
    for index in (0, 1):
        # The kernel has one bias, so only the first Add of a bias is fused.
        biased = graph.parent(total, index)
        if biased is not None and _adds_bias(graph, biased):
            inputs[index] = biased.inputs[0]
            inputs.append(biased.inputs[1])
            nodes.insert(0, biased)
            break
    op_type = "SkipLayerNormalization"
    fused = add_node(graph, NewNode(op_type, inputs, (), MICROSOFT, op_type))
    put(fused, "epsilon", number(norm, "epsilon", _EPSILON))
    replace_chain(graph, nodes, fused)
    return True


def _has_types(graph: Graph, node: Node) -> bool:
    return all(graph.elem_type_of(name) in _TYPES for name in node.inputs if name)


def _is_residual(graph: Graph, add: Node) -> bool:
    """Whether an Add has one reader and two operands of rank 3 with equal known dims."""
    if not is_op(add, "Add", _ADD) or not has_single_reader(graph, add):
        return False
    one, other = (graph.dims_of(name) for name in add.inputs)
    return _has_types(graph, add) and has_kernel(graph, add) and _are_equal(one, other)


def _are_equal(one: Dims | None, other: Dims | None) -> bool:
    if one is None or other is None or len(one) != _RANK or len(other) != _RANK:
        return False
    return all(a == b and a is not None for a, b in zip(one, other, strict=True))


def _adds_bias(graph: Graph, add: Node) -> bool:
    """Whether a node with one reader adds a constant vector to a tensor of rank 3."""
    if not is_op(add, "Add", _ADD) or not has_single_reader(graph, add):
        return False
    data, bias = (graph.dims_of(name) for name in add.inputs)
    if not is_constant(graph, add.inputs[1]) or not bias or len(bias) != 1:
        return False
    return data is not None and len(data) == _RANK and bias[0] == data[-1]


def fuse_bias_skip_layer_norm(graph: Graph) -> bool:
    """Fuse the Add of a bias after a MatMul into the SkipLayerNormalization after it."""
    changed: list[bool] = []
    for node in walk(graph, fuse_bias_skip_layer_norm, changed):
        has_no_bias = len(node.inputs) == _NUM_INPUTS and node.domain == MICROSOFT
        if node.op_type == "SkipLayerNormalization" and has_no_bias:
            changed.append(_fuse_bias(graph, node))
    return any(changed)


def _fuse_bias(graph: Graph, norm: Node) -> bool:
    for index in (0, 1):
        add = graph.parent(norm, index)
        product_index = None if add is None else _product_index(graph, add)
        if add is None or product_index is None:
            continue
        inputs = [*norm.inputs, add.inputs[1 - product_index]]
        inputs[index] = add.inputs[product_index]
        fused = add_node(
            graph,
            NewNode(norm.op_type, inputs, (), MICROSOFT, norm.name, dict(norm.attributes)),
        )
        replace_chain(graph, [add, norm], fused)
        return True
    return False


def _product_index(graph: Graph, add: Node) -> int | None:
    """The index of an Add's operand that is a MatMul, if the other is a constant vector."""
    if not is_op(add, "Add", _ADD) or not has_single_reader(graph, add):
        return None
    for index in (1, 0):
        product, bias = graph.parent(add, index), add.inputs[1 - index]
        is_product = product is not None and product.op_type == "MatMul" and not product.domain
        if is_product and rank_of(graph, bias) == 1 and is_constant(graph, bias):
            return index
    return None
