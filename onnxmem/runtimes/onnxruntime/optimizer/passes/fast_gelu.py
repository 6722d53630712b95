"""Gelu by way of tanh, in the ways that exporters write it, becomes FastGelu.

Source: onnxruntime/core/optimizer/fast_gelu_fusion.cc:
x * (1 + tanh(0.7978845608 * x * (1 + 0.044715 * x * x))) / 2, or with a power of three.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    FLOAT16,
    MICROSOFT,
    has_single_reader,
    is_number,
    is_op,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

_ARITHMETIC = frozenset({7, 13, 14})
_POW = frozenset({7, 12, 13, 15})
_CUBIC, _SCALE = 0.044714998453855515, 0.7978845834732056
_Match = tuple[list[Node], str]


def fuse_fast_gelu(graph: Graph) -> bool:
    """Replace the whole expression by FastGelu."""
    changed: list[bool] = []
    for node in walk(graph, fuse_fast_gelu, changed):
        if node.domain or not has_kernel(graph, node) or not has_single_reader(graph, node):
            continue
        first = _factored(graph, node) or _powered(graph, node)
        match = None if first is None else _tanh_part(graph, *first)
        if match is not None:
            made = add_node(graph, NewNode("FastGelu", [match[1]], (), MICROSOFT, "GPT2Gelu"))
            replace_chain(graph, match[0], made)
            changed.append(True)
    return any(changed)


def _factored(graph: Graph, node: Node) -> _Match | None:
    """0.044715 * x, times x, plus 1, times 0.79788 * x."""
    data = _times(graph, node, _CUBIC)
    square = None if data is None else _reader(graph, node, "Mul", _ARITHMETIC)
    if data is None or square is None or _beside(square, node) != data:
        return None
    plus = _reader(graph, square, "Add", _ARITHMETIC)
    if plus is None or not is_number(graph, _beside(plus, square), 1.0):
        return None
    product = _reader(graph, plus, "Mul", _ARITHMETIC)
    scaled = None if product is None else graph.makers.get(_beside(product, plus))
    if product is None or scaled is None or not has_single_reader(graph, scaled):
        return None
    if _times(graph, scaled, _SCALE) != data:
        return None
    return [node, square, plus, scaled, product], data


def _powered(graph: Graph, node: Node) -> _Match | None:
    """X ** 3, times 0.044715, plus x, times 0.79788."""
    if not is_op(node, "Pow", _POW) or not is_number(graph, node.inputs[1], 3.0):
        return None
    data = node.inputs[0]
    cubic = _reader(graph, node, "Mul", _ARITHMETIC)
    if cubic is None or not is_number(graph, _beside(cubic, node), _CUBIC):
        return None
    plus = _reader(graph, cubic, "Add", _ARITHMETIC)
    if plus is None or _beside(plus, cubic) != data:
        return None
    product = _reader(graph, plus, "Mul", _ARITHMETIC)
    if product is None or not is_number(graph, _beside(product, plus), _SCALE):
        return None
    return [node, cubic, plus, product], data


def _tanh_part(graph: Graph, nodes: list[Node], data: str) -> _Match | None:
    """tanh, plus 1, times x / 2; the product is no graph output."""
    tanh = _reader(graph, nodes[-1], "Tanh", frozenset({6, 13}))
    plus = None if tanh is None else _reader(graph, tanh, "Add", _ARITHMETIC)
    if tanh is None or plus is None or not is_number(graph, _beside(plus, tanh), 1.0):
        return None
    product = _reader(graph, plus, "Mul", _ARITHMETIC)
    is_wanted = product is None or graph.is_output(product)
    if product is None or is_wanted or graph.elem_type_of(data) not in (FLOAT, FLOAT16):
        return None
    half = graph.makers.get(_beside(product, plus))
    if half is None or not has_single_reader(graph, half) or _times(graph, half, 0.5) != data:
        return None
    return [*nodes, tanh, plus, half, product], data


def _times(graph: Graph, node: Node, factor: float) -> str | None:
    """What a node multiplies by a number."""
    if not is_op(node, "Mul", _ARITHMETIC):
        return None
    for place in (0, 1):
        if is_number(graph, node.inputs[1 - place], factor):
            return node.inputs[place]
    return None


def _reader(graph: Graph, node: Node, op_type: str, versions: frozenset[int]) -> Node | None:
    if not has_single_reader(graph, node):
        return None
    reader = graph.children(node)[0]
    return reader if is_op(reader, op_type, versions) and has_kernel(graph, reader) else None


def _beside(node: Node, maker: Node) -> str:
    return node.inputs[1] if node.inputs[0] == maker.outputs[0] else node.inputs[0]
