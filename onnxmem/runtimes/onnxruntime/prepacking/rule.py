"""What a kernel makes of its constant inputs when the session is made, as plain values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu
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
    turned_bytes: int = 0
    """What the kernel asks of the arena for a transposed copy, and frees when it has packed."""
    is_shared: bool = True
    """Kernels of one operator share packed bytes that are equal: they hand them over to be kept."""


Packs = Callable[[Use], Iterator[Packed]]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What a session's graph doesn't say by itself."""

    contents: Mapping[str, str] = field(default_factory=dict)
    """What weights of equal bytes have in common, by name, as far as it is known."""
    indices: Mapping[str, int] = field(default_factory=dict)
    """onnxruntime's numbers of nodes, by the name of their first output: kernels pack in this
    order, which is the file's, nodes that the optimiser has made after all others."""
    cpu: Cpu = AVX512
    """That packs the weights: MLAS packs for its own kernels."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one operator's CPU kernel packs."""

    op_type: str
    domain: str
    packs: Packs
    source: str
    """onnxruntime's file and function."""
