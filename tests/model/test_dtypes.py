"""Element types, held to the installed onnx: every number, every width."""

import pytest
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxmem.model.graph import DType, dtype_of

NUMBERS = dict(TensorProto.DataType.items())
KNOWN = {name: number for name, number in NUMBERS.items() if name != "UNDEFINED"}
ONNX_NAMES = {DType.FLOAT32: "FLOAT", DType.FLOAT64: "DOUBLE"}
"""Where the two vocabularies differ."""

PACKED_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
PACKED_BITS |= {"FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
"""Types that numpy holds one to a byte and a file does not."""


def known(name: str) -> DType:
    dtype = dtype_of(KNOWN[name])
    assert dtype is not None
    return dtype


@pytest.mark.parametrize("name", KNOWN)
def test_every_number_of_the_installed_onnx_is_the_type_of_its_name(name: str) -> None:
    dtype = known(name)
    assert ONNX_NAMES.get(dtype, dtype.name) == name


def test_no_type_is_known_that_onnx_does_not_have() -> None:
    assert len(DType) == len(KNOWN)


@pytest.mark.parametrize("number", [TensorProto.UNDEFINED, max(KNOWN.values()) + 1, -1])
def test_undefined_and_future_numbers_are_no_type(number: int) -> None:
    assert dtype_of(number) is None


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - PACKED_BITS.keys() - {"STRING"}))
def test_a_type_of_whole_bytes_is_as_wide_as_in_numpy(name: str) -> None:
    assert known(name).bits == 8 * tensor_dtype_to_np_dtype(KNOWN[name]).itemsize


@pytest.mark.parametrize(("name", "bits"), PACKED_BITS.items())
def test_a_packed_type_takes_less_than_a_byte(name: str, bits: int) -> None:
    assert known(name).bits == bits


def test_a_string_has_no_size_of_its_own() -> None:
    assert DType.STRING.bits is None


def test_a_gradient_is_taken_in_floats_and_complex_numbers_alone() -> None:
    floating = {dtype for dtype in DType if dtype.is_floating}
    integer = {dtype for dtype in DType if dtype.is_integer}
    assert set(DType) - floating - integer == {DType.BOOL, DType.STRING}
    assert not floating & integer
    assert {DType.BFLOAT16, DType.COMPLEX64, DType.FLOAT4E2M1, DType.FLOAT8E8M0} <= floating
    assert {DType.INT2, DType.UINT4, DType.INT64} <= integer
