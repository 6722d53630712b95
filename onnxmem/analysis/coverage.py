"""How many nodes and tensors are assumed or unknown, and warnings on the model itself."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Final

from onnxmem.errors import Finding, listed
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.ops.registry import UNKNOWN
from onnxmem.units import format_bytes, plural

if TYPE_CHECKING:
    from onnxmem.model.parameters import Parameters
    from onnxmem.runtimes.ideal.activation_memory import ActivationMemory
    from onnxmem.runtimes.torch.memory import TrainingMemory


_EXAMPLE: Final = 512
"""Example value of a dim in hints: a common sequence length and image size."""


def unbound_dims_text(dims: Sequence[str]) -> str:
    """Dims that count as 1, and the flags that set them: ``--dim sequence=512``."""
    verb = "counts" if len(dims) == 1 else "count"
    return f"{listed(dims)} {verb} as 1; set {dims_line(dims)}"


def dims_line(dims: Sequence[str], number: object = _EXAMPLE) -> str:
    """The flags that set dims, quoted for a shell: ``--dim sequence=512``."""
    return " ".join(f"--dim {quote(f'{name}={number}')}" for name in dims)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many nodes and tensors are assumed or unknown."""

    nodes: int
    """Nodes of subgraphs included."""
    assumed_node_names: tuple[str, ...]
    """Nodes without an operator record, or with an assumed trip count or shape."""
    unknown_tensor_names: tuple[str, ...]
    """Tensors of unknown size, and nodes that save an unknown number of bytes for backward:
    figures leave them out and are lower bounds."""

    @property
    def assumed_nodes(self) -> int:
        """How many nodes are assumed."""
        return len(self.assumed_node_names)

    @property
    def unknown_tensors(self) -> int:
        """How many tensors, and nodes that save something, are unknown."""
        return len(self.unknown_tensor_names)


def coverage(
    graph: Graph, activations: "ActivationMemory", training: "TrainingMemory | None"
) -> Coverage:
    """Count what is assumed and what is unknown."""
    nodes = list(graph.all_nodes())
    assumed = set(training.assumed_nodes) if training else set()
    of_assumed_shape = {tensor.name for tensor in graph.tensors.values() if tensor.is_assumed}
    unknown = training.unknown if training else ()
    inputs = tuple(name for name in graph.inputs if graph.tensors[name].size_bytes is None)
    weights = tuple(weight.name for weight in graph.weights if weight.size_bytes is None)
    return Coverage(
        nodes=len(nodes),
        assumed_node_names=tuple(
            node.name
            for node in nodes
            if node.name in assumed or _is_assumed(graph, node, of_assumed_shape)
        ),
        unknown_tensor_names=tuple(
            dict.fromkeys((*inputs, *weights, *activations.unknown_tensors, *unknown))
        ),
    )


def model_findings(
    graph: Graph, parameters: "Parameters", iterations: Mapping[str, int | None], *, train: bool
) -> Iterator[Finding]:
    """Warnings and notes on the model itself.

    ``iterations`` are the most of each Loop; ``None``: unbounded.
    """
    yield from _weight_findings(graph)
    # One finding for each operator, at its first node.
    unknown: dict[str, Node] = {}
    for node in graph.all_nodes():
        if node.operator is UNKNOWN:
            unknown.setdefault(_operator_name(node), node)
    for name, node in unknown.items():
        text = f"unknown operator {name}: it is assumed to share and overwrite no buffer"
        yield Finding("unknown_operator", text, node.name)
    yield from _loop_findings(graph, iterations)
    if train:
        yield from _training_findings(graph, parameters)


def dequantized_findings(graph: Graph) -> Iterator[Finding]:
    """The weights that DequantizeLinear converts, if their converted bytes are activations.

    onnxruntime runs the operator on the quantized weight, or converts it once while it loads.
    """
    sizes = [
        graph.tensors[output].size_bytes or 0
        for node in graph.all_nodes()
        if node.onnx_op == "DequantizeLinear" and _is_weight(graph, node.inputs[0])
        for output in node.outputs[:1]
    ]
    if sum(sizes):
        text = (
            f"{format_bytes(sum(sizes))} of dequantized weights count as activations; "
            "onnxruntime does not make them in a run: --runtime ort-cpu"
        )
        yield Finding("dequantized_weights", text)


def _is_weight(graph: Graph, name: str) -> bool:
    tensor = graph.tensors.get(name)
    return tensor is not None and tensor.role is Role.WEIGHT


def unread_initializers(graph: Graph) -> list[Tensor]:
    """Initializers that no node reads, except for shapes of a ConstantOfShape."""
    # These are not weights (definition 1), but removing them would break the model.
    sizing = {
        n for node in graph.all_nodes() if node.onnx_op == "ConstantOfShape" for n in node.inputs
    }
    tensors = graph.tensors.values()
    return [t for t in tensors if t.role is Role.UNREAD and t.name not in sizing]


def _weight_findings(graph: Graph) -> Iterator[Finding]:
    unread = [tensor.name for tensor in unread_initializers(graph)]
    if unread:
        yield Finding("unread_initializers", f"unused initializers: {listed(unread, at_most=3)}")
    sparse = [t.name for t in graph.tensors.values() if t.num_stored is not None]
    if sparse:
        text = f"sparse weights count as dense, as runtimes load them: {listed(sparse)}"
        yield Finding("sparse_weights", text)


def _training_findings(graph: Graph, parameters: "Parameters") -> Iterator[Finding]:
    if parameters.quantized:
        text = (
            f"{plural(len(parameters.quantized), 'quantized weight')} not trained; "
            "the training figures are those of the other weights"
        )
        yield Finding("quantized_training", text)
    if not parameters.trained:
        yield Finding("nothing_to_train", "the model has no trainable weights")
    inner = [node.name for node in graph.nodes if node.subgraphs]
    if inner:
        text = f"the bodies of control flow are assumed to save their tensors once: {listed(inner)}"
        yield Finding("control_flow_training", text, inner[0])


def _is_assumed(graph: Graph, node: Node, of_assumed_shape: AbstractSet[str]) -> bool:
    return (
        node.operator is UNKNOWN
        or _has_open_trip_count(graph, node)
        or not of_assumed_shape.isdisjoint(node.writes)
    )


def _loop_findings(graph: Graph, iterations: Mapping[str, int | None]) -> Iterator[Finding]:
    loops = [node.name for node in graph.all_nodes() if _has_open_trip_count(graph, node)]
    endless = [name for name in loops if iterations.get(name) is None]
    if endless:
        text = f"loops with an unknown number of iterations count once: {listed(endless)}"
        yield Finding("assumed_trip_count", text, endless[0])
    bounded = [name for name in loops if name not in endless]
    if bounded:
        most = f"{iterations[bounded[0]]:,} iterations of {bounded[0]!r}"
        more = f" and those of {plural(len(bounded) - 1, 'more loop')}" if bounded[1:] else ""
        text = f"FLOPs count 1 of at most {most}{more}; figures at most count all"
        yield Finding("assumed_trip_count", text, bounded[0])


def _has_open_trip_count(graph: Graph, node: Node) -> bool:
    return bool(node.subgraphs) and trip_count(graph, node) is None


def _operator_name(node: Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type
