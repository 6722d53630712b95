"""Orders of execution: what a graph's nodes take in any order, and two orders by a walk of it.

A block is a tensor with its views: who shares it does not depend on the order. Whether an output is
written over an input does, but only on which nodes have run: it is where no other reader of the
block is left (definition 4c). So the bytes live after a node follow from the set of nodes that have
run, and so does what the next node adds: every search (``scheduling``) rests on that. Nodes of
subgraphs stay in their order: what a node's subgraphs take belongs to the node.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onnxmem.model.graph import Graph, Node
from onnxmem.runtimes.ideal.lifetimes import (
    Pairs,
    activations,
    read_scope,
    same_layout,
    shared_buffers,
)

Overwrites = tuple[tuple[int, tuple[int, ...]], ...]
"""Of each block made that may lie over a block read: which ones, in the order they are tried."""


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


@dataclass(frozen=True, slots=True)
class Step:
    """One node: blocks by number, bytes of its own."""

    producers: tuple[int, ...]
    """Nodes that must run before, each once."""
    makes: tuple[int, ...]
    reads: tuple[int, ...]
    """Each block once."""
    overwrites: Overwrites
    inner_bytes: int
    """What its subgraphs have live at their peak."""

    def over_bytes(self, free: set[int], sizes: Sequence[int]) -> int:
        """Bytes of outputs that lie over blocks nobody else reads; takes those out of ``free``."""
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
    kept: frozenset[int]
    """Blocks that hold a graph output: live to the end."""

    def runs(self, order: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Bytes live while each node of an order runs, and after it."""
        left: dict[int, int] = {}
        live_bytes = 0
        for index in order:
            step = self.steps[index]
            for block in step.reads:
                left[block] = left.get(block, len(self.readers[block])) - 1
            dead = {b for b in step.reads if not left[b] and b not in self.kept}
            made_bytes = sum(self.sizes[block] for block in step.makes)
            unread = [b for b in step.makes if not (self.readers[b] or b in self.kept)]
            freed_bytes = sum(self.sizes[block] for block in (*dead, *unread))
            over_bytes = step.over_bytes(dead, self.sizes) if step.overwrites else 0
            high_bytes = live_bytes + made_bytes + step.inner_bytes - over_bytes
            live_bytes += made_bytes - freed_bytes
            yield high_bytes, live_bytes

    def peak_bytes(self, order: Iterable[int]) -> int:
        """The most bytes live in one order."""
        return max((high_bytes for high_bytes, _ in self.runs(order)), default=0)

    def floor_bytes(self) -> int:
        """What some node takes in any order: the blocks that it reads and makes."""
        return max(map(self._least_bytes, self.steps), default=0)

    def _least_bytes(self, step: Step) -> int:
        held = sum(self.sizes[block] for block in {*step.makes, *step.reads})
        over = sum(self.sizes[block] for block, _ in step.overwrites)
        return step.inner_bytes + held - over


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
        return tuple(index for index, job in enumerate(self.jobs) if not job.producers)

    def peak_bytes(self, order: Iterable[int]) -> int:
        """The most bytes live in one order."""
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
    """As onnxruntime runs them by default: ``core/graph/graph_viewer.cc``, the constructor."""
    return tuple(reverse_dfs(_leaves(problem), [step.producers for step in problem.steps]))


def largest_first_walk(problem: Problem) -> tuple[int, ...]:
    """What makes the most bytes comes before what makes less."""
    made = [sum(problem.sizes[block] for block in step.makes) for step in problem.steps]
    by_bytes = [sorted(step.producers, key=made.__getitem__) for step in problem.steps]
    leaves = sorted(_leaves(problem), key=made.__getitem__)
    return tuple(reverse_dfs(leaves, by_bytes))


