"""Which tensors of one graph share a buffer: views and in-place chains.

Definition 4:

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
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnxmem.model.graph import Graph, Node, Tensor
from onnxmem.ops.spec import OpSpec
from onnxmem.runtimes.ideal.lifetimes import ACTIVATION, Buffers, last_uses


def shared_buffers(graph: Graph) -> Buffers:
    """Give the activations of a graph, its subgraphs left out, buffers that they share."""
    sharing = _Sharing(graph, last_uses(graph))
    for step, node in enumerate(graph.nodes):
        sharing.place_outputs(step, node)
    return sharing.buffers


def candidates(graph: Graph) -> Iterator[tuple[str, str]]:
    """(input, output) of every node of a graph that its operator may write over each other."""
    chains = Pairs(lambda operator: operator.may_inplace)
    for node in graph.nodes:
        for output, source in chains.of(node):
            yield source, output


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
        """Add a tensor to a buffer; all are of one size, which any that is known tells."""
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
    places: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Operator, by identity, to the places of (output, input): each is looked up once."""

    def of(self, node: Node) -> Sequence[tuple[str, str]]:
        """The (output, input) tensors of a node."""
        operator = node.operator
        places = self.places.get(id(operator))
        if places is None:
            places = self.places[id(operator)] = tuple(
                (operator.output_index(target), operator.input_index(source))
                for source, target in self.listed(operator)
            )
        if not places:
            return ()
        outputs, inputs = node.outputs, node.inputs
        num_outputs, num_inputs = len(outputs), len(inputs)
        return [
            (output, name)
            for to, of in places
            if to < num_outputs
            and of < num_inputs
            and (output := outputs[to])
            and (name := inputs[of])
        ]


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
