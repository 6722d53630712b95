"""Patterns of nodes that become one node of a fused kernel.

A graph goes in and is changed in place; each ``fuse_`` function says whether it found its pattern.
``pipeline`` has the sequence in which they run; begin reading at ``convolutions``, the shortest.
"""
