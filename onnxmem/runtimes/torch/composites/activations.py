"""Activations that exporters write as several nodes: SiLU, GELU, Mish, softplus, GLU, and rsqrt.

A network that computes one of these with operators of its own saves what those save; the file does
not show which it does, and most networks call the framework's.
"""

from collections.abc import Iterator
from math import pi, sqrt

from onnxmem.model.graph import FX_NODE, Node
from onnxmem.model.module_paths import modules_of
from onnxmem.ops.registry import lookup
from onnxmem.runtimes.torch.composites.rewriting import GraphView, Match
from onnxmem.runtimes.torch.framework import GLU, RSQRT, SQUARE, is_idle_cast

_HALVES = 2


def gated(view: GraphView) -> Iterator[Match]:
    """Find ``x * Sigmoid(x)`` (SiLU), ``a * Sigmoid(b)`` of two halves (GLU) and Mish."""
    for node in view.graph.nodes:
        if node.onnx_op != "Mul":
            continue
        for data, gate in view.operands(node):
            found = _silu(view, node, data, gate) or _mish(view, node, data, gate)
            found = found or _glu(view, node, data, gate)
            if found is not None:
                yield found


def _silu(view: GraphView, node: Node, data: str, gate: str) -> Match | None:
    """``x * Sigmoid(x)``: the backward formula reads ``x`` alone."""
    sigmoid = view.producer(gate, "Sigmoid")
    if sigmoid is None or sigmoid.inputs != (data,):
        return None
    return Match((sigmoid, node), lookup("Swish"), (data,))


def _mish(view: GraphView, node: Node, data: str, gate: str) -> Match | None:
    """``x * Tanh(Softplus(x))``."""
    tanh = view.producer(gate, "Tanh")
    softplus = None if tanh is None else view.producer(tanh.inputs[0], "Softplus")
    if tanh is None or softplus is None or softplus.inputs != (data,):
        return None
    return Match((softplus, tanh, node), lookup("Mish"), (data,))


def _glu(view: GraphView, node: Node, data: str, gate: str) -> Match | None:
    """The first half of a Split times the Sigmoid of the second, both read nowhere else."""
    sigmoid = view.producer(gate, "Sigmoid")
    split = None if sigmoid is None else view.producer(sigmoid.inputs[0], "Split")
    if split is None or sigmoid is None or len(split.writes) != _HALVES:
        return None
    if split.outputs != (data, sigmoid.inputs[0]) or view.reads[data] != 1:
        return None
    return Match((split, sigmoid, node), GLU, split.inputs[:1])


def rsqrts(view: GraphView) -> Iterator[Match]:
    """Find ``1 / Sqrt(x)``, which saves only its result."""
    for node in view.graph.nodes:
        under = ""
        if node.onnx_op == "Reciprocal":
            under = node.inputs[0]
        elif node.onnx_op == "Div" and view.is_number(node.inputs[0], 1):
            under = node.inputs[1]
        root = view.producer(under, "Sqrt")
        if root is not None:
            yield Match((root, node), RSQRT, root.inputs)


def squares(view: GraphView) -> Iterator[Match]:
    """Find ``x * x`` that stands for ``x.square()``."""
    # The script exporter writes `square` as a Mul (`square` of torch/onnx/symbolic_opset9.py),
    # torch.export as Pow. The framework runs it as `pow`, which saves its operand and which
    # autocast runs in float32.
    for node in view.graph.nodes:
        if node.onnx_op == "Mul" and node.inputs[0] == node.inputs[1]:
            reader = _only_reader(view, node.outputs[0])
            is_cast = reader is not None and is_idle_cast(view.graph, reader)
            if is_cast or _is_of_expression(view, node):
                yield Match((node,), SQUARE, node.inputs[:1])


def _is_of_expression(view: GraphView, node: Node) -> bool:
    """Whether the script exporter wrote a product of a tensor that has no name in the network.

    A network that multiplies ``x`` by itself has a name for it: it is an argument of ``forward``,
    or read elsewhere too. ``relu(x).square()`` needs none.
    """
    name = node.inputs[0]
    producer = view.producers.get(name)
    is_scripted = "/" in node.name and FX_NODE not in node.metadata
    if producer is None or not is_scripted or view.reads[name] > len(node.inputs):
        return False
    return modules_of(producer) == modules_of(node)


def softpluses(view: GraphView) -> Iterator[Match]:
    """Find ``Where(x * beta > threshold, x, Softplus(x * beta) / beta)``; beta may be left out."""
    for node in view.graph.nodes:
        if node.onnx_op != "Where":
            continue
        condition, data, smooth = node.inputs
        greater, divided = view.producer(condition, "Greater"), view.producer(smooth, "Div")
        softplus = view.producer(smooth if divided is None else divided.inputs[0], "Softplus")
        if greater is None or softplus is None or greater.inputs[0] != softplus.inputs[0]:
            continue
        if not view.is_number(greater.inputs[1]):
            continue
        scaling = view.producer(softplus.inputs[0], "Mul", reads=2)
        if data not in (softplus.inputs if scaling is None else scaling.inputs):
            continue
        steps = (scaling, softplus, divided, greater, node)
        nodes = tuple(step for step in steps if step is not None)
        yield Match(nodes, lookup("Softplus"), (data,))


