"""What follows from shapes about the elements of small integer tensors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShapeValue:
    """Elements of a small integer tensor that follow from shapes."""

    elements: tuple[int | None, ...]
    """Row-major; ``None`` where an element is unknown."""
    is_scalar: bool = False
    """Rank 0 rather than rank 1."""
