"""Activations that exporters write out: SiLU, GELU, Mish, softplus, GLU, and rsqrt.

A network that spells one of these out itself keeps what its own steps keep; the file does not tell
the two apart, and most networks call the framework's.
"""

from collections.abc import Iterator
from math import pi, sqrt

from onnxmem.model.graph import Node
from onnxmem.ops.registry import lookup
from onnxmem.runtimes.torch.composites.rewriting import Match, Sight
from onnxmem.runtimes.torch.framework import GLU, RSQRT

_HALVES = 2


def gated(sight: Sight) -> Iterator[Match]:
    """Find ``x * Sigmoid(x)`` (SiLU), ``a * Sigmoid(b)`` of two halves (GLU) and Mish."""
    for node in sight.graph.nodes:
        if node.onnx_op != "Mul":
            continue
        for data, gate in sight.operands(node):
            found = _silu(sight, node, data, gate) or _mish(sight, node, data, gate)
            found = found or _glu(sight, node, data, gate)
            if found is not None:
                yield found


def _silu(sight: Sight, node: Node, data: str, gate: str) -> Match | None:
    """``x * Sigmoid(x)``: the backward formula reads ``x`` alone."""
    sigmoid = sight.maker(gate, "Sigmoid")
    if sigmoid is None or sigmoid.inputs != (data,):
        return None
    return Match((sigmoid, node), lookup("Swish"), (data,))


def _mish(sight: Sight, node: Node, data: str, gate: str) -> Match | None:
    """``x * Tanh(Softplus(x))``."""
    tanh = sight.maker(gate, "Tanh")
    softplus = None if tanh is None else sight.maker(tanh.inputs[0], "Softplus")
    if tanh is None or softplus is None or softplus.inputs != (data,):
        return None
    return Match((softplus, tanh, node), lookup("Mish"), (data,))


def _glu(sight: Sight, node: Node, data: str, gate: str) -> Match | None:
    """The first half of a Split times the Sigmoid of the second, both read nowhere else."""
    sigmoid = sight.maker(gate, "Sigmoid")
    split = None if sigmoid is None else sight.maker(sigmoid.inputs[0], "Split")
    if split is None or sigmoid is None or len(split.writes) != _HALVES:
        return None
    if split.outputs != (data, sigmoid.inputs[0]) or sight.reads[data] != 1:
        return None
    return Match((split, sigmoid, node), GLU, split.inputs[:1])


def rsqrts(sight: Sight) -> Iterator[Match]:
    """Find ``1 / Sqrt(x)``, which keeps its result alone."""
    for node in sight.graph.nodes:
        under = ""
        if node.onnx_op == "Reciprocal":
            under = node.inputs[0]
        elif node.onnx_op == "Div" and sight.is_number(node.inputs[0], 1):
            under = node.inputs[1]
        root = sight.maker(under, "Sqrt")
        if root is not None:
            yield Match((root, node), RSQRT, root.inputs)


def softpluses(sight: Sight) -> Iterator[Match]:
    """Find ``Where(x * beta > threshold, x, Softplus(x * beta) / beta)``; beta may be left out."""
    for node in sight.graph.nodes:
        if node.onnx_op != "Where":
            continue
        condition, data, smooth = node.inputs
        greater, divided = sight.maker(condition, "Greater"), sight.maker(smooth, "Div")
        softplus = sight.maker(smooth if divided is None else divided.inputs[0], "Softplus")
        if greater is None or softplus is None or greater.inputs[0] != softplus.inputs[0]:
            continue
        if not sight.is_number(greater.inputs[1]):
            continue
        scaling = sight.maker(softplus.inputs[0], "Mul", reads=2)
        if data not in (softplus.inputs if scaling is None else scaling.inputs):
            continue
        steps = (scaling, softplus, divided, greater, node)
        nodes = tuple(step for step in steps if step is not None)
        yield Match(nodes, lookup("Softplus"), (data,))


def elus(sight: Sight) -> Iterator[Match]:
    """Find an Elu between factors of 1, as ``torch.export`` writes its scales out."""
    for node in sight.graph.nodes:
        before = None if node.onnx_op != "Elu" else sight.maker(node.inputs[0], "Mul")
        data = None if before is None else sight.scaled(before, 1)
        after = sight.readers.get(node.outputs[0])
        if before is None or data is None or after is None or sight.reads[node.outputs[0]] != 1:
            continue
        if sight.scaled(after, 1) == node.outputs[0]:
            yield Match((before, node, after), node.operator, (data,))


