"""Arithmetic of the operators that compute, worked by hand with distinct primes as sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxmem.ops.registry import OPERATORS, lookup
from onnxmem.ops.spec import Attribute, Call, Operand, Shape

MICROSOFT = "com.microsoft"
FLOAT_BITS = 32


def operand(shape: Shape | None, bits: int | None = FLOAT_BITS) -> Operand | None:
    return None if shape is None else Operand(shape, bits)


def use(
    *inputs: Shape | None,
    out: Shape | None = None,
    **attributes: Attribute,
) -> Call:
    """One use of an operator; ``None`` leaves an operand out."""
    return Call(tuple(map(operand, inputs)), (operand(out),), attributes)


def macs(op_type: str, call: Call, domain: str = "") -> int | None:
    return lookup(op_type, domain).macs(call)


def flops(op_type: str, call: Call, domain: str = "") -> int | None:
    return lookup(op_type, domain).flops(call)


def saved_extra_bytes(op_type: str, call: Call, domain: str = "") -> int | None:
    return lookup(op_type, domain).saved_extra_bytes(call)


# Convolution


def test_the_first_convolution_of_resnet_50_takes_118_million_multiply_adds() -> None:
    call = use((1, 3, 224, 224), (64, 3, 7, 7), out=(1, 64, 112, 112), strides=(2, 2))
    assert macs("Conv", call) == 118_013_952
    assert flops("Conv", call) == 236_027_904


def test_the_fully_connected_layer_of_resnet_50_takes_2_million_multiply_adds() -> None:
    call = use((1, 2048), (1000, 2048), (1000,), out=(1, 1000), transB=1)
    assert macs("Gemm", call) == 2_048_000
    assert flops("Gemm", call) == 4_097_000


def test_a_depthwise_layer_of_mobilenet_takes_9_multiply_adds_an_output() -> None:
    call = use((1, 32, 112, 112), (32, 1, 3, 3), out=(1, 32, 112, 112), group=32)
    assert macs("Conv", call) == 3_612_672


@pytest.mark.parametrize(
    ("x", "w", "y", "group", "expected"),
    [
        ((2, 3, 11), (5, 3, 7), (2, 5, 13), 1, (2 * 5 * 13) * 3 * 7),
        ((2, 6, 11, 17), (15, 2, 5, 7), (2, 15, 13, 19), 3, (2 * 15 * 13 * 19) * 2 * 5 * 7),
        ((2, 3, 5, 7, 11), (13, 3, 2, 3, 5), (2, 13, 5, 3, 7), 1, 2 * 13 * 105 * 3 * 30),
    ],
)
@pytest.mark.parametrize("op_type", ["Conv", "ConvInteger"])
def test_a_convolution_is_a_dot_product_for_each_output_element(
    op_type: str, x: Shape, w: Shape, y: Shape, group: int, expected: int
) -> None:
    assert macs(op_type, use(x, w, out=y, group=group)) == expected


def test_a_bias_is_one_addition_for_each_output_element() -> None:
    with_bias = use((2, 3, 11), (5, 3, 7), (5,), out=(2, 5, 13))
    assert flops("Conv", with_bias) == 2 * (2 * 5 * 13) * 3 * 7 + 2 * 5 * 13


def test_a_convolution_with_channels_last_counts_the_same() -> None:
    first = use((2, 3, 17, 19), (5, 3, 7, 11), out=(2, 5, 11, 13))
    last = use((2, 17, 19, 3), (5, 3, 7, 11), out=(2, 11, 13, 5))
    assert macs("NhwcFusedConv", last, MICROSOFT) == macs("Conv", first) == 2 * 5 * 143 * 3 * 77


def test_a_transposed_convolution_counts_over_its_input() -> None:
    call = use((2, 3, 5, 7), (3, 11, 13, 17), (33,), out=(2, 33, 19, 23), group=3)
    expected = (2 * 3 * 5 * 7) * 11 * 13 * 17
    assert macs("ConvTranspose", call) == expected
    assert flops("ConvTranspose", call) == 2 * expected + 2 * 33 * 19 * 23


def test_a_transposed_convolution_costs_as_much_as_the_reverse_convolution() -> None:
    forward = use((2, 3, 28, 28), (5, 3, 2, 2), out=(2, 5, 14, 14))
    turned = use((2, 5, 14, 14), (5, 3, 2, 2), out=(2, 3, 28, 28))
    assert macs("Conv", forward) == macs("ConvTranspose", turned)


def test_a_deformable_convolution_samples_four_corners_for_each_weight_position() -> None:
    call = use((2, 3, 5, 7), (11, 3, 13, 17), (2, 442, 19, 23), out=(2, 11, 19, 23))
    products = 2 * 11 * 19 * 23 * 3 * 13 * 17
    samples = 2 * 3 * 13 * 17 * 19 * 23
    assert macs("DeformConv", call) == products
    assert flops("DeformConv", call) == 2 * products + 8 * samples


def test_a_causal_convolution_is_depthwise() -> None:
    call = use((2, 3, 5), (3, 1, 7), (3,), out=(2, 3, 5), activation="silu")
    assert macs("CausalConvWithState", call) == 2 * 3 * 5 * 7
    assert flops("CausalConvWithState", call) == 2 * 210 + 30 + 30


def test_a_quantized_convolution_counts_as_its_float_form() -> None:
    scalar = ()
    call = use(
        *((2, 3, 17, 19), scalar, scalar),
        *((5, 3, 7, 11), scalar, scalar),
        *(scalar, scalar, (5,)),
        out=(2, 5, 11, 13),
    )
    expected = 2 * 5 * 11 * 13 * 3 * 7 * 11
    assert macs("QLinearConv", call) == expected
    assert flops("QLinearConv", call) == 2 * expected + 2 * 5 * 11 * 13
    assert flops("QLinearConv", call, MICROSOFT) == flops("QLinearConv", call)


def test_a_fused_convolution_adds_its_bias_its_sum_and_its_activation() -> None:
    shape = (2, 5, 13)
    call = use((2, 3, 11), (5, 3, 7), (5,), shape, out=shape, activation="Relu")
    expected = 2 * (2 * 5 * 13) * 3 * 7 + 3 * (2 * 5 * 13)
    assert flops("FusedConv", call, MICROSOFT) == expected
    assert flops("Conv", call, "com.microsoft.nchwc") == expected


@pytest.mark.parametrize(
    "call",
    [
        use((2, 3, 11), (5, 3, 7), out=(2, 5, None)),
        use((2, 3, 11), None, out=(2, 5, 13)),
        use((2, 3, 11), (5, 3, 7), out=(2, 7, 13)),
        use((2, 3, 11), (5, 3, 7, 7), out=(2, 5, 13)),
        use((2, 3, 11), (5, 3, 7), out=(2, 5, 13), group=0),
        use((2, 3, 11), (5, 3, 7), out=(2, 5, 13), group=2),
        use((2, 3, 11), (5, 3, 7), out=(2, 5, 13), group="1"),
    ],
)
def test_a_convolution_that_does_not_fit_is_unknown(call: Call) -> None:
    assert macs("Conv", call) is None
    assert flops("Conv", call) is None


def test_a_transposed_convolution_that_does_not_fit_is_unknown() -> None:
    assert macs("ConvTranspose", use((2, 3, 5), (5, 7, 11), out=(2, 7, 13))) is None
    assert macs("ConvTranspose", use((2, 3, 5), (3, 7, 11), out=(2, 7, 13), group=0)) is None


# Pooling


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("MaxPool", 2 * 3 * 5 * 7 * (11 * 13)),
        ("AveragePool", 2 * 3 * 5 * 7 * (11 * 13)),
        ("LpPool", 2 * 3 * 5 * 7 * (2 * 11 * 13 + 1)),
    ],
)
def test_a_pool_reads_its_whole_window_for_each_output(op_type: str, expected: int) -> None:
    call = use((2, 3, 17, 19), out=(2, 3, 5, 7), kernel_shape=(11, 13))
    assert flops(op_type, call) == expected
    assert macs(op_type, call) == 0


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("GlobalAveragePool", 2 * 3 * 5 * 7),
        ("GlobalMaxPool", 2 * 3 * 5 * 7),
        ("GlobalLpPool", 2 * (2 * 3 * 5 * 7) + 2 * 3),
    ],
)
def test_a_global_pool_reads_its_whole_input(op_type: str, expected: int) -> None:
    assert flops(op_type, use((2, 3, 5, 7), out=(2, 3, 1, 1))) == expected


def test_a_max_pool_saves_an_int64_index_per_output() -> None:
    call = use((2, 3, 17), out=(2, 3, 5), kernel_shape=(7,))
    assert saved_extra_bytes("MaxPool", call) == 8 * 2 * 3 * 5


def test_a_max_pool_with_indices_as_an_output_saves_nothing_more() -> None:
    outputs = (Operand((2, 3, 5), 32), Operand((2, 3, 5), 64))
    call = Call((Operand((2, 3, 17), 32),), outputs, {"kernel_shape": (7,)})
    assert saved_extra_bytes("MaxPool", call) == 0


@pytest.mark.parametrize("kernel", [(7, 7), (0,), (-7,), ("7",), 7, ()])
def test_a_kernel_that_does_not_fit_is_unknown(kernel: Attribute) -> None:
    assert flops("MaxPool", use((2, 3, 17), out=(2, 3, 5), kernel_shape=kernel)) is None


def test_regions_are_sampled_several_times_per_output() -> None:
    call = use((2, 3, 5, 7), (11, 4), (11,), out=(11, 3, 13, 17), sampling_ratio=2)
    assert flops("RoiAlign", call) == 9 * 4 * (11 * 3 * 13 * 17)


def test_regions_sampled_by_their_size_are_unknown() -> None:
    assert flops("RoiAlign", use((2, 3, 5, 7), (11, 4), (11,), out=(11, 3, 13, 17))) is None
    assert flops("MaxRoiPool", use((2, 3, 5, 7), (11, 5), out=(11, 3, 13, 17))) is None


# Matmuls


@pytest.mark.parametrize(
    ("a", "b", "transposed"),
    [
        ((2, 3), (3, 5), {}),
        ((3, 2), (3, 5), {"transA": 1}),
        ((2, 3), (5, 3), {"transB": 1}),
        ((3, 2), (5, 3), {"transA": 1, "transB": 1}),
    ],
)
def test_gemm_reads_its_operands_as_they_are_transposed(
    a: Shape, b: Shape, transposed: dict[str, Attribute]
) -> None:
    assert macs("Gemm", use(a, b, out=(2, 5), **transposed)) == 2 * 3 * 5
    assert macs("FusedMatMul", use(a, b, out=(2, 5), **transposed), MICROSOFT) == 2 * 3 * 5


@pytest.mark.parametrize(("beta", "additions"), [(1.0, 10), (0.5, 10), (0.0, 0)])
def test_gemm_adds_its_bias_unless_beta_is_zero(beta: float, additions: int) -> None:
    assert flops("Gemm", use((2, 3), (3, 5), (5,), out=(2, 5), beta=beta)) == 60 + additions


def test_gemm_of_incompatible_shapes_is_unknown() -> None:
    assert macs("Gemm", use((2, 3), (5, 7), out=(2, 7))) is None
    assert macs("Gemm", use((2, 3, 5), (5, 7), out=(2, 7))) is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 5)),
        ((2, 3), (3,)),
        ((2, 3), (3, 5)),
        ((7, 2, 3), (3, 5)),
        ((7, 2, 3), (7, 3, 5)),
        ((7, 1, 2, 3), (11, 3, 5)),
        ((3,), (7, 3, 5)),
        ((7, 2, 3), (3,)),
        ((0, 3), (3, 5)),
    ],
)
def test_matmul_counts_every_multiplication(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Each element of a matmul of ones is its number of multiply-adds."""
    result = np.matmul(np.ones(a), np.ones(b))
    call = use(a, b, out=result.shape)
    assert macs("MatMul", call) == result.sum()
    assert flops("MatMul", call) == 2 * result.sum()
    assert macs("MatMulInteger", call) == result.sum()


