"""The values that a user gives for inputs, as arrays of the inputs' types and shapes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final

import numpy as np

from onnxmem.errors import Finding, UsageError
from onnxmem.model.constants import Array
from onnxmem.model.dtypes import DType
from onnxmem.model.graph import Graph, Tensor
from onnxmem.model.shapes.folding import MAX_ELEMENTS
from onnxmem.ops.spec import known_dims
from onnxmem.settings import Values

MAX_SETTING_ELEMENTS: Final = 1024
"""Of an input that may hold a setting of the run; larger ones are its data."""
_HELD: Final = frozenset(
    {
        *(DType.BOOL, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64),
        *(DType.INT8, DType.INT16, DType.INT32, DType.INT64),
        *(DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64),
    }
)
"""Types that numpy has itself."""
_MAX_SHOWN: Final = 3
"""Elements in a message."""


class GivenValueError(UsageError):
    """A value that does not fit its input."""

    code: ClassVar[str] = "value"


def may_be_setting(tensor: Tensor) -> bool:
    """Whether an input's values are worth knowing: whole numbers or conditions, and few."""
    is_told = tensor.dtype in _HELD and not tensor.dtype.is_floating
    return is_told and 0 < (tensor.num_elements or 0) <= MAX_SETTING_ELEMENTS


def unused_values(graph: Graph, values: Iterable[str]) -> Iterator[Finding]:
    """A finding for each name that is none of an input."""
    for name in values:
        if name not in graph.inputs:
            yield Finding("unused_value", f"--value {name}: the model has no input of that name")


def given_values(graph: Graph, values: Mapping[str, Values]) -> dict[str, Array]:
    """The arrays of the inputs whose values are given; names that are no inputs are left out.

    :raises GivenValueError: an input that is no small tensor of numbers, too few or too many
        elements, or one that its type does not hold.
    """
    return {
        name: fitted(graph.tensors[name], values[name]) for name in graph.inputs if name in values
    }


def fitted(tensor: Tensor, elements: Values) -> Array:
    """The array of an input: one element is all of them.

    :raises GivenValueError: as ``given_values`` does.
    """
    dims, count = known_dims(tensor.shape), tensor.num_elements
    if dims is None or count is None or count > MAX_ELEMENTS:
        message = f"input {tensor.name!r} has no value: only up to {MAX_ELEMENTS:,} elements do"
        raise GivenValueError(message)
    if len(elements) not in {1, count}:
        message = f"input {tensor.name!r} has {count:,} elements, its value {len(elements):,}"
        raise GivenValueError(message)
    numbers = _numbers(tensor, elements)
    return (np.full(count, numbers[0]) if len(elements) == 1 else numbers).reshape(dims)


def _numbers(tensor: Tensor, elements: Values) -> Array:
    dtype = tensor.dtype
    if dtype in _HELD:
        try:
            numbers = np.array(elements, np.dtype(dtype.value))
        except OverflowError:
            numbers = np.array(())
        if (dtype.is_floating and len(numbers)) or tuple(numbers.tolist()) == elements:
            return numbers
    kind = "no numbers" if dtype is None else dtype.value
    message = f"input {tensor.name!r} is {kind}, which {_shown(elements)} is not"
    raise GivenValueError(message)


def _shown(elements: Values) -> str:
    first = ", ".join(str(element) for element in elements[:_MAX_SHOWN])
    return first if len(elements) <= _MAX_SHOWN else f"{first}, ..."