def elus(view: GraphView) -> Iterator[Match]:
    """Find an Elu between factors of 1: torch.export writes its scales as nodes."""
    for node in view.graph.nodes:
        before = None if node.onnx_op != "Elu" else view.producer(node.inputs[0], "Mul")
        data = None if before is None else view.scaled(before, 1)
        after = view.readers.get(node.outputs[0])
        if before is None or data is None or after is None or view.reads[node.outputs[0]] != 1:
            continue
        if view.scaled(after, 1) == node.outputs[0]:
            yield Match((before, node, after), node.operator, (data,))


def clamps(view: GraphView) -> Iterator[Match]:
    """Find ``Min(Max(x, low), high)`` by two numbers."""
    for node in view.graph.nodes:
        if node.onnx_op != "Min":
            continue
        for name, high in view.operands(node):
            larger = view.producer(name, "Max")
            for data, low in () if larger is None else view.operands(larger):
                if larger is not None and view.is_number(low) and view.is_number(high):
                    yield Match((larger, node), lookup("Clip"), (data, low, high))


# The matchers of GELU tell whether the arithmetic in the file is that function, in whatever form an
# exporter wrote it: the training step then runs PyTorch's own kernel, whatever a graph optimizer
# would do. ``fuse_gelu`` of the emulated onnxruntime optimizer has others, because it must fire
# exactly when onnxruntime's pass does, on a graph that earlier passes changed.
def gelus(view: GraphView) -> Iterator[Match]:
    """Find ``x / 2 * (1 + Erf(x / sqrt(2)))`` in any order of its products."""
    for erf in view.graph.nodes:
        if erf.onnx_op != "Erf":
            continue
        scaling = view.producers.get(erf.inputs[0])
        data = None if scaling is None else view.scaled(scaling, 1 / sqrt(2))
        if scaling is None or data is None or view.reads[erf.inputs[0]] != 1:
            continue
        rest = _halved_product(view, data, erf.outputs[0])
        if rest:
            yield Match((scaling, erf, *rest), lookup("Gelu"), (data,))


def tanh_gelus(view: GraphView) -> Iterator[Match]:
    """Find GELU by tanh as exporters write the framework's: the cube as two Muls.

    With Pow it is the network's own, and is not replaced.
    """
    for tanh in view.graph.nodes:
        if tanh.onnx_op != "Tanh":
            continue
        outer = view.producer(tanh.inputs[0], "Mul")
        total = None if outer is None else view.scaled(outer, sqrt(2 / pi))
        cubic = None if total is None else _cubic(view, total)
        if outer is None or cubic is None:
            continue
        data, nodes = cubic
        rest = _halved_product(view, data, tanh.outputs[0])
        if rest:
            yield Match((*nodes, outer, tanh, *rest), lookup("Gelu"), (data,))


def _cubic(view: GraphView, total: str) -> tuple[str, tuple[Node, ...]] | None:
    """``x + 0.044715 * (x * (x * x))``: return ``x`` and the nodes."""
    # Exporters write both operands of an Add and a Mul in either order, so each is tried. ``data``
    # must be the same tensor in all three places, or the curve is not that of GELU.
    add = view.producer(total, "Add")
    for data, term in () if add is None else view.operands(add):
        scaling = view.producer(term, "Mul")
        cube = None if scaling is None else view.scaled(scaling, 0.044715)
        product = None if cube is None else view.producer(cube, "Mul")
        if add is None or scaling is None or product is None:
            continue
        for one, square in view.operands(product):
            squaring = view.producer(square, "Mul")
            if one == data and squaring is not None and squaring.inputs == (data, data):
                return data, (squaring, product, scaling, add)
    return None


def _halved_product(view: GraphView, data: str, curve: str) -> tuple[Node, ...]:
    """The nodes of ``data * (1 + curve) / 2`` from the curve on, in any order; else empty.

    One of the Muls may read only ``data``: ``(data / 2) * (1 + curve)``.
    """
    # Invariant: the last node of `nodes` computes 1 + curve times what the two flags say, and
    # nothing else reads what is between.
    reader = _only_reader(view, curve)
    if reader is None or reader.onnx_op != "Add":
        return ()
    if not any(view.is_number(other, 1) for _, other in view.operands(reader)):
        return ()
    nodes, has_data, has_half = [reader], False, False
    while not (has_data and has_half):
        value = nodes[-1].outputs[0]
        reader = _only_reader(view, value)
        if reader is None:
            return ()
        other = next((o for one, o in view.operands(reader) if one == value), "")
        half = view.producers.get(other)
        if not has_half and view.scaled(reader, 0.5) == value:
            has_half = True
        elif reader.onnx_op == "Mul" and not has_data and other == data:
            has_data = True
        elif reader.onnx_op == "Mul" and half is not None and view.scaled(half, 0.5) == data:
            has_data = has_half = True
            nodes.insert(0, half)
        else:
            return ()
        nodes.append(reader)
    return tuple(nodes)


def _only_reader(view: GraphView, name: str) -> Node | None:
    return view.readers[name] if view.reads[name] == 1 and name in view.readers else None
