"""Losses, and Dropout: operators that a network has only for training."""

from collections.abc import Callable

from onnxmem.ops.formulas import (
    bytes_of_input,
    num_elements,
    per_input_element,
    times,
)
from onnxmem.ops.spec import Call, Formula, Operand, OpSpec, Saved

_WEIGHT_SUM_BYTES = 4
"""The sum of the class weights, one float32."""


def _weight_sum_bytes(call: Call) -> int | None:  # noqa: ARG001 - a formula like any other
    return _WEIGHT_SUM_BYTES


def _log_softmax_bytes(call: Call) -> int | None:
    """Bytes of the log-probabilities, as large as the scores, and of the sum of weights."""
    scores_bytes = bytes_of_input()(call)
    return None if scores_bytes is None else scores_bytes + _WEIGHT_SUM_BYTES


def _nll_flops(call: Call) -> int | None:
    """Count weight and addition for each target; its class is selected, not computed."""
    return times(2, num_elements(call.input_at(1)))


def _is_zero(operand: Operand | None) -> bool:
    return operand is not None and operand.value is not None and not any(operand.value)


def _is_identity(call: Call) -> bool:
    """From opset 12 on: ``training_mode`` is false where left out, true where it is no constant."""
    ratio, training_mode = call.input_at(1), call.input_at(2)
    return training_mode is None or _is_zero(training_mode) or _is_zero(ratio)


def _is_identity_before_12(call: Call) -> bool:
    """Before, the runtime chose the mode, here training; opsets 1 and 6 had ``is_test``."""
    return not call.attributes.get("ratio", 0.5) or bool(call.attributes.get("is_test", 0))


def _dropout(
    since_version: int, inputs: tuple[str, ...], is_identity: Callable[[Call], bool]
) -> OpSpec:
    """Zero some elements and scale the others; where nothing is dropped, an identity.

    The mask counts here whether or not it is an output with a name.
    """

    def per_dropped(count: int) -> Formula:
        return lambda call: 0 if is_identity(call) else times(count, num_elements(call.input_at(0)))

    return OpSpec(
        op_type="Dropout",
        since_version=since_version,
        inputs=inputs,
        outputs=("output", "mask"),
        saved_extra_bytes=per_dropped(1),  # dX = dY * mask / (1 - ratio): a mask of bytes
        preserves_strides=True,
        flops=per_dropped(2),  # draw, multiply
        source="torch derivatives.yaml: native_dropout, as on CUDA",
    )


OPS = (
    _dropout(1, ("data",), _is_identity_before_12),
    _dropout(12, ("data", "ratio", "training_mode"), _is_identity),
    OpSpec(
        op_type="SoftmaxCrossEntropyLoss",
        inputs=("scores", "labels", "weights"),
        outputs=("output", "log_prob"),
        buffers=("weights",),
        # dscores = (exp(log_prob) - onehot(labels)) * weights * dloss: not the scores themselves
        saved=(Saved("labels"), Saved("weights")),
        saved_extra_bytes=_log_softmax_bytes,
        flops=per_input_element(5),  # LogSoftmax; the pick of one class a row is left out
        source="torch derivatives.yaml: _log_softmax, nll_loss",
    ),
    OpSpec(
        op_type="NegativeLogLikelihoodLoss",
        inputs=("input", "target", "weight"),
        outputs=("loss",),
        buffers=("weight",),
        saved=(Saved("input"), Saved("target"), Saved("weight")),  # dX = -onehot * weight * dloss
        saved_extra_bytes=_weight_sum_bytes,
        flops=_nll_flops,
        source="torch derivatives.yaml: nll_loss",
    ),
)
