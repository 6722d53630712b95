"""The backward pass as PyTorch's autograd engine takes it (torch/csrc/autograd/engine.cpp).

Nodes run in the reverse of the order in which the forward pass made them. A node's formula makes
the gradients of its inputs while the outputs' gradients and all that it saved are alive; then these
are released, and only then each gradient goes to its reader: it is held until the reader runs, or
added to what is held already, in place where nothing else looks into that. A parameter's gradient
stays to the end of the step. The operator's record has how a gradient is made (``Made``):
``_MAKERS`` has a function for each way.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from onnxmem.model.graph import Node, Role
from onnxmem.ops.spec import Gradient, Made, nothing
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.forward import Storages
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.memory import Heap
from onnxmem.runtimes.torch.recurrent import RECURRENT, Layer
from onnxmem.runtimes.torch.strides import (
    MATRIX_RANK,
    Dims,
    Strides,
    axes_order,
    broadcast_dims,
    contiguous,
    is_dense,
    is_product,
    is_row_major,
    like,
    reduced_axes,
    reshaped,
)
from onnxmem.runtimes.torch.tape import Tape, is_identity


@dataclass(slots=True, eq=False)
class GradientTensor:
    """One tensor of gradients; several holders may share it, and several tensors one block."""

    block: int
    dims: Dims | None
    """``None`` is unknown."""
    strides: Strides | None
    bits: int
    holders: int = 1
    is_view: bool = False
    """Whether it looks into another tensor, which it keeps: never written over."""


@dataclass(frozen=True, slots=True)
class GradientHeap:
    """Makes gradients, views of them and copies on a heap."""

    heap: Heap

    def make(
        self, label: str, dims: Dims | None, bits: int, strides: Strides | None = None
    ) -> GradientTensor:
        """Allocate a new gradient, in row-major order unless strides are given."""
        block = self.heap.allocate(label, Category.ACTIVATION_GRADIENT, size_bytes(dims, bits))
        laid_out = contiguous(dims) if strides is None and dims is not None else strides
        return GradientTensor(block, dims, laid_out, bits)

    def share(self, tensor: GradientTensor) -> GradientTensor:
        """Hand the same tensor to one more holder."""
        tensor.holders += 1
        return tensor

    def view(
        self, tensor: GradientTensor, dims: Dims | None, strides: Strides | None
    ) -> GradientTensor:
        """Look into the block of a tensor."""
        self.heap.retain(tensor.block)
        return GradientTensor(tensor.block, dims, strides, tensor.bits, is_view=True)

    def reshape(self, label: str, tensor: GradientTensor, dims: Dims | None) -> GradientTensor:
        """Look at a tensor in other dims, or copy it where its strides do not allow that."""
        if dims is None or tensor.dims is None or tensor.strides is None:
            return self.view(tensor, dims, None)
        strides = reshaped(tensor.dims, tensor.strides, dims)
        if strides is None:
            return self.make(label, dims, tensor.bits)
        return self.view(tensor, dims, strides)

    def cast(self, name: str, tensor: GradientTensor, bits: int) -> GradientTensor:
        """Pass on a gradient of so many bits, or make one and release the other; 0 is unknown."""
        if not bits or not tensor.bits or tensor.bits == bits:
            return tensor
        strides = None if tensor.dims is None else like(tensor.dims, tensor.strides)
        made = self.make(f"gradient of {name}", tensor.dims, bits, strides)
        self.drop(tensor)
        return made

    def drop(self, tensor: GradientTensor) -> None:
        """One holder less; the last releases the block."""
        tensor.holders -= 1
        if tensor.holders == 0:
            self.heap.release(tensor.block)

    def is_writable(self, tensor: GradientTensor) -> bool:
        """Whether a sum may be written over a tensor: nobody else holds it, or looks into it."""
        is_whole = tensor.dims is None or is_dense(tensor.dims, tensor.strides)
        is_free = tensor.holders == 1 and self.heap.is_unique(tensor.block)
        return is_free and is_whole and not tensor.is_view

    def allocate_and_free(self, label: str, num_bytes: int | None) -> None:
        """Allocate temporaries and free them."""
        if num_bytes:
            self.heap.release(self.heap.allocate(label, Category.TEMPORARY, num_bytes))


def size_bytes(dims: Dims | None, bits: int) -> int:
    """Bytes of a tensor; 0 where its dims are unknown."""
    return 0 if dims is None else -(-prod(dims) * bits // 8)


def matmul_gradients(
    tape: Tape, heap: GradientHeap, node: Node, incoming: Mapping[str, GradientTensor]
) -> list[tuple[str, GradientTensor]]:
    """Make the operands' gradients and release the output's; none where a shape is unknown.

    The product ran on operands of two or three dims (``strides.copied_elements``), so the output's
    gradient is folded the same way: a view where its strides allow that, else a copy.
    """
    left, right = node.inputs[:2]
    a, b, output = tape.dims(left), tape.dims(right), tape.dims(node.outputs[0])
    if a is None or b is None or output is None or min(len(a), len(b)) < MATRIX_RANK:
        return []
    (given,) = incoming.values()
    if len(a) <= MATRIX_RANK or len(b) <= MATRIX_RANK:
        folded: Dims = (prod(output[:-1]), output[-1])
        wanted = {left: a, right: b}
    else:
        leading = broadcast_dims(a[:-2], b[:-2])
        folded = (prod(leading), *output[-2:])
        wanted = {left: leading + a[-2:], right: leading + b[-2:]}
    matrix = given
    if folded != given.dims:
        matrix = heap.reshape(f"gradient of {node.outputs[0]}, folded", given, folded)
        heap.drop(given)
    made = [
        (name, _operand_gradient(tape, heap, name, dims))
        for name, dims in reversed(wanted.items())
        if name in tape.reached
    ]
    made += [
        (bias, _operand_gradient(tape, heap, bias, tape.dims(bias) or ()))
        for bias in node.inputs[2:]
        if bias in tape.reached
    ]
    heap.drop(matrix)
    return [(name, _summed(tape, heap, name, tensor)) for name, tensor in made]


def _operand_gradient(tape: Tape, heap: GradientHeap, name: str, dims: Dims) -> GradientTensor:
    """A product in row-major order; of a matrix in the order of the matrix, as mm does it."""
    is_matrix = len(dims) <= MATRIX_RANK
    strides = like(dims, tape.views[name].strides) if is_matrix else None
    made = heap.make(f"gradient of {name}", dims, tape.bits(name), strides)
    made.is_view = not is_matrix
    return made


def _summed(tape: Tape, heap: GradientHeap, name: str, tensor: GradientTensor) -> GradientTensor:
    """Sum the gradient of an operand that was broadcast."""
    dims = tape.dims(name)
    if dims is None or tensor.dims in {None, dims} or prod(dims) == prod(tensor.dims):
        tensor.dims = dims
        return tensor
    summed = heap.make(f"gradient of {name}", dims, tensor.bits)
    heap.drop(tensor)
    return summed


class GradientRequest(NamedTuple):
    """One input that requires a gradient, and the gradient of the output."""

    node: Node
    name: str
    gradient: Gradient
    dims: Dims | None
    """Of the input, if all are known."""
    bits: int
    """Of the input, and so of its gradient in the end; 0 is unknown."""
    incoming: GradientTensor
    tape: Tape

    @property
    def label(self) -> str:
        """What the gradient is of."""
        return f"gradient of {self.name}"

    @property
    def kernel_bits(self) -> int:
        """Of what a kernel writes that reads operands of several types: the wider one's."""
        if self.node.onnx_op in _TO_INPUT_TYPE or not self.bits:
            return self.bits
        return max(self.bits, self.incoming.bits)


