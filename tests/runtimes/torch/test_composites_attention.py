"""Attention that the framework runs in one kernel, in the forms in which exporters write it.

B 2, heads 3, rows 5, width 7: q, k, v [2,3,5,7].
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import graph_of, model_of
from numpy.typing import NDArray
from runtimes.torch.training_steps import happenings, network, recipe_of, run_as, sizes, step

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import STACK_TRACE, Graph
from onnxmem.ops.spec import Call, Operand
from onnxmem.runtimes.torch.framework import ATTENTION
from onnxmem.runtimes.torch.network import as_run, network_of

TEXT = """
    agraph (float[2,3,5,7] q, float[2,3,5,7] k, float[2,3,5,7] v, float[5,5] mask,
            float[2,3,7,5] turned, float[2,5,21] flat) => (float[2,3,5,7] y{more})
    <float s = {{0.61}}, float half = {{0.5}}, bool on = {{1}}, float zero = {{0}},
     int64[3] three = {{6, 5, 7}}, int64[4] four = {{2, 3, 7, 5}},
     int64[4] heads = {{2, 5, 3, 7}}> {{
        {body}
    }}"""
QUERY = "a = Mul(q, s)"
KEY = "t = Transpose <perm = [0, 1, 3, 2]> (k)  b = Mul(t, s)"
SCORES = "c = MatMul(a, b)"
WEIGHTS = "d = Softmax <axis = -1> (c)"
OUT = "y = MatMul(d, v)"
PLAIN = f"{QUERY}  {KEY}  {SCORES}  {WEIGHTS}  {OUT}"
ONE = "scaled_dot_product_attention"


def text_of(body: str, more: str = "") -> str:
    return TEXT.format(body=body, more=more)


def inputs_of(body: str) -> tuple[str, ...]:
    """What the one kernel reads."""
    (node,) = (n for n in network(text_of(body)).graph.nodes if n.op_type == ONE)
    return node.inputs


def test_attention_is_one_kernel() -> None:
    """It reads the key before it is transposed and scaled."""
    assert run_as(text_of(PLAIN)) == [ONE]
    assert inputs_of(PLAIN) == ("q", "k", "v")


def test_attention_runs_as_matmuls_with_the_math_backend() -> None:
    assert run_as(text_of(PLAIN), attention="math") == [
        *("Mul", "Transpose", "Mul", "MatMul", "Softmax", "MatMul"),
    ]


@pytest.mark.parametrize("add", ["e = Add(c, mask)", "e = Add(mask, c)"])
def test_attention_with_a_bias(add: str) -> None:
    body = f"{QUERY}  {KEY}  {SCORES}  {add}  d = Softmax <axis = -1> (e)  {OUT}"
    assert run_as(text_of(body)) == [ONE]
    assert inputs_of(body) == ("q", "k", "v", "mask")


def test_attention_with_dropout_of_its_weights() -> None:
    """The kernel saves a seed, and no mask."""
    body = f"{QUERY}  {KEY}  {SCORES}  {WEIGHTS}  w, m = Dropout(d, half, on)  y = MatMul(w, v)"
    assert run_as(text_of(body)) == [ONE]


def test_a_key_that_is_flattened_and_transposed() -> None:
    """As in a plain export: reshaped to three dims, transposed, and reshaped to four."""
    key = (
        "f = Reshape(k, three)  t = Transpose <perm = [0, 2, 1]> (f)  r = Reshape(t, four)"
        "  b = Mul(r, s)"
    )
    body = f"{QUERY}  {key}  {SCORES}  {WEIGHTS}  {OUT}"
    assert run_as(text_of(body)) == [ONE]
    assert inputs_of(body) == ("q", "k", "v")


@pytest.mark.parametrize(("query", "is_one"), [("learned", True), ("q", False)])
def test_a_learned_query_is_multiplied_by_its_factor_in_the_file(query: str, is_one: bool) -> None:
    """torch.export folds constants: the key alone is scaled, after it is flattened."""
    key = "f = Reshape(k, three)  t = Transpose <perm = [0, 2, 1]> (f)  r = Reshape(t, four)"
    body = f"{key}  b = Mul(r, s)  c = MatMul({query}, b)  {WEIGHTS}  {OUT}"
    text = text_of(body).replace("float zero", "float[2,3,5,7] learned, float zero")
    assert (run_as(text) == [ONE]) == is_one


def test_a_key_that_is_transposed_with_its_heads() -> None:
    """One Transpose does both: the kernel reads its result, a view."""
    key = "p = Reshape(flat, heads)  t = Transpose <perm = [0, 2, 3, 1]> (p)  b = Mul(t, s)"
    body = f"{QUERY}  {key}  {SCORES}  {WEIGHTS}  {OUT}"
    assert run_as(text_of(body)) == ["Reshape", "Transpose", ONE]
    assert inputs_of(body) == ("q", "t", "v")


def test_a_key_that_the_network_transposes_has_no_transpose_left() -> None:
    """Its own and the exporter's cancel out; the exporter's square roots are there."""
    query, key = "r = Sqrt(s)  a = Mul(q, r)", "u = Sqrt(s)  b = Mul(turned, u)"
    body = f"{query}  {key}  {SCORES}  {WEIGHTS}  {OUT}"
    assert run_as(text_of(body)) == ["Sqrt", "Sqrt", ONE]
    assert inputs_of(body) == ("q", "turned", "v")


def test_a_key_that_is_only_flattened_in_another_rank() -> None:
    """Turned in three dims of another make: what is behind the Reshape will do."""
    key = "f = Reshape(flat, three)  t = Transpose <perm = [0, 2, 1]> (f)  r = Reshape(t, four)"
    body = f"{QUERY}  {key}  b = Mul(r, s)  {SCORES}  {WEIGHTS}  {OUT}"
    assert inputs_of(body)[1] == "f"


@pytest.mark.parametrize(
    "body",
    [
        f"{KEY}  c = MatMul(q, b)  {WEIGHTS}  {OUT}",
        f"{QUERY}  t = Transpose <perm = [0, 1, 3, 2]> (k)  c = MatMul(a, t)  {WEIGHTS}  {OUT}",
        f"{QUERY}  {KEY}  {SCORES}  d = Sigmoid(c)  {OUT}",
        f"{QUERY}  {KEY}  {SCORES}  e = Mul(c, s)  d = Softmax <axis = -1> (e)  {OUT}",
        f"{QUERY}  {KEY}  {SCORES}  e = Add(mask, mask)  d = Softmax <axis = -1> (e)  {OUT}",
        f"{QUERY}  b = Mul(turned, s)  {SCORES}  {WEIGHTS}  {OUT}",
        f"{QUERY}  {KEY}  {SCORES}  {WEIGHTS}  y = Mul(v, s)",
    ],
)
def test_other_products_around_a_softmax_are_not_attention(body: str) -> None:
    """One side unscaled, no softmax, scaled later, no matmul before it, the key not transposed."""
    assert ONE not in run_as(text_of(body))


@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_intermediate_tensors_that_other_nodes_read_prevent_a_match(name: str) -> None:
    """An output of the graph, or another node's input: the network computes the matmuls itself."""
    dims = {"a": "2,3,5,7", "b": "2,3,7,5", "c": "2,3,5,5", "d": "2,3,5,5"}[name]
    more = f", float[{dims}] {name}2"
    body = f"{PLAIN}  {name}2 = Identity({name})"
    assert ONE not in run_as(text_of(body, more))


