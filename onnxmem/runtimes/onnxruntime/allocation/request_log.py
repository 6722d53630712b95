"""What the runs of a session request of its arena, as numbers: recorded once, served many times.

Requests are counted as they come up, over all runs. In a log ``n`` is request ``n`` and ``~n`` its
release. A log has no sizes: where two batches have the same log, the sizes are all that differs,
and an arena or a memory pattern is replayed without the plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Final

from onnxmem.allocators.bfc_arena import Arena, Chunk
from onnxmem.runtimes.onnxruntime.allocation.frames import Session
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace

_BLOCK_BYTES: Final = -1
"""Stands for the size of the pattern's block, which follows from the other sizes."""


@dataclass(frozen=True, slots=True)
class RequestLog:
    """The requests of a session's runs and their releases, in order."""

    first: tuple[int, ...]
    """Of the first run."""
    later: tuple[int, ...]
    """Of each run after it."""
    node_ends: tuple[int, ...]
    """How many events of the first run have happened when a node ends."""
    traced: tuple[tuple[str, int | None], ...]
    """The buffers of the memory pattern with their requests; ``None``: the buffer is released."""
    block: int | None
    """The request for the pattern's block; ``None``: there is no pattern."""

    def with_block(self, sizes_bytes: Sequence[int]) -> list[int]:
        """Sizes of all requests, that of the pattern's block among them."""
        found = [*sizes_bytes]
        if self.block is not None:
            trace = PatternTrace()
            for name, number in self.traced:
                if number is None:
                    trace.free(name)
                else:
                    trace.allocate(name, found[number])
            found[self.block] = trace.size_bytes
        return found

    def requested_peak_bytes(self, sizes_bytes: Sequence[int]) -> int:
        """The most that is requested at the end of a node of the first run."""
        changes = (sizes_bytes[n] if n >= 0 else -sizes_bytes[~n] for n in self.first)
        requested = [0, *accumulate(changes)]
        return max((requested[end] for end in self.node_ends), default=0)


@dataclass(slots=True)
class LoggedSession:
    """A session that is loaded and runs as its log says."""

    arena: Arena
    log: RequestLog
    sizes_bytes: Sequence[int]
    """Of all requests."""
    has_run: bool = False

    def run(self) -> None:
        """Run the model once.

        :raises ArenaExhaustedError: the arena does not serve a request.
        """
        arena, sizes_bytes = self.arena, self.sizes_bytes
        chunks: dict[int, Chunk | None] = {}
        for event in self.log.later if self.has_run else self.log.first:
            if event >= 0:
                chunks[event] = arena.allocate(sizes_bytes[event])
            else:
                arena.free(chunks[~event])
        self.has_run = True


@dataclass(slots=True)
class Recorder(Arena):
    """Stands in for a session's arena, and notes what is requested of it."""

    sizes_bytes: list[int] = field(default_factory=list)
    """Of all requests so far; the pattern's block has none."""
    events: list[int] = field(default_factory=list)
    """Of this run so far."""
    traced: list[tuple[str, int | None]] = field(default_factory=list)

    def allocate(self, size_bytes: int) -> Chunk:
        """Note a request; one for nothing too, which may be for something at another batch."""
        number = len(self.sizes_bytes)
        self.sizes_bytes.append(size_bytes)
        self.events.append(number)
        return Chunk(number, size_bytes, 0)

    def free(self, chunk: Chunk | None) -> None:
        """Note a release."""
        if chunk is not None:
            self.events.append(~chunk.address)

    def log_of(self, session: Session) -> RequestLog:
        """Run a session of this arena that has not run yet."""
        session.new_trace = partial(_RecordedTrace, _BLOCK_BYTES, recorder=self)
        node_ends = dict.fromkeys(len(self.events) for _ in session.samples())
        first = self._taken_events()
        session.run()
        sizes_bytes = self.sizes_bytes
        block = sizes_bytes.index(_BLOCK_BYTES) if _BLOCK_BYTES in sizes_bytes else None
        return RequestLog(first, self._taken_events(), tuple(node_ends), tuple(self.traced), block)

    def _taken_events(self) -> tuple[int, ...]:
        events = tuple(self.events)
        self.events.clear()
        return events


@dataclass(slots=True)
class _RecordedTrace(PatternTrace):
    """Notes which requests lie in the pattern, and places none of them."""

    recorder: Recorder = field(kw_only=True)

    def allocate(self, name: str, size_bytes: int) -> None:
        """Note the buffer that was requested last."""
        self.sizes[name] = size_bytes
        self.recorder.traced.append((name, len(self.recorder.sizes_bytes) - 1))

    def free(self, name: str) -> None:
        """Note a release."""
        self.recorder.traced.append((name, None))