def test_a_fused_matmul_sums_over_the_dim_that_its_batch_was_moved_behind() -> None:
    moved = use((3, 7, 2), (7, 3, 5), out=(7, 2, 5), transA=1, transBatchA=1)
    assert macs("FusedMatMul", moved, MICROSOFT) == 7 * 2 * 3 * 5
    rows = use((2, 7, 3), (7, 3, 5), out=(7, 2, 5), transBatchA=1)
    assert macs("FusedMatMul", rows, MICROSOFT) == 7 * 2 * 3 * 5


def test_a_quantized_matmul_counts_as_its_float_form() -> None:
    call = use((2, 3), (), (), (3, 5), (), (), (), (), out=(2, 5))
    assert macs("QLinearMatMul", call) == 2 * 3 * 5
    assert flops("QLinearMatMul", call) == 2 * 2 * 3 * 5


def test_a_matmul_with_packed_weights_reads_its_depth_from_the_activations() -> None:
    call = use((2, 7, 32), (5, 2, 8), (10,), None, None, (5,), out=(2, 7, 5), K=32, N=5, bits=4)
    expected = 2 * 7 * 32 * 5
    assert macs("MatMulNBits", call, MICROSOFT) == expected
    assert flops("MatMulNBits", call, MICROSOFT) == 2 * expected + 2 * 7 * 5


