"""Losses, and Dropout: what a network has for its training alone."""

from onnxmem.ops.formulas import (
    bytes_of_input,
    num_elements,
    one_per_element,
    per_input_element,
    times,
)
from onnxmem.ops.spec import Attribute, Call, Formula, OpSpec, Operand, Saved

_SUM_BYTES = 4
"""The summed weights of the classes, a float32 scalar."""


def _log_probability_bytes(call: Call) -> int | None:
    scores = bytes_of_input()(call)
    return None if scores is None else scores + _SUM_BYTES


def _class_weight_sum_bytes(call: Call) -> int | None:  # noqa: ARG001 - a formula like any other
    return _SUM_BYTES


def _is_zero(operand: Operand | None) -> bool:
    return operand is not None and operand.value is not None and not any(operand.value)


def _drops(call: Call) -> bool:
    """From opset 12 on: ``training_mode`` is false where left out, true where not constant."""
    training_mode = call.input_at(2)
    return (
        training_mode is not None and not _is_zero(training_mode) and not _is_zero(call.input_at(1))
    )


def _dropped_before_12(call: Call) -> bool:
    """The mode is the runtime's, and taken for training: ``ratio`` and ``is_test`` decide."""
    ratio: Attribute = call.attributes.get("ratio", 0.5)
    return bool(ratio) and not call.attributes.get("is_test", 0)
