"""Write an analysis in formats of other tools, and write model files with figures or a new order.

An exporter takes an analysis and yields a file piece by piece, as text or bytes. Names of a model
are shortened and made printable, and unknown figures are omitted, never 0. Begin with
``exporters``, which lists the formats; ``rewriting`` copies the file of the model.
"""
