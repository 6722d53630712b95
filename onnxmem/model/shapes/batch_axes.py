"""The batch in a graph that fixes it: which axis of a tensor has it, and what made it that long.

A Reshape may fold the batch into a longer axis (``[T, B, E]`` to ``[T*B, E]``) and another may
bring it out again. Row-major order is kept, so as many elements stand before the batch after a
Reshape as before it: their number gives the axis in which it lands (``landing``).

Where a tensor with the batch meets one without it, the other must be as long
(``operands_with_batch``). An operand without the batch is computed from constants alone: one of
these, or the target of an Expand, a Tile or a ConstantOfShape between, has the batch of the export
(``OriginSearch``). The targets of Reshape, Expand and Resize at another batch follow from their
dims: each rule takes the target as it stands and the output's dims at the old batch, and gives the
target at the new one, ``None`` where the present one will do, ``()`` where there is none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Final

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.traversal import onnx_op
from onnxmem.ops.spec import Dims


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """The batch is a factor of one axis: ``dims[axis] = outer x batch x inner``."""

    axis: int
    outer: int = 1

    def elements_before(self, dims: Dims) -> int:
        """Elements of the batch's own stride that stand before it, in a tensor of these dims."""
        return prod(dims[: self.axis]) * self.outer


def landing(before: int, dims: Dims, batch: int) -> BatchAxis | None:
    """Where the batch lands in ``dims``, which are those at the old batch.

    ``before`` are the elements that stand before it. ``None``: no dim holds it whole.
    """
    prefixes = list(accumulate(dims, mul, initial=1))
    if batch == 1:
        return _landing_of_one(before, dims, prefixes)
    axis = _axis_around(before, prefixes)
    if axis is None:
        return None
    outer, rest = divmod(before, prefixes[axis])
    return BatchAxis(axis, outer) if rest == 0 and dims[axis] % (outer * batch) == 0 else None


def _landing_of_one(before: int, dims: Dims, prefixes: Sequence[int]) -> BatchAxis | None:
    """Where a batch of 1 lands, which leaves no trace in the dims.

    In a dim of length 1 where it stands, if there is one. Between two longer dims it may be the
    last factor of the first or the first of the second: the second, but for the last dim of all,
    which holds features.
    """
    units = (axis for axis, dim in enumerate(dims) if dim == 1 and prefixes[axis] == before)
    unit = next(units, None)
    if unit is not None:
        return BatchAxis(unit)
    axis = _axis_around(before, prefixes)
    is_between = axis is None or prefixes[axis] == before
    if is_between and axis in {None, len(dims) - 1} and before > 1:
        axis = (len(dims) if axis is None else axis) - 1
    if axis is None or axis < 0:
        return None
    outer, rest = divmod(before, prefixes[axis])
    return BatchAxis(axis, outer) if rest == 0 and dims[axis] % outer == 0 else None


def _axis_around(before: int, prefixes: Sequence[int]) -> int | None:
    """The axis in which the element after ``before`` others stands; ``None`` behind the last."""
    axes = range(len(prefixes) - 1)
    return next((a for a in axes if prefixes[a] <= before < prefixes[a + 1]), None)


def grown(dims: Dims, batch_axis: BatchAxis, old: int, new: int) -> Dims:
    """The dims at the new batch of what had ``dims`` at the old one."""
    size = dims[batch_axis.axis] // old * new
    return (*dims[: batch_axis.axis], size, *dims[batch_axis.axis + 1 :])


def inherited(
    old_dims: Dims, new_dims: Dims, sources: Sequence[tuple[BatchAxis, Dims]]
) -> BatchAxis | None:
    """The batch axis of an output, from the axis that has grown and what its inputs had there.

    ``sources`` are the batch axes of the inputs, with their dims at the old batch.
    """
    axes = [a for a, (old, new) in enumerate(zip(old_dims, new_dims, strict=False)) if old != new]
    if len(old_dims) != len(new_dims) or not axes:
        return None
    axis = axes[0]
    same = (
        batch_axis.outer for batch_axis, dims in sources if dims[batch_axis.axis] == old_dims[axis]
    )
    return BatchAxis(axis, next(same, 1))


