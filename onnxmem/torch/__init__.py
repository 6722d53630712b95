"""Measures a training step of a module of PyTorch: your own network, not one made from a file.

A module and its inputs go in, a ``MeasuredStep`` comes out: live bytes by category and phase, which
are counted under fake tensors and need no GPU; what the CUDA allocator counts, where there is one;
and the prediction for a file beside both. Begin with ``measuring.measure``. Only this package
imports torch (``pip install 'onnxmem[train]'``), and nothing imports this package.
"""

try:
    from onnxmem.torch.measuring import MeasuredPhase, MeasuredStep, measure
except ModuleNotFoundError as fault:
    if fault.name != "torch":
        raise
    message = "onnxmem.torch needs PyTorch: pip install 'onnxmem[train]'"
    raise ModuleNotFoundError(message, name="torch") from fault

__all__ = ["MeasuredPhase", "MeasuredStep", "measure"]
