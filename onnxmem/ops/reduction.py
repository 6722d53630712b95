"""Reductions over axes, and running ones along an axis.

FLOPs are counted per input element; the few per output element (the mean's division, the root of a
norm) are left out.
"""

from onnxmem.ops.formulas import (
    bytes_of_input,
    bytes_of_output,
    one_per_element,
    one_per_input_element,
    per_element,
    per_input_element,
    total,
)
from onnxmem.ops.spec import Formula, Gradient, GradientRule, OpSpec, Saved

_MASK_AND_TIES = total(one_per_input_element, per_element(8), bytes_of_output())
"""A mask of bytes, the number of ties (int64) and dY over it."""
_EXPANDED = Gradient("data", GradientRule.EXPANDED)
_BOTH = (Saved("data"), Saved("reduced"))


def _beside(temporary_bytes: Formula) -> Gradient:
    return Gradient("data", GradientRule.NEW, temporary_bytes)


def _reduce(
    op_type: str,
    saved: tuple[Saved, ...],
    torch: str,
    flops: int = 1,
    *,
    gradient: Gradient = Gradient("data", GradientRule.NEW),  # noqa: B008 - frozen
) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        inputs=("data", "axes"),
        outputs=("reduced",),
        saved=saved,
        gradients=(gradient,),
        flops=per_input_element(flops),
        source=f"torch derivatives.yaml: {torch}",
    )


def _index_of(op_type: str) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        inputs=("data",),
        outputs=("reduced",),
        differentiable=False,
        flops=per_input_element(1),  # a comparison each
        source="ONNX operator document: its result is indices",
    )


OPS = (
    _reduce("ReduceSum", (), "sum", gradient=_EXPANDED),  # dX = dY, expanded
    _reduce("ReduceMean", (), "mean"),  # dX = dY / n, expanded
    _reduce(
        "ReduceMax", _BOTH, "amax", gradient=_beside(_MASK_AND_TIES)
    ),  # dX = dY * (X == Y) / ties
    _reduce(
        "ReduceMin", _BOTH, "amin", gradient=_beside(_MASK_AND_TIES)
    ),  # dX = dY * (X == Y) / ties
    _reduce("ReduceProd", _BOTH, "prod", gradient=_beside(bytes_of_input(1))),  # dX = dY * Y / X
    _reduce("ReduceL1", _BOTH, "norm", 2),  # dX = dY * sign(X); |x|, add
    _reduce(
        "ReduceL2", _BOTH, "norm", 2, gradient=_beside(bytes_of_input(1))
    ),  # dX = dY * X / Y; square, add
    _reduce(
        "ReduceSumSquare", (Saved("data"),), "pow, sum", 2, gradient=_beside(bytes_of_input(2))
    ),  # dX = 2 * X * dY; square, add
    _reduce(
        "ReduceLogSumExp", _BOTH, "logsumexp", 4, gradient=_beside(bytes_of_input(2))
    ),  # dX = dY * exp(X - Y); max, -, exp, add
    OpSpec(
        op_type="ReduceLogSum",
        inputs=("data", "axes"),
        outputs=("reduced",),
        saved_extra_bytes=bytes_of_output(),  # the sum: dX = dY / sum(X), expanded
        flops=per_input_element(1),
        source="torch derivatives.yaml: sum, log",
    ),
    _index_of("ArgMax"),
    _index_of("ArgMin"),
    OpSpec(
        op_type="CumSum",
        inputs=("x", "axis"),
        outputs=("y",),
        gradients=(Gradient("x", GradientRule.NEW, bytes_of_input(2)),),
        flops=one_per_element,
        source="torch FunctionsManual.cpp: cumsum_backward",  # dX = flip(cumsum(flip(dY)))
    ),
    OpSpec(
        op_type="CumProd",
        inputs=("x", "axis"),
        outputs=("y",),
        saved=(Saved("x"), Saved("y")),  # dX = reversed cumsum(dY * Y) / X
        flops=one_per_element,
        source="torch derivatives.yaml: cumprod",
    ),
)
