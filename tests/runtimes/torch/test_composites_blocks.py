"""Normalizations, attention, Dropout, linear layers and moves that exporters write out."""

from dataclasses import replace

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import happenings, network, recipe_of, run_as, sizes, step

from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.memory import Phase
from onnxmem.runtimes.torch.network import network_of

NORM = """
    agraph (float[2,5,7] x, float[2,5,7] v) => ({outputs})
    <float[7] g, float[7] b, float eps = {{0.00001}}, float two = {{2.0}},
     int64[1] last = {{-1}}> {{
        {body}
    }}"""
CENTERED = "m = ReduceMean(x, last)  c = Sub(x, m)"
DEVIATION = "q = Pow(c, two)  u = ReduceMean(q, last)  e = Add(u, eps)  s = Sqrt(e)"
OUT = "float[2,5,7] y"


def norm(body: str, outputs: str = OUT) -> list[str]:
    return run_as(NORM.format(body=body, outputs=outputs))


@pytest.mark.parametrize(
    "rest",
    [
        "y = Div(c, s)",
        "n = Div(c, s)  y = Mul(n, g)",
        "n = Div(c, s)  k = Mul(n, g)  y = Add(k, b)",
        "n = Div(c, s)  k = Mul(g, n)  y = Add(b, k)",
    ],
)
@pytest.mark.parametrize("square", ["q = Pow(c, two)", "q = Mul(c, c)"])
def test_a_layer_norm_with_or_without_scale_and_bias(square: str, rest: str) -> None:
    deviation = DEVIATION.replace("q = Pow(c, two)", square)
    assert norm(f"{CENTERED}  {deviation}  {rest}") == ["LayerNormalization"]


@pytest.mark.parametrize("shift", ["k = Mul(n, g)  y = Add(k, v)", "k = Mul(n, g)  y = Mul(k, b)"])
def test_an_add_of_another_tensor_follows_the_norm(shift: str) -> None:
    found = norm(f"{CENTERED}  {DEVIATION}  n = Div(c, s)  {shift}")
    assert found[0] == "LayerNormalization"
    assert len(found) == 2


def test_a_norm_whose_result_is_read_twice_has_no_scale() -> None:
    body = f"{CENTERED}  {DEVIATION}  n = Div(c, s)  k = Mul(n, g)  y = Add(k, n)"
    assert norm(body) == ["LayerNormalization", "Mul", "Add"]


def test_a_norm_saves_its_input_and_two_numbers_per_row() -> None:
    """The last of its nodes gives the name, the gain and shift stand in the layer's slots."""
    body = f"{CENTERED}  {DEVIATION}  n = Div(c, s)  k = Mul(n, g)  y = Add(k, b)"
    found = network(NORM.format(body=body, outputs=OUT))
    assert found.graph.nodes[-1].inputs == ("x", "g", "b")
    assert found.parameters.trained == ("g", "b")


@pytest.mark.parametrize(
    "body",
    [
        f"{CENTERED}  {DEVIATION}  y = Mul(c, s)",
        (
            f"{CENTERED}  q = Pow(v, two)  u = ReduceMean(q, last)  e = Add(u, eps)  s = Sqrt(e)"
            "  y = Div(c, s)"
        ),
        f"m = ReduceMean(v, last)  c = Sub(x, m)  {DEVIATION}  y = Div(c, s)",
        f"m = ReduceMax(x, last)  c = Sub(x, m)  {DEVIATION}  y = Div(c, s)",
        f"m = ReduceMean(x, last)  c = Add(x, m)  {DEVIATION}  y = Div(c, s)",
        f"{CENTERED}  {DEVIATION.replace('ReduceMean', 'ReduceSum')}  y = Div(c, s)",
        f"{CENTERED}  {DEVIATION.replace('Sqrt', 'Exp')}  y = Div(c, s)",
        f"{CENTERED}  {DEVIATION.replace('Add', 'Sub')}  y = Div(c, s)",
        f"{CENTERED}  {DEVIATION.replace('Pow', 'Add')}  y = Div(c, s)",
        f"{CENTERED}  {DEVIATION}  n = Div(c, s)  y = Add(n, s)",
        "y = Div(x, v)",
    ],
)
def test_no_layer_norm(body: str) -> None:
    assert "LayerNormalization" not in norm(body)


GROUP = """
    agraph (float[2,6,5,7] x, float[2,6,5,7] v) => (float[2,6,5,7] y)
    <int64[3] groups = {{0, 3, -1}}, int64[4] back = {{2, 6, 5, 7}}, float[3] one, float[3] zero,
     float[6,1,1] g, float[6,1,1] b> {{
        {body}
    }}"""
