"""Analyze a model: the one package that runs the stages.

Begin reading with ``analysis.analyze``; ``request`` has the model with its settings, ``fitting``
the verdict on memory.
"""
