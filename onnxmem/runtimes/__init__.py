"""What a runtime makes of a model: its own graph, its own memory.

Its many rules are imported when a runtime is asked for.
"""