GROUPED = "r = Reshape(x, groups)  i = InstanceNormalization(r, one, zero)  s = Reshape(i, back)"


def test_a_group_norm() -> None:
    body = f"{GROUPED}  k = Mul(s, g)  y = Add(k, b)"
    found = network(GROUP.format(body=body))
    (node,) = found.graph.nodes
    assert (node.op_type, node.inputs) == ("GroupNormalization", ("x", "g", "b"))
    assert node.attributes == {"num_groups": 3}


SINGLE = """
    agraph (float[2,6,5] x) => (float[2,6,5] y)
    <int64[3] groups = {{0, 6, -1}}, float[6] one, float[6] zero, float[6,1] g, float[6,1] b> {{
        {body}  k = Mul(n, g)  y = Add(k, b)
    }}"""


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ("r = Reshape(x, groups)  n = InstanceNormalization(r, one, zero)", ""),
        ("n = InstanceNormalization(x, one, zero)", "group_norm"),
        ("i = InstanceNormalization(x, one, zero)  n = Reshape(i, groups)", ""),
    ],
)
def test_a_group_norm_of_one_channel_a_group_needs_no_reshape(body: str, call: str) -> None:
    graph = called(graph_of(SINGLE.format(body=body)), call)
    (node,) = network_of(graph, recipe_of()).graph.nodes
    assert (node.op_type, node.inputs) == ("GroupNormalization", ("x", "g", "b"))
    assert node.attributes == {"num_groups": 6}


@pytest.mark.parametrize("call", ["", "instance_norm"])
def test_an_instance_norm_is_no_group_norm(call: str) -> None:
    body = "n = InstanceNormalization(x, one, zero)"
    found = network_of(called(graph_of(SINGLE.format(body=body)), call), recipe_of())
    assert [node.op_type for node in found.graph.nodes] == ["InstanceNormalization", "Mul", "Add"]


def called(graph: Graph, call: str) -> Graph:
    """With the call in the metadata of each node that torch.export wrote for it."""
    text = f"[target=torch.ops.aten.{call}.default](args = (%x, 6), kwargs = {{}})"
    metadata = {"pkg.torch.onnx.fx_node": text} if call else {}
    nodes = tuple(replace(node, metadata=metadata) for node in graph.nodes)
    return replace(graph, nodes=nodes)


@pytest.mark.parametrize(
    "body",
    [
        f"{GROUPED}  y = Mul(s, g)",
        f"{GROUPED}  k = Mul(s, v)  y = Add(k, b)",
        (
            "r = Reshape(x, groups)  i = InstanceNormalization(r, one, zero)  s = Exp(i)"
            "  k = Reshape(s, back)  y = Add(k, b)"
        ),
        (
            f"e = Exp(x)  {GROUPED.replace('Reshape(x, groups)', 'Flatten(e)')}"
            "  k = Mul(s, g)  y = Add(k, b)"
        ),
        f"{GROUPED.replace('back', 'groups')}  k = Mul(r, s)  y = Reshape(k, back)",
        f"{GROUPED.replace('back', 'groups')}  k = Mul(s, g)  a = Add(k, b)  y = Reshape(a, back)",
    ],
)
def test_no_group_norm(body: str) -> None:
    assert "GroupNormalization" not in run_as(GROUP.format(body=body))


RANDOM = """
    agraph (float[2,5,7] x, float[2,5,7] v, float[7] row) => (float[2,5,7] y)
    <float keep = {{0.5}}, float[7] w> {{
        {body}
    }}"""


@pytest.mark.parametrize(
    "body",
    [
        (
            "r = RandomUniformLike(x)  l = Less(r, keep)  c = Cast <to = 1> (l)  m = Div(c, keep)"
            "  y = Mul(x, m)"
        ),
        (
            "r = RandomUniformLike(x)  l = Greater(r, keep)  n = Not(l)  c = CastLike(n, x)"
            "  m = Mul(c, keep)  y = Mul(m, x)"
        ),
        "h = Add(x, keep)  r = Bernoulli(h)  y = Mul(x, r)",
        (
            "r = RandomUniform <shape = [2, 5, 7]> ()  l = LessOrEqual(r, keep)"
            "  c = CastLike(l, keep)  y = Mul(x, c)"
        ),
    ],
)
def test_dropout_by_random_numbers(body: str) -> None:
    assert run_as(RANDOM.format(body=body))[-1] == "Dropout"


