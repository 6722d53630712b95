"""The element types of ONNX and their exact sizes."""

from enum import StrEnum


class DType(StrEnum):
    """An element type; equal to the string that numpy and ml_dtypes name it by.

    Members stand in the order of ``TensorProto.DataType``, whose first number (1) is FLOAT.
    """

    FLOAT32 = "float32"
    UINT8 = "uint8"
    INT8 = "int8"
    UINT16 = "uint16"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BOOL = "bool"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E4M3FNUZ = "float8e4m3fnuz"
    FLOAT8E5M2 = "float8e5m2"
    FLOAT8E5M2FNUZ = "float8e5m2fnuz"
    UINT4 = "uint4"
    INT4 = "int4"
    FLOAT4E2M1 = "float4e2m1"
    FLOAT8E8M0 = "float8e8m0"
    UINT2 = "uint2"
    INT2 = "int2"
    FLOAT6E2M3 = "float6e2m3"
    FLOAT6E3M2 = "float6e3m2"

    # An enum's own is worked out by Python code at each look-up in a table of sizes.
    __hash__ = str.__hash__

    @property
    def bits(self) -> int | None:
        """Bits per element as stored; ``None`` for strings, whose size is their text's."""
        return _BITS[self]

    @property
    def is_floating(self) -> bool:
        """Whether a gradient can be taken in this type: floats of any width, and complex."""
        return self.startswith(("float", "bfloat", "complex"))

    @property
    def is_integer(self) -> bool:
        """Whether the type counts: signed or unsigned integers, not bool."""
        return self.startswith(("int", "uint"))


def dtype_of(elem_type: int) -> DType | None:
    """Read a ``TensorProto.DataType`` number; ``None`` for UNDEFINED and numbers of the future."""
    return _BY_NUMBER.get(elem_type)


def _width(dtype: DType) -> int | None:
    """Read the bits off the name: its first number, but for bool and string."""
    if dtype is DType.STRING:
        return None
    if dtype is DType.BOOL:
        return 8
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits.split("e")[0])


_BITS = {dtype: _width(dtype) for dtype in DType}
_BY_NUMBER = dict(enumerate(DType, start=1))
