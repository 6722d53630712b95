"""Whether models fit a device, the largest batch that does, and what limits it.

Begin reading with ``assessing.fit``: ``footprints`` computes the memory of models, ``verdicts`` has
the rule that compares it with a limit, ``searching`` finds the largest number that fits.
"""
