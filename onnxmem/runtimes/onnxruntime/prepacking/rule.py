"""What a kernel makes of its constant inputs when the session is made, as plain values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from onnxmem.runtimes.onnxruntime.kernel_use import Use


@dataclass(frozen=True, slots=True)
class Packed:
    """What a kernel keeps of one of its constant inputs."""

    place: int
    size_bytes: int
    is_reserved: bool = True
    """Beside the arena's regions; else like any buffer, whose region stays."""
    drops_original: bool = True
    """The kernel needs the initializer no more."""
    is_shared: bool = True
    """Kernels of one operator share packed bytes that are equal: they hand them over to be kept."""


Packs = Callable[[Use], Iterator[Packed]]


@dataclass(frozen=True, slots=True)
class Rule:
    """What one operator's CPU kernel packs."""

    op_type: str
    domain: str
    packs: Packs
    source: str
    """onnxruntime's file and function."""
