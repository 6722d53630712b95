"""Elementwise arithmetic, comparison, logic and selection, with broadcasting.

Each counts 1 FLOP an output element, a variadic one 1 for each operand after the first. Selecting
and converting compute nothing. onnxruntime overwrites no input of the arithmetic here.
"""

from onnxmem.ops.formulas import num_elements, one_per_element, times
from onnxmem.ops.spec import Call, OpSpec, Saved

_XY = ("X", "Y")
_IO = ("input", "output")
_AB = ("A", "B")


def _unary(
    op_type: str, names: tuple[str, str], saves: str | None, torch: str, *, trained: bool = False
) -> OpSpec:
    """One operand; ``trained``: networks apply it to a parameter itself."""
    return OpSpec(
        op_type=op_type,
        inputs=names[:1],
        outputs=names[1:],
        parameters=names[:1] if trained else (),
        saved=() if saves is None else (Saved(saves),),
        flops=one_per_element,
        source=f"torch derivatives.yaml: {torch}",
    )


def _arithmetic(op_type: str, saved: tuple[Saved, ...], torch: str) -> OpSpec:
    """Two broadcast operands, either of which may be a trained parameter: a bias, a gain."""
    return OpSpec(
        op_type=op_type,
        inputs=_AB,
        outputs=("C",),
        parameters=_AB,
        saved=saved,
        flops=one_per_element,
        source=f"torch derivatives.yaml: {torch}",
    )


def _after_the_first(call: Call) -> int | None:
    """Combine n operands in n - 1 steps of one FLOP an output element."""
    return times(max(len(call.inputs) - 1, 0), num_elements(call.output_at(0)))


def _variadic(
    op_type: str, output: str, saved: tuple[Saved, ...], torch: str, *, trained: bool = False
) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        inputs=("*data_0",),
        outputs=(output,),
        parameters=("data_0",) if trained else (),
        saved=saved,
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
    _unary("Abs", _XY, "X", "abs"),  # dX = dY * sign(X)
    _unary("Neg", _XY, None, "neg"),  # dX = -dY
    _unary("Sign", _IO, None, "sign"),  # dX = 0
    _unary("Floor", _XY, None, "floor"),  # dX = 0
    _unary("Ceil", _XY, None, "ceil"),  # dX = 0
    _unary("Round", _XY, None, "round"),  # dX = 0
    _unary("Reciprocal", _XY, "Y", "reciprocal"),  # dX = -dY * Y^2
    _unary("Sqrt", _XY, "Y", "sqrt"),  # dX = dY / (2 * Y)
    _unary("Exp", _IO, "output", "exp", trained=True),  # dX = dY * Y; a learned log scale
    _unary("Log", _IO, "input", "log"),  # dX = dY / X
    _unary("Erf", _IO, "input", "erf"),  # dX = dY * 2 / sqrt(pi) * exp(-X^2)
    _unary("Sin", _IO, "input", "sin"),  # dX = dY * cos(X)
    _unary("Cos", _IO, "input", "cos"),  # dX = -dY * sin(X)
    _unary("Tan", _IO, "output", "tan"),  # dX = dY * (1 + Y^2)
    _unary("Asin", _IO, "input", "asin"),  # dX = dY / sqrt(1 - X^2)
    _unary("Acos", _IO, "input", "acos"),  # dX = -dY / sqrt(1 - X^2)
    _unary("Atan", _IO, "input", "atan"),  # dX = dY / (1 + X^2)
    _unary("Sinh", _IO, "input", "sinh"),  # dX = dY * cosh(X)
    _unary("Cosh", _IO, "input", "cosh"),  # dX = dY * sinh(X)
    _unary("Asinh", _IO, "input", "asinh"),  # dX = dY / sqrt(X^2 + 1)
    _unary("Acosh", _IO, "input", "acosh"),  # dX = dY / sqrt(X^2 - 1)
    _unary("Atanh", _IO, "input", "atanh"),  # dX = dY / (1 - X^2)
)

_ARITHMETIC = (
    _arithmetic("Add", (), "add"),  # dA = dB = dC
    _arithmetic("Sub", (), "sub"),  # dA = dC, dB = -dC
    # dA = dC * B, dB = dC * A
    _arithmetic("Mul", (Saved("A", if_grad="B"), Saved("B", if_grad="A")), "mul"),
    _arithmetic("Div", (Saved("A", if_grad="B"), Saved("B")), "div"),  # dA = dC/B, dB = -dC*A/B^2
    _variadic("Sum", "sum", (), "add", trained=True),  # each dX = dY
    _variadic("Mean", "mean", (), "mean"),  # each dX = dY / n
    _variadic("Max", "max", (Saved("data_0"),), "maximum"),  # dX = dY * (X is the largest)
    _variadic("Min", "min", (Saved("data_0"),), "minimum"),  # dX = dY * (X is the smallest)
)

_LOGIC = (
    *(_no_gradient(op, _AB, "C") for op in ("Equal", "Greater", "GreaterOrEqual")),
    *(_no_gradient(op, _AB, "C") for op in ("Less", "LessOrEqual", "And", "Or", "Xor")),
    *(_no_gradient(op, _AB, "C") for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    *(_no_gradient(op, ("X",), "Y") for op in ("Not", "BitwiseNot", "IsInf", "IsNaN")),
    _no_gradient("BitShift", ("X", "Y"), "Z"),
)

OPS = (
    *_UNARY,
    *_ARITHMETIC,
    *_LOGIC,
    OpSpec(
        op_type="Pow",
        inputs=("X", "Y"),
        outputs=("Z",),
        # dX = dZ * Y * X^(Y - 1), dY = dZ * Z * log(X)
        saved=(Saved("X"), Saved("Y"), Saved("Z", if_grad="Y")),
        flops=one_per_element,
        source="torch derivatives.yaml: pow",
    ),
    OpSpec(
        op_type="Mod",
        inputs=_AB,
        outputs=("C",),
        saved=(Saved("A", if_grad="B"), Saved("B", if_grad="B")),  # dA = dC, dB = -dC * (A // B)
        flops=one_per_element,
        source="torch derivatives.yaml: remainder, fmod",
    ),
    OpSpec(
        op_type="Where",
        inputs=("condition", "X", "Y"),
        outputs=("output",),
        saved=(Saved("condition"),),  # dX = condition ? dOut : 0, dY = condition ? 0 : dOut
        source="torch derivatives.yaml: where",
    ),
    OpSpec(
        op_type="Cast",
        inputs=("input",),
        outputs=("output",),
        may_inplace=(("input", "output"),),  # element sizes alike: float32 to int32
        parameters=("input",),
        source="onnxruntime 1.31.1 CPU kernel; torch _to_copy",  # dX = dY, cast back
    ),
    OpSpec(
        op_type="CastLike",
        inputs=("input", "target_type"),
        outputs=("output",),
        parameters=("input",),
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
