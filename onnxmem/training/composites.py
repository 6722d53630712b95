"""Operators that exporters write as several nodes where the framework runs one.

What the framework's one operator keeps counts, not what its pieces would. So far: SiLU, which
PyTorch's exporter writes as ``x * Sigmoid(x)`` and of which the backward pass reads ``x`` alone. A
network that spells the product out keeps the sigmoid too; the file does not tell the two apart.
"""

from collections import Counter
from collections.abc import Mapping

from onnxmem.model import Graph


def silu_inputs(graph: Graph) -> Mapping[str, str]:
    """Map both nodes of each ``x * Sigmoid(x)`` to ``x``, where nothing else reads the sigmoid."""
    reads = Counter(name for node in graph.nodes for name in node.reads)
    reads.update(graph.outputs)
    sigmoids = {
        name: node for node in graph.nodes if node.onnx_op == "Sigmoid" for name in node.writes
    }
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.onnx_op != "Mul":
            continue
        for gate, data in zip(node.inputs, node.inputs[::-1], strict=True):
            sigmoid = sigmoids.get(gate)
            if sigmoid is not None and sigmoid.reads == (data,) and reads[gate] == 1:
                found[sigmoid.name] = found[node.name] = data
    return found
