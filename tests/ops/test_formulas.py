"""Formulas worked by hand, on dims that are distinct primes so that no wrong term cancels."""

from collections.abc import Mapping

import pytest

from onnxmem.ops.registry import OPERATORS, lookup
from onnxmem.ops.spec import Attribute, Call, Operand, Shape


def call_of(
    inputs: tuple[Shape | Operand | None, ...],
    output: Shape | None,
    attributes: Mapping[str, Attribute] | None = None,
) -> Call:
    """float32 operands of these shapes; an Operand stands for itself, ``None`` for one left out."""
    operands = tuple(Operand(each, 32) if isinstance(each, tuple) else each for each in inputs)
    return Call(operands, (Operand(output, 32),), attributes or {})


def constant(*value: float, shape: Shape = ()) -> Operand:
    return Operand(shape, 64, value)


X = (2, 3, 5, 7)
"""210 elements, 840 bytes."""


@pytest.mark.parametrize(
    ("op_type", "call", "flops"),
    [
        ("Relu", call_of((X,), X), 210),
        ("Add", call_of((X, (7,)), X), 210),
        ("Sum", call_of((X, X, X), X), 2 * 210),
        ("Sum", call_of((X,), X), 0),
        ("Max", call_of((X, (7,), (1,), (5, 1)), X), 3 * 210),
        ("SwiGLU", call_of((X, X), X), 2 * 210),
        ("Softmax", call_of((X,), X), 5 * 210),
        ("Hardmax", call_of((X,), X), 210),
        ("BatchNormalization", call_of((X, (3,), (3,), (3,), (3,)), X), 2 * 210),
        ("LayerNormalization", call_of((X, (7,), (7,)), X), 7 * 210),
        ("LayerNormalization", call_of((X, (7,)), X), 6 * 210),
        ("RMSNormalization", call_of((X, (7,)), X), 4 * 210),
        ("LRN", call_of((X,), X, {"size": 11}), (11 + 4) * 210),
        ("ReduceMean", call_of((X, constant(2, 3, shape=(2,))), (2, 3, 1, 1)), 210),
        ("ReduceL2", call_of((X,), (1, 1, 1, 1)), 2 * 210),
        ("ArgMax", call_of((X,), (2, 1, 5, 7)), 210),
        ("CumSum", call_of((X, constant(0)), X), 210),
        ("Reshape", call_of((X, constant(210, shape=(1,))), (210,)), 0),
        ("Transpose", call_of((X,), (7, 5, 3, 2)), 0),
        ("Where", call_of((X, X, X), X), 0),
        ("Cast", call_of((X,), X), 0),
        ("Col2Im", call_of(((2, 12, 35), (2,), (2,)), X), 2 * 12 * 35),
        ("SoftmaxCrossEntropyLoss", call_of(((11, 13), (11,)), ()), 5 * 11 * 13),
        ("NegativeLogLikelihoodLoss", call_of(((11, 13), (11,)), ()), 2 * 11),
        ("HannWindow", call_of((constant(11),), (11,)), 4 * 11),
    ],
)
def test_flops_of_elementwise_and_row_operators(op_type: str, call: Call, flops: int) -> None:
    assert lookup(op_type).flops(call) == flops


@pytest.mark.parametrize(
    ("attributes", "output", "flops"),
    [
        ({}, (2, 3, 10, 14), 0),
        ({"mode": "nearest"}, (2, 3, 10, 14), 0),
        ({"mode": "linear"}, (2, 3, 10, 14), 2 * 4 * 840),
        ({"mode": "linear"}, (2, 3, 10, 7), 2 * 2 * 420),
        ({"mode": "linear"}, X, 0),
        ({"mode": "cubic"}, (2, 3, 10, 14), 2 * 16 * 840),
        ({"mode": "linear", "antialias": 1}, (2, 3, 11, 13), None),
        ({"mode": "linear"}, (2, 3, None, 14), None),
        ({"mode": "no such mode"}, (2, 3, 10, 14), None),
    ],
)
def test_resize_counts_its_taps_over_the_axes_that_change(
    attributes: Mapping[str, Attribute], output: Shape, flops: int | None
) -> None:
    assert lookup("Resize").flops(call_of((X,), output, attributes)) == flops


@pytest.mark.parametrize(
    ("mode", "flops"),
    [("linear", 2 * 4 * 858), ("bilinear", 2 * 4 * 858), ("cubic", 2 * 16 * 858), ("nearest", 0)],
)
def test_grid_sample_counts_its_taps(mode: str, flops: int) -> None:
    call = call_of((X, (2, 11, 13, 2)), (2, 3, 11, 13), {"mode": mode})
    assert lookup("GridSample").flops(call) == flops


def test_affine_grid_multiplies_every_point() -> None:
    spec = lookup("AffineGrid")
    call = call_of(((2, 2, 3), constant(2, 3, 5, 7, shape=(4,))), (2, 5, 7, 2))
    assert spec.macs(call) == 2 * 5 * 7 * 2 * 3
    assert spec.flops(call) == 2 * 2 * 5 * 7 * 2 * 3


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "flops"),
    [
        (20, ((3, 16, 1),), {}, 3 * 5 * 16 * 4),
        (20, ((3, 16, 2), constant(32)), {}, 3 * 5 * 32 * 5),
        (20, ((16, 3, 1), None, constant(0)), {}, 3 * 5 * 16 * 4),
        (20, ((3, 16, 1), (), None), {}, None),
        (20, ((3, 16, 1), None, ()), {}, None),
        (20, ((3, 1, 1),), {}, 0),
        (17, ((3, 16, 5, 1),), {}, 3 * 5 * 5 * 16 * 4),
        (17, ((3, 5, 16, 1),), {"axis": 2}, 3 * 5 * 5 * 16 * 4),
    ],
)
def test_fourier_transform_counts_five_n_log_n_per_row(
    opset: int,
    inputs: tuple[Shape | Operand | None, ...],
    attributes: Mapping[str, Attribute],
    flops: int | None,
) -> None:
    call = call_of(inputs, None, attributes)
    assert lookup("DFT", opset=opset).flops(call) == flops