def test_matmuls_with_a_bias_add_it() -> None:
    dynamic = use((2, 3), (3, 5), (1,), (1,), (5,), out=(2, 5))
    assert flops("DynamicQuantizeMatMul", dynamic, MICROSOFT) == 2 * 30 + 10
    scaled = use((2, 3), (3, 5), (1,), (1,), None, None, (5,), out=(2, 5))
    assert flops("MatMulIntegerToFloat", scaled, MICROSOFT) == 2 * 30 + 10
    gemm = use((2, 3), (), (), (5, 3), (), (), (5,), out=(2, 5), transB=1)
    assert flops("QGemm", gemm, MICROSOFT) == 2 * 30 + 10
    gelu = use((7, 2, 3), (3, 5), (5,), out=(7, 2, 5))
    assert flops("GemmFastGelu", gelu, MICROSOFT) == 2 * 210 + 70 + 70


# Einsum


def einsum(equation: str, *shapes: Shape) -> Call:
    return use(*shapes, out=(), equation=equation)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 5))),
        ("ij,jk", ((2, 3), (3, 5))),
        ("bij,bjk->bik", ((7, 2, 3), (7, 3, 5))),
        ("bshd,bthd->bhst", ((2, 3, 5, 7), (2, 11, 5, 7))),
        ("...ij,...jk->...ik", ((7, 11, 2, 3), (11, 3, 5))),
        ("...ij,jk", ((7, 11, 2, 3), (3, 5))),
        ("i...,i...->...", ((2, 3, 5), (2, 3, 5))),
        ("i,j->ij", ((2,), (3,))),
        ("i,i->i", ((2,), (2,))),
        ("ii,ij->j", ((2, 2), (2, 3))),
        ("Ab , bA -> A", ((2, 3), (3, 2))),
        ("ij,jk->", ((2, 3), (3, 5))),
        ("ij,jk->ik", ((2, 1), (3, 5))),
        (",ij->ij", ((), (2, 3))),
    ],
)
def test_einsum_of_two_counts_every_multiplication(
    equation: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """With operands of ones, every combination of the labels' values adds 1 to the result."""
    expected = np.einsum(equation, *map(np.ones, shapes)).sum()
    assert macs("Einsum", einsum(equation, *shapes)) == expected
    assert flops("Einsum", einsum(equation, *shapes)) == 2 * expected


def test_einsum_of_three_is_contracted_from_the_left() -> None:
    call = einsum("ij,jk,kl->il", (2, 3), (3, 5), (5, 7))
    assert macs("Einsum", call) == 2 * 3 * 5 + 2 * 5 * 7


def test_einsum_of_three_sums_labels_that_nothing_later_has() -> None:
    call = einsum("aij,j,kl->k", (11, 2, 3), (3,), (5, 7))
    assert macs("Einsum", call) == 11 * 2 * 3 + 5 * 7


def test_einsum_of_one_multiplies_nothing() -> None:
    assert macs("Einsum", einsum("ij->ji", (2, 3))) == 0
    assert flops("Einsum", einsum("ij->ji", (2, 3))) == 0
    assert flops("Einsum", einsum("ii", (3, 3))) == 3
    assert flops("Einsum", einsum("...ij->...i", (5, 2, 3))) == 5 * 2 * 3


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("", ((2, 3),)),
        ("ij,jk->ik", ((2, 3),)),
        ("ij,jk->ik", ((2, 3), (5, 7))),
        ("ij,jk->ik", ((2, 3), (3, None))),
        ("ijk->i", ((2, 3),)),
        ("ij->ik", ((2, 3),)),
        ("ij->ii", ((2, 3),)),
        ("i1->i", ((2, 3),)),
        ("ß->ß", ((2,),)),
        ("i..j->ij", ((2, 3),)),
        ("......->", ((2, 3),)),
        ("ij->ij->ij", ((2, 3),)),
        ("...->" + "i" * 2000, ((2, 3),)),
        ("...->...", ((1,) * 1000,)),
    ],
)
def test_an_invalid_einsum_is_unknown(equation: str, shapes: tuple[Shape, ...]) -> None:
    assert macs("Einsum", einsum(equation, *shapes)) is None
    assert flops("Einsum", einsum(equation, *shapes)) is None


