"""Changes that lower the memory of a model, ranked by the bytes that they save.

Begin reading with ``advising.advised``: ``settings`` and ``weights`` suggest changes, ``proposals``
analyzes the model with each of them, and ``emitting`` writes the chosen ones to a file.
"""
