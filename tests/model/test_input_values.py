"""Shapes that the values of inputs decide, as a user gives them."""

import onnx
import pytest
from graphs import graph_of, model_of

import onnxmem
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.input_values import with_input_values
from onnxmem.ops.spec import Shape
from onnxmem.settings import Values

RESHAPED = "agraph (float[2,15] x, int64[3] t) => (y) { y = Reshape(x, t)  }"
BRANCHES = """agraph (float[7] x, int64 n) => (y) <int64 two = {2}> {
    c = Equal(n, two)
    k = If (c) <then_branch = t () => (int64[1] a) { a = Constant <value_ints = [3]> () },
                else_branch = e () => (int64[1] b) { b = Constant <value_ints = [5]> () }>
    y, i = TopK(x, k) }"""


def shape_with(text: str, values: dict[str, Values]) -> Shape | None:
    prepared = prepare(ModelFile("<text>", model_of(text), 0))
    bound = build(prepared, Request())
    return with_input_values(prepared, bound, values).graph.tensors["y"].shape


def test_a_given_target_is_the_shape() -> None:
    assert shape_with(RESHAPED, {"t": (5, 3, 2)}) == (5, 3, 2)
    assert shape_with(RESHAPED, {"t": (5, -1, 2)}) == (5, 3, 2)
    assert shape_with(RESHAPED, {}) == (None, None, None)


@pytest.mark.parametrize("declared", ["2,3,5", "N,3,5"])
def test_a_given_target_overrides_the_declared_shape(declared: str) -> None:
    text = RESHAPED.replace("(y)", f"(float[{declared}] y)")
    assert shape_with(text, {"t": (5, 3, 2)}) == (5, 3, 2)


@pytest.mark.parametrize(("number", "size"), [(2, 3), (7, 5)])
def test_values_come_from_the_branch_that_runs(number: int, size: int) -> None:
    assert shape_with(BRANCHES, {"n": (number,)}) == (size,)


def test_a_value_that_does_not_fit_is_ignored_and_reported() -> None:
    analysis = onnxmem.analyze(model_of(RESHAPED), values={"t": [2, 15]})
    assert analysis.graph.tensors["y"].num_elements is None
    assert [f.message for f in analysis.findings if f.code == "unused_value"] == [
        "input 't' has 3 elements, but its value 2"
    ]


def test_a_value_for_an_unknown_input_is_reported() -> None:
    analysis = onnxmem.analyze(model_of(RESHAPED), values={"u": 2}, one_of_several=True)
    assert [f.message for f in analysis.findings if f.code == "unused_value"] == [
        "--value u: the model has no input of that name"
    ]


def test_the_public_api_accepts_values() -> None:
    assert onnxmem.analyze(model_of(RESHAPED), values={"t": [5, 3, 2]}).graph.tensors[
        "y"
    ].shape == (5, 3, 2)


def test_an_empty_list_needs_no_value() -> None:
    text = "agraph (float[2,3,5] x, int64[0] a) => (y) { y = ReduceSum(x, a) }"
    assert graph_of(text).tensors["y"].shape == (1, 1, 1)


# Sequences


SEQUENCES = [
    ("s = SequenceConstruct(a, b)  y = SequenceAt(s, one)", (5, 3)),
    ("s = SequenceConstruct(a, b)  y = SequenceAt(s, last)", (5, 3)),
    ("s = SequenceConstruct(a, b)  y = SequenceAt(s, n)", (None, 3)),
    ("s = SequenceConstruct(a, a)  y = SequenceAt(s, n)", (2, 3)),
    (
        "s = SequenceConstruct(a, b)  t = SequenceInsert(s, b, zero)  y = SequenceAt(t, zero)",
        (5, 3),
    ),
    ("s = SequenceConstruct(a, b)  t = SequenceInsert(s, a, last)  y = SequenceAt(t, one)", (2, 3)),
    ("s = SequenceConstruct(a, b)  t = SequenceErase(s)  y = SequenceAt(t, zero)", (2, 3)),
    ("s = SequenceConstruct(a, b)  t = SequenceErase(s, zero)  y = SequenceAt(t, zero)", (5, 3)),
    ("s = SequenceConstruct(a, b)  t = SequenceErase(s, n)  y = SequenceAt(t, zero)", (None, 3)),
    (
        "s0 = SequenceEmpty()  s = SequenceInsert(s0, a)  y = ConcatFromSequence <axis = 0> (s)",
        (2, 3),
    ),
    ("s = SequenceConstruct(a, b)  y = ConcatFromSequence <axis = 0> (s)", (7, 3)),
    (
        "s = SequenceConstruct(a, a)  y = ConcatFromSequence <axis = -1, new_axis = 1> (s)",
        (2, 3, 2),
    ),
    ("s = SplitToSequence(b, two)  y = SequenceAt(s, last)", (1, 3)),
    ("s = SplitToSequence(b)  y = SequenceAt(s, zero)", (1, 3)),
    ("s = SplitToSequence <keepdims = 0> (b)  y = SequenceAt(s, zero)", (3,)),
    ("s = SplitToSequence(b, parts)  y = SequenceAt(s, one)", (4, 3)),
]


