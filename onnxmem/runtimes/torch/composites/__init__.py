"""Operators that exporters write as several nodes where the framework runs one.

What the framework's one operator saves counts, not what its pieces would. A graph goes in and one
with a node in place of each composite's comes out (``network.as_run``). Begin reading with
``rewriting``: a finder yields a ``Match`` for each composite that it finds in a ``GraphView``.
"""