_TO_INPUT_TYPE = frozenset({"Cast", "CastLike", "LogSoftmax", "Softmax"})
"""Operators whose backward kernels read one type and write the other."""

_SAME = Gradient("", Made.SAME)

Temporaries = list[GradientTensor]
"""Gradients that are alive until the node is done."""


def input_gradients(
    tape: Tape, heap: GradientHeap, node: Node, incoming: Mapping[str, GradientTensor]
) -> list[tuple[str, GradientTensor]]:
    """Make the gradients of a node's inputs, and release its outputs'.

    Later inputs come first, as in PyTorch's generated code. Then the engine casts each to the type
    of its input (``validate_outputs`` of torch/csrc/autograd/engine.cpp).
    """
    if is_product(node) and (products := matmul_gradients(tape, heap, node, incoming)):
        return products
    missing = _missing_pieces(tape, heap, node, incoming) if node.op_type == "Split" else []
    temporaries: Temporaries = []
    made = [
        (request, _MAKERS[request.gradient.made](heap, request, temporaries))
        for request in _requests(tape, node, incoming)
    ]
    for tensor in temporaries:
        heap.drop(tensor)
    cast = [
        (each.name, tensor if tensor.bits == each.bits else heap.cast(each.name, tensor, each.bits))
        for each, tensor in made
    ]
    for tensor in (*missing, *incoming.values()):
        heap.drop(tensor)
    return cast


