"""Normalizations and softmax: statistics, float32 copies for fp16, transposed inputs.

The kernels of Softmax, Hardmax and MeanVarianceNormalization work along the last axes only, so they
transpose the input and the output for other axes.
"""

from collections.abc import Iterator

from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    ALWAYS,
    FLOAT_BYTES,
    HALF_BYTES,
    Kernel,
    KernelCall,
    Packed,
    PackingRule,
    ScratchRule,
    axis_of,
    nothing,
    product,
    since,
)

_HALVES = ("float16", "bfloat16")
_PER_AXIS_OPSET = 13
"""Version from which only the axis is normalized; before it, the input was flattened from there."""


def _layer(call: KernelCall) -> tuple[int, ...]:
    """X in fp16: the scale and bias in float32, unless they are constant and prepacked."""
    if call.element_bytes() != HALF_BYTES:
        return ()
    indices = (index for index in (1, 2) if call.has(index) and not call.is_constant(index))
    return tuple(FLOAT_BYTES * product(call.dims(index)) for index in indices)


def _skip_layer(*weights: int) -> ScratchRule:
    """X, skip and Y in fp16, and the sum if it is an output, in float32; and ``weights``.

    Initializers are prepacked.
    """

    def blocks(call: KernelCall) -> tuple[int, ...]:
        if call.element_bytes() != HALF_BYTES:
            return ()
        count = product(call.dims(0))
        num_outputs = 1 + call.has_output(3)
        converted = (
            index for index in (1, *weights) if call.has(index) and not call.is_constant(index)
        )
        # SkipLayerNorm::Compute, ConvertMLFloat16ToFloatIfNeeded: inputs in the sequence of the
        # node, then what is rounded to fp16 at the end, the output and the sum.
        return (
            FLOAT_BYTES * count,
            *(FLOAT_BYTES * product(call.dims(index)) for index in converted),
            *(FLOAT_BYTES * count,) * num_outputs,
        )

    return blocks


def _local_response(call: KernelCall) -> tuple[int, ...]:
    """X: [N, C, *D]: a scale per element, and the squares of one image, padded by size - 1."""
    batch, channels, *image = call.dims(0)
    # Zeros beside the channels: the window of a channel differs from the last one by the square
    # that comes in and the one that goes out, without a special case at both ends.
    padded = channels + call.integer("size", 1) - 1
    return (FLOAT_BYTES * batch * channels * product(image), FLOAT_BYTES * padded * product(image))


def _batch(call: KernelCall) -> tuple[int, ...]:
    """X: [N, C, *D]: mean and variance of the batch in training mode."""
    is_training = call.integer("training_mode", 0)
    return (call.element_bytes() * call.dims(0)[1],) * 2 if is_training else ()


def _packed_halves(*indices: int) -> PackingRule:
    """Weights in fp16, in floats."""

    def packs(call: KernelCall) -> Iterator[Packed]:
        for index in indices:
            # PrePack ignores ``PrePackedWeights``: equal weights of two nodes are converted twice.
            if call.is_constant(index) and call.element_bytes(index) == HALF_BYTES:
                yield Packed(index, FLOAT_BYTES * product(call.dims(index)), is_shared=False)

    return packs


def _branchwise(call: KernelCall) -> tuple[int, ...]:
    """X: [*D, C, H] or [*D, C * H]: for fp16 and bfloat16, a scale of [H] in floats.

    A scale per branch, and a scale with another type than X, are not copied.
    """
    if not call.has(1) or call.type(0) not in _HALVES or call.type(1) != call.type(0):
        return ()
    hidden = call.dims(0)[-1] // (call.integer("num_branches", 0) or 1)
    return (FLOAT_BYTES * hidden,) if product(call.dims(1)) == hidden else ()


