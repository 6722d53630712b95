"""Trace the batch through a graph with a fixed batch: the axis of each tensor, and its origin.

A Reshape may merge the batch into a longer axis (``[T, B, E]`` to ``[T*B, E]``), and another may
split it off again. Both keep the row-major order, so the number of elements before the batch stays
the same, and gives the axis that has the batch afterwards (``landing``).

If an operator combines a tensor that has the batch with one that lacks it, the other must have it
too (``operands_with_batch``). It is then computed from constants only: one of these, or the target
of an Expand, a Tile or a ConstantOfShape on the way, has the batch of the export
(``OriginSearch``). The rules for the targets of Reshape, Expand and Resize take the present target
and the output's dims at the old batch, and return the target at the new batch, ``None`` if the
present one is right, or ``()`` if there is none.
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
        """The product of all factors before the batch, in a tensor of these dims."""
        return prod(dims[: self.axis]) * self.outer


def landing(before: int, dims: Dims, batch: int) -> BatchAxis | None:
    """The batch axis in ``dims``, the dims at the old batch, after a row-major reshape.

    ``before`` is the product of all factors before the batch. ``None``: no axis has all of it.
    """
    # ``prefixes[axis]`` is the product of the dims before an axis. The batch is in the axis in
    # which that product passes ``before``; what remains of ``before`` is the outer factor there.
    prefixes = list(accumulate(dims, mul, initial=1))
    if batch == 1:
        return _landing_of_one(before, dims, prefixes)
    axis = _axis_around(before, prefixes)
    if axis is None:
        return None
    outer, rest = divmod(before, prefixes[axis])
    return BatchAxis(axis, outer) if rest == 0 and dims[axis] % (outer * batch) == 0 else None


def _landing_of_one(before: int, dims: Dims, prefixes: Sequence[int]) -> BatchAxis | None:
    """The batch axis if the batch is 1, which is a factor of every dim.

    It is the dim of length 1 at that position, if there is one. Between two longer dims it may be
    the last factor of the first or the first factor of the second: the second is assumed, unless
    that is the last dim, which has features.
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
    """The axis in which a product of leading factors ends; ``None`` if it is that of all dims."""
    axes = range(len(prefixes) - 1)
    return next((a for a in axes if prefixes[a] <= before < prefixes[a + 1]), None)


def grown(dims: Dims, batch_axis: BatchAxis, old: int, new: int) -> Dims:
    """The dims at the new batch, from those at the old one."""
    size = dims[batch_axis.axis] // old * new
    return (*dims[: batch_axis.axis], size, *dims[batch_axis.axis + 1 :])


def inherited(
    old_dims: Dims, new_dims: Dims, sources: Sequence[tuple[BatchAxis, Dims]]
) -> BatchAxis | None:
    """The batch axis of an output: the axis whose dim has changed.

    ``sources`` are the batch axes of the inputs, with their dims at the old batch; the outer factor
    is that of an input of the same length.
    """
    # Operators other than reshapes keep axes whole, so the axis whose dim changes with the batch
    # has it, whatever the operator is.
    axes = [a for a, (old, new) in enumerate(zip(old_dims, new_dims, strict=False)) if old != new]
    if len(old_dims) != len(new_dims) or not axes:
        return None
    axis = axes[0]
    same = (
        # The outer factor survives an operator that keeps the axis: a later Reshape that splits the
        # axis needs it.
        batch_axis.outer
        for batch_axis, dims in sources
        if dims[batch_axis.axis] == old_dims[axis]
    )
    return BatchAxis(axis, next(same, 1))


