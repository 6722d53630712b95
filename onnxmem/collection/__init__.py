"""Analyze many models: one result for each, whatever fails, and a summary.

Begin reading with ``many.outcomes``: ``sources`` expands names into files, ``task`` analyzes one
model, in this process, in ``workers`` or in ``executors``; ``cache`` stores results and ``summary``
adds them up. The command for a single model imports only what it uses.
"""
