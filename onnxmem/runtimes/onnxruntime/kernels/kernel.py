"""The record of a kernel, and the input of its rules.

A ``Kernel`` describes the scratch, the prepacked weights and the shared buffers of one kernel of
onnxruntime. Its rules are functions of a ``KernelCall``: the operands and attributes of one node,
and what the kernel knows about its session. A rule that needs an unknown shape, type or value
raises ``UnknownError``; the caller then reports the scratch as unknown.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Final, NoReturn, TypeVar

from onnxmem.ops.spec import Call, Dims, known_dims
from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu

FLOAT_BYTES: Final = 4
HALF_BYTES: Final = 2
_BITS_PER_BYTE: Final = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What a kernel knows about its session (``OpKernelInfo``)."""

    constants: frozenset[int] = frozenset()
    """Indices of the inputs that are initializers, which a kernel may have prepacked."""
    types: tuple[str, ...] = ()
    """Element types of the inputs by ``DType`` names (``uint8``); ``""`` if an input is omitted."""
    opset: int | None = None
    """Version of the operator's domain; ``None`` means the newest."""
    cpu: Cpu = AVX512
    threads: int = 1
    """Intra-op threads; some kernels allocate one buffer per thread."""
    l2_cache_bytes: int = 1 << 20
    """Size of the level-2 cache, from which flash attention kernels compute their tile size."""


