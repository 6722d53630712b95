"""Optimizers: the state that each keeps from step to step, and what one step allocates besides.

State has the element size of the parameters, but for counters and block scales. Temporaries are
those of the form that runs: ``foreach``, PyTorch's default on CUDA, handles all parameters at once
and holds whole copies of them; ``single`` goes parameter by parameter; ``fused`` allocates nothing.
"""

from collections.abc import Mapping
from types import MappingProxyType

from onnxmem.errors import UsageError
from onnxmem.training.optimizers.of_others import OF_OTHERS
from onnxmem.training.optimizers.of_torch import OF_TORCH
from onnxmem.training.optimizers.optimizer import FORMS, Optimizer
from onnxmem.training.optimizers.scripts import Dims

__all__ = ["FORMS", "OPTIMIZERS", "Dims", "Optimizer", "optimizer_named"]

OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {known.name: known for known in (*OF_TORCH, *OF_OTHERS)}
)


def optimizer_named(name: str) -> Optimizer:
    """Find an optimizer.

    :raises UsageError: there is none of that name.
    """
    if name not in OPTIMIZERS:
        message = f"optimizer {name!r}: not known; one of {', '.join(OPTIMIZERS)}"
        raise UsageError(message)
    return OPTIMIZERS[name]
