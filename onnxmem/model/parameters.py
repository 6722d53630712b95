"""Tell trainable parameters, quantized weights and buffers apart.

A parameter is a floating weight that an operator reads at an input for parameters (by its record),
directly or through layout operators (a Transpose before a MatMul, a Reshape of a bias, a Cast). A
weight that such an operator reads through DequantizeLinear is a quantized weight.

The inputs of arithmetic operators tell nothing: a bias and the 2 of ``2 * x`` are inputs of the
same kind. There a weight is a parameter only if it has a dim and more than one element or the name
of a module's tensor (``blocks.0.act.scale``), is not a Constant node, as which exporters write
literals, has no name that an exporter generates, and is neither a mask nor a table of positions.
The inputs of layers (Conv, Gemm, MatMul, BatchNormalization...) are parameters in any form: some
exporters write weights as Constant nodes.

A registered buffer looks like a parameter in the file. A weight with two axes or more that is added
to the scores of a softmax is a mask, and so is one that the framework's attention adds, unless each
head has its own; a weight that reaches a sine or cosine through products and
layout operators is a table of frequencies; one that reaches the grid of a GridSample through
arithmetic is a table of positions. The vectors of spectral_norm (``weight_u`` beside
``weight_orig``) and the masks of pruning are buffers by their names. torch.export names the
operands of each node's call in its metadata, buffers as ``%b_layers_0_table``: they are not
trained, whatever reads them. It lists the parameters too, so that another operand of arithmetic
with a name of its own is none (a table of rotary positions), and of what it computed when it wrote
the file (``view`` of a scale) the names that it was computed of: that of a parameter is trained.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnxmem.model.graph import FX_NODE, DType, Graph, Node, Role, Tensor
from onnxmem.ops.spec import OpSpec

_LAYOUT_AND_CASTS = frozenset(
    {
        *("Cast", "CastLike", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape"),
        *("Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
_TO_ANGLES = _LAYOUT_AND_CASTS | {"Div", "Einsum", "MatMul", "Mul"}
_TO_SCORES = _LAYOUT_AND_CASTS | {"Add", "Where"}
_TO_GRIDS = _LAYOUT_AND_CASTS | {"Add", "Clip", "Div", "Mul", "Sub"}
_ATTENTION = frozenset({"scaled_dot_product_attention"})
_BIAS_RANK = 3
_GRID = 1
"""Its index among the inputs of GridSample."""
_OF_HOOKS = re.compile(r"(.*)_(u|v|mask)$|.*parametrizations\.\w+\.\d+\._[uv]$")
"""Names of buffers of torch.nn.utils: of spectral_norm, of its parametrization, and of prune."""
_LINEAR = re.compile(r"\[target=torch\.ops\.aten\.linear\.")
_FX_BUFFER = re.compile(r"%b_(\w+)")
_WORD = re.compile(r"\W")
"""placeholder_naming_pass of torch/_export/utils.py: a prefix, and the name with _ for each dot."""
_MAX_NODES = 64
"""Readers that are visited; masks and tables reach their end within fewer."""

Readers = Mapping[str, tuple[Node, ...]]


def readers_of(graph: Graph) -> Readers:
    """The nodes that read each tensor, subgraphs included."""
    found: dict[str, list[Node]] = {}
    for node in graph.all_nodes():
        for name in node.inputs:
            found.setdefault(name, []).append(node)
    return {name: tuple(nodes) for name, nodes in found.items()}


def is_wide(weight: Tensor) -> bool:
    """Whether at least two axes of a weight have more than one element."""
    return sum(dim != 1 for dim in weight.shape or ()) > 1


def is_exporters_name(name: str) -> bool:
    """Whether an exporter generated the name of a weight, for what it computed or transposed."""
    return _NAME_OF_FOLDED.search(name) is not None


def is_product(node: Node, weight: Tensor) -> bool:
    """Whether it is what a linear layer of stored tensors multiplies to; the file adds its bias.

    The layer's weight is not in the file, and smaller: it was computed of a table of positions.
    """
    is_sum = node.onnx_op == "Add" and is_wide(weight) and is_exporters_name(weight.name)
    return is_sum and _LINEAR.search(node.metadata.get(FX_NODE, "")) is not None


def is_of_hook(name: str, known: Container[str]) -> bool:
    """Whether a weight is a buffer that a hook on a module's parameter has beside it."""
    found = _OF_HOOKS.match(name)
    return found is not None and (found[1] is None or f"{found[1]}_orig" in known)


def named_buffers(nodes: Iterable[Node]) -> frozenset[str]:
    """The buffers that torch.export names, as it writes them: ``layers_0_table``."""
    texts = (node.metadata.get(FX_NODE, "") for node in nodes)
    return frozenset(name for text in texts if "%b_" in text for name in _FX_BUFFER.findall(text))


