"""What each operator does to memory and how much it computes: one frozen record per operator.

An operator's name, domain and opset version determine its ``OpSpec``: which outputs are views,
which inputs may be overwritten, what is saved for backward, FLOPs. Begin with ``spec``, which
describes a record; ``elementwise`` has simple records, and ``registry`` the lookup.
"""
