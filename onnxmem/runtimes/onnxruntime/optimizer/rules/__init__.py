"""Rules that rewrite around one node, tried on every node of their operator in this sequence.

Source: onnxruntime/core/optimizer/graph_transformer_utils.cc (``GenerateRewriteRules``) and
rule_based_graph_transformer.cc.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.rules.casts import drop_before_shape, drop_cast
from onnxmem.runtimes.onnxruntime.optimizer.rules.convolutions import (
    fuse_batch_norm,
    fuse_conv_add,
    fuse_conv_mul,
)
from onnxmem.runtimes.onnxruntime.optimizer.rules.div_mul import fuse_div_mul
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, Rule
from onnxmem.runtimes.onnxruntime.optimizer.rules.expands import drop_expand
from onnxmem.runtimes.onnxruntime.optimizer.rules.gemms import (
    fuse_gemm_sum,
    fuse_gemm_transposes,
    fuse_not_where,
)
from onnxmem.runtimes.onnxruntime.optimizer.rules.identity import drop_dropout, drop_identity
from onnxmem.runtimes.onnxruntime.optimizer.rules.matmul_bn import fuse_matmul_batch_norm
from onnxmem.runtimes.onnxruntime.optimizer.rules.noops import drop_noop
from onnxmem.runtimes.onnxruntime.optimizer.rules.pads import fuse_pad
from onnxmem.runtimes.onnxruntime.optimizer.rules.quantised_activations import drop_clip, drop_relu
from onnxmem.runtimes.onnxruntime.optimizer.rules.relu_clip import fuse_relu_clip
from onnxmem.runtimes.onnxruntime.optimizer.rules.slices import drop_slice
from onnxmem.runtimes.onnxruntime.optimizer.rules.unsqueezes import fold_unsqueeze

BASIC_RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "Identity": (drop_identity,),
    "Slice": (drop_slice,),
    "Unsqueeze": (fold_unsqueeze,),
    "Dropout": (drop_dropout,),
    "Expand": (drop_expand,),
    "Cast": (drop_cast, drop_before_shape),
    "Add": (drop_noop,),
    "Sub": (drop_noop,),
    "Mul": (drop_noop,),
    "Div": (drop_noop, fuse_div_mul),
    "Relu": (fuse_relu_clip,),
    "Gemm": (fuse_gemm_sum, fuse_gemm_transposes),
    "Where": (fuse_not_where,),
    "Conv": (fuse_conv_add, fuse_conv_mul, fuse_batch_norm),
    "ConvTranspose": (fuse_batch_norm,),
    "Pad": (fuse_pad,),
    "MatMul": (fuse_matmul_batch_norm,),
}
EXTENDED_RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "Clip": (drop_clip,),
    "Relu": (drop_relu,),
    "Gemm": (fuse_gemm_transposes,),
}


def apply_basic_rules(graph: Graph) -> bool:
    """The rules of the basic level; true if any of them changed the graph."""
    return _apply(graph, BASIC_RULES)


def apply_extended_rules(graph: Graph) -> bool:
    """The rules of the extended level."""
    return _apply(graph, EXTENDED_RULES)


def _apply(graph: Graph, rules: Mapping[str, Sequence[Rule]]) -> bool:
    changed = False
    for node in execution_order(graph):
        if graph.nodes.get(node.index) is not node:
            continue
        effect = Effect.NONE
        for rule in rules.get(node.op_type, ()) if not node.domain else ():
            effect = rule(graph, node)
            changed |= effect is not Effect.NONE
            if effect is Effect.REMOVED:
                break
        if effect is not Effect.REMOVED:
            for body in node.bodies.values():
                changed |= _apply(body, rules)
    return changed
