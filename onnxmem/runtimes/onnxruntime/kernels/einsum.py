"""Einsum: a chain of matrix products of two operands, each transposed as the product needs it.

Every label gets an axis, in order of appearance, those of an ellipsis first; an operand has dim 1
for labels that it lacks. The axes of a pair are in one of four groups: ``summed``; else ``both``,
if both dims are above 1; ``left``, if only the left one is; else ``right``. The left operand is
transposed to [both, left, summed, right], the right one to [both, summed, right, left], unless it
has that order already.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnxmem.ops.spec import Dims
from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    Kernel,
    KernelCall,
    Scratch,
    UnknownError,
    product,
    since,
)

_Axes = list[int]


@dataclass(slots=True)
class _Allocations:
    """The allocations in sequence, and when each is freed."""

    element_bytes: int
    blocks: list[int] = field(default_factory=list)
    freed_after: dict[int, int] = field(default_factory=dict)

    def allocate(self, dims: Iterable[int], *replaced: "_Operand | None") -> int:
        """Allocate a tensor, then free the operands that it replaces."""
        self.blocks.append(self.element_bytes * product(dims))
        for operand in replaced:
            self.free(operand)
        return len(self.blocks) - 1

    def free(self, operand: "_Operand | None") -> None:
        if operand is not None and operand.block is not None:
            self.freed_after[operand.block] = len(self.blocks)

    def scratch(self, num_before_outputs: int) -> Scratch:
        stops = (self.freed_after.get(index) for index in range(len(self.blocks)))
        return Scratch(tuple(self.blocks), num_before_outputs, tuple(stops))


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor with an axis for every label, and its block; ``None`` for an input of the node."""

    dims: Dims
    block: int | None = None


@dataclass(frozen=True, slots=True)
class _Equation:
    operands: tuple[tuple[int, ...], ...]
    """For each input, the axes of its dims."""
    output: tuple[int, ...]
    num_axes: int

    def last_use(self, axis: int) -> int | None:
        """The last input that has an axis; ``None`` if the output has it."""
        if axis in self.output:
            return None
        return max(index for index, axes in enumerate(self.operands) if axis in axes)


def _einsum(call: KernelCall) -> Scratch:
    shapes = [call.dims(index) for index in range(len(call.op_call.inputs))]
    equation = _parse(call.text("equation", ""), [len(shape) for shape in shapes])
    allocations = _Allocations(call.element_bytes())
    inputs = [
        _homogeneous(allocations, equation, axes, dims)
        for axes, dims in zip(equation.operands, shapes, strict=True)
    ]
    result = _without_own(allocations, equation, inputs[0])
    order = [axis for axis in range(equation.num_axes) if equation.last_use(axis) != 0]
    # ``result`` is the product of the inputs so far, ``order`` the order of its axes in memory. An
    # axis is summed with the last input that has it.
    for index, operand in enumerate(inputs[1:], start=1):
        summed = [axis for axis in range(equation.num_axes) if equation.last_use(axis) == index]
        pair = [result, operand]
        result, order = _product(allocations, pair, summed)
        # The last product is transposed by ``FinalizeOutput`` into the output, not into the order
        # of labels.
        if index < len(inputs) - 1:
            result = _in_label_order(allocations, result, order)
            for used in pair:
                allocations.free(used)
    num_before_outputs = len(allocations.blocks)
    _finish(allocations, equation, result, order)
    return allocations.scratch(num_before_outputs)


def _parse(text: str, ranks: Sequence[int]) -> _Equation:
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise UnknownError
    # An ellipsis stands for the last axes of the longest one: all are broadcast to it, from the
    # right.
    hidden = max(
        (rank - len(term) + 3 for term, rank in zip(terms, ranks, strict=True) if "..." in term),
        default=0,
    )
    letters = dict.fromkeys(letter for term in terms for letter in term if letter.isalpha())
    axes = {letter: hidden + index for index, letter in enumerate(letters)}
    # Without an arrow the output has the labels that occur once, in the order of the alphabet.
    if not arrow:
        once = (letter for letter in letters if left.count(letter) == 1)
        right = "..." * bool(hidden) + "".join(sorted(once))
    operands = (
        _axes_of(term, axes, rank - len(term) + 3 if "..." in term else 0, hidden)
        for term, rank in zip(terms, ranks, strict=True)
    )
    return _Equation(tuple(operands), _axes_of(right, axes, hidden, hidden), hidden + len(letters))


