"""Scales and bias of a MatMulNBits in fp16: in floats once and for all, or at every run.

Measured on onnxruntime 1.32.0, A: [64, 96], B: [80, 3, 16].
"""

import pytest

from onnxmem.ops.spec import Call, Operand
from onnxmem.runtimes.onnxruntime.kernels.kernel import KernelCall, KernelInfo
from onnxmem.runtimes.onnxruntime.kernels.registry import kernel_of, scratch

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
def test_they_are_converted_beforehand_where_they_and_the_weight_are_constant(
    constants: set[int], *, has_bias: bool, level: int, scratch_bytes: int, packed_bytes: int
) -> None:
    site, used = KernelInfo(frozenset(constants), TYPES), call(has_bias=has_bias, level=level)
    taken = scratch("MatMulNBits", "com.microsoft", used, site)
    assert taken is not None
    assert taken.size_bytes == scratch_bytes
    packed = kernel_of("MatMulNBits", "com.microsoft").packing(KernelCall(used, site))
    assert sum(each.size_bytes for each in packed) == packed_bytes
