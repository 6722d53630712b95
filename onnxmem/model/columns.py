"""The nodes of one graph of a file, column by column.

protobuf makes an object of whatever is read, each time that it is: names of a large graph are read
once, and kept while they are worked with. A slice of names is read at once, far quicker than one
name after another.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import onnx

from onnxmem.model.traversal import nodes_in, subgraphs


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Nodes in the order of the file; every column is as long."""

    nodes: Sequence[onnx.NodeProto]
    op_types: Sequence[str]
    inputs: Sequence[Sequence[str]]
    """Of each node what it reads itself; ``""`` for what is left out."""
    outputs: Sequence[Sequence[str]]
    bodies: Mapping[int, Sequence[tuple[str, onnx.GraphProto]]]
    """By place, the graphs inside a node and the attributes that hold them."""

    def of_types(self, op_types: Collection[str]) -> list[onnx.NodeProto]:
        """The nodes of some operators, those of subgraphs included, in order."""
        if self.bodies:
            return [node for node in nodes_in(self.nodes) if node.op_type in op_types]
        pairs = zip(self.nodes, self.op_types, strict=True)
        return [node for node, op_type in pairs if op_type in op_types]

    def all_inputs(self) -> set[str]:
        """What nodes read, those of subgraphs included."""
        if self.bodies:
            return {name for node in nodes_in(self.nodes) for name in node.input}
        return {*chain.from_iterable(self.inputs)}


def columns_of(graph: onnx.GraphProto) -> Columns:
    """Read the nodes of a graph, those of its subgraphs left out."""
    nodes = list(graph.node)
    bodies = ((place, subgraphs(node)) for place, node in enumerate(nodes) if node.attribute)
    return Columns(
        nodes=nodes,
        op_types=[node.op_type for node in nodes],
        inputs=[node.input[:] for node in nodes],
        outputs=[node.output[:] for node in nodes],
        bodies={place: inner for place, inner in bodies if inner},
    )
