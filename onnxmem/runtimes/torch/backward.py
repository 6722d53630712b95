"""The backward pass as PyTorch's autograd engine takes it (torch/csrc/autograd/engine.cpp).

Nodes run in the reverse of the order in which the forward pass made them. A node's formula makes
the gradients of its inputs while the outputs' gradients and all that it kept are alive; then these
are let go of, and only then each gradient goes to its reader: it is held until the reader runs, or
added to what is held already, in place where nothing else looks into that. A parameter's gradient
stays to the end of the step.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from onnxmem.model.graph import Node, Role
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.constants import data_reads
from onnxmem.runtimes.torch.forward import Storages
from onnxmem.runtimes.torch.heap import Heap
from onnxmem.runtimes.torch.making import input_gradients
from onnxmem.runtimes.torch.recurrent import layer_gradients
from onnxmem.runtimes.torch.recurrent_layer import RECURRENT, Layer
from onnxmem.runtimes.torch.strides import is_row_major, like
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.runtimes.torch.tensors import GradientHeap, GradientTensor, size_bytes


def _all_of(size_bytes: int) -> int:
    return size_bytes


@dataclass(slots=True)
class Backward:
    """A backward pass under way."""

    storages: Storages
    has_gradients: bool = False
    """Whether parameters hold gradients already, to which new ones are added."""
    share: Callable[[int], int] = _all_of
    """The part of a gradient's bytes that a rank keeps."""
    waiting: dict[str, GradientTensor] = field(default_factory=dict)
    """Gradients by the tensor that they are of; of a parameter, by its storage."""
    gradients: GradientHeap = field(init=False)
    """Where gradients are made."""
    leaves: dict[str, str] = field(init=False)
    """The storages of the parameters, by each name that they have."""
    left: Counter[str] = field(init=False)
    """Gradients that are still to come, by parameter."""

    def __post_init__(self) -> None:
        tape = self.tape
        self.gradients = GradientHeap(self.heap)
        reached = map(tape.graph.tensors.__getitem__, tape.reached)
        self.leaves = {each.name: each.storage_key for each in reached if each.role is Role.WEIGHT}
        read = chain.from_iterable(map(data_reads, tape.way_back))
        if tape.packed:
            read = chain.from_iterable(tape.packed.get(name, (name,)) for name in read)
        self.left = Counter(map(self.leaves.__getitem__, filter(self.leaves.__contains__, read)))

    @property
    def tape(self) -> Tape:
        """What the forward pass left."""
        return self.storages.tape

    @property
    def heap(self) -> Heap:
        """Where all of it is allocated."""
        return self.storages.heap

    def run(self, nodes: Iterable[Node]) -> None:
        """Go back through nodes, given in forward order."""
        waiting = self.waiting
        for node in reversed(tuple(nodes)):
            self.heap.enter_node(node.name)
            arrived = {name: waiting.pop(name) for name in node.writes if name in waiting}
            made: list[tuple[str, GradientTensor]] = []
            layer = self.tape.layer(node) if node.op_type in RECURRENT else None
            if arrived and layer is None:
                made = input_gradients(self.tape, self.gradients, node, arrived)
            elif arrived and layer is not None:
                made = self._through(node, layer, arrived)
            self.storages.forget(node)
            for name, tensor in made:
                self.hand_over(name, tensor)

    def _through(
        self, node: Node, layer: Layer, arrived: dict[str, GradientTensor]
    ) -> list[tuple[str, GradientTensor]]:
        """Make the gradients of a recurrent node's inputs, and let go of its outputs'."""
        own = self.storages.own.get(node.name, [])
        made = layer_gradients(self.tape, self.gradients, node, layer, own)
        for tensor in arrived.values():
            self.gradients.drop(tensor)
        return made

    def hand_over(self, name: str, tensor: GradientTensor) -> None:
        """Give a gradient to whoever made the tensor, or to the parameter."""
        key = self.leaves.get(name, name)
        held = self.waiting.get(key)
        self.waiting[key] = tensor if held is None else self._sum(name, held, tensor)
        if name in self.leaves:
            self.left[key] -= 1
            if self.left[key] == 0:
                self._settle(key, name)

    def _sum(self, name: str, held: GradientTensor, new: GradientTensor) -> GradientTensor:
        if self.gradients.is_writable(held):
            self.gradients.drop(new)
            return held
        strides = None if held.dims is None else like(held.dims, held.strides)
        total = self.gradients.make(f"gradient of {name}", held.dims, held.bits, strides)
        self.gradients.drop(held)
        self.gradients.drop(new)
        return total

    def _settle(self, key: str, name: str) -> None:
        """Make a gradient the parameter's own: taken over if nothing shares it, else copied."""
        tensor = self.waiting[key]
        if self.has_gradients:
            self.gradients.drop(self.waiting.pop(key))
            return
        bits = self.tape.precision.weight_bits
        is_laid_out = tensor.dims is None or is_row_major(tensor.dims, tensor.strides)
        if tensor.holders > 1 or not is_laid_out or tensor.bits != bits:
            tensor = self.gradients.make(name, tensor.dims, bits)
            self.gradients.drop(self.waiting[key])
            self.waiting[key] = tensor
        label = f"gradient of {name}"
        whole_bytes = size_bytes(tensor.dims, bits)
        share_bytes = self.share(whole_bytes)
        if share_bytes == whole_bytes:
            self.heap.relabel(tensor.block, label, Category.GRADIENT)
        else:
            self.heap.allocate(label, Category.GRADIENT, share_bytes)
            self.gradients.drop(self.waiting.pop(key))
