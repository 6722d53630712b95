"""The levels of optimisation: which passes run, in which sequence, and how often.

Source: onnxruntime/core/optimizer/graph_transformer_utils.cc (``GenerateTransformers``),
graph_transformer_mgr.cc (``ApplyTransformers``) and ``InferenceSession::TransformGraph``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph
from onnxmem.runtimes.onnxruntime.optimiser.nchwc.transforming import block_channels
from onnxmem.runtimes.onnxruntime.optimiser.passes.bias_gelu import fuse_bias_gelu
from onnxmem.runtimes.onnxruntime.optimiser.passes.cast_insertion import insert_casts
from onnxmem.runtimes.onnxruntime.optimiser.passes.common_subexpressions import merge_equal_nodes
from onnxmem.runtimes.onnxruntime.optimiser.passes.constant_folding import fold_constants
from onnxmem.runtimes.onnxruntime.optimiser.passes.constant_sharing import share_constants
from onnxmem.runtimes.onnxruntime.optimiser.passes.conv_activation import fuse_conv_activation
from onnxmem.runtimes.onnxruntime.optimiser.passes.conv_add_activation import fuse_conv_add
from onnxmem.runtimes.onnxruntime.optimiser.passes.fast_gelu import fuse_fast_gelu
from onnxmem.runtimes.onnxruntime.optimiser.passes.function_inlining import (
    Functions,
    inline_ahead,
    inline_functions,
)
from onnxmem.runtimes.onnxruntime.optimiser.passes.fused_casts import widen_constants
from onnxmem.runtimes.onnxruntime.optimiser.passes.gather_split import slice_ranges, split_gathers
from onnxmem.runtimes.onnxruntime.optimiser.passes.gelu import fuse_gelu
from onnxmem.runtimes.onnxruntime.optimiser.passes.gemm_activation import fuse_gemm_activation
from onnxmem.runtimes.onnxruntime.optimiser.passes.layer_norm import fuse_layer_norm
from onnxmem.runtimes.onnxruntime.optimiser.passes.matmul_add import (
    fuse_left_matmul_add,
    fuse_matmul_add,
)
from onnxmem.runtimes.onnxruntime.optimiser.passes.matmul_nbits_bias import (
    fuse_matmul_nbits_bias,
)
from onnxmem.runtimes.onnxruntime.optimiser.passes.matmul_scale import fuse_matmul_scale
from onnxmem.runtimes.onnxruntime.optimiser.passes.matmul_transpose import fuse_matmul_transpose
from onnxmem.runtimes.onnxruntime.optimiser.passes.quick_gelu import fuse_quick_gelu
from onnxmem.runtimes.onnxruntime.optimiser.passes.reshapes import fuse_reshapes
from onnxmem.runtimes.onnxruntime.optimiser.passes.simplified_layer_norm import (
    fuse_simplified_layer_norm,
)
from onnxmem.runtimes.onnxruntime.optimiser.passes.skip_layer_norm import (
    fuse_bias_skip_layer_norm,
    fuse_skip_layer_norm,
)
from onnxmem.runtimes.onnxruntime.optimiser.passes.unique_dequantise import separate_units
from onnxmem.runtimes.onnxruntime.optimiser.qdq.channels_last import put_channels_last
from onnxmem.runtimes.onnxruntime.optimiser.qdq.double_pairs import remove_double_pairs
from onnxmem.runtimes.onnxruntime.optimiser.qdq.final_cleanup import drop_pairs
from onnxmem.runtimes.onnxruntime.optimiser.qdq.float_constants import quantise_constants
from onnxmem.runtimes.onnxruntime.optimiser.qdq.integer_products import (
    fuse_dynamic_products,
    fuse_scaled_products,
)
from onnxmem.runtimes.onnxruntime.optimiser.qdq.propagation import propagate_pairs
from onnxmem.runtimes.onnxruntime.optimiser.qdq.selecting import select_units
from onnxmem.runtimes.onnxruntime.optimiser.qdq.signed_pairs import make_unsigned
from onnxmem.runtimes.onnxruntime.optimiser.qdq.where_constants import dequantise_numbers
from onnxmem.runtimes.onnxruntime.optimiser.rules import apply_basic_rules, apply_extended_rules
from onnxmem.runtimes.onnxruntime.optimiser.shapes.inference import resolve
from onnxmem.runtimes.onnxruntime.optimiser.transposes.pushing import push_transposes
from onnxmem.runtimes.onnxruntime.optimiser.value_types import TensorType

_MAX_STEPS = 10
"""A level is repeated until nothing changes, but no more often."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A graph transformer."""

    apply: Callable[[Graph], bool]
    """Changes the graph, and says whether it did."""
    once: bool = False
    """Left out when its level is repeated."""


