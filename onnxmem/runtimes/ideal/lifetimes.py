"""From which step to which every tensor of one graph is live, each a buffer of its own.

A step is the run of one node, counted from 0 in running order. Definition 3:

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
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.program import Category, Program

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


def tensor_buffers(graph: Graph) -> Buffers:
    """Give every activation of a graph, its subgraphs left out, a buffer of its own."""
    uses, tensors, found = last_uses(graph), graph.tensors, Buffers()
    for step, node in enumerate(graph.nodes):
        for name in node.writes:
            tensor = tensors[name]
            if tensor.role is ACTIVATION:
                found.add(name, tensor.size_bytes, step, uses[name])
    return found


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
