"""Operators that exporters write as several nodes where the framework runs one.

What the framework's one operator saves counts, not what the nodes of the file would save.
``network.as_run`` returns the graph with each composite as one node. Begin reading with
``rewriting``: a finder yields a ``Match`` for each composite that it finds in a ``GraphView``.
"""
