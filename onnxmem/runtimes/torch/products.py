"""The gradients of a MatMul of more than two dims, as torch.matmul's steps are taken back.

The product ran on operands of two or three dims (see ``matmul``), so the output's gradient is
folded the same way: a view where its strides allow that, else a copy.
"""

from collections.abc import Mapping
from math import prod

from onnxmem.model.graph import Node
from onnxmem.runtimes.torch.matmul import MATRIX_RANK, broadcast_dims
from onnxmem.runtimes.torch.strides import Dims, like
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.runtimes.torch.tensors import GradientHeap, GradientTensor


def matmul_gradients(
    tape: Tape, heap: GradientHeap, node: Node, arrived: Mapping[str, GradientTensor]
) -> list[tuple[str, GradientTensor]]:
    """Make the operands' gradients and let go of the output's; none where a shape is unknown."""
    left, right = node.inputs[:2]
    a, b, output = tape.dims(left), tape.dims(right), tape.dims(node.outputs[0])
    if a is None or b is None or output is None or min(len(a), len(b)) < MATRIX_RANK:
        return []
    (given,) = arrived.values()
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
