"""Explain a code, a figure, or an out-of-memory message, on a model if one is given.

Begin reading with ``glossary.value_of`` and ``out_of_memory.oom_report``.
"""