def test_a_key_of_unknown_shape_stays() -> None:
    text = """
        agraph (float[2,5,7] x, int64[3] shape, float[2,5,7] v) => (float[2,5,7] y)
        <float s = {0.61}> {
            k = Reshape(x, shape)
            a = Mul(x, s)
            t = Transpose <perm = [0, 2, 1]> (k)
            b = Mul(t, s)
            c = MatMul(a, b)
            d = Softmax <axis = -1> (c)
            y = MatMul(d, v)
        }"""
    assert ONE not in run_as(text)


LAYER = """
    agraph (float[2,3,5,7] x) => (float[2,3,5,7] y)
    <float[7,7] w, float s = {0.61}> {
        q = MatMul(x, w)
        a = Mul(q, s)
        t = Transpose <perm = [0, 1, 3, 2]> (q)
        b = Mul(t, s)
        c = MatMul(a, b)
        d = Softmax <axis = -1> (c)
        y = MatMul(d, q)
    }"""


def test_the_kernel_saves_its_operands_its_output_and_a_number_per_row() -> None:
    """Rows are counted up to a multiple of 32; and 16 bytes of a seed."""
    one = 4 * 2 * 3 * 5 * 7
    found = step(LAYER)
    assert found.saved_activation_bytes == one + one + 4 * 2 * 3 * 32 + 16
    scores = 4 * 2 * 3 * 5 * 5
    as_products = step(LAYER, attention="math")
    # q, q * s, its key * s, the weights, and the output
    assert as_products.saved_activation_bytes == one + one + one + scores + one


