"""Transposes of images before operators that onnxruntime has in both layouts."""

import pytest
from transposed_graphs import left_of

pytestmark = pytest.mark.measure

IMAGES = """agraph (uint8[2,5,7,3] x, int8[2,5,7,3] signed, float[2,5,7,3] real, uint8[2,5,3] line,
  float[4] fed, uint8[2,3,5,7] q, uint8[2,3,5,7] q2) => ({outputs})
  <float s = {{0.5}}, uint8 p = {{3}}, uint8[7,3] w, uint8 w0 = {{3}},
   float[4] by_6 = {{1.0, 1.0, 2.0, 3.0}}, float[4] by_8 = {{1.0, 2.0, 4.0, 1.0}},
   float[2] by_2 = {{2.0, 3.0}}, int64[4] sizes = {{2, 3, 15, 21}},
   float[8] region = {{0, 0, 0, 0, 1, 1, 1, 1}}, float[0] none = {{}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "level", "left"),
    [
        (
            "a = First(x) b = MaxPool<kernel_shape = [2, 2]>(a) y = Last(b)",
            "basic",
            "Transpose MaxPool Transpose",
        ),
        (
            "a = First(x) b = MaxPool<kernel_shape = [2, 2]>(a) y = Last(b)",
            "extended",
            "NhwcMaxPool",
        ),
        (
            "a = First(x) y = MaxPool<kernel_shape = [2, 2], storage_order = 1>(a)",
            "extended",
            "NhwcMaxPool Transpose",
        ),
        (
            "a = First(signed) y = MaxPool<kernel_shape = [2, 2]>(a)",
            "extended",
            "NhwcMaxPool Transpose",
        ),
        ("a = First(real) y = MaxPool<kernel_shape = [2, 2]>(a)", "extended", "Transpose MaxPool"),
        ("a = Swap(line) y = MaxPool<kernel_shape = [2]>(a)", "extended", "NhwcMaxPool Transpose"),
        (
            "a = Transpose<perm = [0, 3, 2, 1]>(x) y = MaxPool<kernel_shape = [2, 2]>(a)",
            "extended",
            "Transpose MaxPool",
        ),
        ("a = First(x) y, z = MaxPool<kernel_shape = [2, 2]>(a)", "extended", "Transpose MaxPool"),
        (
            "a = First(x) y, = MaxPool<kernel_shape = [2, 2]>(a)",
            "extended",
            "NhwcMaxPool Transpose",
        ),
        (
            "a = First(x) y = MaxPool<kernel_shape = [2, 2]>(a) z = Cast<to = 1>(a)",
            "extended",
            "NhwcMaxPool Transpose Transpose Cast",
        ),
        (
            "z = First(x) y = MaxPool<kernel_shape = [2, 2]>(z)",
            "extended",
            "NhwcMaxPool Transpose Transpose",
        ),
    ],
)
def test_a_pooling_of_bytes_is_switched_once_it_is_assigned(
    body: str, level: str, left: str
) -> None:
    assert left_of(IMAGES, body, level) == left


@pytest.mark.parametrize(
    ("body", "level", "left"),
    [
        (
            "a = First(real) b = Resize(a, , by_6) y = Last(b)",
            "basic",
            "Transpose Resize Transpose",
        ),
        ("a = First(real) b = Resize(a, , by_6) y = Last(b)", "extended", "Resize"),
        ('a = First(x) y = Resize<mode = "linear">(a, , by_6)', "extended", "Resize Transpose"),
        (
            'a = First(signed) y = Resize<mode = "linear">(a, , by_6)',
            "extended",
            "Resize Transpose",
        ),
        ("a = First(x) y = Resize(a, , by_6)", "extended", "Transpose Resize"),
        ('a = First(real) y = Resize<mode = "linear">(a, , by_6)', "extended", "Transpose Resize"),
        (
            'a = First(real) b = Resize<mode = "linear">(a, , by_6) y = Last(b)',
            "extended",
            "Resize",
        ),
        ("a = First(real) b = Resize(a, , fed) y = Last(b)", "extended", "Gather Resize"),
        ("a = First(real) b = Resize(a, , , sizes) y = Last(b)", "extended", "Resize"),
        ("a = First(real) b = Resize(a, region, by_6) y = Last(b)", "extended", "Resize"),
        ("a = First(real) b = Resize(a, none, by_6) y = Last(b)", "extended", "Resize"),
        (
            "a = First(real) b = Resize<axes = [2, 3]>(a, , by_2) y = Last(b)",
            "extended",
            "Gather Resize",
        ),
        (
            "a = Other(real) b = Resize(a, , by_6) y = Other(b)",
            "extended",
            "Transpose Resize Transpose",
        ),
        ("a = Last(real) b = Resize(a, , by_8) y = First(b)", "extended", "Resize"),
    ],
)
def test_a_resize_of_images_is_switched_once_it_is_assigned(
    body: str, level: str, left: str
) -> None:
    assert left_of(IMAGES, body, level) == left


@pytest.mark.parametrize(
    ("body", "opset", "left"),
    [
        ("Resize(a, by_6)", 10, "Resize"),
        ("Upsample(a, by_6)", 9, "Transpose Upsample Transpose"),
    ],
)
def test_an_old_resize_has_scales_alone(body: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, f"a = First(real) b = {body} y = Last(b)", "extended", opset) == left


@pytest.mark.parametrize(
    ("operator", "inputs", "left"),
    [
        ("QLinearAdd", "a, s, p, c, s, p, s, p", "QLinearAdd"),
        ("QLinearMul", "a, s, p, c, s, p, s, p", "QLinearMul"),
        ("QLinearAdd", "a, s, p, w, s, p, s, p", "QLinearAdd Transpose"),
        ("QLinearAdd", "a, s, p, w0, s, p, s, p", "QLinearAdd Transpose"),
        ("QLinearConcat<axis = -1>", "s, p, a, s, p, c, s, p", "QLinearConcat"),
        ("QLinearLeakyRelu<alpha = 0.1>", "a, s, p, s, p", "QLinearLeakyRelu Transpose"),
        ("QLinearSigmoid", "a, s, p, s, p", "QLinearSigmoid Transpose"),
        ("QLinearSoftmax<axis = 3, opset = 13>", "a, s, p, s, p", "QLinearSoftmax Transpose"),
        ("QLinearSoftmax<axis = 1, opset = 9>", "a, s, p, s, p", "QLinearSoftmax Transpose"),
    ],
)
def test_an_operator_on_quantized_values_lets_transposes_pass(
    operator: str, inputs: str, left: str
) -> None:
    assert (
        left_of(
            IMAGES, f"a = Last(q) c = Last(q2) b = com.microsoft.{operator}({inputs}) y = First(b)"
        )
        == left
    )


@pytest.mark.parametrize(
    ("there", "pool", "back", "left"),
    [
        (
            "First",
            "QLinearGlobalAveragePool<channels_last = 0>",
            "Last",
            "QLinearGlobalAveragePool",
        ),
        (
            "First",
            "QLinearAveragePool<channels_last = 0, kernel_shape = [2, 2]>",
            "Last",
            "QLinearAveragePool",
        ),
        (
            "First",
            "QLinearGlobalAveragePool<channels_last = 1>",
            "Last",
            "Transpose QLinearGlobalAveragePool Transpose",
        ),
        (
            "First",
            "QLinearAveragePool<channels_last = 1, kernel_shape = [2, 2]>",
            "Last",
            "Transpose QLinearAveragePool Transpose",
        ),
        (
            "Last",
            "QLinearGlobalAveragePool<channels_last = 0>",
            "First",
            "Transpose QLinearGlobalAveragePool Transpose",
        ),
        (
            "Last",
            "QLinearAveragePool<channels_last = 0, kernel_shape = [2, 2]>",
            "First",
            "Transpose QLinearAveragePool Transpose",
        ),
        (
            "Last",
            "QLinearGlobalAveragePool<channels_last = 1>",
            "First",
            "QLinearGlobalAveragePool",
        ),
        (
            "Last",
            "QLinearAveragePool<channels_last = 1, kernel_shape = [2, 2]>",
            "First",
            "QLinearAveragePool",
        ),
    ],
)
def test_a_pooling_of_quantized_values_has_both_layouts(
    there: str, pool: str, back: str, left: str
) -> None:
    assert (
        left_of(IMAGES, f"a = {there}(q) b = com.microsoft.{pool}(a, s, p, s, p) y = {back}(b)")
        == left
    )
