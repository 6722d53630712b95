"""Searches for an order of one segment's jobs whose peak is low, and for one that is lowest.

Work is counted in jobs that are tried, not in seconds: a model has the same order on every machine.

A job is forced where it lowers the live bytes and takes no more than the peak so far: any order
that runs it later can run it now, and what comes between takes no more for it. Serenity (Ahn et
al., "Ordering Chaos", 2020) searches sets of nodes that have run in the same way.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from onnxmem.runtimes.ideal.schedule.running import Segment

_WIDE_JOBS = 5_000
"""Bits of so many jobs take as long again as the rest of a try."""


@dataclass(slots=True)
class Work:
    """Mutable: jobs that may still be tried."""

    left: int

    def spend(self, tries: int, segment: Segment) -> None:
        """Count tries; those in a long segment count more."""
        self.left -= tries * (1 + len(segment.jobs) // _WIDE_JOBS)


class _Link(NamedTuple):
    """The last job of an order, and the jobs before it."""

    job: int
    before: "_Link | None"


class _State(NamedTuple):
    """Jobs that have run, and what that takes."""

    peak_bytes: int
    live_bytes: int
    done: int
    ready: tuple[int, ...]
    order: _Link | None
    num_done: int


def beam(segment: Segment, width: int, floor_bytes: int, work: Work) -> tuple[int, ...] | None:
    """Run job after job and keep the ``width`` best states; ``None`` where work ran out."""
    states = [_first(segment, floor_bytes)]
    for _ in segment.jobs:
        found: dict[int, _State] = {}
        for state in states:
            for after in _followers(segment, state, work):
                known = found.get(after.done)
                if known is None or after.peak_bytes < known.peak_bytes:
                    found[after.done] = after
        if work.left < 0:
            return None
        states = sorted(found.values(), key=_merit)[:width]
    return _unrolled(states[0].order)


def exact(
    segment: Segment, floor_bytes: int, ceiling_bytes: int, work: Work
) -> tuple[tuple[int, ...] | None, bool]:
    """An order with the least peak, if below the ceiling; and whether all that matters was tried.

    States are taken up lowest peak first, so that the first one that has run all jobs is best.
    """
    first = _first(segment, floor_bytes)
    heap = [(first.peak_bytes, 0, 0, first)]
    seen = {0: first.peak_bytes}
    num_found = 0
    while heap:
        state = heappop(heap)[-1]
        if state.num_done == len(segment.jobs):
            return _unrolled(state.order), True
        if work.left < 0:
            return None, False
        for after in _followers(segment, state, work):
            known = seen.get(after.done, ceiling_bytes)
            if after.peak_bytes < known:
                seen[after.done] = after.peak_bytes
                num_found += 1
                heappush(heap, (after.peak_bytes, -after.num_done, num_found, after))
    return None, True


def _first(segment: Segment, floor_bytes: int) -> _State:
    return _State(floor_bytes, segment.start_bytes, 0, segment.ready_first(), None, 0)


def _followers(segment: Segment, state: _State, work: Work) -> Iterator[_State]:
    """The states after one more job, or after the forced one alone."""
    tried = []
    for job in state.ready:
        high_bytes, after_bytes = segment.run(job, state.done, state.live_bytes)
        tried.append((job, high_bytes, after_bytes))
        if high_bytes <= state.peak_bytes and after_bytes <= state.live_bytes:
            tried = tried[-1:]
            break
    work.spend(len(state.ready), segment)
    for job, high_bytes, after_bytes in tried:
        done = state.done | 1 << job
        yield _State(
            max(state.peak_bytes, high_bytes),
            after_bytes,
            done,
            segment.ready_after(job, done, state.ready),
            _Link(job, state.order),
            state.num_done + 1,
        )


def _merit(state: _State) -> tuple[int, int]:
    return state.peak_bytes, state.live_bytes


def _unrolled(link: _Link | None) -> tuple[int, ...]:
    order: list[int] = []
    while link is not None:
        order.append(link.job)
        link = link.before
    return tuple(reversed(order))


Search = Callable[[Segment, int, Work], Sequence[int] | None]
"""An order of a segment that may be better than the file's, given the floor."""
