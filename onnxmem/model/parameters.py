"""TODO: which weights are trained."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    """The weights of a model by what they are to training; names of tensors, each storage once."""

    trained: tuple[str, ...]
    quantised: tuple[str, ...]
    buffers: tuple[str, ...]
