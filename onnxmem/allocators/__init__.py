"""What a block of memory, onnxruntime's arena and PyTorch's allocator make of requests."""
