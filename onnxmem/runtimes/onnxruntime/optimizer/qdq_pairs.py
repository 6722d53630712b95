"""Passes that add, move, change and remove pairs of QuantizeLinear and DequantizeLinear.

The passes that replace the operators between them are in ``qdq_units``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx.helper

from onnxmem.runtimes.onnxruntime.optimizer.graph import (
    Attributes,
    Edge,
    Graph,
    Node,
    TensorType,
    execution_order,
    walk,
)
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BYTES,
    FLOAT,
    INT8,
    INT32,
    UINT8,
    has_single_reader,
    integer,
    is_constant,
    is_scalar,
    put,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.qdq_units import (
    RANGES,
    SCALE,
    ZERO_POINT,
    elem_type,
    is_dequantize,
    is_quantize,
    same_quantization,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
    redirect,
)

# --------------------------------------------------------------------------------------------------
# Two consecutive pairs of QuantizeLinear and DequantizeLinear become one.
#
# onnxruntime/core/optimizer/double_qdq_pairs_remover.cc (``DoubleQDQPairsRemover``).


# The literal in ``FindNewZeroPointAndScale``. Two usual scales that differ at all differ by more:
# only equal ones leave the constants of the outer pair as they are.
_SAME_SCALE = 1e-20


def remove_double_pairs(graph: Graph) -> bool:
    """Remove the inner two of four nodes; the outer ones get the range that both pairs share.

    There may be several outer DequantizeLinear nodes.
    """
    changed = False
    for node in execution_order(graph):
        if graph.nodes.get(node.index) is node and is_dequantize(node):
            changed |= _remove(graph, node)
    return changed


def _remove(graph: Graph, first: Node) -> bool:
    start = graph.parent(first, 0)
    if start is None or not is_quantize(start):
        return False
    if not has_single_reader(graph, start) or not has_single_reader(graph, first):
        return False
    second = graph.children(first)[0]
    ends = graph.children(second)
    if not is_quantize(second) or graph.is_output(second) or not ends:
        return False
    if not all(is_dequantize(end) for end in ends):
        return False
    # From ``start`` to ``ends`` the value is quantized, dequantized, quantized and dequantized:
    # without the two in the middle the outer ones are a pair, if they quantize with one range.
    pairs = [(start, first), *((second, end) for end in ends)]
    if not all(same_quantization(graph, *pair) for pair in pairs):
        return False
    if not _unite_ranges(graph, (first, second), (*ends, start)):
        return False
    for end in ends:
        graph.set_input(end, 0, start.outputs[0])
    graph.remove(second)
    graph.remove(first)
    return True


def _unite_ranges(graph: Graph, inner: Sequence[Node], outer: Sequence[Node]) -> bool:
    """Give the outer nodes a quantization of the range that both inner ones can represent.

    False if the quantized types differ or are not bytes, or the scales are not float32.
    """
    kinds = {graph.elem_type_of(node.inputs[ZERO_POINT]) for node in inner}
    scales = {graph.elem_type_of(node.inputs[SCALE]) for node in inner}
    if len(kinds) != 1 or not kinds <= BYTES or scales != {FLOAT}:
        return False
    lowest, highest = RANGES[kinds.pop()]
    (step, origin), (other_step, other_origin) = (_parameters(graph, node) for node in inner)
    if origin == other_origin and abs(step - other_step) < _SAME_SCALE:
        return True
    # What passed both pairs was clipped to both ranges: the pair that is left has what they share.
    low = max((lowest - origin) * step, (lowest - other_origin) * other_step)
    high = min((highest - origin) * step, (highest - other_origin) * other_step)
    scale = (high - low) / (highest - lowest)
    zero = min(max(round(lowest - low / scale), lowest), highest) if scale else lowest
    for input_index, value in ((SCALE, scale), (ZERO_POINT, zero)):
        for node in outer:
            _set_parameter(graph, node, input_index, value)
    return True


def _parameters(graph: Graph, node: Node) -> tuple[float, int]:
    """The scale and zero point of a node; both are constant scalars (``same_quantization``)."""
    scale, zero = (graph.array(node.inputs[input_index]) for input_index in (SCALE, ZERO_POINT))
    return (0.0, 0) if scale is None or zero is None else (float(scale.item()), int(zero.item()))


def _set_parameter(graph: Graph, node: Node, input_index: int, value: float) -> None:
    old = graph.array(node.inputs[input_index])
    if old is not None:
        name = graph.fresh_name(f"DoubleQDQRemoved_{node.inputs[input_index]}")
        graph.set_input(node, input_index, add_array(graph, name, np.full_like(old, value)))


# --------------------------------------------------------------------------------------------------
# A DequantizeLinear and the QuantizeLinear that undoes it are removed.
#
# onnxruntime/core/optimizer/qdq_transformer/qdq_final_cleanup.cc (``QDQFinalCleanupTransformer``).
# It removes a QuantizeLinear and the DequantizeLinear after it only with a session option, which is
# off. Two details were measured on onnxruntime 1.31.1: the pair's output must have one reader, and
# an Identity writes a graph output if the value before the pair has other uses.


def drop_pairs(graph: Graph) -> bool:
    """Remove every such pair."""
    changed: list[bool] = []
    for node in walk(graph, drop_pairs, changed):
        if is_dequantize(node) and has_single_reader(graph, node):
            changed.append(_drop(graph, node, graph.children(node)[0]))
    return any(changed)


def _drop(graph: Graph, first: Node, second: Node) -> bool:
    if not is_quantize(second) or not same_quantization(graph, second, first):
        return False
    source, target = first.inputs[0], second.outputs[0]
    is_output = target in graph.outputs
    if len(graph.readers(target)) != (0 if is_output else 1):
        return False
    graph.remove(first)
    graph.remove(second)
    if is_output:
        _write_output(graph, source, target)
    else:
        redirect(graph, target, source)
    return True


def _write_output(graph: Graph, source: str, target: str) -> None:
    """Write a value to a graph output: by its producer if it has no other use, else an Identity."""
    producer = graph.producers.get(source)
    if producer is None or source in graph.outputs or graph.readers(source):
        name = graph.fresh_node_name("QDQFinalCleanupTransformer")
        add_node(graph, NewNode("Identity", [source], [target], "", name))
    else:
        outputs = [target if name == source else name for name in producer.outputs]
        graph.set_outputs(producer, outputs)


# --------------------------------------------------------------------------------------------------
# Pairs of QuantizeLinear and DequantizeLinear are inserted around operators that move elements.
#
# onnxruntime/core/optimizer/qdq_transformer/qdq_propagation.cc (``PropagateQBackward``,
# ``PropagateDQForward``).


_MOVING = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_FIRST_MAX_POOL = 12
_FIRST_RESHAPE = 5
_HAS_OUTPUT_DTYPE = 21
"""Version from which QuantizeLinear has an attribute for its output type."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A read of a value by an input of a node, or the graph output of that name."""

    reader: Node | None
    """``None`` for a graph output."""
    input_index: int


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What the inserted nodes have in common with the node that is propagated."""

    domain: str
    parameters: Sequence[str]
    """The scale, and the zero point if there is one."""
    quantized: Attributes
    """Attributes of the QuantizeLinear."""
    dequantized: Attributes
    """Attributes of the DequantizeLinear."""


def propagate_pairs(graph: Graph) -> bool:
    """Insert pairs before and after operators that can move quantized elements as well."""
    nodes = execution_order(graph)
    changed = False
    for node in nodes:
        for body in node.bodies.values():
            changed |= propagate_pairs(body)
    # All backward moves come before any forward one, each in the order of execution: a pair that
    # one of them inserts is not in ``nodes``, and so is not moved again in this round.
    for node in nodes:
        if is_quantize(node) and _has_constant_scale(graph, node):
            changed |= _backward(graph, node)
    for node in nodes:
        if is_dequantize(node) and _has_constant_scale(graph, node):
            changed |= _forward(graph, node)
    return changed


def _has_constant_scale(graph: Graph, node: Node) -> bool:
    names = [node.inputs[SCALE], node.input_at(ZERO_POINT)]
    return all(is_constant(graph, name) and is_scalar(graph, name) for name in names if name)


def _can_propagate(node: Node) -> bool:
    first = {"MaxPool": _FIRST_MAX_POOL, "Reshape": _FIRST_RESHAPE}.get(node.op_type, 1)
    return node.op_type in _MOVING and not node.domain and node.since_version >= first


def _backward(graph: Graph, quantize: Node) -> bool:
    """Insert a pair before each operator above a QuantizeLinear, while each value has one use."""
    pattern = _pattern(quantize)
    changed = False
    # ``node`` is the next operator above; everything between it and ``quantize`` has its pairs.
    node = _only_producer(graph, quantize)
    while node is not None and _can_propagate(node):
        producer = _only_producer(graph, node)
        if is_dequantize(producer) or (producer is None and not _is_root(graph, node.inputs[0])):
            break
        _insert(graph, pattern, node.inputs[0], [_Use(node, 0)])
        changed = True
        node = producer
    return changed


def _only_producer(graph: Graph, node: Node) -> Node | None:
    """The producer of a node's first input, if nothing else reads that input."""
    producer, name = graph.parent(node, 0), node.inputs[0]
    if producer is None or name in graph.outputs or len(_uses(graph, producer, name)) != 1:
        return None
    return producer