@pytest.mark.parametrize("precision", ["bf16", "mixed-fp16"])
def test_flash_attention_reads_heads_of_a_multiple_of_8(precision: str) -> None:
    """Of 7 elements: it reads padded copies, and its output is cut to what the network reads."""
    assert run_as(LAYER, precision=precision) == ["MatMul", *["pad_last_dim"] * 3, ONE, "Slice"]
    found = step(LAYER, precision=precision)
    padded, rows = 2 * 2 * 3 * 5 * 8, 4 * 2 * 3 * 5 + 24
    copies = {name for name in sizes(found) if name.startswith(("q padded for", "y with padding"))}
    assert len(copies) == 4
    assert all(sizes(found)[name] == [padded] for name in copies)
    of_autocast = 2 * 2 * 3 * 5 * 7 if precision == "mixed-fp16" else 0
    assert found.saved_activation_bytes == 4 * padded + rows + of_autocast


def test_heads_that_fit_are_not_padded() -> None:
    wide = LAYER.replace("5,7]", "5,16]").replace("[7,7]", "[16,16]")
    assert run_as(wide, precision="bf16") == ["MatMul", ONE]
    assert "pad_last_dim" not in run_as(LAYER)


SAFE = "n = IsNaN(d)  w = Where(n, zero, d)  y = MatMul(w, v)"
"""What both exporters write after a mask of booleans: rows of nothing but -inf are set to 0."""
MASKED = """
    agraph (float[2,3,5,7] q, float[2,3,11,7] k, float[2,3,11,7] v, bool[2,1,5,11] seen)
        => (float[2,3,5,7] y)
    <float s = {{0.61}}, float zero = {{0}}, float low = {{-inf}}> {{
        a = Mul(q, s)
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        b = Mul(t, s)
        c = MatMul(a, b)
        bias = Where({seen}, zero, low)
        e = Add(c, bias)
        d = Softmax <axis = -1> (e)
        n = IsNaN(d)
        w = Where(n, zero, d)
        {out}
    }}"""


def masked(seen: str = "seen", out: str = "y = MatMul(w, v)") -> str:
    return MASKED.format(seen=seen, out=out)


def test_a_mask_of_booleans_is_an_operand() -> None:
    """So write symbolic_opset14.py of torch and torch_lib of onnxscript."""
    assert run_as(masked()) == [ONE]
    (node,) = network(masked()).graph.nodes
    assert node.inputs == ("q", "k", "v", "", "seen")


def test_weights_with_a_nan_guard_and_dropout() -> None:
    assert run_as(masked(out="x = Dropout(w)  y = MatMul(x, v)")) == [ONE]


@pytest.mark.parametrize(
    "chosen",
    [
        "n = IsNaN(c)  w = Where(n, zero, d)",
        "n = IsNaN(d)  w = Where(n, s, d)",
        "n = IsInf(d)  w = Where(n, zero, d)",
    ],
)
def test_another_where_on_weights_is_the_networks_own(chosen: str) -> None:
    """A condition on the scores, another number, or a condition on infinities."""
    assert ONE not in run_as(text_of(f"{PLAIN[: -len(OUT)]}  {chosen}  y = MatMul(w, v)"))


def test_a_mask_that_several_kernels_read_is_converted_by_each() -> None:
    """The shared Where stays, and goes into neither."""
    out = """x = MatMul(w, v)
        a2 = Mul(x, s)
        t2 = Transpose <perm = [0, 1, 3, 2]> (k)
        b2 = Mul(t2, s)
        c2 = MatMul(a2, b2)
        e2 = Add(c2, bias)
        d2 = Softmax <axis = -1> (e2)
        y = MatMul(d2, v)"""
    found = network(masked(out=out)).graph.nodes
    kernels = [node for node in found if node.op_type == ONE]
    assert [node.inputs[3:] for node in kernels] == [("", "seen")] * 2
    assert [node.op_type for node in found if node.op_type == "Where"] == ["Where"]


def test_a_converted_mask_of_booleans_is_saved() -> None:
    """One for each element of the mask, its rows of 11 up to a multiple of 8."""
    operands = ((2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 7))
    call = Call((*(Operand(dims, 32) for dims in operands), None, Operand((2, 1, 5, 11), 8)), ())
    assert ATTENTION.saved_extra_bytes(call) == 4 * 2 * 3 * 32 + 16 + 4 * 2 * 5 * 16
    half = Call((Operand((2, 3, 5, 7), 16), None, None, None, Operand((2, 1, 5, 11), 8)), ())
    assert ATTENTION.saved_extra_bytes(half) == 4 * 2 * 3 * 32 + 16 + 2 * 2 * 5 * 16
    unknown = Call((Operand((2, 3, 5, 7), 32), None, None, None, Operand(None, 8)), ())
    assert ATTENTION.saved_extra_bytes(unknown) is None