def _axes_of(term: str, axes: Mapping[str, int], count: int, hidden: int) -> tuple[int, ...]:
    """The axes of a term whose ellipsis stands for the last ``count`` of ``hidden`` axes."""
    before, dots, after = term.partition("...")
    if not axes.keys() >= {*before, *after}:
        raise UnknownError
    middle = range(hidden - count, hidden) if dots else ()
    return (*(axes[letter] for letter in before), *middle, *(axes[letter] for letter in after))


def _homogeneous(
    allocations: _Allocations, equation: _Equation, axes: tuple[int, ...], dims: Dims
) -> _Operand:
    """EinsumComputePreprocessor::PreprocessInputs: the diagonal, then the order of labels."""
    block = None
    # A repeated label selects a diagonal. Its allocations are known for the last two dims only.
    if len(set(axes)) < len(axes):
        if len(axes) - len(set(axes)) > 1 or axes[-1] != axes[-2]:
            raise UnknownError
        axes, dims = axes[:-1], dims[:-1]
        block = allocations.allocate(dims)
    of_axis = dict(zip(axes, dims, strict=True))
    if list(axes) != sorted(axes):
        block = allocations.allocate(dims, _Operand(dims, block))
    return _Operand(tuple(of_axis.get(axis, 1) for axis in range(equation.num_axes)), block)


def _without_own(allocations: _Allocations, equation: _Equation, operand: _Operand) -> _Operand:
    """Sum the first input over the axes that no other input and not the output has."""
    own = {axis for axis in range(equation.num_axes) if equation.last_use(axis) == 0}
    return _summed(allocations, operand, own) if own else operand


def _summed(
    allocations: _Allocations, operand: _Operand, axes: Iterable[int], *, is_own: bool = True
) -> _Operand:
    summed = set(axes)
    dims = tuple(1 if axis in summed else dim for axis, dim in enumerate(operand.dims))
    return _Operand(dims, allocations.allocate(dims, operand if is_own else None))


def _product(
    allocations: _Allocations, pair: list[_Operand], summed: _Axes
) -> tuple[_Operand, _Axes]:
    """EinsumTypedComputeProcessor::PairwiseOperandProcess: the product and the order of its axes.

    The operands in ``pair`` are replaced by those that are multiplied in the end, which the caller
    frees.
    """
    left, right = pair
    for axis in summed:
        # A dim that only one side has is summed before the product.
        if (left.dims[axis] > 1) != (right.dims[axis] > 1):
            side = int(right.dims[axis] > 1)
            original = (left, right)[side]
            pair[side] = _summed(
                allocations, pair[side], (axis,), is_own=pair[side] is not original
            )
    remaining = [axis for axis in range(len(left.dims)) if axis not in summed]
    both = [axis for axis in remaining if left.dims[axis] > 1 and right.dims[axis] > 1]
    own = [axis for axis in remaining if left.dims[axis] > 1 and axis not in both]
    rest = [axis for axis in remaining if left.dims[axis] <= 1]
    orders = ([*both, *own, *summed, *rest], [*both, *summed, *rest, *own])
    for side, (original, order) in enumerate(zip((left, right), orders, strict=True)):
        is_own = pair[side] is not original
        if order != sorted(order) and not (is_own and _is_view(pair[side].dims, order)):
            block = allocations.allocate(pair[side].dims, pair[side] if is_own else None)
            pair[side] = _Operand(pair[side].dims, block)
    dims = tuple(
        1 if axis in summed else max(sizes)
        for axis, sizes in enumerate(zip(left.dims, right.dims, strict=True))
    )
    return _Operand(dims, allocations.allocate(dims)), orders[0]


def _is_view(dims: Dims, order: _Axes) -> bool:
    """Whether the order of axes with dims above 1 is ascending, so that no element moves."""
    large = [axis for axis in order if dims[axis] != 1]
    return large == sorted(large)


def _in_label_order(allocations: _Allocations, result: _Operand, order: _Axes) -> _Operand:
    if _is_view(result.dims, order):
        return result
    return _Operand(result.dims, allocations.allocate(result.dims, result))


def _finish(allocations: _Allocations, equation: _Equation, result: _Operand, order: _Axes) -> None:
    """FinalizeOutput: the output is allocated first, then the result is transposed if necessary."""
    if [axis for axis in order if axis in equation.output] != list(equation.output):
        allocations.allocate(result.dims)


KERNELS = (
    Kernel(
        "Einsum",
        "core/providers/cpu/math/einsum_utils/einsum_typed_compute_processor.cc: Run",
        _einsum,
        bfloat16=since(28),
    ),
)
