"""Elementwise arithmetic, comparison, logic and selection, with broadcasting; activations.

Each counts 1 FLOP per output element, whatever its function takes to evaluate, and a variadic one 1
for each operand after the first; the softmax family, which also reduces over rows, has counts of
its own. Selecting and converting compute nothing. onnxruntime overwrites no input of the arithmetic
here. An activation saves its input or its output, whichever its formula in PyTorch reads.
"""

from dataclasses import replace

from onnxmem.ops.formulas import (
    bytes_of_output,
    num_elements,
    one_per_element,
    one_per_input_element,
    per_element,
    times,
    total,
)
from onnxmem.ops.spec import Call, Formula, Gradient, GradientRule, OpSpec, Saved, nothing

_XY = ("X", "Y")
_IO = ("input", "output")
_AB = ("A", "B")


_HALF_AND_MASKS = total(bytes_of_output(), per_element(2))
"""dY / 2 and two masks of bytes."""


def _same(name: str) -> Gradient:
    return Gradient(name, GradientRule.SAME)


def _reduced(name: str, temporary_bytes: Formula = nothing) -> Gradient:
    return Gradient(name, GradientRule.REDUCED, temporary_bytes)


def _unary(
    op_type: str, names: tuple[str, str], saves: str | None, torch: str, temporaries: int = 0
) -> OpSpec:
    """One operand; the backward formula allocates ``temporaries`` tensors beside its result."""
    return OpSpec(
        op_type=op_type,
        inputs=names[:1],
        outputs=names[1:],
        saved=() if saves is None else (Saved(saves),),
        gradients=(Gradient(names[0], GradientRule.NEW, bytes_of_output(temporaries)),),
        preserves_strides=True,
        flops=one_per_element,
        source=f"torch derivatives.yaml: {torch}",
    )


def _arithmetic(op_type: str, saved: tuple[Saved, ...], torch: str, *gradients: Gradient) -> OpSpec:
    """Two broadcast operands, either of which may be a trained parameter: a bias, a scale."""
    return OpSpec(
        op_type=op_type,
        inputs=_AB,
        outputs=("C",),
        parameters=_AB,
        saved=saved,
        gradients=gradients,
        preserves_strides=True,
        flops=one_per_element,
        source=f"torch derivatives.yaml: {torch}",
    )


def _after_the_first(call: Call) -> int | None:
    """Combine n operands in n - 1 steps of one FLOP per output element."""
    return times(max(len(call.inputs) - 1, 0), num_elements(call.output_at(0)))


def _variadic(
    op_type: str, output: str, saved: tuple[Saved, ...], torch: str, gradient: Gradient
) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        inputs=("*data_0",),
        outputs=(output,),
        parameters=("data_0",) if gradient.rule is GradientRule.SAME else (),
        saved=saved,
        gradients=(gradient,),
        preserves_strides=True,
        flops=_after_the_first,
        source=f"torch derivatives.yaml: {torch}",
    )


def _no_gradient(op_type: str, inputs: tuple[str, ...], output: str) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=(output,),
        differentiable=False,
        flops=one_per_element,
        source="ONNX operator document: truth values, bits or integers, no gradient",
    )


_UNARY = (
    _unary("Abs", _XY, "X", "abs", 1),  # dX = dY * sign(X)
    _unary("Neg", _XY, None, "neg"),  # dX = -dY
    _unary("Sign", _IO, None, "sign"),  # dX = 0
    _unary("Floor", _XY, None, "floor"),  # dX = 0
    _unary("Ceil", _XY, None, "ceil"),  # dX = 0
    _unary("Round", _XY, None, "round"),  # dX = 0
    _unary("Reciprocal", _XY, "Y", "reciprocal", 2),  # dX = -dY * Y^2
    _unary("Sqrt", _XY, "Y", "sqrt", 1),  # dX = dY / (2 * Y)
    _unary("Log", _IO, "input", "log"),  # dX = dY / X
    _unary("Erf", _IO, "input", "erf", 4),  # dX = dY * 2 / sqrt(pi) * exp(-X^2)
    _unary("Sin", _IO, "input", "sin", 1),  # dX = dY * cos(X)
    _unary("Cos", _IO, "input", "cos", 2),  # dX = -dY * sin(X)
    _unary("Tan", _IO, "output", "tan", 2),  # dX = dY * (1 + Y^2)
    _unary("Asin", _IO, "input", "asin", 4),  # dX = dY / sqrt(1 - X^2)
    _unary("Acos", _IO, "input", "acos", 5),  # dX = -dY / sqrt(1 - X^2)
    _unary("Atan", _IO, "input", "atan", 2),  # dX = dY / (1 + X^2)
    _unary("Sinh", _IO, "input", "sinh", 1),  # dX = dY * cosh(X)
    _unary("Cosh", _IO, "input", "cosh", 1),  # dX = dY * sinh(X)
    _unary("Asinh", _IO, "input", "asinh", 3),  # dX = dY / sqrt(X^2 + 1)
    _unary("Acosh", _IO, "input", "acosh", 3),  # dX = dY / sqrt(X^2 - 1)
    _unary("Atanh", _IO, "input", "atanh", 3),  # dX = dY / (1 - X^2)
)

