"""The levels of optimization: which passes run, in which sequence, and how often.

Source: onnxruntime/core/optimizer/graph_transformer_utils.cc (``GenerateTransformers``),
graph_transformer_mgr.cc (``ApplyTransformers``) and ``InferenceSession::TransformGraph``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import onnx

from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu
from onnxmem.runtimes.onnxruntime.optimizer.casts import insert_casts, widen_constants
from onnxmem.runtimes.onnxruntime.optimizer.constants import (
    fold_constants,
    merge_equal_nodes,
    share_constants,
)
from onnxmem.runtimes.onnxruntime.optimizer.functions import (
    Functions,
    inline_ahead,
    inline_functions,
)
from onnxmem.runtimes.onnxruntime.optimizer.fusions.activations import (
    fuse_bias_gelu,
    fuse_fast_gelu,
    fuse_gelu,
    fuse_quick_gelu,
)
from onnxmem.runtimes.onnxruntime.optimizer.fusions.convolutions import (
    fuse_conv_activation,
    fuse_conv_add,
    fuse_gemm_activation,
)
from onnxmem.runtimes.onnxruntime.optimizer.fusions.layer_norm import (
    fuse_bias_skip_layer_norm,
    fuse_layer_norm,
    fuse_simplified_layer_norm,
    fuse_skip_layer_norm,
)
from onnxmem.runtimes.onnxruntime.optimizer.fusions.matmul import (
    fuse_matmul_add,
    fuse_matmul_nbits_bias,
    fuse_matmul_scale,
    fuse_matmul_transpose,
    fuse_remaining_matmul_add,
)
from onnxmem.runtimes.onnxruntime.optimizer.graph import Dims, Graph, TensorType
from onnxmem.runtimes.onnxruntime.optimizer.image_layouts import block_channels, put_channels_last
from onnxmem.runtimes.onnxruntime.optimizer.qdq_pairs import (
    add_dummy_dequantize,
    drop_pairs,
    ensure_unique_dequantize,
    make_unsigned,
    propagate_pairs,
    quantize_constants,
    remove_double_pairs,
)
from onnxmem.runtimes.onnxruntime.optimizer.qdq_units import (
    fuse_dynamic_products,
    fuse_scaled_products,
    select_units,
)
from onnxmem.runtimes.onnxruntime.optimizer.reading import read_model, write_model
from onnxmem.runtimes.onnxruntime.optimizer.reshapes import (
    fuse_gather_ranges,
    fuse_gathers_to_split,
    fuse_reshapes,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewrite_rules import (
    apply_basic_rules,
    apply_extended_rules,
)
from onnxmem.runtimes.onnxruntime.optimizer.shape_inference import resolve
from onnxmem.runtimes.onnxruntime.optimizer.transpose_pushing import push_transposes
from onnxmem.runtimes.onnxruntime.session_options import Provider

_MAX_STEPS = 10
"""A level runs at most this often (``GraphTransformerManager``'s steps)."""


_ALL: Final[frozenset[Provider]] = frozenset({"cpu", "cuda"})
_CPU: Final[frozenset[Provider]] = frozenset({"cpu"})


@dataclass(frozen=True, slots=True)
class Pass:
    """A graph transformer."""

    apply: Callable[[Graph], bool]
    """Changes the graph, and returns whether it did."""
    once: bool = False
    """Whether only the first round of its level runs it (``ShouldOnlyApplyOnce``)."""
    providers: frozenset[Provider] = _ALL
    """The providers whose nodes it changes: those it is registered with, of the two here."""


def override_free_dims(dims: Mapping[str, int]) -> Callable[[Graph], bool]:
    """The pass that sets symbolic dims of the graph inputs to numbers.

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


# The sequence is that of ``GenerateTransformers``. It decides which graph comes out: a pass removes
# patterns that a later one would match, and equal nodes can merge only once their constants are
# shared. The free-dimension override runs between the two halves of the basic level.
#
# Passes above the basic level are registered with the providers whose nodes they change
# (``compatible_execution_providers``). None of those for CUDA alone is here: one needs a Dropout
# that trains, and one a GroupQueryAttention behind a RotaryEmbedding. The nodes that a session on
# CUDA leaves to the CPU are seldom ones that a pass of the CPU would change.
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
    Pass(quantize_constants),
    Pass(add_dummy_dequantize),
    Pass(ensure_unique_dequantize),
    Pass(push_transposes, once=True),
)
EXTENDED: Final[Sequence[Pass]] = (
    Pass(apply_extended_rules),
    Pass(partial(push_transposes, is_assigned=True), once=True, providers=_CPU),
    Pass(make_unsigned, providers=_CPU),
    Pass(select_units),
    Pass(fuse_gemm_activation, providers=_CPU),
    Pass(fuse_scaled_products, providers=_CPU),
    Pass(fuse_dynamic_products, providers=_CPU),
    Pass(fuse_conv_activation, providers=_CPU),
    Pass(fuse_gelu),
    Pass(fuse_layer_norm),
    Pass(fuse_simplified_layer_norm),
    Pass(fuse_gathers_to_split),
    Pass(fuse_gather_ranges),
    Pass(fuse_matmul_transpose),
    Pass(fuse_bias_gelu),
    Pass(fuse_remaining_matmul_add),
    Pass(fuse_skip_layer_norm),
    Pass(fuse_bias_skip_layer_norm),
    Pass(fuse_fast_gelu),
    Pass(fuse_quick_gelu),
    Pass(fuse_matmul_scale),
    Pass(fuse_matmul_nbits_bias, providers=_CPU),
    Pass(drop_pairs),
)


Level = Literal["off", "basic", "extended", "all"]
"""``GraphOptimizationLevel``, by the names of session options."""


def optimized(
    model: onnx.ModelProto,
    level: str,
    *,
    dims: Mapping[str, int] | None = None,
    cpu: Cpu = AVX512,
    provider: Provider = "cpu",
) -> onnx.ModelProto:
    """The graph that a session would run, in order of execution.

    :param model: the result of ``prepare``, with its functions inlined or as ``with_calls``; the
        data of large tensors is absent. A constant that is computed from absent data gets a type
        and dims only.
    :param level: ``off``, ``basic``, ``extended`` or ``all``; see ``Level``.
    :param dims: numbers for symbolic dims of the inputs, the free-dimension overrides.
    :param cpu: the CPU of the session: some passes and the block size of channels depend on it.
    :param provider: of the session; on CUDA, the CPU runs the nodes without a kernel.
    :returns: a new model with the shapes that the session knows at load as ``value_info``. It may
        have operators of the domains ``com.microsoft`` and ``com.microsoft.nchwc``.
    """
    graph = read_model(model)
    functions = {(function.domain, function.name): function for function in model.functions}
    for inner in graph.graphs():
        inner.cpu, inner.provider = cpu, provider
    optimize(graph, level, dims or {}, functions)
    return write_model(graph, model)


def planner_shapes(model: onnx.ModelProto, *, cpu: Cpu = AVX512) -> dict[str, Dims | None]:
    """The shapes that a session knows at load, by name; ``None`` if the rank is unknown.

    A dim is a number, a symbol of the file, or ``None``. Inference fills gaps in the shapes that
    the file declares (see ``graph``). Values of subgraphs are included; if an outer value has the
    same name, the outer value wins.

    :param model: a model, optimized or not.
    :param cpu: the CPU of the session, for the block size of channels.
    """
    graph = read_model(model)
    for inner in graph.graphs():
        inner.cpu = cpu
    resolve(graph)
    shapes: dict[str, Dims | None] = {}
    for inner in graph.graphs():
        # Outer graphs come first, and their types stay.
        for name, known in inner.types.items():
            shapes.setdefault(name, known.dims if isinstance(known, TensorType) else None)
    return shapes


def run_level(graph: Graph, passes: Sequence[Pass]) -> bool:
    """Apply the passes of a level until a round changes nothing.

    Source: ``GraphTransformerManager::ApplyTransformers``.
    """
    is_changed = False
    for step in range(_MAX_STEPS):
        changed = False
        for transformer in passes:
            if (step and transformer.once) or graph.provider not in transformer.providers:
                continue
            if transformer.apply(graph):
                changed = True
                # Later passes match on shapes and need unused constants gone.
                resolve(graph)
        if not changed:
            break
        is_changed = True
    return is_changed


def optimize(graph: Graph, level: str, dims: Mapping[str, int], functions: Functions) -> None:
    """Optimize a graph in place, up to a level: off, basic, extended or all.

    Source: ``InferenceSession::TransformGraph``.
    """
    resolve(graph)
    inline_ahead(graph, functions)
    if ensure_unique_dequantize(graph):
        resolve(graph)
    override = Pass(override_free_dims(dims))
    before, after = ((), ()) if level == "off" else (BASIC_BEFORE, BASIC_AFTER)
    run_level(graph, (*before, override, *after))
    # Partitioning comes between the levels: it inlines functions without a kernel.
    inline_functions(graph)
    # Casts come last at every level. Widening a constant can make room for further fusions, so the
    # levels after partitioning are then run again.
    for _ in range(_MAX_STEPS):
        if level in {"extended", "all"}:
            run_level(graph, EXTENDED)
        if level == "all":
            run_level(graph, layouts(graph.cpu))
        if insert_casts(graph):
            resolve(graph)
        if level != "all" or not widen_constants(graph):
            break
        resolve(graph)
    if graph.provider == "cuda":
        from onnxmem.runtimes.onnxruntime.optimizer.placement import place

        place(graph)


def layouts(cpu: Cpu) -> Sequence[Pass]:
    """The passes of level 3, which depend on the CPU's block size of channels."""
    block = cpu.channel_block
    blocked = (Pass(lambda graph: block_channels(graph, block), providers=_CPU),) if block else ()
    return (
        *blocked,
        Pass(put_channels_last, providers=_CPU),
        Pass(fuse_conv_add, providers=_CPU),
    )
