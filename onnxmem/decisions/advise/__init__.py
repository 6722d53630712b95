"""A request in, and what would lower the memory of the model out, by what each change saves.

Begin reading with ``advising.advised``: ``settings`` and ``weights`` suggest changes, ``proposals``
computes each by analyzing the changed model, and ``emitting`` writes chosen ones out.
"""
