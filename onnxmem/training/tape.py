"""What the forward pass of a graph leaves behind for its backward pass, node by node.

Each node on the way back keeps the inputs and outputs that its record lists, and what its formula
makes besides: a mask, indices, statistics. Graph inputs and weights are held anyway and add
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from onnxmem.model import DType, Graph, Node, Role
from onnxmem.model.parameters import Parameters
from onnxmem.ops import UNKNOWN
from onnxmem.ops.spec import Call, Gradient, Operand, OpSpec, known_dims, nothing
from onnxmem.records import record
from onnxmem.training.autocast import LISTS
from onnxmem.training.casting import Autocast, CastGraph, with_casts
from onnxmem.training.constants import constant_tensors
from onnxmem.training.gradients import backward_nodes, requiring_gradient
from onnxmem.training.matmul import MATRIX_RANK, copied_elements, is_product
from onnxmem.training.packing import packed_weights
from onnxmem.training.precision import Precision
from onnxmem.training.recurrent_layer import RECURRENT, Layer, layer_of
from onnxmem.training.storages import View, is_identity, views
from onnxmem.training.strides import Dims, is_row_major


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
    looks = views(graph, in_place=in_place)
    empty = Tape(
        graph=graph,
        parameters=parameters,
        precision=precision,
        views=looks,
        storages=_allocated(graph, looks, constants.union(packed)),
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


def _allocated(graph: Graph, looks: Mapping[str, View], known: frozenset[str]) -> Mapping[str, str]:
    """The storages of tensors that nodes allocate: not of inputs, weights and what is known."""
    tensors = graph.tensors
    return {
        name: look.storage
        for name, look in looks.items()
        if tensors[look.storage].role is Role.ACTIVATION and look.storage not in known
    }


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


_Slot = tuple[slice, slice]
"""The places of a schema's slot among a node's inputs, and among its outputs."""


@dataclass(slots=True)
class _Ledger:
    tape: Tape
    assumed: list[str] = field(default_factory=list)
    slots: dict[int, tuple[tuple[_Slot, _Slot | None], ...]] = field(default_factory=dict)
    """What each operator, as its identity, lists as kept, and what must require a gradient."""

    def keep(self, node: Node) -> Kept:
        """What one node's backward formula reads."""
        if is_identity(self.tape.graph, node):
            return Kept()
        if node.operator is UNKNOWN or node.subgraphs:
            return self._everything(node)
        layer = self.tape.layer(node)
        if layer is not None:
            return self._layer(node, layer)
        names = self._saved(node)
        extra_bytes = self._extra_bytes(node)
        found = self._copies(node) if is_product(node) else {}
        if not found:
            return Kept(self._storages(names), extra_bytes=extra_bytes)
        return Kept(
            self._storages(name for name in names if name not in found),
            tuple(found[name] for name in names if name in found),
            tuple(copy for name, copy in found.items() if name not in names),
            extra_bytes,
        )

    def _saved(self, node: Node) -> tuple[str, ...]:
        """Name the tensors that a node's record lists as kept, given what requires a gradient."""
        operator = node.operator
        slots = self.slots.get(id(operator))
        if slots is None:
            slots = self.slots[id(operator)] = tuple(_saved_slots(operator))
        reached = self.tape.reached
        names: tuple[str, ...] = ()
        for slot, if_grad in slots:
            if if_grad is None or not reached.isdisjoint(_operands(node, if_grad)):
                names += _operands(node, slot)
        return tuple(dict.fromkeys(names)) if len(names) > 1 else names

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
        storages = self.tape.storages
        found = [storages[name] for name in names if name in storages]
        return tuple(dict.fromkeys(found) if len(found) > 1 else found)

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
        left, right = node.inputs[:2]
        found = ((left, self._copy(left, right)), (right, self._copy(right, left)))
        return {
            name: (f"{name} as {node.name} reads it", size)
            for name, size in found
            if size is not None
        }

    def _copy(self, name: str, other: str) -> int | None:
        mine = self.tape.dims(name)
        if mine is None or len(mine) <= MATRIX_RANK:
            return None
        strides, others = self.tape.views[name].strides, self.tape.dims(other)
        if others is None or strides is None:
            return None
        count = copied_elements(mine, strides, others)
        if count is None:
            return None
        return replace(self.tape.operand(name), shape=(count,)).size_bytes


def _saved_slots(operator: OpSpec) -> Iterator[tuple[_Slot, _Slot | None]]:
    for saved in operator.saved:
        if_grad = None if saved.if_grad is None else _slot(operator, saved.if_grad)
        yield _slot(operator, saved.name), if_grad


def _slot(operator: OpSpec, name: str) -> _Slot:
    return _places(name, operator.inputs), _places(name, operator.outputs)


def _places(name: str, slots: tuple[str, ...]) -> slice:
    """Where the operands of a slot stand, a variadic one's too; nowhere if there is none."""
    if name in slots:
        place = slots.index(name)
        return slice(place, place + 1)
    return slice(slots.index(f"*{name}"), None) if f"*{name}" in slots else slice(0)


def _operands(node: Node, slot: _Slot) -> tuple[str, ...]:
    """Name the operands at a slot, the inputs', or the outputs' where no input is there."""
    inputs, outputs = slot
    names = node.inputs[inputs]
    found = tuple(filter(None, names)) if "" in names else names
    return found or tuple(filter(None, node.outputs[outputs]))
