"""CUDA: all weights lie in the arena, whose regions are memory of the device.

All of this was read in the sources of onnxruntime 1.22 and is not confirmed on a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.model import Graph, Node
from onnxmem.runtimes.assumed import ORT_CONTEXT
from onnxmem.runtimes.onnxruntime.allocation.pattern import rounded_up
from onnxmem.runtimes.onnxruntime.prepacking import SessionFacts
from onnxmem.runtimes.onnxruntime.providers.provider import (
    ExecutionProvider,
    Packing,
    Pairs,
    index_pairs,
)
from onnxmem.runtimes.onnxruntime.session_options import Level, SessionOptions

_ALIAS: Final = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_OVERWRITES_FIRST: Final = frozenset(
    {
        *("Affine", "Elu", "Gelu", "HardSigmoid", "LeakyRelu", "MoE", "ParametricSoftplus"),
        *("QMoE", "QuickGelu", "Relu", "ScaledTanh", "ScatterND", "Selu", "ShardedMoE"),
        *("Shrink", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu", "Trilu"),
    }
)
_OVERWRITES: Final = {
    "Attention": ((4, 1),),
    "DecoderMaskedSelfAttention": ((4, 1),),
    "DecoderMaskedMultiHeadAttention": ((5, 1), (6, 2)),
    "GroupQueryAttention": ((3, 1), (4, 2)),
    "SparseAttention": ((3, 1), (4, 2)),
}


@dataclass(frozen=True, slots=True)
class CudaTerms:
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
        return tuple(index_pairs(node, node.operator.alias)) if node.op_type in _ALIAS else ()

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs that may overwrite a dead input."""
        if node.op_type in _OVERWRITES_FIRST:
            return ((0, 0),)
        return _OVERWRITES.get(node.op_type, ()) if node.domain else ()

    def has_rule(self, _node: Node) -> bool:
        """What kernels take is cuDNN's workspace, a term that a user sets."""
        return False

    def level(self, level: Level) -> Level:
        """Blocks of channels are the CPU's alone."""
        return "extended" if level == "all" else level

    def packing(self, graph: Graph, options: SessionOptions, _facts: SessionFacts) -> Packing:
        """All weights, as the file has them."""
        return self.packing_of([weight.size_bytes or 0 for weight in graph.weights], options)

    def packing_of(self, sizes_bytes: Sequence[int], options: SessionOptions) -> Packing:
        """One reserved block where the memory pattern is on, else each is requested apart.

        Source: ``tensor_allocator_with_mem_pattern.h``, ``simple_tensor_allocator.cc``.
        """
        if options.enable_mem_pattern:
            return Packing((sum(map(rounded_up, sizes_bytes)),), ())
        return Packing((), tuple(sizes_bytes))

    def resident_bytes(self, arena: BfcArena, packed: Packing) -> int:
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