def _is_root(graph: Graph, name: str) -> bool:
    """Whether a value has no producer: a graph input or an initializer."""
    return name in graph.inputs or name in graph.initializers


def _uses(graph: Graph, producer: Node, name: str) -> list[_Use]:
    output_index = producer.outputs.index(name)
    found = [_Use(e.reader, e.input) for e in graph.edges_of(producer) if e.output == output_index]
    return [*found, _Use(None, 0)] if name in graph.outputs else found


def _forward(graph: Graph, dequantize: Node) -> bool:
    """Insert a pair after each operator below a DequantizeLinear, the last branch first."""
    if not has_single_reader(graph, dequantize):
        return False
    pattern = _pattern(dequantize)
    if dequantize.since_version >= _HAS_OUTPUT_DTYPE:
        output_dtype = onnx.helper.make_attribute("output_dtype", elem_type(graph, dequantize))
        pattern.quantized["output_dtype"] = output_dtype
    changed = False
    stack = [graph.children(dequantize)[0]]
    while stack:
        node = stack.pop()
        uses = _uses(graph, node, node.outputs[0]) if _can_propagate(node) else []
        # A value that is quantized already has its pair.
        if not uses or any(is_quantize(use.reader) for use in uses):
            continue
        _insert(graph, pattern, node.outputs[0], uses)
        changed = True
        stack.extend(use.reader for use in uses if use.reader is not None)
    return changed


