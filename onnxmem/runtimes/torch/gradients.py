"""The gradients that one node's backward formula returns, and the memory that it takes meanwhile.

``input_gradients`` takes the gradients of a node's outputs and returns those of its inputs. The
operator's record says how each is computed (``GradientRule``): ``_RULES`` has a function for each
rule. ``matmul_gradients`` and ``layer_gradients`` are the formulas of matrix products and recurrent
layers, which no rule describes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from onnxmem.model.graph import Node
from onnxmem.ops.spec import Gradient, GradientRule, nothing
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.framework import ATTENTION_WEIGHTS
from onnxmem.runtimes.torch.memory import Heap
from onnxmem.runtimes.torch.recurrent import FusedLayers, Layer
from onnxmem.runtimes.torch.strides import (
    MATRIX_RANK,
    Dims,
    Strides,
    axes_order,
    broadcast_dims,
    contiguous,
    is_dense,
    is_matmul,
    is_row_major,
    like,
    reduced_axes,
    reshaped,
)
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.runtimes.torch.views import is_identity


@dataclass(slots=True, eq=False)
class GradientTensor:
    """One gradient; several owners may share it, and several gradients one block."""

    block: int
    dims: Dims | None
    """``None`` is unknown."""
    strides: Strides | None
    bits: int
    num_owners: int = 1
    is_view: bool = False
    """Whether it is a view of another tensor, which it keeps alive: never written over."""


@dataclass(frozen=True, slots=True)
class GradientHeap:
    """Allocates gradients, views of them and copies on a heap."""

    heap: Heap

    def new(
        self, label: str, dims: Dims | None, bits: int, strides: Strides | None = None
    ) -> GradientTensor:
        """Allocate a gradient, in row-major order unless strides are given."""
        block = self.heap.allocate(label, Category.ACTIVATION_GRADIENT, size_bytes(dims, bits))
        # A kernel that is given no layout writes a contiguous result.
        layout = contiguous(dims) if strides is None and dims is not None else strides
        return GradientTensor(block, dims, layout, bits)

    def share(self, tensor: GradientTensor) -> GradientTensor:
        """Add an owner of the same tensor."""
        tensor.num_owners += 1
        return tensor

    def view(
        self, tensor: GradientTensor, dims: Dims | None, strides: Strides | None
    ) -> GradientTensor:
        """A view of a tensor: another tensor on the same block."""
        self.heap.retain(tensor.block)
        if dims is None or strides is None or len(strides) != len(dims):
            strides = None
        return GradientTensor(tensor.block, dims, strides, tensor.bits, is_view=True)

    def reshape(self, label: str, tensor: GradientTensor, dims: Dims | None) -> GradientTensor:
        """A view of a tensor in other dims, or a copy where its strides do not allow a view."""
        if dims is None or tensor.dims is None or tensor.strides is None:
            return self.view(tensor, dims, None)
        strides = reshaped(tensor.dims, tensor.strides, dims)
        if strides is None:
            return self.new(label, dims, tensor.bits)
        return self.view(tensor, dims, strides)

    def cast(self, name: str, tensor: GradientTensor, bits: int) -> GradientTensor:
        """Return a gradient of so many bits as it is, or a cast copy of another; 0 is unknown."""
        if not bits or not tensor.bits or tensor.bits == bits:
            return tensor
        strides = None if tensor.dims is None else like(tensor.dims, tensor.strides)
        copy = self.new(f"gradient of {name}", tensor.dims, bits, strides)
        self.drop(tensor)
        return copy

    def drop(self, tensor: GradientTensor) -> None:
        """Remove an owner; the last one releases the block."""
        tensor.num_owners -= 1
        if tensor.num_owners == 0:
            self.heap.release(tensor.block)

    def can_accumulate_into(self, tensor: GradientTensor) -> bool:
        """Whether another gradient may be added to a tensor in place."""
        # can_accumulate_inplace of torch/csrc/autograd/input_buffer.cpp: the last reference to the
        # tensor and to its storage, and a layout without gaps or overlaps.
        is_whole = tensor.dims is None or is_dense(tensor.dims, tensor.strides)
        is_last_reference = tensor.num_owners == 1 and self.heap.is_unique(tensor.block)
        return is_last_reference and is_whole and not tensor.is_view

    def sum_to(self, label: str, tensor: GradientTensor, dims: Dims | None) -> None:
        """Note the sum of a row-major gradient over its leading axes, for which CUDA has a buffer.

        Of other sums the buffer is small: it has a number for each of a few blocks and results.
        """
        wide = tensor.dims
        if dims is None or wide is None or not is_row_major(wide, tensor.strides):
            return
        kept = tuple(dropwhile(lambda dim: dim == 1, dims))
        num_rows = prod(wide[: len(wide) - len(kept)])
        if kept and wide[-len(kept) :] == kept and num_rows > 1:
            self.heap.run_sum(f"sum for the {label}", num_rows, prod(kept))

    def allocate_and_free(self, label: str, num_bytes: int | None) -> None:
        """Allocate a temporary and free it."""
        if num_bytes:
            self.heap.release(self.heap.allocate(label, Category.TEMPORARY, num_bytes))


def size_bytes(dims: Dims | None, bits: int) -> int:
    """Bytes of a tensor; 0 where its dims are unknown."""
    return 0 if dims is None else -(-prod(dims) * bits // 8)


def matmul_gradients(
    tape: Tape, heap: GradientHeap, node: Node, incoming: Mapping[str, GradientTensor]
) -> list[tuple[str, GradientTensor]]:
    """The gradients of a MatMul's operands; the output's is released.

    Empty, and nothing is released, where a shape is unknown or an operand is a vector.
    """
    # matmul ran as mm or bmm on operands of two or three dims (`strides.copied_elements`), so the
    # output's gradient is folded the same way first: a view, or else a copy that stays alive until
    # both operands' gradients are computed.
    left, right = node.inputs[:2]
    a, b, output = tape.dims(left), tape.dims(right), tape.dims(node.outputs[0])
    if a is None or b is None or output is None or min(len(a), len(b)) < MATRIX_RANK:
        return []
    (output_gradient,) = incoming.values()
    if len(a) <= MATRIX_RANK or len(b) <= MATRIX_RANK:
        folded: Dims = (prod(output[:-1]), output[-1])
        wanted = {left: a, right: b}
    else:
        leading = broadcast_dims(a[:-2], b[:-2])
        folded = (prod(leading), *output[-2:])
        wanted = {left: leading + a[-2:], right: leading + b[-2:]}
    matrix = output_gradient
    if folded != output_gradient.dims:
        label = f"gradient of {node.outputs[0]}, folded"
        matrix = heap.reshape(label, output_gradient, folded)
        heap.drop(output_gradient)
    # `linear` of aten/src/ATen/native/Linear.cpp is one addmm, whose gradients are summed to their
    # inputs' shapes last; but a sequence of another layout is multiplied first and then the bias
    # added, whose backward formula comes first.
    biases = node.inputs[2:]
    is_added_apart = len(a) > MATRIX_RANK and not is_row_major(a, tape.views[left].strides)
    products = tuple(reversed(wanted))
    found: list[tuple[str, GradientTensor]] = []
    for name in (*biases, *products) if is_added_apart else (*products, *biases):
        if name in tape.requires_grad:
            dims = wanted[name] if name in wanted else tape.dims(name) or ()
            found.append((name, _operand_gradient(tape, heap, name, dims)))
            if name not in wanted:
                heap.sum_to(f"gradient of {name}", matrix, dims)
    heap.drop(matrix)
    return [(name, _reduced_to_operand(tape, heap, name, tensor)) for name, tensor in found]


def _operand_gradient(tape: Tape, heap: GradientHeap, name: str, dims: Dims) -> GradientTensor:
    """The gradient of one operand of mm or bmm, of the dims that it was broadcast to."""
    # mm_mat1_grad and mm_mat2_grad of torch/csrc/autograd/FunctionsManual.cpp lay a matrix's
    # gradient out like the matrix; bmm's is row-major, and unfolded as a view.
    is_matrix = len(dims) <= MATRIX_RANK
    strides = like(dims, tape.views[name].strides) if is_matrix else None
    tensor = heap.new(f"gradient of {name}", dims, tape.bits(name), strides)
    tensor.is_view = not is_matrix
    return tensor


def _reduced_to_operand(
    tape: Tape, heap: GradientHeap, name: str, tensor: GradientTensor
) -> GradientTensor:
    """Sum the gradient of an operand that was broadcast: the backward formula of ``expand``."""
    dims = tape.dims(name)
    if dims is None or tensor.dims in {None, dims}:
        tensor.dims = dims
        return tensor
    if tensor.dims is not None and prod(dims) == prod(tensor.dims):
        strides = tensor.strides and reshaped(tensor.dims, tensor.strides, dims)
        tensor.dims, tensor.strides = dims, strides or contiguous(dims)
        return tensor
    reduced = heap.new(f"gradient of {name}", dims, tensor.bits)
    heap.sum_to(f"gradient of {name}", tensor, dims)
    heap.drop(tensor)
    return reduced


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
        """The label of the gradient."""
        return f"gradient of {self.name}"

    @property
    def kernel_bits(self) -> int:
        """Bits that a kernel writes which reads operands of two types: those of the wider one."""
        if self.node.onnx_op in _TO_INPUT_TYPE or not self.bits:
            return self.bits
        return max(self.bits, self.incoming.bits)


_TO_INPUT_TYPE = frozenset({"Cast", "CastLike", "LogSoftmax", "Softmax"})
"""Operators whose backward kernels read one type and write the other."""
_SOFTMAXES = frozenset({ATTENTION_WEIGHTS.op_type, "Softmax"})

_IDENTITY = Gradient("", GradientRule.SAME)


def input_gradients(
    tape: Tape, heap: GradientHeap, node: Node, incoming: Mapping[str, GradientTensor]
) -> list[tuple[str, GradientTensor]]:
    """The gradients of a node's inputs; its outputs' are released."""
    if is_matmul(node) and (found := matmul_gradients(tape, heap, node, incoming)):
        return found
    zeros = _zeros_for_missing(tape, heap, node, incoming) if node.op_type == "Split" else []
    gradients = [
        (request, _RULES[request.gradient.rule](heap, request))
        for request in _requests(tape, node, incoming)
    ]
    # validate_outputs of torch/csrc/autograd/engine.cpp goes through the gradients in the order of
    # the inputs once all are computed, while the outputs' gradients are still alive: it sums a
    # gradient to its input's shape, then casts it to its input's type.
    valid = [
        (request.name, _validated(heap, request, tensor)) for request, tensor in reversed(gradients)
    ]
    valid.reverse()
    for tensor in (*zeros, *incoming.values()):
        heap.drop(tensor)
    expanded = {
        request.name
        for request, _ in gradients
        if request.gradient.rule is GradientRule.OF_EXPANDED
    }
    return [
        (name, _reduced_to_operand(tape, heap, name, tensor) if name in expanded else tensor)
        for name, tensor in valid
    ]


def _validated(
    heap: GradientHeap, request: GradientRequest, tensor: GradientTensor
) -> GradientTensor:
    """The gradient of its input's shape and type; those that it had before are released."""
    is_full = request.gradient.rule is GradientRule.REDUCED and tensor.dims != request.dims
    if is_full:
        reduced = _like_input(heap, request, tensor.bits)
        heap.sum_to(request.label, tensor, request.dims)
        heap.drop(tensor)
        tensor = reduced
    return tensor if tensor.bits == request.bits else heap.cast(request.name, tensor, request.bits)


