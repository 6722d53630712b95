"""Activations: an output as large as the input, from one pass over it.

Each counts 1 FLOP an output element, whatever its function takes to evaluate; the softmax family,
which reduces over rows as well, says its own count. A backward pass keeps the input or the output,
whichever its formula reads: the choice is PyTorch's.
"""

from onnxmem.ops.formulas import (
    bytes_of_output,
    one_per_element,
    one_per_input_element,
    per_element,
)
from onnxmem.ops.spec import Call, Gradient, Made, OpSpec, Saved

_XY = ("X", "Y")
_IO = ("input", "output")


def _activation(
    op_type: str, names: tuple[str, str], saves: str, torch: str, *, inplace: bool = False
) -> OpSpec:
    """One input, one output as large; ``inplace``: onnxruntime's CPU kernel may overwrite it."""
    return OpSpec(
        op_type=op_type,
        inputs=names[:1],
        outputs=names[1:],
        may_inplace=(names,) if inplace else (),
        saved=(Saved(saves),),
        keeps_strides=True,
        flops=one_per_element,
        source=f"onnxruntime 1.31.1 CPU kernel; torch derivatives.yaml: {torch}",
    )


def _clip_masks(call: Call) -> int | None:
    """Two masks of bytes, for clamp; hardtanh, as ReLU6 is, has a kernel of its own."""
    bounds = [call.input_at(place) for place in (1, 2)]
    values = [bound.value for bound in bounds if bound is not None]
    return 0 if values == [(0,), (6,)] else per_element(2)(call)


_POINTWISE = (
    _activation("Relu", _XY, "Y", "relu", inplace=True),  # dX = dY * (Y > 0)
    _activation("LeakyRelu", _XY, "X", "leaky_relu", inplace=True),  # dX = dY * (X > 0 ? 1 : alpha)
    _activation("ThresholdedRelu", _XY, "X", "threshold", inplace=True),  # dX = dY * (X > alpha)
    _activation("Elu", _XY, "X", "elu", inplace=True),  # dX = dY * (X > 0 ? 1 : alpha * exp(X))
    _activation("Celu", _XY, "X", "elu", inplace=True),  # dX = dY * (X > 0 ? 1 : exp(X / alpha))
    _activation("Selu", _XY, "X", "elu", inplace=True),  # dX = dY * gamma * (X > 0 ? 1 : a exp(X))
    _activation("Sigmoid", _XY, "Y", "sigmoid", inplace=True),  # dX = dY * Y * (1 - Y)
    _activation("Tanh", _IO, "output", "tanh", inplace=True),  # dX = dY * (1 - Y^2)
    _activation("HardSigmoid", _XY, "X", "hardsigmoid", inplace=True),  # dX = dY * alpha * inside
    _activation("HardSwish", _XY, "X", "hardswish"),  # dX = dY * (X / 3 + 1 / 2), 0 or 1 outside
    _activation("Softplus", _XY, "X", "softplus", inplace=True),  # dX = dY * sigmoid(X)
    _activation("Mish", _XY, "X", "mish"),  # with t = tanh(softplus(X)): dX = dY * (t + X * t')
    _activation("Gelu", _XY, "X", "gelu"),  # dX = dY * (Phi(X) + X * phi(X))
    _activation("Swish", _XY, "X", "silu"),  # with s = sigmoid(X): dX = dY * s * (1 + X * (1 - s))
    _activation("Shrink", _IO, "input", "softshrink", inplace=True),  # dX = dY * (|X| > lambd)
    # Before opset 10, and in onnxruntime's default domain alone
    _activation("ParametricSoftplus", _XY, "X", "softplus", inplace=True),  # dX = dY a b s(bX)
    _activation("ScaledTanh", _IO, "output", "tanh", inplace=True),  # dX = dY * b * (a - Y^2 / a)
)

OPS = (
    *_POINTWISE,
    OpSpec(
        op_type="Clip",
        inputs=("input", "min", "max"),
        outputs=("output",),
        may_inplace=(("input", "output"),),
        saved=(Saved("input"),),  # dX = dY * (min <= X <= max): ReLU6 keeps its input, ReLU not
        gradients=(Gradient("input", Made.NEW, _clip_masks),),
        keeps_strides=True,
        flops=one_per_element,
        source="onnxruntime 1.31.1 CPU kernel; torch derivatives.yaml: hardtanh, clamp",
    ),
    OpSpec(
        op_type="PRelu",
        inputs=("X", "slope"),
        outputs=("Y",),
        parameters=("slope",),
        # dX = dY * (X > 0 ? 1 : slope), dslope = dY * min(X, 0), of one kernel, then summed
        saved=(Saved("X"), Saved("slope")),
        gradients=(Gradient("slope", Made.PRODUCT),),
        keeps_strides=True,
        flops=one_per_element,
        source="torch derivatives.yaml: _prelu_kernel",
    ),
    OpSpec(
        op_type="Softsign",
        inputs=("input",),
        outputs=("output",),
        may_inplace=(("input", "output"),),
        saved=(Saved("input"),),  # dX = dY / (1 + |X|)^2
        saved_extra_bytes=bytes_of_output(),  # 1 + |X|, the divisor of X / (1 + |X|)
        keeps_strides=True,
        flops=one_per_element,
        source="onnxruntime 1.31.1 CPU kernel; torch nn.functional.softsign, a composite",
    ),
    OpSpec(
        op_type="SwiGLU",
        inputs=("A", "B"),
        outputs=("Y",),
        saved=(Saved("A"), Saved("B", if_grad="A")),  # dA = dY * B * swish'(A), dB = dY * swish(A)
        saved_extra_bytes=bytes_of_output(),  # swish(A), which dB reads
        flops=per_element(2),  # swish(A), then times B
        source="ONNX function body; torch silu(A) * B, a composite",
    ),
    OpSpec(
        op_type="Softmax",
        inputs=("input",),
        outputs=("output",),
        may_inplace=(("input", "output"),),
        saved=(Saved("output"),),  # dX = Y * (dY - sum(dY * Y))
        flops=per_element(5),  # row maximum, subtract, exp, row sum, divide
        source="onnxruntime 1.31.1 CPU kernel; torch derivatives.yaml: _softmax",
    ),
    OpSpec(
        op_type="LogSoftmax",
        inputs=("input",),
        outputs=("output",),
        may_inplace=(("input", "output"),),
        saved=(Saved("output"),),  # dX = dY - exp(Y) * sum(dY)
        flops=per_element(5),  # row maximum, subtract, exp, row sum, subtract its log
        source="onnxruntime 1.31.1 CPU kernel; torch derivatives.yaml: _log_softmax",
    ),
    OpSpec(
        op_type="Hardmax",
        inputs=("input",),
        outputs=("output",),
        differentiable=False,
        flops=one_per_input_element,  # the row maximum
        source="ONNX operator document",
    ),
)
