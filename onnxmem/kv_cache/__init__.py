"""A model in, its key-value cache out, and what its dims are in a step at a context.

Begin reading with ``finding.find_cache``; ``cache`` has what a cache is and how it is recognized,
``steps`` the numbers of a decode step and of a prefill. Most models have no cache: all but
``finding`` is imported where there is one.
"""