def test_the_gradient_of_a_bias_is_computed_for_all_scores() -> None:
    """A relative bias [3,5,11] that is trained gets its gradient from one of [2,3,5,11]."""
    (gradient,) = ATTENTION.gradients
    operands = ((2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 7), (3, 5, 11))
    call = Call(tuple(Operand(dims, 32) for dims in operands), ())
    assert gradient.of == "attn_bias"
    assert gradient.temporary_bytes(call) == 4 * 2 * 3 * 5 * 11
    transposed = replace(
        call, inputs=(call.inputs[0], Operand((2, 3, 7, 11), 32), *call.inputs[2:])
    )
    assert gradient.temporary_bytes(transposed) == 4 * 2 * 3 * 5 * 11
    assert gradient.temporary_bytes(Call((Operand(None, 32),), ())) is None


BIASED = """
    agraph (float[2,3,5,7] x) => (float[2,3,5,7] y)
    <float s = {{0.61}}, float[7,7] read, float[{shape}] bias, int64[1] zero = {{0}},
     int64[1] five = {{5}}, int64[1] rows = {{-2}}> {{
        q = MatMul(x, read)
        a = Mul(q, s)
        t = Transpose <perm = [0, 1, 3, 2]> (q)
        b = Mul(t, s)
        c = MatMul(a, b)
        {sliced}
        e = Add(c, used)
        d = Softmax <axis = -1> (e)
        y = MatMul(d, q)
    }}"""


@pytest.mark.parametrize("rows", [5, 11])
@pytest.mark.parametrize(
    ("heads", "is_trained"), [("3,", True), ("1,3,", True), ("1,1,", False), ("", False)]
)
def test_a_bias_of_each_head_is_trained(heads: str, is_trained: bool, rows: int) -> None:
    """A mask is the same for all heads; either may be sliced to the rows of the sequence."""
    sliced = "used = Slice(bias, zero, five, rows)" if rows > 5 else "used = Identity(bias)"
    found = network(BIASED.format(shape=f"{heads}{rows},5", sliced=sliced))
    assert ("bias" in found.parameters.trained) == is_trained
    assert ("bias" in found.parameters.buffers) != is_trained


@pytest.mark.parametrize(("name", "count"), [("bias", 0), ("onnx::Add_107", 1)])
def test_a_bias_that_the_exporter_computed_has_a_note(name: str, count: int) -> None:
    """The parameter that it was cut from, or gathered from, is not in the file."""
    text = BIASED.format(shape="1,3,5,5", sliced="")
    graph = graph_of(text.replace("Add(c, used)", "Add(c, bias)"))
    bias = replace(graph.tensors["bias"], name=name)
    nodes = tuple(
        replace(node, inputs=tuple(name if each == "bias" else each for each in node.inputs))
        for node in graph.nodes
    )
    tensors = {**graph.tensors, name: bias}
    found = network_of(replace(graph, nodes=nodes, tensors=tensors), recipe_of())
    assert [f.node for f in found.findings if f.code == "folded_biases"] == [name] * count


def test_the_gradient_of_a_bias_is_summed_once_the_kernel_has_returned() -> None:
    """One kernel returns four gradients; the bias [3,5,5] was expanded to [2,3,5,5] before."""
    found = step(BIASED.format(shape="3,5,5", sliced="used = Identity(bias)"), loss="mse")
    events = happenings(found)
    assert sizes(found)["gradient of used, expanded"] == [4 * 2 * 3 * 5 * 5]
    assert events[2:9] == [
        *("+gradient of used, expanded", *["+gradient of q"] * 3, "-gradient of y"),
        *("+gradient of bias", "-gradient of used, expanded"),
    ]


def test_the_gradient_of_a_bias_of_one_sample_is_seen_in_the_biass_dims() -> None:
    """Expanded to as many elements as it has, it is not summed: a view of it is the bias's."""
    text = BIASED.format(shape="3,5,5", sliced="used = Unsqueeze(bias, zero)")
    found = step(text.replace("float[2,3,5,7]", "float[1,3,5,7]"), loss="mse")
    gradients = {name for name in sizes(found) if name.startswith("gradient of")}
    assert gradients == {f"gradient of {name}" for name in ("the loss", "y", "bias", "q", "read")}
    assert sizes(found)["gradient of bias"] == [4 * 3 * 5 * 5]