def _pattern(node: Node) -> _Pattern:
    parameters = [name for name in node.inputs[SCALE:] if name]
    shared = {n: a for n, a in node.attributes.items() if n in ("axis", "block_size")}
    stated = {n: a for n, a in node.attributes.items() if n == "output_dtype" and is_quantize(node)}
    return _Pattern(node.domain, parameters, {**shared, **stated}, shared)


def _insert(graph: Graph, pattern: _Pattern, name: str, uses: Sequence[_Use]) -> None:
    """Insert a QuantizeLinear after a value, and a DequantizeLinear before each of its uses."""
    producer = graph.producers.get(name)
    # The name stays with what is read by others: a graph input is written by nobody, and a graph
    # output gets it from the DequantizeLinear without a reader.
    source = name if producer is None else graph.fresh_name(f"{name}_pre_q")
    middle = graph.fresh_name(f"{name}_q_to_dq")
    quantize = NewNode(
        "QuantizeLinear",
        [source, *pattern.parameters],
        [middle],
        pattern.domain,
        graph.fresh_node_name(f"{name}_q"),
        pattern.quantized,
    )
    if producer is not None:
        outputs = [source if written == name else written for written in producer.outputs]
        graph.set_outputs(producer, outputs)
    add_node(graph, quantize)
    for number, use in enumerate(uses):
        suffix = str(number) if number else ""
        target = name if use.reader is None else graph.fresh_name(f"{name}_post_dq{suffix}")
        node_name = graph.fresh_node_name(f"{name}_dq{suffix}")
        inputs = [middle, *pattern.parameters]
        attributes = pattern.dequantized
        new = NewNode("DequantizeLinear", inputs, [target], pattern.domain, node_name, attributes)
        add_node(graph, new)
        if use.reader is not None:
            graph.set_input(use.reader, use.input_index, target)


