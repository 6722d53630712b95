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

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from onnxmem.model import Graph, Node, Role
from onnxmem.program.lifetimes import Buffer, Lifetime

# An enum's member takes twice as long to look up as a name of the module.
ACTIVATION: Final = Role.ACTIVATION


def tensor_lifetimes(graph: Graph) -> Iterator[Lifetime]:
    """Give every activation of a graph, its subgraphs left out, a buffer and a lifetime."""
    uses = last_uses(graph)
    tensors, num_steps = graph.tensors, len(graph.nodes)
    for step, node in enumerate(graph.nodes):
        for name in node.writes:
            tensor = tensors[name]
            if tensor.role is ACTIVATION:
                stop = uses[name] + 1
                buffer = Buffer((name,), tensor.size_bytes)
                yield Lifetime(buffer, step, min(num_steps, stop))


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
