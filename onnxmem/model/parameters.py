"""Which weights a training run trains, which are quantized, and which it only holds.

A parameter is a floating weight that an operator reads where its record says parameters stand,
itself or by way of operators that only lay it out anew (a Transpose before a MatMul, a Reshape of a
bias, a Cast). What such an operator reads through DequantizeLinear is a quantized weight.

An operator of arithmetic or layout says nothing of its operand: a bias and the 2 of ``2 * x`` stand
in one position. There a weight is trained only if it has a dim, more than one element, is not a
Constant node, which is how every exporter writes a literal, does not have a name that an exporter
makes up, and is neither a mask nor a table of positions. A layer's own input (of Conv, Gemm,
MatMul, BatchNormalization...) holds parameters however the file makes them: some exporters write
weights as Constant nodes.

Exporters hold a registered buffer like a parameter. What is added to the scores right before a
softmax, over two axes of more than one element, is a mask; what goes into a sine or a cosine by
way of products and moves is a table of frequencies.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnxmem.model.graph import DType, Graph, Node, Role, Tensor
from onnxmem.ops.spec import OpSpec

_MOVES = frozenset(
    {
        *("Cast", "CastLike", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape"),
        *("Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
_TO_ANGLES = _MOVES | {"Div", "Einsum", "MatMul", "Mul"}
_TO_SCORES = _MOVES | {"Add", "Where"}
_MAX_NODES = 64
"""Readers that are looked at; what goes further is no table."""

Readers = Mapping[str, tuple[Node, ...]]


def readers_of(graph: Graph) -> Readers:
    """The nodes that read each tensor, those of subgraphs too."""
    found: dict[str, list[Node]] = {}
    for node in graph.all_nodes():
        for name in node.inputs:
            found.setdefault(name, []).append(node)
    return {name: tuple(nodes) for name, nodes in found.items()}


def is_wide(weight: Tensor) -> bool:
    """Whether more than one axis of a weight has more than one element."""
    return sum(dim != 1 for dim in weight.shape or ()) > 1


def is_table(weight: Tensor, readers: Readers) -> bool:
    """Whether a weight is a mask or a table of frequencies."""
    if is_wide(weight) and _reaches(weight.name, readers, _TO_SCORES, frozenset({"Softmax"})):
        return True
    return _reaches(weight.name, readers, _TO_ANGLES, frozenset({"Cos", "Sin"}))


def _reaches(name: str, readers: Readers, way: frozenset[str], ends: frozenset[str]) -> bool:
    """Whether a tensor goes into one of some operators by way of others alone."""
    waiting, seen = [name], 0
    while waiting and seen < _MAX_NODES:
        for node in readers.get(waiting.pop(), ()):
            seen += 1
            if node.onnx_op in ends:
                return True
            if node.onnx_op in way:
                waiting += node.writes
    return False


_LAYOUT = frozenset(
    {
        *("Cast", "CastLike", "Concat", "Flatten", "Identity", "Reshape"),
        *("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
    }
)
"""Operators after which a weight is a weight still: its elements laid out anew, in pieces or joined
as a recurrent layer's gates are.
"""

_FOLLOWED = _LAYOUT | {"Constant", "DequantizeLinear"}
"""Operators whose outputs are followed to what made them."""

_LITERAL_OPERANDS = _LAYOUT | {
    *("Add", "Div", "Exp", "Expand", "Max", "Min", "Mul"),
    *("Pow", "Sub", "Sum", "Tile", "Where"),
}
"""Operators that read a number of the program as readily as a parameter of the model."""

_TORCH_OPERATORS = (
    "abs|add|alias|arange|bitwise_not|bmm|cat|clamp|clone|constant_pad_nd|contiguous|cos|cumsum|"
    "detach|div|einsum|eq|exp|expand|flatten|flip|full|full_like|gather|ge|getitem|gt|index|"
    "index_select|le|lift_fresh_copy|linspace|log|logical_not|lt|masked_fill|matmul|meshgrid|mul|"
    "ne|neg|new_ones|new_zeros|ones|ones_like|outer|permute|pow|reciprocal|repeat|reshape|roll|"
    "rsqrt|scalar_tensor|select|sin|slice|sqrt|squeeze|stack|sub|to|to_copy|transpose|tril|triu|"
    "type_as|unsqueeze|view|where|zeros|zeros_like"
)
_NAME_OF_FOLDED = re.compile(
    r"(^|/)(val_\d+|onnx::\w+_\d+|\d+|\w*lifted_tensor_\d+|Constant(_\d+)?_output_\d+"
    rf"|_?({_TORCH_OPERATORS})(_default)?(_\d+)?)$"
)
"""How PyTorch's exporters name what they computed themselves: masks, tables of positions,
factors. ``torch.export`` names a value after the operator that made it. What a layer trains keeps
its name, unless it was turned around for a MatMul.
"""

_INVERSE_ROOTS = frozenset({"Reciprocal", "rsqrt"})
"""Behind a Sqrt, or as the framework runs both."""
_SHORT = 8
"""Elements of a list that a program holds: the factors of a Resize."""

_PACKED_BITS = {
    "GatherBlockQuantized": "bits",
    "MatMulNBits": "bits",
    "QMoE": "expert_weight_bits",
}
"""Operators that read several weights from a byte, and the attribute that gives their width."""
_PACKED_DEFAULT_BITS = 4
_BYTE_BITS = 8


@dataclass(frozen=True, slots=True)
class Parameters:
    """The weights of a model by what they are to training; names of tensors, each storage once."""

    trained: tuple[str, ...]
    """Floating weights that a layer reads as its parameters."""
    quantized: tuple[str, ...]
    """Integer weights of quantized layers: parameters, but never trained."""
    buffers: tuple[str, ...]
    """What else a model holds: running statistics, masks, tables, scales; not small literals."""
    num_parameters: int
    """Elements of ``trained`` and ``quantized``; a sub-byte element counts one, packed or not."""


def parameters(graph: Graph) -> Parameters:
    """Sort the weights of a model, its subgraphs included, into trained, quantized and buffers."""
    search = _Search(graph)
    for node in graph.all_nodes():
        search.visit(node)
    trained = tuple(
        name for storage, name in search.trained.items() if storage not in search.quantized
    )
    quantized = tuple(search.quantized.values())
    others = (weight for weight in graph.weights if not search.is_sorted(weight))
    buffers = tuple(weight.name for weight in others if not search.is_literal(weight))
    count = sum(search.num_elements(name) for name in (*trained, *quantized))
    return Parameters(trained, quantized, buffers, count)


def _producers(nodes: Iterable[Node]) -> Mapping[str, Node]:
    """What nodes make whose producers matter."""
    followed = [node for node in nodes if node.op_type in _FOLLOWED]
    return {name: node for node in followed for name in node.writes}


@dataclass(slots=True)
class _Search:
    """Walks back from the inputs that hold parameters to the weights: storage -> first name."""

    graph: Graph
    producers: Mapping[str, Node] = field(init=False)
    _readers: Readers | None = None
    _makers: Mapping[str, Node] | None = None
    slots: dict[tuple[int, int], Sequence[tuple[int, str]]] = field(default_factory=dict)
    """By operator, as its identity, and number of inputs: each is looked at once."""
    trained: dict[str, str] = field(default_factory=dict)
    quantized: dict[str, str] = field(default_factory=dict)
    per_element: dict[str, int] = field(default_factory=dict)
    """Weights that one element of a packed tensor holds, where it is not one."""
    buffers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.producers = _producers(self.graph.all_nodes())

    @property
    def readers(self) -> Readers:
        """The readers of all tensors: few models have a weight whose readers matter."""
        if self._readers is None:
            self._readers = readers_of(self.graph)
        return self._readers

    def visit(self, node: Node) -> None:
        """Sort what one node reads."""
        key = id(node.operator), len(node.inputs)
        if key not in self.slots:
            self.slots[key] = tuple(_slots(node.operator, len(node.inputs)))
        for index, slot in self.slots[key]:
            name = node.inputs[index]
            if not name:
                continue
            if slot in node.operator.buffers and (weight := self._weight(name)):
                self.buffers.add(weight.storage_key)
            elif slot in node.operator.quantized and (weight := self._weight(name)):
                self.quantized.setdefault(weight.storage_key, weight.name)
                self.per_element[weight.name] = _weights_per_element(node, weight)
            elif slot in node.operator.parameters:
                for source in self._sources(name):
                    self._add_parameter(node, source)

    def _add_parameter(self, node: Node, name: str) -> None:
        producer = self.producers.get(name)
        if producer is not None and producer.onnx_op == "DequantizeLinear":
            for source in self._sources(next(iter(producer.inputs), "")):
                if quantized := self._weight(source):
                    self.quantized.setdefault(quantized.storage_key, quantized.name)
            return
        weight = self._weight(name)
        if weight is not None and self._is_trained(node, weight):
            self.trained.setdefault(weight.storage_key, weight.name)

    def _is_trained(self, node: Node, weight: Tensor) -> bool:
        """Whether a weight is floating and, where the operator reads literals too, is none."""
        if weight.dtype is None or not weight.dtype.is_floating:
            return False
        if node.onnx_op not in _LITERAL_OPERANDS:
            # A matrix that is multiplied is a layer's, a vector may be one of frequencies
            return node.onnx_op != "MatMul" or is_wide(weight) or not is_table(weight, self.readers)
        producer = self.producers.get(weight.name)
        is_literal = producer is not None and producer.onnx_op == "Constant"
        is_folded = _NAME_OF_FOLDED.search(weight.name) is not None
        has_elements = bool(weight.shape) and weight.num_elements != 1
        is_number = is_literal or not has_elements
        if is_folded and not self._scales_a_norm(node, weight):
            return False
        return not is_number and not is_table(weight, self.readers)

    def _scales_a_norm(self, node: Node, weight: Tensor) -> bool:
        """Whether a list multiplies what was divided by a root: a norm's scale, 1 + w computed.

        Exporters fold the sum (Gemma's RMSNorm) and give it a name of their own.
        """
        if node.onnx_op != "Mul" or weight.num_elements == 1:
            return False
        if self._makers is None:
            self._makers = {name: each for each in self.graph.all_nodes() for name in each.writes}
        makers = self._makers
        others = (makers.get(name) for name in node.inputs if name != weight.name)
        normed = next((maker for maker in others if maker is not None), None)
        if normed is None or normed.onnx_op not in {"Div", "Mul"}:
            return False
        factors = (makers.get(name) for name in normed.inputs)
        roots = {"Sqrt"} if normed.onnx_op == "Div" else _INVERSE_ROOTS
        return any(factor is not None and factor.op_type in roots for factor in factors)

    def _sources(self, name: str) -> Iterable[str]:
        """Follow chains of layout operators back to where they start."""
        return self._followed(name) if name in self.producers else (name,)

    def _followed(self, name: str) -> Iterator[str]:
        seen = {name}
        waiting = [name]
        while waiting:
            name = waiting.pop()
            producer = self.producers.get(name)
            if producer is None or producer.onnx_op not in _LAYOUT:
                yield name
                continue
            pieces = producer.inputs if producer.onnx_op == "Concat" else producer.inputs[:1]
            waiting.extend(piece for piece in pieces if piece not in seen)
            seen.update(pieces)

    def _weight(self, name: str) -> Tensor | None:
        tensor = self.graph.tensors.get(name)
        return tensor if tensor is not None and tensor.role is Role.WEIGHT else None

    def is_sorted(self, weight: Tensor) -> bool:
        """Whether a weight is a parameter."""
        return weight.storage_key in self.trained or weight.storage_key in self.quantized

    def is_literal(self, weight: Tensor) -> bool:
        """Whether a weight is a number or a short list of the program: a shape, axes, a factor.

        Constant nodes, integers of few elements and what an exporter names itself are, however the
        file holds them.
        """
        if weight.storage_key in self.buffers or weight.name not in self.graph.values:
            return False
        producer = self.producers.get(weight.name)
        is_constant = producer is not None and producer.onnx_op == "Constant"
        is_integer = weight.dtype is not None and weight.dtype.is_integer
        is_short = (weight.num_elements or 0) <= _SHORT or not weight.shape
        is_folded = is_short and _NAME_OF_FOLDED.search(weight.name) is not None
        return is_constant or is_integer or is_folded or weight.num_elements == 1

    def num_elements(self, name: str) -> int:
        """Elements of a weight, packed ones counted apart; 0 where its shape is unknown."""
        return (self.graph.tensors[name].num_elements or 0) * self.per_element.get(name, 1)


def _slots(operator: OpSpec, num_inputs: int) -> Iterator[tuple[int, str]]:
    """The indices of inputs that may hold parameters or buffers, and their schema names."""
    wanted = {*operator.buffers, *operator.quantized, *operator.parameters}
    for index in range(num_inputs):
        slot = operator.input_name(index)
        if slot is not None and slot in wanted:
            yield index, slot


def _weights_per_element(node: Node, weight: Tensor) -> int:
    """Count the weights in one element: several where an operator packs them into bytes."""
    if node.op_type not in _PACKED_BITS or weight.dtype is not DType.UINT8:
        return 1
    bits = node.attributes.get(_PACKED_BITS[node.op_type], _PACKED_DEFAULT_BITS)
    return _BYTE_BITS // bits if isinstance(bits, int) and 0 < bits <= _BYTE_BITS else 1
