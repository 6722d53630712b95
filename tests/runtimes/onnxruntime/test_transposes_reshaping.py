"""How a Transpose passes operators that name axes or amounts along all axes."""

import pytest
from transposed_graphs import left_of

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,3,5,7] x, float[2,3,5,12] x12, float[2,1,5,7] x1,
  float[2,1,5,1] x11, float[2,3,5] flat, float[6,12,5,7] x6, float[1,3,5,7] alone,
  float[n,3,5,12] symbolic, float[n,1,5,7] symbolic1, float[0,3,5,12] empty,
  float[2,12,5,7] wide, int64[1] fed, int64[2] fed2, int64[q] some, int64[4] fed4,
  int64[5] fed5, int64[8] fed8) => ({outputs})
  <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] last = {{-1}},
   int64[2] ends = {{-1, 2}}, int64[2] outer = {{-1, 0}}, int64[2] starts = {{1, 0}},
   int64[2] stops = {{2, 3}}, int64[2] axes = {{3, -3}}, int32[2] starts32 = {{1, 0}},
   int32[2] stops32 = {{2, 3}}, int32[2] axes32 = {{3, 1}}, int64[4] times = {{1, 2, 3, 4}},
   int64[8] pads = {{0, 1, 2, 3, 4, 5, 6, 7}}, float value = {{3.0}},
   int64[2] last_pads = {{1, 2}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "opset", "left"),
    [
        ("a = Last(x1) y = Squeeze(a, three)", 21, "Transpose Squeeze"),
        ("a = Last(x11) y = Squeeze(a, ends)", 21, "Transpose Squeeze"),
        ("a = Last(x1) b = Squeeze(a, three) y = Swap(b)", 21, "Squeeze Transpose"),
        ("a = Last(x1) b = Squeeze(a) y = Swap(b)", 21, "Transpose Squeeze Transpose"),
        ("a = Last(x1) b = Squeeze(a, fed) y = Swap(b)", 21, "Transpose Squeeze Transpose"),
        ("a = Last(x1) b = Squeeze<axes = [3]>(a) y = Swap(b)", 12, "Squeeze Transpose"),
        ("a = Last(x1) b = Squeeze(a) y = Swap(b)", 12, "Transpose Squeeze Transpose"),
    ],
)
def test_a_squeeze_names_the_axes_before_the_transpose(body: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, body, opset=opset) == left


@pytest.mark.parametrize(
    ("body", "opset", "left"),
    [
        (
            "a = Swap(flat) b = Unsqueeze(a, one) y = Transpose<perm = [0, 1, 3, 2]>(b)",
            21,
            "Unsqueeze",
        ),
        (
            "a = Swap(flat) b = Unsqueeze(a, outer) y = Softmax(b)",
            21,
            "Transpose Unsqueeze Softmax",
        ),
        (
            "a = Swap(flat) b = Unsqueeze(a, outer) y = Transpose<perm = [0, 1, 3, 2, 4]>(b)",
            21,
            "Unsqueeze",
        ),
        (
            (
                "a = Swap(flat) b = Unsqueeze<axes = [-1, 0]>(a) y = Transpose<perm = [0, 1, 3, "
                "2, 4]>(b)"
            ),
            12,
            "Unsqueeze",
        ),
        ("a = Swap(flat) b = Unsqueeze(a, fed) y = Other(b)", 21, "Transpose Unsqueeze Transpose"),
    ],
)
def test_an_unsqueeze_keeps_its_axes(body: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, body, opset=opset) == left


@pytest.mark.parametrize(
    ("inputs", "left"),
    [
        ("one, two, last", "Slice"),
        ("one, two, last, two", "Slice"),
        ("one, two", "Slice"),
        ("one, two, , one", "Slice"),
        ("starts, stops, axes", "Slice"),
        ("starts, stops", "Slice"),
        ("starts32, stops32, axes32", "Slice"),
        ("starts32, stops32", "Slice"),
        ("one, two, fed", "Transpose Slice Transpose"),
        ("fed2, fed2", "Slice"),
        ("some, some", "Transpose Slice Transpose"),
    ],
)
def test_a_slice_cuts_along_the_axes_before_the_transpose(inputs: str, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) b = Slice(a, {inputs}) y = First(b)") == left


@pytest.mark.parametrize(
    ("attributes", "left"),
    [
        ("starts = [1], ends = [2], axes = [-1]", "Slice"),
        ("starts = [1, 0], ends = [2, 3]", "Slice"),
    ],
)
def test_an_old_slice_states_its_axes(attributes: str, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) b = Slice<{attributes}>(a) y = First(b)", opset=9) == left


