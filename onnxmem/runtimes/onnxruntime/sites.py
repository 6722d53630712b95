"""What the kernels of a graph know when its session is made: the constant inputs, the types."""

from collections.abc import Mapping

from onnxmem.model import Graph, Node, Role, Tensor
from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu
from onnxmem.runtimes.onnxruntime.kernel_use import Site


def initializers(graph: Graph) -> dict[str, Tensor]:
    """The tensors that the file holds, subgraphs' too: weights, and what only sizes something."""
    nodes = graph.all_nodes()
    made = {name for node in nodes if node.onnx_op != "Constant" for name in node.writes}
    roles = (Role.WEIGHT, Role.UNREAD)
    return {n: t for n, t in graph.tensors.items() if t.role in roles and n not in made}


def site_of(
    graph: Graph, node: Node, constants: Mapping[str, Tensor] | None = None, cpu: Cpu = AVX512
) -> Site:
    """What a node's kernel knows beside its call; ``constants``: the graph's initializers.

    The operator's version, the threads and the cache are the session's: ``replace`` sets them.
    """
    known = initializers(graph) if constants is None else constants
    return Site(
        constants=frozenset(place for place, name in enumerate(node.inputs) if name in known),
        types=tuple((graph.tensors[name].dtype or "") if name else "" for name in node.inputs),
        cpu=cpu,
    )
