"""The free bytes of a block whose holes are filled best fit, in O(log n) for each request."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field


@dataclass(slots=True)
class FreeList:
    """Holes below ``top``; everything from ``top`` on is free."""

    top: int = 0
    by_size: list[tuple[int, int]] = field(default_factory=list)
    """(size, offset) of each hole, in order."""
    ends: dict[int, int] = field(default_factory=dict)
    """Offset of each hole to its end."""
    starts: dict[int, int] = field(default_factory=dict)
    """End of each hole to its offset."""

    def allocate(self, size: int) -> int:
        """Take the smallest hole that is large enough, else the bytes above all: the offset."""
        hole_size = self.smallest(size)
        if hole_size is None:
            return self.above(size)
        _, offset = self.by_size[bisect_left(self.by_size, (size, 0))]
        self._remove(offset, offset + hole_size)
        if hole_size > size:
            self._add(offset + size, offset + hole_size)
        return offset

    def smallest(self, size: int) -> int | None:
        """Bytes of the smallest hole that is large enough."""
        place = bisect_left(self.by_size, (size, 0))
        return None if place == len(self.by_size) else self.by_size[place][0]

    def above(self, size: int) -> int:
        """Take the bytes above all: the offset."""
        offset = self.top
        self.top += size
        return offset

    def free(self, offset: int, size: int) -> None:
        """Give bytes back; they become one hole with those beside them."""
        start, end = self.starts.get(offset, offset), offset + size
        end = self.ends.get(end, end)
        if start < offset:
            self._remove(start, offset)
        if end > offset + size:
            self._remove(offset + size, end)
        if end == self.top:
            self.top = start
        else:
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        insort(self.by_size, (end - start, start))
        self.ends[start] = end
        self.starts[end] = start

    def _remove(self, start: int, end: int) -> None:
        del self.by_size[bisect_left(self.by_size, (end - start, start))]
        del self.ends[start], self.starts[end]