def _requests(
    tape: Tape, node: Node, incoming: Mapping[str, GradientTensor]
) -> list[GradientRequest]:
    """The inputs that require a gradient, those that subgraphs read too, the last first."""
    first = next(iter(incoming.values()))
    reached, num_inputs = tape.reached, len(node.inputs)
    slots = [(name, index) for index, name in enumerate(node.inputs) if name in reached]
    if node.outer_reads:
        slots += [(name, num_inputs) for name in node.outer_reads if name in reached]
    is_same = is_identity(tape.graph, node)
    found: list[GradientRequest] = []
    for name, index in reversed(slots):
        gradient = _SAME if is_same else _gradient(tape, node, index)
        for source in tape.packed.get(name, (name,)) if tape.packed else (name,):
            dims, bits = tape.dims(source), tape.bits(source)
            found.append(GradientRequest(node, source, gradient, dims, bits, first, tape))
    return found


def _gradient(tape: Tape, node: Node, index: int) -> Gradient:
    """How the gradient of an input is made; of what subgraphs read, which has no slot, too."""
    operator = node.operator
    key = id(operator), index if index < len(node.inputs) else -1
    if key not in tape.gradients:
        slot = None if key[1] < 0 else operator.input_name(index)
        tape.gradients[key] = operator.gradient_of(slot)
    return tape.gradients[key]


def _missing_pieces(
    tape: Tape, heap: GradientHeap, node: Node, incoming: Mapping[str, GradientTensor]
) -> list[GradientTensor]:
    """Zeros in place of the gradients of pieces that nothing was made of: joined with the rest."""
    if node.onnx_op != "Split":
        return []
    return [
        heap.make(f"zeros for {name}", tape.dims(name), tape.bits(name))
        for name in node.writes
        if name not in incoming
    ]


def _new(heap: GradientHeap, request: GradientRequest, _: Temporaries) -> GradientTensor:
    bits = request.bits if request.bits == request.incoming.bits else request.kernel_bits
    made = _like_input(heap, request, bits)
    _allocate_temporaries(heap, request)
    return made


def _product(
    heap: GradientHeap, request: GradientRequest, temporaries: Temporaries
) -> GradientTensor:
    wide = request.incoming.dims
    if wide is None or wide == request.dims:
        return _new(heap, request, temporaries)
    full = heap.make(f"{request.label}, not yet summed", wide, request.incoming.bits)
    _allocate_temporaries(heap, request)
    temporaries.append(full)
    return _like_input(heap, request, request.incoming.bits)


def _same(heap: GradientHeap, request: GradientRequest, _: Temporaries) -> GradientTensor:
    if request.incoming.dims == request.dims:
        return heap.share(request.incoming)
    return _like_input(heap, request, request.incoming.bits)


def _reshaped(heap: GradientHeap, request: GradientRequest, _: Temporaries) -> GradientTensor:
    return heap.reshape(request.label, request.incoming, request.dims)


def _permuted(heap: GradientHeap, request: GradientRequest, _: Temporaries) -> GradientTensor:
    dims, strides = request.dims, request.incoming.strides
    if dims is None or strides is None or len(strides) != len(dims):
        return heap.view(request.incoming, dims, None)
    order = axes_order(request.node.attributes, len(dims))
    put_back = tuple(strides[order.index(axis)] for axis in range(len(dims)))
    return heap.view(request.incoming, dims, put_back)


