"""An order of execution that was found, and what it takes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order of a graph's nodes, and what it takes at its peak."""

    order: tuple[int, ...]
    """Places of the nodes in the file's order."""
    peak_bytes: int
    file_peak_bytes: int
    floor_bytes: int
    """No order takes less."""

    @property
    def is_proven(self) -> bool:
        """Whether no order takes less than this one."""
        return self.peak_bytes <= self.floor_bytes

    @property
    def is_file_order(self) -> bool:
        """Whether every node stays where it is."""
        return self.order == tuple(range(len(self.order)))
