"""What a tensor of a cache may hold."""

from enum import StrEnum


class Holds(StrEnum):
    """What is in a tensor of the cache."""

    KEYS = "keys"
    VALUES = "values"
    BOTH = "keys and values"
    SCALES = "scales"
    """Of quantised keys or values."""
    STATE = "states"
    """Of a convolution or a recurrence: it does not grow."""
    UNKNOWN = "unnamed"
    """Keys or values: neither name nor operator says which."""
