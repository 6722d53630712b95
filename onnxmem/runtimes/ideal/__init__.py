"""Inference as the graph says it, on no runtime in particular: lifetimes, sharing, peaks, orders.

The numbers of definitions are those of docs/definitions.md.
"""