def reverse_dfs(leaves: Sequence[int], producers: Sequence[Sequence[int]]) -> Iterator[int]:
    """Post-order, a node after all that it reads; the last leaf and the last producer come first.

    Source: ``Graph::ReverseDFSFrom`` of onnxruntime's ``core/graph/graph.cc``. A node that comes up
    twice is left out the second time.
    """
    stack = [(index, False) for index in leaves]
    visited: set[int] = set()
    while stack:
        index, is_left = stack.pop()
        if is_left:
            yield index
        elif index not in visited:
            visited.add(index)
            stack.append((index, True))
            stack.extend((source, False) for source in producers[index] if source not in visited)


def _leaves(problem: Problem) -> list[int]:
    read = {source for step in problem.steps for source in step.producers}
    return [index for index in range(len(problem.steps)) if index not in read]


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


class _Reader:
    """Mutable: the blocks of the nodes so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.views = Pairs(lambda operator: operator.alias)
        self.chains = Pairs(lambda operator: operator.may_inplace)
        self.blocks: dict[str, int] = {}
        self.sizes: list[int] = []
        self.makers = {name: i for i, node in enumerate(graph.nodes) for name in node.writes}
        self.inner = _inner_bytes(graph)

    def problem(self) -> Problem:
        outputs = frozenset(self.graph.outputs)
        steps = tuple(self._step(i, node, outputs) for i, node in enumerate(self.graph.nodes))
        readers: list[list[int]] = [[] for _ in self.sizes]
        for i, step in enumerate(steps):
            for block in step.reads:
                readers[block].append(i)
        kept = frozenset(self.blocks[name] for name in outputs if name in self.blocks)
        return Problem(
            tuple(_possible(step, kept) for step in steps),
            tuple(self.sizes),
            tuple(map(tuple, readers)),
            kept,
        )

    def _step(self, index: int, node: Node, outputs: frozenset[str]) -> Step:
        views = dict(self.views.of(node))
        joined = [self._join(output, source) for output, source in views.items()]
        makes, overwrites = [], []
        for output in activations(self.graph, node):
            if output in views:
                continue
            block = len(self.sizes)
            self.sizes.append(self.graph.tensors[output].size_bytes or 0)
            sources = tuple(s for s in self._sources(node, output) if s not in joined)
            if sources and output not in outputs:
                overwrites.append((block, sources))
            makes.append(block)
            self.blocks[output] = block
        found = (self.blocks[name] for name in node.reads if name in self.blocks)
        producers = {self.makers[name] for name in node.reads if name in self.makers}
        return Step(
            tuple(sorted(producers)),
            tuple(makes),
            tuple(dict.fromkeys(found)),
            tuple(overwrites),
            self.inner.get(index, 0),
        )

    def _join(self, output: str, source: str) -> int | None:
        """A view lies in its input's block, which is as large as any of its tensors is known."""
        block = self.blocks.get(source)
        if block is not None:
            self.blocks[output] = block
            size_bytes = self.graph.tensors[output].size_bytes or 0
            self.sizes[block] = max(self.sizes[block], size_bytes)
        return block

    def _sources(self, node: Node, output: str) -> Iterator[int]:
        """Blocks that an output may be written over, once nobody else reads them."""
        tensors = self.graph.tensors
        for target, source in self.chains.of(node):
            block = self.blocks.get(source)
            if target != output or block is None:
                continue
            slots = sum(self.blocks.get(name) == block for name in node.reads)
            if slots == 1 and same_layout(tensors[source], tensors[output]):
                yield block


def _possible(step: Step, kept: frozenset[int]) -> Step:
    """Without the overwriting of what is live to the end."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for block, sources in step.overwrites:
        free = tuple(source for source in sources if source not in kept)
        if free:
            found.append((block, free))
    return Step(step.producers, step.makes, step.reads, tuple(found), step.inner_bytes)


def _inner_bytes(graph: Graph) -> Mapping[int, int]:
    """What the subgraphs of each node that has any take at their peak."""
    if not any(node.subgraphs for node in graph.nodes):
        return {}
    scope = read_scope(graph, shared_buffers)
    return {
        index: max(body.peak_bytes for body in bodies) for index, bodies in scope.bodies.items()
    }


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
