"""A training step as PyTorch runs it on a CUDA device: what it allocates, and what that takes.

In goes a graph and how it is trained; out comes the step's memory by phase, category and tensor,
and what PyTorch's allocator makes of it. ``step`` is where to begin reading.
"""
