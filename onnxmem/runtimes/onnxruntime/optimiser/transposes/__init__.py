"""Transposes pushed towards each other until they meet and cancel."""

from onnxmem.runtimes.onnxruntime.optimiser.transposes.pushing import push_transposes

__all__ = ["push_transposes"]