def is_table(weight: Tensor, readers: Readers) -> bool:
    """Whether a weight is a mask or a table of frequencies or positions."""
    if is_wide(weight) and _reaches(weight.name, readers, _TO_SCORES, frozenset({"Softmax"})):
        return True
    if is_mask_of_attention(weight, readers):
        return True
    if _reaches(weight.name, readers, _TO_ANGLES, frozenset({"Cos", "Sin"})):
        return True
    return _reaches(weight.name, readers, _TO_GRIDS, frozenset({"GridSample"}), at=_GRID)


def is_mask_of_attention(weight: Tensor, readers: Readers) -> bool:
    """Whether the framework's attention adds a weight that is the same for all heads."""
    # [heads, rows, columns], perhaps with a batch before: a trained bias is of each head
    has_heads = (weight.shape or ())[-_BIAS_RANK:-2] not in {(), (1,)}
    if has_heads or not is_wide(weight):
        return False
    return _reaches(weight.name, readers, _TO_SCORES, _ATTENTION)


def _reaches(
    name: str,
    readers: Readers,
    through: frozenset[str],
    ends: frozenset[str],
    at: int | None = None,
) -> bool:
    """Whether a tensor reaches an input of one of some operators, through others only."""
    # The bound makes this constant: without it, a tensor that everything reads would be followed
    # through the whole graph, for each weight.
    pending, seen = [name], 0
    while pending:
        name = pending.pop()
        for node in readers.get(name, ()):
            seen += 1
            if node.op_type in ends and (at is None or name in node.inputs[at : at + 1]):
                return True
            if node.onnx_op in through:
                pending += node.writes
            if seen >= _MAX_NODES:
                return False
    return False


