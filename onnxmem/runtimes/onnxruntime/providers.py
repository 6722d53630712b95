"""What differs between onnxruntime's execution providers, the CPU and CUDA.

An ``ExecutionProvider`` decides which outputs share an input's buffer, which weights lie in the
arena before the first run, and what of the arena is resident; the plan, the runs and the arena
itself are the same for all. On the CPU kernels pack weights and take scratch, and the arena is
memory of the process; on CUDA all weights lie in the arena, whose regions are memory of the device.

All that is CUDA's was read in the sources of onnxruntime 1.22 and is not confirmed on a GPU.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Protocol

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.model.graph import Graph, Node
from onnxmem.runtimes.assumed import ORT_CONTEXT
from onnxmem.runtimes.onnxruntime.allocation.pattern import rounded_up
from onnxmem.runtimes.onnxruntime.kernels.kernel import Pairs
from onnxmem.runtimes.onnxruntime.kernels.prepacking import (
    Prepacked,
    SessionFacts,
    initializer_reserves,
    prepacked,
)
from onnxmem.runtimes.onnxruntime.kernels.registry import kernel_of
from onnxmem.runtimes.onnxruntime.process.loading import MEASURED
from onnxmem.runtimes.onnxruntime.session_options import GROWTHS, Level, SessionOptions


@dataclass(frozen=True, slots=True)
class ArenaInitializers:
    """Bytes of weights in the arena of a session that is loaded."""

    reserved_bytes: tuple[int, ...]
    """Held beside the regions, each byte for byte."""
    allocated_bytes: tuple[int, ...]
    """Requested like any buffer, in this order: their regions stay."""
    transient_bytes: int = 0
    """By how much more is reserved while a kernel packs what an earlier one has packed."""
    transposed: tuple[tuple[int, int], ...] = ()
    """Requests that are freed at once: how many of the allocated ones precede, and bytes."""

    @property
    def requested_bytes(self) -> int:
        """What the arena holds before the first run."""
        return sum(self.reserved_bytes) + sum(self.allocated_bytes)


class ExecutionProvider(Protocol):
    """One execution provider."""

    @property
    def device(self) -> str:
        """As the keys of run options have it."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether the arena is the process's own memory.

        Then kernels pack weights and take scratch of the arena, and the figures of the process are
        known; else there are a context and workspaces beside it, and the arena has a limit.
        """
        ...

    @property
    def mapped_from_bytes(self) -> int | None:
        """Regions from this size on have pages of their own."""
        ...

    def aliases(self, node: Node) -> Pairs:
        """The outputs of a node that are an input's buffer."""
        ...

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs of a node that may overwrite a dead input."""
        ...

    def has_rule(self, node: Node) -> bool:
        """Whether a rule says what the node's kernel takes of the arena or packs."""
        ...

    def level(self, level: Level) -> Level:
        """How far the graph is optimized where a session asks for a level."""
        ...

    def packing(
        self, graph: Graph, options: SessionOptions, facts: SessionFacts
    ) -> ArenaInitializers:
        """What the arena holds of the weights once a session is loaded."""
        ...

    def packing_of(
        self, sizes_bytes: Sequence[int], options: SessionOptions
    ) -> ArenaInitializers | None:
        """The same from the bytes of the weights; ``None``: more than those decides."""
        ...

    def resident_bytes(self, arena: BfcArena, packed: ArenaInitializers) -> int:
        """What the arena takes of the device's memory, weights aside."""
        ...

    def growth_lines(self, options: SessionOptions) -> tuple[str, ...]:
        """Python that sets how the arena grows."""
        ...


