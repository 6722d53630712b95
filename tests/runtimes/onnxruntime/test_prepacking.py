"""Prepacked weights and small initializers: every measured node, and whole graphs."""

import math

import pytest
from graphs import graph_of
from runtimes.onnxruntime.measured_kernels import Row, rows

from onnxmem.ops.spec import Call, Operand
from onnxmem.runtimes.onnxruntime.cpu import CPUS, Cpu
from onnxmem.runtimes.onnxruntime.kernels.kernel import KernelCall, KernelInfo, unknown
from onnxmem.runtimes.onnxruntime.kernels.mlas import packed_8_bit_bytes, packed_floats_bytes
from onnxmem.runtimes.onnxruntime.kernels.prepacking import (
    Reserve,
    SessionFacts,
    initializer_reserves,
    prepacked,
)
from onnxmem.runtimes.onnxruntime.kernels.registry import kernel_of, scratch

SMALL_BYTES = 127


def expected_base(row: Row) -> int:
    """The bytes of packed weights, and of small initializers that are not dropped."""
    kernel = kernel_of(row.op_type, row.domain)
    packed = tuple(kernel.packing(KernelCall(row.call, row.info)))
    dropped = {each.index for each in packed if each.drops_original}
    left = (row.call.input_at(index) for index in row.info.constants - dropped)
    sizes = [operand.size_bytes for operand in left if operand is not None]
    small = [size for size in sizes if size is not None and size <= SMALL_BYTES]
    return sum(small) + sum(each.size_bytes for each in packed)


def test_packing_rules_give_the_measured_bytes() -> None:
    measured = [
        row
        for row in rows()
        if row.base_bytes is not None
        and row.op_type
        not in {"If", "Loop", "Scan"}  # the initializers of a subgraph are not the node's
        and kernel_of(row.op_type, row.domain).packing is not unknown
    ]
    wrong = [
        (row.case, row.base_bytes, expected_base(row))
        for row in measured
        if expected_base(row) != row.base_bytes
    ]
    assert wrong == []
    assert len(measured) > 7_000


def test_a_float_matrix_is_packed_in_panels_of_16_columns() -> None:
    assert packed_floats_bytes(7, 31) == 4 * 7 * 32
    assert packed_floats_bytes(1, 1) == 64


@pytest.mark.parametrize(("is_signed", "rows_"), [(True, 40), (False, 38)])
def test_an_8_bit_matrix_is_packed_with_the_sums_of_its_columns(
    *, is_signed: bool, rows_: int
) -> None:
    assert packed_8_bit_bytes(37, 31, is_signed=is_signed) == 4 * 32 + 32 * rows_ // 64 * 64


@pytest.mark.parametrize(
    ("dims", "blocks"),
    [
        ((20, 12, 1, 1), {"avx512": 2}),
        ((24, 12, 3, 3), {"avx512": 2, "avx2": 2}),
        ((22, 12, 3, 3), {}),
        ((12, 12, 3, 3), {}),
        ((24, 10, 3, 3), {}),
        ((32, 68, 3, 3), {"avx512": 2, "avx2": 2, "arm64": 2}),
        ((24, 68, 3, 3), {"avx512": 2, "avx2": 2}),
        ((32, 68, 1, 1), {"avx512": 2, "avx2": 2}),
    ],
)
@pytest.mark.parametrize("cpu", CPUS.values(), ids=lambda cpu: cpu.name)
def test_a_quantized_filter_is_packed_for_the_symmetric_kernel_if_the_cpu_has_it(
    dims: tuple[int, ...], blocks: dict[str, int], cpu: Cpu
) -> None:
    found = _packed_filter("uint8", dims, cpu)
    if cpu.name in blocks:
        assert found == (16 * blocks[cpu.name] * math.prod(dims[1:]), False)
    else:
        assert found[1], "the panels of a matrix product are kept beside the arena's regions"


@pytest.mark.parametrize(("cpu", "is_symmetric"), [("avx2", False), ("arm64", True)])
def test_images_of_signed_bytes_have_a_symmetric_kernel_on_arm(
    cpu: str, *, is_symmetric: bool
) -> None:
    assert _packed_filter("int8", (32, 68, 3, 3), CPUS[cpu])[1] is not is_symmetric


def _packed_filter(dtype: str, dims: tuple[int, ...], cpu: Cpu) -> tuple[int, bool]:
    filters = ", ".join(map(str, dims))
    graph = graph_of(f"""
        agraph ({dtype}[1, {dims[1]}, 7, 7] x) => ({dtype}[n, m, h, w] y)
        <float s = {{0.5}}, {dtype} z = {{3}}, int8 o = {{0}}, int8[{filters}] w> {{
            y = QLinearConv(x, s, z, w, s, o, s, z)
        }}""")
    (packed,) = prepacked(graph, SessionFacts(cpu=cpu))
    return packed.size_bytes, packed.is_reserved


def test_two_readers_of_one_operator_share_a_copy_and_drop_the_weight() -> None:
    graph = graph_of("""
        agraph (float[5, 7] x) => (float[5, 11] y, float[5, 11] z) <float[7, 11] w> {
            y = MatMul(x, w)
            z = MatMul(x, w)
        }""")
    packed = prepacked(graph)
    assert [each.size_bytes for each in packed] == [4 * 7 * 16, 0]
    assert all(each.is_reserved and each.drops_original for each in packed)