def _requests(
    tape: Tape, node: Node, incoming: Mapping[str, GradientTensor]
) -> list[GradientRequest]:
    """The inputs that require a gradient, those that subgraphs read too, the last first."""
    # The generated functions (torch/csrc/autograd/generated/Functions.cpp) compute the gradient of
    # the later operand first: of `other` or `mat2`, then of `self`.
    first = next(iter(incoming.values()))
    requires_grad, num_inputs = tape.requires_grad, len(node.inputs)
    slots = [(name, index) for index, name in enumerate(node.inputs) if name in requires_grad]
    if node.outer_reads:
        slots += [(name, num_inputs) for name in node.outer_reads if name in requires_grad]
    returns_input = is_identity(tape.graph, node)
    found: list[GradientRequest] = []
    for name, index in reversed(slots):
        gradient = _IDENTITY if returns_input else _gradient(tape, node, index)
        for source in tape.packed.get(name, (name,)) if tape.packed else (name,):
            dims, bits = tape.dims(source), tape.bits(source)
            found.append(GradientRequest(node, source, gradient, dims, bits, first, tape))
    return found


def _gradient(tape: Tape, node: Node, index: int) -> Gradient:
    """How the gradient of an input is computed; what subgraphs read has no slot."""
    operator = node.operator
    key = id(operator), index if index < len(node.inputs) else -1
    if key not in tape.gradients:
        slot = None if key[1] < 0 else operator.input_name(index)
        tape.gradients[key] = operator.gradient_of(slot)
    return tape.gradients[key]


