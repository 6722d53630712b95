"""Optimizers: the state that each keeps from step to step, and what one step allocates besides.

State has the element size of the parameters, but for counters and block scales. Temporaries are
those of the form that runs: ``foreach``, PyTorch's default on CUDA, handles all parameters at once
and holds whole copies of them; ``single`` goes parameter by parameter; ``fused`` allocates nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from onnxmem.errors import UsageError
from onnxmem.runtimes.torch.optimizers.of_others import OF_OTHERS
from onnxmem.runtimes.torch.optimizers.of_torch import FOREACH_OF_2_0, OF_TORCH
from onnxmem.runtimes.torch.optimizers.optimizer import FORMS, Optimizer
from onnxmem.runtimes.torch.optimizers.scripts import Dims, Script

__all__ = ["FORMS", "OPTIMIZERS", "Dims", "Optimizer", "optimizer_named"]

OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {known.name: known for known in (*OF_TORCH, *OF_OTHERS)}
)


_OLDER: Mapping[str, Mapping[str, Script]] = MappingProxyType(
    {"1.12": FOREACH_OF_2_0, "2.0": FOREACH_OF_2_0}
)
"""By release: what the steps of all parameters at once allocated then."""


def optimizer_named(name: str, torch: str = "latest") -> Optimizer:
    """Find an optimizer, as a release of PyTorch has it.

    :raises UsageError: there is none of that name.
    """
    if name not in OPTIMIZERS:
        message = f"optimizer {name!r}: not known; one of {', '.join(OPTIMIZERS)}"
        raise UsageError(message)
    found = OPTIMIZERS[name]
    older = _OLDER.get(torch, {}).get(name)
    return found if older is None else replace(found, foreach=older)
