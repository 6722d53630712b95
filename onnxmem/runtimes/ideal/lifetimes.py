"""When each tensor of a graph is live, which tensors share a buffer, and the resulting program.

A step is one node, counted from 0 in execution order. Begin reading with ``last_uses`` and
``tensor_buffers``, which are definition 3; ``shared_buffers`` is definition 4, and ``read_scope``
joins a graph with its subgraphs.

Definition 3, every tensor a buffer of its own (``tensor_buffers``):

(a) a tensor lives from the step that writes it to the last step that reads it, both included, so
    that a node's inputs and outputs are live together;
(b) a graph output lives to the end;
(c) a tensor that no node reads lives in its own step only;
(d) what a node's subgraphs read from outside, the node reads;
(e) graph inputs belong to the caller, weights are counted separately, and the formal inputs of a
    subgraph belong to its node: none of them is an activation.

::

    step       0   1   2   3
    a = f(x)   [-------)           read at step 1, so it stops before step 2
    b = g(a)       [-----------)   a graph output
    c = h(a)       [---)           no node reads it

Definition 4, views and in-place chains in one buffer (``shared_buffers``):

(a) a view (``OpSpec.alias``: Reshape, Flatten, Squeeze, Unsqueeze, Identity) is in its input's
    buffer;
(b) a view of a weight, of a graph input or of an enclosing graph's tensor is not in a buffer of
    this graph: its bytes are counted where they are allocated;
(c) an output overwrites an input if ``OpSpec.may_inplace`` lists the pair, and
    1. this graph allocated the input's buffer: it is not a weight, a graph input or a view of one;
    2. no node, nor the caller, reads a tensor of that buffer later, and this node reads it through
       that one slot only;
    3. the node has not written another output there;
    4. the output is not a graph output;
    5. the shapes are known and equal, and so are the element sizes.

    Of several pairs that fit, the first one is used.

A buffer lives from the first step of its first tensor to the last step of its last one.

Subgraphs: a node with subgraphs allocates and releases within its own step what they have live at
their peak: of an If the larger branch (or the smaller one, for the lower end of what a run takes),
of a Loop or a Scan the body once, for every iteration uses the same bytes again. A branch writes
its outputs directly into the If's outputs (``if.cc`` of onnxruntime), so that the two are one
tensor: it is counted outside if its size is known there, else inside. A loop's body has outputs of
its own, which are copied out (``loop.cc``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.ops.spec import OpSpec
from onnxmem.program.program import Category, Program
from onnxmem.program.replay import Replay, replay
from onnxmem.program.sizes import Sizes

# Looking up an enum's member takes twice as long as a global.
ACTIVATION: Final = Role.ACTIVATION


@dataclass(slots=True)
class Buffers:
    """The buffers of one graph as columns, in the order in which they are first written."""

    labels: list[str] = field(default_factory=list)
    """The first tensor in each buffer."""
    sizes_bytes: list[int | None] = field(default_factory=list)
    """``None``: unknown."""
    starts: list[int] = field(default_factory=list)
    """The step that first writes it."""
    last_uses: list[int] = field(default_factory=list)
    """The step that last reads or writes it; the number of nodes if it lives to the end."""
    tensors: dict[int, list[str]] = field(default_factory=dict)
    """The tensors of each buffer that several share, in the order of writing."""

    def add(self, tensor: str, size_bytes: int | None, step: int, last_use: int) -> int:
        """Add a buffer; return its number."""
        self.labels.append(tensor)
        self.sizes_bytes.append(size_bytes)
        self.starts.append(step)
        self.last_uses.append(last_use)
        return len(self.labels) - 1

    def tensors_of(self, buffer: int) -> Sequence[str]:
        """The tensors that share a buffer."""
        return self.tensors.get(buffer) or (self.labels[buffer],)

    def select(self, buffers: Sequence[int]) -> "Buffers":
        """Some of the buffers, renumbered."""
        return Buffers(
            [self.labels[each] for each in buffers],
            [self.sizes_bytes[each] for each in buffers],
            [self.starts[each] for each in buffers],
            [self.last_uses[each] for each in buffers],
            {new: self.tensors[old] for new, old in enumerate(buffers) if old in self.tensors},
        )

    def program(self, nodes: Sequence[Node]) -> Program:
        """A program in which nodes allocate buffers at their start, and release them at their last
        use.
        """
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


def last_uses(graph: Graph) -> Mapping[str, int]:
    """The step that last reads each tensor, or writes it if no node reads it.

    Graph outputs are read after the last step: their step is the number of nodes.
    """
    # Later steps overwrite earlier ones; "", an omitted operand, does no harm.
    uses: dict[str, int] = {}
    for step, node in enumerate(graph.nodes):
        for name in node.outputs:
            uses[name] = step
        for name in node.inputs:
            uses[name] = step
        for name in node.outer_reads:
            uses[name] = step
    return uses | dict.fromkeys(graph.outputs, len(graph.nodes))


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
    """The buffers that the activations of a graph share, without its subgraphs."""
    sharing = _BufferSharing(graph, last_uses(graph))
    for step, node in enumerate(graph.nodes):
        sharing.add_outputs(step, node)
    return sharing.buffers


@dataclass(slots=True)
class _BufferSharing:
    """Mutable: assigns the outputs of one node after another to buffers."""

    graph: Graph
    uses: Mapping[str, int]
    buffers: Buffers = field(default_factory=Buffers)
    last_writes: list[int] = field(default_factory=list)
    """The step that last writes each buffer."""
    buffer_of: dict[str, int] = field(default_factory=dict)
    """Tensor to buffer; without tensors that are not in a buffer of this graph (b)."""

    def add_outputs(self, step: int, node: Node) -> None:
        """Assign a node's outputs to buffers."""
        # Views first: their buffer is fixed, and its last write is then this step, so that no other
        # output overwrites it (c 3).
        operator, tensors = node.operator, self.graph.tensors
        views = dict(VIEWS.of(node)) if operator.alias else {}
        for output, source in views.items():
            if source in self.buffer_of:
                self._join(self.buffer_of[source], output, step)
        chains = CHAINS.of(node) if operator.may_inplace else ()
        for output in node.writes:
            tensor = tensors[output]
            if tensor.role is not ACTIVATION or output in views:
                continue
            if not (chains and self._overwrites(step, node, output, chains)):
                uses = self.uses[output]
                self.buffer_of[output] = self.buffers.add(output, tensor.size_bytes, step, uses)
                self.last_writes.append(step)

    def _overwrites(
        self, step: int, node: Node, output: str, chains: Iterable[tuple[str, str]]
    ) -> bool:
        """Assign an output to the buffer of the first input that it may overwrite, if any."""
        for target, source in chains:
            if target == output and self._may_overwrite(step, node, source, output):
                self._join(self.buffer_of[source], output, step)
                return True
        return False

    def _join(self, buffer: int, name: str, step: int) -> None:
        """Add a tensor to a buffer, whose size is that of any tensor of known size in it."""
        buffers, size_bytes = self.buffers, self.graph.tensors[name].size_bytes
        if size_bytes != buffers.sizes_bytes[buffer]:
            buffers.sizes_bytes[buffer] = _larger(buffers.sizes_bytes[buffer], size_bytes)
        if buffer in buffers.tensors:
            buffers.tensors[buffer].append(name)
        else:
            buffers.tensors[buffer] = [buffers.labels[buffer], name]
        self.last_writes[buffer] = step
        buffers.last_uses[buffer] = max(buffers.last_uses[buffer], self.uses[name])
        self.buffer_of[name] = buffer

    def _may_overwrite(self, step: int, node: Node, source: str, output: str) -> bool:
        """Whether conditions 1 to 5 of (c) are met."""
        buffer = self.buffer_of.get(source)
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
        return [self.buffer_of.get(name) for name in node.reads].count(buffer)


