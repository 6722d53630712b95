"""Finding several nodes that a framework runs as one, and replacing them by it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isclose

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.ops.spec import Attribute, OpSpec, known_dims
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.strides import Dims

_LAYOUT = frozenset({"CastLike", "Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze"})
_CASTS = frozenset({"Cast", "CastLike", "Identity"})
_TOLERANCE = 1e-3
"""Exporters round constants to float16 and back."""


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes that are one operator to the framework."""

    nodes: tuple[Node, ...]
    """The one takes the position and the name of the last."""
    operator: OpSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    """None given: the first output of the last node."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def node(self) -> Node:
        """The one node."""
        last = self.nodes[-1]
        return Node(
            name=last.name,
            op_type=self.operator.op_type,
            domain=self.operator.domain,
            inputs=self.inputs,
            outputs=self.outputs or last.outputs[:1],
            operator=self.operator,
            attributes=dict(self.attributes),
        )


@dataclass(frozen=True, slots=True, eq=False)
class GraphView:
    """A graph looked at by what makes and what reads each tensor; subgraphs are not looked into."""

    graph: Graph
    producers: Mapping[str, Node]
    readers: Mapping[str, Node]
    """The last node that reads a tensor's data."""
    reads: Counter[str]
    """How often a tensor's data are read; reads of its shape or type don't count."""

    @classmethod
    def of(cls, graph: Graph) -> "GraphView":
        """Look at a graph."""
        read = [(name, node) for node in graph.nodes for name in data_reads(node)]
        reads = Counter([name for name, _ in read])
        reads.update(graph.outputs)
        producers = {name: node for node in graph.nodes for name in node.writes}
        readers = dict(read)
        return cls(graph, producers, readers, reads)

    def producer(self, name: str, *op_types: str, reads: int = 1) -> Node | None:
        """The node of one of some operators that makes a tensor which is read so often."""
        node = self.producers.get(name)
        if node is None or node.onnx_op not in op_types or self.reads[name] != reads:
            return None
        return node

    def is_weight(self, name: str) -> bool:
        """Whether a tensor is a weight, or one laid out anew."""
        while self.graph.tensors[name].role is not Role.WEIGHT:
            producer = self.producers.get(name)
            if producer is None or producer.onnx_op not in _LAYOUT:
                return False
            name = producer.inputs[0]
        return True

    def dims(self, name: str) -> Dims | None:
        """The dims of a tensor, if all are known."""
        return known_dims(self.graph.tensors[name].shape)

    def operands(self, node: Node) -> tuple[tuple[str, str], ...]:
        """The two inputs of a commutative node, both ways round; none if it has not two."""
        if len(node.inputs) != 2:  # noqa: PLR2004 - both
            return ()
        left, right = node.inputs
        return ((left, right), (right, left))

    def number(self, name: str) -> float | None:
        """The number that a tensor of one element holds, where the file gives it."""
        value = self.graph.values.get(name)
        return float(value[0]) if value is not None and len(value) == 1 else None

    def is_number(self, name: str, wanted: float | None = None) -> bool:
        """Whether a tensor is one number; about as large as wanted, if that is given."""
        found = self.number(name)
        if found is None or wanted is None:
            return found is not None
        return isclose(found, wanted, rel_tol=_TOLERANCE)

    def scaled(self, node: Node, factor: float) -> str | None:
        """What a node multiplies by a factor, or divides by its inverse; else ``None``."""
        if node.onnx_op == "Div" and self.is_number(node.inputs[1], 1 / factor):
            return node.inputs[0]
        if node.onnx_op != "Mul":
            return None
        for one, other in self.operands(node):
            if self.is_number(other, factor):
                return one
        return None


def with_cast_numbers(graph: Graph) -> Graph:
    """Know the small constants behind casts too: exporters cast each number of a program."""
    values = dict(graph.values)
    for node in graph.nodes:
        if node.op_type in _CASTS and not node.domain and node.inputs[0] in values:
            values.setdefault(node.outputs[0], values[node.inputs[0]])
    return graph if len(values) == len(graph.values) else replace(graph, values=values)


def with_matches(graph: Graph, matches: Iterable[Match]) -> Graph:
    """Put one node in place of each match's; of matches that share nodes the first wins."""
    gone: set[str] = set()
    indices: dict[str, Node] = {}
    for match in matches:
        names = {node.name for node in match.nodes}
        if gone.isdisjoint(names):
            gone |= names
            indices[match.nodes[-1].name] = match.node()
    if not indices:
        return graph
    nodes = (indices.get(n.name, n) for n in graph.nodes if n.name not in gone or n.name in indices)
    return replace(graph, nodes=tuple(nodes))


def without_unread_weights(graph: Graph, before: Graph) -> Graph:
    """Count no weight that only nodes read which are gone: a mask that exporters computed."""
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
