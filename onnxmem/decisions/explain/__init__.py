"""A name or an out-of-memory message in, what it means and what of a model explains it out.

Begin reading with ``glossary.value_of`` and ``out_of_memory.oom_report``.
"""
