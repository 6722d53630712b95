"""A training step as PyTorch runs it on a CUDA device: what it allocates, and what is reserved.

The input is a graph and a training configuration, the output the step's memory by phase, category
and tensor, and what PyTorch's caching allocator reserves for it. Begin reading with ``step``.
"""
