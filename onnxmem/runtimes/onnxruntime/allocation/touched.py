"""Which bytes of a region were ever written: what of it is resident."""

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class TouchedRanges:
    """A union of half-open byte ranges."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def add(self, start: int, stop: int) -> None:
        """Join a range to the union."""
        first = bisect_left(self.stops, start)
        last = first
        while last < len(self.starts) and self.starts[last] <= stop:
            last += 1
        if first < last:
            start = min(start, self.starts[first])
            stop = max(stop, self.stops[last - 1])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]

    @property
    def num_bytes(self) -> int:
        """Bytes of the union."""
        return sum(self.stops) - sum(self.starts)
