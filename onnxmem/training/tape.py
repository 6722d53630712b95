"""What the forward pass of a graph leaves behind for its backward pass, node by node.

Each node on the way back keeps the inputs and outputs that its record lists, and what its formula
makes besides: a mask, indices, statistics. Graph inputs and weights are held anyway and add
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from onnxmem.model import Graph, Node, Role
from onnxmem.model.parameters import Parameters
from onnxmem.ops import UNKNOWN
from onnxmem.ops.spec import Call, Operand, Saved, known_dims, nothing
from onnxmem.training.autocast import LISTS
from onnxmem.training.casting import Autocast, CastGraph, with_casts
from onnxmem.training.constants import constant_tensors
from onnxmem.training.gradients import backward_nodes, requiring_gradient
from onnxmem.training.matmul import copied_elements, is_product
from onnxmem.training.packing import packed_weights
from onnxmem.training.precision import Precision
from onnxmem.training.recurrent_layer import Layer, is_recurrent, layer_of
from onnxmem.training.storages import View, is_identity, views
from onnxmem.training.strides import Dims, is_row_major


@dataclass(frozen=True, slots=True)
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
    sizes: dict[str, int | None] = field(default_factory=dict)
    """Bytes of the tensors that were asked for."""

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
        if name not in self.sizes:
            self.sizes[name] = self.operand(name).size_bytes
        return self.sizes[name]

    def bits(self, name: str) -> int:
        """Bits per element of a tensor as the step holds it, and of its gradient; 0 is unknown."""
        return self.precision.bits_in_step(self.graph.tensors[name]) or 0

    def call(self, node: Node) -> Call:
        """A node as its formulas see it."""
        inputs, outputs = (
            tuple(self.operand(name) if name else None for name in names)
            for names in (node.inputs, node.outputs)
        )
        return Call(inputs, outputs, node.attributes)

    def layer(self, node: Node) -> Layer | None:
        """The sizes of a recurrent node; ``None`` where it is none or one is unknown."""
        if node.subgraphs or not is_recurrent(node.onnx_op):
            return None
        return layer_of(node.onnx_op, self.call(node))

    def makes_storage(self, name: str) -> bool:
        """Whether a node that writes a tensor allocates what goes on: no view, constant or copy."""
        is_own = self.views[name].storage == name and name not in self.cached
        return is_own and self.allocates(name)

    def allocates(self, storage: str) -> bool:
        """Whether a storage is allocated by a node of the step."""
        is_made = self.graph.tensors[storage].role is Role.ACTIVATION
        return is_made and storage not in self.constants and storage not in self.packed


def tape_of(
    graph: Graph,
    parameters: Parameters,
    precision: Precision,
    outputs: tuple[str, ...],
    *,
    in_place: bool = False,
) -> Tape:
    """Work out what the forward pass keeps where a loss reads ``outputs``.

    ``in_place``: activations write over their input where autograd allows it.
    """
    constants = constant_tensors(graph, parameters)
    run = _as_run(graph, parameters, precision, constants)
    graph, packed = run.graph, run.packed
    reached = requiring_gradient(graph, parameters)
    way_back = tuple(
        node
        for node in backward_nodes(graph, reached, outputs)
        if not packed or not packed.keys() >= set(node.writes)
    )
    empty = Tape(
        graph=graph,
        parameters=parameters,
        precision=precision,
        views=views(graph, in_place=in_place),
        reached=reached,
        way_back=way_back,
        constants=constants,
        packed=packed,
        cached=run.cached,
        callers=run.callers,
    )
    ledger = _Ledger(empty)
    kept = {node.name: ledger.keep(node) for node in way_back}
    return replace(empty, kept=kept, assumed_nodes=tuple(ledger.assumed))


def _as_run(
    graph: Graph, parameters: Parameters, precision: Precision, constants: frozenset[str]
) -> CastGraph:
    """The graph with the casts that the precision makes, if it makes any."""
    packed = packed_weights(graph, parameters)
    if precision.autocast is None:
        return CastGraph(graph, frozenset(), {}, packed)
    autocast = Autocast(
        low=precision.autocast,
        lists=LISTS[precision.autocast_device],
        trained=frozenset(graph.tensors[name].storage_key for name in parameters.trained),
        constants=constants,
        packed=packed,
    )
    return with_casts(graph, autocast)


@dataclass(slots=True)
class _Ledger:
    tape: Tape
    assumed: list[str] = field(default_factory=list)

    def keep(self, node: Node) -> Kept:
        """What one node's backward formula reads."""
        if is_identity(self.tape.graph, node):
            return Kept()
        if node.operator is UNKNOWN or node.subgraphs:
            return self._everything(node)
        layer = self.tape.layer(node)
        if layer is not None:
            return self._layer(node, layer)
        names = tuple(dict.fromkeys(_saved(node, self.tape.reached)))
        found = self._copies(node)
        return Kept(
            self._storages(name for name in names if name not in found),
            tuple(found[name] for name in names if name in found),
            tuple(copy for name, copy in found.items() if name not in names),
            self._extra_bytes(node),
        )

    def _extra_bytes(self, node: Node) -> int | None:
        formula = node.operator.saved_extra_bytes
        return 0 if formula is nothing else formula(self.tape.call(node))

    def _layer(self, node: Node, layer: Layer) -> Kept:
        """What a recurrent layer keeps: X or copies of it, the first states and each step's.

        Its matrices too, where they are copies that autocast made.
        """
        data = node.inputs[0]
        dims, strides = self.tape.dims(data), self.tape.views[data].strides
        copies_input = dims is not None and not is_row_major(dims, strides)
        passing_bytes = layer.passing_bytes(writes_output=bool(node.outputs[0]))
        packed = self.tape.packed
        matrices = (each for name in node.inputs[1:3] for each in packed.get(name, (name,)))
        return Kept(
            self._storages((*(() if copies_input else (data,)), *matrices)),
            layer.blocks_of(node.name, copies_input=copies_input),
            ((f"gates of {node.name}", passing_bytes),),
        )

    def _storages(self, names: Iterable[str]) -> tuple[str, ...]:
        storages = (self.tape.views[name].storage for name in names)
        return tuple(dict.fromkeys(name for name in storages if self.tape.allocates(name)))

    def _everything(self, node: Node) -> Kept:
        """Keep every floating tensor that a node reads or makes, and all that its bodies make."""
        self.assumed.append(node.name)
        touched = [self.tape.graph.tensors[name] for name in (*node.reads, *node.writes)]
        floating = (each.name for each in touched if each.dtype is None or each.dtype.is_floating)
        inner = tuple(
            (name, self.tape.size_bytes(name))
            for _, body in node.subgraphs
            for within in body.all_nodes()
            for name in within.writes
        )
        return Kept(storages=self._storages(floating), inner=inner)

    def _copies(self, node: Node) -> dict[str, tuple[str, int | None]]:
        """The operands that a MatMul copies: (label, bytes) by name."""
        if not is_product(node):
            return {}
        left, right = node.inputs[:2]
        found = ((left, self._copy(left, right)), (right, self._copy(right, left)))
        return {
            name: (f"{name} as {node.name} reads it", size)
            for name, size in found
            if size is not None
        }

    def _copy(self, name: str, other: str) -> int | None:
        strides = self.tape.views[name].strides
        mine, others = self.tape.dims(name), self.tape.dims(other)
        if mine is None or others is None or strides is None:
            return None
        count = copied_elements(mine, strides, others)
        if count is None:
            return None
        return replace(self.tape.operand(name), shape=(count,)).size_bytes


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
    found = _at_slot(slot, operator.inputs, node.inputs)
    return found or _at_slot(slot, operator.outputs, node.outputs)


def _at_slot(slot: str, slots: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Name the operands at one of some slots."""
    if slot in slots:
        place = slots.index(slot)
        found = names[place : place + 1]
    elif f"*{slot}" in slots:
        found = names[slots.index(f"*{slot}") :]
    else:
        return ()
    return tuple(name for name in found if name)
