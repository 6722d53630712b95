"""Nodes and weights put into a graph: what a file leaves out, or what is only supposed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Attribute, Shape


@dataclass(frozen=True, slots=True)
class Part:
    """An operator to put in, and what it reads."""

    op_type: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    opset: int | None = None


@dataclass(slots=True)
class Insertion:
    """A graph under change: nodes go behind others, and take over their output's readers."""

    graph: Graph
    tensors: dict[str, Tensor] = field(init=False)
    behind: dict[str, list[Node]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    """Tensors by what readers find in their place."""
    shortened: dict[str, int] = field(default_factory=dict)
    """Nodes by the place from which on they lose their inputs."""

    def __post_init__(self) -> None:
        self.tensors = dict(self.graph.tensors)

    def weight(self, name: str, like: str, shape: Shape) -> str:
        """Add a weight of the type of another tensor; say its name."""
        return self._tensor(name, like, shape, Role.WEIGHT)

    def node(self, after: Node, part: Part, like: str, shape: Shape | None) -> str:
        """Put a node behind another, of the type of a tensor; say the name of what it makes."""
        place = len(self.behind.setdefault(after.name, []))
        name = f"{after.name}/{part.op_type}_{place}"
        output = self._tensor(f"{name}_output", like, shape, Role.ACTIVATION)
        operator = lookup(part.op_type, opset=part.opset)
        made = Node(name, part.op_type, "", part.inputs, (output,), operator, part.attributes)
        self.behind[after.name].append(made)
        return output

    def drop_input(self, node: Node, place: int) -> None:
        """Leave a node's inputs from a place on out, and the weights that no node reads then."""
        self.shortened[node.name] = place

    def take_over(self, name: str, by: str) -> None:
        """Let every reader of a tensor that stands in the file read another in its place."""
        self.renamed[name] = by

    def done(self) -> Graph:
        """The graph with all that was put in."""
        nodes: list[Node] = []
        for node in self.graph.nodes:
            inputs = tuple(self.renamed.get(name, name) for name in node.inputs)
            inputs = inputs[: self.shortened.get(node.name)]
            nodes.append(replace(node, inputs=inputs) if inputs != node.inputs else node)
            nodes += self.behind.get(node.name, ())
        self._remove_unread_weights(nodes)
        outputs = tuple(self.renamed.get(name, name) for name in self.graph.outputs)
        return replace(self.graph, nodes=tuple(nodes), outputs=outputs, tensors=self.tensors)

    def _remove_unread_weights(self, nodes: Iterable[Node]) -> None:
        """Remove the weights that only dropped inputs read: layers may share a bias."""
        read = {name for node in nodes for name in node.reads}
        for node in self.graph.nodes:
            for name in node.inputs[self.shortened.get(node.name, len(node.inputs)) :]:
                if name in self.tensors.keys() - read and self.tensors[name].role is Role.WEIGHT:
                    del self.tensors[name]

    def _tensor(self, name: str, like: str, shape: Shape | None, role: Role) -> str:
        self.tensors[name] = Tensor(name, self.tensors[like].dtype, shape, role)
        return name
