"""Convolutions: every output element is a dot product with one filter.

Positions that a filter reads from the padding are counted like any other, as all counters do.
A fused activation is 1 FLOP an output element.
"""

from math import prod

from onnxmem.ops.combining import dims, if_input, if_set, multiply_add, positive, total
from onnxmem.ops.formulas import one_per_element, times
from onnxmem.ops.spec import Call, Formula, OpSpec, Saved

_LEADING_DIMS = 2
"""Batch and channels."""


def convolution_macs(x: int = 0, w: int = 1) -> Formula:
    """X: [N, C, *D], W: [M, C/g, *K] -> Y: [N, M, *D']: one dot product of C/g * K per output.

    The count is elements(Y) * C/g * prod(K), so it holds for channels in the last place as well.
    """

    def formula(call: Call) -> int | None:
        image, weight, result = dims(call.input_at(x)), dims(call.input_at(w)), call.output_at(0)
        made = dims(result)
        if (
            not image
            or not weight
            or not made
            or not len(image) == len(weight) == len(made) > _LEADING_DIMS
        ):
            return None
        group = positive(call, "group", 1)
        if group is None or weight[0] % group or weight[0] not in (made[1], made[-1]):
            return None
        return prod(made) * prod(weight[1:])

    return formula


def transposed_macs(call: Call) -> int | None:
    """X: [N, C, *D], W: [C, M/g, *K] -> Y: [N, M, *D']: elements(X) * M/g * prod(K).

    Every input element is spread over the output by each weight of its channel.
    """
    image, weight = dims(call.input_at(0)), dims(call.input_at(1))
    if not image or not weight or not len(image) == len(weight) > _LEADING_DIMS:
        return None
    if positive(call, "group", 1) is None or image[1] != weight[0]:
        return None
    return prod(image) * prod(weight[1:])


def _sampling_flops(call: Call) -> int | None:
    """X: [N, C, *D], W: [M, C/g, *K], Y: [N, M, *D']: a linear interpolation for each of
    N * C * prod(K) * prod(D') samples, a multiply-add for each of its 2^n corners.
    """
    image, weight, made = (dims(o) for o in (call.input_at(0), call.input_at(1), call.output_at(0)))
    if (
        not image
        or not weight
        or not made
        or not len(image) == len(weight) == len(made) > _LEADING_DIMS
    ):
        return None
    samples = prod(image[:2]) * prod(weight[2:]) * prod(made[2:])
    return times(2 * 2 ** len(image[2:]), samples)


CONVOLUTION_MACS = convolution_macs()
CONVOLUTION_FLOPS = multiply_add(CONVOLUTION_MACS, if_input(2, one_per_element))
CONVOLUTION_SAVED = (
    Saved("X"),  # dW = X correlated with dY
    Saved("W"),  # dX = dY convolved with W, transposed
)

OPS = (
    OpSpec(
        op_type="Conv",
        inputs=("X", "W", "B"),
        outputs=("Y",),
        parameters=("W", "B"),
        saved=CONVOLUTION_SAVED,  # dB = sum(dY)
        macs=CONVOLUTION_MACS,
        flops=CONVOLUTION_FLOPS,
        source="torch derivatives.yaml: convolution_overrideable",
    ),
    OpSpec(
        op_type="ConvTranspose",
        inputs=("X", "W", "B"),
        outputs=("Y",),
        parameters=("W", "B"),
        saved=CONVOLUTION_SAVED,  # with X and dY in each other's place
        macs=transposed_macs,
        flops=multiply_add(transposed_macs, if_input(2, one_per_element)),
        source="torch derivatives.yaml: convolution_overrideable",
    ),
    OpSpec(
        op_type="DeformConv",
        inputs=("X", "W", "offset", "B", "mask"),
        outputs=("Y",),
        parameters=("W", "B"),
        # The samples are drawn again: dW and dmask = dY with samples, doffset = dY with slopes
        saved=(Saved("X"), Saved("W"), Saved("offset"), Saved("mask")),
        macs=CONVOLUTION_MACS,
        flops=multiply_add(CONVOLUTION_MACS, _sampling_flops, if_input(3, one_per_element)),
        source="torchvision deform_conv2d: save_for_backward",
    ),
    OpSpec(
        op_type="CausalConvWithState",
        inputs=("input", "weight", "bias", "past_state"),
        outputs=("output", "present_state"),
        parameters=("weight", "bias"),
        # As Conv, of past_state and input joined; silu's backward needs the sum before it again
        saved=(Saved("input"), Saved("weight"), Saved("bias"), Saved("past_state")),
        macs=CONVOLUTION_MACS,
        flops=total(CONVOLUTION_FLOPS, if_set("activation", one_per_element)),
        source="onnx 1.23 CausalConvWithState; causal_conv1d: save_for_backward",
    ),
)
