"""A Reshape whose target is computed from its own input's shape gets a constant target.

Source: onnxruntime/core/optimizer/reshape_fusion.cc. A dim that is copied becomes 0, one unknown
dim -1; Reshapes in a row with known outputs become one.
"""

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    has_single_reader,
    integers_of,
    is_op,
    known_size,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.passes.element_paths import (
    is_one_element,
    shape_gathered,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_array,
    add_node,
    remove_upwards,
    replace_chain,
)

_RESHAPE = frozenset({5, 13, 14, 19, 21, 23, 24, 25})
_CONCAT = frozenset({1, 4, 11, 13})
_SQUEEZE = frozenset({1, 11, 13, 21, 23, 24, 25})


def fuse_reshapes(graph: Graph) -> bool:
    """Both fusions on every Reshape; true if any was made."""
    changed: list[bool] = []
    for node in walk(graph, fuse_reshapes, changed):
        if _is_plain_reshape(node):
            changed.append(_fold_target(graph, node))
            changed.append(_merge_row(graph, node))
    return any(changed)


def _fold_target(graph: Graph, reshape: Node) -> bool:
    concat = graph.parent(reshape, 1)
    if concat is None or not is_op(concat, "Concat", _CONCAT):
        return False
    if not has_single_reader(graph, concat):
        return False
    target = _target(graph, reshape, concat)
    if target is None or target.count(-1) > 1:
        return False
    for parent in [graph.parent(concat, place) for place in range(len(concat.inputs))]:
        if parent is not None and parent.index in graph.nodes:
            remove_upwards(graph, parent)
    graph.remove(concat)
    add_array(graph, concat.outputs[0], np.array(target, np.int64))
    return True


def _target(graph: Graph, reshape: Node, concat: Node) -> list[int] | None:
    """The constant target, as far as every part of the Concat is understood."""
    target: list[int] = []
    for place, name in enumerate(concat.inputs):
        constant = integers_of(graph, name)
        if constant is not None:
            target.extend(constant)
        elif shape_gathered(graph, concat, place, (reshape.inputs[0], len(target))):
            target.append(0)
        elif is_one_element(graph, concat, place, reshape.inputs[0]):
            target.append(-1)
        else:
            return None
    return target


def _merge_row(graph: Graph, reshape: Node) -> bool:
    row = [reshape]
    while has_single_reader(graph, row[-1]):
        following = graph.children(row[-1])[0]
        if not _is_reshaping(following) or known_size(graph, following.outputs[0]) is None:
            break
        if following.inputs[0] != row[-1].outputs[0]:
            break
        row.append(following)
    if len(row) == 1:
        return False
    dims = [dim for dim in graph.dims_of(row[-1].outputs[0]) or () if isinstance(dim, int)]
    shape = add_array(
        graph, graph.fresh_name(f"{reshape.name}_new_shape"), np.array(dims, np.int64)
    )
    made = add_node(
        graph,
        NewNode("Reshape", [reshape.inputs[0], shape], (), "", f"{reshape.name}_new_reshape"),
    )
    replace_chain(graph, row, made)
    return True


def _is_reshaping(node: Node) -> bool:
    return (
        _is_plain_reshape(node)
        or is_op(node, "Squeeze", _SQUEEZE)
        or is_op(node, "Unsqueeze", _SQUEEZE)
    )


def _is_plain_reshape(node: Node) -> bool:
    """A 0 in the target stands for the input's dim."""
    return is_op(node, "Reshape", _RESHAPE) and not integer(node, "allowzero")
