"""Explain a tensor or a node of a model by its name: its bytes, when it is live, what it shares."""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxmem.analysis.analysis import Analysis
from onnxmem.model.graph import Graph, Node, Role, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTensor:
    """A tensor of a model, and the buffer that holds it."""

    tensor: Tensor
    producer: Node | None
    """The node that writes it; ``None``: a weight or an input."""
    readers: tuple[str, ...]
    """The nodes that read it, in order."""
    first_node: str | None = None
    """The node that allocates its buffer; ``None``: it is live before the first node."""
    last_node: str | None = None
    """The last node at which its buffer is live; ``None``: it is live after the last node."""
    is_live_at_peak: bool | None = None
    """``None``: it has no buffer of its own in the order of execution, as in a subgraph."""
    shares_with: tuple[str, ...] = ()
    """The other tensors of its buffer, or of its weight's bytes."""


@dataclass(frozen=True, slots=True)
class ExplainedNode:
    """A node of a model, and what it writes."""

    node: Node
    reads: tuple[Tensor, ...]
    """Each once, in order."""
    writes: tuple[ExplainedTensor, ...]
    is_at_peak: bool
    """Whether the peak is at this node."""


def explained_name(name: str, analysis: Analysis) -> ExplainedTensor | ExplainedNode | None:
    """The tensor of a name, or else the node; ``None`` if the model has neither."""
    graph = analysis.graph
    if name in graph.tensors:
        return _tensor(graph.tensors[name], analysis)
    node = next((each for each in graph.all_nodes() if each.name == name), None)
    if node is None:
        return None
    return ExplainedNode(
        node,
        reads=tuple(graph.tensors[each] for each in dict.fromkeys(node.reads)),
        writes=tuple(_tensor(graph.tensors[each], analysis) for each in node.writes),
        is_at_peak=analysis.activations.replay.peak.node == name,
    )


def _tensor(tensor: Tensor, analysis: Analysis) -> ExplainedTensor:
    graph = analysis.graph
    nodes = tuple(graph.all_nodes())
    readers = tuple(each.name for each in nodes if tensor.name in each.reads)
    producer = next((each for each in nodes if tensor.name in each.writes), None)
    if tensor.role in {Role.WEIGHT, Role.INPUT}:
        return ExplainedTensor(
            tensor=tensor,
            producer=None,
            readers=readers,
            is_live_at_peak=True,
            shares_with=_same_storage(tensor, graph),
        )
    replay = analysis.activations.replay
    program = replay.program
    number = _allocation(tensor.name, (program.tensors_of(at) for at in range(len(program.labels))))
    if number is None:
        return ExplainedTensor(tensor=tensor, producer=producer, readers=readers)
    starts, stops = program.lifetimes
    last = int(stops[number]) - 1
    is_released = bool((program.events == ~number).any())
    return ExplainedTensor(
        tensor=tensor,
        producer=producer,
        readers=readers,
        first_node=program.steps[int(starts[number])],
        last_node=program.steps[last] if is_released else None,
        is_live_at_peak=number in program.alive_after(replay.peak.num_events),
        shares_with=tuple(each for each in program.tensors_of(number) if each != tensor.name),
    )


def _same_storage(tensor: Tensor, graph: Graph) -> tuple[str, ...]:
    return tuple(
        each.name
        for each in graph.tensors.values()
        if each.storage_key == tensor.storage_key and each.name != tensor.name
    )


def _allocation(name: str, tensors: Iterable[tuple[str, ...]]) -> int | None:
    return next((number for number, names in enumerate(tensors) if name in names), None)
