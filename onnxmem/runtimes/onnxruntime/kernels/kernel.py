"""What a record of a kernel holds, and what its rules are asked with.

A ``Kernel`` says what one kernel of onnxruntime takes, keeps and shares. Its rules are functions of
a ``KernelCall``: the operands and attributes of one use, and what the kernel was told when the
session was made. A rule that needs a shape, a type or a value that is unknown ends there with an
``UnknownError``, which its reader turns into "not known".
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
    """What a kernel knows beside the call: it was built for a session."""

    constants: frozenset[int] = frozenset()
    """Indices of the inputs that are initializers, which a kernel may have packed beforehand."""
    types: tuple[str, ...] = ()
    """Element types of the inputs as ``DType`` names them (``uint8``), ``""`` where left out."""
    opset: int | None = None
    """Version of the operator's domain; ``None``: the newest."""
    cpu: Cpu = AVX512
    threads: int = 1
    """Intra-op threads; some kernels take one buffer a thread."""
    l2_cache_bytes: int = 1 << 20
    """The processor's level-2 cache, by which the flash attention kernels cut their tiles."""


class UnknownError(Exception):
    """A rule needs a dim, a type or a value that is not known."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One use of an operator as a kernel's rules see it."""

    op_call: Call
    info: KernelInfo

    def dims(self, index: int) -> Dims:
        """The dims of an input.

        :raises UnknownError: it is left out, or a dim is unknown.
        """
        operand = self.op_call.input_at(index)
        return _known(None if operand is None else known_dims(operand.shape))

    def out_dims(self, index: int = 0) -> Dims:
        """The dims of an output.

        :raises UnknownError: it is left out, or a dim is unknown.
        """
        operand = self.op_call.output_at(index)
        return _known(None if operand is None else known_dims(operand.shape))

    def element_bytes(self, index: int = 0) -> int:
        """Bytes of an element of an input; 1 for those smaller than a byte.

        :raises UnknownError: it is left out, or its type is unknown.
        """
        operand = self.op_call.input_at(index)
        bits = _known(None if operand is None else operand.bits)
        return max(bits // _BITS_PER_BYTE, 1)

    def size_bytes(self, index: int) -> int:
        """Bytes of an input.

        :raises UnknownError: it is left out, or its size is unknown.
        """
        operand = self.op_call.input_at(index)
        return _known(None if operand is None else operand.size_bytes)

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return self.op_call.input_at(index) is not None

    def has_output(self, index: int) -> bool:
        """Whether an optional output is asked for."""
        return self.op_call.output_at(index) is not None

    def is_constant(self, index: int) -> bool:
        """Whether an input is an initializer."""
        return self.has(index) and index in self.info.constants

    def type(self, index: int) -> str:
        """The element type of an input: ``float16``, ``uint8``.

        :raises UnknownError: it is not given.
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
        """Whether the operator is of an opset version or newer."""
        return self.info.opset is None or self.info.opset >= opset


@dataclass(frozen=True, slots=True)
class Scratch:
    """The temporary allocations of one kernel, as it asks the arena for them: not rounded."""

    blocks: tuple[int, ...] = ()
    """Bytes of each allocation in the order taken; freed at the kernel's end at the latest."""
    num_before_outputs: int = 0
    """Blocks that are taken before the outputs are allocated, so that they lie below them."""
    freed_after: tuple[int | None, ...] = ()
    """For each block, how many have been taken when it is freed; ``None``: at the kernel's end.

    Empty: all are freed at the end. What goes with the last block goes before outputs and passes.
    """
    per_pass: tuple[int, ...] = ()
    """Blocks that are taken after ``blocks`` and freed again, in each pass."""
    passes: int = 0

    @property
    def size_bytes(self) -> int:
        """Every allocation: ``total_temp_allocations`` of onnxruntime's statistics file."""
        return sum(self.blocks) + self.passes * sum(self.per_pass)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are held at once."""
        stops = self.freed_after or (None,) * len(self.blocks)
        held = peak = 0
        for count, size in enumerate(self.blocks, start=1):
            held += size
            peak = max(peak, held)
            gone = zip(self.blocks, stops, strict=True)
            held -= sum(bytes_ for bytes_, stop in gone if stop == count)
        return max(peak, held + sum(self.per_pass)) if self.passes else peak

    def then(self, blocks: Iterable[int]) -> "Scratch":
        """The same, and more blocks that are held to the end."""
        more = tuple(blocks)
        stops = self.freed_after or (None,) * len(self.blocks)
        stops = (*stops, *(None,) * len(more))
        return Scratch((*self.blocks, *more), self.num_before_outputs, stops)


@dataclass(frozen=True, slots=True)
class Packed:
    """What a kernel keeps of one of its constant inputs."""

    index: int
    size_bytes: int
    is_reserved: bool = True
    """Beside the arena's regions; else like any buffer, whose region stays."""
    drops_original: bool = True
    """The kernel needs the initializer no more."""
    transposed_bytes: int = 0
    """What the kernel asks of the arena for a transposed copy, and frees when it has packed."""
    is_shared: bool = True
    """Kernels of one operator share packed bytes that are equal: they hand them over to be kept."""


ScratchRule = Callable[[KernelCall], Iterable[int] | Scratch]
"""The blocks in the order taken; a ``Scratch`` where more must be said of them."""
PackingRule = Callable[[KernelCall], Iterable[Packed]]


def unknown(call: KernelCall) -> NoReturn:  # noqa: ARG001 - a rule like any other
    """No rule is known.

    :raises UnknownError: always.
    """
    raise UnknownError


def nothing(call: KernelCall) -> tuple[()]:  # noqa: ARG001 - a rule like any other
    """Takes nothing, packs nothing."""
    return ()


Pairs = tuple[tuple[int, int], ...]
"""Indices of an input and of an output of a node."""
FIRST: Final[Pairs] = ((0, 0),)


def since(version: int) -> range:
    """Every version of an operator from one on."""
    return range(version, sys.maxsize)


ALWAYS: Final = since(0)
_NEVER: Final = range(0)


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is known of one kernel; on the CPU where nothing else is said."""

    operators: str
    """What it runs: operators with spaces between them, those of other domains than ONNX's own with
    their domain in front (``com.microsoft.FusedConv``)."""
    source: str
    """onnxruntime's files and functions."""
    scratch: ScratchRule = unknown
    """What it takes from the arena for itself while it runs."""
    packing: PackingRule = nothing
    """What it makes of its constant inputs when the session is made."""
    aliases: Pairs = ()
    """Outputs that are an input's buffer (``KernelDefBuilder::Alias``), beside ``OpSpec.alias``;
    outputs that may overwrite an input are in ``OpSpec.may_inplace``."""
    cuda_aliases: Pairs = ()
    """The same of the CUDA kernel, all of them."""
    cuda_may_inplace: Pairs = ()
    """Outputs of the CUDA kernel that may overwrite a dead input (``MayInplace``)."""
    float16: range = _NEVER
    """Versions of the operator that it runs in float16; else casts to float32 stand around it.

    Source: ``get_all_opkernel_def()`` of onnxruntime 1.31.1, and of 1.32.0 for aarch64 on an
    emulated Neoverse N1.
    """
    bfloat16: range = _NEVER
    float16_on_arm: range = _NEVER
    """More of float16, on ARM processors with half-precision arithmetic."""
    reads_rows: bool = False
    """Whether it reads of its first input only the rows that its second one lists."""

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """Domain and type of each operator that it runs."""
        names = (name.rpartition(".") for name in self.operators.split())
        return tuple((domain, op_type) for domain, _, op_type in names)

    @property
    def has_rule(self) -> bool:
        """Whether a rule says what it takes of the arena or packs."""
        return self.scratch not in (unknown, nothing) or self.packing is not nothing


def _known(value: _T | None) -> _T:
    if value is None:
        raise UnknownError
    return value


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the end, counted from the start."""
    return axis + rank if axis < 0 else axis


def product(dims: Iterable[int]) -> int:
    """Multiply dims; 1 for none."""
    return prod(dims)
