"""The differences between onnxruntime's execution providers, CPU and CUDA.

An ``ExecutionProvider`` decides which outputs share an input's buffer, which weights are in the
arena before the first run, and which part of the arena is resident. The plan, the runs and the
arena are the same for all. On the CPU, kernels prepack weights and allocate scratch, and the arena
is memory of the process. On CUDA, all weights are in the arena, whose regions are device memory.

The rules of CUDA are from the sources of onnxruntime, and were held against what it requested of
its arena on an H200.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Protocol

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.model.graph import Graph, Node, Role
from onnxmem.ops.spec import known_dims
from onnxmem.runtimes.assumed import ORT_CONTEXT
from onnxmem.runtimes.onnxruntime.kernels.kernel import Pairs, nothing
from onnxmem.runtimes.onnxruntime.kernels.prepacking import (
    Prepacked,
    SessionFacts,
    initializer_reserves,
    prepacked,
)
from onnxmem.runtimes.onnxruntime.kernels.registry import kernel_of
from onnxmem.runtimes.onnxruntime.process.baselines import NEWEST
from onnxmem.runtimes.onnxruntime.session_options import GROWTHS, SessionOptions


@dataclass(frozen=True, slots=True)
class ArenaInitializers:
    """The arena initializers of a loaded session: prepacked and copied weights."""

    reserved_bytes: tuple[int, ...]
    """Reserved outside the regions, without rounding."""
    allocated_bytes: tuple[int, ...]
    """Requested like other buffers, in this order."""
    transient_bytes: int = 0
    """By how much the peak of the reserved bytes exceeds their sum: a kernel packs a weight before
    it finds an equal packed copy to share."""
    transposed: tuple[tuple[int, int], ...] = ()
    """Temporary requests: the number of allocated ones before it, and bytes."""

    @property
    def requested_bytes(self) -> int:
        """Requested bytes of the arena before the first run."""
        return sum(self.reserved_bytes) + sum(self.allocated_bytes)


class ExecutionProvider(Protocol):
    """One execution provider."""

    @property
    def device(self) -> str:
        """The name in the keys of run options."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether the arena is memory of the process.

        If so, kernels prepack weights and allocate scratch in it, and the memory of the process is
        known. Otherwise there are a context and workspaces, and the arena has a limit.
        """
        ...

    @property
    def mapped_from_bytes(self) -> int | None:
        """Regions of at least this size are mapped separately; ``None``: none is."""
        ...

    def aliases(self, node: Node) -> Pairs:
        """The outputs of a node that share an input's buffer."""
        ...

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs of a node that may overwrite a dead input."""
        ...

    def has_rule(self, node: Node) -> bool:
        """Whether there is a rule for the scratch or the prepacked weights of the node's kernel."""
        ...

    def packing(
        self, graph: Graph, options: SessionOptions, facts: SessionFacts
    ) -> ArenaInitializers:
        """The arena initializers of a loaded session."""
        ...

    def resident_bytes(self, arena: BfcArena, packed: ArenaInitializers) -> int:
        """Memory of the device that the arena uses, without initializers."""
        ...

    def growth_lines(self, options: SessionOptions) -> tuple[str, ...]:
        """Python code that sets the arena's growth strategy."""
        ...


@dataclass(frozen=True, slots=True)
class _Cpu:
    """In-place pairs are those of the operators' own records.

    Source: ``KernelDefBuilder::Alias`` and ``MayInplace`` of the registrations, probed on
    onnxruntime 1.31.1.
    """

    device: str = "cpu"
    is_host: bool = True
    mapped_from_bytes: int | None = NEWEST.mmap_threshold_bytes

    def aliases(self, node: Node) -> Pairs:
        """The outputs that share an input's buffer."""
        return (*_indices(node, node.operator.alias), *kernel_of(node.op_type, node.domain).aliases)

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs that may overwrite a dead input."""
        return tuple(_indices(node, node.operator.may_inplace))

    def has_rule(self, node: Node) -> bool:
        """Whether the kernel allocates scratch or prepacks weights."""
        return kernel_of(node.op_type, node.domain).has_rule

    def packing(
        self, graph: Graph, options: SessionOptions, facts: SessionFacts
    ) -> ArenaInitializers:
        """Weights prepacked by kernels, and small weights, which are copied."""
        # A weight that a kernel packed leaves no copy in the arena, hence the packed ones first.
        packed = () if options.disable_prepacking else prepacked(graph, facts)
        small = initializer_reserves(graph, packed)
        reserved = tuple(each for each in packed if each.is_reserved)
        sizes = tuple(each.size_bytes for each in reserved)
        # The peak while the weights are packed one after another, above their final sum.
        so_far = accumulate(sizes)
        most = max(
            (now + each.transient_bytes for now, each in zip(so_far, reserved, strict=True)),
            default=0,
        )
        return ArenaInitializers(
            reserved_bytes=(*sizes, *(each.size_bytes for each in small)),
            allocated_bytes=tuple(each.size_bytes for each in packed if not each.is_reserved),
            transient_bytes=max(most - sum(sizes), 0),
            transposed=tuple(_transposed(packed)),
        )

    def resident_bytes(self, arena: BfcArena, packed: ArenaInitializers) -> int:
        """Memory of a process becomes resident page by page when it is written."""
        return arena.resident_bytes - sum(packed.allocated_bytes)

    def growth_lines(self, options: SessionOptions) -> tuple[str, ...]:
        """Set the growth strategy of the process's shared arena."""
        number = GROWTHS.index(options.arena_extend_strategy)
        return (
            "arena = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR",
            "kind = onnxruntime.OrtMemType.DEFAULT",
            'memory = onnxruntime.OrtMemoryInfo("Cpu", arena, 0, kind)',
            f'growth = onnxruntime.OrtArenaCfg({{"arena_extend_strategy": {number}}})',
            "# before any session:",
            "onnxruntime.create_and_register_allocator(memory, growth)",
            'options.add_session_config_entry("session.use_env_allocators", "1")',
        )