def bound_dims(dims: Mapping[str, int]) -> Callable[[Graph], bool]:
    """The pass that gives symbolic dims of the graph inputs their numbers.

    Source: onnxruntime/core/optimizer/free_dim_override_transformer.cc.
    """

    def apply(graph: Graph) -> bool:
        changed = False
        for name in graph.inputs:
            known = graph.types.get(name)
            if isinstance(known, TensorType) and known.dims is not None:
                bound = tuple(dims.get(d, d) if isinstance(d, str) else d for d in known.dims)
                changed |= bound != known.dims
                graph.types[name] = TensorType(known.elem_type, bound)
        return changed

    return apply


BASIC_BEFORE: Final[Sequence[Pass]] = (
    Pass(apply_basic_rules),
    Pass(remove_double_pairs),
    Pass(share_constants, once=True),
    Pass(merge_equal_nodes),
    Pass(fold_constants),
    Pass(fuse_matmul_add),
    Pass(fuse_reshapes),
)
BASIC_AFTER: Final[Sequence[Pass]] = (
    Pass(propagate_pairs),
    Pass(quantise_constants),
    Pass(dequantise_numbers),
    Pass(separate_units),
    Pass(push_transposes, once=True),
)
EXTENDED: Final[Sequence[Pass]] = (
    Pass(apply_extended_rules),
    Pass(partial(push_transposes, is_assigned=True), once=True),
    Pass(make_unsigned),
    Pass(select_units),
    Pass(fuse_gemm_activation),
    Pass(fuse_scaled_products),
    Pass(fuse_dynamic_products),
    Pass(fuse_conv_activation),
    Pass(fuse_gelu),
    Pass(fuse_layer_norm),
    Pass(fuse_simplified_layer_norm),
    Pass(split_gathers),
    Pass(slice_ranges),
    Pass(fuse_matmul_transpose),
    Pass(fuse_bias_gelu),
    Pass(fuse_left_matmul_add),
    Pass(fuse_skip_layer_norm),
    Pass(fuse_bias_skip_layer_norm),
    Pass(fuse_fast_gelu),
    Pass(fuse_quick_gelu),
    Pass(fuse_matmul_scale),
    Pass(fuse_matmul_nbits_bias),
    Pass(drop_pairs),
)


def run_level(graph: Graph, passes: Sequence[Pass]) -> bool:
    """Apply the passes of a level until a round changes nothing."""
    is_changed = False
    for step in range(_MAX_STEPS):
        changed = False
        for transformer in passes:
            if step and transformer.once:
                continue
            if transformer.apply(graph):
                changed = True
                resolve(graph)
        if not changed:
            break
        is_changed = True
    return is_changed


def optimise(
    graph: Graph, level: str, dims: Mapping[str, int], cpu: Cpu, functions: Functions
) -> None:
    """Bring a graph to a level: off, basic, extended or all."""
    for inner in graph.graphs():
        inner.cpu = cpu
    resolve(graph)
    inline_ahead(graph, functions)
    if separate_units(graph):
        resolve(graph)
    override = Pass(bound_dims(dims))
    before, after = ((), ()) if level == "off" else (BASIC_BEFORE, BASIC_AFTER)
    run_level(graph, (*before, override, *after))
    inline_functions(graph)
    for _ in range(_MAX_STEPS):
        if level in {"extended", "all"}:
            run_level(graph, EXTENDED)
        if level == "all":
            run_level(graph, _layouts(cpu))
        if insert_casts(graph):
            resolve(graph)
        if level != "all" or not widen_constants(graph):
            break
        resolve(graph)


def _layouts(cpu: Cpu) -> Sequence[Pass]:
    block = cpu.channel_block
    blocked = (Pass(lambda graph: block_channels(graph, block)),) if block else ()
    return (*blocked, Pass(put_channels_last), Pass(fuse_conv_add))
