"""What kernels leave behind where torch's fake versions of them say something else.

Found by `measure.py --real-tensors`, which runs the kernels. Each is shared by CPU and GPU.
"""

from typing import Any

import torch

_ATEN = torch.ops.aten

_NO_REDUCTION = 0


def as_kernels_leave(func: Any, args: tuple[Any, ...], outputs: Any) -> Any:  # noqa: ANN401
    """`outputs` of the fake `func` with the storage and the strides that its kernel gives them."""
    if func is _ATEN.mse_loss.default:
        return _mean_square(args, outputs)
    if func is _ATEN.native_layer_norm_backward.default:
        # `layer_norm_backward_cpu` and `_cuda` (aten/src/ATen/native) make it contiguous; the fake
        # one takes the strides of the gradient that comes in.
        gradient, *others = outputs
        return (None if gradient is None else gradient.contiguous(), *others)
    return outputs


def _mean_square(args: tuple[Any, ...], loss: torch.Tensor) -> torch.Tensor:
    """A loss of no dims whose storage is as large as the operand.

    The structured kernel makes its output for the unreduced loss and then takes the mean into it:
    `mse_loss` and `mse_loss_out` of aten/src/ATen/native/BinaryOps.cpp and Loss.cpp.
    """
    reduction = args[2] if len(args) > 2 else 1  # noqa: PLR2004  # the third argument
    if reduction != _NO_REDUCTION:
        loss.untyped_storage().resize_(args[0].numel() * loss.element_size())
    return loss
