"""Orders of execution: the peak of a graph in any order, and two orders by depth-first walks.

A block is a tensor with its views, which do not depend on the order. Whether an output overwrites
an input does, but only on the set of nodes that have run: it does if the block has no reader left
(definition 4c). So the bytes live after a node follow from the set of nodes that have run, and so
does what the next node adds: every search (``schedule_search``) relies on that. Nodes of subgraphs
are not reordered: what a node's subgraphs take belongs to the node.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from onnxmem.model.graph import Graph, Node
from onnxmem.runtimes.ideal.lifetimes import (
    CHAINS,
    VIEWS,
    activations,
    read_scope,
    same_layout,
    shared_buffers,
)

Overwrites = tuple[tuple[int, tuple[int, ...]], ...]
"""Blocks that a node writes and that may overwrite blocks that it reads, with these in order of
preference."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order of a graph's nodes, and its peak."""

    order: tuple[int, ...]
    """The indices of the nodes in the file's order."""
    peak_bytes: int
    file_in_place_peak_bytes: int
    lower_bound_bytes: int
    """A lower bound for any order."""

    @property
    def is_proven(self) -> bool:
        """Whether the order is optimal: its peak is the lower bound."""
        return self.peak_bytes <= self.lower_bound_bytes

    @property
    def is_file_order(self) -> bool:
        """Whether it is the file's order."""
        return self.order == tuple(range(len(self.order)))


@dataclass(frozen=True, slots=True)
class Step:
    """One node, with blocks by their numbers."""

    producers: tuple[int, ...]
    """Nodes that must run before, each once."""
    writes: tuple[int, ...]
    reads: tuple[int, ...]
    """Each block once."""
    overwrites: Overwrites
    inner_bytes: int
    """Bytes that its subgraphs have live at their peak."""

    def overwritten_bytes(self, free: set[int], sizes: Sequence[int]) -> int:
        """Bytes of outputs that overwrite blocks of ``free``, from which these are removed."""
        total = 0
        for block, sources in self.overwrites:
            source = next((each for each in sources if each in free), None)
            if source is not None:
                free.discard(source)
                total += sizes[block]
        return total