@pytest.mark.parametrize(
    ("operation", "opset", "left"),
    [
        ("Pad(a, pads)", 21, "Pad"),
        ("Pad(a, pads, value)", 21, "Pad"),
        ("Pad(a, fed8)", 21, "Gather Pad"),
        ("Pad(a, last_pads, , three)", 21, "Gather Pad"),
        ("Pad<pads = [0, 1, 2, 3, 4, 5, 6, 7]>(a)", 10, "Pad"),
        ("Tile(a, times)", 21, "Tile"),
        ("Tile(a, fed4)", 21, "Gather Tile"),
    ],
)
def test_a_pad_or_a_tile_permutes_its_amounts(operation: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) b = {operation} y = First(b)", opset=opset) == left


@pytest.mark.parametrize(
    ("given", "order", "target", "left"),
    [
        ("x1", "Last", "[2, 1, 5, 7]", "Identity"),
        ("x1", "Last", "[2, 5, 1, 7]", "Transpose"),
        ("x1", "Last", "[1, 2, 5, 7]", "Transpose"),
        ("x1", "Last", "[5, 2, 1, 7]", "Transpose Reshape"),
        ("alone", "Last", "[3, 5, 1, 7]", "Transpose Reshape"),
        ("alone", "Transpose<perm = [1, 2, 3, 0]>", "[3, 5, 1, 7]", "Transpose"),
        ("alone", "Last", "[5, 7, 1, 3]", "Transpose"),
        ("symbolic1", "Last", "[-1, 1, 5, 7]", "Transpose Reshape"),
        ("x1", "Last", "[0, -1, 1, 7]", "Transpose"),
        ("x11", "Last", "[1, 1, 2, 5]", "Transpose"),
        ("x11", "Last", "[5, 2, 1, 1]", "Transpose Reshape"),
    ],
)
def test_a_reshape_that_moves_dims_of_1_is_a_transpose(
    given: str, order: str, target: str, left: str
) -> None:
    assert (
        left_of(
            IMAGES, f"s = Constant<value_ints = {target}>() a = {order}({given}) y = Reshape(a, s)"
        )
        == left
    )


@pytest.mark.parametrize(
    ("given", "order", "target", "left"),
    [
        ("x12", "First", "[2, 3, 4, 3, 5]", "Reshape Transpose"),
        ("x12", "First", "[2, 3, -1, 3, 5]", "Reshape Transpose"),
        ("x12", "First", "[0, 3, 4, 3, 5]", "Reshape Transpose"),
        ("wide", "Last", "[2, 5, 7, 3, 4]", "Reshape Transpose"),
        ("x6", "Last", "[2, 3, 5, 7, 3, 4]", "Reshape Transpose"),
        ("x12", "First", "[2, 1, 12, 3, 5]", "Reshape Transpose"),
        ("x12", "First", "[2, 12, 3, 5, 1]", "Transpose Reshape"),
        ("x12", "First", "[1, 2, 12, 3, 5]", "Reshape Transpose"),
        ("x", "Last", "[2, 35, 3]", "Transpose Reshape"),
        ("x", "Last", "[210]", "Transpose Reshape"),
        ("x", "Last", "[10, 7, 3]", "Transpose Reshape"),
        ("x12", "First", "[2, 4, 9, 5]", "Transpose Reshape"),
        ("symbolic", "First", "[-1, 3, 4, 3, 5]", "Transpose Reshape"),
        ("empty", "First", "[0, 3, 4, 3, 5]", "Transpose Reshape"),
    ],
)
def test_a_reshape_that_splits_dims_splits_them_before(
    given: str, order: str, target: str, left: str
) -> None:
    assert (
        left_of(
            IMAGES, f"s = Constant<value_ints = {target}>() a = {order}({given}) y = Reshape(a, s)"
        )
        == left
    )


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Reshape<allowzero = 1>(a, s)", "Reshape Transpose"),
        ("b = Reshape(a, s) y = Transpose<perm = [0, 3, 4, 1, 2]>(b)", "Reshape"),
        ("y = Reshape(a, fed5)", "Transpose Reshape"),
        ("y = Reshape(a, s) z = Softmax(a)", "Reshape Transpose Transpose Softmax"),
        ("y = Reshape(a, s) z = Sin(a)", "Reshape Transpose Transpose Sin"),
        ("b = Relu(a) y = Reshape(b, s)", "Transpose Relu Reshape"),
        ("b = Reshape(a, fed5) c = Add(b, value) y = Softmax(c)", "Transpose Reshape Add Softmax"),
    ],
)
def test_a_reshape_to_dims_that_are_known_alone(body: str, left: str) -> None:
    assert (
        left_of(IMAGES, f"s = Constant<value_ints = [2, 3, 4, 3, 5]>() a = First(x12) {body}")
        == left
    )
