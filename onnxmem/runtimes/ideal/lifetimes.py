"""When each tensor of a graph is live, which share a buffer, and the program that follows from it.

A step is the run of one node, counted from 0 in running order. Begin reading with ``read_scope``.

Definition 3, every tensor a buffer of its own (``tensor_buffers``):

(a) a tensor lives from the step that writes it to the last step that reads it, both included, so
    that a node's inputs and outputs are live together;
(b) a graph output lives to the end;
(c) a tensor that nobody reads lives in its own step only;
(d) what a node's subgraphs read from outside, the node reads;
(e) graph inputs are the caller's, weights are counted apart, and a subgraph's formal inputs are its
    node's: none of them is an activation.

::

    step       0   1   2   3
    a = f(x)   [-------)           read at step 1, so it stops before step 2
    b = g(a)       [-----------)   a graph output
    c = h(a)       [---)           nobody reads it

Definition 4, views and in-place chains in one buffer (``shared_buffers``):

(a) a view (``OpSpec.alias``: Reshape, Flatten, Squeeze, Unsqueeze, Identity) is its input's buffer;
(b) a view of a weight, of a graph input or of an enclosing graph's tensor is no buffer of this
    graph's: its bytes are counted where they are made;
(c) an output is written over an input where ``OpSpec.may_inplace`` lists the pair, and
    1. this graph made the input's buffer, so it is no weight, no graph input and no view of one;
    2. nobody reads any tensor of that buffer later, a caller included, and this node reads it
       through that one slot only;
    3. the node has put no other output there;
    4. the output is no graph output;
    5. the shapes are known and equal, and so are the element sizes.

    Of several pairs that fit the first is taken.

A buffer lives from its first tensor's first step to its last tensor's last.

Subgraphs: a node with subgraphs allocates within its own step what they have live at their peak,
and releases it there: of an If's branches the larger one, of a Loop or a Scan its body once, for
each iteration takes the same bytes again. An If's branch writes its outputs straight into the If's
outputs (onnxruntime's ``if.cc``), so that the two are one tensor: it is counted outside where its
size is known there, else inside. A loop's body has outputs of its own, which are copied out
(``loop.cc``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.ops.spec import OpSpec
from onnxmem.program.program import Category, Program
from onnxmem.program.replay import Replay, replay
from onnxmem.program.sizes import Sizes

# An enum's member takes twice as long to look up as a name of the module.
ACTIVATION: Final = Role.ACTIVATION


@dataclass(slots=True)
class Buffers:
    """The buffers of one graph as columns, in the order in which they are first written."""

    labels: list[str] = field(default_factory=list)
    """Of each buffer: the tensor that is written to it first."""
    sizes_bytes: list[int | None] = field(default_factory=list)
    """``None``: unknown."""
    starts: list[int] = field(default_factory=list)
    """The step that first writes it."""
    last_uses: list[int] = field(default_factory=list)
    """The step that last reads or writes it; the number of nodes: it lives to the end."""
    tensors: dict[int, list[str]] = field(default_factory=dict)
    """All tensors of the buffers that more than one shares, in the order of writing."""

    def add(self, tensor: str, size_bytes: int | None, step: int, last_use: int) -> int:
        """Add a buffer; its number comes out."""
        self.labels.append(tensor)
        self.sizes_bytes.append(size_bytes)
        self.starts.append(step)
        self.last_uses.append(last_use)
        return len(self.labels) - 1

    def tensors_of(self, buffer: int) -> Sequence[str]:
        """The tensors that share a buffer."""
        return self.tensors.get(buffer) or (self.labels[buffer],)

    def keep(self, buffers: Sequence[int]) -> "Buffers":
        """Some of them, numbered anew."""
        return Buffers(
            [self.labels[each] for each in buffers],
            [self.sizes_bytes[each] for each in buffers],
            [self.starts[each] for each in buffers],
            [self.last_uses[each] for each in buffers],
            {new: self.tensors[old] for new, old in enumerate(buffers) if old in self.tensors},
        )

    def program(self, nodes: Sequence[Node]) -> Program:
        """A program in which each node allocates what it writes first, and releases at last."""
        return Program.of_steps(
            [node.name for node in nodes],
            self.labels,
            Category.ACTIVATION,
            np.array(self.starts, dtype=np.int64) + 1,
            np.array(self.last_uses, dtype=np.int64) + 1,
            {number: tuple(tensors) for number, tensors in self.tensors.items()},
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self.labels)


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


def tensor_buffers(graph: Graph) -> Buffers:
    """Give every activation of a graph, its subgraphs left out, a buffer of its own."""
    uses, tensors, found = last_uses(graph), graph.tensors, Buffers()
    for step, node in enumerate(graph.nodes):
        for name in node.writes:
            tensor = tensors[name]
            if tensor.role is ACTIVATION:
                found.add(name, tensor.size_bytes, step, uses[name])
    return found


def shared_buffers(graph: Graph) -> Buffers:
    """Give the activations of a graph, its subgraphs left out, buffers that they share."""
    sharing = _Sharing(graph, last_uses(graph))
    for step, node in enumerate(graph.nodes):
        sharing.place_outputs(step, node)
    return sharing.buffers


@dataclass(slots=True)
class _Sharing:
    """The buffers of the nodes so far."""

    graph: Graph
    uses: Mapping[str, int]
    buffers: Buffers = field(default_factory=Buffers)
    last_writes: list[int] = field(default_factory=list)
    """The step that last writes each buffer."""
    holders: dict[str, int] = field(default_factory=dict)
    """Tensor to buffer; a tensor whose bytes are not this graph's is absent (b)."""
    views: "Pairs" = field(default_factory=lambda: Pairs(lambda operator: operator.alias))
    chains: "Pairs" = field(default_factory=lambda: Pairs(lambda operator: operator.may_inplace))

    def place_outputs(self, step: int, node: Node) -> None:
        """Views first: they leave no choice, and no output may be written over them."""
        operator, tensors = node.operator, self.graph.tensors
        views = dict(self.views.of(node)) if operator.alias else {}
        for output, source in views.items():
            if source in self.holders:
                self._join(self.holders[source], output, step)
        chains = self.chains.of(node) if operator.may_inplace else ()
        for output in node.writes:
            tensor = tensors[output]
            if tensor.role is not ACTIVATION or output in views:
                continue
            if not (chains and self._overwrites(step, node, output, chains)):
                uses = self.uses[output]
                self.holders[output] = self.buffers.add(output, tensor.size_bytes, step, uses)
                self.last_writes.append(step)

    def _overwrites(
        self, step: int, node: Node, output: str, chains: Iterable[tuple[str, str]]
    ) -> bool:
        """Put an output over the first input that it may be written over; false: over none."""
        for target, source in chains:
            if target == output and self._may_overwrite(step, node, source, output):
                self._join(self.holders[source], output, step)
                return True
        return False

    def _join(self, buffer: int, name: str, step: int) -> None:
        """Add a tensor to a buffer; all are of one size, that of any whose size is known."""
        buffers, size_bytes = self.buffers, self.graph.tensors[name].size_bytes
        if size_bytes != buffers.sizes_bytes[buffer]:
            buffers.sizes_bytes[buffer] = _larger(buffers.sizes_bytes[buffer], size_bytes)
        if buffer in buffers.tensors:
            buffers.tensors[buffer].append(name)
        else:
            buffers.tensors[buffer] = [buffers.labels[buffer], name]
        self.last_writes[buffer] = step
        buffers.last_uses[buffer] = max(buffers.last_uses[buffer], self.uses[name])
        self.holders[name] = buffer

    def _may_overwrite(self, step: int, node: Node, source: str, output: str) -> bool:
        """Whether (c) 1 to 5 hold."""
        buffer = self.holders.get(source)
        if buffer is None:
            return False
        return (
            self.buffers.last_uses[buffer] == step
            and self.last_writes[buffer] < step
            and self.uses[output] < len(self.graph.nodes)
            and self._num_reads(node, buffer) == 1
            and same_layout(self.graph.tensors[source], self.graph.tensors[output])
        )

    def _num_reads(self, node: Node, buffer: int) -> int:
        return [self.holders.get(name) for name in node.reads].count(buffer)


