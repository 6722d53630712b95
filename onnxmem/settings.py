"""What is asked of an analysis; every default is printed as an assumption."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