_ARITHMETIC = (
    _arithmetic("Add", (), "add", _same("A"), _same("B")),  # dA = dB = dC
    _arithmetic("Sub", (), "sub", _same("A"), _reduced("B")),  # dA = dC, dB = -dC
    # dA = dC * B, dB = dC * A
    _arithmetic(
        "Mul",
        (Saved("A", if_grad="B"), Saved("B", if_grad="A")),
        "mul",
        *(_reduced("A"), _reduced("B")),
    ),
    # dA = dC / B, dB = -dC * ((A / B) / B)
    _arithmetic(
        "Div",
        (Saved("A", if_grad="B"), Saved("B")),
        "div",
        _reduced("A"),
        _reduced("B", bytes_of_output(3)),
    ),
    _variadic("Sum", "sum", (), "add", _same("data_0")),  # each dX = dY
    _variadic("Mean", "mean", (), "mean", _reduced("data_0")),  # each dX = dY / n
    # dX = dY where X is the largest, the smallest, and half of it where operands are equal
    _variadic("Max", "max", (Saved("data_0"),), "maximum", _reduced("data_0", _HALF_AND_MASKS)),
    _variadic("Min", "min", (Saved("data_0"),), "minimum", _reduced("data_0", _HALF_AND_MASKS)),
)

_LOGIC = (
    *(_no_gradient(op, _AB, "C") for op in ("Equal", "Greater", "GreaterOrEqual")),
    *(_no_gradient(op, _AB, "C") for op in ("Less", "LessOrEqual", "And", "Or", "Xor")),
    *(_no_gradient(op, _AB, "C") for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    *(_no_gradient(op, ("X",), "Y") for op in ("Not", "BitwiseNot", "IsInf", "IsNaN")),
    _no_gradient("BitShift", ("X", "Y"), "Z"),
)

_OTHERS = (
    *_UNARY,
    *_ARITHMETIC,
    *_LOGIC,
    OpSpec(
        op_type="Exp",
        inputs=("input",),
        outputs=("output",),
        parameters=("input",),  # a learned log scale
        saved=(Saved("output"),),  # dX = dY * Y
        preserves_strides=True,
        flops=one_per_element,
        source="torch derivatives.yaml: exp",
    ),
    OpSpec(
        op_type="Pow",
        inputs=("X", "Y"),
        outputs=("Z",),
        # dX = dZ * (Y * X^(Y - 1)), dY = dZ * (Z * log(X))
        saved=(Saved("X"), Saved("Y"), Saved("Z", if_grad="Y")),
        gradients=(_reduced("X", bytes_of_output(2)), _reduced("Y", bytes_of_output(2))),
        preserves_strides=True,
        flops=one_per_element,
        source="torch derivatives.yaml: pow",
    ),
    OpSpec(
        op_type="Mod",
        inputs=_AB,
        outputs=("C",),
        saved=(Saved("A", if_grad="B"), Saved("B", if_grad="B")),  # dA = dC, dB = -dC * (A // B)
        gradients=(_same("A"), _reduced("B", bytes_of_output(2))),
        preserves_strides=True,
        flops=one_per_element,
        source="torch derivatives.yaml: remainder, fmod",
    ),
    OpSpec(
        op_type="Where",
        inputs=("condition", "X", "Y"),
        outputs=("output",),
        saved=(Saved("condition"),),  # dX = condition ? dOut : 0, dY = condition ? 0 : dOut
        gradients=(_reduced("X"), _reduced("Y")),
        preserves_strides=True,
        source="torch derivatives.yaml: where",
    ),
    OpSpec(
        op_type="Cast",
        inputs=("input",),
        outputs=("output",),
        may_inplace=(("input", "output"),),  # equal element sizes: float32 to int32
        parameters=("input",),
        preserves_strides=True,
        source="onnxruntime 1.31.1 CPU kernel; torch _to_copy",  # dX = dY, cast back
    ),
    OpSpec(
        op_type="CastLike",
        inputs=("input", "target_type"),
        outputs=("output",),
        parameters=("input",),
        preserves_strides=True,
        source="ONNX operator document; torch _to_copy",  # dX = dY, cast back
    ),
    OpSpec(
        op_type="BitCast",
        since_version=26,
        inputs=("input",),
        outputs=("output",),
        may_inplace=(("input", "output"),),
        differentiable=False,
        source="onnxruntime 1.31.1 CPU kernel",
    ),
)


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
        preserves_strides=True,
        flops=one_per_element,
        source=f"onnxruntime 1.31.1 CPU kernel; torch derivatives.yaml: {torch}",
    )


def _clip_masks(call: Call) -> int | None:
    """Two masks of bytes, for clamp; hardtanh, as ReLU6 is, has a kernel of its own."""
    bounds = [call.input_at(index) for index in (1, 2)]
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

_ACTIVATIONS = (
    *_POINTWISE,
    OpSpec(
        op_type="Clip",
        inputs=("input", "min", "max"),
        outputs=("output",),
        parameters=("input",),  # a scale that is learned within bounds
        may_inplace=(("input", "output"),),
        saved=(Saved("input"),),  # dX = dY * (min <= X <= max): ReLU6 saves its input, ReLU not
        gradients=(Gradient("input", GradientRule.NEW, _clip_masks),),
        preserves_strides=True,
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
        gradients=(Gradient("slope", GradientRule.REDUCED),),
        preserves_strides=True,
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
        preserves_strides=True,
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

_OF_PARAMETERS = frozenset({"Abs", "Neg", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Tanh"})
"""Functions that networks apply to a parameter itself: a gate, a rate, a share, a log variance."""

OPS = tuple(
    replace(each, parameters=each.inputs) if each.op_type in _OF_PARAMETERS else each
    for each in (*_OTHERS, *_ACTIVATIONS)
)
