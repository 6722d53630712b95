"""Allocators that serve a program: one packed block, onnxruntime's arena, PyTorch's allocator."""
