"""Which tensors require a gradient, and which nodes a backward pass goes through."""

from collections.abc import Iterable

from onnxmem.model.graph import Graph, Node
from onnxmem.model.parameters import Parameters
from onnxmem.runtimes.torch.constants import data_reads


def requiring_gradient(graph: Graph, parameters: Parameters) -> frozenset[str]:
    """Name the tensors that a gradient reaches: trained parameters and what is made from them.

    It passes from floating input to floating output through every differentiable operator; a node
    with subgraphs passes it from whatever its bodies read.
    """
    trained = {graph.tensors[name].storage_key for name in parameters.trained}
    tensors = graph.tensors.items()
    reached = {name for name, tensor in tensors if (tensor.storage or tensor.name) in trained}
    for node in graph.nodes:
        reads = _all_reads(node) if node.subgraphs else data_reads(node)
        if node.operator.differentiable and not reached.isdisjoint(reads):
            reached.update([name for name in node.writes if _is_floating(graph, name)])
    return frozenset(reached)


def backward_nodes(
    graph: Graph, reached: frozenset[str], outputs: Iterable[str]
) -> tuple[Node, ...]:
    """List the nodes that a backward pass goes through: on a way from a parameter to an output."""
    wanted = {name for name in outputs if name in reached}
    through: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.writes):
            through.append(node)
            wanted.update(reached.intersection(data_reads(node)))
    return tuple(reversed(through))


def _all_reads(node: Node) -> Iterable[str]:
    """Name what a node reads the data of, and what its subgraphs read inside."""
    inner = (within for _, body in node.subgraphs for within in body.all_nodes())
    return (*data_reads(node), *(name for within in inner for name in within.reads))


def _is_floating(graph: Graph, name: str) -> bool:
    """Whether a gradient can be taken of a tensor; one of unknown type is taken to be floating."""
    dtype = graph.tensors[name].dtype
    return dtype is None or dtype.is_floating
