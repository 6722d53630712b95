"""Losses: what each keeps for the backward pass, and the targets that the caller hands in.

The loss is PyTorch's, one on each floating output of the graph that is trained, or on those that
are named.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from onnxmem.errors import UsageError
from onnxmem.ops.spec import Operand, known_dims

_LABEL_BYTES = 8
"""Class labels are int64."""


def _number_bytes(output: Operand) -> int | None:
    return None if output.bits is None else output.bits // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one loss keeps, by the output that it reads; ``None`` where its shape is unknown."""

    name: str
    saved_bytes: Callable[[Operand], int | None]
    """Kept for the backward pass; the output itself is held anyway."""
    keeps_output: bool = False
    """Whether the formula reads the output, and so keeps a copy that was cast for it."""
    reads_half: bool = False
    """Whether a GPU's kernel reads float16 where it writes float32, and makes its gradient."""
    gradients_on_the_way: int = 0
    """Gradients as large as the output that are made before the output's own, one from another."""
    has_weight_sum: bool = False
    """A number, the sum of the class weights, is kept until the first gradient is made."""
    has_value: bool = True
    """The loop holds the loss to the end of the step."""
    value_bytes: Callable[[Operand], int | None] = _number_bytes
    """Of the storage that holds the loss."""
    target_bytes: Callable[[Operand], int | None]
    formula: str
    source: str


def _label_bytes(output: Operand) -> int | None:
    """One label where the output has a score for each class: its shape without the class axis.

    Classes are the last axis up to rank 3, ``[batch, classes]`` or ``[batch, time, classes]``, and
    axis 1 from rank 4 on, ``[batch, classes, height, width]``.
    """
    if output.shape is None:
        return None
    rank = len(output.shape)
    class_axis = 1 if rank > 3 else rank - 1  # noqa: PLR2004 - images and what is larger
    others = known_dims((*output.shape[:class_axis], *output.shape[class_axis + 1 :]))
    return None if others is None else _LABEL_BYTES * prod(others)


def _nothing(output: Operand) -> int | None:  # noqa: ARG001 - a formula like any other
    return 0


def _output_bytes(output: Operand) -> int | None:
    return output.size_bytes


_ALL = (
    Loss(
        name="cross-entropy",
        saved_bytes=_output_bytes,
        reads_half=True,
        has_weight_sum=True,
        gradients_on_the_way=1,  # of the log-probabilities
        target_bytes=_label_bytes,
        formula="log-softmax of the output and one sum; int64 labels",
        source="torch derivatives.yaml: _log_softmax, nll_loss",
    ),
    Loss(
        name="mse",
        saved_bytes=_nothing,
        keeps_output=True,
        # The kernel squares the differences into what it then takes the mean into
        value_bytes=_output_bytes,
        target_bytes=_output_bytes,
        formula="nothing but the output itself; targets as large as the output",
        source="torch derivatives.yaml: mse_loss; aten/src/ATen/native/BinaryOps.cpp: mse_loss",
    ),
    Loss(
        name="none",
        saved_bytes=_nothing,
        has_value=False,
        target_bytes=_nothing,
        formula="0",
        source="no loss",
    ),
)

LOSSES: Mapping[str, Loss] = MappingProxyType({known.name: known for known in _ALL})


def loss_named(name: str) -> Loss:
    """Find a loss.

    :raises UsageError: there is none of that name.
    """
    if name not in LOSSES:
        message = f"loss {name!r}: not known; one of {', '.join(LOSSES)}"
        raise UsageError(message)
    return LOSSES[name]
