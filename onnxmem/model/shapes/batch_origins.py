"""What makes an operand as long as the batch: where to rewrite, if it has to grow.

An operand without the batch is computed from constants alone. One of these, or the target of an
Expand, a Tile or a ConstantOfShape on the way, holds the batch of the export.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from onnxmem.model.constants import Array
from onnxmem.model.shapes.batch_place import Place, grown
from onnxmem.model.traversal import onnx_op
from onnxmem.ops.spec import Dims

_TARGETS = {"Expand": 1, "Tile": 1, "ConstantOfShape": 0}
"""Operators that repeat elements, and the input that says how often or how far."""
_MAX_NODES = 512
"""An operand that more nodes compute is not traced back."""


@dataclass(frozen=True, slots=True)
class Origin:
    """One input to rewrite: ``index`` of ``node``."""

    node: onnx.NodeProto
    index: int
    place: Place
    """Of the batch, in the constant, or in what the target makes."""
    target: Dims | None = None
    """The target at the new batch; ``None``: the input is data."""


def computing_nodes(
    name: str, producers: Mapping[str, tuple[int, onnx.NodeProto]], places: Mapping[str, Place]
) -> list[onnx.NodeProto]:
    """The nodes that compute a tensor from constants, in running order; none if they are many.

    Tensors that carry the batch already, those in ``places``, are not traced further.
    """
    found: dict[int, onnx.NodeProto] = {}
    pending = [name]
    while pending:
        tensor = pending.pop()
        index, node = producers.get(tensor, (-1, None))
        if node is None or index in found or tensor in places or onnx_op(node) == "Constant":
            continue
        found[index] = node
        if len(found) > _MAX_NODES:
            return []
        pending.extend(node.input)
    return [found[index] for index in sorted(found)]


@dataclass(frozen=True, slots=True)
class OriginSearch:
    """Lists the inputs that may hold the batch, the nearest to the operand first."""

    constants: Mapping[str, Dims]
    """The file's constants, with their dims."""
    old_dims: Callable[[str], Dims]
    """Of any tensor, at the old batch."""
    values: Mapping[str, Array]
    old: int
    new: int
    is_certain: bool
    """False: a batch of 1, and the operand could as well serve all samples. Only what nobody would
    have written for another reason is listed then."""
    constants_first: bool = False
    """Rather than an Expand, which torch writes after the first state of a recurrent layer too."""

    def origins(self, nodes: Sequence[onnx.NodeProto]) -> Iterable[Origin]:
        """Origins in the nodes that compute an operand."""
        found = self._nearest_first(nodes)
        if self.constants_first:
            return sorted(found, key=lambda origin: origin.target is not None)
        return found

    def _nearest_first(self, nodes: Sequence[onnx.NodeProto]) -> Iterator[Origin]:
        for node in reversed(nodes):
            if onnx_op(node) in _TARGETS:
                yield from self._targets(node)
            for index, name in enumerate(node.input):
                if name in self.constants and index != _TARGETS.get(onnx_op(node)):
                    yield from self._data(node, index)

    def _data(self, node: onnx.NodeProto, index: int) -> Iterator[Origin]:
        dims = self.constants[node.input[index]]
        if self.is_certain or is_state(dims, self.values.get(node.input[index])):
            for axis in self._axes(dims):
                yield Origin(node, index, Place(axis))

    def _targets(self, node: onnx.NodeProto) -> Iterator[Origin]:
        index = _TARGETS[onnx_op(node)]
        asked = self.values.get(node.input[index]) if len(node.input) > index else None
        made = self.old_dims(node.output[0])
        if asked is None or asked.dtype.kind not in "iu" or not made:
            return
        target = tuple(int(dim) for dim in asked.ravel())
        if onnx_op(node) == "Expand":
            yield from self._expanded(node, made)
        elif onnx_op(node) == "Tile" and len(target) == len(made):
            if self.is_certain or set(target) == {1}:
                yield from self._grown_targets(node, index, target)
        elif onnx_op(node) == "ConstantOfShape" and target == made:
            yield from self._grown_targets(node, index, target)

    def _expanded(self, node: onnx.NodeProto, made: Dims) -> Iterator[Origin]:
        """Dims that an Expand adds or repeats.

        One that repeats nothing at a batch of 1 was written for the batch, or fills a state; one
        that repeats along another axis may have been written for that one.
        """
        data = self.old_dims(node.input[0])
        is_fill = not data
        data = (1,) * (len(made) - len(data)) + data
        for axis in self._axes(made):
            if data[axis] == 1 and (self.is_certain or data == made or is_fill):
                place = Place(axis)
                yield Origin(node, 1, place, grown(made, place, self.old, self.new))

    def _grown_targets(self, node: onnx.NodeProto, index: int, target: Dims) -> Iterator[Origin]:
        for axis in self._axes(target):
            place = Place(axis)
            yield Origin(node, index, place, grown(target, place, self.old, self.new))

    def _axes(self, dims: Dims) -> list[int]:
        """Where the batch may stand: dims as long as it first, then its multiples."""
        exact = [axis for axis, dim in enumerate(dims) if dim == self.old]
        if not self.is_certain:
            return exact
        return exact + [a for a, dim in enumerate(dims) if dim % self.old == 0 and dim != self.old]


def is_state(dims: Dims, value: Array | None) -> bool:
    """Whether a constant is all zeros, as the first state of a loop is, of rank 2 or more."""
    if len(dims) < 2 or value is None or value.size < 2 or value.dtype.kind != "f":  # noqa: PLR2004
        return False
    return not np.any(value)


def may_be_of_a_sample(dims: Dims, value: Array | None) -> bool:
    """Whether a constant of one sample may have been made for each, at a larger batch.

    A vector along one dim (a bias, a scale) is one for all, but where it holds no more than two
    different elements (a mask, an identity, a first state).
    """
    if sum(dim > 1 for dim in dims) > 1:
        return True
    return value is not None and value.size > 1 and len(np.unique(value)) <= 2  # noqa: PLR2004
