"""Convolution networks in blocks of channels: the layout NCHWc of onnxruntime's CPU kernels."""

from onnxmem.runtimes.onnxruntime.optimiser.nchwc.transforming import block_channels

__all__ = ["block_channels"]