@dataclass(slots=True)
class Pairs:
    """Pairs of schema names that an operator's record lists, read as tensors of its nodes."""

    listed: Callable[[OpSpec], Iterable[tuple[str, str]]]
    indices: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Operator, by identity, to the places of (output, input): each is looked up once."""

    def of(self, node: Node) -> Sequence[tuple[str, str]]:
        """The (output, input) tensors of a node."""
        operator = node.operator
        indices = self.indices.get(id(operator))
        if indices is None:
            indices = self.indices[id(operator)] = tuple(
                (operator.output_index(target), operator.input_index(source))
                for source, target in self.listed(operator)
            )
        if not indices:
            return ()
        outputs, inputs = node.outputs, node.inputs
        num_outputs, num_inputs = len(outputs), len(inputs)
        return [
            (output, name)
            for to, of in indices
            if to < num_outputs
            and of < num_inputs
            and (output := outputs[to])
            and (name := inputs[of])
        ]


def activations(graph: Graph, node: Node) -> Sequence[str]:
    """The tensors that a node makes and that are no weights."""
    tensors = graph.tensors
    return [name for name in node.writes if tensors[name].role is ACTIVATION]


def last_uses(graph: Graph) -> Mapping[str, int]:
    """The step that last reads each tensor, or writes it where nobody does.

    Graph outputs are read after the last step: their step is the number of nodes.
    """
    # Later steps overwrite earlier ones; "", an operand left out, does no harm.
    uses: dict[str, int] = {}
    for step, node in enumerate(graph.nodes):
        for name in node.outputs:
            uses[name] = step
        for name in node.inputs:
            uses[name] = step
        for name in node.outer_reads:
            uses[name] = step
    return uses | dict.fromkeys(graph.outputs, len(graph.nodes))


def candidates(graph: Graph) -> Iterator[tuple[str, str]]:
    """(input, output) of every node of a graph that its operator may write over each other."""
    chains = Pairs(lambda operator: operator.may_inplace)
    for node in graph.nodes:
        for output, source in chains.of(node):
            yield source, output


def same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are known to have the same shape and element size."""
    if one.shape is None or one.shape != other.shape or None in one.shape:
        return False
    if one.dtype is other.dtype:
        return one.dtype is not None and one.dtype.bits is not None
    bits = [tensor.dtype and tensor.dtype.bits for tensor in (one, other)]
    return None not in bits and bits[0] == bits[1]


def _larger(one: int | None, other: int | None) -> int | None:
    return max((size for size in (one, other) if size is not None), default=None)