def test_short_time_transform_windows_every_frame() -> None:
    spec, frames = lookup("STFT"), (2, 3, 9, 2)
    assert spec.flops(call_of(((2, 37, 1), constant(5), (16,)), frames)) == 2 * 3 * (320 + 16)
    assert spec.flops(call_of(((2, 37), constant(5), None, constant(16)), frames)) == 2 * 3 * 320
    assert spec.flops(call_of(((2, 37), constant(5)), frames)) is None


def test_determinant_is_a_factorization() -> None:
    # [[a, b], [c, d]]: one division, one multiply-add, one product; 3 x 3: (2 + 8) + (1 + 2) + 2
    spec = lookup("Det")
    assert spec.flops(call_of(((2, 2),), ())) == 4
    assert spec.flops(call_of(((5, 3, 3),), (5,))) == 5 * 15
    assert spec.saved_extra_bytes(call_of(((5, 3, 3),), (5,))) == 5 * 9 * 4 + 5 * 3 * 4


def test_linear_models_multiply_their_coefficients() -> None:
    spec = lookup("LinearRegressor", "ai.onnx.ml")
    assert spec.macs(call_of(((3, 5),), (3, 7))) == 3 * 5 * 7
    assert spec.flops(call_of(((3, 5),), (3, 7))) == 2 * 3 * 5 * 7


@pytest.mark.parametrize(
    ("op_type", "call", "saved_bytes"),
    [
        ("Relu", call_of((X,), X), 0),
        ("Softsign", call_of((X,), X), 840),
        ("SwiGLU", call_of((X, X), X), 840),
        ("BatchNormalization", call_of((X, (3,), (3,), (3,), (3,)), X), 2 * 3 * 4),
        ("LayerNormalization", call_of((X, (7,), (7,)), X), 2 * 2 * 3 * 5 * 4),
        ("LayerNormalization", call_of((X, (5, 7)), X, {"axis": 2}), 2 * 2 * 3 * 4),
        ("RMSNormalization", call_of((X, (7,)), X), 2 * 3 * 5 * 4),
        ("SimplifiedLayerNormalization", call_of((X, (5, 7)), X, {"axis": -2}), 2 * 3 * 4),
        ("GroupNormalization", call_of(((2, 33, 5), (33,)), None, {"num_groups": 11}), 176),
        ("InstanceNormalization", call_of((X, (3,), (3,)), X), 3 * 2 * 3 * 4),
        ("LpNormalization", call_of((X,), X, {"axis": 1}), 2 * 5 * 7 * 4),
        ("MeanVarianceNormalization", call_of((X,), X), 840),
        ("LRN", call_of((X,), X, {"size": 5}), (2 * (3 + 4) * 35 + 2 * 210) * 4),
        ("ReduceLogSum", call_of((X,), (2, 3, 1, 1)), 6 * 4),
        ("SoftmaxCrossEntropyLoss", call_of(((11, 13), (11,)), ()), 11 * 13 * 4 + 4),
        ("NegativeLogLikelihoodLoss", call_of(((11, 13), (11,)), ()), 4),
    ],
)
def test_extra_bytes_beside_the_saved_tensors(op_type: str, call: Call, saved_bytes: int) -> None:
    assert lookup(op_type).saved_extra_bytes(call) == saved_bytes


ON, OFF = Operand((), 8, (1,)), Operand((), 8, (0,))


@pytest.mark.parametrize(
    ("inputs", "drops"),
    [
        ((X,), False),
        ((X, constant(0.5)), False),
        ((X, constant(0.5), OFF), False),
        ((X, constant(0.0), ON), False),
        ((X, constant(0.5), ON), True),
        ((X, None, ON), True),
        ((X, (), ()), True),
    ],
)
def test_dropout_saves_a_mask_in_training(
    inputs: tuple[Shape | Operand | None, ...], *, drops: bool
) -> None:
    spec, call = lookup("Dropout", opset=13), call_of(inputs, X)
    assert spec.saved_extra_bytes(call) == 210 * drops
    assert spec.flops(call) == 2 * 210 * drops


@pytest.mark.parametrize(
    ("attributes", "drops"), [({}, True), ({"ratio": 0.0}, False), ({"is_test": 1}, False)]
)
def test_dropout_before_opset_12_trains_unless_is_test_is_set(
    attributes: Mapping[str, Attribute], *, drops: bool
) -> None:
    assert lookup("Dropout", opset=7).saved_extra_bytes(call_of((X,), X, attributes)) == 210 * drops


@pytest.mark.parametrize("op_type", ["TopK", "Unique", "NonMaxSuppression", "Loop", "Scan"])
def test_counts_that_depend_on_data_are_unknown(op_type: str) -> None:
    assert lookup(op_type).flops(call_of((X, X), X)) is None


@pytest.mark.parametrize(
    "operand", [None, Operand(None, None), Operand((None, None, None, None), 32), Operand((), 32)]
)
def test_no_formula_fails_on_unknown_operands(operand: Operand | None) -> None:
    for spec in [spec for versions in OPERATORS.values() for spec in versions]:
        for call in (Call((operand,) * 8, (operand,) * 3), Call((), ())):
            for formula in (spec.macs, spec.flops, spec.saved_extra_bytes):
                count = formula(call)
                assert count is None or count >= 0, (spec.domain, spec.op_type, spec.since_version)