def _piece(heap: GradientHeap, request: GradientRequest, _: Temporaries) -> GradientTensor:
    return heap.view(request.incoming, request.dims, request.incoming.strides)


def _expanded(heap: GradientHeap, request: GradientRequest, _: Temporaries) -> GradientTensor:
    return heap.view(request.incoming, request.dims, _expanded_strides(request))


def _expanded_strides(request: GradientRequest) -> Strides | None:
    """Strides that repeat the output's gradient along the axes that were taken away."""
    dims, strides = request.dims, request.incoming.strides
    if dims is None or strides is None:
        return None
    if len(strides) == len(dims):
        narrow = request.incoming.dims or dims
        kept = zip(strides, narrow, dims, strict=True)
        return tuple(0 if one != wide else stride for stride, one, wide in kept)
    reduced = reduced_axes(request.tape.graph, request.node)
    if reduced is None or len(strides) + len(reduced) != len(dims):
        return (0,) * len(dims)
    gone = {axis % len(dims) for axis in reduced}
    left = iter(strides)
    return tuple(0 if axis in gone else next(left) for axis in range(len(dims)))


def _allocate_temporaries(heap: GradientHeap, request: GradientRequest) -> None:
    """Make and free what is alive beside a gradient at the end of its formula."""
    formula = request.gradient.temporary_bytes
    if formula is not nothing:
        heap.allocate_and_free(
            f"{request.label}, on the way", formula(request.tape.call(request.node))
        )


def _like_input(heap: GradientHeap, request: GradientRequest, bits: int) -> GradientTensor:
    strides = None
    if request.node.operator.keeps_strides and request.dims is not None:
        strides = like(request.dims, request.tape.views[request.name].strides)
    return heap.make(request.label, request.dims, bits, strides)


_MAKERS: Mapping[Made, Callable[[GradientHeap, GradientRequest, Temporaries], GradientTensor]] = (
    MappingProxyType(
        {
            Made.NEW: _new,
            Made.PRODUCT: _product,
            Made.SAME: _same,
            Made.RESHAPED: _reshaped,
            Made.PERMUTED: _permuted,
            Made.PIECE: _piece,
            Made.EXPANDED: _expanded,
        }
    )
)


def layer_gradients(
    tape: Tape,
    heap: GradientHeap,
    node: Node,
    layer: Layer,
    own: list[int],
) -> list[tuple[str, GradientTensor]]:
    """Go back through the steps of each direction, the last first; ``own`` is what it keeps."""
    back = _Back(tape, heap, node, layer)
    num_blocks = len(layer.runs)
    for direction in reversed(range(layer.num_directions)):
        steps = own[len(own) - num_blocks :]
        del own[len(own) - num_blocks :]
        back.through(direction, steps)
    back.make_biases()
    return back.made


