"""What the forward pass of a graph leaves behind for its backward pass, node by node.

Each node on the way back keeps the inputs and outputs that its record lists, and what its formula
makes besides: a mask, indices, statistics. Graph inputs and weights are held anyway and add
nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxmem.model.graph import DType, Graph, Node, record
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import Call, Gradient, Operand, known_dims
from onnxmem.runtimes.torch.precision import Precision
from onnxmem.runtimes.torch.recurrent_layer import RECURRENT, Layer, layer_of
from onnxmem.runtimes.torch.storages import View
from onnxmem.runtimes.torch.strides import Dims


@record
class Kept:
    """What one node keeps from forward to backward."""

    storages: tuple[str, ...] = ()
    """First tensors of the storages that hold what is kept."""
    copies: tuple[tuple[str, int | None], ...] = ()
    """(label, bytes) of operands' copies that are kept in their place."""
    passing_copies: tuple[tuple[str, int | None], ...] = ()
    """(label, bytes) of copies that are gone when the node is done."""
    extra_bytes: int | None = 0
    inner: tuple[tuple[str, int | None], ...] = ()
    """(tensor, bytes) of what the node's subgraphs make, all of it."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A graph as an eager framework runs it; sizes are bytes in the precision asked for."""

    graph: Graph
    parameters: Parameters
    precision: Precision
    views: Mapping[str, View]
    storages: Mapping[str, str]
    """Tensors by the storage that they are in, where a node of the step allocates it."""
    reached: frozenset[str]
    """Tensors that require a gradient."""
    way_back: tuple[Node, ...]
    """The nodes that a backward pass goes through, in forward order."""
    constants: frozenset[str]
    """What a framework works out before the step: it takes no memory in it."""
    packed: Mapping[str, tuple[str, ...]]
    """Weights that nodes put together, by the parameters that the framework reads instead."""
    cached: frozenset[str]
    """The parameters' copies that autocast holds as long as it is on."""
    callers: Mapping[str, str]
    """Autocast's casts by the nodes that they are made for."""
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """By node."""
    assumed_nodes: tuple[str, ...] = ()
    """Nodes without a record, and those with subgraphs: everything they read or make is kept."""
    sizes: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    """Bytes of the tensors that were asked for, by shape and type: a large graph has few."""
    gradients: dict[tuple[int, int], Gradient] = field(default_factory=dict)
    """How gradients are made, by operator, as its identity, and input, as far as asked for."""
    widths: dict[DType | None, int] = field(default_factory=dict)
    """Bits per element by type, as far as they were asked for."""

    def dims(self, name: str) -> Dims | None:
        """The dims of a tensor, if all are known."""
        return known_dims(self.graph.tensors[name].shape)

    def operand(self, name: str) -> Operand:
        """A tensor as formulas see it, in the precision of activations."""
        tensor = self.graph.tensors[name]
        bits = self.precision.bits_in_step(tensor)
        return Operand(tensor.shape, bits, self.graph.values.get(name))

    def size_bytes(self, name: str) -> int | None:
        """Bytes of a tensor as the step holds it."""
        tensor = self.graph.tensors[name]
        key = tensor.shape, tensor.dtype
        if key not in self.sizes:
            self.sizes[key] = self.operand(name).size_bytes
        return self.sizes[key]

    def bits(self, name: str) -> int:
        """Bits per element of a tensor as the step holds it, and of its gradient; 0 is unknown."""
        tensor = self.graph.tensors[name]
        if tensor.dtype not in self.widths:
            self.widths[tensor.dtype] = self.precision.bits_in_step(tensor) or 0
        return self.widths[tensor.dtype]

    def call(self, node: Node) -> Call:
        """A node as its formulas see it."""
        inputs, outputs = (
            tuple(self.operand(name) if name else None for name in names)
            for names in (node.inputs, node.outputs)
        )
        return Call(inputs, outputs, node.attributes)

    def layer(self, node: Node) -> Layer | None:
        """The sizes of a recurrent node; ``None`` where it is none or one is unknown."""
        if node.op_type not in RECURRENT or node.domain or node.subgraphs:
            return None
        return layer_of(node.onnx_op, self.call(node))

    def makes_storage(self, name: str) -> bool:
        """Whether a node that writes a tensor allocates what goes on: no view, constant or copy."""
        return self.storages.get(name) == name and name not in self.cached