@pytest.mark.parametrize(
    "body",
    [
        "l = Less(v, keep)  c = Cast <to = 1> (l)  y = Mul(x, c)",
        "r = RandomUniformLike(x)  l = Less(r, v)  c = Cast <to = 1> (l)  y = Mul(x, c)",
        "r = RandomUniformLike(row)  l = Less(r, keep)  c = Cast <to = 1> (l)  y = Mul(x, c)",
        (
            "r = RandomUniformLike(x)  l = Less(r, keep)  c = Cast <to = 1> (l)  m = Mul(x, c)"
            "  y = Add(m, c)"
        ),
        "r = RandomUniformLike(x)  l = Less(r, keep)  c = Cast <to = 1> (l)  y = Add(x, c)",
    ],
)
def test_another_mask_is_not_dropout(body: str) -> None:
    """Not random, a limit that varies, a row of numbers for all, read again, or added."""
    assert "Dropout" not in run_as(RANDOM.format(body=body))


LINEAR = """
    agraph (float[2,5,7] x, float[11] v, float[2,7,11] z) => (float[2,5,11] y)
    <float[7,11] w, float[11] b, float[4] four, float[3] no = {{0, 0, 0}},
     float[22] long, float[5,11] table, float[11,7] t,
     int64[3,1] rows = {{4, 5, 6}}, int64[1] flat = {{-1}}> {{
        {body}
    }}"""


@pytest.mark.parametrize(
    "body",
    [
        "m = MatMul(x, w)  y = Add(m, b)",
        "m = MatMul(x, w)  y = Add(b, m)",
        "m = MatMul(x, w)  c = Reshape(b, flat)  y = Add(m, c)",
        "m = MatMul(x, w)  c, d = Split <num_outputs = 2> (long)  y = Add(m, c)",
        "m = MatMul(x, w)  c = Concat <axis = 0> (four, no, four)  y = Add(c, m)",
        "m = MatMul(x, w)  c = ScatterND(b, rows, no)  y = Add(c, m)",
    ],
)
def test_a_linear_layer_is_a_matmul_and_a_bias(body: str) -> None:
    assert run_as(LINEAR.format(body=body))[-1] == "linear"


@pytest.mark.parametrize(
    "body",
    [
        "m = MatMul(x, w)  y = Add(m, v)",
        "m = MatMul(x, w)  y = Add(m, table)",
        "m = MatMul(x, z)  y = Add(m, b)",
        "m = MatMul(x, w)  a = Add(m, b)  y = Add(a, m)",
        "m = MatMul(x, w)  e = Exp(b)  y = Add(m, e)",
        "m = MatMul(x, w)  e = Exp(four)  c = Concat <axis = 0> (four, no, e)  y = Add(m, c)",
        "m = MatMul(x, w)  e = Exp(b)  c = ScatterND(e, rows, no)  y = Add(m, c)",
    ],
)
def test_no_linear_layer(body: str) -> None:
    """The bias is not a weight, or not a vector, or the matmul is not by a matrix."""
    assert "linear" not in run_as(LINEAR.format(body=body))


MOVES = """
    agraph (float[2,6,7] x, float[2,6,7] v) => ({outputs})
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] six = {{6}}> {{
        {body}
    }}"""
END = "a = Slice(x, two, six, one)"
START = "b = Slice(x, zero, two, one)"


def moved(body: str, outputs: str) -> list[str]:
    return run_as(MOVES.format(body=body, outputs=outputs))


def test_a_roll_puts_the_end_before_the_start() -> None:
    body = f"{END}  {START}  y = Concat <axis = 1> (a, b)"
    assert moved(body, "float[2,6,7] y") == ["roll"]


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (f"{END}  b = Slice(v, zero, two, one)  y = Concat <axis = 1> (a, b)", "float[2,6,7] y"),
        (f"{END}  {END.replace('a =', 'b =')}  y = Concat <axis = 1> (a, b)", "float[2,8,7] y"),
        (f"{END}  b = Exp(x)  y = Concat <axis = 1> (a, b)", "float[2,10,7] y"),
        (f"{END}  {START}  y = Concat <axis = 1> (a, b, a)", "float[2,10,7] y"),
    ],
)
def test_other_joined_pieces_are_not_roll(body: str, outputs: str) -> None:
    assert "roll" not in moved(body, outputs)


PIECES = "a = Slice(t, zero, one, zero)  b = Slice(t, one, two, zero)"
UNBOUND = "c = Squeeze(a, zero)  d = Squeeze(b, zero)  y = Add(c, d)"


def test_slices_of_one_axis_are_an_unbind() -> None:
    """They appear together, as views, at the position of the first."""
    body = f"t = Exp(x)  {PIECES}  {UNBOUND}"
    assert moved(body, "float[6,7] y") == ["Exp", "Split", "Squeeze", "Squeeze", "Add"]