_BROADCASTING = frozenset(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor".split()
)
_PRODUCTS = frozenset({"MatMul"})
"""Operators that broadcast all dims but the last two."""
_BY_SAMPLE = {"GridSample": (0, 1), "GatherElements": (0, 1)}
"""Operators, and the inputs that both have the batch on axis 0 if one of them does."""
RECURRENT: Final = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Recurrent layers, and the indices of their initial states: [directions, batch, hidden]."""
_OF_EQUAL_LENGTH = frozenset({"Concat", "GridSample", *RECURRENT})
"""Operators that do not broadcast."""


@dataclass(frozen=True, slots=True)
class BatchOperand:
    """An input that lacks the batch, of a node with another input that has it."""

    index: int
    batch_axis: BatchAxis
    """The axis that should have the batch."""
    is_certain: bool
    """False: the batch is 1, and a dim of length 1 may be meant to be broadcast."""


def operands_with_batch(
    node: onnx.NodeProto, batch_axes: Mapping[str, BatchAxis], old: Mapping[str, Dims], batch: int
) -> Iterator[BatchOperand]:
    """The inputs that lack the batch but must, or may, have it.

    ``batch_axes`` has the tensors with the batch, ``old`` the dims of inputs at the old ``batch``.
    """
    # Any input with the batch serves: where several have it, the node has aligned them already.
    source = next((name for name in node.input if name in batch_axes), None)
    if source is None:
        return
    for index, name in enumerate(node.input):
        if name and name not in batch_axes:
            batch_axis = _batch_axis_of(node, index, batch_axes[source], old[source], old[name])
            if batch_axis is not None:
                length = old[name][batch_axis.axis]
                # At batch 1 a dim of length 1 that is broadcast gives the same shapes whether it
                # has the batch or not.
                is_certain = length > 1 or onnx_op(node) in _OF_EQUAL_LENGTH
                if is_certain or length == batch == old[source][batch_axes[source].axis]:
                    yield BatchOperand(index, batch_axis, is_certain)


def _batch_axis_of(
    node: onnx.NodeProto, index: int, batch_axis: BatchAxis, source: Dims, dims: Dims
) -> BatchAxis | None:
    operator = onnx_op(node)
    if operator in RECURRENT:
        return _state_batch_axis(node, index, batch_axis, dims)
    # Operands that meet along another axis share the batch; along the batch itself they would add
    # up.
    if operator == "Concat":
        along = next((a.i for a in node.attribute if a.name == "axis"), 0) % max(len(source), 1)
        meets = len(dims) == len(source) and along != batch_axis.axis
        return batch_axis if meets and dims[batch_axis.axis] == source[batch_axis.axis] else None
    if operator in _BY_SAMPLE:
        is_first = batch_axis == BatchAxis(0) and len(dims) > 1 and index in _BY_SAMPLE[operator]
        return batch_axis if is_first and dims[0] == source[0] else None
    if operator in _BROADCASTING or (operator in _PRODUCTS and batch_axis.axis < len(source) - 2):
        # Broadcasting aligns the last axes; the two axes of a matrix are no batch.
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
    """The batch of X: [time, batch, input] is on axis 1, or on axis 0 if ``layout`` is 1."""
    axis = 0 if any(a.name == "layout" and a.i for a in node.attribute) else 1
    is_state = index in RECURRENT[node.op_type] and len(dims) > axis
    return BatchAxis(axis) if is_state and batch_axis.axis == axis else None


_TARGETS = {"Expand": 1, "Tile": 1, "ConstantOfShape": 0}
"""Operators that repeat elements, and the index of their target."""
_MAX_NODES = 512
"""Operands that more nodes compute are not traced back."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An input of a node that may have to be rewritten."""

    node: onnx.NodeProto
    index: int
    batch_axis: BatchAxis
    """The batch axis of the constant, or of the output that a target describes."""
    target: Dims | None = None
    """The target at the new batch; ``None``: the input is data."""


