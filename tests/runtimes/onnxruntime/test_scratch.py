"""Scratch of kernels: every measured node, ``Scratch`` itself, and the effect of threads."""

from collections import Counter

import onnx.defs
import pytest
from runtimes.onnxruntime.measured_kernels import Row, rows

from onnxmem.ops.spec import Attribute, Call, Operand
from onnxmem.runtimes.onnxruntime.kernels.kernel import Kernel, KernelInfo, Scratch
from onnxmem.runtimes.onnxruntime.kernels.registry import KERNELS, WITHOUT_KERNEL, _join, scratch

MIB = 1 << 20


@pytest.fixture(scope="module")
def measured() -> tuple[Row, ...]:
    return tuple(rows())


def test_scratch_rules_give_the_measured_bytes(measured: tuple[Row, ...]) -> None:
    wrong = []
    for row in measured:
        found = scratch(row.op_type, row.domain, row.call, row.info)
        # What is measured beside tensors, the pieces of a sequence, is its output.
        data = row.call.inputs[0] if row.op_type == "SplitToSequence" else None
        pieces_bytes = 0 if data is None else data.size_bytes
        if found is not None and found.size_bytes != row.temporary_bytes - (pieces_bytes or 0):
            wrong.append((row.case, row.temporary_bytes, found))
    assert wrong == []


def test_few_measured_operators_have_unknown_scratch(measured: tuple[Row, ...]) -> None:
    unknown = Counter(
        row.op_type
        for row in measured
        if scratch(row.op_type, row.domain, row.call, row.info) is None
    )
    assert set(unknown) <= {"MoE", "Scan"}
    assert unknown.total() <= len(measured) // 1000
    assert len(measured) > 9_000


NOT_MEASURED = frozenset(
    {
        *(("", name) for name in (
            "Affine ConcatFromSequence Optional ParametricSoftplus RandomNormal RandomUniform "
            "RegexFullMatch ScaledTanh SequenceAt SequenceConstruct SequenceEmpty SequenceErase "
            "SequenceInsert SequenceLength StringConcat StringNormalizer StringSplit"
        ).split()),
        *(("ai.onnx.ml", name) for name in (
            "FeatureVectorizer Imputer LabelEncoder LinearClassifier LinearRegressor SVMRegressor "
            "Scaler"
        ).split()),
        *(("com.microsoft", name) for name in (
            "BifurcationDetector DecoderMaskedSelfAttention ExpandDims FusedGemm "
            "GatherBlockQuantized MRotaryEmbedding MaxpoolWithMask Pad QEmbedLayerNormalization "
            "QMoE SampleOp ShardedMoE SparseAttention TransposeMatMul Unique"
        ).split()),
        *(("com.microsoft.nchwc", name) for name in (
            "AveragePool Conv GlobalAveragePool GlobalMaxPool MaxPool ReorderInput ReorderOutput "
            "Upsample"
        ).split()),
    }
)  # fmt: skip
"""Records without a row of ``kernel_truth.py``: they follow the source only."""


def test_a_new_record_has_a_measured_row(measured: tuple[Row, ...]) -> None:
    """Add cases of the operator to ``tools/kernel_cases.txt``; see ``docs/contributing.md``."""
    assert set(KERNELS) - {(row.domain, row.op_type) for row in measured} == NOT_MEASURED


def test_every_record_has_known_operators_and_a_source() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
    ours = {name for domain, name in KERNELS if not domain}
    of_onnxruntime = set(
        "Affine Crop DynamicSlice ParametricSoftplus Scale ScaledTanh "
        "SimplifiedLayerNormalization".split()
    )
    assert ours - known == of_onnxruntime
    assert ours.isdisjoint(WITHOUT_KERNEL)
    assert all(kernel.source for kernel in KERNELS.values())


def test_duplicate_records_are_refused() -> None:
    twice = (Kernel("Abs com.microsoft.Gelu", "a"), Kernel("com.microsoft.Gelu", "b"))
    with pytest.raises(ValueError, match=r"the kernel of com.microsoft::Gelu is described twice"):
        _join((twice,))


def call(*inputs: str, output: str, **attributes: Attribute) -> Call:
    """A call with float operands, given by their dims: ``2x3``."""
    operands = [
        Operand(tuple(int(dim) if dim != "?" else None for dim in text.split("x")), 32)
        for text in (*inputs, output)
    ]
    return Call(tuple(operands[:-1]), (operands[-1],), attributes)


def test_unknown_operators_and_dims_have_unknown_scratch() -> None:
    softmax = call("2x?x5", output="2x?x5", axis=1)
    assert scratch("Softmax", "", softmax) is None
    assert scratch("NoSuchOperator", "", softmax) is None


def test_a_kernel_without_scratch_has_an_empty_scratch() -> None:
    assert scratch("Relu", "", call("2x3", output="2x3")) == Scratch()


def test_where_selects_before_its_output_is_allocated() -> None:
    found = scratch("Where", "", call("7", "5x7", "7", output="5x7"))
    assert found == Scratch((4 * 35, 4 * 7), num_before_outputs=2)


def test_lrn_allocates_scales_and_the_padded_squares_of_one_image() -> None:
    found = scratch("LRN", "", call("2x3x5x7", output="2x3x5x7", size=3))
    assert found == Scratch((4 * 2 * 3 * 35, 4 * (3 + 2) * 35))


def test_a_sum_of_four_has_two_partial_sums_at_once() -> None:
    found = scratch("Sum", "", call("7", "5x7", "3x5x7", "2x3x5x7", output="2x3x5x7"))
    assert found is not None
    assert found.blocks == (4 * 35, 4 * 105)
    assert found.peak_bytes == 4 * (35 + 105)
    assert found.num_before_outputs == 2