SIZES = {"a": 2, "b": 3, "c": 5, "d": 7}


@given(st.text("abcd", max_size=4), st.text("abcd", max_size=4), st.text("abcd", max_size=4))
def test_einsum_agrees_with_numpy_on_random_equations(left: str, right: str, output: str) -> None:
    equation = f"{left},{right}->{output}"
    shapes = [tuple(SIZES[label] for label in term) for term in (left, right)]
    try:
        expected = np.einsum(equation, *map(np.ones, shapes)).sum()
    except ValueError:
        expected = None
    assert macs("Einsum", einsum(equation, *shapes)) == expected


# Attention


def test_attention_of_shared_key_heads_counts_every_query_head() -> None:
    """B 2, 6 query heads on 3 key heads, S 5, past 7, T 11, D 13, E 17."""
    call = use(
        *((2, 6, 5, 13), (2, 3, 11, 13), (2, 3, 11, 17), None),
        *((2, 3, 7, 13), (2, 3, 7, 17)),
        out=(2, 6, 5, 17),
    )
    scores = 2 * 6 * 5 * (7 + 11)
    assert macs("Attention", call) == scores * (13 + 17)
    assert flops("Attention", call) == 2 * scores * (13 + 17) + 6 * scores
    assert saved_extra_bytes("Attention", call) == 4 * 2 * 6 * 5