class UnknownError(Exception):
    """A rule needs a dim, a type or a value that is not known."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One node, as the rules of its kernel see it."""

    op_call: Call
    info: KernelInfo

    def dims(self, index: int) -> Dims:
        """The dims of an input.

        :raises UnknownError: it is omitted, or a dim is unknown.
        """
        operand = self.op_call.input_at(index)
        return _known(None if operand is None else known_dims(operand.shape))

    def out_dims(self, index: int = 0) -> Dims:
        """The dims of an output.

        :raises UnknownError: it is omitted, or a dim is unknown.
        """
        operand = self.op_call.output_at(index)
        return _known(None if operand is None else known_dims(operand.shape))

    def element_bytes(self, index: int = 0) -> int:
        """Bytes of an element of an input; 1 for types smaller than a byte.

        :raises UnknownError: it is omitted, or its type is unknown.
        """
        operand = self.op_call.input_at(index)
        bits = _known(None if operand is None else operand.bits)
        return max(bits // _BITS_PER_BYTE, 1)

    def size_bytes(self, index: int) -> int:
        """Bytes of an input.

        :raises UnknownError: it is omitted, or its size is unknown.
        """
        operand = self.op_call.input_at(index)
        return _known(None if operand is None else operand.size_bytes)

    def has(self, index: int) -> bool:
        """Whether an optional input is present."""
        return self.op_call.input_at(index) is not None

    def has_output(self, index: int) -> bool:
        """Whether an optional output is present."""
        return self.op_call.output_at(index) is not None

    def is_constant(self, index: int) -> bool:
        """Whether an input is an initializer."""
        return self.has(index) and index in self.info.constants

    def type(self, index: int) -> str:
        """The element type of an input: ``float16``, ``uint8``.

        :raises UnknownError: the types are unknown.
        """
        return _known(self.info.types[index] if index < len(self.info.types) else None)

    def values(self, index: int) -> tuple[int | float, ...]:
        """The elements of a small constant input.

        :raises UnknownError: they are computed at run time.
        """
        operand = self.op_call.input_at(index)
        return _known(None if operand is None else operand.value)

    def scalar(self, index: int) -> int:
        """The only element of a small constant input.

        :raises UnknownError: it is computed at run time, or is not an integer.
        """
        values = self.values(index)
        if len(values) != 1 or not isinstance(values[0], int):
            raise UnknownError
        return values[0]

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.op_call.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def integers(self, name: str, default: Iterable[int] = ()) -> Dims:
        """A list attribute of integers."""
        value = self.op_call.attributes.get(name)
        if not isinstance(value, tuple) or not value:
            return tuple(default)
        return tuple(int(item) for item in value)

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.op_call.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def is_at_least(self, opset: int) -> bool:
        """Whether the operator set has this version or a newer one."""
        return self.info.opset is None or self.info.opset >= opset


@dataclass(frozen=True, slots=True)
class Scratch:
    """The temporary allocations of one kernel, in requested bytes, before the arena rounds them."""

    blocks: tuple[int, ...] = ()
    """Bytes of each allocation, in sequence; all are freed when the kernel ends, if not before."""
    num_before_outputs: int = 0
    """How many blocks are allocated before the outputs, so that they get lower addresses."""
    freed_after: tuple[int | None, ...] = ()
    """For each block, the number of allocations after which it is freed; ``None`` is the end.

    Empty if all are freed at the end. A block that is freed after the last allocation is freed
    before the outputs and the passes.
    """
    per_pass: tuple[int, ...] = ()
    """Blocks that each pass allocates after ``blocks``, and frees again."""
    passes: int = 0
    num_before_half: int | None = None
    """How many blocks are allocated before half of the work is done; ``None``: all are, before it
    begins."""

    @property
    def size_bytes(self) -> int:
        """The sum of all allocations: ``total_temp_allocations`` in onnxruntime's statistics."""
        return sum(self.blocks) + self.passes * sum(self.per_pass)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are allocated at once."""
        stops = self.freed_after or (None,) * len(self.blocks)
        allocated = peak = 0
        for count, size in enumerate(self.blocks, start=1):
            allocated += size
            peak = max(peak, allocated)
            # A block is freed after the allocation that its stop counts, so both overlap.
            freed = zip(self.blocks, stops, strict=True)
            allocated -= sum(bytes_ for bytes_, stop in freed if stop == count)
        return max(peak, allocated + sum(self.per_pass)) if self.passes else peak

    def then(self, blocks: Iterable[int]) -> "Scratch":
        """The same scratch with more blocks, which are freed at the end."""
        more = tuple(blocks)
        stops = self.freed_after or (None,) * len(self.blocks)
        stops = (*stops, *(None,) * len(more))
        return Scratch((*self.blocks, *more), self.num_before_outputs, stops)


@dataclass(frozen=True, slots=True)
class Packed:
    """The prepacked form of one constant input."""

    index: int
    """Index of the input."""
    size_bytes: int
    is_reserved: bool = True
    """Whether it is reserved outside the arena's regions (``Reserve``), not allocated in one."""
    drops_original: bool = True
    """Whether the kernel no longer needs the initializer."""
    transposed_bytes: int = 0
    """Bytes of a transposed copy that the kernel allocates while it packs, and then frees."""
    is_shared: bool = True
    """Whether kernels of one operator share equal packed bytes (``PrePackedWeights``)."""


ScratchRule = Callable[[KernelCall], Iterable[int] | Scratch]
"""Returns the blocks in sequence, or a ``Scratch`` if some are not freed at the end."""
PackingRule = Callable[[KernelCall], Iterable[Packed]]


def unknown(call: KernelCall) -> NoReturn:  # noqa: ARG001 - a rule like any other
    """The rule of kernels whose scratch is unknown.

    :raises UnknownError: always.
    """
    raise UnknownError


def nothing(call: KernelCall) -> tuple[()]:  # noqa: ARG001 - a rule like any other
    """The rule of kernels that allocate, or pack, nothing."""
    return ()


Pairs = tuple[tuple[int, int], ...]
"""Indices of an input and of an output of a node."""
FIRST: Final[Pairs] = ((0, 0),)


def since(version: int) -> range:
    """All versions of an operator from one on."""
    return range(version, sys.maxsize)


ALWAYS: Final = since(0)
_NEVER: Final = range(0)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of onnxruntime; the CPU's, unless a field names another provider."""

    operators: str
    """The operators that it runs, separated by spaces; those outside ONNX's own domain are prefixed
    by their domain (``com.microsoft.FusedConv``)."""
    source: str
    """onnxruntime's files and functions."""
    scratch: ScratchRule = unknown
    """What it allocates in the arena for itself while it runs."""
    packing: PackingRule = nothing
    """How it prepacks its constant inputs when the session is created (``PrePack``)."""
    aliases: Pairs = ()
    """Outputs that share an input's buffer (``KernelDefBuilder::Alias``), beside ``OpSpec.alias``;
    outputs that may overwrite an input are in ``OpSpec.may_inplace``."""
    cuda_aliases: Pairs = ()
    """All outputs of the CUDA kernel that share an input's buffer."""
    cuda_may_inplace: Pairs = ()
    """Outputs of the CUDA kernel that may overwrite a dead input (``MayInplace``)."""
    cuda_scratch: ScratchRule = nothing
    """What the CUDA kernel allocates in the arena for itself, without workspaces of cuDNN."""
    float16: range = _NEVER
    """Versions of the operator that it runs in float16; others run in float32 between casts.

    Source: ``get_all_opkernel_def()`` of onnxruntime 1.31.1, and of 1.32.0 for aarch64 on an
    emulated Neoverse N1.
    """
    bfloat16: range = _NEVER
    float16_on_arm: range = _NEVER
    """Further float16 versions on ARM CPUs with half-precision arithmetic."""
    reads_rows: bool = False
    """Whether it reads only the rows of its first input that its second input lists."""

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """The domain and type of each operator that it runs."""
        names = (name.rpartition(".") for name in self.operators.split())
        return tuple((domain, op_type) for domain, _, op_type in names)

    @property
    def has_rule(self) -> bool:
        """Whether it has a rule for scratch or packing."""
        return self.scratch not in (unknown, nothing) or self.packing is not nothing


def _known(value: _T | None) -> _T:
    if value is None:
        raise UnknownError
    return value


def axis_of(axis: int, rank: int) -> int:
    """The index of an axis that may be counted from the end."""
    return axis + rank if axis < 0 else axis


def product(dims: Iterable[int]) -> int:
    """The product of dims; 1 if there are none."""
    return prod(dims)