def _transposed_twice(call: KernelCall) -> tuple[int, ...]:
    """X: [*D]: the input and the output with ``axis`` moved to the end, unless it is the last."""
    rank = len(call.dims(0))
    if not rank or not call.is_at_least(_PER_AXIS_OPSET):
        return ()
    is_last = axis_of(call.integer("axis", -1), rank) == rank - 1
    return () if is_last else (call.size_bytes(0),) * 2


def _mean_variance(call: KernelCall) -> tuple[int, ...]:
    """X: [*D]: the transposed input and output, unless the ``axes`` are the last ones."""
    rank = len(call.dims(0))
    axes = {axis_of(axis, rank) for axis in call.integers("axes", (0, 2, 3))}
    is_suffix = axes == set(range(rank - len(axes), rank))
    return () if is_suffix else (call.size_bytes(0),) * 2


def _quantized_softmax(call: KernelCall) -> tuple[int, ...]:
    """X: [*D] in 8 bits: like Softmax; the ``opset`` attribute has the operator's version."""
    rank = len(call.dims(0))
    is_last = axis_of(call.integer("axis", -1), rank) == rank - 1
    is_per_axis = call.integer("opset", _PER_AXIS_OPSET) >= _PER_AXIS_OPSET
    return (call.size_bytes(0),) * 2 if is_per_axis and not is_last else ()


_LAYER_NORM = "core/providers/cpu/nn/layer_norm_impl.cc: ComputeImpl, PrePack"
_SKIP_LAYER_NORM = "contrib_ops/cpu/skip_layer_norm.cc: Compute, PrePack"

KERNELS = (
    Kernel(
        "LayerNormalization",
        _LAYER_NORM,
        _layer,
        _packed_halves(1, 2),
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "SimplifiedLayerNormalization",
        _LAYER_NORM,
        _layer,
        _packed_halves(1),
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel("RMSNormalization", _LAYER_NORM, _layer, _packed_halves(1), float16=since(1)),
    Kernel(
        "com.microsoft.SkipLayerNormalization",
        _SKIP_LAYER_NORM,
        _skip_layer(2, 3, 4),
        _packed_halves(1, 2, 3, 4),
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.SkipSimplifiedLayerNormalization",
        _SKIP_LAYER_NORM,
        _skip_layer(2, 3),
        _packed_halves(1, 2, 3),
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.EmbedLayerNormalization com.microsoft.QEmbedLayerNormalization",
        "contrib_ops/cpu/bert/embed_layer_norm.cc: Compute",
        nothing,
    ),
    Kernel(
        "com.microsoft.BranchwiseRMSNorm",
        "contrib_ops/cpu/bert/branchwise_rms_norm.cc: Compute; "
        "core/providers/cpu/nn/layer_norm_impl.cc: ComputeWithoutContext",
        _branchwise,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.GatedRMSNorm",
        "contrib_ops/cpu/bert/linear_attention_gates.cc: Compute",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel("LRN", "core/providers/cpu/nn/lrn.cc: Compute", _local_response),
    # Running statistics are updated in place.
    Kernel(
        "BatchNormalization",
        "core/providers/cpu/nn/batch_norm.h: Compute",
        _batch,
        aliases=((3, 1), (4, 2)),
    ),
    Kernel(
        "InstanceNormalization LpNormalization",
        "core/providers/cpu/nn/instance_norm.cc, lp_norm.cc: Compute",
        nothing,
    ),
    Kernel(
        "MeanVarianceNormalization",
        "core/providers/cpu/tensor/mean_variance_normalization.cc: Compute",
        _mean_variance,
    ),
    Kernel(
        "Softmax LogSoftmax",
        "core/providers/cpu/math/softmax.cc: ComputeImplOpset13",
        _transposed_twice,
    ),
    Kernel("Hardmax", "core/providers/cpu/math/hardmax.cc: Compute", _transposed_twice),
    Kernel(
        "com.microsoft.QLinearSoftmax",
        "contrib_ops/cpu/quantization/qlinear_softmax.cc: Compute",
        _quantized_softmax,
    ),
)