# --------------------------------------------------------------------------------------------------
# Float weights and biases are quantized if the data and the output are.
#
# onnxruntime/core/optimizer/qdq_transformer/weight_bias_quantization.cc
# (``WeightBiasQuantization``). All nodes that it adds but the last DequantizeLinear have constant
# inputs, and constant folding removes them.


_OPERATORS = frozenset({"Conv", "ConvTranspose", "Gemm"})
_WEIGHT, _BIAS = 1, 2


def quantize_constants(graph: Graph) -> bool:
    """Quantize the float constants of Conv, ConvTranspose and Gemm with a dequantized input."""
    changed: list[bool] = []
    for node in walk(graph, quantize_constants, changed):
        if node.op_type in _OPERATORS:
            changed.append(_quantize(graph, node))
    return any(changed)


def _quantize(graph: Graph, node: Node) -> bool:
    data, weight = graph.parent(node, 0), graph.parent(node, _WEIGHT)
    if data is None or not is_dequantize(data) or not is_scalar(graph, data.inputs[SCALE]):
        return False
    dequantized = weight if is_dequantize(weight) else None
    if dequantized is None and not _is_float_constant(graph, node.inputs[_WEIGHT]):
        return False
    bias = node.input_at(_BIAS)
    if bias and (not is_constant(graph, bias) or len(graph.dims_of(bias) or ()) != 1):
        return False
    # A weight with a pair leaves only the bias to quantize, whose scale is the product of both
    # scales.
    if dequantized is not None and not (bias and _fits(graph, node, dequantized)):
        return False
    if not _leads_to_quantize(graph, node):
        return False
    scale = dequantized.inputs[SCALE] if dequantized is not None else _add_weight(graph, node)
    if bias:
        _add_bias(graph, node, data.inputs[SCALE], scale)
    return True


def _is_float_constant(graph: Graph, name: str) -> bool:
    """Whether a value is a constant of this very graph, not of one around it."""
    tensor = graph.constant(name) if name in graph.initializers else None
    return tensor is not None and tensor.data_type == FLOAT


def _leads_to_quantize(graph: Graph, node: Node) -> bool:
    """Whether the only reader is a QuantizeLinear, after any number of Relus and Clips."""
    while len(readers := graph.readers(node.outputs[0])) == 1:
        node = readers[0]
        if node.op_type not in {"Relu", "Clip"}:
            return node.op_type == "QuantizeLinear"
    return False


def _fits(graph: Graph, node: Node, weight: Node) -> bool:
    """Whether the weight has one scale, or one for each element of the bias."""
    # ``scale`` is used for the bias too, so it must run along the axis of the output channels.
    scale = weight.inputs[SCALE]
    if is_scalar(graph, scale):
        return True
    if graph.dims_of(scale) != graph.dims_of(node.inputs[_BIAS]) or integer(weight, "block_size"):
        return False
    axis, rank = integer(weight, "axis", 1), rank_of(graph, weight.inputs[0])
    if axis < 0 and rank is None:
        return False
    return axis % (rank or axis + 1) == _axis_of_outputs(node)


def _axis_of_outputs(node: Node) -> int:
    """The axis of the output channels, or output features, of a weight."""
    if node.op_type == "Gemm":
        return 1 - integer(node, "transB")
    return int(node.op_type == "ConvTranspose")


def _add_weight(graph: Graph, node: Node) -> str:
    """Quantize a weight to int8 with one scale, and return the scale's name."""
    source = node.inputs[_WEIGHT]
    value = graph.array(source)
    # Symmetric: the element of the largest magnitude becomes 127 or -127, and 0 stays 0.
    largest = 1.0 if value is None or not value.size else float(np.abs(value).max())
    step = np.array(largest / np.iinfo(np.int8).max, np.float32)
    scale = add_array(graph, graph.fresh_name(f"{node.name}_weight_scale"), step)
    zero = add_array(graph, graph.fresh_name(f"{node.name}_weight_zp"), np.zeros((), np.int8))
    middle = graph.fresh_name(f"{node.name}_weight_q")
    name = graph.fresh_name(f"{node.name}_weight_q")
    add_node(graph, NewNode("QuantizeLinear", [source, scale, zero], [middle], node.domain, name))
    target = graph.fresh_name(f"{node.name}_weight_dq")
    name = graph.fresh_name(f"{node.name}_weight_dq")
    inputs = [middle, scale, zero]
    add_node(graph, NewNode("DequantizeLinear", inputs, [target], node.domain, name))
    dims = graph.dims_of(source)
    graph.types[middle], graph.types[target] = TensorType(INT8, dims), TensorType(FLOAT, dims)
    graph.set_input(node, _WEIGHT, target)
    return scale


