"""What is asked of an analysis; every default is printed as an assumption.

The names are those that the training room knows, said here too so that a command line can offer
them without importing it; a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

OPTIMIZERS: Final = (
    *("sgd", "momentum", "nesterov", "rmsprop", "adagrad", "adam", "adamw"),
    *("lion", "lamb", "adafactor", "adam8bit"),
)
PRECISIONS: Final = ("fp32", "mixed-fp16", "mixed-bf16", "bf16")
LOSSES: Final = ("cross-entropy", "mse", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The question: dims, training, budget."""

    batch: int | None = None
    """``None``: the batch that the file fixes, or 1."""
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    train: bool = False
    optimizer: str = "adam"
    precision: str = "fp32"
    loss: str = "cross-entropy"
    budget_bytes: int | None = None