_LAYOUT = frozenset(
    {
        *("Cast", "CastLike", "Concat", "Flatten", "Identity", "Reshape"),
        *("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
    }
)
"""Operators that only rearrange the elements of a weight: in pieces, or joined like the gates of a
recurrent layer."""

_FOLLOWED = _LAYOUT | {"Constant", "DequantizeLinear"}
"""Operators whose outputs are traced back to their producer."""

_LITERAL_OPERANDS = _LAYOUT | {
    *("Abs", "Add", "Clip", "Div", "Exp", "Expand", "Max", "Min", "Mul", "Neg"),
    *("Pow", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Tile"),
    "Where",
}
"""Operators whose inputs may be literals of the program as well as parameters."""

_LITERAL_DATA = frozenset({("LayerNormalization", "X")})
"""Operators and the one input that may be: a parameter, where a table of embeddings is normalized
whole."""

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
"""Names that PyTorch's exporters generate for constants that they have folded: masks, tables of
positions, factors. ``torch.export`` names a value after its operator. A parameter keeps its name,
unless it was transposed for a MatMul.
"""

_GATE = re.compile(r"(exp|getitem|select|sigmoid|softmax|softplus|tanh)(_\d+)?")
"""Names that torch.export gives to what is selected or computed of a stored tensor."""

_OF_MODULE = re.compile(r"(?!p2o\.|.*constant)[a-z_]\w*(\.\w+)+", re.IGNORECASE)
"""Names of PyTorch's modules and their tensors: ``blocks.0.act.scale``. Those of Paddle's exporter
for literals look alike: ``p2o.helper.constant.3``."""
_INVERSE_ROOTS = frozenset({"Reciprocal", "rsqrt"})
"""1 / sqrt as one operator or after a Sqrt."""
_SHORT = 8
"""The most elements of a list that is a literal: the scales of a Resize."""

_PACKED_BITS = {
    "GatherBlockQuantized": "bits",
    "MatMulNBits": "bits",
    "QMoE": "expert_weight_bits",
}
"""Operators with several weights per byte, and the attribute of their width."""
# The default of all three (graph/contrib_ops/contrib_defs.cc).
_PACKED_DEFAULT_BITS = 4
_BYTE_BITS = 8


@dataclass(frozen=True, slots=True)
class Parameters:
    """The names of the weights of a model by their role in training, each storage once."""

    trained: tuple[str, ...] = field(repr=False)
    """Floating weights that layers read as parameters."""
    quantized: tuple[str, ...] = field(repr=False)
    """Integer weights of quantized layers, which are not trained."""
    buffers: tuple[str, ...] = field(repr=False)
    """Other weights: running statistics, masks, tables, scales; not small literals."""
    num_parameters: int
    """Elements of ``trained`` and ``quantized``; each packed element counts."""


def parameters(graph: Graph) -> Parameters:
    """Classify the weights of a model, subgraphs included."""
    # A storage that is both trained and quantized somewhere counts as quantized: the integers are
    # what the file stores.
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
    """The producers of tensors that may have to be traced back."""
    followed = [node for node in nodes if node.op_type in _FOLLOWED]
    return {name: node for node in followed for name in node.writes}


@dataclass(slots=True)
class _Search:
    """Traces inputs for parameters back to weights; its mappings are storage -> first name."""

    graph: Graph
    producers: Mapping[str, Node] = field(init=False)
    named_buffers: frozenset[str] = field(init=False)
    """Written as torch.export names them."""
    _readers: Readers | None = None
    _all_producers: Mapping[str, Node] | None = None
    slots: dict[tuple[int, int], Sequence[tuple[int, str]]] = field(default_factory=dict)
    """The result of ``_slots`` by the id of the operator and the number of inputs."""
    trained: dict[str, str] = field(default_factory=dict)
    quantized: dict[str, str] = field(default_factory=dict)
    per_element: dict[str, int] = field(default_factory=dict)
    """Weights per element of packed tensors."""
    buffers: set[str] = field(default_factory=set)
    followed: dict[tuple[int, bool], set[str]] = field(default_factory=dict)
    """The tensors that were traced back, by what decides whether a weight they lead to counts."""
    dequantized: set[str] = field(default_factory=set)
    """The tensors that were traced back from a DequantizeLinear."""
    tables: dict[str, bool] = field(default_factory=dict)
    """Whether a weight is a table, for those that were asked for."""

    def __post_init__(self) -> None:
        self.producers = _producers(self.graph.all_nodes())
        self.named_buffers = named_buffers(self.graph.all_nodes())

    @property
    def readers(self) -> Readers:
        """The readers of all tensors, computed on first use: few models need them."""
        if self._readers is None:
            self._readers = readers_of(self.graph)
        return self._readers

    def visit(self, node: Node) -> None:
        """Classify the weights that one node reads."""
        # Records are shared by all nodes of an operator, so slots are found once for each.
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
                may_be_literal = (node.onnx_op, slot) in _LITERAL_DATA
                may_be_literal |= node.onnx_op in _LITERAL_OPERANDS
                for source in self._sources(node, name):
                    self._add_parameter(node, source, may_be_literal=may_be_literal)

    def _add_parameter(self, node: Node, name: str, *, may_be_literal: bool) -> None:
        producer = self.producers.get(name)
        if producer is not None and producer.onnx_op == "DequantizeLinear":
            # A dequantized weight is stored quantized: it is that tensor which counts, and nothing
            # trains it.
            for source in self._followed(next(iter(producer.inputs), ""), self.dequantized):
                if quantized := self._weight(source):
                    self.quantized.setdefault(quantized.storage_key, quantized.name)
            return
        weight = self._weight(name)
        if weight is None:
            return
        if self._is_trained(node, weight, may_be_literal=may_be_literal):
            self.trained.setdefault(weight.storage_key, weight.name)

    def _is_trained(self, node: Node, weight: Tensor, *, may_be_literal: bool) -> bool:
        """Whether a weight is a floating parameter, and not a literal or table."""
        if weight.dtype is None or not weight.dtype.is_floating:
            return False
        is_named = self.named_buffers and _WORD.sub("_", weight.name) in self.named_buffers
        if is_named or is_of_hook(weight.name, self.graph.tensors) or is_product(node, weight):
            return False
        # In order of certainty: what torch.export lists is a parameter or buffer whatever reads it,
        # then comes the operator that reads it, and only for arithmetic the name and form of the
        # weight.
        is_known = weight.name in self.graph.of_parameters
        if not may_be_literal:
            # A matrix in a MatMul is always a parameter, but a vector may be frequencies.
            if node.op_type in _ATTENTION:
                return is_known or not is_mask_of_attention(weight, self.readers)
            is_layer = node.onnx_op != "MatMul" or is_wide(weight)
            return is_known or is_layer or not self._is_table(weight)
        producer = self.producers.get(weight.name)
        is_literal = producer is not None and producer.onnx_op == "Constant"
        is_folded = is_exporters_name(weight.name)
        has_elements = bool(weight.shape) and weight.num_elements != 1
        is_number = is_literal or not (has_elements or _OF_MODULE.fullmatch(weight.name))
        if _is_gate(node, weight):
            return True
        if is_folded:
            is_operand = self._scales_a_norm(node, weight)
        else:
            # Where torch.export lists every parameter, this is another tensor of the network's.
            is_operand = not self.graph.of_parameters
        return is_known or (is_operand and not is_number and not self._is_table(weight))

    def _scales_a_norm(self, node: Node, weight: Tensor) -> bool:
        """Whether a weight scales a value divided by a root: the scale of a norm.

        The scale of Gemma's RMSNorm is 1 + w; exporters fold the sum and generate a name for it.
        """
        return weight.num_elements != 1 and self._multiplies_normed(node, weight.name)

    def _multiplies_normed(self, node: Node, name: str = "") -> bool:
        """Whether a Mul has, beside a tensor, a value divided by a root."""
        if node.onnx_op != "Mul":
            return False
        if self._all_producers is None:
            self._all_producers = {
                name: each for each in self.graph.all_nodes() for name in each.writes
            }
        producers = self._all_producers
        others = (producers.get(other) for other in node.inputs if other != name)
        normed = next((producer for producer in others if producer is not None), None)
        if normed is None or normed.onnx_op not in {"Div", "Mul"}:
            return False
        factors = (producers.get(factor) for factor in normed.inputs)
        roots = {"Sqrt"} if normed.onnx_op == "Div" else _INVERSE_ROOTS
        return any(factor is not None and factor.op_type in roots for factor in factors)

    def _is_table(self, weight: Tensor) -> bool:
        if weight.name not in self.tables:
            self.tables[weight.name] = is_table(weight, self.readers)
        return self.tables[weight.name]

    def _sources(self, reader: Node, name: str) -> Iterable[str]:
        """The tensors at the start of the chains of layout operators that end in a tensor.

        Left out are those that were added for a node for which the same weights count.
        """
        if name not in self.producers:
            return (name,)
        # An id is not used again here: the graph holds all records.
        key = id(reader.operator), self._multiplies_normed(reader)
        return self._followed(name, self.followed.setdefault(key, set()))

    def _followed(self, name: str, seen: set[str]) -> Iterator[str]:
        # Each tensor is visited once: a chain of Concats of the same tensor would otherwise double
        # at each step, and one whose every node reads parameters cost the square of its length.
        pending = [] if name in seen else [name]
        seen.add(name)
        while pending:
            name = pending.pop()
            producer = self.producers.get(name)
            if producer is None or producer.onnx_op not in _LAYOUT:
                yield name
                continue
            pieces = producer.inputs if producer.onnx_op == "Concat" else producer.inputs[:1]
            pending.extend(piece for piece in pieces if piece not in seen)
            seen.update(pieces)

    def _weight(self, name: str) -> Tensor | None:
        tensor = self.graph.tensors.get(name)
        return tensor if tensor is not None and tensor.role is Role.WEIGHT else None

    def is_sorted(self, weight: Tensor) -> bool:
        """Whether a weight is a trained or quantized parameter."""
        return weight.storage_key in self.trained or weight.storage_key in self.quantized

    def is_literal(self, weight: Tensor) -> bool:
        """Whether a weight is a literal of the program: a shape, axes, a factor.

        These are Constant nodes, integers in Constant nodes however many (positions that a trace
        made constant), a few integers, single elements, and short lists with a generated name.
        """
        if weight.storage_key in self.buffers:
            return False
        producer = self.producers.get(weight.name)
        is_constant = producer is not None and producer.onnx_op == "Constant"
        is_integer = weight.dtype is not None and weight.dtype.is_integer
        if weight.name not in self.graph.values:
            return is_constant and is_integer
        is_short = (weight.num_elements or 0) <= _SHORT or not weight.shape
        is_folded = is_short and is_exporters_name(weight.name)
        return is_constant or is_integer or is_folded or weight.num_elements == 1

    def num_elements(self, name: str) -> int:
        """Elements of a weight, each packed one counted; 0 if its shape is unknown."""
        return (self.graph.tensors[name].num_elements or 0) * self.per_element.get(name, 1)


def _is_gate(node: Node, weight: Tensor) -> bool:
    """Whether a number that torch.export computed of stored ones scales an activation.

    It is an element or a function of a parameter: a weight of a sum, a temperature. Numbers of the
    program have other names, and a buffer of numbers is a table, which an input selects from.
    """
    return node.onnx_op == "Mul" and weight.num_elements == 1 and bool(_GATE.fullmatch(weight.name))


def _slots(operator: OpSpec, num_inputs: int) -> Iterator[tuple[int, str]]:
    """The indices and schema names of the inputs for parameters and buffers."""
    wanted = {*operator.buffers, *operator.quantized, *operator.parameters}
    for index in range(num_inputs):
        slot = operator.input_name(index)
        if slot is not None and slot in wanted:
            yield index, slot


def _weights_per_element(node: Node, weight: Tensor) -> int:
    """The number of weights per element: more than one if the operator packs them into bytes."""
    if node.op_type not in _PACKED_BITS or weight.dtype is not DType.UINT8:
        return 1
    bits = node.attributes.get(_PACKED_BITS[node.op_type], _PACKED_DEFAULT_BITS)
    return _BYTE_BITS // bits if isinstance(bits, int) and 0 < bits <= _BYTE_BITS else 1