@pytest.mark.parametrize(("nodes", "shape"), SEQUENCES)
def test_elements_of_a_sequence_have_a_shape(nodes: str, shape: Shape) -> None:
    text = f"""agraph (float[2,3] a, float[5,3] b, int64 n) => (y) <int64 zero = {{0}},
        int64 one = {{1}}, int64 two = {{2}}, int64 last = {{-1}}, int64[2] parts = {{1, 4}}>
        {{ {nodes} }}"""
    assert graph_of(text).tensors["y"].shape == shape


def test_a_name_in_another_body_is_another_tensor() -> None:
    text = """agraph (float[2,3] a, float[5,3] b, bool c, seq(float[N,3]) q) => (y, z)
        <int64 zero = {0}> {
        y = If (c) <then_branch = t () => (o) { s = SequenceConstruct(a)  o = SequenceAt(s, zero) },
                    else_branch = e () => (p) { p = Identity(a) }>
        z = If (c) <then_branch = u () => (r) { s = Identity(q)  r = SequenceAt(s, zero) },
                    else_branch = f () => (w) { w = Identity(b) }> }"""
    tensors = graph_of(text).tensors
    assert tensors["y"].shape == (2, 3)
    assert tensors["z"].shape == (None, 3)


# Odd operands of onnxruntime's operators


@pytest.mark.parametrize(
    "node",
    [
        *("ExpandDims(x, nine)", "ExpandDims(x, minus)", "UnfoldTensor <dim = 3, size = 1> (x)"),
        *("UnfoldTensor <size = 9> (x)", "UnfoldTensor <size = 1, step = 0> (x)", "Pad(x, nine)"),
        *("Range(x, x)", "Range(one, two, zero)", "CropAndResize(x, x, nine, nine)"),
        *("ConvTransposeWithDynamicPads(x, x)", "GatherND(x, six)", "MatMulFpQ4(x, x, unknown)"),
        *("ConvTransposeWithDynamicPads(i, i, nine)", "WordConvEmbedding(zero, x)"),
    ],
)
def test_values_that_do_not_fit_leave_a_shape_unknown(node: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>
        agraph (float[2,3] x, float[1,3,5,5] i, int64 unknown, int32[4,6] six) => (y)
        <int32 nine = {{9}}, int32 minus = {{-9}}, int64 zero = {{0}}, int64 one = {{1}},
        int64 two = {{2}}> {{ y = com.microsoft.{node} }}"""
    tensor = graph_of(text).tensors["y"]
    assert tensor.num_elements is None


@pytest.mark.parametrize(
    "node",
    [
        *(
            "Crop(x)",
            "DynamicSlice(x, k, n)",
            "DynamicSlice(x, k, two)",
            "DynamicSlice(x, k, k, far)",
        ),
        "GivenTensorFill <input_as_shape = 1> (x)",
    ],
)
def test_removed_operators_with_invalid_operands_are_unknown(node: str) -> None:
    text = f"""<ir_version: 3, opset_import: ["": 9]> agraph (float[2,3] x, int64[1] n) => (y)
        <int64[1] k = {{1}}, int64[2] two = {{1, 2}}, int64[1] far = {{7}}> {{ y = {node} }}"""
    model = model_of(text)
    assert graph_of(onnx.printer.to_text(model)).tensors["y"].num_elements is None
