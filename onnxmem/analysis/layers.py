"""What each node brings: its outputs, its weights, its arithmetic; a row per node."""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxmem.analysis.compute import Compute
from onnxmem.model import Graph, Node, Role, Tensor
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import Shape
from onnxmem.units import sum_known


@dataclass(frozen=True, slots=True)
class Layer:
    """One node; ``None`` is unknown."""

    node: str
    op_type: str
    output_shape: Shape | None
    """Of the first output, as is ``dtype``."""
    dtype: str | None
    output_bytes: int | None
    """Of all outputs that are no weights, so that the nodes add up to the naive figure."""
    num_parameters: int
    """Of the weights of which this node is the first reader, as are ``weight_bytes``."""
    weight_bytes: int | None
    macs: int | None
    flops: int | None


def layers(graph: Graph, parameters: Parameters, compute: Compute) -> tuple[Layer, ...]:
    """List every node in running order, those of a subgraph after the node that holds it."""
    counted = {
        graph.tensors[name].storage_key for name in parameters.trained + parameters.quantised
    }
    seen: set[str] = set()
    rows = []
    for node in graph.all_nodes():
        weights = _first_read(graph, node, seen)
        first = graph.tensors[node.writes[0]] if node.writes else None
        arithmetic = compute.by_node[node.name]
        rows.append(
            Layer(
                node=node.name,
                op_type=node.op_type,
                output_shape=first.shape if first else None,
                dtype=first.dtype if first else None,
                output_bytes=_size_bytes(_activations(graph, node)),
                num_parameters=sum(
                    weight.num_elements or 0 for weight in weights if weight.storage_key in counted
                ),
                weight_bytes=_size_bytes(weights),
                macs=arithmetic.macs,
                flops=arithmetic.flops,
            )
        )
    return tuple(rows)


def _first_read(graph: Graph, node: Node, seen: set[str]) -> list[Tensor]:
    """Weights that no earlier node reads; an outer tensor stands with the node that names it."""
    weights = []
    for name in node.inputs:
        weight = graph.tensors[name] if name else None
        if weight and weight.role is Role.WEIGHT and weight.storage_key not in seen:
            seen.add(weight.storage_key)
            weights.append(weight)
    return weights


def _activations(graph: Graph, node: Node) -> list[Tensor]:
    written = (graph.tensors[name] for name in node.writes)
    return [tensor for tensor in written if tensor.role is not Role.WEIGHT]


def _size_bytes(tensors: Iterable[Tensor]) -> int | None:
    return sum_known(tensor.size_bytes for tensor in tensors)
