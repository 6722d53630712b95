"""The releases of onnxruntime that were verified, and what each does otherwise than the rules.

The rules of this package are those of the newest verified release. Each earlier one was compared
with them: its graphs, shapes, kernels and arena, case by case
(``tests/data/onnxruntime/versions.json``). A ``Change`` stands for cases that differ, with the
nodes that a model must have to be affected by it. The test of this module compares the changes with
the cases, so that none is left out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from onnxmem.errors import UsageError
from onnxmem.model.graph import DType, Graph, Node, Role, Tensor
from onnxmem.runtimes.onnxruntime.memory import VERIFIED
from onnxmem.runtimes.onnxruntime.optimizer.transpose_pushing import HANDLERS
from onnxmem.runtimes.onnxruntime.process.baselines import BASELINES, Baseline

_VERSION: Final = re.compile(r"\d+\.\d+(\.\d+)?")
_PLAIN_EPSILONS: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
_FOUR_BITS: Final = 4
_WITH_ZERO_POINT: Final = 3
"""Inputs of a QuantizeLinear that has a zero point."""
_NEW_IN_1_30: Final = frozenset(
    {
        *("BranchwiseRMSNorm", "CausalConvWithState", "GatedAdd", "GatedRMSNorm"),
        *("LinearAttentionGate", "ScaledSiLU"),
    }
)
"""Operators whose shapes or kernels the release before did not have."""


@dataclass(frozen=True, slots=True)
class Change:
    """What releases up to one do otherwise than the rules."""

    name: str
    last: str
    """The last release that differs."""
    what: str
    """What is treated differently, in words."""
    affects: Callable[[Graph], bool]
    """Whether a model has it."""


@dataclass(frozen=True, slots=True)
class Release:
    """A minor release on which the rules were verified."""

    name: str
    """Major and minor version."""
    measured: str
    """The patch release that was measured."""

    def changes(self, graph: Graph) -> tuple[Change, ...]:
        """What the release does otherwise than the rules, as far as a model has it."""
        here = VERIFIED.index(self.name)
        return tuple(
            each for each in CHANGES if here <= VERIFIED.index(each.last) and each.affects(graph)
        )

    @property
    def baseline(self) -> Baseline:
        """What its process takes beside weights and arenas."""
        return BASELINES[self.name]


# --------------------------------------------------------------------------------------------------
# What a model must have. Each is as wide as the cases that differ, or wider: a model that is not
# affected has none of them.


_OWN_DOMAINS: Final = frozenset({"", "com.microsoft"})


def _operator(node: Node) -> str:
    """ONNX's or onnxruntime's, which rewrites ONNX's to it; ``""``: of someone else's domain."""
    return node.op_type if node.domain in _OWN_DOMAINS else ""


def _has_operator(*op_types: str) -> Callable[[Graph], bool]:
    return lambda graph: any(_operator(node) in op_types for node in graph.all_nodes())


def _chains(graph: Graph, *steps: str) -> Iterator[tuple[Node, ...]]:
    """Nodes of these operators in a row, each of which reads what the one before writes."""
    writers = {name: node for node in graph.all_nodes() for name in node.writes}
    alternatives = [step.split("|") for step in steps]

    def before(node: Node, left: int) -> Iterator[tuple[Node, ...]]:
        if left < 0:
            yield (node,)
            return
        for source in (writers[name] for name in node.reads if name in writers):
            if _operator(source) in alternatives[left]:
                yield from ((*chain, node) for chain in before(source, left - 1))

    for node in graph.all_nodes():
        if _operator(node) in alternatives[-1]:
            yield from before(node, len(steps) - 2)


def _has_chain(*steps: str) -> Callable[[Graph], bool]:
    return lambda graph: any(True for _ in _chains(graph, *steps))


def _input(graph: Graph, node: Node, position: int) -> Tensor | None:
    """An input; ``None``: the node does not have it."""
    name = node.inputs[position] if position < len(node.inputs) else ""
    return graph.tensors.get(name)


def _has_other_epsilon(graph: Graph) -> bool:
    """A normalization whose epsilon is not a number of single precision, named second."""
    for _, add, _ in _chains(graph, "ReduceMean", "Add", "Sqrt"):
        epsilon = _input(graph, add, 1)
        if epsilon is None or epsilon.role is not Role.WEIGHT or epsilon.num_elements != 1:
            return True
        if epsilon.dtype not in _PLAIN_EPSILONS:
            return True
    return False


def _has_blocks_in_product(graph: Graph) -> bool:
    """An integer product of a matrix with several scales."""
    for pair, _, _ in _chains(graph, "DequantizeLinear", "MatMul", "QuantizeLinear"):
        scales = _input(graph, pair, 1)
        if scales is not None and scales.num_elements != 1:
            return True
    return False


def _has_half_blocks(graph: Graph) -> bool:
    """A product with blocks of 4 or 8 bits in half precision that are fed."""
    for node in graph.all_nodes():
        if _operator(node) == "MatMulNBits":
            rows, blocks = (_input(graph, node, position) for position in (0, 1))
            is_half = rows is not None and rows.dtype is DType.FLOAT16
            if is_half and blocks is not None and blocks.role is not Role.WEIGHT:
                return True
    return False


def _has_pair_without_zero_point(graph: Graph) -> bool:
    return any(
        _operator(node) in {"QuantizeLinear", "DequantizeLinear"}
        and len([name for name in node.inputs if name]) < _WITH_ZERO_POINT
        for node in graph.all_nodes()
    )


def _has_double_gate(graph: Graph) -> bool:
    gates = (_input(graph, sigmoid, 0) for sigmoid, _ in _chains(graph, "Sigmoid", "Mul"))
    return any(each is not None and each.dtype is DType.FLOAT64 for each in gates)


def _has_four_bit_activation(graph: Graph) -> bool:
    return any(
        tensor.role is Role.ACTIVATION
        and tensor.dtype is not None
        and (tensor.dtype.bits or _FOUR_BITS + 1) <= _FOUR_BITS
        for tensor in graph.tensors.values()
    )


def _has_half_precision(graph: Graph) -> bool:
    return any(tensor.dtype is DType.FLOAT16 for tensor in graph.tensors.values())


def _has_shared_transpose(graph: Graph) -> bool:
    """Two transposes with a value between them that more than one node, or the caller, reads.

    Between them are operators past which onnxruntime pushes a transpose.
    """
    num_readers = Counter(graph.outputs)
    num_readers.update(name for node in graph.all_nodes() for name in {*node.reads})
    # One pass suffices, for the nodes are sorted: what reaches a node is known before it.
    reached: dict[str, bool] = {}  # by value behind a transpose: whether one up to it is shared
    for node in graph.all_nodes():
        before = [reached[name] for name in node.reads if name in reached]
        is_transpose = _operator(node) == "Transpose"
        if is_transpose and any(before):
            return True
        if is_transpose or (before and _lets_transposes_pass(node)):
            for name in node.writes:
                reached[name] = any(before) or num_readers[name] > 1
    return False


def _lets_transposes_pass(node: Node) -> bool:
    return (f"{node.domain}.{node.op_type}" if node.domain else node.op_type) in HANDLERS


CHANGES: Final = (
    Change(
        "epsilon",
        "1.31",
        "normalizations whose epsilon is not a float named second",
        _has_other_epsilon,
    ),
    Change(
        "blocks in products",
        "1.31",
        "integer matrix products with several scales",
        _has_blocks_in_product,
    ),
    Change(
        "padding before pooling",
        "1.31",
        "padding before a pooling",
        _has_chain("Pad", "MaxPool|AveragePool"),
    ),
    Change(
        "grouped attention",
        "1.31",
        "shapes of GroupQueryAttention at load",
        _has_operator("GroupQueryAttention"),
    ),
    Change(
        "half blocks",
        "1.31",
        "MatMulNBits in half precision whose blocks are an input",
        _has_half_blocks,
    ),
    Change("double gate", "1.30", "Sigmoid gates in double precision", _has_double_gate),
    Change("gather by range", "1.30", "Gather by a Range", _has_chain("Range", "Gather")),
    Change(
        "no zero point",
        "1.30",
        "quantized values without a zero point",
        _has_pair_without_zero_point,
    ),
    Change(
        "canceling pairs",
        "1.30",
        "pairs of DequantizeLinear and QuantizeLinear that cancel",
        _has_chain("DequantizeLinear", "QuantizeLinear"),
    ),
    Change(
        "activation of a sum",
        "1.30",
        "a Relu on a quantized Where or Sigmoid",
        _has_chain("Where|Sigmoid", "Relu", "QuantizeLinear"),
    ),
    Change(
        "transposed convolution",
        "1.30",
        "BatchNormalization after ConvTranspose",
        _has_chain("ConvTranspose", "BatchNormalization"),
    ),
    Change(
        "shared transposes",
        "1.30",
        "transposed values that several nodes read",
        _has_shared_transpose,
    ),
    Change("4 bits", "1.30", "activations of 4 bits or fewer", _has_four_bit_activation),
    Change("half precision", "1.29", "half precision", _has_half_precision),
    Change("hard swish", "1.29", "HardSigmoid gates", _has_chain("HardSigmoid", "Mul")),
    Change(
        "transposed activations",
        "1.29",
        "transposes before Elu and Gelu",
        _has_chain("Transpose", "Elu|Gelu|FastGelu|QuickGelu"),
    ),
    Change(
        "transposes before Gemm", "1.29", "transposes before Gemm", _has_chain("Transpose", "Gemm")
    ),
    Change("new operators", "1.29", "operators that are new in 1.30", _has_operator(*_NEW_IN_1_30)),
)

RELEASES: Final[Mapping[str, Release]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Release("1.29", "1.29.0"),
            Release("1.30", "1.30.0"),
            Release("1.31", "1.31.1"),
            Release("1.32", "1.32.0"),
        )
    }
)
"""By minor version."""


def release_named(version: str) -> Release:
    """The verified release of a version: ``1.29`` or ``1.29.0``.

    :raises UsageError: the version was not verified.
    """
    release = RELEASES.get(".".join(version.split(".")[:2]))
    if release is None or not _VERSION.fullmatch(version):
        message = (
            f"onnxruntime {version!r} was not verified; choose among {', '.join(RELEASES)}, or "
            "measure both: onnxmem measure MODEL in an environment of each"
        )
        raise UsageError(message)
    return release
