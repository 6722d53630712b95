"""What converters write that are not among the exported models: CNTK, JAX, Keras, and halves.

The graphs are written out by hand after their patterns; onnxruntime runs them.
"""

import numpy as np
import onnx
import pytest
from data_dependent import contradictions, shapes_of_run, upper_of
from graphs import model_of

CNTK = """agraph (float[13,2,5] x, float[13] keep) => (h, y)
    <float limit = {0.5}, int64[3] flat = {-1, 1, 10},
     float[1,10] zero = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> {
        c = Greater(keep, limit)
        s = Compress<axis = 0>(x, c)
        r = Reshape(s, flat)
        h, y = Scan<num_scan_inputs = 1, body = past (float[1,10] p, float[1,10] u) => (q, o) {
            t = Add(p, u)  q = Tanh(t)  o = Identity(q)
        }>(zero, r)
    }"""
"""Sequence.gather, and a recurrence over what it keeps: CNTK writes a Scan over the first axis."""
JAX = """agraph (float[13,7] x, int64 start, int64 most) => (w, y, t)
    <int64[1] axes = {0}, int64 zero = {0}, int64 nine = {9}, int64 four = {4}, int64 one = {1},
     int64 limit = {16}, bool going = {1}, float[1,1] row = {1.0}, int64 high = {11}> {
        a = Max(start, zero)  b = Min(a, nine)  c = Unsqueeze(b, axes)
        d = Add(b, four)  e = Unsqueeze(d, axes)
        w = Slice(x, c, e, axes)
        n = Min(most, limit)
        y, t = Loop(, going, zero) <
            body = step(int64 i, bool go, int64 k) => (on, kn, o) {
                kn = Add(k, one)  l = Less(kn, n)  on = Identity(l)  o = Identity(row)
            }
        >
    }"""
"""lax.dynamic_slice clamps its start; lax.while_loop has no trip count, only a condition."""
KERAS = """agraph (float[13,7] x, int64[13] lengths) => (y)
    <int64[1] rest = {-1}, int64 limit = {3}, int64[1] axes = {1}, int64[1] mean = {0}> {
        m = Greater(lengths, limit)  f = Reshape(m, rest)
        i = NonZero(f)  t = Transpose<perm = [1, 0]>(i)  s = Squeeze(t, axes)
        g = Gather<axis = 0>(x, s)  u = Unique<sorted = 1>(s)
        y = ReduceMean<keepdims = 0>(g, mean)
    }"""
"""tf.boolean_mask behind a Keras Masking layer, as tf2onnx writes it."""
HALVES = """agraph (float16[1,11,4] b, float16[1,3,11] s) => (z)
    <int64 most = {5}, float overlap = {0.5}, int64[1] column = {2}, int64[1] axes = {1}> {
        c = Cast<to = 1>(b)  d = Cast<to = 1>(s)
        n = NonMaxSuppression(c, d, most, overlap)
        i = Gather<axis = 1>(n, column)  j = Squeeze(i, axes)
        k = Gather<axis = 1>(b, j)  z = Cast<to = 10>(k)
    }"""
"""A detector that a converter made of halves: casts stand around what has no kernel for them."""


def feeds(seed: int) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(seed)
    return {
        "x": draws.normal(0, 1, (13, 7)).astype(np.float32),
        "keep": draws.random(13).astype(np.float32),
        "start": np.array(draws.integers(-3, 15)),
        "most": np.array(draws.integers(0, 30)),
        "lengths": draws.integers(0, 9, 13),
        "b": draws.random((1, 11, 4)).astype(np.float16),
        "s": draws.random((1, 3, 11)).astype(np.float16),
    }


@pytest.mark.parametrize(
    ("text", "names", "found"),
    [
        (CNTK, "s r y", [(13, 2, 5), (13, 1, 10), (13, 1, 10)]),
        (JAX, "w t", [(4, 7), (16, 1, 1)]),
        (KERAS, "g u y", [(13, 7), (13,), (7,)]),
        (HALVES, "n z", [(15, 3), (1, 15, 4)]),
    ],
)
def test_dims_of_a_converted_model_have_upper_ends(
    text: str, names: str, found: list[tuple[int, ...]]
) -> None:
    model: onnx.ModelProto = model_of(text)
    upper = upper_of(model)
    assert upper.unbounded == ()
    assert [upper.graph.tensors[name].shape for name in names.split()] == found
    inputs = {value.name for value in model.graph.input}
    for seed in range(5):
        given = {name: array for name, array in feeds(seed).items() if name in inputs}
        if "x" in given and text == CNTK:
            given["x"] = np.ones((13, 2, 5), np.float32)
        assert contradictions(upper, shapes_of_run(model, given)) == []