CPU: Final[ExecutionProvider] = _Cpu()


def _transposed(packed: Iterable[Prepacked]) -> Iterator[tuple[int, int]]:
    # The copy comes before the packed weight that it serves.
    num_allocated = 0
    for each in packed:
        if each.transposed_bytes:
            yield num_allocated, each.transposed_bytes
        num_allocated += not each.is_reserved


@dataclass(frozen=True, slots=True)
class CudaAssumptions:
    """Memory of a GPU that no file determines: assumptions that can be set."""

    context_bytes: int = ORT_CONTEXT.size_bytes
    workspace_bytes: int | None = None
    """Of cuDNN's convolutions; ``None``: unknown, because cuDNN chooses algorithms at run time."""


_RECURRENT: Final = frozenset({"GRU", "LSTM", "RNN"})


@dataclass(frozen=True, slots=True)
class _Cuda:
    device: str = "gpu"
    is_host: bool = False
    mapped_from_bytes: int | None = None

    def aliases(self, node: Node) -> Pairs:
        """The outputs that share an input's buffer."""
        return kernel_of(node.op_type, node.domain).cuda_aliases

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs that may overwrite a dead input."""
        return kernel_of(node.op_type, node.domain).cuda_may_inplace

    def has_rule(self, node: Node) -> bool:
        """Whether the kernel allocates more than cuDNN's workspace, which is an assumption."""
        return kernel_of(node.op_type, node.domain).cuda_scratch is not nothing

    def packing(
        self, graph: Graph, _options: SessionOptions, facts: SessionFacts
    ) -> ArenaInitializers:
        """The weights that are not on the host, then what cuDNN's kernels pack again.

        Each is requested from the arena by itself, which extends as for any request. The log of
        onnxruntime 1.31 shows it on an H200, with and without the memory pattern: its planned block
        (``tensor_allocator_with_mem_pattern.h``) is not used for weights. Their order is that of a
        hash map; here it is the file's.
        """
        weights = (weight for weight in graph.weights if weight.name not in facts.host)
        sizes = (weight.size_bytes or 0 for weight in weights)
        on_cuda = (node for node in graph.all_nodes() if facts.host.isdisjoint(node.writes))
        packed = (_recurrent_bytes(graph, node) for node in on_cuda)
        return ArenaInitializers((), (*sizes, *filter(None, packed)))

    def resident_bytes(self, arena: BfcArena, packed: ArenaInitializers) -> int:
        """Memory of a GPU is allocated with the region."""
        return arena.reserved_bytes - packed.requested_bytes

    def growth_lines(self, options: SessionOptions) -> tuple[str, ...]:
        """Set the option of the provider."""
        return (provider_line(f'"arena_extend_strategy": "{options.arena_extend_strategy}"'),)


CUDA: Final[ExecutionProvider] = _Cuda()


def _recurrent_bytes(graph: Graph, node: Node) -> int:
    """A recurrent node's weights in the layout of cuDNN; 0: it has none, or they are not constant.

    ``CudnnRnnBase::CacheCudnnRnnWeights`` allocates it with room for both biases. The states of
    cuDNN's dropout come on top, by a number of the device.
    """
    if node.domain or node.op_type not in _RECURRENT:
        return 0
    weights = [graph.tensors[name] for name in node.inputs[1:3] if name]
    if [each.role for each in weights] != [Role.WEIGHT, Role.WEIGHT]:
        return 0
    of_inputs, of_state = (each.size_bytes or 0 for each in weights)
    columns = known_dims(weights[0].shape)
    # W is [directions, rows, inputs], and both biases together are two more columns of it.
    return of_inputs + of_state + (2 * of_inputs // columns[-1] if columns and columns[-1] else 0)


def limit_lines(limit_bytes: int | None) -> tuple[str, ...]:
    """Python code that limits the arena."""
    limit = provider_line(f'"gpu_mem_limit": "{limit_bytes}"')
    return ("# the limit covers cuDNN's workspaces too: add them", limit)


def provider_line(setting: str) -> str:
    """Python code that sets an option of the provider."""
    return f'providers = [("CUDAExecutionProvider", {{{setting}}})]'


PROVIDERS: Final[Mapping[str, ExecutionProvider]] = MappingProxyType(
    {"ort-cpu": CPU, "ort-cuda": CUDA}
)
"""By the name of the runtime."""


def _indices(node: Node, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[int, int]]:
    """Pairs of input and output names as indices."""
    for source, target in pairs:
        yield node.operator.input_index(source), node.operator.output_index(target)
