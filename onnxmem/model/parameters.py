"""Which weights a training run trains, which are quantised, and which it only holds.

A parameter is a floating weight that an operator reads where its record says parameters stand,
itself or by way of operators that only lay it out anew (a Transpose before a MatMul, a Reshape of a
bias, a Cast). What such an operator reads through DequantizeLinear is a quantised weight.

An operator of arithmetic or layout says nothing of its operand: a bias and the 2 of ``2 * x`` stand
in one place. There a weight is trained only if it has a dim, more than one element, and is no
Constant node, which is how every exporter writes a literal. A layer's own slot (of Conv, Gemm,
MatMul, BatchNormalization...) holds parameters however the file makes them: some exporters write
weights as Constant nodes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnxmem.model.graph import Graph, Node, Role, Tensor

_LAYOUT = frozenset(
    {
        *("Cast", "CastLike", "Flatten", "Identity", "Reshape"),
        *("Squeeze", "Transpose", "Unsqueeze"),
    }
)
"""Operators whose first input is a weight still after them: the same elements, laid out anew."""

_LITERAL_OPERANDS = _LAYOUT | {
    *("Add", "Concat", "Div", "Exp", "Expand", "Max", "Min", "Mul", "Pow"),
    *("Slice", "Split", "Sub", "Sum", "Tile", "Where"),
}
"""Operators that read a number of the program as readily as a parameter of the model."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The weights of a model by what they are to training; names of tensors, each storage once."""

    trained: tuple[str, ...]
    """Floating weights that a layer reads as its parameters."""
    quantised: tuple[str, ...]
    """Integer weights of quantised layers: parameters, but never trained."""
    buffers: tuple[str, ...]
    """What else a model holds: running statistics, masks, tables, scales; not small literals."""
    num_parameters: int
    """Elements of ``trained`` and ``quantised``; a sub-byte element counts one."""


def parameters(graph: Graph) -> Parameters:
    """Sort the weights of a model, its subgraphs included, into trained, quantised and held."""
    search = _Search(graph)
    for node in graph.all_nodes():
        search.visit(node)
    trained = tuple(
        name for storage, name in search.trained.items() if storage not in search.quantised
    )
    quantised = tuple(search.quantised.values())
    held = (weight for weight in graph.weights() if not search.is_sorted(weight))
    buffers = tuple(weight.name for weight in held if not search.is_literal(weight))
    count = sum(search.num_elements(name) for name in (*trained, *quantised))
    return Parameters(trained, quantised, buffers, count)


def _producers(nodes: Iterable[Node]) -> Mapping[str, Node]:
    return {name: node for node in nodes for name in node.writes}


@dataclass(slots=True)
class _Search:
    """Walks back from the places of parameters to the weights: storage -> first name."""

    graph: Graph
    producers: Mapping[str, Node] = field(init=False)
    trained: dict[str, str] = field(default_factory=dict)
    quantised: dict[str, str] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.producers = _producers(self.graph.all_nodes())

    def visit(self, node: Node) -> None:
        """Sort what one node reads."""
        for slot, name in _slots(node):
            if slot in node.operator.buffers and (weight := self._weight(name)):
                self.buffers.add(_storage(weight))
            elif slot in node.operator.quantised and (weight := self._weight(name)):
                self.quantised.setdefault(_storage(weight), weight.name)
            elif slot in node.operator.parameters:
                self._add_parameter(node, self._source(name))

    def _add_parameter(self, node: Node, name: str) -> None:
        producer = self.producers.get(name)
        if producer is not None and producer.op_type == "DequantizeLinear":
            if weight := self._weight(self._source(_first_input(producer))):
                self.quantised.setdefault(_storage(weight), weight.name)
            return
        weight = self._weight(name)
        if weight is not None and self._is_trained(node, weight):
            self.trained.setdefault(_storage(weight), weight.name)

    def _is_trained(self, node: Node, weight: Tensor) -> bool:
        """Whether a weight is floating and, where the operator reads literals too, is none."""
        if weight.dtype is None or not weight.dtype.is_floating:
            return False
        if node.op_type not in _LITERAL_OPERANDS:
            return True
        producer = self.producers.get(weight.name)
        is_literal = producer is not None and producer.op_type == "Constant"
        return bool(weight.shape) and weight.num_elements != 1 and not is_literal

    def _source(self, name: str) -> str:
        """Follow a chain of layout operators back to where it starts."""
        producer = self.producers.get(name)
        while producer is not None and producer.op_type in _LAYOUT:
            name = _first_input(producer)
            producer = self.producers.get(name)
        return name

    def _weight(self, name: str) -> Tensor | None:
        tensor = self.graph.tensors.get(name)
        return tensor if tensor is not None and tensor.role is Role.WEIGHT else None

    def is_sorted(self, weight: Tensor) -> bool:
        """Whether a weight is a parameter."""
        return _storage(weight) in self.trained or _storage(weight) in self.quantised

    def is_literal(self, weight: Tensor) -> bool:
        """Whether a weight is a number or a short list of the program: a shape, axes, a factor.

        Constant nodes and integers of few elements are, however the file holds them.
        """
        if _storage(weight) in self.buffers or weight.name not in self.graph.values:
            return False
        producer = self.producers.get(weight.name)
        is_constant = producer is not None and producer.op_type == "Constant"
        return is_constant or (weight.dtype is not None and weight.dtype.is_integer)

    def num_elements(self, name: str) -> int:
        """Elements of a weight; 0 where its shape is unknown."""
        return self.graph.tensors[name].num_elements or 0


def _slots(node: Node) -> Iterator[tuple[str, str]]:
    """Each input that is not left out, by its schema name."""
    for place, name in enumerate(node.inputs):
        slot = node.operator.input_name(place)
        if name and slot is not None:
            yield slot, name


def _first_input(node: Node) -> str:
    return node.inputs[0] if node.inputs else ""


def _storage(weight: Tensor) -> str:
    return weight.storage or weight.name