def same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are known to have the same shape and element size."""
    if one.shape is None or one.shape != other.shape or None in one.shape:
        return False
    # Upper ends may be equal where the dims of a run are not.
    if one.dynamic != other.dynamic:
        return False
    if one.dtype is other.dtype:
        return one.dtype is not None and one.dtype.bits is not None
    bits = [tensor.dtype and tensor.dtype.bits for tensor in (one, other)]
    return None not in bits and bits[0] == bits[1]


def _larger(one: int | None, other: int | None) -> int | None:
    return max((size for size in (one, other) if size is not None), default=None)


@dataclass(slots=True)
class Pairs:
    """The tensors of nodes that belong to the pairs of schema names in an operator's record."""

    listed: Callable[[OpSpec], Iterable[tuple[str, str]]]
    found: dict[int, tuple[OpSpec, Sequence[tuple[int, int]]]] = field(default_factory=dict)
    """Memo: an operator and the indices of (output, input), by the identity of the operator."""

    def of(self, node: Node) -> Sequence[tuple[str, str]]:
        """The (output, input) tensors of a node."""
        operator = node.operator
        # The memo holds the operator too: as long as it does, no other one can get the same id.
        memo = self.found.get(id(operator))
        if memo is None:
            pairs = [
                (operator.output_index(target), operator.input_index(source))
                for source, target in self.listed(operator)
            ]
            memo = self.found[id(operator)] = operator, pairs
        indices = memo[1]
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


