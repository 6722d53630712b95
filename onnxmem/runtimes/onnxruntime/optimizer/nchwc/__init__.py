"""Convolution networks in blocks of channels: the layout NCHWc of onnxruntime's CPU kernels."""
