"""Operators of the framework that ONNX has no name for."""

from onnxmem.ops.formulas import product, shape_at, times
from onnxmem.ops.spec import Call, Gradient, Made, OpSpec, Saved

FRAMEWORK = "torch"
"""The domain of these records."""

_LOG_SUM_BYTES = 4


def _log_sum_bytes(call: Call) -> int | None:
    """Bytes of the logarithm of each row's sum: query [*batch, rows, width] -> [*batch, rows]."""
    shape = shape_at(call)
    return times(_LOG_SUM_BYTES, product(shape[:-1])) if shape else None


RSQRT = OpSpec(
    op_type="rsqrt",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    saved=(Saved("result"),),  # dX = -0.5 * dY * Y^3
    gradients=(Gradient("self", Made.NEW, 2),),
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
