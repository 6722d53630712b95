"""Operators that exporters write as several nodes where the framework runs one.

What the framework's one operator keeps counts, not what its pieces would.
"""

from onnxmem.model import Graph
from onnxmem.training.composites.activations import (
    clamps,
    gated,
    gelus,
    rsqrts,
    softpluses,
    tanh_gelus,
)
from onnxmem.training.composites.attention import attentions
from onnxmem.training.composites.dropout import dropouts
from onnxmem.training.composites.layout import rolls, sequences, unbinds
from onnxmem.training.composites.linear import linears
from onnxmem.training.composites.norms import group_norms, layer_norms
from onnxmem.training.composites.rewriting import Sight, with_cast_numbers, with_matches

_FINDERS = (
    *(sequences, unbinds, rolls, dropouts, layer_norms, group_norms),
    *(linears, clamps, gelus, tanh_gelus, gated, softpluses, rsqrts),
)


def as_run(graph: Graph, *, fused_attention: bool = True) -> Graph:
    """Read a graph as the framework runs it: one node in place of each composite's.

    Without ``fused_attention`` the framework's attention runs as the products that the file holds.
    """
    graph = with_cast_numbers(graph)
    for find in (*_FINDERS, attentions) if fused_attention else _FINDERS:
        graph = with_matches(graph, find(Sight.of(graph)))
    return graph