POSITIONS = """
    agraph (float[b,3,s,7] q, float[b,3,s,7] k, float[b,3,s,7] v) => (float[b,3,s,7] y)
    <float f = {{0.61}}, float zero = {{0}}, float low = {{-3.4e38}}, int64 none = {{0}},
     int64 one = {{1}}, int64[1] axis = {{0}}, int64[1] last = {{1}},
     int64 window = {{{window}}}> {{
        dims = Shape(q)
        batch = Shape <start = 0, end = 1> (q)
        steps = Shape <start = 2, end = 3> (q)
        length = Squeeze(steps)
        row = Range(none, length, one)
        across = Unsqueeze(row, axis)
        down = Unsqueeze(row, last)
        {seen}
        whole = Concat <axis = 0> (batch, last, steps, steps)
        each = Expand(seen, whole)
        bias = Where(each, zero, low)
        a = Mul(q, f)
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        b2 = Mul(t, f)
        c = MatMul(a, b2)
        e = Add(c, bias)
        d = Softmax <axis = -1> (e)
        n = IsNaN(d)
        w = Where(n, zero, d)
        y = MatMul(w, v)
    }}"""
CAUSAL = "seen = LessOrEqual(across, down)"
NARROW = "near = Sub(down, window)  late = Greater(across, near)  seen = And(late, late)"


@pytest.mark.parametrize(
    ("seen", "window", "operands"),
    [(CAUSAL, 3, 3), (NARROW, 5, 5), (NARROW, 11, 3)],
    ids=["causal", "window", "window wider than the sequence"],
)
def test_a_mask_of_positions_exists_only_in_a_trace(seen: str, window: int, operands: int) -> None:
    """In a training step transformers passes ``is_causal`` instead."""
    graph = graph_of(POSITIONS.format(seen=seen, window=window), Request(dims={"b": 2, "s": 11}))
    nodes = as_run(graph).nodes
    (node,) = (node for node in nodes if node.op_type == ONE)
    assert len(node.inputs) == operands


ONE_HEAD = """
        k2 = Unsqueeze(k1, two)
        k3 = Expand(k2, five_dims)
        k = Reshape(k3, four_dims)
        v2 = Unsqueeze(v1, two)
        v3 = Expand(v2, five_dims)
        v = Reshape(v3, four_dims)
        a = Mul"""
"""The heads of keys and values, repeated for three heads of queries."""
GROUPED = (
    POSITIONS.replace("float[b,3,s,7] k, float[b,3,s,7] v", "float[b,1,s,7] k1, float[b,1,s,7] v1")
    .replace(
        "int64 window",
        """int64[1] two = {{2}}, int64[5] five_dims = {{2, 1, 3, 11, 7}},
        int64[4] four_dims = {{2, 3, 11, 7}}, int64[3] flat = {{6, 11, 7}},
        int64[4] transposed = {{2, 3, 7, 11}}, int64 window""",
    )
    .replace("a = Mul", ONE_HEAD)
    # A width that FlashAttention does not pad
    .replace(",7]", ",16]")
    .replace("11, 7}}", "11, 16}}")
    .replace("3, 7, 11", "3, 16, 11")
)
MERGED = GROUPED.replace("k = Reshape(k3, four_dims)", "k = Reshape(k3, flat)").replace(
    "t = Transpose <perm = [0, 1, 3, 2]> (k)",
    "k4 = Transpose <perm = [0, 2, 1]> (k)  t = Reshape(k4, transposed)",
)
"""As the exporter writes it where shapes are fixed: it merges the key's two Reshapes."""
WITHOUT_MASK = GROUPED.replace("e = Add(c, bias)", "").replace("(e)", "(c)")
HIERARCHY = "pkg.torch.onnx.class_hierarchy"


def grouped(text: str, operator: str = "", **given: Any) -> Graph:  # noqa: ANN401
    """The network, all of whose nodes torch.export names an operator as the source of."""
    graph = graph_of(text.format(seen=CAUSAL, window=3), Request(dims={"b": 2, "s": 11}))
    metadata = {HIERARCHY: f"['nets.Net', '{operator}']"} if operator else {}
    nodes = tuple(replace(node, metadata=metadata) for node in graph.nodes)
    return network_of(replace(graph, nodes=nodes), recipe_of(**given)).graph


