"""Inference of a graph, without any particular runtime.

The input is a graph; the output are lifetimes, buffers, peaks at one setting or as polynomials in
the dims, and other orders of execution. Begin reading with ``activation_memory``; the numbers of
definitions are those of docs/definitions.md.
"""
