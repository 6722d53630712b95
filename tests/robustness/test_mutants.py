"""Sound models with something broken: every one is analyzed or refused, and none ends otherwise."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, MutableSequence
from typing import Any

import onnx
import pytest
from graphs import model_of

from onnxmem import OnnxmemError, analyze
from onnxmem.model.traversal import graphs_in
from onnxmem.settings import TrainingConfig

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "own": 1]>\n'
OLD = '<ir_version: 8, opset_import: ["": 11, "com.microsoft": 1, "own": 1]>\n'
MODELS = (
    HEADER + """agraph (float[2,3,8,8] x) => (y)
        <float[5,3,3,3] w, float[5] b, int64[2] s = {2, -1}, float[180,7] m> {
        c = Conv(x, w, b)  r = Relu(c)  d, k = Dropout(r)  f = Reshape(d, s)
        y = MatMul(f, m) }""",
    HEADER + """agraph (float[N,6,4] x, float[N,6,4] past) => (y, present)
        <int64[3] p = {2, 0, 1}> {
        present = Concat <axis = 1> (past, x)  t = Transpose <perm = [0, 2, 1]> (present)
        a, b = Split <axis = 1, num_outputs = 2> (t)  n = Mul(a, b)  h = Shape(n)
        g = Gather(h, p)  e = Expand(n, h)  y = Reshape(e, g) }""",
    HEADER + """agraph (int64 trips, bool go, float[2,5] x) => (y, all) <float[5,5] w> {
        y, all = Loop (trips, go, x) <body = b (int64 i, bool c, float[2,5] v)
        => (bool d, float[2,5] u, float[2,5] e) { d = Identity(c)  u = MatMul(v, w)
            e = Relu(u) }> }""",
    HEADER + """agraph (bool c, float[2,5] x) => (y) { a = Relu(x)  y = If (c) <
        then_branch = t () => (o) { o = Add(a, a) },
        else_branch = e () => (p) { q = EyeLike(x)  p = Neg(q) }> }""",
    HEADER + """agraph (float[3,2,5] x, float[2,5] h) => (z, y) { z, y = Scan <num_scan_inputs = 1,
        body = b (float[2,5] s, float[2,5] v) => (float[2,5] t, float[2,5] w) {
            t = Add(s, v)  w = Relu(t) }> (h, x) }""",
    HEADER + """agraph (float[7,2,5] x) => (y, h) <float[1,44,5] w, float[1,44,11] r> {
        y, h = LSTM <hidden_size = 11> (x, w, r) }""",
    HEADER + """agraph (float[2,6,8] x) => (y) <float[8] g, int8[8,24] w, float s, int8 z> {
        n = com.microsoft.SkipLayerNormalization(x, x, g)  d = DequantizeLinear(w, s, z)
        m = MatMul(n, d)  q = com.microsoft.FastGelu(m)  y = own.Odd(q) }""",
    OLD + """agraph (float[2,5] x) => (y) <int64[2] s = {2, 5}, float[4] c> {
        k = ConstantOfShape(s)  e = Expand(x, s)  u = Unsqueeze <axes = [0]> (e)
        a, b = Split <axis = 2, split = [2, 3]> (u)  r = Resize(u, c, c)  t, i = TopK(k, s)
        m = Pad(x, s)  v = Tile(x, s)  y = Add(e, k) }""",
)  # fmt: skip
ODD_NUMBERS = (0, -1, 1, 3, 2**40, 2**62, -(2**63))
OPERATORS = (
    *("Loop If Scan SequenceMap Shape Size ConstantOfShape Reshape Expand Split Concat".split()),
    *("Constant Dropout Gather EyeLike RegexFullMatch Einsum Conv LSTM Attention TopK".split()),
    *("Resize Pad Tile Slice Identity Range QLinearConv DequantizeLinear Squeeze Where".split()),
)
ATTRIBUTE_TYPES = (
    *(onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.STRING),
    *(onnx.AttributeProto.TENSOR, onnx.AttributeProto.GRAPH, onnx.AttributeProto.UNDEFINED),
)
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "own")
OUTCOMES = {"ok", "partial", "refused"}
SYMBOLS = ("N", "batch", "a + b", "N*N", "N//0", "9**9**9", "__import__('os')", "\x1b[2J")

Break = Callable[[random.Random, onnx.ModelProto, onnx.GraphProto], None]


def drop_an_item(draw: random.Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = draw.choice(graph.node)
    lists: list[MutableSequence[Any]] = [
        *(graph.input, graph.output, graph.initializer),
        *(node.input, node.output, node.attribute),
    ]
    chosen = draw.choice(lists)
    if chosen:
        del chosen[draw.randrange(len(chosen))]


def add_an_operand(draw: random.Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = draw.choice(graph.node)
    draw.choice([node.input, node.output]).append(draw.choice(["", "x", "nowhere"]))


def leave_an_operand_out(draw: random.Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = draw.choice(graph.node)
    names = draw.choice([node.input, node.output])
    if names:
        names[draw.randrange(len(names))] = ""


def change_the_operator(draw: random.Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = draw.choice(graph.node)
    if draw.random() < 0.7:
        node.op_type = draw.choice(OPERATORS)
    else:
        node.domain = draw.choice(DOMAINS)


def change_an_attribute(draw: random.Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = draw.choice(graph.node)
    if node.attribute:
        attribute = draw.choice(node.attribute)
        attribute.i = draw.choice(ODD_NUMBERS)
        if attribute.ints:
            attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(ODD_NUMBERS)
        if draw.random() < 0.3:
            attribute.type = draw.choice(ATTRIBUTE_TYPES)


def change_an_input(draw: random.Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    if graph.input:
        dense = draw.choice(graph.input).type.tensor_type
        kind = draw.randrange(4)
        if kind == 0:
            dense.ClearField("shape")
        elif kind == 1:
            dense.elem_type = draw.choice([0, 1, 7, 8, 9, 16, 22, 23, 99])
        elif kind == 2:
            dense.shape.dim.add(dim_param=draw.choice(SYMBOLS))
        elif dense.shape.dim:
            draw.choice(dense.shape.dim).dim_value = draw.choice(ODD_NUMBERS)


def change_a_weight(draw: random.Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    if graph.initializer:
        tensor = draw.choice(graph.initializer)
        tensor.data_type = draw.choice([tensor.data_type, 0, 7, 8, 22, 99])
        tensor.dims.append(draw.choice(ODD_NUMBERS))


def change_a_version(draw: random.Random, model: onnx.ModelProto, _: onnx.GraphProto) -> None:
    draw.choice(model.opset_import).version = draw.choice([0, -1, 1, 7, 9, 13, 18, 99])


BREAKS: tuple[Break, ...] = (
    *(drop_an_item, add_an_operand, leave_an_operand_out, change_the_operator),
    *(change_an_attribute, change_an_input, change_a_weight, change_a_version),
)


def mutant(draw: random.Random, text: str) -> onnx.ModelProto:
    model = model_of(text)
    graph = draw.choice(list(graphs_in(model.graph)))
    for _ in range(draw.choice([1, 1, 2, 3])):
        if graph.node:
            draw.choice(BREAKS)(draw, model, graph)
    return model


def outcome(draw: random.Random, model: onnx.ModelProto) -> str:
    train, batch = draw.random() < 0.5, draw.choice([None, 3])
    try:
        found = analyze(model, train=train, batch=batch, budget_bytes=draw.choice([None, 10**9]))
    except OnnxmemError as refusal:
        return "refused" if "\n" not in str(refusal) else f"not in one line: {refusal}"
    found.to_dict(layers=True)
    sizes = [found.weight_bytes, found.inputs_bytes, found.activations.naive_bytes]
    assert all(size is None or size >= 0 for size in sizes)
    return found.status


@pytest.mark.parametrize("place", range(len(MODELS)))
def test_a_broken_model_is_analyzed_or_refused(place: int) -> None:
    draw = random.Random(place)  # noqa: S311 - any fixed draw will do
    outcomes = Counter(outcome(draw, mutant(draw, MODELS[place])) for _ in range(20))
    assert outcomes.keys() <= OUTCOMES
    assert min(outcomes["ok"] + outcomes["partial"], outcomes["refused"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 103))
def test_many_more_broken_models_are_analyzed_or_refused(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - any fixed draw will do
    for _ in range(500):
        assert outcome(draw, mutant(draw, draw.choice(MODELS))) in OUTCOMES


@pytest.mark.parametrize("text", MODELS)
def test_the_whole_models_are_analyzed(text: str) -> None:
    assert analyze(model_of(text), batch=3).status in {"ok", "partial"}


def without_one_operand(text: str) -> Iterator[onnx.ModelProto]:
    """A model with each operand of each node left out in turn, and once with one too many."""
    num_nodes = [len(graph.node) for graph in graphs_in(model_of(text).graph)]
    for which, count in enumerate(num_nodes):
        for index in range(count):
            node = list(graphs_in(model_of(text).graph))[which].node[index]
            slots = [("input", n) for n in range(len(node.input) + 1)]
            slots += [("output", n) for n in range(len(node.output) + 1)]
            for side, slot in slots:
                model = model_of(text)
                names = getattr(list(graphs_in(model.graph))[which].node[index], side)
                if slot == len(names):
                    names.append("")
                else:
                    names[slot] = ""
                yield model


@pytest.mark.parametrize("place", range(len(MODELS)))
def test_a_step_with_any_operand_left_out_is_analyzed_or_refused(place: int) -> None:
    recipe = TrainingConfig(precision="mixed-bf16", checkpoint="every=2")
    outcomes: Counter[str] = Counter()
    for model in without_one_operand(MODELS[place]):
        try:
            outcomes[analyze(model, train=True, recipe=recipe).status] += 1
        except OnnxmemError:
            outcomes["refused"] += 1
    assert outcomes["ok"] + outcomes["partial"] > 0
