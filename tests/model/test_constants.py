"""Elements of constants, however a file stores them."""

import numpy as np
import onnx
import pytest
from onnx.helper import make_tensor, tensor_dtype_to_np_dtype
from onnx.numpy_helper import to_array

from onnxmem.model.constants import constant_value

KINDS = [
    onnx.TensorProto.DataType.Value(name)
    for name in "FLOAT DOUBLE INT32 INT64 BOOL UINT8 INT16 FLOAT16 BFLOAT16 UINT64 INT4".split()
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [[], [1], [3], [2, 3], [0]])
@pytest.mark.parametrize("raw", [True, False])
def test_the_elements_are_those_that_onnx_reads(kind: int, dims: list[int], raw: bool) -> None:
    count = int(np.prod(dims))
    numbers = np.array([1, 0, 5, 2, 7, 3][:count], tensor_dtype_to_np_dtype(kind)).reshape(dims)
    proto = make_tensor("w", kind, dims, numbers if raw else numbers.tolist(), raw=raw)
    value = constant_value(proto)
    assert value is not None
    assert value.dtype == to_array(proto).dtype
    assert value.shape == tuple(dims)
    assert value.tolist() == to_array(proto).tolist()


@pytest.mark.parametrize("count", [2, 4])
def test_numbers_that_do_not_fill_the_dims_are_no_constant(count: int) -> None:
    proto = make_tensor("w", onnx.TensorProto.INT64, [3], [1, 2, 3])
    del proto.int64_data[:]
    proto.int64_data.extend(range(count))
    assert constant_value(proto) is None
