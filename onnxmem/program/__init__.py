"""What is allocated and released when, how large it is, and what follows from that.

A runtime makes a ``Program``, the tensors' shapes give its ``Sizes``, and ``replay`` makes a
``Replay`` of both, from which every figure, chart and explanation is read. Begin reading with
``program``.
"""
