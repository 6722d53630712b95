"""What each node on the way back keeps: what its record lists, copies, and what formulas make."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from onnxmem.model.graph import Node
from onnxmem.ops.registry import UNKNOWN
from onnxmem.ops.spec import OpSpec, nothing
from onnxmem.runtimes.torch.matmul import MATRIX_RANK, copied_elements, is_product
from onnxmem.runtimes.torch.recurrent_layer import Layer
from onnxmem.runtimes.torch.storages import is_identity
from onnxmem.runtimes.torch.strides import is_row_major
from onnxmem.runtimes.torch.tape import Kept, Tape

_Slot = tuple[slice, slice]
"""The places of a schema's slot among a node's inputs, and among its outputs."""


@dataclass(slots=True)
class Ledger:
    """Mutable: enters what nodes keep, one after another."""

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
