"""What each operator does to memory and how much it computes: one frozen record per operator.

An operator's name, domain and opset version come in, an ``OpSpec`` goes out: what is a view, what
may be overwritten, what a backward pass reads, FLOPs. Begin with ``spec``, which says what a record
is; then ``elementwise`` for simple records, and ``registry`` for the look-up.
"""
