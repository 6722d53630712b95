"""Records are found by operator, domain and opset, and joined without duplicates."""

import pytest

from onnxmem.ops.registry import OPERATORS, UNKNOWN, _join, lookup
from onnxmem.ops.spec import Call, Operand, OpSpec, Shape


def op(op_type: str = "Op", since_version: int = 1) -> OpSpec:
    return OpSpec(op_type=op_type, since_version=since_version, source="test")


@pytest.mark.parametrize(
    ("opset", "since_version"),
    [(None, 14), (7, 1), (13, 1), (14, 14), (21, 14)],
)
def test_the_record_at_an_opset(opset: int | None, since_version: int) -> None:
    assert lookup("BatchNormalization", opset=opset).since_version == since_version


def test_an_opset_older_than_the_oldest_record_gets_that() -> None:
    assert lookup("DFT", opset=1).since_version == 17
    assert lookup("BitCast", opset=1).since_version == 26


@pytest.mark.parametrize(
    ("op_type", "domain"), [("NoSuchOperator", ""), ("Relu", "com.example"), ("Scaler", "")]
)
def test_an_operator_without_a_record_is_unknown(op_type: str, domain: str) -> None:
    assert lookup(op_type, domain) is UNKNOWN


def test_unknown_shares_nothing_and_counts_nothing() -> None:
    call = Call((Operand((2,), 32),), (Operand((2,), 32),))
    assert not UNKNOWN.alias
    assert not UNKNOWN.may_inplace
    assert UNKNOWN.differentiable
    assert (UNKNOWN.flops(call), UNKNOWN.macs(call), UNKNOWN.saved_extra_bytes(call)) == (None,) * 3


def test_two_records_of_one_version_are_refused() -> None:
    with pytest.raises(ValueError, match="::Relu v1 described twice"):
        _join([[op("Relu")], [op("Relu")]])


def test_versions_are_joined_oldest_first() -> None:
    table = _join([[op(since_version=13)], [op(since_version=7)]])
    assert [spec.since_version for spec in table["", "Op"]] == [7, 13]


def test_the_table_is_read_only() -> None:
    with pytest.raises(TypeError):
        OPERATORS["", "Relu"] = ()  # type: ignore[index]


def test_a_variadic_name_covers_all_later_indices() -> None:
    spec = lookup("Loop")
    assert [spec.input_name(index) for index in (1, 2, 9)] == ["cond", "v_initial", "v_initial"]
    assert spec.input_index("v_initial") == 2
    assert spec.output_name(4) == "v_final_and_scan_outputs"


def test_names_end_where_the_record_ends() -> None:
    spec = lookup("Relu")
    assert spec.input_name(1) is None
    assert spec.output_name(1) is None


@pytest.mark.parametrize(
    ("shape", "bits", "elements", "size_bytes"),
    [
        ((3, 5), 32, 15, 60),
        ((), 64, 1, 8),
        ((3,), 4, 3, 2),
        ((3, 0), 32, 0, 0),
        ((3, None), 32, None, None),
        (None, 32, None, None),
        ((3,), None, 3, None),
    ],
)
def test_the_size_of_an_operand(
    shape: Shape | None, bits: int | None, elements: int | None, size_bytes: int | None
) -> None:
    operand = Operand(shape, bits)
    assert (operand.num_elements, operand.size_bytes) == (elements, size_bytes)


def test_omitted_operands_are_none() -> None:
    call = Call((None,), ())
    assert call.input_at(0) is call.input_at(5) is call.output_at(0) is None
