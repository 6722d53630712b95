"""The key-value cache of a model, and the values of its dims in a step at a context.

Begin reading with ``cache.find_cache``: among ``candidates`` it recognizes the tensors of a cache;
``steps`` has the dims of a decode step and of a prefill. Most models have no candidate, and
everything else is imported only where there is one.
"""
