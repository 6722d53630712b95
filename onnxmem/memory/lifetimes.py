"""TODO."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that one or more tensors share."""

    tensors: tuple[str, ...]
    """In the order in which they are written; the first names the buffer."""
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The steps in which a buffer is live: half-open, ``[start, stop)``."""

    buffer: Buffer
    start: int
    stop: int
