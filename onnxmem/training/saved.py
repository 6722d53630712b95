"""Saved activations: what the forward pass keeps for the backward pass.

Each node on the way back keeps the inputs and outputs that its record lists, and what its formula
makes besides: a mask, indices, statistics. Storages count once, however many nodes and views keep
them. The loop holds the outputs of the graph as well. Graph inputs and weights are held anyway and
add nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from onnxmem.model import Graph, Node, Role, Tensor
from onnxmem.model.parameters import Parameters
from onnxmem.ops import UNKNOWN
from onnxmem.ops.spec import Call, Operand, Saved, known_dims
from onnxmem.sums import sum_known
from onnxmem.training.composites import silu_inputs
from onnxmem.training.gradients import backward_nodes, requiring_gradient
from onnxmem.training.matmul import copied_elements
from onnxmem.training.precision import Precision
from onnxmem.training.storages import View, is_identity, views


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """What is kept for the backward pass; sizes are bytes in the precision asked for."""

    tensors: tuple[tuple[str, int | None], ...]
    """(first tensor of the storage, bytes); ``None`` is unknown."""
    extras: tuple[tuple[str, int | None], ...]
    """(node, bytes that its backward formula keeps beside tensors)."""
    assumed_nodes: tuple[str, ...]
    """Nodes without a record, and those with subgraphs: everything they read or make is kept."""

    @property
    def size_bytes(self) -> int | None:
        """Sum of what is known, a lower bound where something is not; ``None`` if nothing is."""
        return sum_known(size for _, size in (*self.tensors, *self.extras))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Tensors and nodes that the sum leaves out."""
        return tuple(name for name, size in (*self.tensors, *self.extras) if size is None)


def saved_activations(
    graph: Graph, parameters: Parameters, precision: Precision
) -> SavedActivations:
    """Work out what the forward pass of a graph keeps, without a loss."""
    reached = requiring_gradient(graph, parameters)
    ledger = _Ledger(graph, precision, reached, views(graph), silu_inputs(graph))
    for node in backward_nodes(graph, reached):
        ledger.keep_node(node)
    for name in graph.outputs:
        ledger.keep(name)
    extras = {name: size for name, size in ledger.extras.items() if size != 0}
    return SavedActivations(
        tuple(ledger.storages.items()), tuple(extras.items()), tuple(ledger.assumed)
    )


@dataclass(slots=True)
class _Ledger:
    """Collects storages and extra bytes node by node."""

    graph: Graph
    precision: Precision
    reached: frozenset[str]
    views: Mapping[str, View]
    silu_inputs: Mapping[str, str]
    storages: dict[str, int | None] = field(default_factory=dict)
    extras: dict[str, int | None] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    def keep_node(self, node: Node) -> None:
        """Keep what one node's backward formula reads."""
        if is_identity(self.graph, node):
            return
        if node.operator is UNKNOWN or node.subgraphs:
            self._keep_everything(node)
            return
        if node.name in self.silu_inputs:
            self.keep(self.silu_inputs[node.name])
            return
        for name in _saved(node, self.reached):
            copy = self._matmul_copy(node, name)
            if copy is None:
                self.keep(name)
            else:
                self.storages[f"{name} as {node.name} reads it"] = copy
        self.extras[node.name] = node.operator.saved_extra_bytes(self._call(node))

    def keep(self, name: str) -> None:
        """Keep the storage of a tensor."""
        storage = self.views[name].storage
        tensor = self.graph.tensors[storage]
        if tensor.role is Role.ACTIVATION or self._is_cast(tensor):
            self.storages[storage] = self._size_bytes(tensor)

    def _is_cast(self, tensor: Tensor) -> bool:
        """Whether layers read a 16-bit copy of a graph input, and keep the copy."""
        is_floating = tensor.dtype is not None and tensor.dtype.is_floating
        has_copies = self.precision.weight_copy_bits > 0
        return tensor.role is Role.INPUT and is_floating and has_copies

    def _keep_everything(self, node: Node) -> None:
        """Keep every floating tensor that a node reads or makes, and all that its bodies make."""
        self.assumed.append(node.name)
        for name in (*node.reads, *node.writes):
            tensor = self.graph.tensors[name]
            if tensor.dtype is None or tensor.dtype.is_floating:
                self.keep(name)
        for _, inner in node.subgraphs:
            for within in inner.all_nodes():
                self.storages.update(
                    (name, self._size_bytes(self.graph.tensors[name])) for name in within.writes
                )

    def _matmul_copy(self, node: Node, name: str) -> int | None:
        """Bytes of the copy of an operand that a MatMul keeps in its place; ``None``: no copy."""
        if node.onnx_op != "MatMul":
            return None
        other = node.inputs[1 if name == node.inputs[0] else 0]
        strides = self.views[name].strides
        mine, others = (known_dims(self.graph.tensors[text].shape) for text in (name, other))
        if mine is None or others is None or strides is None:
            return None
        count = copied_elements(mine, strides, others)
        if count is None:
            return None
        operand = replace(self._operand(self.graph.tensors[name]), shape=(count,))
        return operand.size_bytes

    def _size_bytes(self, tensor: Tensor) -> int | None:
        return self._operand(tensor).size_bytes

    def _operand(self, tensor: Tensor) -> Operand:
        operand = tensor.operand(self.graph.values.get(tensor.name))
        return self.precision.held(operand, tensor.dtype, self.precision.activation_bits)

    def _call(self, node: Node) -> Call:
        """The node as its formulas see it, its operands in the precision of activations."""
        inputs, outputs = (
            tuple(self._operand(self.graph.tensors[name]) if name else None for name in names)
            for names in (node.inputs, node.outputs)
        )
        return Call(inputs, outputs, node.attributes)


def _saved(node: Node, reached: frozenset[str]) -> Iterator[str]:
    """Name the tensors that a node's record lists as kept, given what requires a gradient."""
    for saved in node.operator.saved:
        if _is_kept(node, saved, reached):
            yield from _operands(node, saved.name)


def _is_kept(node: Node, saved: Saved, reached: frozenset[str]) -> bool:
    if saved.if_grad is None:
        return True
    return not reached.isdisjoint(_operands(node, saved.if_grad))


def _operands(node: Node, slot: str) -> tuple[str, ...]:
    """Name the operands at a slot of the schema, an input's or an output's, variadic ones too."""
    operator = node.operator
    found = [n for i, n in enumerate(node.inputs) if n and operator.input_name(i) == slot]
    if not found:
        found = [n for i, n in enumerate(node.outputs) if n and operator.output_name(i) == slot]
    return tuple(found)
