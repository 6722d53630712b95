"""A model in, its key-value cache out, and what its dims are in a step at a context.

Begin reading with ``cache.find_cache``: among ``candidates`` it recognizes the tensors of a cache;
``steps`` has the numbers of a decode step and of a prefill. Most models have no candidate, and all
else is imported where there is one.
"""
