"""onnxruntime's blocked image operators of domain com.microsoft.nchwc, made while it optimises.

Shapes read [N, C, H, W], C rounded up to the block of 8 or 16 channels: channels of padding are
computed, and counted.
"""

from onnxmem.ops.combining import if_input, if_set, total
from onnxmem.ops.convolution import CONVOLUTION_FLOPS, CONVOLUTION_MACS, CONVOLUTION_SAVED
from onnxmem.ops.formulas import (
    one_per_element,
    one_per_input_element,
    per_element,
    str_attribute,
)
from onnxmem.ops.pooling import index_bytes, window_flops
from onnxmem.ops.spec import Call, Formula, OpSpec, Saved, nothing

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


OPS = (
    OpSpec(
        op_type="Conv",
        domain=DOMAIN,
        inputs=("X", "W", "B", "Sum"),
        outputs=("Y",),
        may_inplace=(("Sum", "Y"),),
        parameters=("W", "B"),
        saved=(*CONVOLUTION_SAVED, Saved("Y")),  # the activation's: Relu reads Y
        macs=CONVOLUTION_MACS,
        flops=total(
            CONVOLUTION_FLOPS,
            if_input(3, one_per_element),
            if_set("activation", one_per_element),
        ),
        source=f"{_SOURCE}; onnxruntime 1.31.1 CPU kernel",
    ),
    _unary("MaxPool", window_flops(), (Saved("X"),), index_bytes),  # dX[indices] += dY
    _unary("AveragePool", window_flops(), (Saved("X"),)),  # dX = dY / k over each window
    _unary("GlobalMaxPool", one_per_input_element, (Saved("X"),), index_bytes),
    _unary("GlobalAveragePool", one_per_input_element),  # dX = dY / k everywhere
    _unary("ReorderInput", nothing),
    _unary("ReorderOutput", nothing),
    _unary("Upsample", _upsample_flops),  # dX gathers dY by the same weights
)
