"""A graph as its order sees it: what each node makes, reads and may write over, by plain numbers.

A block is a tensor with its views: who shares it does not depend on the order. Whether an output is
written over an input does, but only on which nodes have run: it is where no other reader of the
block is left (definition 4c). So the bytes live after a node follow from the set of nodes that have
run, and so does what the next node adds: every search here rests on that.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnxmem.model.graph import Graph, Node
from onnxmem.runtimes.ideal.lifetimes import activations, tensor_buffers
from onnxmem.runtimes.ideal.scopes import read_scope
from onnxmem.runtimes.ideal.sharing import Pairs, same_layout, shared_buffers

Overwrites = tuple[tuple[int, tuple[int, ...]], ...]
"""Of each block made that may lie over a block read: which ones, in the order they are tried."""


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
        for place in order:
            step = self.steps[place]
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


def problem_of(graph: Graph, *, is_shared: bool = True) -> Problem:
    """Read a graph by definition 4, or by definition 3: every tensor a block of its own."""
    return _Reader(graph, is_shared=is_shared).problem()


class _Reader:
    """Mutable: the blocks of the nodes so far."""

    def __init__(self, graph: Graph, *, is_shared: bool) -> None:
        self.graph = graph
        self.views = Pairs(lambda operator: operator.alias if is_shared else ())
        self.chains = Pairs(lambda operator: operator.may_inplace if is_shared else ())
        self.blocks: dict[str, int] = {}
        self.sizes: list[int] = []
        self.makers = {name: i for i, node in enumerate(graph.nodes) for name in node.writes}
        self.inner = _inner_bytes(graph, is_shared=is_shared)

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

    def _step(self, place: int, node: Node, outputs: frozenset[str]) -> Step:
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
            self.inner.get(place, 0),
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


def _inner_bytes(graph: Graph, *, is_shared: bool) -> Mapping[int, int]:
    """What the subgraphs of each node that has any take at their peak."""
    if not any(node.subgraphs for node in graph.nodes):
        return {}
    scope = read_scope(graph, shared_buffers if is_shared else tensor_buffers)
    return {
        place: max(body.peak_bytes for body in bodies) for place, bodies in scope.bodies.items()
    }
