"""One graph and, within the steps of its If, Loop and Scan nodes, the graphs inside.

A node with subgraphs adds to its own step what they take at their peak: of an If's branches the
larger one, of a Loop or a Scan its body once, for each iteration takes the same bytes again.

An If's branch writes its outputs straight into the If's outputs (onnxruntime's ``if.cc``), so that
the two are one tensor: it is counted outside where its size is known there, else inside. A loop's
body has outputs of its own, which are copied out (``loop.cc``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from onnxmem.model import Graph, Node
from onnxmem.program.lifetimes import Buffer, Lifetime, Timeline, timeline

FindLifetimes = Callable[[Graph], Iterable[Lifetime]]
"""The lifetimes of one graph's buffers: ``tensor_lifetimes`` or ``buffer_lifetimes``."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The buffers of one graph and of the graphs inside it."""

    lifetimes: tuple[Lifetime, ...]
    """Of the graph itself."""
    bodies: Mapping[int, tuple["Scope", ...]]
    """Subgraphs by the step of their node."""
    timeline: Timeline
    """Live bytes per step, subgraphs included."""

    @property
    def sum_bytes(self) -> int:
        """All known buffers kept."""
        return self.sum_of(lambda buffer: buffer.size_bytes or 0)

    def sum_of(self, measure: Callable[[Buffer], int]) -> int:
        """Sum a measure of the buffers: of an If the larger branch, of a loop the body once."""
        own = sum([measure(lifetime.buffer) for lifetime in self.lifetimes])
        return own + sum(
            max(body.sum_of(measure) for body in bodies) for bodies in self.bodies.values()
        )

    @property
    def peak_bytes(self) -> int:
        """The largest number of known bytes live at one step."""
        return self.timeline.peak_bytes

    def buffers(self) -> Iterator[Buffer]:
        """Every buffer, those of all branches included."""
        for lifetime in self.lifetimes:
            yield lifetime.buffer
        for bodies in self.bodies.values():
            for body in bodies:
                yield from body.buffers()

    def live_at_peak(self) -> Iterator[Buffer]:
        """The known buffers that make up the peak, subgraphs' included."""
        step = self.timeline.peak_step
        if step is None:
            return
        for lifetime in self.lifetimes:
            if lifetime.start <= step < lifetime.stop and lifetime.buffer.size_bytes:
                yield lifetime.buffer
        if step in self.bodies:
            yield from _larger(self.bodies[step]).live_at_peak()

    def blocks(self) -> Iterator[Lifetime]:
        """The graph's own lifetimes, and one for what a node's subgraph has live at its peak."""
        yield from self.lifetimes
        yield from _inner_blocks(self.bodies)


def read_scope(
    graph: Graph, find_lifetimes: FindLifetimes, written_outside: frozenset[str] = frozenset()
) -> Scope:
    """Work out the buffers of a graph and of its subgraphs; recurses as deep as these nest.

    A buffer with a tensor in ``written_outside`` is an enclosing graph's and is left out.
    """
    found = tuple(find_lifetimes(graph))
    lifetimes = found
    if written_outside:
        lifetimes = tuple(life for life in found if written_outside.isdisjoint(life.buffer.tensors))
    nodes = [(step, node) for step, node in enumerate(graph.nodes) if node.subgraphs]
    counted = _counted(found, written_outside) if nodes else frozenset()
    bodies = {
        step: tuple(
            read_scope(body, find_lifetimes, _written_outside(node, body, counted))
            for _, body in node.subgraphs
        )
        for step, node in nodes
    }
    blocks = (*lifetimes, *_inner_blocks(bodies))
    return Scope(lifetimes, bodies, timeline(blocks, len(graph.nodes)))


def _counted(found: Iterable[Lifetime], written_outside: frozenset[str]) -> frozenset[str]:
    """The tensors whose bytes are counted in this graph or in an enclosing one."""
    buffers = (lifetime.buffer for lifetime in found)
    return frozenset(
        name
        for buffer in buffers
        if buffer.size_bytes is not None or not written_outside.isdisjoint(buffer.tensors)
        for name in buffer.tensors
    )


def _written_outside(node: Node, body: Graph, counted: frozenset[str]) -> frozenset[str]:
    """A branch's outputs that an output of the If stands for."""
    if node.onnx_op != "If":
        return frozenset()
    pairs = zip(body.outputs, node.outputs, strict=False)
    return frozenset(inner for inner, outer in pairs if outer in counted)


def _inner_blocks(bodies: Mapping[int, tuple[Scope, ...]]) -> Iterator[Lifetime]:
    for step, scopes in bodies.items():
        live = tuple(_larger(scopes).live_at_peak())
        names = tuple(name for buffer in live for name in buffer.tensors)
        if names:
            size_bytes = sum(buffer.size_bytes or 0 for buffer in live)
            yield Lifetime(Buffer(names, size_bytes), step, step + 1)


def _larger(scopes: tuple[Scope, ...]) -> Scope:
    return max(scopes, key=lambda scope: scope.peak_bytes)