def test_attention_of_packed_heads_counts_the_same() -> None:
    apart = use((2, 6, 5, 13), (2, 3, 11, 13), (2, 3, 11, 17), out=(2, 6, 5, 17))
    packed = use(
        *((2, 5, 6 * 13), (2, 11, 3 * 13), (2, 11, 3 * 17)),
        out=(2, 5, 6 * 17),
        q_num_heads=6,
        kv_num_heads=3,
    )
    assert macs("Attention", packed) == macs("Attention", apart) == 2 * 6 * 5 * 11 * (13 + 17)


def test_a_mask_and_a_soft_cap_are_counted_per_score_and_causality_is_not() -> None:
    shapes = ((2, 3, 5, 13), (2, 3, 11, 13), (2, 3, 11, 17))
    scores = 2 * 3 * 5 * 11
    plain = 2 * scores * 30 + 6 * scores
    assert flops("Attention", use(*shapes, out=(2, 3, 5, 17), is_causal=1)) == plain
    masked = use(*shapes, (5, 11), out=(2, 3, 5, 17), softcap=30.0)
    assert flops("Attention", masked) == plain + scores + 3 * scores


@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        (((2, 6, 5, 13), (2, 4, 11, 13), (2, 4, 11, 17)), {}),
        (((2, 6, 5, 13), (2, 0, 11, 13), (2, 0, 11, 17)), {}),
        (((2, 6, 5, 13), (2, 3, 11, 19), (2, 3, 11, 17)), {}),
        (((2, 6, 5, 13), (2, 3, 11, 13), (2, 3, 19, 17)), {}),
        (((2, 5, 78), (2, 11, 39), (2, 11, 51)), {}),
        (((2, 5, 78), (2, 11, 39), (2, 11, 51)), {"q_num_heads": 0, "kv_num_heads": 3}),
        (((2, 5, 79), (2, 11, 39), (2, 11, 51)), {"q_num_heads": 6, "kv_num_heads": 3}),
    ],
)
def test_attention_that_does_not_fit_is_unknown(
    shapes: tuple[Shape, ...], attributes: dict[str, Attribute]
) -> None:
    assert macs("Attention", use(*shapes, out=(2, 5, 102), **attributes)) is None


def test_onnxruntimes_attention_projects_first() -> None:
    """B 2, S 5, I 7, 3 heads of 11, past 13."""
    call = use(
        *((2, 5, 7), (7, 99), (99,), None, (2, 2, 3, 13, 11)),
        out=(2, 5, 33),
        num_heads=3,
    )
    projection, scores = 2 * 5 * 7 * 99, 2 * 3 * 5 * (13 + 5)
    products = projection + scores * 22
    assert macs("Attention", call, MICROSOFT) == products
    assert flops("Attention", call, MICROSOFT) == 2 * products + 2 * 5 * 99 + 6 * scores
    assert saved_extra_bytes("Attention", call, MICROSOFT) == 4 * 2 * 5 * 99 + 4 * 2 * 3 * 5


def test_a_shared_cache_counts_up_to_its_known_length() -> None:
    inputs: list[Operand | None] = [*map(operand, ((2, 1, 7), (7, 99), (99,)))]
    inputs += [None, Operand((2, 2, 3, 100, 11), 32), None, Operand((1,), 32, (13,))]
    call = Call(tuple(inputs), (Operand((2, 1, 33), 32),), {"num_heads": 3})
    assert macs("Attention", call, MICROSOFT) == 2 * 7 * 99 + 2 * 3 * (13 + 1) * 22


def test_heads_of_values_may_have_a_size_of_their_own() -> None:
    call = use((2, 5, 7), (7, 3 * 35), out=(2, 5, 39), num_heads=3, qkv_hidden_sizes=(33, 33, 39))
    expected = 2 * 5 * 7 * 105 + 2 * 3 * 5 * 5 * (11 + 13)
    assert macs("Attention", call, MICROSOFT) == expected


def test_packed_attention_counts_its_sequences_at_full_length() -> None:
    call = use((8, 7), (7, 99), (99,), (2, 5), (3,), out=(8, 33), num_heads=3)
    assert macs("PackedAttention", call, MICROSOFT) == 8 * 7 * 99 + 2 * 3 * 5 * 5 * 22


def test_quantized_attention_counts_as_its_float_form() -> None:
    past = (2, 2, 3, 13, 11)
    quantized = use(
        *((2, 5, 7), (7, 99), (99,), (), ()), None, (), (), past, out=(2, 5, 33), num_heads=3
    )
    float_form = use((2, 5, 7), (7, 99), (99,), None, past, out=(2, 5, 33), num_heads=3)
    expected = flops("Attention", float_form, MICROSOFT)
    assert flops("QAttention", quantized, MICROSOFT) == expected