@pytest.mark.parametrize("precision", ["bf16", "mixed-fp16"])
@pytest.mark.parametrize("text", [GROUPED, MERGED], ids=["symbolic", "fixed"])
def test_flash_attention_reads_grouped_heads_as_they_are(text: str, precision: str) -> None:
    """As transformers passes ``enable_gqa`` without a mask: in a step, not in a trace."""
    found = grouped(text, precision=precision).nodes
    assert found[-1].op_type == ONE
    assert found[-1].inputs == ("q", "k1", "v1")
    assert "Reshape" not in {node.op_type for node in found}


@pytest.mark.parametrize("text", [GROUPED, MERGED], ids=["symbolic", "fixed"])
def test_grouped_heads_in_float32_run_as_matmuls(text: str) -> None:
    """No fused kernel takes them; the mask is added in place, and nothing is compared with NaN."""
    found = [node.op_type for node in grouped(text).nodes]
    assert found[-3:] == ["MatMul", "softmax", "MatMul"]
    assert found.count("Reshape") >= 2
    assert not {"Add", "IsNaN", "Softmax"}.intersection(found)


WINDOWS = """
    agraph (float[{first}5,7] q, float[{second}5,7] k, float[{second}5,7] v) =>
           (float[{first}5,7] y) <float s = {{0.61}}, float[5,5] bias> {{
        a = Mul(q, s)  t = Transpose <perm = [{perm}]> (k)  b = Mul(t, s)  c = MatMul(a, b)
        {scores}  y = MatMul(d, v)
    }}"""
"""Attention of windows [batch, heads, windows, rows, width], of heads folded into the batch, and of
one head of keys that all heads of queries read."""
DIMS = {
    "windows": {"first": "2,3,4,", "second": "2,3,4,", "perm": "0,1,2,4,3"},
    "folded": {"first": "6,", "second": "6,", "perm": "0,2,1"},
    "one head": {"first": "2,3,", "second": "2,1,", "perm": "0,1,3,2"},
}
PLAIN_SCORES = "d = Softmax <axis = -1> (c)"
ADDED = "e = Add(c, bias)  d = Softmax <axis = -1> (e)"


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
@pytest.mark.parametrize("scores", [PLAIN_SCORES, ADDED], ids=["plain", "bias"])
def test_no_kernel_takes_other_ranks_or_broadcast_heads(dims: dict[str, str], scores: str) -> None:
    """``check_tensor_shapes`` and ``check_batch_size_and_num_heads_dense`` of sdp_utils_cpp.h."""
    found = run_as(WINDOWS.format(**dims, scores=scores))
    added = ["Add"] if scores is ADDED else []
    assert found[-3 - len(added) :] == ["MatMul", *added, "softmax", "MatMul"]


@pytest.mark.parametrize("scores", [PLAIN_SCORES, ADDED], ids=["plain", "bias"])
def test_without_a_kernel_attention_under_autocast_is_float32(scores: str) -> None:
    """``_scaled_dot_product_attention_math`` casts its operands, and its result back."""
    text = WINDOWS.format(**DIMS["folded"], scores=scores)
    made = sizes(step(text, precision="mixed-bf16"))
    rows, weights = 4 * 6 * 5 * 7, 4 * 6 * 5 * 5
    assert made["c"] == made["d"] == [weights]
    assert made["y in float32"] == [rows]
    assert made["y"] == [rows // 2]
    network = network_of(graph_of(text), recipe_of(precision="mixed-bf16", torch="2.0"))
    assert "Cast" not in {node.op_type for node in network.graph.nodes}


def test_the_weights_of_grouped_heads_are_saved_and_have_no_warning() -> None:
    graph = graph_of(GROUPED.format(seen=CAUSAL, window=3), Request(dims={"b": 2, "s": 11}))
    found = network_of(graph, recipe_of())
    (weights,) = (node for node in found.graph.nodes if node.op_type == "softmax")
    assert [each.name for each in weights.operator.saved] == ["result"]
    assert "attention_as_products" not in {each.code for each in found.findings}


@pytest.mark.parametrize("release", ["1.12", "2.0"])
def test_the_network_repeats_its_heads_before_release_2_5(release: str) -> None:
    assert grouped(GROUPED, precision="bf16", torch=release).nodes[-1].inputs == ("q", "k", "v")


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("aten.scaled_dot_product_attention.default", ("q", "k1", "v1")),
        ("aten._unsafe_view.default", ("q", "k", "v")),
        ("", ("q", "k", "v")),
    ],
)
def test_without_a_mask_the_network_may_repeat_its_heads_itself(
    operator: str, inputs: tuple[str, ...]
) -> None:
    """Unless torch.export names the attention as the source of what repeats them."""
    assert grouped(WITHOUT_MASK, operator, precision="bf16").nodes[-1].inputs == inputs


