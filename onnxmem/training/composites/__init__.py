"""Operators that exporters write as several nodes where the framework runs one.

What the framework's one operator keeps counts, not what its pieces would.
"""

from onnxmem.model import Graph
from onnxmem.training.composites.activations import gated, gelus, rsqrts, softpluses, tanh_gelus
from onnxmem.training.composites.attention import attentions
from onnxmem.training.composites.dropout import dropouts
from onnxmem.training.composites.layout import rolls, sequences, unbinds
from onnxmem.training.composites.norms import group_norms, layer_norms
from onnxmem.training.composites.rewriting import Sight, with_matches

_FINDERS = (
    *(sequences, unbinds, rolls, dropouts),
    *(layer_norms, group_norms, attentions),
    *(gelus, tanh_gelus, gated, softpluses, rsqrts),
)


def as_run(graph: Graph) -> Graph:
    """Read a graph as the framework runs it: one node in place of each composite's."""
    for find in _FINDERS:
        graph = with_matches(graph, find(Sight.of(graph)))
    return graph