HEADS = 2 * 3 * 5 * 7 * 22
"""B 2, 3 heads of 11, S 5, T 7."""


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((2, 5, 33), (2, 7, 33), (2, 7, 33)), HEADS),
        (((2, 5, 33), (2, 3, 7, 11), (2, 3, 7, 11)), HEADS),
        (((2, 5, 33), (2, 7, 3, 2, 11)), HEADS),
        (((2, 5, 33), (2, 7, 33), (2, 7, 39)), 2 * 3 * 5 * 7 * (11 + 13)),
        (((2, 5, 3, 3, 11),), 2 * 3 * 5 * 5 * 22),
        (((2, 5, 99),), 2 * 3 * 5 * 5 * 22),
    ],
)
def test_multi_head_attention_reads_every_layout_of_its_heads(
    shapes: tuple[Shape, ...], expected: int
) -> None:
    call = use(*shapes, out=(2, 5, 33), num_heads=3)
    assert macs("MultiHeadAttention", call, MICROSOFT) == expected


def test_multi_head_attention_without_padding_is_the_same() -> None:
    apart = use((8, 33), (8, 33), (8, 39), None, (2, 5), (3,), out=(8, 39), num_heads=3)
    assert macs("PackedMultiHeadAttention", apart, MICROSOFT) == 2 * 3 * 5 * 5 * (11 + 13)
    packed = use((8, 3, 3, 11), None, None, None, (2, 5), (3,), out=(8, 33), num_heads=3)
    assert macs("PackedMultiHeadAttention", packed, MICROSOFT) == 2 * 3 * 5 * 5 * 22


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("total", "present", "keys"), [(None, 7 + 5, 12), (12, 100, 12), (None, 100, 100)]
)
def test_grouped_attention_counts_the_keys_of_its_cache(
    total: int | None, present: int, keys: int, *, packed: bool
) -> None:
    """B 2, 6 query heads on 3 key heads of 11, S 5, past 7 or a shared buffer of 100."""
    apart = ((2, 5, 66), (2, 5, 33), (2, 5, 33))
    cache = Operand((2, 3, present if present > 12 else 7, 11), 32)
    call = Call(
        (
            *map(operand, ((2, 5, 132), None, None) if packed else apart),
            *(cache, cache, Operand((2,), 32)),
            Operand((), 32, None if total is None else (total,)),
        ),
        (Operand((2, 5, 66), 32), Operand((2, 3, present, 11), 32)),
        {"num_heads": 6, "kv_num_heads": 3},
    )
    assert macs("GroupQueryAttention", call, MICROSOFT) == 2 * 6 * 5 * keys * 22


@pytest.mark.parametrize(
    ("rule", "products"), [("linear", 3 + 6), ("gated", 3 + 6), ("gated_delta", 6 + 6)]
)
def test_linear_attention_passes_over_its_state_at_every_step(rule: str, products: int) -> None:
    """B 2, T 5, 6 query heads on 3 states of 11 x 13."""
    decay = None if rule == "linear" else (2, 5, 3)
    call = use(
        *((2, 5, 66), (2, 5, 33), (2, 5, 39), (2, 3, 11, 13), decay),
        out=(2, 5, 78),
        q_num_heads=6,
        kv_num_heads=3,
        update_rule=rule,
    )
    passes = 2 * 5 * 11 * 13
    assert macs("LinearAttention", call) == passes * products
    decays = 0 if rule == "linear" else passes * 3
    assert flops("LinearAttention", call) == 2 * passes * products + decays


def test_a_rotation_is_two_multiplications_and_an_addition() -> None:
    assert flops("RotaryEmbedding", use((2, 3, 5, 14), out=(2, 3, 5, 14))) == 3 * 2 * 3 * 5 * 14
    part = use((2, 5, 3 * 14), out=(2, 5, 42), num_heads=3, rotary_embedding_dim=4)
    assert flops("RotaryEmbedding", part) == 3 * 2 * 3 * 5 * 4


