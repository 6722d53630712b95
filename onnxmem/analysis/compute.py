"""How much a model computes, and what each node brings: arithmetic by node and in all; layers.

One multiply-add is 1 MAC and 2 FLOPs; both are reported. An If counts its dearer branch, the body
of a Loop or a Scan as often as it runs; once, where only a run can tell.

A layer is a node with its outputs, its weights and its arithmetic: a row per node.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import Shape
from onnxmem.units import sum_known


@dataclass(frozen=True, slots=True)
class NodeCompute:
    """One node's arithmetic; ``None`` is unknown.

    A node with subgraphs has the sum of its dearer branch or its body, so that the nodes of the
    main graph add up to the model; the nodes in the subgraphs have their own beside it.
    """

    macs: int | None
    flops: int | None
    backward_flops: int | None = None

    def times(self, count: int) -> "NodeCompute":
        """The same ``count`` times over."""
        figures = (self.macs, self.flops, self.backward_flops)
        return NodeCompute(*(None if figure is None else count * figure for figure in figures))


@dataclass(frozen=True, slots=True)
class Compute:
    """A model's arithmetic; sums leave unknown nodes out and are lower bounds then.

    A sum is ``None`` where not one node of the graph is known.
    """

    forward_macs: int | None
    forward_flops: int | None
    backward_flops: int | None
    """2 x forward for nodes that read a weight as a parameter (one product for each of the two
    gradients), 1 x for the rest, 0 where no gradient passes: a rule, labeled so."""
    by_node: Mapping[str, NodeCompute]
    unknown_nodes: tuple[str, ...]


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


def compute(graph: Graph) -> Compute:
    """Count the arithmetic of every node, subgraphs included."""
    by_node = dict(_by_node(_Counter(graph), graph))
    total = _sum(by_node[node.name] for node in graph.nodes)
    unknown = tuple(
        node.name
        for node in graph.all_nodes()
        if not node.subgraphs and by_node[node.name].flops is None
    )
    figures = (total.macs, total.flops, total.backward_flops)
    # What is left of a model when its products are unknown may sum to 0: that is no answer.
    macs, flops, backward = (None if unknown and not figure else figure for figure in figures)
    return Compute(macs, flops, backward, by_node, unknown)


def layers(graph: Graph, parameters: Parameters, compute: Compute) -> tuple[Layer, ...]:
    """List every node in running order, those of a subgraph after the node that holds it."""
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


@dataclass(slots=True, eq=False)
class _Counter:
    """Counts nodes, those that are alike once: a large model is one block many times over."""

    graph: Graph
    counted: dict[tuple[object, ...], NodeCompute] = field(default_factory=dict)

    def node(self, node: Node) -> NodeCompute:
        """The arithmetic of one node, subgraphs left out."""
        key = self._key(node)
        if key not in self.counted:
            self.counted[key] = _node_compute(self.graph, node)
        return self.counted[key]

    def _key(self, node: Node) -> tuple[object, ...]:
        """All that the count depends on; records that the graph holds are told by identity."""
        tensors, values = self.graph.tensors, self.graph.values
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
        branches = []
        for _, inner in node.subgraphs:
            counted = dict(_by_node(counter, inner))
            yield from counted.items()
            branches.append(_sum(counted[each.name] for each in inner.nodes))
        dearest = max(branches, key=lambda branch: branch.flops or 0)
        trips = trip_count(counter.graph, node)
        yield node.name, dearest.times(1 if trips is None else trips)


def _node_compute(graph: Graph, node: Node) -> NodeCompute:
    call = graph.call(node)
    flops = node.operator.flops(call)
    times = _backward_times(graph, node)
    return NodeCompute(node.operator.macs(call), flops, None if flops is None else times * flops)


def _backward_times(graph: Graph, node: Node) -> int:
    """How many times its forward arithmetic a node's backward pass is taken to cost."""
    operator = node.operator
    if not operator.differentiable:
        return 0
    if not operator.parameters:
        return 1
    is_weighted = any(
        operator.input_name(place) in operator.parameters
        and graph.tensors[name].role is Role.WEIGHT
        for place, name in enumerate(node.inputs)
        if name
    )
    return 2 if is_weighted else 1


def _sum(parts: Iterable[NodeCompute]) -> NodeCompute:
    """Add what is known; an empty graph computes nothing."""
    nodes = tuple(parts)
    return NodeCompute(
        sum_known(node.macs for node in nodes),
        sum_known(node.flops for node in nodes),
        sum_known(node.backward_flops for node in nodes),
    )


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
