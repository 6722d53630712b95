"""Pooling: every output element is a maximum or a mean of one window.

A window of k elements counts k FLOPs: k - 1 comparisons or additions, and the last step. Windows
over the edge are counted in full. Indices that a backward pass keeps are int64.
"""

from math import prod

from onnxmem.ops.combining import dims, integers, positive
from onnxmem.ops.formulas import num_elements, one_per_input_element, times
from onnxmem.ops.spec import Call, Formula, OpSpec, Saved, unknown

_INDEX_BYTES = 8


def window_flops(per_position: int = 1, per_window: int = 0) -> Formula:
    """X: [N, C, *D], kernel K -> Y: [N, C, *D']: so many per place in a window, and per window."""

    def formula(call: Call) -> int | None:
        made, kernel = dims(call.output_at(0)), integers(call.attributes.get("kernel_shape"))
        if not made or kernel is None or len(made) != len(kernel) + 2:
            return None
        return prod(made) * (prod(kernel) * per_position + per_window)

    return formula


def index_bytes(call: Call) -> int | None:
    """Bytes of the place of each maximum; none beside ``Indices`` where the model has that."""
    if call.output_at(1) is not None:
        return 0
    return times(_INDEX_BYTES, num_elements(call.output_at(0)))


def _global_norm_flops(call: Call) -> int | None:
    """X: [N, C, *D] -> Y: [N, C, 1, ...]: a power and an addition per input, a root per output."""
    read, made = num_elements(call.input_at(0)), num_elements(call.output_at(0))
    return None if read is None or made is None else 2 * read + made


def _roi_align_flops(call: Call) -> int | None:
    """Y: [rois, C, h, w]: sampling_ratio^2 bilinear samples per output, a multiply-add for each
    of 4 corners and 1 to gather; unknown where the regions' sizes set the ratio.
    """
    ratio = positive(call, "sampling_ratio")
    return None if ratio is None else times(9 * ratio * ratio, num_elements(call.output_at(0)))


def _roi_argmax_bytes(call: Call) -> int | None:
    return times(4, num_elements(call.output_at(0)))


OPS = (
    OpSpec(
        op_type="MaxPool",
        inputs=("X",),
        outputs=("Y", "Indices"),
        saved=(Saved("X"), Saved("Indices")),  # dX[Indices] += dY; X is kept for its shape
        saved_extra_bytes=index_bytes,
        flops=window_flops(),
        source="torch derivatives.yaml: max_pool2d_with_indices",
    ),
    OpSpec(
        op_type="AveragePool",
        inputs=("X",),
        outputs=("Y",),
        saved=(Saved("X"),),  # dX = dY / k over each window; X is kept for its shape
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
        saved=(Saved("X"),),  # dX[indices] = dY; X is kept for its shape
        saved_extra_bytes=index_bytes,
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
