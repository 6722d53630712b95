"""Convolutions, pooling and resizing, and onnxruntime's blocked forms of them.

Convolution: every output element is a dot product with one filter. Positions that a filter reads
from the padding are counted like any other, as all counters do. A fused activation is 1 FLOP per
output element.

Pooling: every output element is a maximum or a mean of one window. A window of k elements counts k
FLOPs: k - 1 comparisons or additions, and the last step. Windows over the edge are counted in full.
Indices that are saved for backward are int64.

Resampling: each output element is a weighted sum of a few input elements, its taps: one
multiplication and one addition each. The weights themselves, computed once per row and column or
per grid point, are left out.

Domain com.microsoft.nchwc: shapes read [N, C, H, W], C rounded up to the block of 8 or 16 channels:
channels of padding are computed, and counted.
"""

from math import prod

from onnxmem.ops.formulas import (
    dims,
    if_input,
    if_set,
    int_attribute,
    integers,
    multiply_add,
    num_elements,
    one_per_element,
    one_per_input_element,
    per_element,
    positive,
    product,
    shape_at,
    str_attribute,
    times,
    total,
)
from onnxmem.ops.spec import Call, Dims, Formula, OpSpec, Saved, Shape, nothing, unknown

_LEADING_DIMS = 2
"""Batch and channels."""


def _convolution_dims(call: Call, w: int = 1) -> tuple[Dims, Dims, Dims] | None:
    """Dims of the image, the weight and the output: all known, and of one rank."""
    image, weight = dims(call.input_at(0)), dims(call.input_at(w))
    output = dims(call.output_at(0))
    if not image or not weight or not output:
        return None
    is_valid = len(image) == len(weight) == len(output) > _LEADING_DIMS
    return (image, weight, output) if is_valid else None


def convolution_macs(w: int = 1) -> Formula:
    """X: [N, C, *D], W: [M, C/g, *K] -> Y: [N, M, *D']: one dot product of C/g * K per output.

    The count is elements(Y) * C/g * prod(K), so it is valid for channels last as well.
    """

    def formula(call: Call) -> int | None:
        found = _convolution_dims(call, w)
        if found is None:
            return None
        _, weight, output = found
        group = positive(call, "group", 1)
        # M is the second dim of Y, or the last one where channels are last.
        if group is None or weight[0] % group or weight[0] not in (output[1], output[-1]):
            return None
        # Y: [N, M, *out], W: [M, C / group, *kernel]: each output element is a sum over one filter.
        return prod(output) * prod(weight[1:])

    return formula


def transposed_macs(call: Call) -> int | None:
    """X: [N, C, *D], W: [C, M/g, *K] -> Y: [N, M, *D']: elements(X) * M/g * prod(K).

    Every input element is multiplied by each weight of its channel.
    """
    image, weight = dims(call.input_at(0)), dims(call.input_at(1))
    if not image or not weight or not len(image) == len(weight) > _LEADING_DIMS:
        return None
    if positive(call, "group", 1) is None or image[1] != weight[0]:
        return None
    # X: [N, C, *in], W: [C, M / group, *kernel]: each input element is spread over one filter.
    return prod(image) * prod(weight[1:])


def _sampling_flops(call: Call) -> int | None:
    """X: [N, C, *D], W: [M, C/g, *K], Y: [N, M, *D']: a linear interpolation for each of
    N * C * prod(K) * prod(D') samples, a multiply-add for each of its 2^n corners.
    """
    found = _convolution_dims(call)
    if found is None:
        return None
    image, weight, output = found
    # Each tap of each output position is interpolated between the 2^d corners around it, in every
    # channel.
    samples = prod(image[:2]) * prod(weight[2:]) * prod(output[2:])
    return times(2 * 2 ** len(image[2:]), samples)


CONVOLUTION_MACS = convolution_macs()
CONVOLUTION_FLOPS = multiply_add(CONVOLUTION_MACS, if_input(2, one_per_element))
CONVOLUTION_SAVED = (
    Saved("X"),  # dW = X correlated with dY
    Saved("W"),  # dX = dY convolved with W, transposed
)