VIEWS: Final = Pairs(lambda operator: operator.alias)
CHAINS: Final = Pairs(lambda operator: operator.may_inplace)


_Live = tuple[Buffers, int, list[int]]
"""The buffers of a subgraph, their bytes at the peak, and which are live then."""
FindBuffers = Callable[[Graph], Buffers]
"""The buffers of one graph: ``tensor_buffers`` or ``shared_buffers``."""


@dataclass(frozen=True)
class Scope:
    """The buffers of one graph and of its subgraphs."""

    graph: Graph
    buffers: Buffers
    """Of the graph itself."""
    bodies: dict[int, tuple["Scope", ...]]
    """Subgraphs by the step of their node."""
    allocated: Buffers
    """The buffers of the graph, then the live sets of its subgraphs at their peaks."""
    nested: tuple[range, ...]
    """The buffers of subgraphs, by the node that has them."""
    counts_smaller: bool = False
    """Whether the smaller branch of an If counts, and not the larger one."""

    @cached_property
    def replay(self) -> Replay:
        """Of the graph, with the live sets of its subgraphs at their peaks."""
        program = self.allocated.program(self.graph.nodes)
        return replay(program, Sizes.of(self.allocated.sizes_bytes))

    @property
    def sum_bytes(self) -> int:
        """The sum of all known buffers."""
        return self.sum_of(lambda buffers: sum(filter(None, buffers.sizes_bytes)))

    def sum_of(self, measure: Callable[[Buffers], int]) -> int:
        """Sum a measure of the buffers: of an If one branch, of a loop the body once."""
        counted = min if self.counts_smaller else max
        return measure(self.buffers) + sum(
            counted(body.sum_of(measure) for body in bodies) for bodies in self.bodies.values()
        )

    @property
    def peak_bytes(self) -> int:
        """The most known bytes that are live at one step."""
        return self.replay.peak.size_bytes

    def of_smaller_branches(self) -> "Scope":
        """The same buffers, of which the smaller branch of each If counts."""
        # Whatever branch runs, the outer graph has the same buffers: what a branch returns is
        # counted there only if its size is the same in both. So the smaller branch of each If gives
        # the least of all combinations.
        if not self.bodies:
            return self
        bodies = {
            step: tuple(body.of_smaller_branches() for body in each)
            for step, each in self.bodies.items()
        }
        return _with_bodies(self.graph, self.buffers, bodies, counts_smaller=True)

    def all_buffers(self) -> Iterator[Buffers]:
        """The buffers of every graph, those of all branches included."""
        scopes = [self]
        while scopes:
            scope = scopes.pop()
            yield scope.buffers
            # Backwards, so that the first subgraph comes out first.
            for bodies in reversed(scope.bodies.values()):
                scopes += reversed(bodies)


