"""PyTorch's caching allocator of one CUDA device, replayed without PyTorch or a device."""