def _add_bias(graph: Graph, node: Node, data_scale: str, weight_scale: str) -> None:
    """Quantize a bias to int32; its scale is the product of the other two."""
    scale = _add(graph, node, "Mul", [data_scale, weight_scale], ("_bias_scale", "_scale"))
    quotient = _add(graph, node, "Div", [node.inputs[_BIAS], scale], ("_bias_div", "_bias_div"))
    suffix = "_bias_div_round"
    rounded = _add(graph, node, "Round", [quotient], (suffix, suffix))
    whole = _add(graph, node, "Cast", [rounded], ("_bias_int32", "_bias_int32"))
    put(graph.producers[whole], "to", INT32)
    target = _add(graph, node, "DequantizeLinear", [whole, scale], ("_bias_dq", "_bias_dq"))
    if not is_scalar(graph, weight_scale):
        put(graph.producers[target], "axis", 0)
    graph.set_input(node, _BIAS, target)


def _add(
    graph: Graph, node: Node, op_type: str, inputs: list[str], suffixes: tuple[str, str]
) -> str:
    """Add a node, and return its output.

    :param suffixes: of the output's name and of the node's.
    """
    target = graph.fresh_name(node.name + suffixes[0])
    name = graph.fresh_node_name(node.name + suffixes[1])
    add_node(graph, NewNode(op_type, inputs, [target], node.domain, name))
    return target


# --------------------------------------------------------------------------------------------------
# A constant number beside a dequantized branch of a Where becomes a quantized number.
#
# onnxruntime/core/optimizer/qdq_transformer/where_dummy_dq.cc (``WhereDummyDq``).


_BRANCHES = (1, 2)


def add_dummy_dequantize(graph: Graph) -> bool:
    """Insert a DequantizeLinear before each such number, so that the Where is a QDQ unit."""
    changed: list[bool] = []
    for node in walk(graph, add_dummy_dequantize, changed):
        if node.op_type == "Where":
            changed.extend(_dequantize(graph, node, input_index) for input_index in _BRANCHES)
    return any(changed)


def _dequantize(graph: Graph, node: Node, input_index: int) -> bool:
    number = graph.constant(node.inputs[input_index])
    other = graph.parent(node, sum(_BRANCHES) - input_index)
    if number is None or number.dims or number.data_type != FLOAT:
        return False
    readers = graph.readers(node.outputs[0])
    if other is None or not is_dequantize(other) or len(readers) != 1:
        return False
    if not is_quantize(readers[0]) or not _has_type_of_result(graph, other, readers[0]):
        return False
    _add_dequantized(graph, node, input_index, other)
    return True


def _has_type_of_result(graph: Graph, other: Node, end: Node) -> bool:
    """Whether the other branch has constant parameters, and the quantized type of the result."""
    names = [other.input_at(index) for index in (SCALE, ZERO_POINT)]
    if any(graph.constant(name) is None for name in names):
        return False
    is_float = graph.elem_type_of(names[0]) == FLOAT
    return is_float and elem_type(graph, other) == elem_type(graph, end)


def _add_dequantized(graph: Graph, node: Node, input_index: int, other: Node) -> None:
    kind = elem_type(graph, other)
    base = f"{node.name}_dummy"
    value = add_absent(graph, graph.fresh_name(f"{base}_xq"), kind, ())
    scale = add_array(graph, graph.fresh_name(f"{base}_scale"), np.ones((), np.float32))
    zero = add_absent(graph, graph.fresh_name(f"{base}_zp"), kind, ())
    target, name = (graph.fresh_name(f"{base}_dq") for _ in range(2))
    new = NewNode("DequantizeLinear", [value, scale, zero], [target], other.domain, name)
    add_node(graph, new)
    graph.types[target] = TensorType(FLOAT, ())
    graph.set_input(node, input_index, target)