def test_readers_with_different_operators_do_not_share_a_copy() -> None:
    graph = graph_of("""
        agraph (float[5, 7] x) => (float[5, 11] y, float[5, 11] z) <float[7, 11] w> {
            y = MatMul(x, w)
            z = Gemm(x, w)
        }""")
    assert [each.size_bytes for each in prepacked(graph)] == [4 * 7 * 16] * 2


def test_a_transposed_filter_is_allocated_in_a_region() -> None:
    graph = graph_of("""
        agraph (float[1, 3, 5, 7] x) => (float[1, 2, 7, 9] y) <float[3, 2, 3, 3] w> {
            y = ConvTranspose(x, w)
        }""")
    (packed,) = prepacked(graph)
    assert (packed.size_bytes, packed.is_reserved) == (4 * 3 * 2 * 9, False)


def test_a_graph_input_is_not_packed() -> None:
    graph = graph_of("""
        agraph (float[5, 7] x, float[7, 11] w) => (float[5, 11] y) { y = MatMul(x, w) }""")
    assert prepacked(graph) == ()


TWO_SMALL = """
    agraph (float[3] x) => (float[3] y)
    <float[3] w = {1.0, 2.0, 3.0}, float[5] idle = {1.0, 2.0, 3.0, 4.0, 5.0}> {
        c = Constant <value = float[1] {2.0}> ()
        z = Add(x, w)
        y = Mul(z, c)
    }"""


def test_small_initializers_and_constants_are_in_the_arena_if_they_are_read() -> None:
    assert set(initializer_reserves(graph_of(TWO_SMALL))) == {Reserve("w", 12), Reserve("c", 4)}


def test_a_small_weight_that_is_packed_is_dropped_unless_another_node_reads_it() -> None:
    head = "agraph (float[2, 3] x) => (float[2, 1] y, float[3, 1] z)"
    text = head + " <float[3, 1] w = {1.0, 2.0, 3.0}> { y = MatMul(x, w) z = Relu(w) }"
    graph = graph_of(text)
    assert initializer_reserves(graph, prepacked(graph)) == (Reserve("w", 12),)
    alone = graph_of(
        text.replace("z = Relu(w)", "z = Shape(x)").replace("float[3, 1] z", "int64[2] z")
    )
    assert initializer_reserves(alone, prepacked(alone)) == ()


def test_a_small_external_initializer_is_not_in_the_arena() -> None:
    graph = graph_of("agraph (float[3] x) => (float[3] y) <float[3] w> { y = Add(x, w) }")
    assert initializer_reserves(graph) == ()


def test_an_initializer_of_128_bytes_is_not_in_the_arena() -> None:
    values = ", ".join(["1.0"] * 32)
    text = f"agraph (float[32] x) => (float[32] y) <float[32] w = {{{values}}}> {{ y = Add(x, w) }}"
    assert initializer_reserves(graph_of(text)) == ()


# Scales and bias of a MatMulNBits in fp16 are converted to floats in advance, or in every run.
# Measured on onnxruntime 1.32.0, A: [64, 96], B: [80, 3, 16].
PACKED_FLOATS, PACKED_INTEGERS = 3_840, 5_886
SCALES, BIAS = 4 * 80 * 3, 4 * 80
A, B, C = 4 * 64 * 96, 4 * 96 * 80, 4 * 64 * 80
TYPES = ("float16", "uint8", "float16", "", "", "float16")


def call(*, has_bias: bool, level: int) -> Call:
    bias = (None, None, Operand((80,), 16)) if has_bias else ()
    inputs = (Operand((64, 96), 16), Operand((80, 3, 16), 8), Operand((80, 3), 16), *bias)
    attributes = {"K": 96, "N": 80, "bits": 4, "block_size": 32, "accuracy_level": level}
    return Call(inputs, (Operand((64, 80), 16),), attributes)


@pytest.mark.parametrize(
    ("constants", "has_bias", "level", "scratch_bytes", "packed_bytes"),
    [
        ({1, 2}, False, 0, A, PACKED_FLOATS + SCALES),
        ({1, 2}, False, 4, 7_743, PACKED_INTEGERS + SCALES),
        ({1, 2, 5}, True, 0, A, PACKED_FLOATS + SCALES + BIAS),
        ({1, 2}, True, 0, A + BIAS, PACKED_FLOATS + SCALES),
        ({1}, False, 0, A + SCALES, PACKED_FLOATS),
        ({1}, True, 4, 7_743 + SCALES + BIAS, PACKED_INTEGERS),
        ({1, 5}, True, 4, 7_743 + SCALES, PACKED_INTEGERS + BIAS),
        ({2}, False, 0, A + B + C + SCALES, 0),
        ({2, 5}, True, 0, A + B + C + SCALES + BIAS, 0),
        ({5}, True, 4, A + B + C + SCALES + BIAS, 0),
        (set(), True, 0, A + B + C + SCALES + BIAS, 0),
    ],
)
def test_scales_and_bias_are_converted_in_advance_if_they_and_the_weight_are_constant(
    constants: set[int], *, has_bias: bool, level: int, scratch_bytes: int, packed_bytes: int
) -> None:
    site, used = KernelInfo(frozenset(constants), TYPES), call(has_bias=has_bias, level=level)
    found = scratch("MatMulNBits", "com.microsoft", used, site)
    assert found is not None
    assert found.size_bytes == scratch_bytes
    packed = kernel_of("MatMulNBits", "com.microsoft").packing(KernelCall(used, site))
    assert sum(each.size_bytes for each in packed) == packed_bytes