def clamps(sight: Sight) -> Iterator[Match]:
    """Find ``Min(Max(x, low), high)`` by two numbers."""
    for node in sight.graph.nodes:
        if node.onnx_op != "Min":
            continue
        for name, high in sight.operands(node):
            larger = sight.maker(name, "Max")
            for data, low in () if larger is None else sight.operands(larger):
                if larger is not None and sight.is_number(low) and sight.is_number(high):
                    yield Match((larger, node), lookup("Clip"), (data, low, high))


def gelus(sight: Sight) -> Iterator[Match]:
    """Find ``x / 2 * (1 + Erf(x / sqrt(2)))`` in any order of its products."""
    for erf in sight.graph.nodes:
        if erf.onnx_op != "Erf":
            continue
        scaling = sight.makers.get(erf.inputs[0])
        data = None if scaling is None else sight.scaled(scaling, 1 / sqrt(2))
        if scaling is None or data is None or sight.reads[erf.inputs[0]] != 1:
            continue
        rest = _halved_product(sight, data, erf.outputs[0])
        if rest:
            yield Match((scaling, erf, *rest), lookup("Gelu"), (data,))


def tanh_gelus(sight: Sight) -> Iterator[Match]:
    """Find GELU by tanh as an exporter writes the framework's: the cube as two products.

    Written out with Pow it is the network's own, and stays as it is.
    """
    for tanh in sight.graph.nodes:
        if tanh.onnx_op != "Tanh":
            continue
        outer = sight.maker(tanh.inputs[0], "Mul")
        total = None if outer is None else sight.scaled(outer, sqrt(2 / pi))
        cubic = None if total is None else _cubic(sight, total)
        if outer is None or cubic is None:
            continue
        data, nodes = cubic
        rest = _halved_product(sight, data, tanh.outputs[0])
        if rest:
            yield Match((*nodes, outer, tanh, *rest), lookup("Gelu"), (data,))


def _cubic(sight: Sight, total: str) -> tuple[str, tuple[Node, ...]] | None:
    """``x + 0.044715 * (x * (x * x))``: say ``x`` and the nodes."""
    add = sight.maker(total, "Add")
    for data, term in () if add is None else sight.operands(add):
        scaling = sight.maker(term, "Mul")
        cube = None if scaling is None else sight.scaled(scaling, 0.044715)
        product = None if cube is None else sight.maker(cube, "Mul")
        if add is None or scaling is None or product is None:
            continue
        for one, square in sight.operands(product):
            squaring = sight.maker(square, "Mul")
            if one == data and squaring is not None and squaring.inputs == (data, data):
                return data, (squaring, product, scaling, add)
    return None


def _halved_product(sight: Sight, data: str, curve: str) -> tuple[Node, ...]:
    """The nodes of ``data * (1 + curve) / 2`` from the curve on, in any order; none if it is not.

    One of the products may be of ``data`` alone: ``(data / 2) * (1 + curve)``.
    """
    reader = _only_reader(sight, curve)
    if reader is None or reader.onnx_op != "Add":
        return ()
    if not any(sight.is_number(other, 1) for _, other in sight.operands(reader)):
        return ()
    nodes, has_data, has_half = [reader], False, False
    while not (has_data and has_half):
        value = nodes[-1].outputs[0]
        reader = _only_reader(sight, value)
        if reader is None:
            return ()
        other = next((o for one, o in sight.operands(reader) if one == value), "")
        half = sight.makers.get(other)
        if not has_half and sight.scaled(reader, 0.5) == value:
            has_half = True
        elif reader.onnx_op == "Mul" and not has_data and other == data:
            has_data = True
        elif reader.onnx_op == "Mul" and half is not None and sight.scaled(half, 0.5) == data:
            has_data = has_half = True
            nodes.insert(0, half)
        else:
            return ()
        nodes.append(reader)
    return tuple(nodes)


def _only_reader(sight: Sight, name: str) -> Node | None:
    return sight.readers[name] if sight.reads[name] == 1 and name in sight.readers else None