@dataclass(frozen=True, slots=True)
class Problem:
    """Nodes in the file's order, and the blocks between them."""

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]
    """Bytes of each block; one of unknown size counts none."""
    readers: tuple[tuple[int, ...], ...]
    """Nodes that read each block, each once."""
    outputs: frozenset[int]
    """Blocks of graph outputs: live to the end."""

    def live_bytes(self, order: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Bytes live while each node of an order runs, and after it."""
        # A node's outputs and inputs are live together; then what has no reader left is freed. An
        # output that overwrites a dead input takes no bytes of its own while the node runs.
        readers_left: dict[int, int] = {}
        live_bytes = 0
        for index in order:
            step = self.steps[index]
            for block in step.reads:
                readers_left[block] = readers_left.get(block, len(self.readers[block])) - 1
            dead = {b for b in step.reads if not readers_left[b] and b not in self.outputs}
            written_bytes = sum(self.sizes[block] for block in step.writes)
            unread = [b for b in step.writes if not (self.readers[b] or b in self.outputs)]
            freed_bytes = sum(self.sizes[block] for block in (*dead, *unread))
            shared_bytes = step.overwritten_bytes(dead, self.sizes) if step.overwrites else 0
            high_bytes = live_bytes + written_bytes + step.inner_bytes - shared_bytes
            live_bytes += written_bytes - freed_bytes
            yield high_bytes, live_bytes

    def peak_bytes(self, order: Iterable[int]) -> int:
        """The peak of one order."""
        return max((high_bytes for high_bytes, _ in self.live_bytes(order)), default=0)

    def floor_bytes(self) -> int:
        """A lower bound for any order: the most that a node reads and writes."""
        return max(map(self._least_bytes, self.steps), default=0)

    def _least_bytes(self, step: Step) -> int:
        blocks_bytes = sum(self.sizes[block] for block in {*step.writes, *step.reads})
        shared_bytes = sum(self.sizes[block] for block, _ in step.overwrites)
        return step.inner_bytes + blocks_bytes - shared_bytes


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
    allocated_bytes: int
    """Bytes of its outputs, and of its subgraphs at their peak."""
    remaining_bytes: int
    """Bytes of its outputs that are live after it."""
    reads: tuple[Read, ...]
    step: Step


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes between two cuts."""

    nodes: tuple[int, ...]
    """The nodes of the jobs in the problem."""
    jobs: tuple[Job, ...]
    start_bytes: int
    """Live before the first job."""
    sizes: tuple[int, ...]
    """Of every block of the problem."""

    def run(self, job: int, done: int, live_bytes: int) -> tuple[int, int]:
        """Bytes live while a job runs, and after it."""
        # As `Problem.live_bytes`, with sets of jobs as bits: a read is dead when all its readers
        # are done, this job included.
        current = self.jobs[job]
        pending = ~(done | 1 << job)
        dead = [read for read in current.reads if not read.readers & pending]
        shared_bytes = 0
        if dead and current.step.overwrites:
            blocks = {read.block for read in dead}
            shared_bytes = current.step.overwritten_bytes(blocks, self.sizes)
        freed_bytes = sum(read.size_bytes for read in dead)
        high_bytes = live_bytes + current.allocated_bytes - shared_bytes
        return high_bytes, live_bytes + current.remaining_bytes - freed_bytes

    def ready_after(self, job: int, done: int, ready: Sequence[int]) -> tuple[int, ...]:
        """The jobs that may run next; ``done`` includes the job."""
        jobs = self.jobs
        freed = (n for n in jobs[job].consumers if not jobs[n].producers & ~done)
        return (*(each for each in ready if each != job), *freed)

    def ready_first(self) -> tuple[int, ...]:
        """The jobs that may run first."""
        return tuple(index for index, job in enumerate(self.jobs) if not job.producers)

    def peak_bytes(self, order: Iterable[int]) -> int:
        """The peak of one order."""
        done, live_bytes, peak_bytes = 0, self.start_bytes, 0
        for job in order:
            high_bytes, live_bytes = self.run(job, done, live_bytes)
            peak_bytes = max(peak_bytes, high_bytes)
            done |= 1 << job
        return peak_bytes


def problem_of(graph: Graph) -> Problem:
    """Read a graph by definition 4."""
    return _Reader(graph).problem()


def onnxruntime_walk(problem: Problem) -> tuple[int, ...]:
    """Onnxruntime's default order: the constructor in ``core/graph/graph_viewer.cc``."""
    return tuple(reverse_dfs(_leaves(problem), [step.producers for step in problem.steps]))


def largest_first_walk(problem: Problem) -> tuple[int, ...]:
    """Depth-first, the producer that writes the most bytes first."""
    written = [sum(problem.sizes[block] for block in step.writes) for step in problem.steps]
    by_bytes = [sorted(step.producers, key=written.__getitem__) for step in problem.steps]
    leaves = sorted(_leaves(problem), key=written.__getitem__)
    return tuple(reverse_dfs(leaves, by_bytes))


def reverse_dfs(leaves: Sequence[int], producers: Sequence[Sequence[int]]) -> Iterator[int]:
    """Post-order, each node after its producers; the last leaf and the last producer come first."""
    # Graph::ReverseDFSFrom of onnxruntime's core/graph/graph.cc: a node is on the stack once to
    # enter it, and once more to leave it after its producers. One that is reached twice is entered
    # the first time only.
    stack = [(index, False) for index in leaves]
    visited: set[int] = set()
    while stack:
        index, is_leaving = stack.pop()
        if is_leaving:
            yield index
        elif index not in visited:
            visited.add(index)
            stack.append((index, True))
            stack.extend((source, False) for source in producers[index] if source not in visited)


def _leaves(problem: Problem) -> list[int]:
    read = {source for step in problem.steps for source in step.producers}
    return [index for index in range(len(problem.steps)) if index not in read]


def segment_of(problem: Problem, nodes: Sequence[int], start_bytes: int) -> Segment:
    """A segment of some nodes, numbered from 0; blocks that later segments read are not freed."""
    numbers = {node: i for i, node in enumerate(nodes)}
    consumers: list[list[int]] = [[] for _ in nodes]
    for node, i in numbers.items():
        for source in problem.steps[node].producers:
            if source in numbers:
                consumers[numbers[source]].append(i)
    builder = _JobBuilder(problem, numbers)
    jobs = tuple(builder.job(node, consumers[i]) for node, i in numbers.items())
    return Segment(tuple(nodes), jobs, start_bytes, problem.sizes)


class _Reader:
    """Mutable: the blocks of the nodes so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.blocks: dict[str, int] = {}
        self.sizes: list[int] = []
        self.producers = {name: i for i, node in enumerate(graph.nodes) for name in node.writes}
        self.inner = _inner_bytes(graph)

    def problem(self) -> Problem:
        # Steps first, for views join blocks while they are read: only then is it known which blocks
        # are graph outputs, and those nothing overwrites.
        names = frozenset(self.graph.outputs)
        steps = tuple(self._step(i, node, names) for i, node in enumerate(self.graph.nodes))
        readers: list[list[int]] = [[] for _ in self.sizes]
        for i, step in enumerate(steps):
            for block in step.reads:
                readers[block].append(i)
        outputs = frozenset(self.blocks[name] for name in names if name in self.blocks)
        return Problem(
            tuple(_without_overwritten_outputs(step, outputs) for step in steps),
            tuple(self.sizes),
            tuple(map(tuple, readers)),
            outputs,
        )

    def _step(self, index: int, node: Node, outputs: frozenset[str]) -> Step:
        views = dict(VIEWS.of(node))
        # A view has no block, and a block that this node looks at through a view is not overwritten
        # by another of its outputs (definition 4, c 3).
        joined = [self._join(output, source) for output, source in views.items()]
        writes, overwrites = [], []
        for output in activations(self.graph, node):
            if output in views:
                continue
            block = len(self.sizes)
            self.sizes.append(self.graph.tensors[output].size_bytes or 0)
            sources = tuple(s for s in self._sources(node, output) if s not in joined)
            if sources and output not in outputs:
                overwrites.append((block, sources))
            writes.append(block)
            self.blocks[output] = block
        reads = (self.blocks[name] for name in node.reads if name in self.blocks)
        producers = {self.producers[name] for name in node.reads if name in self.producers}
        return Step(
            tuple(sorted(producers)),
            tuple(writes),
            tuple(dict.fromkeys(reads)),
            tuple(overwrites),
            self.inner.get(index, 0),
        )

    def _join(self, output: str, source: str) -> int | None:
        """Add a view to its input's block, which is as large as its largest known tensor."""
        block = self.blocks.get(source)
        if block is not None:
            self.blocks[output] = block
            size_bytes = self.graph.tensors[output].size_bytes or 0
            self.sizes[block] = max(self.sizes[block], size_bytes)
        return block

    def _sources(self, node: Node, output: str) -> Iterator[int]:
        """Blocks that an output may overwrite, once no other node reads them."""
        tensors = self.graph.tensors
        for target, source in CHAINS.of(node):
            block = self.blocks.get(source)
            if target != output or block is None:
                continue
            # Read through two slots, the block would be overwritten while the other slot still
            # reads it.
            slots = sum(self.blocks.get(name) == block for name in node.reads)
            if slots == 1 and same_layout(tensors[source], tensors[output]):
                yield block


def _without_overwritten_outputs(step: Step, outputs: frozenset[int]) -> Step:
    """A step that does not overwrite blocks of graph outputs, which are live to the end."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for block, sources in step.overwrites:
        others = tuple(source for source in sources if source not in outputs)
        if others:
            found.append((block, others))
    return replace(step, overwrites=tuple(found))


def _inner_bytes(graph: Graph) -> Mapping[int, int]:
    """The peak of the subgraphs of each node that has any."""
    if not any(node.subgraphs for node in graph.nodes):
        return {}
    scope = read_scope(graph, shared_buffers)
    return {
        index: max(body.peak_bytes for body in bodies) for index, bodies in scope.bodies.items()
    }


@dataclass(frozen=True, slots=True)
class _JobBuilder:
    problem: Problem
    numbers: dict[int, int]
    """The number in the segment of each node of the problem."""

    def job(self, node: int, consumers: Sequence[int]) -> Job:
        step, sizes = self.problem.steps[node], self.problem.sizes
        written_bytes = sum(sizes[block] for block in step.writes)
        unread = (block for block in step.writes if not self._outlives(block))
        return Job(
            producers=self._bits(step.producers),
            consumers=tuple(consumers),
            allocated_bytes=written_bytes + step.inner_bytes,
            remaining_bytes=written_bytes - sum(sizes[block] for block in unread),
            reads=tuple(
                Read(block, sizes[block], self._bits(self.problem.readers[block]))
                for block in step.reads
                if self._ends_here(block)
            ),
            step=step,
        )

    def _outlives(self, block: int) -> bool:
        return block in self.problem.outputs or bool(self.problem.readers[block])

    def _ends_here(self, block: int) -> bool:
        """Whether no later segment reads a block."""
        # Segments are ranges between cuts, so that the last reader in the file's order is in the
        # last segment that reads the block.
        last = self.problem.readers[block][-1]
        return last in self.numbers and block not in self.problem.outputs

    def _bits(self, nodes: Iterable[int]) -> int:
        return sum(1 << self.numbers[node] for node in nodes if node in self.numbers)
