"""What of the weights lies in the arena before the first node runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from onnxmem.model import Graph
from onnxmem.runtimes.onnxruntime.allocation.kernels import Kernels
from onnxmem.runtimes.onnxruntime.allocation.pattern import rounded_up
from onnxmem.runtimes.onnxruntime.prepacking import (
    Prepacked,
    SessionFacts,
    initializer_reserves,
    prepacked,
)
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions


@dataclass(frozen=True, slots=True)
class Packing:
    """Bytes of weights in the arena of a session that is loaded."""

    reserved_bytes: tuple[int, ...]
    """Held beside the regions, each byte for byte."""
    allocated_bytes: tuple[int, ...]
    """Requested like any buffer, in this order: their regions stay."""
    passing_bytes: int = 0
    """By how much more is reserved while a kernel packs what an earlier one has packed."""
    turned: tuple[tuple[int, int], ...] = ()
    """Requests that are freed at once: how many of the allocated ones precede, and bytes."""

    @property
    def requested_bytes(self) -> int:
        """What the arena holds before the first run."""
        return sum(self.reserved_bytes) + sum(self.allocated_bytes)


def on_cuda(sizes_bytes: Sequence[int], options: SessionOptions) -> Packing:
    """Weights in the arena of a GPU, from their bytes.

    In one reserved block where the memory pattern is on, else each requested apart
    (``tensor_allocator_with_mem_pattern.h``, ``simple_tensor_allocator.cc``; read in the sources,
    not measured).
    """
    if options.enable_mem_pattern:
        return Packing((sum(map(rounded_up, sizes_bytes)),), ())
    return Packing((), tuple(sizes_bytes))


def packing(
    graph: Graph,
    options: SessionOptions,
    kernels: Kernels,
    facts: SessionFacts | None = None,
) -> Packing:
    """What a session's arena holds of the weights once it is loaded.

    On CUDA all of them, on CPU what the kernels pack, and small ones that are copied.
    """
    if kernels.provider == "cuda":
        return on_cuda([weight.size_bytes or 0 for weight in graph.weights], options)
    packed = () if options.disable_prepacking else prepacked(graph, facts or SessionFacts())
    small = initializer_reserves(graph, packed)
    reserved = tuple(each for each in packed if each.is_reserved)
    sizes = tuple(each.size_bytes for each in reserved)
    held = accumulate(sizes)
    most = max(
        (now + each.passing_bytes for now, each in zip(held, reserved, strict=True)), default=0
    )
    return Packing(
        reserved_bytes=(*sizes, *(each.size_bytes for each in small)),
        allocated_bytes=tuple(each.size_bytes for each in packed if not each.is_reserved),
        passing_bytes=max(most - sum(sizes), 0),
        turned=tuple(_turned(packed)),
    )


def _turned(packed: Iterable[Prepacked]) -> Iterator[tuple[int, int]]:
    num_allocated = 0
    for each in packed:
        if each.turned_bytes:
            yield num_allocated, each.turned_bytes
        num_allocated += not each.is_reserved
