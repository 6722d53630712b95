"""A model and a request in, an analysis out: the one package that walks the stages.

Begin reading with ``analyzing.analyze``, then ``analysis.analysis_of``.
"""
