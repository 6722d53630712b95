"""How a node's backward formula makes its inputs' gradients, by the way that its record says."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from onnxmem.model.graph import Node
from onnxmem.ops.spec import Gradient, Made, nothing
from onnxmem.runtimes.torch.axes import axes_order, reduced_axes
from onnxmem.runtimes.torch.matmul import is_product
from onnxmem.runtimes.torch.products import matmul_gradients
from onnxmem.runtimes.torch.storages import is_identity
from onnxmem.runtimes.torch.strides import Dims, Strides, like
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.runtimes.torch.tensors import GradientHeap, GradientTensor


class Asked(NamedTuple):
    """One input of which a gradient is asked, and the output's that arrived."""

    node: Node
    name: str
    gradient: Gradient
    dims: Dims | None
    """Of the input, if all are known."""
    bits: int
    """Of the input, and so of its gradient in the end; 0 is unknown."""
    arrived: GradientTensor
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
        return max(self.bits, self.arrived.bits)


_TO_INPUT_TYPE = frozenset({"Cast", "CastLike", "LogSoftmax", "Softmax"})
"""Operators whose backward kernels read one type and write the other."""

_SAME = Gradient("", Made.SAME)

Passing = list[GradientTensor]
"""Gradients that are alive until the node is done."""


def input_gradients(
    tape: Tape, heap: GradientHeap, node: Node, arrived: Mapping[str, GradientTensor]
) -> list[tuple[str, GradientTensor]]:
    """Make the gradients of a node's inputs, and let go of its outputs'.

    Later inputs come first, as in PyTorch's generated code. Then the engine casts each to the type
    of its input (``validate_outputs`` of torch/csrc/autograd/engine.cpp).
    """
    if is_product(node) and (products := matmul_gradients(tape, heap, node, arrived)):
        return products
    missing = _missing_pieces(tape, heap, node, arrived) if node.op_type == "Split" else []
    passing: Passing = []
    made = [
        (asked, _MAKERS[asked.gradient.made](heap, asked, passing))
        for asked in _asked(tape, node, arrived)
    ]
    for tensor in passing:
        heap.drop(tensor)
    cast = [
        (each.name, tensor if tensor.bits == each.bits else heap.cast(each.name, tensor, each.bits))
        for each, tensor in made
    ]
    for tensor in (*missing, *arrived.values()):
        heap.drop(tensor)
    return cast


def _asked(tape: Tape, node: Node, arrived: Mapping[str, GradientTensor]) -> list[Asked]:
    """The inputs that require a gradient, those that subgraphs read too, the last first."""
    first = next(iter(arrived.values()))
    reached, num_inputs = tape.reached, len(node.inputs)
    slots = [(name, place) for place, name in enumerate(node.inputs) if name in reached]
    if node.outer_reads:
        slots += [(name, num_inputs) for name in node.outer_reads if name in reached]
    is_same = is_identity(tape.graph, node)
    found: list[Asked] = []
    for name, place in reversed(slots):
        gradient = _SAME if is_same else _gradient(tape, node, place)
        for source in tape.packed.get(name, (name,)) if tape.packed else (name,):
            dims, bits = tape.dims(source), tape.bits(source)
            found.append(Asked(node, source, gradient, dims, bits, first, tape))
    return found


def _gradient(tape: Tape, node: Node, place: int) -> Gradient:
    """How the gradient of an input is made; of what subgraphs read, which has no slot, too."""
    operator = node.operator
    key = id(operator), place if place < len(node.inputs) else -1
    if key not in tape.gradients:
        slot = None if key[1] < 0 else operator.input_name(place)
        tape.gradients[key] = operator.gradient_of(slot)
    return tape.gradients[key]


def _missing_pieces(
    tape: Tape, heap: GradientHeap, node: Node, arrived: Mapping[str, GradientTensor]
) -> list[GradientTensor]:
    """Zeros in place of the gradients of pieces that nothing was made of: joined with the rest."""
    if node.onnx_op != "Split":
        return []
    return [
        heap.make(f"zeros for {name}", tape.dims(name), tape.bits(name))
        for name in node.writes
        if name not in arrived
    ]


def _new(heap: GradientHeap, asked: Asked, _: Passing) -> GradientTensor:
    bits = asked.bits if asked.bits == asked.arrived.bits else asked.kernel_bits
    made = _like_input(heap, asked, bits)
    _brush(heap, asked)
    return made


def _product(heap: GradientHeap, asked: Asked, passing: Passing) -> GradientTensor:
    wide = asked.arrived.dims
    if wide is None or wide == asked.dims:
        return _new(heap, asked, passing)
    full = heap.make(f"{asked.label}, not yet summed", wide, asked.arrived.bits)
    _brush(heap, asked)
    passing.append(full)
    return _like_input(heap, asked, asked.arrived.bits)


def _same(heap: GradientHeap, asked: Asked, _: Passing) -> GradientTensor:
    if asked.arrived.dims == asked.dims:
        return heap.share(asked.arrived)
    return _like_input(heap, asked, asked.arrived.bits)


def _reshaped(heap: GradientHeap, asked: Asked, _: Passing) -> GradientTensor:
    return heap.reshape(asked.label, asked.arrived, asked.dims)


def _permuted(heap: GradientHeap, asked: Asked, _: Passing) -> GradientTensor:
    dims, strides = asked.dims, asked.arrived.strides
    if dims is None or strides is None or len(strides) != len(dims):
        return heap.view(asked.arrived, dims, None)
    order = axes_order(asked.node.attributes, len(dims))
    put_back = tuple(strides[order.index(axis)] for axis in range(len(dims)))
    return heap.view(asked.arrived, dims, put_back)


def _piece(heap: GradientHeap, asked: Asked, _: Passing) -> GradientTensor:
    return heap.view(asked.arrived, asked.dims, asked.arrived.strides)


def _expanded(heap: GradientHeap, asked: Asked, _: Passing) -> GradientTensor:
    return heap.view(asked.arrived, asked.dims, _expanded_strides(asked))


def _expanded_strides(asked: Asked) -> Strides | None:
    """Strides that repeat the output's gradient along the axes that were taken away."""
    dims, strides = asked.dims, asked.arrived.strides
    if dims is None or strides is None:
        return None
    if len(strides) == len(dims):
        narrow = asked.arrived.dims or dims
        kept = zip(strides, narrow, dims, strict=True)
        return tuple(0 if one != wide else stride for stride, one, wide in kept)
    reduced = reduced_axes(asked.tape.graph, asked.node)
    if reduced is None or len(strides) + len(reduced) != len(dims):
        return (0,) * len(dims)
    gone = {axis % len(dims) for axis in reduced}
    left = iter(strides)
    return tuple(0 if axis in gone else next(left) for axis in range(len(dims)))


def _brush(heap: GradientHeap, asked: Asked) -> None:
    """Make and free what is alive beside a gradient at the end of its formula."""
    formula = asked.gradient.temporary_bytes
    if formula is not nothing:
        heap.brush(f"{asked.label}, on the way", formula(asked.tape.call(asked.node)))


def _like_input(heap: GradientHeap, asked: Asked, bits: int) -> GradientTensor:
    strides = None
    if asked.node.operator.keeps_strides and asked.dims is not None:
        strides = like(asked.dims, asked.tape.views[asked.name].strides)
    return heap.make(asked.label, asked.dims, bits, strides)


_MAKERS: Mapping[Made, Callable[[GradientHeap, Asked, Passing], GradientTensor]] = MappingProxyType(
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