def _zeros_for_missing(
    tape: Tape, heap: GradientHeap, node: Node, incoming: Mapping[str, GradientTensor]
) -> list[GradientTensor]:
    """Zeros for the pieces of a Split that have no gradient.

    As in ``split_with_sizes_backward`` of torch/csrc/autograd/FunctionsManual.cpp, which then
    concatenates all.
    """
    if node.onnx_op != "Split":
        return []
    return [
        heap.new(f"zeros for {name}", tape.dims(name), tape.bits(name))
        for name in node.writes
        if name not in incoming
    ]


def _new(heap: GradientHeap, request: GradientRequest) -> GradientTensor:
    bits = request.bits if request.bits == request.incoming.bits else request.kernel_bits
    tensor = _like_input(heap, request, bits)
    _allocate_temporaries(heap, request)
    if request.node.op_type in _SOFTMAXES:
        # softmax_backward_cuda_out of aten/src/ATen/native/cuda/SoftMax.cu multiplies the gradient
        # by the result before its kernel runs. The CPU's does not.
        wide = max(request.incoming.bits, bits)
        heap.heap.run_with_tensor(
            f"product for the {request.label}", size_bytes(request.dims, wide)
        )
    return tensor


def _reduced(heap: GradientHeap, request: GradientRequest) -> GradientTensor:
    # The formula computes at the output's shape; the engine sums it once all are computed.
    wide = request.incoming.dims
    if wide is None or wide == request.dims:
        return _new(heap, request)
    full = heap.new(f"{request.label} before reduction", wide, request.incoming.bits)
    _allocate_temporaries(heap, request)
    return full


