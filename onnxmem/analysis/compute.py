"""MACs and FLOPs of a model, by node and in total, and the table of its layers.

One multiply-add is 1 MAC and 2 FLOPs; both are reported. An If counts its more expensive branch.
The body of a Loop or a Scan counts once per iteration, or once if the number of iterations is
decided at run time.

A layer is one node with its outputs, its weights and its FLOPs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnxmem.analysis.request import sum_bytes
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import Shape
from onnxmem.units import sum_known


@dataclass(frozen=True, slots=True)
class NodeCompute:
    """MACs and FLOPs of one node; ``None`` is unknown.

    A node with subgraphs has the sum of its more expensive branch or of its body, so that the nodes
    of the main graph add up to the model; nodes of subgraphs have figures of their own as well.
    """

    macs: int | None
    flops: int | None
    backward_flops: int | None = None

    def times(self, count: int) -> "NodeCompute":
        """The figures times ``count``."""
        figures = (self.macs, self.flops, self.backward_flops)
        return NodeCompute(*(None if figure is None else count * figure for figure in figures))


@dataclass(frozen=True, slots=True)
class Compute:
    """MACs and FLOPs of a model; lower bounds if some nodes are unknown.

    A sum is ``None`` if no node is known.
    """

    forward_macs: int | None
    forward_flops: int | None
    backward_flops: int | None
    """2 x forward for nodes with a weight as a parameter (a product for each of the gradients of
    input and weight), 1 x for other nodes, 0 if no gradient flows: reported as a rule of thumb."""
    by_node: Mapping[str, NodeCompute] = field(repr=False)
    unknown_node_names: tuple[str, ...]

    @property
    def unknown_nodes(self) -> int:
        """How many nodes have no known arithmetic."""
        return len(self.unknown_node_names)


@dataclass(frozen=True, slots=True)
class Layer:
    """One node; ``None`` is unknown."""

    node: str
    op_type: str
    output_shape: Shape | None
    """Shape of the first output; ``dtype`` likewise."""
    dtype: str | None
    output_bytes: int | None
    """All outputs except weights, so that the nodes add up to the naive figure."""
    num_parameters: int
    """Of the weights that no earlier node reads; ``weight_bytes`` likewise."""
    weight_bytes: int | None
    macs: int | None
    flops: int | None


def compute(graph: Graph) -> Compute:
    """Count the MACs and FLOPs of every node, subgraphs included."""
    by_node = dict(_by_node(_Counter(graph), graph))
    total = _sum(by_node[node.name] for node in graph.nodes)
    # A node with subgraphs is unknown through the nodes in them, which are named instead.
    unknown = tuple(
        node.name
        for node in graph.all_nodes()
        if not node.subgraphs and by_node[node.name].flops is None
    )
    figures = (total.macs, total.flops, total.backward_flops)
    # If the matrix products are unknown, the other nodes may add up to 0: report unknown instead.
    macs, flops, backward = (None if unknown and not figure else figure for figure in figures)
    return Compute(macs, flops, backward, by_node, unknown)


def layers(graph: Graph, parameters: Parameters, compute: Compute) -> tuple[Layer, ...]:
    """Every node in order of execution; nodes of a subgraph follow the node that has it."""
    counted = {
        graph.tensors[name].storage_key for name in parameters.trained + parameters.quantized
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
                output_bytes=sum_bytes(_activations(graph, node)),
                num_parameters=sum(
                    weight.num_elements or 0 for weight in weights if weight.storage_key in counted
                ),
                weight_bytes=sum_bytes(weights),
                macs=arithmetic.macs,
                flops=arithmetic.flops,
            )
        )
    return tuple(rows)


@dataclass(slots=True, eq=False)
class _Counter:
    """Counts equal nodes once: a large model repeats one block many times."""

    graph: Graph
    counted: dict[tuple[object, ...], NodeCompute] = field(default_factory=dict)

    def node(self, node: Node) -> NodeCompute:
        """The figures of one node without its subgraphs."""
        key = self._key(node)
        if key not in self.counted:
            self.counted[key] = _node_compute(self.graph, node)
        return self.counted[key]

    def _key(self, node: Node) -> tuple[object, ...]:
        """Everything that the figures depend on."""
        tensors, values = self.graph.tensors, self.graph.values
        # The graph keeps records and attributes alive while this counter exists, so their ids are
        # unique; comparing the ids is cheaper than hashing attributes.
        key: list[object] = [id(node.operator), id(node.attributes), len(node.inputs)]
        for name in (*node.inputs, *node.outputs):
            if name:
                tensor = tensors[name]
                key += tensor.shape, tensor.dtype, tensor.role, values.get(name)
            else:
                key.append(name)
        return tuple(key)


def _by_node(counter: _Counter, scope: Graph) -> Iterator[tuple[str, NodeCompute]]:
    """Count each node of ``scope`` and of its subgraphs, inner ones first."""
    for node in scope.nodes:
        if not node.subgraphs:
            yield node.name, counter.node(node)
            continue
        # A run takes one branch of an If: the one of most FLOPs is counted. Inner nodes are yielded
        # per iteration; the node itself has the sum over all its iterations.
        branches = []
        for _, inner in node.subgraphs:
            counted = dict(_by_node(counter, inner))
            yield from counted.items()
            branches.append(_sum(counted[each.name] for each in inner.nodes))
        largest = max(branches, key=lambda branch: branch.flops or 0)
        trips = trip_count(counter.graph, node)
        yield node.name, largest.times(1 if trips is None else trips)


def _node_compute(graph: Graph, node: Node) -> NodeCompute:
    call = graph.call(node)
    flops = node.operator.flops(call)
    times = _backward_times(graph, node)
    return NodeCompute(node.operator.macs(call), flops, None if flops is None else times * flops)


def _backward_times(graph: Graph, node: Node) -> int:
    """The FLOPs of a node's backward pass as a multiple of its forward FLOPs, by rule of thumb."""
    operator = node.operator
    if not operator.differentiable:
        return 0
    if not operator.parameters:
        return 1
    is_weighted = any(
        operator.input_name(index) in operator.parameters
        and graph.tensors[name].role is Role.WEIGHT
        for index, name in enumerate(node.inputs)
        if name
    )
    return 2 if is_weighted else 1


def _sum(parts: Iterable[NodeCompute]) -> NodeCompute:
    """Add the known figures; an empty graph has 0."""
    nodes = tuple(parts)
    return NodeCompute(
        sum_known(node.macs for node in nodes),
        sum_known(node.flops for node in nodes),
        sum_known(node.backward_flops for node in nodes),
    )


def _first_read(graph: Graph, node: Node, seen: set[str]) -> list[Tensor]:
    """The weights among the inputs that no earlier node reads."""
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
