"""Resampling of images: each output element is a weighted sum of a few input elements, its taps.

A tap is one multiplication and one addition. The weights themselves, made once per row and column
or per grid point, are left out.
"""

from onnxmem.ops.formulas import (
    int_attribute,
    num_elements,
    product,
    shape_at,
    str_attribute,
    times,
    twice,
)
from onnxmem.ops.spec import Call, OpSpec, Saved, Shape

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
    """Multiply each point (x, y, 1) by theta: [d, d + 1] gives d sums of d + 1 products."""
    shape = shape_at(call)
    columns = shape[-1] if shape else None
    return times(columns, num_elements(call.output_at(0)))


OPS = (
    OpSpec(
        op_type="Resize",
        inputs=("X",),
        outputs=("Y",),
        flops=_resize_flops,
        source="torch derivatives.yaml: upsample",  # dX = dY spread over its taps by shapes alone
    ),
    OpSpec(
        op_type="Upsample",
        inputs=("X", "scales"),
        outputs=("Y",),
        flops=_resize_flops,
        source="torch derivatives.yaml: upsample",  # dX = dY spread over its taps by shapes alone
    ),
    OpSpec(
        op_type="GridSample",
        inputs=("X", "grid"),
        outputs=("Y",),
        saved=(Saved("X"), Saved("grid")),  # dX = dY spread by grid, dgrid = dY * slope of X there
        flops=_grid_sample_flops,
        source="torch derivatives.yaml: grid_sampler_2d",
    ),
    OpSpec(
        op_type="AffineGrid",
        inputs=("theta", "size"),
        outputs=("grid",),
        macs=_affine_grid_macs,  # dtheta = dgrid^T @ points, and the points follow from the size
        flops=twice(_affine_grid_macs),
        source="torch derivatives.yaml: affine_grid_generator",
    ),
)