def test_blocks_that_are_freed_early_do_not_add_up() -> None:
    found = Scratch((100, 10, 1), freed_after=(2, None, None))
    assert (found.size_bytes, found.peak_bytes) == (111, 110)


def test_passes_add_up_in_size_but_not_at_the_peak() -> None:
    found = Scratch((100, 10), freed_after=(None, 2), per_pass=(7,), passes=5)
    assert (found.size_bytes, found.peak_bytes) == (145, 110)


def test_a_fourier_transform_of_a_power_of_two_has_no_scratch() -> None:
    whole = call("3x32x2", output="3x32x2", axis=1)
    assert scratch("DFT", "", whole, KernelInfo(opset=17)) == Scratch()


def test_bluestein_pads_to_a_power_of_two_and_allocates_per_line() -> None:
    found = scratch("DFT", "", call("3x30x2", output="3x30x2", axis=1), KernelInfo(opset=17))
    assert found is not None
    assert found.size_bytes == 8 * 64 * (3 + 3 * 2)
    assert found.peak_bytes == 8 * 64 * 4


# Measured with 1, 2, 4 and 8 intra-op threads.
def test_linear_attention_allocates_one_line_per_thread() -> None:
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    use = call("3x13x128", "3x13x128", "3x13x192", output="3x13x192", **heads)
    found = [
        scratch("LinearAttention", "com.microsoft", use, KernelInfo(threads=threads))
        for threads in (1, 2, 4, 8)
    ]
    assert [each and each.size_bytes for each in found] == [640, 1280, 2560, 5120]


# Measured with 1, 2 and 4 intra-op threads.
@pytest.mark.parametrize(
    ("image", "weight", "group", "expected"),
    [
        ("1x16x28x28", "32x16x3x3", 1, (65_536, 131_072, 262_144)),
        ("1x3x28x28", "8x3x3x3", 1, (65_536, 131_072, 196_608)),
        ("2x16x28x28", "32x16x3x3", 1, (65_536, 131_072, 131_072)),
        ("1x16x28x28", "16x1x3x3", 16, (65_536, 131_072, 262_144)),
        ("1x16x28x28", "32x8x3x3", 2, (65_536, 131_072, 131_072)),
    ],
)
def test_a_convolution_allocates_a_buffer_per_thread(
    image: str, weight: str, group: int, expected: tuple[int, int, int]
) -> None:
    batch, filters = image.split("x", maxsplit=1)[0], weight.split("x", maxsplit=1)[0]
    result = f"{batch}x{filters}x28x28"
    use = call(image, weight, output=result, pads=(1, 1, 1, 1), group=group)
    found = [scratch("Conv", "", use, KernelInfo(threads=threads)) for threads in (1, 2, 4)]
    assert tuple(each and each.size_bytes for each in found) == expected


def test_flash_attention_allocates_tiles_per_thread_by_the_level_2_cache() -> None:
    use = call("2x32x32", "2x32x32", "2x32x32", output="2x32x32", num_heads=2)
    found = [
        scratch(
            "MultiHeadAttention", "com.microsoft", use, KernelInfo(threads=n, l2_cache_bytes=MIB)
        )
        for n in (1, 2, 4)
    ]
    assert [each and each.size_bytes for each in found] == [30_976, 37_376, 50_176]
    small = KernelInfo(threads=1, l2_cache_bytes=8192)
    tiled = scratch("MultiHeadAttention", "com.microsoft", use, small)
    assert tiled is not None
    assert tiled.blocks[-1] < 30_976 - 3 * 4 * 2 * 32 * 32


# Measured: 137 queries of 14 heads without a cache: separate heads and all scores.
@pytest.mark.parametrize("is_packed", [False, True])
def test_attention_without_present_outputs_allocates_all_scores(*, is_packed: bool) -> None:
    query, key = Operand((3, 137, 14 * 16), 32), Operand((3, 137, 2 * 16), 32)
    packed = Operand((3, 137, 18 * 16), 32)
    inputs = (packed, None, None) if is_packed else (query, key, key)
    lengths = (Operand((3,), 32, (136,) * 3), Operand((), 32, (137,)))
    attributes = {"num_heads": 14, "kv_num_heads": 2}
    use = Call((*inputs, None, None, *lengths), (query,), attributes)
    found = scratch("GroupQueryAttention", "com.microsoft", use, KernelInfo())
    heads = 4 * 3 * 137 * 18 * 16
    assert found is not None
    assert found.size_bytes == heads + 4 * 3 * 14 * 137 * 137


# Measured: one query, 4901 keys in a buffer of 5000, with 1, 4 and 8 threads.
@pytest.mark.parametrize(
    ("heads", "size", "expected"),
    [(4, 16, (20_180, 79_184, 66_912)), (2, 64, (21_396, 15_008, 23_200))],
)
def test_a_decoding_step_splits_its_keys_if_there_are_more_threads_than_heads(
    heads: int, size: int, expected: tuple[int, int, int]
) -> None:
    groups = 2
    query, key = Operand((1, 1, heads * size), 32), Operand((1, 1, groups * size), 32)
    buffer = Operand((1, groups, 5000, size), 32)
    lengths = (Operand((1,), 32, (4900,)), Operand((), 32, (4901,)))
    attributes = {"num_heads": heads, "kv_num_heads": groups}
    use = Call((query, key, key, buffer, buffer, *lengths), (query, buffer, buffer), attributes)
    found = [
        scratch("GroupQueryAttention", "com.microsoft", use, KernelInfo(threads=threads))
        for threads in (1, 4, 8)
    ]
    assert tuple(each and each.size_bytes for each in found) == expected
