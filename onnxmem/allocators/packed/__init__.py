"""One block for a program that is known ahead: an offset for each allocation of it.

A program and its sizes go in, a ``Packing`` comes out, and ``Packed`` serves the program's events
from it as an allocator. Begin reading with ``packing``.
"""