def _of_expanded(heap: GradientHeap, request: GradientRequest) -> GradientTensor:
    num_bytes = request.gradient.temporary_bytes(request.tape.call(request.node))
    if num_bytes is None or not request.bits:
        return _like_input(heap, request, request.bits)
    dims: Dims = (8 * num_bytes // request.bits,)
    return heap.new(f"{request.label}, expanded", dims, request.bits)


def _same(heap: GradientHeap, request: GradientRequest) -> GradientTensor:
    if request.incoming.dims == request.dims:
        return heap.share(request.incoming)
    summed = _like_input(heap, request, request.incoming.bits)
    heap.sum_to(request.label, request.incoming, request.dims)
    return summed


def _reshaped(heap: GradientHeap, request: GradientRequest) -> GradientTensor:
    return heap.reshape(request.label, request.incoming, request.dims)


def _permuted(heap: GradientHeap, request: GradientRequest) -> GradientTensor:
    dims, strides = request.dims, request.incoming.strides
    if dims is None or strides is None or len(strides) != len(dims):
        return heap.view(request.incoming, dims, None)
    order = axes_order(request.node.attributes, len(dims))
    inverse = tuple(strides[order.index(axis)] for axis in range(len(dims)))
    return heap.view(request.incoming, dims, inverse)


def _sliced(heap: GradientHeap, request: GradientRequest) -> GradientTensor:
    return heap.view(request.incoming, request.dims, request.incoming.strides)


def _expanded(heap: GradientHeap, request: GradientRequest) -> GradientTensor:
    return heap.view(request.incoming, request.dims, _expanded_strides(request))


def _expanded_strides(request: GradientRequest) -> Strides | None:
    """Strides that repeat the output's gradient along the axes that were reduced."""
    # sum_backward of FunctionsManual.cpp: unsqueeze at the reduced axes, then expand. Where the
    # file does not name the axes, all are taken to be expanded.
    dims, strides = request.dims, request.incoming.strides
    if dims is None or strides is None:
        return None
    if len(strides) == len(dims):
        narrow = request.incoming.dims or dims
        axes = zip(strides, narrow, dims, strict=True)
        return tuple(0 if one != wide else stride for stride, one, wide in axes)
    reduced = reduced_axes(request.tape.graph, request.node)
    reduced_indices = {axis % len(dims) for axis in reduced or ()} if dims else set()
    if reduced is None or len(strides) + len(reduced_indices) != len(dims):
        return (0,) * len(dims)
    left = iter(strides)
    return tuple(0 if axis in reduced_indices else next(left) for axis in range(len(dims)))


def _allocate_temporaries(heap: GradientHeap, request: GradientRequest) -> None:
    """Allocate and free what is alive beside a gradient at the end of its formula."""
    formula = request.gradient.temporary_bytes
    if formula is not nothing:
        num_bytes = formula(request.tape.call(request.node))
        heap.allocate_and_free(f"temporaries of the {request.label}", num_bytes)


def _like_input(heap: GradientHeap, request: GradientRequest, bits: int) -> GradientTensor:
    strides = None
    if request.node.operator.preserves_strides and request.dims is not None:
        strides = like(request.dims, request.tape.views[request.name].strides)
    return heap.new(request.label, request.dims, bits, strides)


_Rule = Callable[[GradientHeap, GradientRequest], GradientTensor]

_RULES: Mapping[GradientRule, _Rule] = MappingProxyType(
    {
        GradientRule.NEW: _new,
        GradientRule.REDUCED: _reduced,
        GradientRule.SAME: _same,
        GradientRule.RESHAPED: _reshaped,
        GradientRule.PERMUTED: _permuted,
        GradientRule.SLICED: _sliced,
        GradientRule.EXPANDED: _expanded,
        GradientRule.OF_EXPANDED: _of_expanded,
    }
)


def fused_layers_gradients(
    tape: Tape,
    heap: GradientHeap,
    node: Node,
    layers: FusedLayers,
    incoming: Mapping[str, GradientTensor],
) -> list[tuple[str, GradientTensor]]:
    """The gradients of what a call of cuDNN reads; those of its outputs are released."""
    # _cudnn_rnn_backward of aten/src/ATen/native/cudnn/RNN.cpp: the input's gradient first, always,
    # then the weights'. Each part copies a sequence that does not begin with its steps, has zeros
    # for states without a gradient, and a workspace of its own.
    data = node.inputs[0]
    copied_bytes = 0 if tape.has_steps_first(data) else layers.input_bytes
    workspace_bytes = copied_bytes + layers.workspace_bytes(is_forward=False)
    label = f"workspace of {node.name}"
    output = incoming.get(node.outputs[0])
    is_copied = output is not None and output.dims and not is_row_major(output.dims, output.strides)
    more_bytes = layers.output_bytes if is_copied else 0
    input_gradient = _new_gradient(tape, heap, data)
    heap.allocate_and_free(label, workspace_bytes + layers.states_bytes + more_bytes)
    found: list[tuple[str, GradientTensor]] = []
    if data in tape.requires_grad:
        found.append((data, input_gradient))
    found += _leaf_gradients(tape, heap, node.inputs[1:])
    heap.allocate_and_free(label, workspace_bytes + layers.states_bytes)
    if data not in tape.requires_grad:
        heap.drop(input_gradient)
    for tensor in incoming.values():
        heap.drop(tensor)
    return found


def layer_gradients(
    tape: Tape,
    heap: GradientHeap,
    node: Node,
    layer: Layer,
    step_blocks: list[int],
) -> list[tuple[str, GradientTensor]]:
    """The gradients of a recurrent node's inputs, through the steps of each direction in reverse.

    ``step_blocks`` are the blocks that the layer saved; those of its steps are released and
    removed from the list.
    """
    backward = _LayerBackward(tape, heap, node, layer)
    num_blocks = len(layer.runs)
    for direction in reversed(range(layer.num_directions)):
        steps = step_blocks[len(step_blocks) - num_blocks :]
        del step_blocks[len(step_blocks) - num_blocks :]
        backward.run_direction(direction, steps)
    backward.add_other_gradients()
    return backward.gradients


@dataclass(slots=True)
class _LayerBackward:
    """The backward pass through one recurrent node."""

    tape: Tape
    heap: GradientHeap
    node: Node
    layer: Layer
    gradients: list[tuple[str, GradientTensor]] = field(default_factory=list)

    def run_direction(self, direction: int, steps: list[int]) -> None:
        """Go through one direction's steps in reverse, and add its gradients."""
        data, weight, recurrence = self.node.inputs[:3]
        heap, layer = self.heap.heap, self.layer
        self._add_matrix_gradient(recurrence, direction)
        share_bytes = (self.tape.size_bytes(recurrence) or 0) // layer.num_directions
        label = f"gradient of {recurrence}, of one step"
        gates: list[int] = []
        runs = reversed(layer.runs)
        for index, (step, count) in enumerate(zip(reversed(steps), runs, strict=True)):
            # The recurrence's gradient is a sum over steps. The first addend is a transposed view,
            # so that the second is added out of place (two temporaries); later ones are in place.
            if index:
                self.heap.allocate_and_free(label, share_bytes * (2 if index == 1 else 1))
            heap.release(step)
            size_bytes = count * (layer.gates_bytes // layer.num_steps)
            gates.append(
                heap.allocate("gates' gradients", Category.ACTIVATION_GRADIENT, size_bytes)
            )
        # unbind's backward stacks the steps' gates for the one product with the input.
        stacked = heap.allocate("gates' gradients", Category.ACTIVATION_GRADIENT, layer.gates_bytes)
        for block in gates:
            heap.release(block)
        if data in self.tape.requires_grad:
            self.gradients.append((data, _new_gradient(self.tape, self.heap, data)))
        self._add_matrix_gradient(weight, direction)
        heap.release(stacked)

    def add_other_gradients(self) -> None:
        """Add the gradients of biases, peepholes and initial states."""
        self.gradients += _leaf_gradients(self.tape, self.heap, self.node.inputs[3:])

    def _add_matrix_gradient(self, name: str, direction: int) -> None:
        """Add the gradient of one direction's matrix.

        A matrix that holds all directions has one gradient, added with the last direction.
        """
        if name not in self.tape.requires_grad:
            return
        leaves = self.tape.packed.get(name, (name,))
        if len(leaves) == 1:
            leaves = leaves if direction == self.layer.num_directions - 1 else ()
        else:
            leaves = leaves[direction : direction + 1]
        self.gradients += [(leaf, _new_gradient(self.tape, self.heap, leaf)) for leaf in leaves]


def _leaf_gradients(
    tape: Tape, heap: GradientHeap, names: Iterable[str]
) -> list[tuple[str, GradientTensor]]:
    """New gradients of the operands that require one, or of the parameters packed into them."""
    return [
        (leaf, _new_gradient(tape, heap, leaf))
        for name in names
        if name in tape.requires_grad
        for leaf in tape.packed.get(name, (name,))
    ]


def _new_gradient(tape: Tape, heap: GradientHeap, name: str) -> GradientTensor:
    return heap.new(f"gradient of {name}", tape.dims(name), tape.bits(name))
