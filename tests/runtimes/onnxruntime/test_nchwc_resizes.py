"""Normalizations, resizes and transposes of values on blocks of channels."""

import re

import pytest
from optimized_graphs import agrees

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,16,7,11] x, float[n,16,h,v] sym, float[2,7,11,16] last,
  float[2,7,11,3] few_last, float[4] fed_scales, int64[4] fed_sizes, float[16] fed) => ({outputs})
  <float[16,16,1,1] w, float[16,16,1,1] w2, float[17,16,1,1] w17, float[16,3,1,1] few,
   float[16] m, float[16] s, float[16] o, float[16] v,
   float[17] m17, float[17] s17, float[17] o17, float[17] v17,
   float[17,1,1] m3, float[17,1,1] s3, float[17,1,1] o3, float[17,1,1] v3, float[8] region,
   float[4] by_6 = {{1.0, 1.0, 2.0, 3.0}}, float[4] by_5 = {{1.0, 1.0, 2.5, 3.0}},
   float[4] by_batch = {{3.0, 1.0, 2.0, 3.0}}, float[4] by_channel = {{1.0, 2.0, 2.0, 3.0}},
   float[4] down = {{1.0, 1.0, 0.5, 0.5}}, float[2] by_2 = {{2.0, 3.0}},
   int64[4] sizes = {{2, 16, 14, 33}}, int64[4] uneven = {{2, 16, 15, 33}},
   int64[4] smaller = {{2, 16, 3, 33}}, int64[2] two_sizes = {{14, 33}}>
  {{ {body} }}"""
POOL = "c = MaxPool<kernel_shape = [1, 1]>(x)"
FLOOR = 'nearest_mode = "floor", coordinate_transformation_mode'
NEAREST = f'{FLOOR} = "asymmetric"'


def left_of(body: str, opset: int = 21) -> str:
    """What is left of the nodes; their order varies in onnxruntime from process to process."""
    outputs = "y, z" if re.search(r"\bz( =|, )", body) else "y"
    text = IMAGES.format(outputs=outputs, body=body)
    return " ".join(agrees(text, opset=opset, has_order=False))


@pytest.mark.parametrize(
    ("opset", "body", "left"),
    [
        (
            7,
            "y = BatchNormalization(c, s17, o17, m17, v17)",
            "ReorderInput Conv Conv ReorderOutput",
        ),
        (
            9,
            "y = BatchNormalization(c, s17, o17, m17, v17)",
            "ReorderInput Conv Conv ReorderOutput",
        ),
        (
            15,
            "y = BatchNormalization(c, s17, o17, m17, v17)",
            "ReorderInput Conv Conv ReorderOutput",
        ),
        (
            21,
            "b = BatchNormalization(c, s17, o17, m17, v17) y = Relu(b)",
            "ReorderInput Conv Conv ReorderOutput",
        ),
        (
            21,
            "y, z, e = BatchNormalization<training_mode = 1>(c, s17, o17, m17, v17)",
            "ReorderInput Conv ReorderOutput BatchNormalization",
        ),
    ],
)
def test_a_normalization_becomes_a_convolution(opset: int, body: str, left: str) -> None:
    assert left_of(f"a = Conv(x, w17) c = Relu(a) {body}", opset) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "c = MaxPool<kernel_shape = [1, 1]>(x) y = BatchNormalization(c, s, o, m, v)",
            "ReorderInput MaxPool Conv ReorderOutput",
        ),
        (
            "c = MaxPool<kernel_shape = [1, 1]>(x) y = BatchNormalization(c, fed, o, m, v)",
            "ReorderInput MaxPool ReorderOutput BatchNormalization",
        ),
        (
            (
                "c = MaxPool<kernel_shape = [1, 1]>(x) b = Abs(fed) y = BatchNormalization(c, b, "
                "o, m, v)"
            ),
            "ReorderInput MaxPool ReorderOutput Abs BatchNormalization",
        ),
        ("y = BatchNormalization(x, s, o, m, v)", "BatchNormalization"),
    ],
)
def test_a_normalization_asks_for_constants(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("inputs", "opset", "left"),
    [
        (", by_6", 13, "ReorderInput MaxPool Upsample ReorderOutput"),
        (", by_6", 18, "ReorderInput MaxPool Upsample ReorderOutput"),
        (", by_6", 21, "ReorderInput MaxPool Upsample ReorderOutput"),
        ("region, by_6", 11, "ReorderInput MaxPool Upsample ReorderOutput"),
        (", by_5", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", by_batch", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", by_channel", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", down", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", fed_scales", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", , sizes", 21, "ReorderInput MaxPool Upsample ReorderOutput"),
        (", , uneven", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", , smaller", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", , fed_sizes", 21, "ReorderInput MaxPool ReorderOutput Resize"),
    ],
)
def test_a_resize_repeats_pixels_a_whole_number_of_times(
    inputs: str, opset: int, left: str
) -> None:
    assert left_of(f"{POOL} y = Resize<{NEAREST}>(c, {inputs})", opset) == left


@pytest.mark.parametrize(
    ("resize", "left"),
    [
        (
            'nearest_mode = "ceil", coordinate_transformation_mode = "asymmetric">(c, , by_6)',
            "ReorderInput MaxPool ReorderOutput Resize",
        ),
        (
            'nearest_mode = "floor", coordinate_transformation_mode = "half_pixel">(c, , by_6)',
            "ReorderInput MaxPool ReorderOutput Resize",
        ),
        ('nearest_mode = "floor">(c, , by_6)', "ReorderInput MaxPool ReorderOutput Resize"),
        (
            'mode = "linear", coordinate_transformation_mode = "asymmetric">(c, , by_6)',
            "ReorderInput MaxPool Upsample ReorderOutput",
        ),
        (
            'mode = "linear", coordinate_transformation_mode = "align_corners">(c, , by_6)',
            "ReorderInput MaxPool Upsample ReorderOutput",
        ),
        (
            'mode = "linear", coordinate_transformation_mode = "half_pixel">(c, , by_6)',
            "ReorderInput MaxPool Upsample ReorderOutput",
        ),
        (
            'mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel">(c, , by_6)',
            "ReorderInput MaxPool ReorderOutput Resize",
        ),
        ('mode = "linear">(c, , , sizes)', "ReorderInput MaxPool Upsample ReorderOutput"),
        (
            'mode = "cubic", coordinate_transformation_mode = "asymmetric">(c, , by_6)',
            "ReorderInput MaxPool ReorderOutput Resize",
        ),
    ],
)
def test_a_resize_in_one_of_the_modes_of_the_kernel(resize: str, left: str) -> None:
    assert left_of(f"{POOL} y = Resize<{resize}") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ('y = Resize<mode = "linear">(x, , by_6)', "Resize"),
        (
            (
                'c = MaxPool<kernel_shape = [1, 1]>(x) y = Resize<mode = "linear", axes = [2, '
                "3]>(c, , by_2)"
            ),
            "ReorderInput MaxPool ReorderOutput Resize",
        ),
        (
            (
                'c = MaxPool<kernel_shape = [1, 1]>(x) y = Resize<mode = "linear", axes = [2, '
                "3]>(c, , , two_sizes)"
            ),
            "ReorderInput MaxPool ReorderOutput Resize",
        ),
        (
            'c = MaxPool<kernel_shape = [1, 1]>(sym) y = Resize<mode = "linear">(c, , , sizes)',
            "ReorderInput MaxPool ReorderOutput Resize",
        ),
        (
            (
                "c = MaxPool<kernel_shape = [1, 1]>(x) b = Abs(region) y = Resize<mode = "
                '"linear">(c, b, by_6)'
            ),
            "ReorderInput MaxPool Upsample ReorderOutput",
        ),
    ],
)
def test_a_resize_by_axes_or_of_plain_values_stays(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("resize", "opset", "left"),
    [
        ("Resize(c, by_6)", 10, "ReorderInput MaxPool Upsample ReorderOutput"),
        ('Resize<mode = "linear">(c, by_6)', 10, "ReorderInput MaxPool Upsample ReorderOutput"),
        ("Upsample(c, by_6)", 9, "ReorderInput MaxPool Upsample ReorderOutput"),
        ('Upsample<mode = "linear">(c, by_6)', 9, "ReorderInput MaxPool Upsample ReorderOutput"),
        ("Upsample(c, by_5)", 9, "ReorderInput MaxPool ReorderOutput Upsample"),
        (
            "Upsample<scales = [1.0, 1.0, 2.0, 3.0]>(c)",
            7,
            "ReorderInput MaxPool ReorderOutput Upsample",
        ),
    ],
)
def test_an_old_resize_is_always_asymmetric(resize: str, opset: int, left: str) -> None:
    assert left_of(f"{POOL} y = {resize}", opset) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Transpose<perm = [0, 2, 3, 1]>(a)", "ReorderInput Conv ReorderOutput"),
        ("y = Transpose<perm = [0, 3, 2, 1]>(a)", "ReorderInput Conv ReorderOutput Transpose"),
        ("y = Transpose(a)", "ReorderInput Conv ReorderOutput Transpose"),
        (
            "y = Transpose<perm = [0, 2, 3, 1]>(a) z = Softmax(a)",
            "ReorderInput Conv ReorderOutput ReorderOutput Softmax",
        ),
    ],
)
def test_a_transpose_to_channels_last_goes_into_the_reorder_node(body: str, left: str) -> None:
    assert left_of(f"a = Conv(x, w17) {body}") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "a = Transpose<perm = [0, 3, 1, 2]>(last) y = Conv(a, w)",
            "ReorderInput Conv ReorderOutput",
        ),
        (
            "a = Transpose<perm = [0, 3, 1, 2]>(last) y = MaxPool<kernel_shape = [1, 1]>(a)",
            "ReorderInput MaxPool ReorderOutput",
        ),
        (
            "a = Transpose<perm = [0, 3, 1, 2]>(last) y = Conv(a, w) z = Conv(a, w2)",
            "Transpose ReorderInput Conv ReorderOutput Conv ReorderOutput",
        ),
        (
            "a = Transpose<perm = [0, 3, 1, 2]>(last) b = Softmax<axis = 1>(a) y = Conv(b, w)",
            "Transpose Softmax ReorderInput Conv ReorderOutput",
        ),
        (
            "a = Transpose<perm = [0, 3, 1, 2]>(last) y = GlobalAveragePool(a)",
            "Transpose GlobalAveragePool",
        ),
        (
            "z = Transpose<perm = [0, 3, 1, 2]>(last) y = Conv(z, w)",
            "Transpose ReorderInput Conv ReorderOutput",
        ),
        (
            "a = Transpose<perm = [0, 3, 2, 1]>(last) y = Conv(a, w)",
            "Transpose ReorderInput Conv ReorderOutput",
        ),
        (
            "a = Transpose<perm = [0, 3, 1, 2]>(few_last) y = Conv(a, few)",
            "Transpose Conv ReorderOutput",
        ),
    ],
)
def test_a_transpose_from_channels_last_goes_into_the_reorder_node(body: str, left: str) -> None:
    assert left_of(body) == left
