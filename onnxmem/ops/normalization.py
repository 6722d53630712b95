"""Normalizations: statistics over some axes, then a scale and a shift.

Statistics that are saved for backward are float32 whatever the data are. FLOPs are counted per
element: mean 1, centering 1, variance 2, division by the deviation 1, scale 1, shift 1. What is
computed once per mean (its division, the root) is left out.
"""

from onnxmem.ops.formulas import (
    bytes_of_input,
    int_attribute,
    num_elements,
    per_element,
    product,
    shape_at,
    times,
)
from onnxmem.ops.spec import Call, Formula, Operand, OpSpec, Saved

_STATISTIC_BYTES = 4


def _channel_bytes(call: Call) -> int | None:
    """Bytes of mean and deviation per channel: as many as the scale has elements."""
    return times(2 * _STATISTIC_BYTES, num_elements(call.input_at(1)))


def _instance_bytes(call: Call) -> int | None:
    """Bytes of mean, deviation and repeated scale per sample and channel: [N, C, ...] -> [N, C]."""
    shape = shape_at(call)
    return times(3 * _STATISTIC_BYTES, product(shape[:2]) if shape else None)


def _row_bytes(count: int) -> Formula:
    """Bytes of ``count`` statistics per row: the axes before ``axis``, of which the rest is one."""

    def formula(call: Call) -> int | None:
        shape = shape_at(call)
        if not shape:
            return None
        rows = product(shape[: int_attribute(call, "axis", -1) % len(shape)])
        return times(count * _STATISTIC_BYTES, rows)

    return formula


def _group_bytes(call: Call) -> int | None:
    """Bytes of mean and deviation per sample and group: [N, C, ...] -> [N, num_groups]."""
    shape, groups = shape_at(call), max(int_attribute(call, "num_groups", 0), 0)
    return times(2 * _STATISTIC_BYTES * groups, shape[0]) if shape and groups else None


def _lp_norm_bytes(call: Call) -> int | None:
    """Bytes of the norms: the input with its axis taken out."""
    shape, data = shape_at(call), call.input_at(0)
    if not shape or data is None:
        return None
    axis = int_attribute(call, "axis", -1) % len(shape)
    return Operand(shape[:axis] + shape[axis + 1 :], data.bits).size_bytes


def _lrn_bytes(call: Call) -> int | None:
    """Bytes of the squares, padded by ``size - 1`` channels, and of the divisor before and after
    its power: all [N, C, ...] but for the padding.
    """
    shape, data = shape_at(call), call.input_at(0)
    if not shape or data is None or data.bits is None:
        return None
    padding = times(int_attribute(call, "size", 1) - 1, product((shape[0], *shape[2:])))
    squares_and_divisors = times(3, data.num_elements)
    if padding is None or squares_and_divisors is None:
        return None
    return (padding + squares_and_divisors) * data.bits // 8


def _lrn_flops(call: Call) -> int | None:
    """Count per element: square, sum of ``size`` squares, factor, bias, power, division.

    Windows at the first and last channels are counted in full.
    """
    return per_element(int_attribute(call, "size", 1) + 4)(call)


def _layer_norm_flops(call: Call) -> int | None:
    return per_element(6 if call.input_at(2) is None else 7)(call)


def _batch_normalization(since_version: int, mean: str, variance: str) -> OpSpec:
    return OpSpec(
        op_type="BatchNormalization",
        since_version=since_version,
        inputs=("X", "scale", "B", mean, variance),
        outputs=("Y",),
        parameters=("scale", "B"),
        buffers=(mean, variance),
        # With N = (X - mean) * invstd: dX = scale * invstd * (dY - avg(dY) - N * avg(dY * N))
        saved=(Saved("X"), Saved("scale")),
        saved_extra_bytes=_channel_bytes,  # mean, invstd
        flops=per_element(2),  # at inference the statistics fold into one scale and one shift
        source="torch derivatives.yaml: native_batch_norm",
    )


def _rms_normalization(op_type: str) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        inputs=("X", "scale"),
        outputs=("Y",),
        parameters=("scale",),
        # With N = X * invrms: dX = invrms * (dY * scale - N * avg(dY * scale * N))
        saved=(Saved("X"), Saved("scale")),
        saved_extra_bytes=_row_bytes(1),  # invrms
        flops=per_element(4),  # square, add, divide by the root, scale
        source="torch derivatives.yaml: _fused_rms_norm",
    )


OPS = (
    _batch_normalization(1, "mean", "var"),
    _batch_normalization(14, "input_mean", "input_var"),
    _rms_normalization("RMSNormalization"),
    _rms_normalization("SimplifiedLayerNormalization"),  # onnxruntime's name, before opset 23
    OpSpec(
        op_type="LayerNormalization",
        inputs=("X", "Scale", "B"),
        outputs=("Y", "Mean", "InvStdDev"),
        parameters=("X", "Scale", "B"),  # X: an embedding that is normalized
        # With N as of a batch, G = dY * Scale: dX = invstd * (G - avg(G) - N * avg(G * N))
        saved=(Saved("X"), Saved("Scale")),
        saved_extra_bytes=_row_bytes(2),  # mean, invstd
        flops=_layer_norm_flops,
        source="torch derivatives.yaml: native_layer_norm",
    ),
    OpSpec(
        op_type="GroupNormalization",
        inputs=("X", "scale", "bias"),
        outputs=("Y",),
        parameters=("scale", "bias"),
        saved=(Saved("X"), Saved("scale")),  # as LayerNormalization, over each group
        saved_extra_bytes=_group_bytes,  # mean, invstd
        flops=per_element(7),
        source="torch derivatives.yaml: native_group_norm",
    ),
    OpSpec(
        op_type="InstanceNormalization",
        inputs=("input", "scale", "B"),
        outputs=("output",),
        parameters=("scale", "B"),
        saved=(Saved("input"),),  # as BatchNormalization, over each sample
        saved_extra_bytes=_instance_bytes,  # mean, invstd, scale repeated for each sample
        flops=per_element(7),
        source="torch instance_norm: batch_norm over [1, N * C, ...]",
    ),
    OpSpec(
        op_type="LRN",
        inputs=("X",),
        outputs=("Y",),
        # With D = (bias + alpha * avg(X^2))^beta: dX = dY / D, less X * dY / D^2 through D
        saved=(Saved("X"),),
        saved_extra_bytes=_lrn_bytes,
        flops=_lrn_flops,
        source="torch nn.functional.local_response_norm, a composite",
    ),
    OpSpec(
        op_type="LpNormalization",
        inputs=("input",),
        outputs=("output",),
        saved=(Saved("input"),),  # with n = |X|_p: dX = dY / n, less X * dY / n^2 through n
        saved_extra_bytes=_lp_norm_bytes,
        flops=per_element(3),  # power, add, divide
        source="torch nn.functional.normalize, a composite",
    ),
    OpSpec(
        op_type="MeanVarianceNormalization",
        inputs=("X",),
        outputs=("Y",),
        saved=(Saved("X"),),  # as BatchNormalization with scale 1
        saved_extra_bytes=bytes_of_input(),  # X - mean
        flops=per_element(5),
        source="ONNX function body: a composite",
    ),
)