@pytest.mark.parametrize(
    ("pieces", "rest"),
    [
        (PIECES.replace("one, two", "zero, two"), UNBOUND),
        (PIECES, UNBOUND.replace("Squeeze(b, zero)", "ReduceSum <keepdims = 0> (b, zero)")),
        ("a = Slice(t, zero, one, zero)", "y = Squeeze(a, zero)"),
        ("s = Split <axis = 0, num_outputs = 1> (t)  a = Slice(s, zero, one)", "y = Squeeze(a)"),
    ],
)
def test_other_slices_are_not_unbind(pieces: str, rest: str) -> None:
    """A wider piece, one that is not squeezed, a single one, and one without axes."""
    before = len(moved(f"t = Exp(x)  {pieces}  {rest}", "float y"))
    assert "Slice" in moved(f"t = Exp(x)  {pieces}  {rest}", "float y")
    assert before >= 3


@pytest.mark.parametrize("readers", ["y = Add(a, b)", "y = Identity(a)"])
def test_a_sequence_that_only_sequence_at_reads_is_a_split(readers: str) -> None:
    body = "q = SplitToSequence <axis = 0> (x, s)  a = SequenceAt(q, zero)  b = SequenceAt(q, one)"
    text = f"""
        agraph (float[2,6,7] x) => (float[1,6,7] y)
        <int64 s = {{1}}, int64 zero = {{0}}, int64 one = {{1}}> {{ {body}  {readers} }}"""
    found = network(text).graph
    split = found.nodes[0]
    assert (split.op_type, split.outputs, dict(split.attributes)) == (
        "Split",
        ("a", "b"),
        {"axis": 0},
    )


@pytest.mark.parametrize(
    "body",
    [
        "q = SplitToSequence <axis = 0> (x, s)  n = SequenceLength(q)  y = Cast <to = 1> (n)",
        "q = SplitToSequence <axis = 0> (x, s)  y = Exp(x)",
    ],
)
def test_a_sequence_with_other_readers_stays(body: str) -> None:
    text = f"agraph (float[2,6,7] x) => (float y) <int64 s = {{1}}> {{ {body} }}"
    assert run_as(text)[0] == "SplitToSequence"


STATISTICS = """
    agraph (float[1,3,35] x, float[3] scale, float[3] shift) => (float[1,3,35] y{more})
    <int64[3] shape = {{1, 3, 35}}, int64[2] axes = {{0, 1}}> {{
        f = Reshape(x, shape)
        t = Transpose <perm = [0, 2, 1]> (f)
        mean = ReduceMean <keepdims = 0> (t, axes)
        m = ReduceMean (t, axes)
        c = Sub(t, m)
        q = Mul(c, {factor})
        var = ReduceMean <keepdims = 0> (q, axes)
        y = BatchNormalization <training_mode = 0> ({data}, scale, shift, mean, var)
        {last}
    }}"""


def statistics(factor: str = "c", data: str = "x", more: str = "", last: str = "") -> str:
    return STATISTICS.format(factor=factor, data=data, more=more, last=last)


def test_statistics_that_nodes_compute_are_those_of_the_batch() -> None:
    """As torch.onnx writes ``batch_norm`` without running ones, such as of standardized weights."""
    assert run_as(statistics()) == ["BatchNormalization"]
    (node,) = network(statistics()).graph.nodes
    assert node.inputs == ("x", "scale", "shift")


def test_statistics_of_the_data_itself_are_those_of_the_batch() -> None:
    """As onnxscript writes it."""
    text = """
        agraph (float[1,3,35] x, float[3] scale, float[3] shift) => (float[1,3,35] y)
        <int64[2] axes = {0, 2}> {
            mean = ReduceMean <keepdims = 0> (x, axes)
            m = ReduceMean (x, axes)
            c = Sub(x, m)
            q = Mul(c, c)
            var = ReduceMean <keepdims = 0> (q, axes)
            y = BatchNormalization (x, scale, shift, mean, var)
        }"""
    assert run_as(text) == ["BatchNormalization"]
    assert run_as(text.replace("Sub(x, m)", "Sub(y2, m)").replace("c =", "y2 = Neg(x)  c =")) != [
        "BatchNormalization"
    ]


@pytest.mark.parametrize(
    "text",
    [
        statistics(factor="t"),
        statistics(data="t2", last="").replace("f = Reshape", "t2 = Neg(x)  f = Reshape"),
        statistics(more=", float[1,35,3] z", last="z = Identity(t)"),
        statistics().replace("mean = ReduceMean", "mean = ReduceMax"),
        statistics().replace("t = Transpose <perm = [0, 2, 1]> (f)", "t = Neg(f)"),
    ],
    ids=["no square", "of other data", "read elsewhere", "no mean", "laid out otherwise"],
)
def test_other_statistics_stay_the_networks_own(text: str) -> None:
    assert run_as(text) != ["BatchNormalization"]


