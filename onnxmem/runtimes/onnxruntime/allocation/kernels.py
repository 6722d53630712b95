"""Which outputs of a kernel share an input's buffer, by execution provider.

``alias`` pairs always do; ``may_inplace`` pairs do where the planner finds the input dead.
The CPU's pairs are those of the operators' own records (``KernelDefBuilder::Alias`` and
``MayInplace`` of the registrations, probed on onnxruntime 1.31.1); CUDA's were read in the sources
of 1.22 and are not confirmed on a GPU.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from onnxmem.model import Node

_CPU_ALIAS: Final = {
    "BatchNormalization": ((3, 1), (4, 2)),
    "ExpandDims": ((0, 0),),
    "Optional": ((0, 0),),
    "OptionalGetElement": ((0, 0),),
}
"""Beside the views: running statistics are updated where they are."""
_CUDA_ALIAS: Final = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_CUDA_INPLACE_FIRST: Final = frozenset(
    {
        *("Affine", "Elu", "Gelu", "HardSigmoid", "LeakyRelu", "MoE", "ParametricSoftplus"),
        *("QMoE", "QuickGelu", "Relu", "ScaledTanh", "ScatterND", "Selu", "ShardedMoE"),
        *("Shrink", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu", "Trilu"),
    }
)
_CUDA_INPLACE: Final = {
    "Attention": ((4, 1),),
    "DecoderMaskedSelfAttention": ((4, 1),),
    "DecoderMaskedMultiHeadAttention": ((5, 1), (6, 2)),
    "GroupQueryAttention": ((3, 1), (4, 2)),
    "SparseAttention": ((3, 1), (4, 2)),
}


@dataclass(frozen=True, slots=True)
class Kernels:
    """The sharing rules of one execution provider."""

    provider: str
    """``cpu`` or ``cuda``."""

    def aliases(self, node: Node) -> tuple[tuple[int, int], ...]:
        """(input, output) places of a node whose output is the input's buffer."""
        if self.provider == "cpu":
            return (*_places(node, node.operator.alias), *_CPU_ALIAS.get(node.op_type, ()))
        return tuple(_places(node, node.operator.alias)) if node.op_type in _CUDA_ALIAS else ()

    def may_overwrite(self, node: Node) -> tuple[tuple[int, int], ...]:
        """(input, output) places of a node whose output may overwrite a dead input."""
        if self.provider == "cpu":
            return tuple(_places(node, node.operator.may_inplace))
        if node.op_type in _CUDA_INPLACE_FIRST:
            return ((0, 0),)
        return _CUDA_INPLACE.get(node.op_type, ()) if node.domain else ()


CPU: Final = Kernels("cpu")
CUDA: Final = Kernels("cuda")


def _places(node: Node, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[int, int]]:
    for source, target in pairs:
        yield node.operator.input_index(source), node.operator.output_index(target)