@dataclass(frozen=True, slots=True)
class _Cpu:
    """Pairs that may be overwritten are those of the operators' own records.

    Source: ``KernelDefBuilder::Alias`` and ``MayInplace`` of the registrations, probed on
    onnxruntime 1.31.1.
    """

    device: str = "cpu"
    is_host: bool = True
    mapped_from_bytes: int | None = MEASURED.mmap_threshold_bytes

    def aliases(self, node: Node) -> Pairs:
        """The outputs that are an input's buffer."""
        return (*_indices(node, node.operator.alias), *kernel_of(node.op_type, node.domain).aliases)

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs that may overwrite a dead input."""
        return tuple(_indices(node, node.operator.may_inplace))

    def has_rule(self, node: Node) -> bool:
        """Whether the kernel takes scratch or packs weights."""
        return kernel_of(node.op_type, node.domain).has_rule

    def level(self, level: Level) -> Level:
        """Every level."""
        return level

    def packing(
        self, graph: Graph, options: SessionOptions, facts: SessionFacts
    ) -> ArenaInitializers:
        """What the kernels pack, and small weights that are copied."""
        packed = () if options.disable_prepacking else prepacked(graph, facts)
        small = initializer_reserves(graph, packed)
        reserved = tuple(each for each in packed if each.is_reserved)
        sizes = tuple(each.size_bytes for each in reserved)
        held = accumulate(sizes)
        most = max(
            (now + each.transient_bytes for now, each in zip(held, reserved, strict=True)),
            default=0,
        )
        return ArenaInitializers(
            reserved_bytes=(*sizes, *(each.size_bytes for each in small)),
            allocated_bytes=tuple(each.size_bytes for each in packed if not each.is_reserved),
            transient_bytes=max(most - sum(sizes), 0),
            transposed=tuple(_transposed(packed)),
        )

    def packing_of(self, _sizes_bytes: Sequence[int], _options: SessionOptions) -> None:
        """Each kernel packs in its own way."""
        return

    def resident_bytes(self, arena: BfcArena, packed: ArenaInitializers) -> int:
        """A process's own memory is taken page by page when it is touched."""
        return arena.resident_bytes - sum(packed.allocated_bytes)

    def growth_lines(self, options: SessionOptions) -> tuple[str, ...]:
        """The arena of the whole process is set."""
        number = GROWTHS.index(options.arena_extend_strategy)
        return (
            "arena = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR",
            'memory = onnxruntime.OrtMemoryInfo("Cpu", arena, 0, onnxruntime.OrtMemType.DEFAULT)',
            f'growth = onnxruntime.OrtArenaCfg({{"arena_extend_strategy": {number}}})',
            "onnxruntime.create_and_register_allocator(memory, growth)  # before any session",
            'options.add_session_config_entry("session.use_env_allocators", "1")',
        )


CPU: Final[ExecutionProvider] = _Cpu()


def _transposed(packed: Iterable[Prepacked]) -> Iterator[tuple[int, int]]:
    num_allocated = 0
    for each in packed:
        if each.transposed_bytes:
            yield num_allocated, each.transposed_bytes
        num_allocated += not each.is_reserved


@dataclass(frozen=True, slots=True)
class CudaAssumptions:
    """What no file tells of a GPU: assumptions that can be set."""

    context_bytes: int = ORT_CONTEXT.size_bytes
    workspace_bytes: int | None = None
    """Of cuDNN's convolutions; ``None``: unknown, for cuDNN chooses when it runs."""


@dataclass(frozen=True, slots=True)
class _Cuda:
    device: str = "gpu"
    is_host: bool = False
    mapped_from_bytes: int | None = None

    def aliases(self, node: Node) -> Pairs:
        """The outputs that are an input's buffer."""
        return kernel_of(node.op_type, node.domain).cuda_aliases

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs that may overwrite a dead input."""
        return kernel_of(node.op_type, node.domain).cuda_may_inplace

    def has_rule(self, _node: Node) -> bool:
        """What kernels take is cuDNN's workspace, a term that a user sets."""
        return False

    def level(self, level: Level) -> Level:
        """Blocks of channels are the CPU's alone."""
        return "extended" if level == "all" else level

    def packing(
        self, graph: Graph, options: SessionOptions, _facts: SessionFacts
    ) -> ArenaInitializers:
        """All weights, as the file has them."""
        return self.packing_of([weight.size_bytes or 0 for weight in graph.weights], options)

    def packing_of(self, sizes_bytes: Sequence[int], options: SessionOptions) -> ArenaInitializers:
        """One reserved block where the memory pattern is on, else each is requested apart.

        Source: ``tensor_allocator_with_mem_pattern.h``, ``simple_tensor_allocator.cc``.
        """
        if options.enable_mem_pattern:
            return ArenaInitializers((sum(map(rounded_up, sizes_bytes)),), ())
        return ArenaInitializers((), tuple(sizes_bytes))

    def resident_bytes(self, arena: BfcArena, packed: ArenaInitializers) -> int:
        """A GPU's memory is taken with the region."""
        return arena.reserved_bytes - packed.requested_bytes

    def growth_lines(self, options: SessionOptions) -> tuple[str, ...]:
        """An option of the provider."""
        return (provider_line(f'"arena_extend_strategy": "{options.arena_extend_strategy}"'),)


CUDA: Final[ExecutionProvider] = _Cuda()


def limit_lines(limit_bytes: int | None) -> tuple[str, ...]:
    """Python that limits the arena."""
    limit = provider_line(f'"gpu_mem_limit": "{limit_bytes}"')
    return ("# the limit covers cuDNN's workspaces too: add them", limit)


def provider_line(setting: str) -> str:
    """Python that sets an option of the provider."""
    return f'providers = [("CUDAExecutionProvider", {{{setting}}})]'


PROVIDERS: Final[Mapping[str, ExecutionProvider]] = MappingProxyType(
    {"ort-cpu": CPU, "ort-cuda": CUDA}
)
"""By the name of the runtime."""


def _indices(node: Node, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[int, int]]:
    """Pairs of an operator's parameters as indices."""
    for source, target in pairs:
        yield node.operator.input_index(source), node.operator.output_index(target)