def computing_nodes(
    name: str,
    producers: Mapping[str, tuple[int, onnx.NodeProto]],
    batch_axes: Mapping[str, BatchAxis],
) -> list[onnx.NodeProto]:
    """The nodes that compute a tensor from constants, in topological order; none if too many.

    Tensors with the batch, those in ``batch_axes``, are not traced further.
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
    """Lists the inputs that may be the origin of the batch, the nearest to the operand first."""

    constants: Mapping[str, Dims]
    """The constants of the file and their dims."""
    old_dims: Callable[[str], Dims]
    """The dims of a tensor at the old batch."""
    values: Mapping[str, Array]
    old: int
    new: int
    is_certain: bool
    """False: the batch is 1, and the operand may be one for all samples. Then only inputs that are
    hardly written for any other reason are listed."""
    constants_first: bool = False
    """Whether constants come before an Expand, as torch writes it after an initial state too."""

    def origins(self, nodes: Sequence[onnx.NodeProto]) -> Iterable[Origin]:
        """The origins in the nodes that compute an operand."""
        found = self._nearest_first(nodes)
        if self.constants_first:
            return sorted(found, key=lambda origin: origin.target is not None)
        return found

    def _nearest_first(self, nodes: Sequence[onnx.NodeProto]) -> Iterator[Origin]:
        # The nearest to the operand first: a change there affects the fewest other tensors.
        for node in reversed(nodes):
            if onnx_op(node) in _TARGETS:
                yield from self._targets(node)
            for index, name in enumerate(node.input):
                if name in self.constants and index != _TARGETS.get(onnx_op(node)):
                    yield from self._data(node, index)

    def _data(self, node: onnx.NodeProto, index: int) -> Iterator[Origin]:
        dims = self.constants[node.input[index]]
        # A constant whose batch is 1 may be one for all samples, unless it looks like an initial
        # state.
        if self.is_certain or is_state(dims, self.values.get(node.input[index])):
            for axis in self._axes(dims):
                yield Origin(node, index, BatchAxis(axis))

    def _targets(self, node: onnx.NodeProto) -> Iterator[Origin]:
        index = _TARGETS[onnx_op(node)]
        declared = self.values.get(node.input[index]) if len(node.input) > index else None
        output = self.old_dims(node.output[0])
        if declared is None or declared.dtype.kind not in "iu" or not output:
            return
        target = tuple(int(dim) for dim in declared.ravel())
        if onnx_op(node) == "Expand":
            yield from self._expanded(node, output)
        elif onnx_op(node) == "Tile" and len(target) == len(output):
            if self.is_certain or set(target) == {1}:
                yield from self._grown_targets(node, index, target)
        elif onnx_op(node) == "ConstantOfShape" and target == output:
            yield from self._grown_targets(node, index, target)

    def _expanded(self, node: onnx.NodeProto, output: Dims) -> Iterator[Origin]:
        """The dims that an Expand adds or repeats.

        If the batch is 1, an Expand that repeats nothing was written for the batch, or fills an
        initial state; one that repeats along another axis may have been written for that axis.
        """
        data = self.old_dims(node.input[0])
        is_fill = not data
        data = (1,) * (len(output) - len(data)) + data
        for axis in self._axes(output):
            if data[axis] == 1 and (self.is_certain or data == output or is_fill):
                batch_axis = BatchAxis(axis)
                yield Origin(node, 1, batch_axis, grown(output, batch_axis, self.old, self.new))

    def _grown_targets(self, node: onnx.NodeProto, index: int, target: Dims) -> Iterator[Origin]:
        for axis in self._axes(target):
            batch_axis = BatchAxis(axis)
            yield Origin(node, index, batch_axis, grown(target, batch_axis, self.old, self.new))

    def _axes(self, dims: Dims) -> list[int]:
        """The axes that may have the batch: those of its length first, then multiples of it."""
        # A multiple of the batch is an axis into which a Reshape may have merged it. If the batch
        # is 1, every dim is a multiple, so only dims of 1 are candidates.
        exact = [axis for axis, dim in enumerate(dims) if dim == self.old]
        if not self.is_certain:
            return exact
        return exact + [a for a, dim in enumerate(dims) if dim % self.old == 0 and dim != self.old]


def is_state(dims: Dims, value: Array | None) -> bool:
    """Whether a constant may be an initial state: all zeros, of rank 2 or more."""
    if len(dims) < 2 or value is None or value.size < 2 or value.dtype.kind != "f":  # noqa: PLR2004 - rank of the docstring
        return False
    return not np.any(value)


def may_be_of_a_sample(dims: Dims, value: Array | None) -> bool:
    """Whether a constant of an export at batch 1 might have one copy per sample at a larger batch.

    A vector along one axis (a bias, a scale) is one for all samples, unless it has at most two
    different elements (a mask, an identity, an initial state).
    """
    if sum(dim > 1 for dim in dims) > 1:
        return True
    return value is not None and value.size > 1 and len(np.unique(value)) <= 2  # noqa: PLR2004 - as the docstring says


@dataclass(frozen=True, slots=True)
class Source:
    """The data that a target is applied to."""

    old: Dims
    """Its dims at the old batch."""
    new: Dims
    """Its dims at the new batch."""
    batch_axis: BatchAxis | None
    """``None``: it does not have the batch."""


def expanded(target: Dims, before: Dims, data: Dims, old: int, new: int) -> Dims | None:
    """Expand: the batch is on the axis on which the data has it, else on axis 0."""
    shift = len(target) - len(data)
    meeting = [axis for axis in range(max(shift, 0), len(target)) if data[axis - shift] == new]
    # `data` is at the new batch and `target` at the old one: the batch is on an axis where the two
    # disagree, unless the target is a 1, which broadcasts.
    axis = next((axis for axis in meeting if target[axis] == old != 1), 0)
    # A target that already broadcasts to other dims than before follows the batch by itself.
    spread = _broadcast(target, data)
    follows = spread is not None and spread != before
    if follows or len(target) != len(before) or target[axis : axis + 1] != (old,):
        return None
    return (*target[:axis], new, *target[axis + 1 :])


def reshaped(target: Dims, before: Dims, source: Source, old: int, new: int) -> Dims | None:
    """Reshape: the batch is on the axis given by the row-major order."""
    if source.batch_axis is None:
        # `None` keeps the target, `()` says that none is right: the number of elements has changed
        # and no axis of the batch explains it.
        return None if prod(source.new) == prod(source.old) else ()
    landed = landing(source.batch_axis.elements_before(source.old), before, old)
    if landed is None:
        return ()
    moved = grown(before, landed, old, new)
    # A target with 0 or -1 for the batch already gives the new dims.
    return None if _resolved(target, source.new) == moved else moved


def resized(target: Dims, before: Dims, source: Source, old: int, new: int) -> Dims | None:  # noqa: ARG001 - one signature for both rules
    """Resize: the sizes have the batch on the axis on which the data has it."""
    batch_axis = source.batch_axis
    if batch_axis is None or target[batch_axis.axis : batch_axis.axis + 1] != (
        source.old[batch_axis.axis],
    ):
        return None
    return grown(target, batch_axis, old, new)


def _broadcast(one: Dims, other: Dims) -> Dims | None:
    """The shape to which two shapes broadcast; ``None`` if they do not fit."""
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
    """Extend constants that index samples to a new batch, in place; whether there are any."""
    found = indices_of_samples(graph, old)
    for tensor in found:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        # All dims but the first are 1, or the values would not be 0, 1, 2... along the batch.
        value = np.arange(new, dtype=dtype).reshape(new, *tensor.dims[1:])
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return bool(found)


def indices_of_samples(graph: onnx.GraphProto, batch: int) -> list[onnx.TensorProto]:
    """The constants of rank 2 or more that index samples: 0, 1, 2... along the batch.

    A constant of rank 1 may be a list of axes; at batch 1 there is nothing to recognize.
    """
    if batch == 1:
        return []
    constants = [*graph.initializer]
    constants += [tensor for node in graph.node if (tensor := constant_tensor(node)) is not None]
    return [tensor for tensor in constants if _counts_along(tensor, batch)]


def _counts_along(tensor: onnx.TensorProto, batch: int) -> bool:
    if len(tensor.dims) == 1 or tuple(tensor.dims[:1]) != (batch,):
        return False
    if tensor.data_type == onnx.TensorProto.BOOL:
        return False
    value = constant_value(tensor)
    return value is not None and value.ravel().tolist() == list(range(batch))
