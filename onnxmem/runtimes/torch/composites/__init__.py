"""Operators that exporters write as several nodes where the framework runs one.

What the framework's one operator keeps counts, not what its pieces would.
"""

from collections.abc import Callable, Iterator

from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.composites.activations import (
    clamps,
    elus,
    gated,
    gelus,
    rsqrts,
    softpluses,
    tanh_gelus,
)
from onnxmem.runtimes.torch.composites.attention import attentions
from onnxmem.runtimes.torch.composites.dropout import dropouts
from onnxmem.runtimes.torch.composites.layout import mirrored_pads, rolls, sequences, unbinds
from onnxmem.runtimes.torch.composites.linear import linears
from onnxmem.runtimes.torch.composites.norms import batch_norms, group_norms, layer_norms, variances
from onnxmem.runtimes.torch.composites.rewriting import (
    Match,
    Sight,
    with_cast_numbers,
    with_matches,
    without_unread_weights,
)

_Finder = Callable[[Sight], Iterator[Match]]

_FINDERS: tuple[tuple[frozenset[str], _Finder], ...] = (
    (frozenset({"SplitToSequence"}), sequences),
    (frozenset({"Slice", "Squeeze"}), unbinds),
    (frozenset({"Slice", "Concat"}), rolls),
    (frozenset({"Pad"}), mirrored_pads),
    (frozenset({"Mul"}), dropouts),
    (frozenset({"BatchNormalization", "ReduceMean"}), batch_norms),
    (frozenset({"ReduceMean", "Sqrt", "Div"}), layer_norms),
    (frozenset({"InstanceNormalization", "Reshape"}), group_norms),
    (frozenset({"ReduceMean", "Sub", "Mul"}), variances),
    (frozenset({"MatMul", "Add"}), linears),
    (frozenset({"Min", "Max"}), clamps),
    (frozenset({"Elu", "Mul"}), elus),
    (frozenset({"Erf"}), gelus),
    (frozenset({"Tanh", "Mul"}), tanh_gelus),
    (frozenset({"Sigmoid", "Mul"}), gated),
    (frozenset({"Softplus", "Mul"}), gated),
    (frozenset({"Softplus", "Where"}), softpluses),
    (frozenset({"Sqrt"}), rsqrts),
)
"""In order; each with the operators without which there is nothing to find."""

_ATTENTION: tuple[frozenset[str], _Finder] = (frozenset({"Softmax", "MatMul"}), attentions)


def as_run(graph: Graph, *, fused_attention: bool = True) -> Graph:
    """Read a graph as the framework runs it: one node in place of each composite's.

    Without ``fused_attention`` the framework's attention runs as the products that the file holds.
    """
    before = graph = with_cast_numbers(graph)
    present = {node.onnx_op for node in graph.nodes}
    known = (*_FINDERS, _ATTENTION) if fused_attention else _FINDERS
    sight: Sight | None = None
    for find in (find for needed, find in known if needed <= present):
        if sight is None or sight.graph is not graph:
            sight = Sight.of(graph)
        graph = with_matches(graph, find(sight))
    return without_unread_weights(graph, before)
