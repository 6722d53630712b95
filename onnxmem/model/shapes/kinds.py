"""Kinds of tensors: those of one type are of one kind, and of one value where that is known."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.graph import DType, Graph, Role, Tensor
from onnxmem.model.shapes.folding import MAX_ELEMENTS
from onnxmem.model.value_types import Known, dense_type, known_of
from onnxmem.ops.spec import known_dims

STORED: Final = frozenset({Role.WEIGHT, Role.UNREAD})
"""Roles of what the file holds."""
_NUMBERS: Final[Mapping[DType | None, int]] = {
    dtype: number for number, dtype in enumerate(DType, start=1)
}
_MOST_SCALES: Final = 8
"""Fractions that shapes follow from: a Resize has as many scales as an image has dims, twice."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What is known of the tensors of one kind."""

    type: onnx.TypeProto
    known: Known
    value: Array | None = None
    """The elements, where these are known: of a small constant and of what follows from some."""


@dataclass(slots=True)
class Kinds:
    """All kinds that were met, each by its number."""

    kinds: list[Kind] = field(default_factory=list)
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    """What tells a kind, and its number."""

    def number(self, proto: onnx.TypeProto, value: Array | None = None) -> int:
        """The kind of a type and of a value."""
        key: tuple[object, ...] = (proto.SerializeToString(),)
        if value is not None:
            key += value.dtype, value.shape, value.tobytes()
        return self._entered(key, proto, value)

    def stored(self, model: onnx.ModelProto, graph: Graph) -> Iterator[tuple[str, int]]:
        """The kinds of dense weights and of what Constant nodes make; ``graph`` is the model's."""
        weights = [each for each in graph.tensors.values() if each.role in STORED]
        large = {each.name for each in weights if _may_hold_dims(each) and _is_large(each, graph)}
        arrays = _arrays(model.graph, large) if large else {}
        for weight in weights:
            if weight.shape is not None and weight.num_stored is None:
                yield weight.name, self._weight(weight, graph, arrays)

    def _weight(self, weight: Tensor, graph: Graph, arrays: Mapping[str, Array]) -> int:
        value = _value(weight, graph)
        # What may hold dims and is not at hand is like no other.
        itself = weight.name if value is None and _may_hold_dims(weight) else ""
        key = weight.shape, weight.dtype, value, itself
        if key in self.numbers:
            return self.numbers[key]
        dims = known_dims(weight.shape) or ()
        proto = dense_type(_NUMBERS.get(weight.dtype, 0), dims)
        if value is None:
            return self._entered(key, proto, arrays.get(weight.name))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.tensor_type.elem_type)
        return self._entered(key, proto, np.array(value, dtype).reshape(dims))

    def _entered(self, key: tuple[object, ...], proto: onnx.TypeProto, value: Array | None) -> int:
        if key not in self.numbers:
            self.numbers[key] = len(self.kinds)
            self.kinds.append(Kind(proto, known_of(proto), value))
        return self.numbers[key]


def _value(weight: Tensor, graph: Graph) -> tuple[int | float, ...] | None:
    """The elements of a weight that are at hand and that shapes may follow from."""
    value = graph.values.get(weight.name)
    # Another weight may have the same name.
    if value is None or len(value) != weight.num_elements:
        return None
    return value if _may_hold_dims(weight) or len(value) <= _MOST_SCALES else None


def _may_hold_dims(weight: Tensor) -> bool:
    return weight.dtype is None or not weight.dtype.is_floating


def _is_large(weight: Tensor, graph: Graph) -> bool:
    """Whether a value may be worked with, and is not at hand."""
    return weight.name not in graph.values and (weight.num_elements or 0) <= MAX_ELEMENTS


def _arrays(graph: onnx.GraphProto, names: Iterable[str]) -> dict[str, Array]:
    """The elements of some constants, as far as the file holds them."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None:
            constants[node.output[0]] = tensor
    read = ((name, constant_value(constants[name])) for name in names if name in constants)
    return {name: value for name, value in read if value is not None and value.dtype.kind in "biuf"}
