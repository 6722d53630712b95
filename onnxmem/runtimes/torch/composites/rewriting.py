"""Matching several nodes that a framework runs as one operator, and replacing them with it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isclose

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.ops.spec import Attribute, OpSpec, known_dims
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.strides import Dims

_LAYOUT = frozenset({"CastLike", "Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze"})
_PIECES = frozenset({"Slice", "Split"})
_CASTS = frozenset({"Cast", "CastLike", "Identity"})
_TOLERANCE = 1e-3
"""Exporters round constants to float16 and back."""


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes that are one operator in the framework."""

    nodes: tuple[Node, ...]
    """The new node takes the position, the name and the metadata of the last one."""
    operator: OpSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    """Empty: the first output of the last node."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def node(self) -> Node:
        """The node that replaces them."""
        last = self.nodes[-1]
        return Node(
            name=last.name,
            op_type=self.operator.op_type,
            domain=self.operator.domain,
            inputs=self.inputs,
            outputs=self.outputs or last.outputs[:1],
            operator=self.operator,
            attributes=dict(self.attributes),
            metadata=last.metadata,
        )


@dataclass(frozen=True, slots=True, eq=False)
class GraphView:
    """A graph indexed by the producer and the readers of each tensor; without its subgraphs."""

    graph: Graph
    producers: Mapping[str, Node]
    readers: Mapping[str, Node]
    """The last node that reads a tensor's data."""
    reads: Counter[str]
    """How often a tensor's data are read; reads of its shape or type do not count."""

    @classmethod
    def of(cls, graph: Graph) -> "GraphView":
        """Index a graph."""
        read = [(name, node) for node in graph.nodes for name in data_reads(node)]
        reads = Counter([name for name, _ in read])
        # An output of the graph is read outside of it, so no composite may swallow it.
        reads.update(graph.outputs)
        # The last reader of each tensor; it is the only one where `reads` counts one.
        readers = dict(read)
        return cls(graph, graph.producers, readers, reads)

    def producer(self, name: str, *op_types: str, reads: int = 1) -> Node | None:
        """The producer of a tensor, if it has one of ``op_types`` and is read ``reads`` times."""
        # A composite may only swallow a tensor that nothing else reads: otherwise the network
        # computes it itself, and its nodes are no single call.
        node = self.producers.get(name)
        if node is None or node.onnx_op not in op_types or self.reads[name] != reads:
            return None
        return node

    def is_weight(self, name: str, *, or_piece: bool = False) -> bool:
        """Whether a tensor is a weight, perhaps reshaped or cast, or on request a piece of one."""
        through = _LAYOUT | _PIECES if or_piece else _LAYOUT
        while self.graph.tensors[name].role is not Role.WEIGHT:
            producer = self.producers.get(name)
            if producer is None or producer.onnx_op not in through:
                return False
            name = producer.inputs[0]
        return True

    def dims(self, name: str) -> Dims | None:
        """The dims of a tensor, if all are known."""
        return known_dims(self.graph.tensors[name].shape)

    def operands(self, node: Node) -> tuple[tuple[str, str], ...]:
        """The two inputs of a commutative node in both orders; empty if it does not have two."""
        if len(node.inputs) != 2:  # noqa: PLR2004 - both
            return ()
        left, right = node.inputs
        return ((left, right), (right, left))

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        value = self.graph.values.get(name)
        return float(value[0]) if value is not None and len(value) == 1 else None

    def is_number(self, name: str, wanted: float | None = None) -> bool:
        """Whether a tensor is a constant of one element, and about ``wanted``, unless ``None``."""
        found = self.number(name)
        if found is None or wanted is None:
            return found is not None
        return isclose(found, wanted, rel_tol=_TOLERANCE)

    def scaled(self, node: Node, factor: float) -> str | None:
        """The input that a node multiplies by a factor or divides by its inverse, if it does."""
        if node.onnx_op == "Div" and self.is_number(node.inputs[1], 1 / factor):
            return node.inputs[0]
        if node.onnx_op != "Mul":
            return None
        for one, other in self.operands(node):
            if self.is_number(other, factor):
                return one
        return None


def with_cast_numbers(graph: Graph) -> Graph:
    """Propagate small constants through casts: exporters cast each number of a program."""
    values = dict(graph.values)
    for node in graph.nodes:
        if node.op_type in _CASTS and not node.domain and node.inputs[0] in values:
            values.setdefault(node.outputs[0], values[node.inputs[0]])
    return graph if len(values) == len(graph.values) else replace(graph, values=values)


def with_matches(graph: Graph, matches: Iterable[Match]) -> Graph:
    """Replace the nodes of each match with one; of matches that share nodes the first is used."""
    matched: set[str] = set()
    replacements: dict[str, Node] = {}
    for match in matches:
        names = {node.name for node in match.nodes}
        # The first match of a node wins.
        if matched.isdisjoint(names):
            matched |= names
            replacements[match.nodes[-1].name] = match.node()
    if not replacements:
        return graph
    # The replacement stands where the last node of the match stood: all its operands are computed
    # by then, and its readers come later.
    remaining = (n for n in graph.nodes if n.name not in matched or n.name in replacements)
    return replace(graph, nodes=tuple(replacements.get(n.name, n) for n in remaining))


def without_unread_weights(graph: Graph, before: Graph) -> Graph:
    """Mark weights that only replaced nodes read as unread, such as masks that exporters store."""
    if graph is before:
        return graph
    read = {name for node in graph.all_nodes() for name in node.reads} | set(graph.outputs)
    unread = {
        name: replace(tensor, role=Role.UNREAD)
        for node in before.nodes
        for name in node.reads
        if name not in read and (tensor := graph.tensors[name]).role is Role.WEIGHT
    }
    return replace(graph, tensors={**graph.tensors, **unread}) if unread else graph
