"""Inference as the graph says it, on no runtime in particular.

In goes a graph; out come lifetimes, buffers, peaks at one setting or as polynomials in the dims,
and other orders of execution. Begin reading with ``activation_memory``; the numbers of definitions
are those of docs/definitions.md.
"""
