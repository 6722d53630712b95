"""Gradients as tensors: a look into a block, held by whoever will read it."""

from dataclasses import dataclass
from math import prod

from onnxmem.program.program import Category
from onnxmem.runtimes.torch.heap import Heap
from onnxmem.runtimes.torch.strides import Dims, Strides, contiguous, is_dense, like, reshaped


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
        """Allocate a new gradient, in row-major order unless its strides are said."""
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
        """Hand on a gradient of so many bits, or make one and let go of the other; 0 is unknown."""
        if not bits or not tensor.bits or tensor.bits == bits:
            return tensor
        strides = None if tensor.dims is None else like(tensor.dims, tensor.strides)
        made = self.make(f"gradient of {name}", tensor.dims, bits, strides)
        self.drop(tensor)
        return made

    def drop(self, tensor: GradientTensor) -> None:
        """One holder less; the last lets go of the block."""
        tensor.holders -= 1
        if tensor.holders == 0:
            self.heap.release(tensor.block)

    def is_writable(self, tensor: GradientTensor) -> bool:
        """Whether a sum may be written over a tensor: nobody else holds it, or looks into it."""
        is_whole = tensor.dims is None or is_dense(tensor.dims, tensor.strides)
        is_free = tensor.holders == 1 and self.heap.is_unique(tensor.block)
        return is_free and is_whole and not tensor.is_view

    def brush(self, label: str, num_bytes: int | None) -> None:
        """Allocate temporaries and free them."""
        if num_bytes:
            self.heap.release(self.heap.allocate(label, Category.TEMPORARY, num_bytes))


def size_bytes(dims: Dims | None, bits: int) -> int:
    """Bytes of a tensor; 0 where its dims are unknown."""
    return 0 if dims is None else -(-prod(dims) * bits // 8)
