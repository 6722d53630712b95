"""How much a model computes: MACs and FLOPs, by node and in all.

One multiply-add is 1 MAC and 2 FLOPs; both are reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnxmem.model import Graph


@dataclass(frozen=True, slots=True)
class NodeCompute:
    """One node's forward arithmetic; ``None`` is unknown."""

    macs: int | None
    flops: int | None


@dataclass(frozen=True, slots=True)
class Compute:
    """A model's arithmetic; sums leave unknown nodes out and are lower bounds then."""

    forward_macs: int
    forward_flops: int
    backward_flops: int
    """2 x forward for weighted operators (one product for each of the two gradients), 1 x for the
    rest: a rule, labelled so."""
    by_node: Mapping[str, NodeCompute]
    unknown_nodes: tuple[str, ...]


def compute(graph: Graph) -> Compute:
    """Count the arithmetic of every node, subgraphs included."""
    raise NotImplementedError
