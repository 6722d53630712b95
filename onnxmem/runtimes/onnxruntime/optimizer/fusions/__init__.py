"""Patterns of nodes that become one node with a fused kernel.

Each ``fuse_`` function changes a graph in place, and returns whether it found its pattern.
``pipeline`` has the sequence in which they run; begin reading at ``convolutions``, the shortest.
"""
