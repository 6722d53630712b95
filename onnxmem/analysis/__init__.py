"""A model and a request in, an analysis out: the one package that walks the stages.

Begin reading with ``analysis.analyze``; ``request`` has what is computed from, ``fitting`` the
verdict on memory.
"""
