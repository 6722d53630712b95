"""Changes that mean nothing change no total: the order of nodes, names, a function, dead nodes.

Graphs are drawn at random: nodes of one or two operands over what is there already, of one shape.
"""

import random
from collections.abc import Callable
from typing import Any

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_empty_tensor_value_info as untyped
from onnx.helper import make_function, make_graph, make_model, make_node, make_opsetid
from onnx.helper import make_tensor_value_info as typed

from onnxmem import analyze

OPSETS = (make_opsetid("", 21),)
UNARY = ("Relu", "Sigmoid", "Neg", "Transpose", "Softmax", "Identity")
BINARY = ("Add", "MatMul", "Mul")
SIDES = (2, 3, 5, 7, 11)


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a valid graph of square tensors; its last tensor, and perhaps others, are outputs."""
    side = draw(st.sampled_from(SIDES))
    names, nodes, weights = ["x"], [], []
    for place in range(draw(st.integers(1, 12))):
        op_type = draw(st.sampled_from(UNARY + BINARY))
        operands = [draw(st.sampled_from(names)) for _ in range(1 + (op_type in BINARY))]
        if op_type == "MatMul" and draw(st.booleans()):
            weights.append(f"w{place}")
            operands[1] = weights[-1]
        nodes.append(make_node(op_type, operands, [f"t{place}"], name=f"n{place}"))
        names.append(f"t{place}")
    outputs = {names[-1], *draw(st.lists(st.sampled_from(names[1:]), max_size=2))}
    graph = make_graph(
        nodes, "drawn", [typed("x", 1, [side, side])], [untyped(name) for name in sorted(outputs)]
    )
    for name in weights:
        graph.initializer.add(name=name, data_type=1, dims=[side, side])
    return make_model(graph, opset_imports=OPSETS)


def totals(model: onnx.ModelProto, *, train: bool = False) -> dict[str, object]:
    """All figures of the model, without the names of the nodes at the peaks."""
    row: dict[str, Any] = dict(analyze(model, train=train).to_dict())
    activations = {name: row["activations"][name] for name in SUMS}
    training = row.get("training") or {}
    phases = {name: size for name, size in training.items() if name.endswith("_bytes")}
    return {name: row[name] for name in TOTALS} | activations | {"training": phases}


SUMS = ("naive_bytes", "naive_in_place_bytes", "peak_bytes", "in_place_peak_bytes", "arena_bytes")
TOTALS = (
    "status",
    "weights",
    "inputs_bytes",
    "outputs_bytes",
    "total_bytes",
    "compute",
)


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give every tensor and node another name, in another alphabetical order."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())

    def other(name: str) -> str:
        return f"{sum(map(ord, name)) % 97}/{name[::-1]}é"

    for node in copy.graph.node:
        node.name = other(node.name)
        node.input[:] = [other(name) for name in node.input]
        node.output[:] = [other(name) for name in node.output]
    for value in (*copy.graph.input, *copy.graph.output):
        value.name = other(value.name)
    for weight in copy.graph.initializer:
        weight.name = other(weight.name)
    return copy


def in_a_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put all nodes into one local function with the weights as inputs."""
    inner = model.graph
    given_names = [value.name for value in inner.input]
    given_names += [weight.name for weight in inner.initializer]
    outputs = [value.name for value in inner.output]
    body = [onnx.NodeProto.FromString(node.SerializeToString()) for node in inner.node]
    call = make_node("All", given_names, outputs, domain="own")
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    del copy.graph.node[:]
    copy.graph.node.append(call)
    copy.opset_import.append(make_opsetid("own", 1))
    # Names inside differ from those outside, as exporters write them.
    function = make_function("own", "All", given_names, outputs, body, OPSETS)
    copy.functions.append(function)
    return copy


def permuted(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Shuffle what has no order: values of inputs, weights, and the entries of lists."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    weights = list(copy.graph.initializer)
    random.Random(seed).shuffle(weights)  # noqa: S311 - any draw will do
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(weights)
    return copy


@settings(max_examples=20, deadline=None, derandomize=True)
@given(graphs(), st.sampled_from((True, False)), st.integers(0, 99))
def test_names_functions_and_the_order_of_weights_change_no_total(
    model: onnx.ModelProto,
    train: bool,
    seed: int,
) -> None:
    expected = totals(model, train=train)
    changes: tuple[Callable[[onnx.ModelProto], onnx.ModelProto], ...] = (
        renamed,
        in_a_function,
        lambda one: permuted(one, seed),
    )
    for change in changes:
        assert totals(change(model), train=train) == expected


@settings(max_examples=20, deadline=None, derandomize=True)
@given(graphs(), st.randoms(use_true_random=False))
def test_nodes_out_of_order_change_no_sum(model: onnx.ModelProto, draw: random.Random) -> None:
    """Peaks depend on the order of execution and may differ; sums may not."""
    nodes = list(model.graph.node)
    draw.shuffle(nodes)
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    one, other = totals(model), totals(copy)
    for name in ("weights", "inputs_bytes", "outputs_bytes", "compute", "naive_bytes"):
        assert one[name] == other[name]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(graphs())
def test_a_chain_in_reverse_order_is_the_same_model(model: onnx.ModelProto) -> None:
    """A chain has only one order of execution, so that peaks are equal too."""
    for place, node in enumerate(model.graph.node[1:], start=1):
        node.input[0] = f"t{place - 1}"
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    del copy.graph.node[:]
    copy.graph.node.extend(reversed(model.graph.node))
    assert totals(copy) == totals(model)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(graphs())
def test_weights_that_nothing_reads_change_no_total(model: onnx.ModelProto) -> None:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.graph.initializer.add(name="dead", data_type=1, dims=[13, 17])
    assert totals(copy) == totals(model)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(graphs())
def test_a_dead_node_adds_its_own_output_and_no_more(model: onnx.ModelProto) -> None:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    # Its output is smaller than any tensor that lives while it runs, which is the first step's.
    copy.graph.node.append(make_node("ReduceMax", [model.graph.node[-1].output[0]], ["dead"]))
    one, other = totals(model), totals(copy)
    assert isinstance(one["naive_bytes"], int)
    assert isinstance(other["naive_bytes"], int)
    assert other["naive_bytes"] == one["naive_bytes"] + 4
    for name in ("weights", "inputs_bytes", "outputs_bytes"):
        assert one[name] == other[name]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(graphs())
def test_peaks_lie_between_the_largest_tensor_and_the_sum(model: onnx.ModelProto) -> None:
    analysis = analyze(model)
    activations = analysis.activations
    naive, peak = activations.naive_bytes, activations.peak_bytes
    arena, in_place = activations.arena_bytes, activations.in_place_peak_bytes
    assert naive is not None
    assert peak is not None
    assert arena is not None
    assert in_place is not None
    assert in_place <= peak <= naive
    assert in_place <= arena
