"""Another batch for a model that fixes it: constants that carry the old one.

Exporters write the batch of the example input into the targets of Reshape and Expand. The nodes
are walked in running order, with the shapes at the old batch at hand; where the data of a Reshape
has grown along one axis, its target grows along the dim that this axis lands in. Reshape keeps the
row-major order, so that dim follows from the product of the dims before it.

A constant of shape ``[batch, 1, ...]`` that counts 0, 1, 2... indexes the samples of a batch, and
counts on.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from operator import mul

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.shapes.folding import Folder
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.propagation import add_known
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, shape_of

_Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebatched:
    """What became of the constants."""

    failures: tuple[str, ...]
    """Outputs of nodes whose target could not be read again."""
    stand_ins: Mapping[str, str]
    """New target -> the constant that it stands in for while shapes are inferred."""


def rebatch(model: onnx.ModelProto, at_old: onnx.ModelProto, old: int, new: int) -> Rebatched:
    """Rewrite, in place, the constants of a model whose inputs have a new batch already.

    ``at_old`` is the same model with the shapes of the old batch inferred.
    """
    graph = at_old.graph
    shapes = {
        value.name: shape
        for value in (*graph.value_info, *graph.input, *graph.output)
        if (shape := _full_shape(value.type)) is not None
    }
    walk = _Rebatching(model, shapes, old, new)
    return Rebatched(tuple(walk.failures()), walk.stand_ins)


def without_stand_ins(model: onnx.ModelProto, stand_ins: Mapping[str, str]) -> None:
    """Put the file's own constants back, in place: their bytes are the model's."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in stand_ins:
                node.input[place] = stand_ins[name]
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in stand_ins]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


@dataclass(slots=True)
class _Rebatching:
    model: onnx.ModelProto
    old_shapes: Mapping[str, _Dims]
    old: int
    new: int
    types: "ChainMap[str, onnx.TypeProto]" = field(default_factory=ChainMap)
    values: "ChainMap[str, Array]" = field(default_factory=ChainMap)
    stand_ins: dict[str, str] = field(default_factory=dict)

    def failures(self) -> Iterator[str]:
        """Walk and rewrite; yields the outputs of nodes that cannot follow the batch."""
        graph = self.model.graph
        self._count_on(graph)
        add_known(graph, self.types, self.values)
        asker, folder = NodeInference(self.model), Folder(self.model.opset_import)
        for node in graph.node:
            if onnx_op(node) in {"Reshape", "Expand"} and len(node.input) > 1:
                target = self._target(node)
                if target is None:
                    yield node.output[0]
                elif target:
                    self._rewrite(node, target)
            self.types.update(asker.output_types(node, self.types, self.values))
            self.values.update(folder.values_of(node, self.values, self.types))

    def _target(self, node: onnx.NodeProto) -> _Dims | None:
        """The new target; empty where the present one will do, ``None`` where none can be found."""
        asked, before = self.values.get(node.input[1]), self.old_shapes.get(node.output[0])
        data = _full_shape(self.types.get(node.input[0]))
        old_data = self.old_shapes.get(node.input[0], data)
        if asked is None or before is None or data is None or old_data is None:
            return ()
        dims = tuple(int(dim) for dim in asked.ravel())
        if onnx_op(node) == "Expand":
            return _expanded(dims, before, self.old, self.new)
        if data == old_data:
            return ()
        return _reshaped(dims, before, old_data, data)

    def _count_on(self, graph: onnx.GraphProto) -> None:
        """Let the constants that index the samples of a batch index those of the new one."""
        constants = list(graph.initializer)
        constants += [t for node in graph.node if (t := constant_tensor(node)) is not None]
        for tensor in constants:
            if not self._indexes_samples(tensor):
                continue
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            value = np.arange(self.new, dtype=dtype).reshape(self.new, *tensor.dims[1:])
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))

    def _indexes_samples(self, tensor: onnx.TensorProto) -> bool:
        """Whether a constant of rank 2 or more counts from 0 along the old batch.

        A constant of rank 1 may as well be a list of axes; a batch of 1 counts nothing.
        """
        if self.old == 1 or len(tensor.dims) == 1 or tuple(tensor.dims[:1]) != (self.old,):
            return False
        value = constant_value(tensor)
        return value is not None and value.ravel().tolist() == list(range(self.old))

    def _rewrite(self, node: onnx.NodeProto, target: _Dims) -> None:
        """Give a node a target of its own: the old constant may serve other nodes too."""
        name = f"{node.output[0]}/shape_at_batch_{self.new}"
        value = np.array(target, np.int64)
        self.model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        self.stand_ins[name] = node.input[1]
        node.input[1] = name
        self.values[name] = value
        self.types[name] = dense_type(onnx.TensorProto.INT64, value.shape)


def _expanded(dims: _Dims, before: _Dims, old: int, new: int) -> _Dims:
    """Expand's target carries the batch in its leading place."""
    if dims and dims[0] == old and len(dims) == len(before):
        return (new, *dims[1:])
    return ()


def _reshaped(dims: _Dims, before: _Dims, old_data: _Dims, data: _Dims) -> _Dims | None:
    """Grow the dim of Reshape's output that the grown axis of its data lands in."""
    axes = [axis for axis, (a, b) in enumerate(zip(old_data, data, strict=False)) if a != b]
    if len(old_data) != len(data) or len(axes) != 1 or 0 in old_data:
        return None
    axis = axes[0]
    place = _landing(before, prod(old_data[:axis]), old_data[axis] == 1)
    grown, rest = divmod(before[place] * data[axis], old_data[axis])
    if rest:
        return None
    target = (*before[:place], grown, *before[place + 1 :])
    return () if _resolved(dims, data) == target else target


def _landing(before: _Dims, elements_before: int, is_unit: bool) -> int:  # noqa: FBT001
    """The output dim that an axis lands in, from the elements that stand before the axis.

    An axis of length 1 lands in a dim of length 1 at its place, if there is one.
    """
    prefixes = list(accumulate(before, mul, initial=1))
    if is_unit:
        for place, dim in enumerate(before):
            if dim == 1 and prefixes[place] == elements_before:
                return place
    return next(
        (p for p in range(len(before)) if prefixes[p] <= elements_before < prefixes[p + 1]), 0
    )


def _resolved(dims: _Dims, data: _Dims) -> _Dims:
    """Reshape's output for a target with 0 (copy) and -1 (the rest)."""
    copied = [
        data[place] if dim == 0 and place < len(data) else dim for place, dim in enumerate(dims)
    ]
    known = prod(dim for dim in copied if dim != -1)
    return tuple(prod(data) // known if dim == -1 and known else dim for dim in copied)


def _full_shape(proto: onnx.TypeProto | None) -> _Dims | None:
    shape = shape_of(proto) if proto is not None else None
    if shape is None:
        return None
    dims = tuple(dim for dim in shape if dim is not None)
    return dims if len(dims) == len(shape) else None
