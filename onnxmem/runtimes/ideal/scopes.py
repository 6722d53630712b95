"""The program of one graph and, within the steps of its If, Loop and Scan nodes, of those inside.

Each node of the graph is a step: it allocates its outputs, then releases what nobody reads later.

A node with subgraphs allocates within its own step what they have live at their peak, and releases
it there: of an If's branches the larger one, of a Loop or a Scan its body once, for each iteration
takes the same bytes again.

An If's branch writes its outputs straight into the If's outputs (onnxruntime's ``if.cc``), so that
the two are one tensor: it is counted outside where its size is known there, else inside. A loop's
body has outputs of its own, which are copied out (``loop.cc``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from onnxmem.model.graph import Graph, Node
from onnxmem.program import Replay, Sizes, replay
from onnxmem.runtimes.ideal.lifetimes import Buffers

FindBuffers = Callable[[Graph], Buffers]
"""The buffers of one graph: ``tensor_buffers`` or ``shared_buffers``."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What one graph and the graphs inside it allocate."""

    buffers: Buffers
    """Of the graph itself."""
    bodies: Mapping[int, tuple["Scope", ...]]
    """Subgraphs by the step of their node."""
    replay: Replay
    """Of the graph with what the graphs inside it have live at their peaks."""
    nested: tuple[range, ...]
    """The allocations that are subgraphs', of each node that has any."""

    @property
    def sum_bytes(self) -> int:
        """All known buffers kept."""
        return self.sum_of(lambda buffers: sum(filter(None, buffers.sizes_bytes)))

    def sum_of(self, measure: Callable[[Buffers], int]) -> int:
        """Sum a measure of the buffers: of an If the larger branch, of a loop the body once."""
        return measure(self.buffers) + sum(
            max(body.sum_of(measure) for body in bodies) for bodies in self.bodies.values()
        )

    @property
    def peak_bytes(self) -> int:
        """The largest number of known bytes live at one step."""
        return self.replay.peak.size_bytes

    def all_buffers(self) -> Iterator[Buffers]:
        """The buffers of every graph, those of all branches included."""
        yield self.buffers
        for bodies in self.bodies.values():
            for body in bodies:
                yield from body.all_buffers()


def read_scope(
    graph: Graph, find_buffers: FindBuffers, written_outside: frozenset[str] = frozenset()
) -> Scope:
    """Make the programs of a graph and of its subgraphs; recurses as deep as these nest.

    A buffer with a tensor in ``written_outside`` is an enclosing graph's and is left out.
    """
    found = find_buffers(graph)
    nodes = [(step, node) for step, node in enumerate(graph.nodes) if node.subgraphs]
    counted = _counted(found, written_outside) if nodes else frozenset()
    bodies = {
        step: tuple(
            read_scope(body, find_buffers, _written_outside(node, body, counted))
            for _, body in node.subgraphs
        )
        for step, node in nodes
    }
    buffers = found
    if written_outside:
        numbers = range(len(found))
        own = [n for n in numbers if written_outside.isdisjoint(found.tensors_of(n))]
        buffers = found.keep(own)
    allocated, nested = buffers, []
    if bodies:
        allocated = buffers.keep(range(len(buffers)))
        nested = [_add_nested(allocated, step, inner) for step, inner in bodies.items()]
    replayed = replay(allocated.program(graph.nodes), Sizes.of(allocated.sizes_bytes))
    return Scope(buffers, bodies, replayed, tuple(filter(None, nested)))


def _add_nested(buffers: Buffers, step: int, bodies: tuple[Scope, ...]) -> range:
    """Add to a node's step what the larger of its subgraphs has live at its peak: the numbers."""
    inner = max(bodies, key=lambda body: body.peak_bytes).replay
    first = len(buffers)
    for number in inner.program.alive_after(inner.peak.num_events):
        allocation, tensors = inner.allocation(number), inner.program.tensors_of(number)
        if allocation.size_bytes:
            added = buffers.add(allocation.label, allocation.size_bytes, step, step)
            if len(tensors) > 1:
                buffers.tensors[added] = [*tensors]
    return range(first, len(buffers))


def _counted(found: Buffers, written_outside: frozenset[str]) -> frozenset[str]:
    """The tensors whose bytes are counted in this graph or in an enclosing one."""
    return frozenset(
        name
        for number, size_bytes in enumerate(found.sizes_bytes)
        for tensors in (found.tensors_of(number),)
        if size_bytes is not None or not written_outside.isdisjoint(tensors)
        for name in tensors
    )


def _written_outside(node: Node, body: Graph, counted: frozenset[str]) -> frozenset[str]:
    """A branch's outputs that an output of the If stands for."""
    if node.onnx_op != "If":
        return frozenset()
    pairs = zip(body.outputs, node.outputs, strict=False)
    return frozenset(inner for inner, outer in pairs if outer in counted)
