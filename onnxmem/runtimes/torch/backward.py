"""The backward pass as PyTorch's autograd engine runs it (torch/csrc/autograd/engine.cpp).

Nodes run in the reverse of their forward order. A node's formula computes the gradients of its
inputs while the outputs' gradients and its saved tensors are alive; then these are released, and
each gradient is passed to the node that produced the input: it is held until that node runs, or
added to what is held already. A parameter's gradient stays to the end of the step.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from onnxmem.model.graph import Node, Role
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.forward import Storages, run_convolution
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.gradients import (
    GradientHeap,
    GradientTensor,
    fused_layers_gradients,
    input_gradients,
    layer_gradients,
    size_bytes,
)
from onnxmem.runtimes.torch.memory import Heap
from onnxmem.runtimes.torch.recurrent import RECURRENT, Layer
from onnxmem.runtimes.torch.strides import CONVOLUTIONS, Dims, is_row_major, like
from onnxmem.runtimes.torch.tape import Tape


def _whole(size_bytes: int, _dims: Dims | None) -> int:
    return size_bytes


@dataclass(slots=True)
class Backward:
    """A backward pass in progress."""

    storages: Storages
    previous: Mapping[str, int] = field(default_factory=dict)
    """The gradients that parameters have already, by storage: new ones are added to them."""
    shard: Callable[[int, Dims | None], int] = _whole
    """The part of a gradient's bytes that a rank keeps."""
    units: Mapping[str, int] = field(default_factory=dict)
    """By the storage of a parameter, where gradients of a unit are reduced together."""
    unreduced: dict[int, list[tuple[str, str, GradientTensor]]] = field(default_factory=dict)
    """Whole gradients by unit: the storage and a name of the parameter, and the tensor."""
    pending: dict[str, GradientTensor] = field(default_factory=dict)
    """Accumulated gradients by tensor; of a parameter by its storage, as tied weights are one."""
    gradients: GradientHeap = field(init=False)
    leaves: dict[str, str] = field(init=False)
    """The storages of the parameters, by each of their names."""
    num_missing: Counter[str] = field(init=False)
    """How many gradients of each parameter are still to be computed."""

    def __post_init__(self) -> None:
        tape = self.tape
        self.gradients = GradientHeap(self.heap)
        tensors = map(tape.graph.tensors.__getitem__, tape.requires_grad)
        self.leaves = {each.name: each.storage_key for each in tensors if each.role is Role.WEIGHT}
        read = chain.from_iterable(map(data_reads, tape.backward_nodes))
        if tape.packed:
            read = chain.from_iterable(tape.packed.get(name, (name,)) for name in read)
        leaf_reads = filter(self.leaves.__contains__, read)
        self.num_missing = Counter(map(self.leaves.__getitem__, leaf_reads))

    @property
    def tape(self) -> Tape:
        """What the forward pass saved."""
        return self.storages.tape

    @property
    def heap(self) -> Heap:
        """Where everything is allocated."""
        return self.storages.heap

    def run(self, nodes: Iterable[Node]) -> None:
        """Run the backward formulas of nodes, which are given in forward order."""
        # Engine::evaluate_function: call_function returns all gradients, then release_variables
        # frees what the node saved, and only then gradients enter the input buffers of the next
        # nodes. So saved tensors and all new gradients are alive together.
        pending = self.pending
        for node in reversed(tuple(nodes)):
            self.heap.enter_node(node.name)
            incoming = {name: pending.pop(name) for name in node.writes if name in pending}
            gradients: list[tuple[str, GradientTensor]] = []
            layer = self.tape.layer(node) if node.op_type in RECURRENT else None
            fused = self.tape.fused_layers(node) if incoming else None
            if fused is not None:
                gradients = fused_layers_gradients(self.tape, self.gradients, node, fused, incoming)
            elif incoming and layer is None:
                gradients = input_gradients(self.tape, self.gradients, node, incoming)
                if node.op_type in CONVOLUTIONS:
                    run_convolution(self.storages, node)
            elif incoming and layer is not None:
                gradients = self._run_recurrent(node, layer, incoming)
            self.storages.release_saved(node)
            for name, tensor in gradients:
                self.accumulate(name, tensor)

    def _run_recurrent(
        self, node: Node, layer: Layer, incoming: dict[str, GradientTensor]
    ) -> list[tuple[str, GradientTensor]]:
        """The gradients of a recurrent node's inputs; its outputs' are released."""
        blocks = self.storages.saved_blocks.get(node.name, [])
        gradients = layer_gradients(self.tape, self.gradients, node, layer, blocks)
        for tensor in incoming.values():
            self.gradients.drop(tensor)
        return gradients

    def accumulate(self, name: str, tensor: GradientTensor) -> None:
        """Add a gradient to those of a tensor; a parameter's last one completes its gradient."""
        key = self.leaves.get(name, name)
        accumulated = self.pending.get(key)
        if accumulated is not None:
            tensor = self._sum(name, accumulated, tensor)
        self.pending[key] = tensor
        if name in self.leaves:
            self.num_missing[key] -= 1
            if self.num_missing[key] == 0:
                self._assign(key, name)

    def _sum(self, name: str, accumulated: GradientTensor, new: GradientTensor) -> GradientTensor:
        # InputBuffer::accumulate of torch/csrc/autograd/input_buffer.cpp: in place into the older
        # gradient if nothing else can see that, else a new tensor while both are alive.
        if self.gradients.can_accumulate_into(accumulated):
            self.gradients.drop(new)
            return accumulated
        dims = accumulated.dims
        strides = None if dims is None else like(dims, accumulated.strides)
        total = self.gradients.new(f"gradient of {name}", dims, accumulated.bits, strides)
        self.gradients.drop(accumulated)
        self.gradients.drop(new)
        return total

    def _assign(self, key: str, name: str) -> None:
        """Make a gradient the parameter's ``grad``."""
        # AccumulateGrad::accumulateGrad of torch/csrc/autograd/functions/accumulate_grad.h. An
        # existing `grad` is added to in place. Without one the new gradient is stolen if nothing
        # else refers to it and its layout is the parameter's (obeys_layout_contract), else cloned.
        tensor = self.pending[key]
        bits = self.tape.precision.weight_bits
        has_parameter_layout = tensor.dims is None or is_row_major(tensor.dims, tensor.strides)
        is_stolen = tensor.num_owners == 1 and has_parameter_layout and tensor.bits == bits
        if key in self.units:
            whole = self.pending.pop(key)
            self.heap.relabel(whole.block, f"gradient of {name}", Category.GRADIENT)
            self.unreduced.setdefault(self.units[key], []).append((key, name, whole))
            return
        whole_bytes = size_bytes(tensor.dims, bits)
        shard_bytes = self.shard(whole_bytes, tensor.dims)
        if key in self.previous:
            # The first step has none to add to.
            if is_stolen and shard_bytes == whole_bytes:
                self.heap.keep_first(tensor.block)
            else:
                self.heap.make_first(self.previous[key])
            self.gradients.drop(self.pending.pop(key))
            return
        if not is_stolen:
            tensor = self.gradients.new(name, tensor.dims, bits)
            self.gradients.drop(self.pending[key])
            self.pending[key] = tensor
        label = f"gradient of {name}"
        if shard_bytes == whole_bytes:
            self.heap.relabel(tensor.block, label, Category.GRADIENT)
        else:
            # Reduce-scattered: the rank's shard is a tensor of its own, and the whole is freed.
            self.heap.allocate(label, Category.GRADIENT, shard_bytes)
            self.gradients.drop(self.pending.pop(key))

    def reduce(self, unit: int) -> None:
        """Free a unit's whole gradients; the rank keeps its shards of their sum."""
        for key, name, tensor in self.unreduced.pop(unit, ()):
            if key in self.previous:
                self.heap.make_first(self.previous[key])
            else:
                bits = self.tape.precision.weight_bits
                shard_bytes = self.shard(size_bytes(tensor.dims, bits), tensor.dims)
                self.heap.allocate(f"gradient of {name}", Category.GRADIENT, shard_bytes)
            self.gradients.drop(tensor)
