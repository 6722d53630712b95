"""Whether a model fits a device, the largest that does, and what limits it.

Which figure is held against memory is known at once; what works figures out is imported late.
"""
