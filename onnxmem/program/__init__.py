"""The allocations and releases of a run, their sizes, and the figures that follow from them.

A runtime builds a ``Program``, the tensors' shapes give its ``Sizes``, and ``replay`` combines both
into a ``Replay``, the source of every figure, chart and explanation. Begin with ``program``.
"""
