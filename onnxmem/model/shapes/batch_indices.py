"""Constants that index the samples of a batch: they count 0, 1, 2... along their first dim."""

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from onnxmem.model.constants import constant_tensor, constant_value


def count_on(graph: onnx.GraphProto, old: int, new: int) -> bool:
    """Let those of an old batch index the samples of a new one, in place; whether there are any."""
    found = indices_of_samples(graph, old)
    for tensor in found:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        value = np.arange(new, dtype=dtype).reshape(new, *tensor.dims[1:])
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return bool(found)


def indices_of_samples(graph: onnx.GraphProto, batch: int) -> list[onnx.TensorProto]:
    """The constants of rank 2 or more that count from 0 along a batch.

    A constant of rank 1 may as well be a list of axes; a batch of 1 counts nothing.
    """
    if batch == 1:
        return []
    constants = [*graph.initializer]
    constants += [made for node in graph.node if (made := constant_tensor(node)) is not None]
    return [tensor for tensor in constants if _counts_along(tensor, batch)]


def _counts_along(tensor: onnx.TensorProto, batch: int) -> bool:
    if len(tensor.dims) == 1 or tuple(tensor.dims[:1]) != (batch,):
        return False
    if tensor.data_type == onnx.TensorProto.BOOL:
        return False
    value = constant_value(tensor)
    return value is not None and value.ravel().tolist() == list(range(batch))
