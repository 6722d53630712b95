"""What to do about the memory of a model: the answers that are computed from an analysis.

``fit`` and ``devices`` find the devices that run a model and the largest batch there, ``check``
compares models with budgets, ``advise`` looks for settings that need less memory, ``diff`` compares
two analyses, ``explain`` describes a figure or an out-of-memory message. Begin reading with
``fit.rank``.
"""
