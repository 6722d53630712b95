"""Segments, blocks and events as PyTorch's memory viewer wants them, while they come up."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Frames = list[dict[str, str | int]]
"""A call stack: dicts of ``name``, ``filename`` and ``line``."""

_BASE: Final = 0x7F00_0000_0000
"""Where addresses begin: about where CUDA's do."""
_APART: Final = 1 << 21
"""Segments begin at multiples of it."""


@dataclass(slots=True)
class Segment:
    """A range that is taken from the device."""

    address: int
    size_bytes: int
    is_small: bool = False
    is_expandable: bool = False


class Held(NamedTuple):
    """A block of a segment."""

    address: int
    size_bytes: int
    asked_bytes: int
    """0: it is free."""
    frames: Frames


@dataclass(slots=True)
class TorchState:
    """Mutable: what is allocated, and the events that led to it."""

    segments: list[Segment] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    _live: dict[int, Held] = field(default_factory=dict)
    """By address."""
    _top: int = _BASE

    def new_segment(self, size_bytes: int) -> Segment:
        """A segment above those before it; one of no bytes is none."""
        segment = Segment(self._top, size_bytes)
        if size_bytes:
            self._top += -(-size_bytes // _APART) * _APART
            self.take(segment)
        return segment

    def take(self, segment: Segment) -> None:
        """A segment at an address that is chosen elsewhere."""
        self.segments.append(segment)
        self.happen("segment_alloc", segment.address, segment.size_bytes, [])

    def allocate(
        self, address: int, asked_bytes: int, frames: Frames, block_bytes: int | None = None
    ) -> None:
        """A block is given out."""
        size_bytes = asked_bytes if block_bytes is None else block_bytes
        self._live[address] = Held(address, size_bytes, asked_bytes, frames)
        self.happen("alloc", address, asked_bytes, frames)

    def free(self, address: int) -> None:
        """A block is given back."""
        held = self._live.pop(address)
        for action in ("free_requested", "free_completed"):
            self.happen(action, address, held.asked_bytes, held.frames)

    def happen(self, action: str, address: int, size_bytes: int, frames: Frames) -> None:
        """Write down an event; its time is its place."""
        place = {"addr": address, "size": size_bytes, "stream": 0}
        time = len(self.trace)
        self.trace.append({"action": action, **place, "time_us": time, "frames": frames})

    def placed(self) -> Iterator[tuple[Segment, tuple[Held, ...]]]:
        """Each segment and its blocks by address; free ones, which ask for 0 bytes, between."""
        order = sorted(self._live)
        for segment in self.segments:
            start = bisect_left(order, segment.address)
            stop = bisect_left(order, segment.address + segment.size_bytes)
            yield segment, tuple(self._held(segment, order[start:stop]))

    def _held(self, segment: Segment, order: Iterable[int]) -> Iterator[Held]:
        top, end = segment.address, segment.address + segment.size_bytes
        for address in order:
            if address > top:
                yield Held(top, address - top, 0, [])
            held = self._live[address]
            yield held
            top = address + held.size_bytes
        if top < end:
            yield Held(top, end - top, 0, [])