VARIANCE = """
    agraph (float[2,3,5] x, float[2,3,5] v) => (float[2,3,1] y{more}) <int64[1] last = {{-1}}> {{
        {body}
    }}"""
CENTERED_SQUARE = "m = ReduceMean(x, last)  c = Sub(x, m)  q = Mul(c, c)"


def test_a_variance_is_one_operator() -> None:
    body = f"{CENTERED_SQUARE}  y = ReduceMean(q, last)"
    assert run_as(VARIANCE.format(body=body, more="")) == ["var"]


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("m = ReduceMean(x, last)  c = Sub(x, m)  q = Mul(c, v)  y = ReduceMean(q, last)", ""),
        ("m = ReduceMean(v, last)  c = Sub(x, m)  q = Mul(c, c)  y = ReduceMean(q, last)", ""),
        ("m = ReduceMax(x, last)  c = Sub(x, m)  q = Mul(c, c)  y = ReduceMean(q, last)", ""),
        (f"{CENTERED_SQUARE}  y = ReduceMean(q, last)  z = Neg(c)", ", float[2,3,5] z"),
        (f"{CENTERED_SQUARE}  y = ReduceSum(q, last)", ""),
    ],
    ids=["no square", "of other data", "no mean", "read elsewhere", "a sum"],
)
def test_another_mean_of_squares_is_not_variance(body: str, more: str) -> None:
    assert "var" not in run_as(VARIANCE.format(body=body, more=more))


def test_a_variance_saves_only_its_operand() -> None:
    """Its gradient is computed beside the centered operand."""
    text = """
        agraph (float[2,3,5] x) => (float[2,3,1] y) <float[5,5] w, int64[1] last = {-1}> {
            h = MatMul(x, w)
            m = ReduceMean(h, last)
            c = Sub(h, m)
            q = Mul(c, c)
            y = ReduceMean(q, last)
        }"""
    found = step(text)
    one, row = 4 * 2 * 3 * 5, 4 * 2 * 3
    assert found.saved_activation_bytes == one + row
    assert found.backward_peak_bytes == one + 4 * 25 + (one + row) + row + one + one


PAD = """
    agraph (float[2,3,5,7] x) => (float[2,3,7,9] y)
    <float[3,3,1,1] w, int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}> {{
        h = Conv(x, w)
        y = Pad <mode = "{mode}"> (h, pads)
    }}"""


@pytest.mark.parametrize(("mode", "kept"), [("reflect", 1), ("edge", 1), ("constant", 0)])
def test_a_pad_that_repeats_its_operand_saves_it(mode: str, kept: int) -> None:
    """For its shape; one with a constant saves nothing."""
    out = 4 * 2 * 3 * 7 * 9
    found = step(PAD.format(mode=mode))
    assert found.saved_activation_bytes == out + kept * 4 * 2 * 3 * 5 * 7


NORMED = """
    agraph (float[2,3,11] x) => (float[2,5,9] y)
    <float[5,3,3] m_v, float[5,1,1] m_g, float[5,1,1] one, int64[2] axes = {{1, 2}}> {{
        n = ReduceL2 <keepdims = 1> (m_v, axes)
        {body}
        y = Conv(x, w)
    }}"""


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        ("d = Div(m_v, n)  w = Mul(d, m_g)", True),
        ("d = Div(m_g, n)  w = Mul(m_v, d)", True),
        ("d = Div(m_g, n)  w = Mul(d, one)", False),
        ("d = Div(m_v, n)  e = Exp(m_g)  w = Mul(d, e)", False),
    ],
)
def test_a_weight_norm_is_one_operator(body: str, is_one: bool) -> None:
    """Of a direction, its own norm and a length, in both orders in which exporters write it."""
    assert ("weight_norm" in run_as(NORMED.format(body=body))) == is_one


def test_a_weight_norm_saves_norms_and_the_weight_stays_assigned() -> None:
    """The module keeps the weight of the last step until the next one is there."""
    found = step(NORMED.format(body="d = Div(m_v, n)  w = Mul(d, m_g)"))
    assert happenings(found, Phase.FORWARD) == [
        *("+w of the last step", "+w", "-w of the last step", "+saved by Mul_2", "+y"),
    ]
    assert sizes(found)["saved by Mul_2"] == [4 * 5]
