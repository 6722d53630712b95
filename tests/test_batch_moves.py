"""A batch that a file fixes, moved: every shape is that of the same network written at the new one.

Each network is a text with ``{b}`` for the batch and ``{tb}``, ``{hb}`` for what an exporter folds
it into; the oracle is the same text at the other batch.
"""

from itertools import product

import pytest
from graphs import model_of

from onnxmem import Analysis, analyze

CLASS_EMBEDDING = """agraph (float[{b},5,7] x) => (float[{b},6,7] y) <float[{b},1,7] token> {{
    y = Concat <axis = 1> (token, x) }}"""

FOLDED_TOKENS = """agraph (float[{b},6,8] x) => (float[{b},6,8] y)
    <int64[2] flat = {{{tb}, 8}}, int64[3] back = {{6, {b}, 8}}, float[8,8] w> {{
    t = Transpose <perm = [1, 0, 2]> (x)
    f = Reshape(t, flat)
    g = Gemm(f, w)
    r = Reshape(g, back)
    y = Transpose <perm = [1, 0, 2]> (r) }}"""

HEADS = """agraph (float[{b},6,8] x) => (float[{b},6,8] y)
    <int64[3] heads = {{6, {hb}, 2}}, int64[3] back = {{6, {b}, 8}}> {{
    t = Transpose <perm = [1, 0, 2]> (x)
    h = Reshape(t, heads)
    q = Transpose <perm = [1, 0, 2]> (h)
    k = Transpose <perm = [1, 2, 0]> (h)
    s = MatMul(q, k)
    p = Softmax <axis = -1> (s)
    o = MatMul(p, q)
    c = Transpose <perm = [1, 0, 2]> (o)
    r = Reshape(c, back)
    y = Transpose <perm = [1, 0, 2]> (r) }}"""

WINDOWS = """agraph (float[{b},4,4,3] x) => (float[{b},4,4,3] y)
    <int64[6] cut = {{{b}, 2, 2, 2, 2, 3}}, int64[4] flat = {{{wb}, 2, 2, 3}},
     int64[4] back = {{{b}, 4, 4, 3}}> {{
    c = Reshape(x, cut)
    t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c)
    w = Reshape(t, flat)
    r = Relu(w)
    d = Reshape(r, cut)
    u = Transpose <perm = [0, 1, 3, 2, 4, 5]> (d)
    y = Reshape(u, back) }}"""

STATES = """agraph (float[{b},5,3] x) => (y, last)
    <float[1,44,3] w, float[1,44,11] r, float[1,{b},11] h> {{
    t = Transpose <perm = [1, 0, 2]> (x)
    s = Identity(h)
    y, last = LSTM <hidden_size = 11> (t, w, r, , , s, h) }}"""

MASK = """agraph (float[{b},5,5] x) => (float[{b},5,5] y)
    <float[{b},5,5] mask, int64 k = {{1}}, float[5,5] w> {{
    m = Trilu <upper = 1> (mask, k)
    h = MatMul(x, w)
    y = Add(h, m) }}"""

EXPANDED = """agraph (float[{b},5,7] x) => (float[{b},6,7] y)
    <int64[3] shape = {{{b}, 1, 7}}, float[1,1,7] token> {{
    t = Expand(token, shape)
    y = Concat <axis = 1> (t, x) }}"""

COUNTED = """agraph (float[{b},5] x) => (float[{b},1,5] y) <int64[{b},1] samples = {{{samples}}}> {{
    y = Gather(x, samples) }}"""

RESIZED = """agraph (float[{b},3,5,5] x) => (float[{b},3,10,10] y)
    <int64[4] sizes = {{{b}, 3, 10, 10}}> {{ y = Resize(x, , , sizes) }}"""

NETWORKS = {
    "class token": CLASS_EMBEDDING,
    "tokens folded into the batch": FOLDED_TOKENS,
    "heads folded into the batch": HEADS,
    "windows": WINDOWS,
    "recurrent states": STATES,
    "mask": MASK,
    "expanded token": EXPANDED,
    "counted samples": COUNTED,
    "resized": RESIZED,
}


def network(text: str, batch: int, asked: int | None = None) -> Analysis:
    samples = ", ".join(map(str, range(batch)))
    sizes = {"b": batch, "tb": 6 * batch, "hb": 4 * batch, "wb": 4 * batch, "samples": samples}
    return analyze(model_of(text.format(**sizes)), batch=asked)


def activations(found: Analysis) -> dict[str, object]:
    tensors = found.graph.tensors.values()
    return {tensor.name: tensor.shape for tensor in tensors if tensor.role == "activation"}


LEAVES_NO_TRACE = {("mask", 1), ("counted samples", 1)}
"""Constants of one sample serve any batch, or a single one: the tests below."""

CASES = [
    (name, old, new)
    for name, old, new in product(NETWORKS, (1, 2, 3), (1, 2, 3, 8))
    if (name, old) not in LEAVES_NO_TRACE
]


@pytest.mark.parametrize(("name", "old", "new"), CASES)
def test_a_moved_batch_gives_the_shapes_of_a_new_export(name: str, old: int, new: int) -> None:
    moved, fresh = network(NETWORKS[name], old, new), network(NETWORKS[name], new)
    assert activations(moved) == activations(fresh)
    assert (moved.status, moved.settings.batch) == ("ok", new)


def test_a_mask_of_one_sample_serves_all() -> None:
    moved = network(MASK, 1, 7)
    assert moved.graph.tensors["y"].shape == (7, 5, 5)
    assert moved.graph.tensors["m"].shape == (1, 5, 5)


def test_an_output_that_stays_behind_is_said() -> None:
    """One sample is picked, whatever the batch: a dim of 1 that looks like a batch left behind."""
    moved = network(COUNTED, 1, 7)
    assert moved.status == "partial"
    assert [finding.code for finding in moved.findings] == ["batch_fixed"]
    assert moved.batch_law is None
