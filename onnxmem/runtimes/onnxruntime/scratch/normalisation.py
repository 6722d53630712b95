"""Normalisations: statistics of a training step, and the fp16 kernels that compute in float32."""

from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.scratch.rule import Blocks, Rule

_FLOAT = 4
_HALF = 2


def _local_response(use: Use) -> tuple[int, ...]:
    """X: [N, C, *D]: the scale of each element; one image's squares, padded by size - 1."""
    batch, channels, *image = use.dims(0)
    padded = channels + use.integer("size", 1) - 1
    return (_FLOAT * batch * channels * product(image), _FLOAT * padded * product(image))


def _batch(use: Use) -> tuple[int, ...]:
    """X: [N, C, *D]: mean and variance of the batch, where it is a training step."""
    is_training = use.integer("training_mode", 0)
    return (use.element_bytes() * use.dims(0)[1],) * 2 if is_training else ()


def _layer(use: Use) -> tuple[int, ...]:
    """X in fp16: the scale and bias in float32, unless they were converted with the session."""
    if use.element_bytes() != _HALF:
        return ()
    places = (place for place in (1, 2) if use.has(place) and not use.is_constant(place))
    return tuple(_FLOAT * product(use.dims(place)) for place in places)


def _skip_layer(*weights: int) -> Blocks:
    """X, skip and Y in fp16, and the sum where it is an output: each in float32; then ``weights``.

    What is an initializer was converted with the session.
    """

    def blocks(use: Use) -> tuple[int, ...]:
        if use.element_bytes() != _HALF:
            return ()
        count = product(use.dims(0))
        made = 1 + use.has_output(3)
        given = (place for place in (1, *weights) if use.has(place) and not use.is_constant(place))
        return (
            _FLOAT * count,
            *(_FLOAT * product(use.dims(place)) for place in given),
            *(_FLOAT * count,) * made,
        )

    return blocks


RULES = (
    *(
        Rule(
            op_type,
            "com.microsoft",
            _skip_layer(*weights),
            "contrib_ops/cpu/skip_layer_norm.cc: Compute",
        )
        for op_type, weights in (
            ("SkipLayerNormalization", (2, 3, 4)),
            ("SkipSimplifiedLayerNormalization", (2, 3)),
        )
    ),
    Rule("LRN", "", _local_response, "core/providers/cpu/nn/lrn.cc: Compute"),
    Rule("BatchNormalization", "", _batch, "core/providers/cpu/nn/batch_norm.h: Compute"),
    *(
        Rule(op_type, "", _layer, "core/providers/cpu/nn/layer_norm_impl.cc: ComputeImpl")
        for op_type in ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
    ),
)