@pytest.mark.parametrize(
    ("op_type", "call"),
    [
        ("Attention", use((2, 5, 7), (7, 100), out=(2, 5, 33), num_heads=3)),
        ("Attention", use((2, 5, 7), (7, 99), out=(2, 5, 33), num_heads=2)),
        ("Attention", use((2, 5, 11), (7, 99), out=(2, 5, 33), num_heads=3)),
        ("Attention", use((2, 5, 7), (7, 99), None, None, (2, 3), out=(2, 5, 33), num_heads=3)),
        ("MultiHeadAttention", use((2, 5, 33), (2, 7, 33), (2, 5, 33), num_heads=3)),
        ("MultiHeadAttention", use((2, 5, 33), num_heads=3, out=(2, 5, 33), kv_num_heads=3)),
        ("PackedMultiHeadAttention", use((8, 33), None, (8, 34), None, (2, 5), num_heads=3)),
        ("GroupQueryAttention", use((2, 5, 133), num_heads=6, kv_num_heads=3)),
        ("GroupQueryAttention", use((2, 5, 132), num_heads=6)),
        ("LinearAttention", use((2, 5, 66), (2, 5, 33), (2, 5, 39))),
        (
            "LinearAttention",
            use((2, 5, 66), (2, 5, 34), (2, 5, 39), q_num_heads=6, kv_num_heads=3),
        ),
    ],
)
def test_a_layout_of_heads_that_does_not_fit_is_unknown(op_type: str, call: Call) -> None:
    assert macs(op_type, call, MICROSOFT) is None
    assert flops(op_type, call, MICROSOFT) is None


# Recurrent layers


@pytest.mark.parametrize(
    ("op_type", "gates", "others", "reserve"),
    [("LSTM", 4, 9, 6), ("GRU", 3, 8, 5), ("RNN", 1, 1, 0)],
)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_a_recurrent_layer_multiplies_its_input_and_its_state_at_every_step(
    op_type: str, gates: int, others: int, reserve: int, directions: int, *, biased: bool
) -> None:
    """T 3, B 5, I 7, H 11."""
    call = use(
        (3, 5, 7),
        (directions, gates * 11, 7),
        (directions, gates * 11, 11),
        (directions, 2 * gates * 11) if biased else None,
        out=(3, directions, 5, 11),
    )
    states = 3 * 5 * directions * 11
    expected = states * gates * (7 + 11)
    assert macs(op_type, call) == expected
    assert flops(op_type, call) == 2 * expected + states * (others + (gates if biased else 0))
    assert saved_extra_bytes(op_type, call) == 4 * reserve * states


def test_a_recurrent_layer_saves_states_that_no_node_reads() -> None:
    call = use((3, 5, 7), (1, 11, 7), (1, 11, 11))
    assert saved_extra_bytes("RNN", call) == 4 * 3 * 5 * 11


def test_the_quantized_lstm_has_transposed_weights() -> None:
    float_form = use((3, 5, 7), (2, 44, 7), (2, 44, 11), out=(3, 2, 5, 11))
    quantized = use((3, 5, 7), (2, 7, 44), (2, 11, 44), out=(3, 2, 5, 11))
    expected = flops("LSTM", float_form)
    assert flops("DynamicQuantizeLSTM", quantized, MICROSOFT) == expected


def test_a_recurrent_layer_that_does_not_fit_is_unknown() -> None:
    assert macs("LSTM", use((3, 5, 7), (1, 43, 7), (1, 43, 11), out=(3, 1, 5, 11))) is None
    assert macs("LSTM", use((3, 5, 7), (1, 44, 13), (1, 44, 11), out=(3, 1, 5, 11))) is None
    assert macs("LSTM", use((3, 5), (1, 44, 7), (1, 44, 11), out=(3, 1, 5, 11))) is None


# Quantization, and what onnxruntime fuses


def test_quantizing_and_dequantizing_take_six_flops_per_element() -> None:
    call = use((2, 3, 5), (), (), out=(2, 3, 5))
    assert flops("QuantizeLinear", call) == 4 * 30
    assert flops("DequantizeLinear", call) == 2 * 30
    assert flops("DynamicQuantizeLinear", call) == 6 * 30
    assert saved_extra_bytes("QuantizeLinear", call) == 30


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [("QLinearAdd", 30), ("QLinearMul", 30), ("QLinearSigmoid", 30), ("QLinearSoftmax", 150)],
)
def test_a_quantized_operator_counts_as_its_float_form(op_type: str, expected: int) -> None:
    call = use((2, 3, 5), (), (), (2, 3, 5), (), (), (), (), out=(2, 3, 5))
    assert flops(op_type, call, MICROSOFT) == expected


def test_a_skip_normalization_saves_its_sum_and_its_statistics() -> None:
    call = use((2, 3, 5), (2, 3, 5), (5,), (5,), (5,), out=(2, 3, 5))
    op_type = "SkipLayerNormalization"
    assert flops(op_type, call, MICROSOFT) == (1 + 7 + 1) * 30
    assert saved_extra_bytes(op_type, call, MICROSOFT) == 4 * 30 + 2 * 4 * 6