@dataclass(slots=True)
class _Back:
    """The way back through one recurrent node."""

    tape: Tape
    heap: GradientHeap
    node: Node
    layer: Layer
    made: list[tuple[str, GradientTensor]] = field(default_factory=list)

    def through(self, direction: int, steps: list[int]) -> None:
        """Take one direction's steps back, and make its gradients."""
        data, weight, recurrence = self.node.inputs[:3]
        heap, layer = self.heap.heap, self.layer
        self._make_leaf(recurrence, direction)
        share_bytes = (self.tape.size_bytes(recurrence) or 0) // layer.num_directions
        label = f"gradient of {recurrence}, of one step"
        gates: list[int] = []
        runs = reversed(layer.runs)
        for index, (step, count) in enumerate(zip(reversed(steps), runs, strict=True)):
            # The second is added to the first out of place: that is a view; later ones in place
            if index:
                self.heap.allocate_and_free(label, share_bytes * (2 if index == 1 else 1))
            heap.release(step)
            size_bytes = count * (layer.gates_bytes // layer.num_steps)
            gates.append(
                heap.allocate("gates' gradients", Category.ACTIVATION_GRADIENT, size_bytes)
            )
        stacked = heap.allocate("gates' gradients", Category.ACTIVATION_GRADIENT, layer.gates_bytes)
        for block in gates:
            heap.release(block)
        if data in self.tape.reached:
            self.made.append((data, self._gradient(data)))
        self._make_leaf(weight, direction)
        heap.release(stacked)

    def make_biases(self) -> None:
        """Make the gradients of biases, peepholes and first states."""
        for name in self.node.inputs[3:]:
            if name in self.tape.reached:
                leaves = self.tape.packed.get(name, (name,))
                self.made += [(leaf, self._gradient(leaf)) for leaf in leaves]

    def _make_leaf(self, name: str, direction: int) -> None:
        """Make the gradient of one direction's matrix; of a packed one with the last direction."""
        leaves = self.tape.packed.get(name, (name,))
        if len(leaves) == 1:
            leaves = leaves if direction == self.layer.num_directions - 1 else ()
        else:
            leaves = leaves[direction : direction + 1]
        self.made += [(leaf, self._gradient(leaf)) for leaf in leaves if name in self.tape.reached]

    def _gradient(self, name: str) -> GradientTensor:
        return self.heap.make(f"gradient of {name}", self.tape.dims(name), self.tape.bits(name))


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
    pending: dict[str, GradientTensor] = field(default_factory=dict)
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
        read = chain.from_iterable(map(data_reads, tape.backward_nodes))
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
        pending = self.pending
        for node in reversed(tuple(nodes)):
            self.heap.enter_node(node.name)
            incoming = {name: pending.pop(name) for name in node.writes if name in pending}
            made: list[tuple[str, GradientTensor]] = []
            layer = self.tape.layer(node) if node.op_type in RECURRENT else None
            if incoming and layer is None:
                made = input_gradients(self.tape, self.gradients, node, incoming)
            elif incoming and layer is not None:
                made = self._run_recurrent(node, layer, incoming)
            self.storages.release_saved(node)
            for name, tensor in made:
                self.accumulate(name, tensor)

    def _run_recurrent(
        self, node: Node, layer: Layer, incoming: dict[str, GradientTensor]
    ) -> list[tuple[str, GradientTensor]]:
        """Make the gradients of a recurrent node's inputs, and release its outputs'."""
        own = self.storages.saved_blocks.get(node.name, [])
        made = layer_gradients(self.tape, self.gradients, node, layer, own)
        for tensor in incoming.values():
            self.gradients.drop(tensor)
        return made

    def accumulate(self, name: str, tensor: GradientTensor) -> None:
        """Give a gradient to whoever made the tensor, or to the parameter."""
        key = self.leaves.get(name, name)
        held = self.pending.get(key)
        self.pending[key] = tensor if held is None else self._sum(name, held, tensor)
        if name in self.leaves:
            self.left[key] -= 1
            if self.left[key] == 0:
                self._assign(key, name)

    def _sum(self, name: str, held: GradientTensor, new: GradientTensor) -> GradientTensor:
        if self.gradients.is_writable(held):
            self.gradients.drop(new)
            return held
        strides = None if held.dims is None else like(held.dims, held.strides)
        total = self.gradients.make(f"gradient of {name}", held.dims, held.bits, strides)
        self.gradients.drop(held)
        self.gradients.drop(new)
        return total

    def _assign(self, key: str, name: str) -> None:
        """Make a gradient the parameter's own: taken over if nothing shares it, else copied."""
        tensor = self.pending[key]
        if self.has_gradients:
            self.gradients.drop(self.pending.pop(key))
            return
        bits = self.tape.precision.weight_bits
        is_laid_out = tensor.dims is None or is_row_major(tensor.dims, tensor.strides)
        if tensor.holders > 1 or not is_laid_out or tensor.bits != bits:
            tensor = self.gradients.make(name, tensor.dims, bits)
            self.gradients.drop(self.pending[key])
            self.pending[key] = tensor
        label = f"gradient of {name}"
        whole_bytes = size_bytes(tensor.dims, bits)
        share_bytes = self.share(whole_bytes)
        if share_bytes == whole_bytes:
            self.heap.relabel(tensor.block, label, Category.GRADIENT)
        else:
            self.heap.allocate(label, Category.GRADIENT, share_bytes)
            self.gradients.drop(self.pending.pop(key))