@pytest.mark.parametrize(
    ("name", "key"), [("le", "k1"), ("ge_3", "k1"), ("gt", "k"), ("bitwise_and", "k")]
)
def test_a_mask_of_values_shows_by_its_name_alone_that_it_has_no_window(
    name: str, key: str
) -> None:
    """Where there is one, transformers passes it, and repeats the heads itself."""
    text = GROUPED.replace("int64[1] two", f"bool[2,1,11,11] {name}, int64[1] two")
    text = text.replace("{seen}", f"seen = Not({name})").replace("Where(each,", "Where(seen,")
    assert grouped(text, precision="bf16").nodes[-1].inputs[1] == key


SEEN = np.tri(11, dtype=np.bool_)
NEAR = SEEN & ~np.tri(11, k=-3, dtype=np.bool_)
"""Causal, and with a window of three."""


@pytest.mark.parametrize("name", ["bitwise_and", "gt"])
@pytest.mark.parametrize(("values", "key"), [(SEEN, "k1"), (NEAR, "k"), (SEEN | True, "k")])
def test_a_mask_of_values_shows_whether_it_has_a_window(
    values: NDArray[np.bool_], key: str, name: str
) -> None:
    """A window exists in a training step too, and is an operand of the kernel."""
    stored = ", ".join(str(int(each)) for each in np.tile(values, (2, 1, 1)).ravel())
    text = GROUPED.replace(
        "int64[1] two", f"bool[2,1,11,11] {name} = {{{{{stored}}}}}, int64[1] two"
    )
    text = text.replace("{seen}", f"seen = Identity({name})").replace("Where(each,", "Where(seen,")
    found = grouped(text, precision="bf16").nodes[-1].inputs
    assert (found[1], len(found)) == (key, 5 if values is NEAR else 3)


@pytest.mark.parametrize(("values", "key"), [(SEEN, "k1"), (NEAR, "k")])
def test_a_bias_of_values_shows_it_too(values: NDArray[np.bool_], key: str) -> None:
    stored = ", ".join("0.0" if each else "-3e38" for each in np.tile(values, (2, 1, 1)).ravel())
    text = GROUPED.replace(
        "int64[1] two", f"float[2,1,11,11] mask = {{{{{stored}}}}}, int64[1] two"
    )
    found = grouped(text.replace("Add(c, bias)", "Add(c, mask)"), precision="bf16")
    assert found.nodes[-1].inputs[1] == key


@pytest.mark.parametrize(
    ("call", "key"),
    [("create_causal_mask(", "k1"), ("create_sliding_window_causal_mask(", "k")],
)
def test_the_call_that_made_a_mask_shows_whether_it_has_a_window(call: str, key: str) -> None:
    """Values in another file are not read."""
    text = GROUPED.replace("int64[1] two", "bool[2,1,11,11] bitwise_and, int64[1] two")
    text = text.replace("{seen}", "seen = Not(bitwise_and)").replace("Where(each,", "Where(seen,")
    graph = graph_of(text.format(window=3), Request(dims={"b": 2, "s": 11}))
    trace = f'File "modeling_llama.py", line 391, in forward\n    causal_mask = {call}'
    nodes = tuple(
        replace(node, metadata={STACK_TRACE: trace}) if node.op_type == "Not" else node
        for node in graph.nodes
    )
    found = network_of(replace(graph, nodes=nodes), recipe_of(precision="bf16")).graph.nodes[-1]
    assert found.inputs[1] == key


def test_a_mask_that_is_given_has_the_network_repeat_its_heads() -> None:
    text = GROUPED.replace("float[b,1,s,16] k1", "bool[b,1,s,s] given, float[b,1,s,16] k1")
    found = grouped(text.replace("Where(each,", "Where(given,"), precision="bf16").nodes
    assert found[-1].inputs == ("q", "k", "v", "", "given")


def test_wide_heads_are_repeated_by_the_network() -> None:
    """Those of transformers pass ``enable_gqa`` up to a width of 256."""
    text = GROUPED.replace("16", "264")
    assert grouped(text, precision="bf16").nodes[-1].inputs == ("q", "k", "v")


FLATTENED = "f = Reshape(k, three)  t = Transpose <perm = [0, 2, 1]> (f)  r = Reshape(t, four)"
TURNED = "t = Transpose <perm = [0, 1, 3, 2]> (k)"


