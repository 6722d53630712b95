"""One use of an operator as a kernel sees it: its call, and what its session told it beforehand."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from onnxmem.ops.spec import Call, Dims, known_dims
from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu

_BITS_PER_BYTE = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Site:
    """What a kernel knows beside the call: it was built for a session."""

    constants: frozenset[int] = frozenset()
    """Places of the inputs that are initializers, which a kernel may have packed beforehand."""
    types: tuple[str, ...] = ()
    """Element types of the inputs as ``DType`` names them (``uint8``), ``""`` where left out."""
    opset: int | None = None
    """Version of the operator's domain; ``None``: the newest."""
    cpu: Cpu = AVX512
    threads: int = 1
    """Intra-op threads; some kernels take one buffer a thread."""
    l2_cache_bytes: int = 1 << 20
    """The processor's level-2 cache, by which the flash attention kernels cut their tiles."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an operator as its scratch rule sees it."""

    call: Call
    site: Site

    def dims(self, place: int) -> Dims:
        """The dims of an input.

        :raises UnknownError: it is left out, or a dim is unknown.
        """
        operand = self.call.input_at(place)
        known = None if operand is None else known_dims(operand.shape)
        return _known(known)

    def out_dims(self, place: int = 0) -> Dims:
        """The dims of an output.

        :raises UnknownError: it is left out, or a dim is unknown.
        """
        operand = self.call.output_at(place)
        known = None if operand is None else known_dims(operand.shape)
        return _known(known)

    def element_bytes(self, place: int = 0) -> int:
        """Bytes of an element of an input; 1 for those smaller than a byte.

        :raises UnknownError: it is left out, or its type is unknown.
        """
        operand = self.call.input_at(place)
        bits = _known(None if operand is None else operand.bits)
        return max(bits // _BITS_PER_BYTE, 1)

    def size_bytes(self, place: int) -> int:
        """Bytes of an input.

        :raises UnknownError: it is left out, or its size is unknown.
        """
        operand = self.call.input_at(place)
        return _known(None if operand is None else operand.size_bytes)

    def has(self, place: int) -> bool:
        """Whether an optional input is given."""
        return self.call.input_at(place) is not None

    def has_output(self, place: int) -> bool:
        """Whether an optional output is asked for."""
        return self.call.output_at(place) is not None

    def is_constant(self, place: int) -> bool:
        """Whether an input is an initializer."""
        return self.has(place) and place in self.site.constants

    def type(self, place: int) -> str:
        """The element type of an input: ``float16``, ``uint8``.

        :raises UnknownError: it is not given.
        """
        return _known(self.site.types[place] if place < len(self.site.types) else None)

    def values(self, place: int) -> tuple[int | float, ...]:
        """The elements of a small constant input.

        :raises UnknownError: they are computed at run time.
        """
        operand = self.call.input_at(place)
        return _known(None if operand is None else operand.value)

    def whole(self, place: int) -> int:
        """The only element of a small constant input.

        :raises UnknownError: it is computed at run time, or no whole number.
        """
        values = self.values(place)
        if len(values) != 1 or not isinstance(values[0], int):
            raise UnknownError
        return values[0]

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.call.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def integers(self, name: str, default: Iterable[int] = ()) -> Dims:
        """A list attribute of integers."""
        value = self.call.attributes.get(name)
        if not isinstance(value, tuple) or not value:
            return tuple(default)
        return tuple(int(item) for item in value)

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.call.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def is_at_least(self, opset: int) -> bool:
        """Whether the operator is of an opset version or newer."""
        return self.site.opset is None or self.site.opset >= opset


class UnknownError(Exception):
    """A rule needs a dim, a type or a value that is not known."""


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