def test_a_skip_normalization_with_its_sum_as_an_output_saves_no_second_one() -> None:
    made = Operand((2, 3, 5), 32)
    call = Call((made, made, Operand((5,), 32)), (made, None, None, made))
    op_type = "SkipSimplifiedLayerNormalization"
    assert flops(op_type, call, MICROSOFT) == (1 + 4) * 30
    assert saved_extra_bytes(op_type, call, MICROSOFT) == 4 * 6


def test_embeddings_are_summed_and_normalized() -> None:
    ids, table = (2, 3), (11, 5)
    call = use(ids, ids, table, table, table, (5,), (5,), out=(2, 3, 5))
    assert flops("EmbedLayerNormalization", call, MICROSOFT) == (2 + 7) * 30


def test_a_mixture_of_experts_sends_each_token_through_k_of_them() -> None:
    call = use((2, 3, 5), (6, 7), (7, 11, 5), None, (7, 5, 11), out=(2, 3, 5), k=2)
    assert macs("MoE", call, MICROSOFT) == 2 * 3 * 2 * (11 * 5 + 5 * 11)


def test_a_linear_upsampling_has_four_taps() -> None:
    call = use((2, 3, 5, 7), out=(2, 3, 10, 14), mode="linear")
    assert flops("Upsample", call, "com.microsoft.nchwc") == 2 * 4 * (2 * 3 * 10 * 14)
    nearest = use((2, 3, 5, 7), out=(2, 3, 10, 14))
    assert flops("Upsample", nearest, "com.microsoft.nchwc") == 0


def test_names_of_onnxruntimes_own_operators_are_those_of_its_schemas() -> None:
    """Names change between versions: those of the newest known version are required."""
    onnxruntime = pytest.importorskip("onnxruntime")
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31):
        pytest.skip("older than the names")
    schemas = {(each.domain, each.name): each for each in state.get_all_operator_schema()}
    own = {key for key in OPERATORS if key[0].startswith(MICROSOFT)}
    assert own - set(schemas) == set(), "onnxruntime has no such operator: another domain or name?"
    for (domain, op_type), versions in OPERATORS.items():
        if domain.startswith(MICROSOFT):
            inputs = [each.name for each in schemas[domain, op_type].inputs]
            outputs = [each.name for each in schemas[domain, op_type].outputs]
            for spec in versions:
                assert [name.lstrip("*") for name in spec.inputs] == inputs[: len(spec.inputs)]
                assert list(spec.outputs) == outputs[: len(spec.outputs)]


# Arbitrary calls

SPECS = [spec for versions in OPERATORS.values() for spec in versions]
DIM = st.none() | st.integers(0, 4) | st.sampled_from([7, 2**31, 2**63 - 1])
OPERAND = st.none() | st.builds(
    Operand,
    st.none() | st.lists(DIM, max_size=6).map(tuple),
    st.sampled_from([None, 1, 4, 8, 16, 32, 64]),
    st.none() | st.lists(st.integers(-3, 5) | st.floats(-3, 3), max_size=4).map(tuple),
)
ATTRIBUTE: st.SearchStrategy[Attribute] = st.one_of(
    st.integers(-3, 5),
    st.floats(-3, 3),
    st.sampled_from(["", "linear", "nearest", "ij,jk->ik", "...i,i", "->", "i->,", "..."]),
    st.lists(st.integers(-3, 5), max_size=4).map(tuple),
    st.lists(st.floats(-3, 3), max_size=2).map(tuple),
    st.just(("a", "b")),
)
NAMES = (
    *("group", "kernel_shape", "strides", "equation", "transA", "transB", "transBatchA", "beta"),
    *("num_heads", "kv_num_heads", "q_num_heads", "qkv_hidden_sizes", "softcap", "k", "mode"),
    *("update_rule", "rotary_embedding_dim", "sampling_ratio", "axis", "axes", "size", "p"),
    *("activation", "num_groups", "antialias", "keepdims", "direction", "hidden_size"),
)
CALL = st.builds(
    Call,
    st.lists(OPERAND, max_size=10).map(tuple),
    st.lists(OPERAND, max_size=4).map(tuple),
    st.dictionaries(st.sampled_from(NAMES), ATTRIBUTE, max_size=6),
)


@settings(deadline=None)
@given(CALL)
def test_no_formula_fails_or_goes_below_zero(call: Call) -> None:
    for spec in SPECS:
        for formula in (spec.macs, spec.flops, spec.saved_extra_bytes):
            count = formula(call)
            assert count is None or (isinstance(count, int) and count >= 0), spec.op_type


@settings(deadline=None)
@given(CALL)
def test_flops_are_at_least_two_per_multiply_add(call: Call) -> None:
    for spec in SPECS:
        multiply_adds, operations = spec.macs(call), spec.flops(call)
        if multiply_adds is not None and operations is not None:
            assert operations >= 2 * multiply_adds, spec.op_type
