"""The upper ends of dims by operator, in a graph of a few nodes, compared with onnxruntime's runs.

``c`` selects among the 13 rows of ``x``; ``z`` has the rows that it selects.
"""

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from data_dependent import contradictions, shapes_of_run, upper_of
from graphs import model_of

from onnxmem.model.graph import Tensor
from onnxmem.model.intervals.dims import GENERATING, MICROSOFT_RULES, REDUCING, RULES
from onnxmem.model.intervals.interval import times
from onnxmem.model.intervals.sequences import SEQUENCES

pytest.importorskip("onnxruntime")

INPUTS = """float[13,7] x, bool[13] c, int64[1] n, float[7,3] w, float[1,11,4] b, float[1,3,11] s,
    float[1,1,8,8] image, float[1,40,1] sound, float[13,4] regions, float[1,2,3,3] kernel"""
WEIGHTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] five = {5},
    int64[1] rest = {-1}, int64[1] last = {-2}, int64[1] far = {9223372036854775807},
    int64 begin = {0}, int64 third = {3}, int64 by1 = {1}, int64 by2 = {2}, bool going = {1},
    float[2] twice = {2.0, 1.0}, int64[4] pads = {1, 0, 2, 0}, int64[2] repeats = {2, 1},
    int64[2] none = {0, 1},
    float[1] overlap = {0.5}, float[2] off_on = {0.0, 1.0}, int64[1,1] first = {0},
    int64[1] seven = {7}, int64[2] lengths = {2, 5}"""
SELECTED = "z = Compress<axis = 0>(x, c)  r = Shape<start = 0, end = 1>(z)"
SIZE = "n2 = Max(n, two)  k = Min(n2, five)  number = Squeeze(k)"
"""From 2 to 5, by n."""
FEW = "n1 = Max(n, one)  few = Min(n1, five)"
"""From 1 to 5, by n."""
AXIS = "n1 = Min(n, one)"
"""Axis 0 or 1, by n."""
ROW = "q = Slice(x, zero, one, zero)"
INDICES = "f = NonZero(c)  g = Squeeze(f, zero)"
INTEGERS = "i = Cast<to = 7>(z)"
BOOLEANS = "p = Cast<to = 9>(z)"
WORDS = f"{SELECTED} {INDICES} t = Cast<to = 8>(g)"
NORMALIZED = 'StringNormalizer<stopwords = ["3", "5"], is_case_sensitive = 1, locale = "C">(t)'
STOPPED = 'stopwords = ["3", "5"], '
TOKENS = 'com.microsoft.Tokenizer<mark = 1, mincharnum = 1, pad_value = "#", separators = [""]>'
OF_TWO = "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Pow Sub Sum"

WINDOWS = ("Blackman", "Hamming", "Hann")

CASES = [
    ("Compress", "y = Compress<axis = 0>(x, c)", "<=13 7"),
    ("Compress", "y = Compress(x, c)", "<=13"),
    ("NonZero", "y = NonZero(x)", "2 <=91"),
    ("StringSplit", f'{WORDS} y, q = StringSplit<delimiter = "1", maxsplit = 1>(t)', "<=13 <=2"),
    ("StringSplit", f'{WORDS} q, y = StringSplit<delimiter = "1", maxsplit = 1>(t)', "<=13"),
    ("NonMaxSuppression", "d = NonZero(x)  y = NonMaxSuppression(b, s, zero, overlap)", "0 3"),
    ("Tile", f"{SELECTED} y = Tile(z, none)", "0 7"),
    ("NonMaxSuppression", "y = NonMaxSuppression(b, s, five, overlap)", "<=15 3"),
    ("NonMaxSuppression", "y = NonMaxSuppression(b, s, far, overlap)", "<=33 3"),
    ("Unique", "y = Unique(x)", "<=91"),
    ("Unique", "q, j, y = Unique(x)", "91"),
    ("Unique", "y = Unique<axis = 0>(x)", "<=13 7"),
    ("TopK", f"{SELECTED} k = Min(r, five)  y, j = TopK<axis = 0>(z, k)", "<=5 7"),
    ("TopK", "y, j = TopK<axis = 0>(x, n)", "<=13 7"),
    ("Range", f"{SELECTED} t = Squeeze(r)  y = Range(begin, t, by2)", "<=7"),
    (
        "Range",
        f"{SELECTED} t = Squeeze(r)  u = Neg(t)  v = Neg(third)  y = Range(begin, u, v)",
        "<=5",
    ),
    ("Slice", f"{SELECTED} y = Slice(z, two, five, zero)", "<=3 7"),
    ("Slice", f"{SELECTED} y = Slice(z, last, far, zero)", "<=2 7"),
    ("Slice", f"{SELECTED} y = Slice(z, zero, last, zero)", "<=11 7"),
    ("Slice", f"{SELECTED} y = Slice(z, two, far, zero, two)", "<=7 7"),
    ("Slice", f"{SELECTED} h = Div(r, two)  y = Slice(x, zero, h, zero)", "<=6 7"),
    ("Slice", "y = Slice(x, n, far, zero)", "<=13 7"),
    # What a stop is beyond its start, whatever the start is.
    ("Slice", "m = Add(n, one)  y = Slice(x, n, m, zero)", "<=1 7"),
    ("Slice", "m = Sub(n, two)  y = Slice(x, m, n, zero)", "<=2 7"),
    ("Slice", "m = Neg(n)  k = Add(m, five)  y = Slice(x, m, k, zero)", "<=5 7"),
    # A stop before its start is behind it where it alone is negative, and counted from the end.
    ("Slice", "m = Add(n, one)  y = Slice(x, m, n, zero)", "<=13 7"),
    ("Slice", "k = Abs(n)  m = Add(k, one)  y = Slice(x, m, k, zero)", "0 7"),
    ("Slice", "m = Sub(five, n)  y = Slice(x, n, m, zero)", "<=13 7"),
    ("Slice", "m = Add(n, five)  y = Slice(x, n, m, zero, two)", "<=7 7"),
    (
        "Slice",
        """i = Squeeze(n)  j = Cast<to = 6>(i)  k = Cast<to = 7>(j)  l = Add(by2, k)
        m = Unsqueeze(l, zero)  y = Slice(x, n, m, zero)""",
        "<=2 7",
    ),
    (
        "Slice",
        """m = Add(n, two)  u = Concat<axis = 0>(one, n)  v = Concat<axis = 0>(five, m)
        y = Slice(x, u, v)""",
        "4 <=2",
    ),
    ("Slice", f"{FEW} m = Neg(few)  y = Slice(x, m, far, zero)", "<=5 7"),
    ("Slice", f"{FEW} m = Sub(zero, few)  y = Slice(x, m, n, zero)", "<=5 7"),
    # A later start leaves fewer: 3 to 7 rows.
    ("Slice", f"{FEW} m = Sub(few, one)  y = Slice(x, m, seven, zero)", "<=7 7"),
    ("Split", f"{SELECTED} y, q = Split<axis = 0, num_outputs = 2>(z)", "<=7 7"),
    ("Split", f"{SELECTED} y, q = Split<axis = 1>(z, lengths)", "<=13 2"),
    ("Squeeze", f"{INDICES} y = Identity(g)", "<=13"),
    ("Unsqueeze", f"{AXIS} y = Unsqueeze(x, n1)", "<=13 <=13 <=7"),
    (
        "Unsqueeze",
        f"{AXIS} m = Concat<axis = 0>(n1, two) y = Unsqueeze(x, m)",
        "<=13 <=13 <=13 <=7",
    ),
    ("Unsqueeze", f"{SELECTED} y = Unsqueeze(z, one)", "<=13 1 7"),
    ("Tile", f"{SELECTED} y = Tile(z, repeats)", "<=26 7"),
    ("Tile", f"{SELECTED} m = Concat<axis = 0>(r, one)  y = Tile(x, m)", "<=169 7"),
    ("Pad", f"{SELECTED} y = Pad(z, pads)", "<=16 7"),
    ("Resize", f'{SELECTED} y = Resize<mode = "nearest">(z, , twice)', "<=26 7"),
    ("Resize", f"{SELECTED} d = Concat<axis = 0>(r, five)  y = Resize(x, , , d)", "<=13 5"),
    ("Reshape", f"{SELECTED} d = Concat<axis = 0>(rest, seven)  y = Reshape(z, d)", "<=13 7"),
    ("Reshape", f"{SELECTED} d = Concat<axis = 0>(seven, rest)  y = Reshape(z, d)", "7 <=13"),
    ("Reshape", f"{SELECTED} y = Reshape(z, rest)", "<=91"),
    ("Reshape", f"{SELECTED} d = Concat<axis = 0>(r, rest)  y = Reshape(z, d)", "<=13 7"),
    (
        "Expand",
        f"{SELECTED} {ROW} d = Concat<axis = 0>(r, seven)  y = Expand(q, d)",
        "<=13 7",
    ),
    (
        # torch's script exporter writes expand(-1, 7): a target of -1 is 1, which is filled in.
        "Expand",
        f"""{SELECTED} {ROW} d = Concat<axis = 0>(r, seven)  k = Shape(d)
        ones = ConstantOfShape<value = int64[1] {{1}}>(k)  m = Mul(ones, rest)
        e = Equal(d, m)  t = Where(e, ones, d)  y = Expand(q, t)""",
        "<=13 7",
    ),
    ("Range", f"{SELECTED} t = Gather(r, begin)  y = Range(begin, t, by1)", "<=13"),
    ("Flatten", f"{SELECTED} y = Flatten<axis = 0>(z)", "1 <=91"),
    ("Gather", f"{INDICES} y = Gather<axis = 0>(x, g)", "<=13 7"),
    (
        "GatherElements",
        f"{SELECTED} q, j = TopK<axis = 0>(z, r)  y = GatherElements(z, j)",
        "<=13 7",
    ),
    ("GatherND", "f = NonZero(x)  t = Transpose(f)  y = GatherND(x, t)", "<=91"),
    (
        "ScatterElements",
        f"{SELECTED} q, j = TopK<axis = 0>(z, r)  y = ScatterElements(z, j, q)",
        "<=13 7",
    ),
    (
        "ScatterND",
        f"{SELECTED} {ROW} y = ScatterND(z, first, q)",
        "<=13 7",
    ),
    ("Gemm", f"{SELECTED} y = Gemm(z, w)", "<=13 3"),
    ("Gemm", f"{SELECTED} t = Transpose(z)  y = Gemm<transA = 1>(t, w)", "<=13 3"),
    ("MatMul", f"{SELECTED} y = MatMul(z, w)", "<=13 3"),
    ("MatMul", f"{SELECTED} t = Transpose(z)  y = MatMul(z, t)", "<=13 <=13"),
    ("Einsum", f'{SELECTED} y = Einsum<equation = "ij,jk->ki">(z, w)', "3 <=13"),
    ("OneHot", f"{INDICES} d = Squeeze(five)  y = OneHot(g, d, off_on)", "<=13 5"),
    ("OneHot", f"{SELECTED} d = Squeeze(r)  y = OneHot(zero, d, off_on)", "1 <=13"),
    (
        "ConstantOfShape",
        f"{FEW} d = Div(few, last)  m = Sub(two, d)  y = ConstantOfShape(m)",
        "<=4",
    ),
    (
        "ConstantOfShape",
        "d = Mod<fmod = 1>(n, last)  m = Add(d, two)  y = ConstantOfShape(m)",
        "<=3",
    ),
    ("ConstantOfShape", "d = Mod(n, last)  m = Add(d, two)  y = ConstantOfShape(m)", "<=2"),
    (
        "ConstantOfShape",
        f"{SELECTED} d = Concat<axis = 0>(r, five)  y = ConstantOfShape(d)",
        "<=13 5",
    ),
    ("Concat", f"{SELECTED} y = Concat<axis = 0>(z, x, z)", "<=39 7"),
    ("PRelu", f"{SELECTED} {ROW} y = PRelu(z, q)", "<=13 7"),
    *((operator, f"{SELECTED} y = {operator}(z, z)", "<=13 7") for operator in OF_TWO.split()),
    *(
        (operator, f"{SELECTED} {BOOLEANS} y = {operator}(p, p)", "<=13 7")
        for operator in ("And", "Or", "Xor")
    ),
    *(
        (operator, f"{SELECTED} {INTEGERS} y = {operator}(i, two)", "<=13 7")
        for operator in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod")
    ),
    (
        "BitShift",
        f'{SELECTED} u = Cast<to = 13>(z)  y = BitShift<direction = "LEFT">(u, u)',
        "<=13 7",
    ),
    *(
        (
            "ConstantOfShape",
            f"""{SELECTED} u = Cast<to = 13>(r)  t = Cast<to = 13>(two)
            v = BitShift<direction = "{direction}">(u, t)
            m = Cast<to = 7>(v)  y = ConstantOfShape(m)""",
            bound,
        )
        for direction, bound in (("LEFT", "<=52"), ("RIGHT", "<=3"))
    ),
    ("Where", f"{SELECTED} {BOOLEANS} y = Where(p, z, overlap)", "<=13 7"),
    ("StringNormalizer", f"{WORDS} y = {NORMALIZED}", "<=13"),
    *((f"{name}Window", f"{SIZE} y = {name}Window(number)", "<=5") for name in WINDOWS),
    (
        "MelWeightMatrix",
        f"""{SIZE} least = Constant<value_float = 0.0>()  most = Constant<value_float = 4000.0>()
        rate = Constant<value_int = 8192>()  length = Constant<value_int = 16>()
        y = MelWeightMatrix(number, length, rate, least, most)""",
        "9 <=5",
    ),
    ("STFT", f"{SIZE} f = Constant<value_int = 16>() y = STFT(sound, number, , f)", "1 <=13 9 2"),
    (
        "STFT",
        f"{SIZE} r = Range(begin, number, by1)  f = Cast<to = 1>(r)  y = STFT(sound, by2, f)",
        "1 <=20 <=3 2",
    ),
    ("STFT", f"{SIZE} y = STFT<onesided = 0>(sound, by2, , number)", "1 <=20 <=5 2"),
    ("DFT", f"{SIZE} y = DFT(sound, number)", "1 <=5 2"),
    ("DFT", f"{SIZE} y = DFT<onesided = 1>(sound, number)", "1 <=3 2"),
    ("CenterCropPad", f"{SIZE} y = CenterCropPad<axes = [0]>(x, k)", "<=5 7"),
    ("CenterCropPad", f"{SELECTED} y = CenterCropPad<axes = [0]>(z, five)", "5 7"),
    (
        "MaxUnpool",
        f"""{SIZE} p, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(image)
        h = Add(k, seven)  d = Concat<axis = 0>(one, one, h, h)
        y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(p, i, d)""",
        "1 1 <=12 <=12",
    ),
    (
        "Col2Im",
        f"""{SIZE} d = Concat<axis = 0>(k, k)  m = Mul(k, k)  e = Concat<axis = 0>(one, two, m)
        u = ConstantOfShape(e)  block = Concat<axis = 0>(one, one)  y = Col2Im(u, d, block)""",
        "1 2 <=5 <=5",
    ),
    (
        "AffineGrid",
        f"""{SIZE} d = Concat<axis = 0>(one, one, k, seven)
        t = Constant<value_floats = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]>()
        e = Constant<value_ints = [1, 2, 3]>()  u = Reshape(t, e)  y = AffineGrid(u, d)""",
        "1 <=5 7 2",
    ),
    ("Resize", f"{SIZE} y = Resize<axes = [0]>(x, , , k)", "<=5 7"),
    (
        "Resize",
        f"{SIZE} f = Cast<to = 1>(k)  y = Resize<axes = [0]>(x, , f)",
        "<=65 7",
    ),
    (
        "Resize",
        f"""{SIZE} d = Concat<axis = 0>(k, k)
        y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , d)""",
        "<=5 <=5",
    ),
    (
        "Resize",
        f"""{SIZE} d = Concat<axis = 0>(k, k)
        y = Resize<keep_aspect_ratio_policy = "not_smaller">(x, , , d)""",
        "<=9 <=5",
    ),
    (
        "Split",
        f"{SIZE} m = Sub(seven, k) d = Concat<axis=0>(k, m) y, q = Split<axis=1>(x, d)",
        "13 <=5",
    ),
    *((name, f"{AXIS} y = {name}(x, n1)", "<=13 <=7") for name in REDUCING),
    ("Upsample", "z = Compress<axis = 0>(x, c) y = Upsample(z, twice)", "<=26 7"),
]

THREE = "l = SequenceConstruct(z, z, z)"
ROWS = "l = SplitToSequence<axis = 0>(z)"
SEQUENCE_CASES = [
    (f"{SELECTED} l = SequenceConstruct(z, x)  y = SequenceAt(l, begin)", "<=13 7"),
    (f"{SELECTED} l = SequenceConstruct(z, x)  y = ConcatFromSequence<axis = 0>(l)", "<=26 7"),
    (
        "l = SequenceConstruct(x, x)  y = ConcatFromSequence<axis = 0, new_axis = 1>(l)",
        "2 13 7",
    ),
    (
        f"{SELECTED} e = SequenceEmpty()  l = SequenceInsert(e, z)  y = SequenceAt(l, begin)",
        "<=13 7",
    ),
    (
        f"{SELECTED} {THREE} m = SequenceErase(l)  y = ConcatFromSequence<axis = 0>(m)",
        "<=26 7",
    ),
    (
        f"{SELECTED} l = SplitToSequence<axis = 0, keepdims = 0>(z)  y = SequenceAt(l, begin)",
        "7",
    ),
    (f"{SELECTED} o = Optional(z)  y = OptionalGetElement(o)", "<=13 7"),
    (
        f"""{SELECTED} l = SequenceConstruct(z, x)  m = SequenceMap<
            body = doubled (float[?,7] e) => (float[?,7] o) {{ o = Concat<axis = 0>(e, e) }}>(l)
        y = ConcatFromSequence<axis = 0>(m)""",
        "<=52 7",
    ),
    (
        f"{SELECTED} l = SplitToSequence<axis = 0>(z, by2)  y = SequenceAt(l, begin)",
        "<=2 7",
    ),
    (
        """m = Max(n, one)  q = Squeeze(m)  l = SplitToSequence<axis = 0>(x, q)
        y = SequenceAt(l, begin)""",
        "<=13 7",
    ),
    (
        f"""{FEW} q = Squeeze(few)  l = SplitToSequence<axis = 0>(x, q)
        y = ConcatFromSequence<axis = 0>(l)""",
        "<=65 7",
    ),
    (
        f"{SELECTED} {ROWS} q = SequenceLength(l)  d = Unsqueeze(q, zero)  y = ConstantOfShape(d)",
        "<=13",
    ),
]


MICROSOFT_CASES = [
    ("Tokenizer", f"{WORDS} y = {TOKENS}(t)", "<=13 <=?"),
    ("Tokenizer", f"{WORDS} q = {NORMALIZED.replace(STOPPED, '')} y = {TOKENS}(q)", "<=13 <=?"),
    ("Unique", "f = Flatten(x)  g = Reshape(f, rest)  y, j, k = com.microsoft.Unique(g)", "<=91"),
    ("Unique", "g = Reshape(x, rest)  j, y, k = com.microsoft.Unique(g)", "91"),
    ("Unique", "g = Reshape(x, rest)  j, k, y = com.microsoft.Unique(g)", "<=91"),
    ("Range", f"{SIZE} y = com.microsoft.Range(begin, number)", "<=5"),
    ("Range", f"{SIZE} y = com.microsoft.Range(begin, number, by2)", "<=3"),
    (
        "Pad",
        f"""{SIZE} p = Concat<axis = 0>(zero, k, zero, zero)
        v = Constant<value_floats = [0.0]>()  y = com.microsoft.Pad(x, p, v)""",
        "13 <=12",
    ),
    (
        "CropAndResize",
        f"""{SIZE} {INDICES} d = Concat<axis = 0>(k, five)  e = Cast<to = 6>(d)
        r = Gather(regions, g)  h = Sub(g, g)  i = Cast<to = 6>(h)
        y = com.microsoft.CropAndResize(image, r, i, e)""",
        "<=13 1 <=5 5",
    ),
    (
        "ConvTransposeWithDynamicPads",
        f"""{SIZE} p = Concat<axis = 0>(k, zero, zero, one)
        y = com.microsoft.ConvTransposeWithDynamicPads<strides = [2, 2]>(image, kernel, p)""",
        "1 2 <=15 16",
    ),
    ("DynamicTimeWarping", f"{SELECTED} y = com.microsoft.DynamicTimeWarping(z)", "2 <=19"),
    (
        "BifurcationDetector",
        f"""{INDICES} source = Range(begin, third, by1)  old = Identity(g)
        y, suffix = com.microsoft.BifurcationDetector<min_ngram_size = 1, max_ngram_size = 3>(
            source, old, begin)""",
        "<=13",
    ),
]


def model_with(body: str, opset: int = 18) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>'
    return model_of(f"{header} agraph ({INPUTS}) => (y) <{WEIGHTS}> {{ {body} }}")


def feeds(seed: int) -> dict[str, npt.NDArray[np.generic]]:
    """Elements that are equal here and there; the first row is always selected."""
    draws = np.random.default_rng(seed)
    chosen = draws.random(13) < draws.random()
    chosen[0] = True
    return {
        "x": draws.integers(-3, 4, (13, 7)).astype(np.float32),
        "c": chosen,
        "n": draws.integers(0, 6, 1),
        "w": draws.normal(0, 1, (7, 3)).astype(np.float32),
        "b": draws.random((1, 11, 4)).astype(np.float32),
        "s": draws.random((1, 3, 11)).astype(np.float32),
        "image": draws.random((1, 1, 8, 8)).astype(np.float32),
        "sound": draws.random((1, 40, 1)).astype(np.float32),
        "regions": np.tile(np.array([0, 0, 4, 4], np.float32), (13, 1)),
        "kernel": draws.random((1, 2, 3, 3)).astype(np.float32),
    }


def ends(tensor: Tensor) -> str:
    """The dims of a tensor: ``<=13 7``."""
    assert tensor.shape is not None
    names = tensor.dynamic or ("",) * len(tensor.shape)
    return " ".join(
        f"{'<=' if name else ''}{'?' if dim is None else dim}"
        for name, dim in zip(names, tensor.shape, strict=True)
    )


@pytest.mark.parametrize(("operator", "body", "expected"), CASES)
def test_no_run_is_beyond_the_upper_ends(operator: str, body: str, expected: str) -> None:
    opsets = {"Upsample": 9, "StringSplit": 20, "AffineGrid": 20, "DFT": 20}
    model = model_with(body, opsets.get(operator, 18))
    upper = upper_of(model)
    assert ends(upper.graph.tensors["y"]) == expected
    assert upper.unbounded == ()
    for seed in range(5):
        assert contradictions(upper, shapes_of_run(model, feeds(seed))) == []


@pytest.mark.parametrize(("operator", "body", "expected"), MICROSOFT_CASES)
def test_no_operator_of_onnxruntime_is_beyond_its_upper_ends(
    operator: str, body: str, expected: str
) -> None:
    model = model_with(body)
    upper = upper_of(model)
    assert ends(upper.graph.tensors["y"]) == expected
    assert upper.unbounded == (("y:1",) if operator == "Tokenizer" else ())
    for seed in range(5):
        assert contradictions(upper, shapes_of_run(model, feeds(seed))) == []


@pytest.mark.parametrize(("body", "expected"), SEQUENCE_CASES)
def test_no_sequence_is_beyond_the_upper_ends(body: str, expected: str) -> None:
    model = model_with(body)
    upper = upper_of(model)
    assert ends(upper.graph.tensors["y"]) == expected
    for seed in range(5):
        assert contradictions(upper, shapes_of_run(model, feeds(seed))) == []


DECODER = """decoder (int32[b,s] input_ids, int32[b,s] position_ids, int32[b,t] attention_mask,
        float[2,b,1,p,2] past_0) => (float[b,s,11] logits, float[2,b,1,t,2] present_0)
    <int64[2] axes = {0, 2}> {
        logits = Gather(table, input_ids)
        k = Gather(keys, input_ids)  u = Unsqueeze(k, axes)  v = Concat<axis = 0>(u, u)
        present_0 = Concat<axis = 3>(past_0, v)
    }"""
"""A language model of one layer without attention: [2, b, heads, tokens, size] is its cache."""
SEARCHES: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "GreedySearch": ("(ids, most, least, one)", "y", {"y": (2, 9)}),
    "Sampling": ("(ids, most, least, one)", "y", {"y": (2, 9)}),
    "BeamSearch": (
        "(ids, most, least, beams, kept, one, one)",
        "y, scores, all",
        {"y": (2, 3, 9), "scores": (2, 3), "all": (9, 2, 4, 11)},
    ),
}


@pytest.mark.parametrize("operator", sorted(SEARCHES))
def test_a_search_has_at_most_the_longest_text(operator: str) -> None:
    inputs, outputs, shapes = SEARCHES[operator]
    model = model_of(f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        agraph (int32[2,3] ids, int32[1] n) => ({outputs})
        <int32[1] low = {{5}}, int32[1] high = {{9}}, int32[1] least = {{1}},
         float[1] one = {{1.0}}, int32[1] beams = {{4}}, int32[1] kept = {{3}}> {{
            a = Max(n, low)  most = Min(a, high)
            {outputs} = com.microsoft.{operator}<model_type = 0, eos_token_id = 10,
                pad_token_id = 0, vocab_size = 11, decoder = {DECODER}>{inputs}
        }}""")
    draws = np.random.default_rng(0)
    (decoder,) = (each.g for each in model.graph.node[-1].attribute if each.name == "decoder")
    for name, dims in (("table", (11, 11)), ("keys", (11, 2))):
        elements = draws.normal(0, 1, dims).astype(np.float32)
        decoder.initializer.append(onnx.numpy_helper.from_array(elements, name))
    upper = upper_of(model)
    assert upper.unbounded == ()
    assert {name: upper.graph.tensors[name].shape for name in shapes} == shapes
    # A body gets the rows of all beams, and a cache of all tokens before the last.
    rows = 8 if operator == "BeamSearch" else 2
    body = {
        name.rpartition("/")[2]: tensor.shape
        for name, tensor in upper.graph.tensors.items()
        if "/decoder/" in name
    }
    assert (body["logits"], body["present_0"]) == ((rows, 9, 11), (2, rows, 1, 18, 2))
    for number in range(4, 12):
        ids = draws.integers(1, 9, (2, 3), np.int32)
        fed = {"ids": ids, "n": np.array([number], np.int32)}
        assert contradictions(upper, shapes_of_run(model, fed)) == []