_BROADCASTING = frozenset(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor".split()
)
_PRODUCTS = frozenset({"MatMul"})
"""Broadcast in all dims but the last two."""
_BY_SAMPLE = {"GridSample": (0, 1), "GatherElements": (0, 1)}
"""Inputs of which both lead with the batch, if one does."""
RECURRENT: Final = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""The inputs of recurrent layers that hold a state: [directions, batch, hidden]."""
_OF_EQUAL_LENGTH = frozenset({"Concat", "GridSample", *RECURRENT})
"""Operators that broadcast no dim of length 1."""


@dataclass(frozen=True, slots=True)
class BatchOperand:
    """An input without the batch, of a node that has another with it."""

    index: int
    batch_axis: BatchAxis
    """Where the batch belongs in it."""
    is_certain: bool
    """False: the batch is 1, and a dim of length 1 is broadcast to any."""


def operands_with_batch(
    node: onnx.NodeProto, batch_axes: Mapping[str, BatchAxis], old: Mapping[str, Dims], batch: int
) -> Iterator[BatchOperand]:
    """Inputs that do not carry the batch yet and must, or may.

    ``batch_axes`` has the tensors that carry it; ``old`` the inputs' dims at the old ``batch``.
    """
    source = next((name for name in node.input if name in batch_axes), None)
    if source is None:
        return
    for index, name in enumerate(node.input):
        if name and name not in batch_axes:
            batch_axis = _batch_axis_of(node, index, batch_axes[source], old[source], old[name])
            if batch_axis is not None:
                length = old[name][batch_axis.axis]
                is_certain = length > 1 or onnx_op(node) in _OF_EQUAL_LENGTH
                if is_certain or length == batch == old[source][batch_axes[source].axis]:
                    yield BatchOperand(index, batch_axis, is_certain)


def _batch_axis_of(
    node: onnx.NodeProto, index: int, batch_axis: BatchAxis, source: Dims, dims: Dims
) -> BatchAxis | None:
    operator = onnx_op(node)
    if operator in RECURRENT:
        return _state_batch_axis(node, index, batch_axis, dims)
    if operator == "Concat":
        along = next((a.i for a in node.attribute if a.name == "axis"), 0) % max(len(source), 1)
        meets = len(dims) == len(source) and along != batch_axis.axis
        return batch_axis if meets and dims[batch_axis.axis] == source[batch_axis.axis] else None
    if operator in _BY_SAMPLE:
        is_first = batch_axis == BatchAxis(0) and len(dims) > 1 and index in _BY_SAMPLE[operator]
        return batch_axis if is_first and dims[0] == source[0] else None
    if operator in _BROADCASTING or (operator in _PRODUCTS and batch_axis.axis < len(source) - 2):
        axis = batch_axis.axis - (len(source) - len(dims))
        if (
            0 <= axis < len(dims) - 2 * (operator in _PRODUCTS)
            and dims[axis] == source[batch_axis.axis]
        ):
            return BatchAxis(axis, batch_axis.outer)
    return None


def _state_batch_axis(
    node: onnx.NodeProto, index: int, batch_axis: BatchAxis, dims: Dims
) -> BatchAxis | None:
    """X: [time, batch, input] has its batch second, or first where ``layout`` is 1."""
    axis = 0 if any(a.name == "layout" and a.i for a in node.attribute) else 1
    is_state = index in RECURRENT[node.op_type] and len(dims) > axis
    return BatchAxis(axis) if is_state and batch_axis.axis == axis else None


_TARGETS = {"Expand": 1, "Tile": 1, "ConstantOfShape": 0}
"""Operators that repeat elements, and the input that says how often or how far."""
_MAX_NODES = 512
"""An operand that more nodes compute is not traced back."""


@dataclass(frozen=True, slots=True)
class Origin:
    """One input to rewrite: ``index`` of ``node``."""

    node: onnx.NodeProto
    index: int
    batch_axis: BatchAxis
    """Of the batch, in the constant, or in what the target makes."""
    target: Dims | None = None
    """The target at the new batch; ``None``: the input is data."""


def computing_nodes(
    name: str,
    producers: Mapping[str, tuple[int, onnx.NodeProto]],
    batch_axes: Mapping[str, BatchAxis],
) -> list[onnx.NodeProto]:
    """The nodes that compute a tensor from constants, in running order; none if they are many.

    Tensors that carry the batch already, those in ``batch_axes``, are not traced further.
    """
    found: dict[int, onnx.NodeProto] = {}
    pending = [name]
    while pending:
        tensor = pending.pop()
        index, node = producers.get(tensor, (-1, None))
        if node is None or index in found or tensor in batch_axes or onnx_op(node) == "Constant":
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
                yield Origin(node, index, BatchAxis(axis))

    def _targets(self, node: onnx.NodeProto) -> Iterator[Origin]:
        index = _TARGETS[onnx_op(node)]
        declared = self.values.get(node.input[index]) if len(node.input) > index else None
        made = self.old_dims(node.output[0])
        if declared is None or declared.dtype.kind not in "iu" or not made:
            return
        target = tuple(int(dim) for dim in declared.ravel())
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
                batch_axis = BatchAxis(axis)
                yield Origin(node, 1, batch_axis, grown(made, batch_axis, self.old, self.new))

    def _grown_targets(self, node: onnx.NodeProto, index: int, target: Dims) -> Iterator[Origin]:
        for axis in self._axes(target):
            batch_axis = BatchAxis(axis)
            yield Origin(node, index, batch_axis, grown(target, batch_axis, self.old, self.new))

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


@dataclass(frozen=True, slots=True)
class Source:
    """What a target is applied to."""

    old: Dims
    new: Dims
    """Its dims at either batch."""
    batch_axis: BatchAxis | None
    """Where it has the batch, if it has."""


def expanded(target: Dims, before: Dims, data: Dims, old: int, new: int) -> Dims | None:
    """Expand: the batch stands where the data has it, else in the leading dim."""
    shift = len(target) - len(data)
    meeting = [axis for axis in range(max(shift, 0), len(target)) if data[axis - shift] == new]
    axis = next((axis for axis in meeting if target[axis] == old != 1), 0)
    spread = _broadcast(target, data)
    follows = spread is not None and spread != before
    if follows or len(target) != len(before) or target[axis : axis + 1] != (old,):
        return None
    return (*target[:axis], new, *target[axis + 1 :])


def reshaped(target: Dims, before: Dims, source: Source, old: int, new: int) -> Dims | None:
    """Reshape: the dim grows that the batch lands in, by row-major order."""
    if source.batch_axis is None:
        return None if prod(source.new) == prod(source.old) else ()
    landed = landing(source.batch_axis.elements_before(source.old), before, old)
    if landed is None:
        return ()
    moved = grown(before, landed, old, new)
    return None if _resolved(target, source.new) == moved else moved


def resized(target: Dims, before: Dims, source: Source, old: int, new: int) -> Dims | None:  # noqa: ARG001 - one signature for both rules
    """Resize: sizes are as long as the batch where the data has it."""
    batch_axis = source.batch_axis
    if batch_axis is None or target[batch_axis.axis : batch_axis.axis + 1] != (
        source.old[batch_axis.axis],
    ):
        return None
    return grown(target, batch_axis, old, new)


def _broadcast(one: Dims, other: Dims) -> Dims | None:
    """What two shapes broadcast to, of any size; ``None`` where they do not fit."""
    rank = max(len(one), len(other))
    pairs = list(zip(_filled(one, rank), _filled(other, rank), strict=True))
    fits = all(a == b or 1 in (a, b) for a, b in pairs)
    return tuple(b if a == 1 else a for a, b in pairs) if fits else None


def _filled(dims: Dims, rank: int) -> Dims:
    return (1,) * (rank - len(dims)) + dims


def _resolved(dims: Dims, data: Dims) -> Dims:
    """Reshape's output for a target with 0 (copy) and -1 (the rest)."""
    copied = [data[axis] if dim == 0 and axis < len(data) else dim for axis, dim in enumerate(dims)]
    known = prod(dim for dim in copied if dim != -1)
    return tuple(prod(data) // known if dim == -1 and known else dim for dim in copied)


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