def read_scope(
    graph: Graph,
    find_buffers: FindBuffers,
    written_outside: frozenset[str] = frozenset(),
) -> Scope:
    """Build the programs of a graph and of its subgraphs, recursively.

    A buffer with a tensor in ``written_outside`` belongs to an enclosing graph and is left out.
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
        buffers = found.select(own)
    return _with_bodies(graph, buffers, bodies, counts_smaller=False)


def _with_bodies(
    graph: Graph,
    buffers: Buffers,
    bodies: dict[int, tuple[Scope, ...]],
    *,
    counts_smaller: bool,
) -> Scope:
    """The scope of a graph: the live set of a body at its peak is allocated in its node's step."""
    allocated, nested = buffers, []
    if bodies:
        allocated = buffers.select(range(len(buffers)))
        counted_of = min if counts_smaller else max
        nested = [_add_nested(allocated, step, each, counted_of) for step, each in bodies.items()]
    nested_buffers = tuple(filter(None, nested))
    return Scope(graph, buffers, bodies, allocated, nested_buffers, counts_smaller)


def _add_nested(
    buffers: Buffers, step: int, bodies: tuple[Scope, ...], counted: Callable[..., _Live]
) -> range:
    """Add the live set of the counted subgraph at its peak to its node's step, and return it."""
    first = len(buffers)
    peaks = [(body.allocated, *_live_at_peak(body.allocated)) for body in bodies]
    inner, _, alive = counted(peaks, key=lambda each: each[1])
    for number in alive:
        size_bytes, tensors = inner.sizes_bytes[number], inner.tensors.get(number, ())
        if size_bytes:
            added = buffers.add(inner.labels[number], size_bytes, step, step)
            if len(tensors) > 1:
                buffers.tensors[added] = [*tensors]
    return range(first, len(buffers))


def _live_at_peak(buffers: Buffers) -> tuple[int, list[int]]:
    """The peak of a subgraph's ``Scope.replay``, and what is alive then in the order of allocation.

    A model may have a subgraph in every block, and a program of arrays takes longer to make than
    the few buffers of a subgraph take to add up.
    """
    sizes, starts, last_uses = buffers.sizes_bytes, buffers.starts, buffers.last_uses
    if len(sizes) == 1:
        return (sizes[0], [0]) if sizes[0] else (0, [])
    order = sorted(range(len(buffers)), key=starts.__getitem__)
    released = sorted(order, key=last_uses.__getitem__, reverse=True)
    live_bytes = most_bytes = num_made = 0
    for made, number in enumerate(order, start=1):
        # What ended before the step of this block goes first, so that ``live_bytes`` is that of its
        # step as far as it is allocated. A peak is where something was allocated, so nowhere else
        # is compared.
        while last_uses[released[-1]] < starts[number]:
            live_bytes -= sizes[released.pop()] or 0
        live_bytes += sizes[number] or 0
        if live_bytes > most_bytes:
            most_bytes, num_made = live_bytes, made
    at_peak = order[:num_made]
    return most_bytes, [n for n in at_peak if last_uses[n] >= starts[at_peak[-1]]]


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
    """The outputs of a branch that are counted as outputs of the If."""
    if node.onnx_op != "If":
        return frozenset()
    pairs = zip(body.outputs, node.outputs, strict=False)
    return frozenset(inner for inner, outer in pairs if outer in counted)


def activations(graph: Graph, node: Node) -> Sequence[str]:
    """The activations that a node writes."""
    tensors = graph.tensors
    return [name for name in node.writes if tensors[name].role is ACTIVATION]


def candidates(graph: Graph) -> Iterator[tuple[str, str]]:
    """(input, output) of every node of a graph whose operator may overwrite the input."""
    for node in graph.nodes:
        for output, source in CHAINS.of(node):
            yield source, output