# --------------------------------------------------------------------------------------------------
# Pairs of QuantizeLinear and DequantizeLinear of int8 become pairs of uint8.
#
# onnxruntime/core/optimizer/qdq_transformer/qdq_s8_to_u8.cc (``QDQS8ToU8Transformer``). It runs on
# CPUs whose kernels want an unsigned left side: all of x86 (``QDQIsInt8Allowed``).


_OFFSET = 128
"""From int8 to uint8."""


def make_unsigned(graph: Graph) -> bool:
    """Convert each pair with equal constant zero points; ARM has kernels for int8."""
    if graph.cpu.is_arm:
        return False
    changed: list[bool] = []
    for node in walk(graph, make_unsigned, changed):
        if is_quantize(node) and has_single_reader(graph, node):
            changed.append(_convert(graph, node, graph.children(node)[0]))
    return any(changed)


def _convert(graph: Graph, quantize: Node, dequantize: Node) -> bool:
    if not is_dequantize(dequantize) or not quantize.input_at(ZERO_POINT):
        return False
    zero = graph.array(quantize.inputs[ZERO_POINT])
    if zero is None or zero.size != 1 or zero.dtype != np.int8:
        return False
    other = 0
    if dequantize.input_at(ZERO_POINT):
        other_zero = graph.array(dequantize.inputs[ZERO_POINT])
        if other_zero is None or other_zero.size != 1 or other_zero.dtype != np.int8:
            return False
        other = int(other_zero.ravel()[0])
    # Numbers and zero point move by 128 together, so what they stand for stays the same.
    value = int(zero.ravel()[0])
    if value != other:
        return False
    name = graph.fresh_name("qdq_s8_to_u8_zp_conversion")
    zero_name = add_array(graph, name, np.array(value + _OFFSET, np.uint8))
    middle = graph.fresh_name("qdq_s8_to_u8_quant")
    dims = graph.dims_of(quantize.outputs[0])
    graph.set_outputs(quantize, [middle])
    graph.types[middle] = TensorType(UINT8, dims)
    graph.set_input(dequantize, 0, middle)
    graph.set_input(quantize, ZERO_POINT, zero_name)
    graph.set_input(dequantize, ZERO_POINT, zero_name)
    return True


# --------------------------------------------------------------------------------------------------
# Each reader of a DequantizeLinear gets its own, so that QDQ units do not overlap.
#
# onnxruntime/core/optimizer/qdq_transformer/ensure_unique_dq_for_node_unit.cc
# (``EnsureUniqueDQForNodeUnit``). It runs at every optimization level, before all other passes.


_DOMAINS = ("", "com.microsoft")


def ensure_unique_dequantize(graph: Graph) -> bool:
    """Duplicate shared DequantizeLinear nodes."""
    changed: list[bool] = []
    for node in walk(graph, ensure_unique_dequantize, changed):
        if node.op_type == "DequantizeLinear" and node.domain in _DOMAINS:
            changed.extend(_duplicated(graph, node, edge) for edge in _extra_edges(graph, node))
    return any(changed)


def _extra_edges(graph: Graph, node: Node) -> list[Edge]:
    """The edges that need a duplicate: all but one, or all if the original has other uses."""
    edges = graph.edges_of(node)
    is_output = graph.is_output(node)
    if not edges or (len(edges) == 1 and not is_output):
        return []
    # The original stays with a graph output or a subgraph that reads it, which get no duplicate.
    explicit = [edge for edge in edges if edge.input < len(edge.reader.inputs)]
    has_other_use = is_output or len(explicit) < len(edges)
    return explicit if has_other_use else explicit[1:]


def _duplicated(graph: Graph, node: Node, edge: Edge) -> bool:
    name = graph.fresh_name(f"{node.outputs[0]}/duplicated")
    add_node(
        graph,
        NewNode(
            node.op_type,
            list(node.inputs),
            [name],
            node.domain,
            graph.fresh_node_name(f"{node.name}/duplicated"),
            dict(node.attributes),
        ),
    )
    graph.set_input(edge.reader, edge.input, name)
    return True
