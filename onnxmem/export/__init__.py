"""One analysis in the formats of other tools, and copies of a model's file.

An exporter takes an analysis and yields a file piece by piece, as text or as bytes; names from a
model are shortened and made printable first, and what is unknown is left out, never 0. Begin with
``exporters``, which lists the formats; ``rewriting`` is the model's own file with figures in it or
in another order.
"""