@pytest.mark.parametrize(
    "body",
    [
        f"{FLATTENED}  c = MatMul(q, r)  {WEIGHTS}  {OUT}",
        f"{TURNED}  c = MatMul(q, t)  {WEIGHTS}  {SAFE}",
    ],
)
def test_a_factor_of_one_is_not_in_the_file(body: str) -> None:
    """The transposition of the key, or the NaN guard, is enough to recognize it."""
    assert run_as(text_of(body)) == [ONE]
    assert inputs_of(body) == ("q", "k", "v")


@pytest.mark.parametrize(
    ("body", "operator", "kernels"),
    [
        (PLAIN, "aten.softmax.int", 0),
        (PLAIN, "aten._softmax.default", 1),
        (PLAIN, "aten.scaled_dot_product_attention.default", 1),
        (
            f"{TURNED}  c = MatMul(q, t)  {WEIGHTS}  {OUT}",
            "aten.scaled_dot_product_attention.default",
            1,
        ),
        (f"{TURNED}  c = MatMul(q, t)  {WEIGHTS}  {OUT}", "aten._softmax.default", 0),
    ],
)
def test_the_operator_that_torch_export_names_decides(
    body: str, operator: str, kernels: int
) -> None:
    model = model_of(text_of(body))
    for node in model.graph.node:
        entry = node.metadata_props.add()
        entry.key = HIERARCHY
        entry.value = f"['nets.Net', '{operator}']"
    graph = as_run(build(prepare(ModelFile("<text>", model, 0)), Request()).graph)
    assert [node.op_type for node in graph.nodes].count(ONE) == kernels


def test_a_mask_that_the_exporter_computed_takes_no_memory() -> None:
    """It is there for tracing alone, and nothing else reads it."""
    text = (
        masked(seen="seen")
        .replace("bias = Where(seen, zero, low)", "")
        .replace("float zero = {0}", "float[2,1,5,11] bias, float zero = {0}")
    )
    found = network(text)
    assert found.graph.nodes[0].inputs == ("q", "k", "v")
    assert "bias" not in found.parameters.buffers


def test_a_kernel_of_unknown_rows_is_a_lower_bound() -> None:
    for shape in (None, (5,), (None, 7)):
        call = Call((Operand(shape, 32),), ())
        assert ATTENTION.saved_extra_bytes(call) is None


WRITTEN_OUT = "t = Transpose <perm = [0, 1, 3, 2]> (k)  c = MatMul(q, t)  e = Mul(c, s)"


def attention_findings(body: str, attention: str = "fused", precision: str = "fp32") -> list[str]:
    found = network(text_of(body), attention=attention, precision=precision).findings
    return [each.message for each in found if each.code == "attention_as_products"]


@pytest.mark.parametrize(
    ("precision", "size"),
    [("fp32", "600 B"), ("bf16", "300 B"), ("fp16-master", "300 B"), ("mixed-bf16", "900 B")],
)
def test_attention_that_may_be_fused_is_a_warning(precision: str, size: str) -> None:
    """One kernel would not save its 150 weights [2,3,5,5]; under autocast of 4 and of 2 bytes."""
    body = f"{WRITTEN_OUT}  d = Softmax <axis = -1> (e)  {OUT}"
    (message,) = attention_findings(body, precision=precision)
    assert message == (
        "1 attention counted as the file has it, as two matmuls and a softmax: 'Softmax_3'; a "
        "network that calls scaled_dot_product_attention runs one kernel instead, which does not "
        f"save the attention weights for backward: {size} less"
    )


@pytest.mark.parametrize(
    "body",
    [
        f"{WRITTEN_OUT}  f = Add(e, mask)  d = Softmax <axis = -1> (f)  {OUT}",
        f"{WRITTEN_OUT}  d = Softmax <axis = -1> (e)  w = Dropout(d)  y = MatMul(w, v)",
    ],
)
def test_attention_with_a_mask_and_dropout_is_a_warning_too(body: str) -> None:
    assert len(attention_findings(body)) == 1


@pytest.mark.parametrize(
    "body",
    [
        PLAIN,
        (
            "d = Softmax <axis = -1> (q)  t = Transpose <perm = [0, 1, 3, 2]> (d)  c = MatMul(v, t)"
            "  y = MatMul(c, k)"
        ),
        f"{WRITTEN_OUT}  d = Softmax <axis = -1> (e)  r = ReduceSum(d)  y = Mul(v, r)",
    ],
    ids=["one kernel", "of no scores", "no values"],
)
def test_no_warning_on_attention(body: str) -> None:
    assert attention_findings(body) == []


def test_no_warning_with_the_math_backend() -> None:
    assert attention_findings(f"{WRITTEN_OUT}  d = Softmax <axis = -1> (e)  {OUT}", "math") == []
