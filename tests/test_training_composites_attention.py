"""Attention that the framework runs in one kernel, in the forms in which exporters write it.

B 2, heads 3, rows 5, width 7: q, k, v [2,3,5,7].
"""

import pytest
from training_steps import network, run_as, step

from onnxmem.ops.spec import Call, Operand
from onnxmem.training.composites.framework import ATTENTION

TEXT = """
    agraph (float[2,3,5,7] q, float[2,3,5,7] k, float[2,3,5,7] v, float[5,5] mask,
            float[2,3,7,5] turned, float[2,5,21] flat) => (float[2,3,5,7] y{more})
    <float s = {{0.61}}, float half = {{0.5}}, bool on = {{1}}, int64[3] three = {{6, 5, 7}},
     int64[4] four = {{2, 3, 7, 5}}, int64[4] heads = {{2, 5, 3, 7}}> {{
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
    """It reads the key as it is before it is turned and scaled."""
    assert run_as(text_of(PLAIN)) == [ONE]
    assert inputs_of(PLAIN) == ("q", "k", "v")


def test_attention_runs_as_products_where_a_recipe_says_so() -> None:
    assert run_as(text_of(PLAIN), attention="math") == [
        *("Mul", "Transpose", "Mul", "MatMul", "Softmax", "MatMul"),
    ]


@pytest.mark.parametrize("add", ["e = Add(c, mask)", "e = Add(mask, c)"])
def test_attention_with_a_bias(add: str) -> None:
    body = f"{QUERY}  {KEY}  {SCORES}  {add}  d = Softmax <axis = -1> (e)  {OUT}"
    assert run_as(text_of(body)) == [ONE]
    assert inputs_of(body) == ("q", "k", "v", "mask")


def test_attention_with_dropout_of_its_weights() -> None:
    """The kernel keeps a seed, and no mask."""
    body = f"{QUERY}  {KEY}  {SCORES}  {WEIGHTS}  w, m = Dropout(d, half, on)  y = MatMul(w, v)"
    assert run_as(text_of(body)) == [ONE]


def test_a_key_that_is_flattened_to_be_turned() -> None:
    """As the plain export does it: to three dims, turned, and back to four."""
    key = (
        "f = Reshape(k, three)  t = Transpose <perm = [0, 2, 1]> (f)  r = Reshape(t, four)"
        "  b = Mul(r, s)"
    )
    body = f"{QUERY}  {key}  {SCORES}  {WEIGHTS}  {OUT}"
    assert run_as(text_of(body)) == [ONE]
    assert inputs_of(body) == ("q", "k", "v")


def test_a_key_that_is_turned_as_its_heads_are_parted() -> None:
    """One Transpose does both: the kernel reads its result, a view."""
    key = "p = Reshape(flat, heads)  t = Transpose <perm = [0, 2, 3, 1]> (p)  b = Mul(t, s)"
    body = f"{QUERY}  {key}  {SCORES}  {WEIGHTS}  {OUT}"
    assert run_as(text_of(body)) == ["Reshape", "Transpose", ONE]
    assert inputs_of(body) == ("q", "t", "v")


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
def test_no_attention(body: str) -> None:
    """One side unscaled, no softmax, scaled later, no product before it, the key not turned."""
    assert ONE not in run_as(text_of(body))


@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_what_the_kernel_never_makes_cannot_be_read_elsewhere(name: str) -> None:
    """An output of the graph, or another node's input: the network makes the products itself."""
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


def test_the_kernel_keeps_its_operands_its_output_and_a_number_a_row() -> None:
    """Rows are counted up to a multiple of 32; and 16 bytes of a seed."""
    one = 4 * 2 * 3 * 5 * 7
    found = step(LAYER)
    assert found.saved_activation_bytes == one + one + 4 * 2 * 3 * 32 + 16
    scores = 4 * 2 * 3 * 5 * 5
    as_products = step(LAYER, attention="math")
    # q, q * s, its key * s, the weights, and the output
    assert as_products.saved_activation_bytes == one + one + one + scores + one


def test_a_kernel_of_unknown_rows_is_a_lower_bound() -> None:
    for shape in (None, (5,), (None, 7)):
        call = Call((Operand(shape, 32),), ())
        assert ATTENTION.saved_extra_bytes(call) is None