_CONVOLUTIONS = (
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
        saved=CONVOLUTION_SAVED,  # with X and dY exchanged
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


_INDEX_BYTES = 8


def window_flops(per_position: int = 1, per_window: int = 0) -> Formula:
    """X: [N, C, *D], kernel K -> Y: [N, C, *D']: counts per position of a window, per window."""

    def formula(call: Call) -> int | None:
        output, kernel = dims(call.output_at(0)), integers(call.attributes.get("kernel_shape"))
        if not output or kernel is None or len(output) != len(kernel) + 2:
            return None
        return prod(output) * (prod(kernel) * per_position + per_window)

    return formula


def _index_bytes(call: Call) -> int | None:
    """Bytes of the index of each maximum; none beside ``Indices`` where the model has that."""
    if call.output_at(1) is not None:
        return 0
    return times(_INDEX_BYTES, num_elements(call.output_at(0)))


def _global_norm_flops(call: Call) -> int | None:
    """X: [N, C, *D] -> Y: [N, C, 1, ...]: a power and an addition per input, a root per output."""
    read, output = num_elements(call.input_at(0)), num_elements(call.output_at(0))
    return None if read is None or output is None else 2 * read + output


def _roi_align_flops(call: Call) -> int | None:
    """Y: [rois, C, h, w]: sampling_ratio^2 bilinear samples per output, a multiply-add for each
    of 4 corners and 1 to gather; unknown where the regions' sizes set the ratio.
    """
    ratio = positive(call, "sampling_ratio")
    return None if ratio is None else times(9 * ratio * ratio, num_elements(call.output_at(0)))


def _roi_argmax_bytes(call: Call) -> int | None:
    return times(4, num_elements(call.output_at(0)))


_POOLS = (
    OpSpec(
        op_type="MaxPool",
        inputs=("X",),
        outputs=("Y", "Indices"),
        saved=(Saved("X"), Saved("Indices")),  # dX[Indices] += dY; X is saved for its shape
        saved_extra_bytes=_index_bytes,
        flops=window_flops(),
        source="torch derivatives.yaml: max_pool2d_with_indices",
    ),
    OpSpec(
        op_type="AveragePool",
        inputs=("X",),
        outputs=("Y",),
        saved=(Saved("X"),),  # dX = dY / k over each window; X is saved for its shape
        flops=window_flops(),
        source="torch derivatives.yaml: avg_pool2d",
    ),
    OpSpec(
        op_type="LpPool",
        inputs=("X",),
        outputs=("Y",),
        saved=(Saved("X"), Saved("Y")),  # dX = dY * sign(X) * (|X| / Y)^(p - 1)
        flops=window_flops(2, 1),  # power and addition; the root of each sum
        source="derivative of the p-norm",
    ),
    OpSpec(
        op_type="GlobalAveragePool",
        inputs=("X",),
        outputs=("Y",),
        saved=(),  # dX = dY / k everywhere
        flops=one_per_input_element,
        source="torch derivatives.yaml: mean",
    ),
    OpSpec(
        op_type="GlobalMaxPool",
        inputs=("X",),
        outputs=("Y",),
        saved=(Saved("X"),),  # dX[indices] = dY; X is saved for its shape
        saved_extra_bytes=_index_bytes,
        flops=one_per_input_element,
        source="torch derivatives.yaml: adaptive_max_pool2d",
    ),
    OpSpec(
        op_type="GlobalLpPool",
        inputs=("X",),
        outputs=("Y",),
        saved=(Saved("X"), Saved("Y")),  # dX = dY * sign(X) * (|X| / Y)^(p - 1)
        flops=_global_norm_flops,
        source="torch derivatives.yaml: linalg_vector_norm",
    ),
    OpSpec(
        op_type="MaxUnpool",
        inputs=("X", "I", "output_shape"),
        outputs=("output",),
        saved=(Saved("I"),),  # dX = dY[I]
        source="torch derivatives.yaml: max_unpool2d",
    ),
    OpSpec(
        op_type="MaxRoiPool",
        inputs=("X", "rois"),
        outputs=("Y",),
        saved=(Saved("rois"),),  # dX[argmax] += dY
        saved_extra_bytes=_roi_argmax_bytes,  # argmax, int32
        flops=unknown,  # the regions' sizes are data
        source="torchvision roi_pool: save_for_backward",
    ),
    OpSpec(
        op_type="RoiAlign",
        inputs=("X", "rois", "batch_indices"),
        outputs=("Y",),
        saved=(Saved("rois"), Saved("batch_indices")),  # dX[corners] += dY * their weights
        flops=_roi_align_flops,
        source="torchvision roi_align: save_for_backward",
    ),
)


_TAPS_PER_AXIS = {"nearest": 0, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
"""Nearest copies an element; the older names are of operators that knew two axes alone."""


def _resized_axes(before: Shape | None, after: Shape | None) -> int | None:
    """Count the axes whose length changes."""
    if product(before) is None or product(after) is None or before is None or after is None:
        return None
    return sum(old != new for old, new in zip(before, after, strict=False))


def _resize_flops(call: Call) -> int | None:
    """Count ``2 x taps^axes`` an output element over the axes that change.

    An antialiased reduction widens its filter with the scale: unknown.
    """
    taps = _TAPS_PER_AXIS.get(str_attribute(call, "mode", "nearest"))
    output = call.output_at(0)
    axes = _resized_axes(shape_at(call), None if output is None else output.shape)
    if taps == 0 or axes == 0:
        return 0
    if taps is None or axes is None or int_attribute(call, "antialias", 0):
        return None
    # Axes of equal length are copied; along each other one, an element is a sum of weighted taps.
    return times(2 * taps**axes, num_elements(output))


def _grid_sample_flops(call: Call) -> int | None:
    """Count ``2 x taps^d`` an output element of a d-dimensional grid."""
    taps = _TAPS_PER_AXIS.get(str_attribute(call, "mode", "linear"))
    shape = shape_at(call)
    if taps is None or shape is None:
        return None
    per_element = 2 * taps ** max(len(shape) - 2, 0) if taps else 0
    return times(per_element, num_elements(call.output_at(0)))


def _affine_grid_macs(call: Call) -> int | None:
    """Multiply each point (x, y, 1) by theta: [d, d + 1]: d sums of d + 1 multiplications."""
    shape = shape_at(call)
    columns = shape[-1] if shape else None
    return times(columns, num_elements(call.output_at(0)))


def _resize(op_type: str, *inputs: str) -> OpSpec:
    """The gradient scatters dY to its taps, by shapes alone."""
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=("Y",),
        flops=_resize_flops,
        source="torch derivatives.yaml: upsample",
    )


_RESIZES = (
    _resize("Resize", "X"),
    _resize("Upsample", "X", "scales"),
    OpSpec(
        op_type="GridSample",
        inputs=("X", "grid"),
        outputs=("Y",),
        saved=(Saved("X"), Saved("grid")),  # dX scatters dY by grid, dgrid = dY * slope of X there
        flops=_grid_sample_flops,
        source="torch derivatives.yaml: grid_sampler_2d",
    ),
    OpSpec(
        op_type="AffineGrid",
        inputs=("theta", "size"),
        outputs=("grid",),
        macs=_affine_grid_macs,  # dtheta = dgrid^T @ points, and the points follow from the size
        flops=multiply_add(_affine_grid_macs),
        source="torch derivatives.yaml: affine_grid_generator",
    ),
)


def fused_convolution(op_type: str, domain: str, addend: str, source: str) -> OpSpec:
    """Convolution, bias, a sum with ``addend``, an activation."""
    return OpSpec(
        op_type=op_type,
        domain=domain,
        inputs=("X", "W", "B", addend),
        outputs=("Y",),
        may_inplace=((addend, "Y"),),
        parameters=("W", "B"),
        saved=(*CONVOLUTION_SAVED, Saved("Y")),  # the activation's: Relu reads Y
        macs=CONVOLUTION_MACS,
        flops=total(
            CONVOLUTION_FLOPS,
            if_input(3, one_per_element),
            if_set("activation", one_per_element),
        ),
        source=f"{source}; onnxruntime 1.31.1 CPU kernel",
    )


DOMAIN = "com.microsoft.nchwc"
_SOURCE = "onnxruntime nchwc_schema_defs.cc"


def _upsample_flops(call: Call) -> int | None:
    """Nearest copies; linear: 4 taps an output element, two FLOPs each."""
    return 0 if str_attribute(call, "mode", "nearest") == "nearest" else per_element(8)(call)


def _unary(
    op_type: str,
    flops: Formula,
    saved: tuple[Saved, ...] = (),
    saved_extra_bytes: Formula = nothing,
) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=("X",),
        outputs=("Y",),
        saved=saved,
        saved_extra_bytes=saved_extra_bytes,
        flops=flops,
        source=_SOURCE,
    )


_BLOCKED = (
    fused_convolution("Conv", DOMAIN, "Sum", _SOURCE),
    _unary("MaxPool", window_flops(), (Saved("X"),), _index_bytes),  # dX[indices] += dY
    _unary("AveragePool", window_flops(), (Saved("X"),)),  # dX = dY / k over each window
    _unary("GlobalMaxPool", one_per_input_element, (Saved("X"),), _index_bytes),
    _unary("GlobalAveragePool", one_per_input_element),  # dX = dY / k everywhere
    _unary("ReorderInput", nothing),
    _unary("ReorderOutput", nothing),
    _unary("Upsample", _upsample_flops),  # dX gathers dY by the same weights
)

OPS = (*_CONVOLUTIONS, *_POOLS, *_RESIZES, *_BLOCKED)
