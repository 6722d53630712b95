"""Shapes of the operators that onnxruntime adds to ONNX's."""

from onnxmem.runtimes.onnxruntime.optimiser.shapes.runtime.operators import runtime_types

__all__ = ["runtime_types"]
