"""Operators of the framework that ONNX has no name for."""

from math import prod

from onnxmem.ops.formulas import bytes_of_output, shape_at
from onnxmem.ops.linear import MATMUL_FLOPS, MATMUL_MACS, MATMUL_SAVED
from onnxmem.ops.spec import Call, Gradient, Made, OpSpec, Saved, known_dims

FRAMEWORK = "torch"
"""The domain of these records."""

_LOG_SUM_BYTES = 4
_LOG_SUM_ALIGNMENT = 32
_RANDOM_STATE_BYTES = 16


def _log_sum_bytes(call: Call) -> int | None:
    """Bytes of the logarithm of each row's sum, and of the seed and offset of random numbers.

    Query [batch, heads, rows, width] -> [batch, heads, rows up to a multiple of 32].
    """
    dims = known_dims(shape_at(call))
    if dims is None or len(dims) < 2:  # noqa: PLR2004 - rows and width
        return None
    rows = -(-dims[-2] // _LOG_SUM_ALIGNMENT) * _LOG_SUM_ALIGNMENT
    return _LOG_SUM_BYTES * prod(dims[:-2]) * rows + _RANDOM_STATE_BYTES


RSQRT = OpSpec(
    op_type="rsqrt",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    saved=(Saved("result"),),  # dX = -0.5 * dY * Y^3
    gradients=(Gradient("self", Made.NEW, bytes_of_output(2)),),
    keeps_strides=True,
    source="torch derivatives.yaml: rsqrt",
)

GLU = OpSpec(
    op_type="glu",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    saved=(Saved("self"),),  # with a, b the halves: da = dY * s(b), db = dY * a * s'(b)
    source="torch derivatives.yaml: glu",
)

ROLL = OpSpec(
    op_type="roll",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    source="torch derivatives.yaml: roll",  # dX = roll(dY) the other way
)

ATTENTION = OpSpec(
    op_type="scaled_dot_product_attention",
    domain=FRAMEWORK,
    inputs=("query", "key", "value", "attn_bias"),
    outputs=("output",),
    # The fused kernels keep no scores: they compute them again
    saved=(Saved("query"), Saved("key"), Saved("value"), Saved("output")),
    saved_extra_bytes=_log_sum_bytes,
    source="torch derivatives.yaml: _scaled_dot_product_efficient_attention, _flash_attention",
)

LINEAR = OpSpec(
    op_type="linear",
    domain=FRAMEWORK,
    inputs=("A", "B", "bias"),
    outputs=("Y",),
    parameters=("A", "B", "bias"),
    saved=MATMUL_SAVED,  # dbias = sum(dY)
    macs=MATMUL_MACS,
    flops=MATMUL_FLOPS,
    source="torch derivatives.yaml: addmm, of the input with its leading dims folded into one",
)
