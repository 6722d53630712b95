"""Intervals of what the data of a run decides: dims, and the elements that dims are computed from.

A graph with known inputs comes in; the same graph with the upper end of every dim comes out, and
the dims without one. ``walk`` passes over the nodes: ``dims`` has a rule for each operator whose
output dims depend on data, ``values`` the interval arithmetic of shape computations, ``loops`` the
iterations. Begin with ``walk``.
"""