def test_axes_that_a_run_decides_leave_the_elements() -> None:
    upper = upper_of(model_with(f"{AXIS} y = ReduceSum<keepdims = 0>(x, n1)"))
    assert (upper.graph.tensors["y"].num_elements, upper.unbounded) == (13 * 7, ())


def test_without_elements_there_are_none_whatever_the_others_are() -> None:
    assert times(0, None) == times(None, 3, 0) == 0
    assert times(3, None) is None
    assert times(3, 4) == 12
    assert times() == 1


def test_every_rule_has_a_case() -> None:
    assert {operator for operator, _, _ in CASES} >= RULES.keys()
    searches = GENERATING - {"WhisperBeamSearch"}
    assert searches == SEARCHES.keys()
    assert {operator for operator, _, _ in MICROSOFT_CASES} == MICROSOFT_RULES.keys() - GENERATING
    bodies = " ".join(body for body, _ in SEQUENCE_CASES)
    assert [
        name for name in SEQUENCES if f"{name}(" not in bodies and f"{name}<" not in bodies
    ] == []


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("l = SplitToSequence<axis = 0>(x, q)  y = SequenceLength(l)", 13 * 7),
        (
            "m = SplitToSequence<axis = 0>(x, q)  l = SequenceErase(m)  y = SequenceLength(l)",
            13 * 7,
        ),
        (
            "m = SplitToSequence<axis = 0>(x, q)  l = SequenceInsert(m, w)  y = SequenceLength(l)",
            112,
        ),
        ("l = SequenceConstruct(z, w)  y = SequenceLength(l)", 13 * 7 + 7 * 3),
    ],
)
def test_a_sequence_has_the_elements_of_all_its_tensors(body: str, count: int) -> None:
    upper = upper_of(model_with(f"{SELECTED} {FEW} q = Squeeze(few)  {body}"))
    assert upper.graph.tensors["l"].num_elements == count


def test_a_slice_of_an_unknown_number_of_axes_may_cut_any() -> None:
    model = model_with("o = Tile(zero, n)  e = Tile(five, n)  y = Slice(x, o, e)")
    assert ends(upper_of(model).graph.tensors["y"]) == "<=13 <=7"
