"""Small models whose dims the data of a run decide, written as exporters write them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from graphs import model_of
from onnx import TensorProto, numpy_helper

Feeds = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class DataDependentModel:
    """A model in ONNX text, and what a run feeds it."""

    text: str
    feeds: Callable[[np.random.Generator], Feeds]
    opset: int = 18

    def proto(self) -> onnx.ModelProto:
        """The model with random weights."""
        model = model_of(f'<ir_version: 8, opset_import: ["": {self.opset}]> {self.text}')
        draws = np.random.default_rng(0)
        for weight in model.graph.initializer:
            if weight.data_location == TensorProto.EXTERNAL:
                elements = draws.normal(0, 0.3, tuple(weight.dims)).astype(np.float32)
                weight.CopyFrom(numpy_helper.from_array(elements, weight.name))
        return model


def floats(*shape: int) -> Callable[[np.random.Generator], npt.NDArray[np.float32]]:
    """Normal numbers."""
    return lambda draws: draws.normal(0, 1, shape).astype(np.float32)


def image(draws: np.random.Generator) -> Feeds:
    """An image of noise, of any contrast."""
    return {"image": draws.normal(0, draws.uniform(0.1, 2), (1, 3, 32, 32)).astype(np.float32)}


# An anchor per pixel: its box (as corners) and the scores of five classes.
_HEAD = """f = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(image, w)  g = Relu(f)  h = Conv(g, v)
    t = Transpose<perm = [0, 2, 3, 1]>(h)  p = Reshape(t, by_anchor)
    boxes, logits = Split<axis = 2>(p, parts)  scored = Sigmoid(logits)
    scores = Transpose<perm = [0, 2, 1]>(scored)"""
_HEAD_WEIGHTS = """float[16,3,3,3] w, float[9,16,1,1] v, int64[3] by_anchor = {1, 256, 9},
    int64[2] parts = {4, 5}, float[1] overlap = {0.7}, float[1] threshold = {0.6},
    int64[1] most = {20}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}"""

MODELS: Final[Mapping[str, DataDependentModel]] = MappingProxyType(
    {
        "detector": DataDependentModel(
            f"""agraph (float[1,3,32,32] image) => (found, classes) <{_HEAD_WEIGHTS}> {{ {_HEAD}
                k = NonMaxSuppression(boxes, scores, most, overlap, threshold)
                i = Gather<axis = 1>(k, two)  j = Squeeze(i, one)
                c = Gather<axis = 1>(k, one)  classes = Squeeze(c, one)
                all = Squeeze(boxes, zero)  found = Gather<axis = 0>(all, j) }}""",
            image,
        ),
        "detector with a limit of boxes": DataDependentModel(
            f"""agraph (float[1,3,32,32] image) => (found, best)
                <{_HEAD_WEIGHTS}, int64[1] limit = {{30}}, float[1] none = {{0.0}},
                 int64[1] rest = {{-1}}> {{ {_HEAD}
                k = NonMaxSuppression(boxes, scores, most, overlap, threshold)
                s = GatherND(scores, k)
                n = Shape(s)  m = Min(n, limit)  best, order = TopK<axis = 0>(s, m)
                top = Gather<axis = 0>(k, order)  i = Gather<axis = 1>(top, two)
                j = Squeeze(i, one)  all = Squeeze(boxes, zero)
                found = Gather<axis = 0>(all, j) }}""",
            image,
        ),
        "boxes filtered before suppression": DataDependentModel(
            f"""agraph (float[1,3,32,32] image) => (found)
                <{_HEAD_WEIGHTS}, float limit = {{0.5}}> {{ {_HEAD}
                best = ReduceMax<keepdims = 0>(scores, one)  flat = Squeeze(best, zero)
                mask = Greater(flat, limit)  z = NonZero(mask)  kept = Squeeze(z, zero)
                all = Squeeze(boxes, zero)  few = Gather<axis = 0>(all, kept)
                b = Unsqueeze(few, zero)  s = Gather<axis = 0>(flat, kept)
                s1 = Unsqueeze(s, zero)  s2 = Unsqueeze(s1, zero)
                k = NonMaxSuppression(b, s2, most, overlap, threshold)
                i = Gather<axis = 1>(k, two)  j = Squeeze(i, one)
                found = Gather<axis = 0>(few, j) }}""",
            image,
        ),
        "regions of a detector": DataDependentModel(
            f"""agraph (float[1,3,32,32] image) => (y)
                <{_HEAD_WEIGHTS}, float[784,11] fc, float size = {{15.0}}> {{ {_HEAD}
                first = Slice(scores, zero, one, one)
                k = NonMaxSuppression(boxes, first, most, overlap, threshold)
                i = Gather<axis = 1>(k, two)  j = Squeeze(i, one)
                c = Gather<axis = 1>(k, zero)  b = Squeeze(c, one)
                all = Squeeze(boxes, zero)  u = Sigmoid(all)
                pixels = Mul(u, size)  r = Gather<axis = 0>(pixels, j)
                a = RoiAlign<output_height = 7, output_width = 7, sampling_ratio = 2>(g, r, b)
                q = Flatten<axis = 1>(a)  y = Gemm(q, fc) }}""",
            image,
        ),
        "decoding loop": DataDependentModel(
            """agraph (float[1,16] state) => (tokens)
                <float[16,16] w, float[16,7] head, bool going = {1}, int64 most = {24},
                 int64[1,1] begin = {0}, int64 stop = {6}, float[16] b> {
                s, tokens = Loop(most, going, state, begin) <
                    body = step(int64 i, bool c, float[1,16] h, int64[1,L] t) => (co, ho, to)
                    {
                        m = MatMul(h, w)  u = Tanh(m)  ho = Add(u, b)  y = MatMul(ho, head)
                        a = ArgMax<axis = 1, keepdims = 1>(y)  to = Concat<axis = 1>(t, a)
                        q = Equal(a, stop)  n = Not(q)  co = Squeeze(n)
                    }
                > }""",
            lambda draws: {"state": draws.normal(0, 3, (1, 16)).astype(np.float32)},
        ),
        "distinct features": DataDependentModel(
            """agraph (int64[64] ids, bool[64] valid) => (y, back)
                <float[100,8] table, float[8,3] w> {
                kept = Compress<axis = 0>(ids, valid)  u, f, back, n = Unique(kept)
                e = Gather<axis = 0>(table, u)  m = MatMul(e, w)  y = Relu(m) }""",
            lambda draws: {
                "ids": draws.integers(0, 100, 64),
                "valid": draws.random(64) < draws.uniform(0.5, 1),
            },
        ),
        "length regulator": DataDependentModel(
            """agraph (float[1,12,8] x) => (y)
                <float[8,1] w, float[8,8,3] c, float low = {0.0}, float high = {6.0},
                 int64[1] two = {2}, int64[1] one = {1}, int64[1] zero = {0}, int64 begin = {0},
                 int64 by = {1}, int64 axis = {0}> {
                d = MatMul(x, w)  e = Exp(d)  u = Ceil(e)  t = Clip(u, low, high)
                q = Squeeze(t)  n = Cast<to = 7>(q)  total = ReduceSum<keepdims = 0>(n)
                r = Range(begin, total, by)  ends = CumSum(n, axis)
                rr = Unsqueeze(r, one)  over = GreaterOrEqual(rr, ends)
                o = Cast<to = 7>(over)  at = ReduceSum<keepdims = 0>(o, one)
                frames = Squeeze(x, zero)  z = Gather<axis = 0>(frames, at)
                zt = Transpose<perm = [1, 0]>(z)  zb = Unsqueeze(zt, zero)
                y = Conv<pads = [1, 1]>(zb, c) }""",
            lambda draws: {"x": draws.normal(0, 2, (1, 12, 8)).astype(np.float32)},
        ),
        "best k": DataDependentModel(
            """agraph (float[5,64] x, int64[1] k) => (y) {
                v, i = TopK<axis = 1>(x, k)  s = Softmax(v)  g = GatherElements<axis = 1>(x, i)
                y = Mul(s, g) }""",
            lambda draws: {
                "x": draws.normal(0, 1, (5, 64)).astype(np.float32),
                "k": draws.integers(1, 65, 1),
            },
        ),
        "sparse to dense": DataDependentModel(
            """agraph (float[16,16] x) => (y)
                <int64[2] shape = {16, 16}, float limit = {0.5}> {
                big = Greater(x, limit)  z = NonZero(big)  at = Transpose(z)
                v = GatherND(x, at)  e = Exp(v)  zeros = ConstantOfShape(shape)
                y = ScatterND(zeros, at, e) }""",
            lambda draws: {"x": draws.normal(draws.uniform(0, 2), 1, (16, 16)).astype(np.float32)},
        ),
        "words": DataDependentModel(
            """agraph (string[24] text) => (y, up) {
                few = StringNormalizer<case_change_action = "LOWER", is_case_sensitive = 1,
                    locale = "C",
                    stopwords = ["a", "the", "of"]>(text)
                y = Identity(few)
                up = StringNormalizer<case_change_action = "UPPER", locale = "C">(few) }""",
            lambda draws: {"text": draws.choice(["a", "the", "net", "of", "ROW", "peak"], 24)},
        ),
        "mask by length": DataDependentModel(
            """agraph (int64[8] lengths, float[8,32] x) => (y)
                <int64 begin = {0}, int64 by = {1}, int64 most = {32}, int64[1] one = {1},
                 int64[1] zero = {0}, float none = {0.0}> {
                c = Min(lengths, most)  n = ReduceMax<keepdims = 0>(c)
                r = Range(begin, n, by)  l = Unsqueeze(lengths, one)  mask = Less(r, l)
                e = Reshape(n, one)  part = Slice(x, zero, e, one)
                m = Where(mask, part, none)  y = Softmax(m) }""",
            lambda draws: {
                "lengths": draws.integers(1, 33, 8),
                "x": draws.normal(0, 1, (8, 32)).astype(np.float32),
            },
        ),
        "CTC decoding": DataDependentModel(
            """agraph (float[40,12] frames) => (tokens)
                <int64[1] zero = {0}, int64[1] one = {1}, int64[1] rest = {-1},
                 int64[1] far = {9223372036854775807}, int64 blank = {0}, bool[1] first = {1}> {
                a = ArgMax<axis = 1, keepdims = 0>(frames)
                now = Slice(a, one, far, zero)  before = Slice(a, zero, rest, zero)
                same = Equal(now, before)  other = Not(same)
                starts = Concat<axis = 0>(first, other)
                b = Equal(a, blank)  spoken = Not(b)  kept = And(starts, spoken)
                tokens = Compress<axis = 0>(a, kept) }""",
            lambda draws: {"frames": draws.normal(0, 1, (40, 12)).astype(np.float32)},
        ),
    }
)
