"""TODO."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes at each step."""

    live_bytes: tuple[int, ...]
