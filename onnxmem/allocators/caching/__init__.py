"""PyTorch's caching allocator of one CUDA device, replayed without PyTorch or a device."""

from onnxmem.allocators.caching.allocator import CachingAllocator, CachingConfig, Placed

__all__ = ["CachingAllocator", "CachingConfig", "Placed"]
