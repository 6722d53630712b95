"""One segment with its nodes numbered from 0, and what running the next node does to live bytes.

The nodes that have run are the bits of one integer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onnxmem.runtimes.ideal.schedule.problem import Problem, Step


class Read(NamedTuple):
    """A block that a node reads and that no later segment needs."""

    block: int
    size_bytes: int
    readers: int
    """The segment's nodes that read it, as bits."""


@dataclass(frozen=True, slots=True)
class Job:
    """One node of a segment."""

    producers: int
    """As bits; those of earlier segments have run."""
    consumers: tuple[int, ...]
    made_bytes: int
    """While it runs, its subgraphs' peak included."""
    left_bytes: int
    """Of what it makes, what is live after it."""
    reads: tuple[Read, ...]
    step: Step


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes between two cuts."""

    nodes: tuple[int, ...]
    """The problem's numbers of the jobs."""
    jobs: tuple[Job, ...]
    start_bytes: int
    """Live before the first."""
    sizes: tuple[int, ...]
    """Of every block of the problem."""

    def run(self, job: int, done: int, live_bytes: int) -> tuple[int, int]:
        """Bytes live while a job runs, and after it."""
        it = self.jobs[job]
        left = ~(done | 1 << job)
        dead = [read for read in it.reads if not read.readers & left]
        over_bytes = 0
        if dead and it.step.overwrites:
            over_bytes = it.step.over_bytes({read.block for read in dead}, self.sizes)
        freed_bytes = sum(read.size_bytes for read in dead)
        return live_bytes + it.made_bytes - over_bytes, live_bytes + it.left_bytes - freed_bytes

    def ready_after(self, job: int, done: int, ready: Sequence[int]) -> tuple[int, ...]:
        """What may run next; ``done`` holds the job."""
        jobs = self.jobs
        freed = (n for n in jobs[job].consumers if not jobs[n].producers & ~done)
        return (*(each for each in ready if each != job), *freed)

    def ready_first(self) -> tuple[int, ...]:
        """What may run at the start."""
        return tuple(place for place, job in enumerate(self.jobs) if not job.producers)

    def peak_bytes(self, order: Iterable[int]) -> int:
        """The most bytes live in one order."""
        done, live_bytes, peak_bytes = 0, self.start_bytes, 0
        for job in order:
            high_bytes, live_bytes = self.run(job, done, live_bytes)
            peak_bytes = max(peak_bytes, high_bytes)
            done |= 1 << job
        return peak_bytes


def segment_of(problem: Problem, nodes: Sequence[int], start_bytes: int) -> Segment:
    """Number the nodes from 0; what other segments read is live to this one's end."""
    numbers = {node: i for i, node in enumerate(nodes)}
    consumers: list[list[int]] = [[] for _ in nodes]
    for node, i in numbers.items():
        for source in problem.steps[node].producers:
            if source in numbers:
                consumers[numbers[source]].append(i)
    reading = _Reading(problem, numbers)
    jobs = tuple(reading.job(node, consumers[i]) for node, i in numbers.items())
    return Segment(tuple(nodes), jobs, start_bytes, problem.sizes)


@dataclass(frozen=True, slots=True)
class _Reading:
    problem: Problem
    numbers: dict[int, int]
    """The problem's number of each node to the segment's."""

    def job(self, node: int, consumers: Sequence[int]) -> Job:
        step, sizes = self.problem.steps[node], self.problem.sizes
        made_bytes = sum(sizes[block] for block in step.makes)
        unread = (block for block in step.makes if not self._outlives(block))
        return Job(
            producers=self._bits(step.producers),
            consumers=tuple(consumers),
            made_bytes=made_bytes + step.inner_bytes,
            left_bytes=made_bytes - sum(sizes[block] for block in unread),
            reads=tuple(
                Read(block, sizes[block], self._bits(self.problem.readers[block]))
                for block in step.reads
                if self._ends_here(block)
            ),
            step=step,
        )

    def _outlives(self, block: int) -> bool:
        return block in self.problem.kept or bool(self.problem.readers[block])

    def _ends_here(self, block: int) -> bool:
        """Whether no later segment reads it: its last one in the file is here then."""
        last = self.problem.readers[block][-1]
        return last in self.numbers and block not in self.problem.kept

    def _bits(self, nodes: Iterable[int]) -> int:
        return sum(1 << self.numbers[node] for node in nodes if node in self.numbers)
