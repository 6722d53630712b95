"""Interval arithmetic of shape computations: the elements of a node's outputs.

Each function takes the intervals of the inputs and returns that of the first output; ``None``: any
value of its type. An operator that only moves elements moves both ends the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite, prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from onnxmem.model.bounds import BOUNDS
from onnxmem.model.graph import DType
from onnxmem.model.intervals.interval import (
    DimIntervals,
    Ends,
    Known,
    Term,
    ValueInterval,
    least,
)
from onnxmem.ops.spec import Attribute, Dims

Attributes = Mapping[str, Attribute]
Inputs = Sequence[Known | None]
Rule = Callable[[Inputs, Attributes], ValueInterval | None]

_PASSING: Final = frozenset(
    "Compress DepthToSpace Expand Flatten Gather GatherElements GatherND GlobalMaxPool MaxPool "
    "ReduceMax ReduceMin Reshape ReverseSequence Slice SpaceToDepth Split Squeeze Tile TopK "
    "Transpose Unique Unsqueeze".split()
)
"""Operators whose first output has no element beyond the ends of their first input."""
_CONVERTING: Final = frozenset({"Cast", "Identity"})
_UNIT: Final = frozenset({"HardSigmoid", "Sigmoid", "Softmax"})
_SIGNED_UNIT: Final = frozenset({"Cos", "Erf", "Sign", "Sin", "Softsign", "Tanh"})
_ROUNDED_OFTEN: Final = frozenset(
    "CumSum Exp Log MatMul Mean Pow Range ReduceMean ReduceProd ReduceSum Sum".split()
)
"""Operators whose floats are rounded in several steps, in an order that kernels choose."""
_WRAPPING: Final = frozenset("Add Mul Pow ReduceProd Sub Sum".split())
"""Operators whose integers may be beyond those of their inputs."""
_MANTISSA_BITS: Final[Mapping[DType | None, int]] = MappingProxyType(
    {DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}
)


def value_of(
    operator: str, inputs: Inputs, attributes: Attributes, dtype: DType | None, dims: Dims | None
) -> ValueInterval:
    """The elements of the first output of a node; ``dims`` are those of the output, if known."""
    limits = ValueInterval.any_of(dtype)
    # Infinite ends may give inf - inf or 0 * inf, which `ValueInterval.of` takes for no end.
    with np.errstate(all="ignore"):
        found = _found(operator, inputs, attributes, dtype)
        if found is not None and dtype is not None and dtype in _MANTISSA_BITS:
            found = _as_computed(found, dtype, is_often=operator in _ROUNDED_OFTEN)
    # Beyond the limits of its type an integer wraps around.
    is_in_range = found is not None and found.within(limits)
    if found is not None and (most := _LARGEST.get(dtype)) is not None:
        ends = found.least, found.most
        is_in_range &= all(abs(end) <= most for end in ends if isfinite(end))
        # Of numbers with ends, a result without one may be beyond 64 bits.
        is_in_range &= all(map(isfinite, ends)) or not (
            operator in _WRAPPING and all(map(_has_ends, inputs))
        )
    return (found if found is not None and is_in_range else limits).shaped(dims)


def _has_ends(known: Known | None) -> bool:
    return known is None or (isfinite(known.value.least) and isfinite(known.value.most))


def _found(
    operator: str, inputs: Inputs, attributes: Attributes, dtype: DType | None
) -> ValueInterval | None:
    if operator in _RULES:
        found = _RULES[operator](inputs, attributes)
        if found is not None:
            return found
    first = inputs[0] if inputs else None
    if operator in _UNIT:
        return ValueInterval.of(0, 1)
    if operator in _SIGNED_UNIT:
        return ValueInterval.of(-1, 1)
    if operator in _CONVERTING and first is not None:
        found = _cast(first.value, dtype)
        # Terms are sums of integers: a cast to floats rounds them, and one from floats truncates.
        is_kept = first.dtype is not None and first.dtype.is_integer
        is_kept = is_kept and dtype is not None and dtype.is_integer
        return found if is_kept else replace(found, terms=None)
    if operator in _PASSING and first is not None:
        return first.value.uniform()
    return None


def _as_computed(value: ValueInterval, dtype: DType, *, is_often: bool) -> ValueInterval:
    """The ends of what kernels compute, whose halves may be floats.

    onnxruntime computes halves in floats where no kernel has them, and removes the casts between
    (``InsertedPrecisionFreeCast``): which results are rounded to halves depends on the graph.
    """
    found = _as_rounded(value, _MANTISSA_BITS[DType.FLOAT32], is_often=is_often)
    bits = _MANTISSA_BITS[dtype]
    if bits == _MANTISSA_BITS[DType.FLOAT32]:
        return found
    half = _as_rounded(value, bits, is_often=is_often)
    return replace(
        found, low=np.minimum(found.low, half.low), high=np.maximum(found.high, half.high)
    )


def _as_rounded(value: ValueInterval, bits: int, *, is_often: bool) -> ValueInterval:
    """An interval whose ends are floats of so many bits, as the operator's results are.

    Rounding to the nearest float keeps the order of numbers, so the rounded ends are those of the
    rounded results. It is exact for one operation on floats: a float64 has more than twice the bits
    (Figueroa, "When is double rounding innocuous?", 1995). Where it happens several times, ends
    that are no whole numbers of few bits move outward by as much as it may add up to.
    """
    low, high = _nearest(value.low, bits), _nearest(value.high, bits)
    if is_often:
        step = 2.0 ** (6 - bits)
        low, high = _outward(low, -step, bits), _outward(high, step, bits)
    return replace(value, low=low, high=high)


def _nearest(ends: Ends, bits: int) -> Ends:
    fraction, exponent = np.frexp(ends)
    rounded = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return np.where(np.isfinite(ends), rounded, ends)


def _outward(ends: Ends, share: float, bits: int) -> Ends:
    is_exact = (ends == np.rint(ends)) & (np.abs(ends) < 2**bits)
    return np.where(is_exact | ~np.isfinite(ends), ends, ends + np.abs(ends) * share)


def _cast(value: ValueInterval, dtype: DType | None) -> ValueInterval:
    """A conversion to integers truncates, one to booleans compares with zero."""
    if dtype is DType.BOOL:
        is_zero = (value.low == 0) & (value.high == 0)
        is_other = (value.low > 0) | (value.high < 0)
        return ValueInterval.of(np.where(is_other, 1, 0), np.where(is_zero, 0, 1))
    if dtype is not None and dtype.is_integer:
        limits = ValueInterval.any_of(dtype)
        if value.least >= limits.least and value.most <= limits.most:
            found = ValueInterval.of(np.trunc(value.low), np.trunc(value.high))
            return replace(found, names=value.names, terms=value.terms)
        return limits
    return value


def _moved(move: Callable[..., npt.NDArray[Any]], known: Known | None) -> ValueInterval | None:
    """The same elements in another order or shape."""
    value = None if known is None else known.elements
    if value is None:
        return None
    try:
        # Of a single element, numpy returns the element in place of an array.
        low, high = np.asarray(move(value.low)), np.asarray(move(value.high))
        names = None if value.names is None else np.asarray(move(value.names), object)
        terms = None if value.terms is None else np.asarray(move(value.terms), object)
        return ValueInterval(low, high, names, terms)
    except (ValueError, IndexError, TypeError):
        return None


def integers(known: Known | None) -> tuple[int, ...] | None:
    """The elements of an input, if they are known integers."""
    value = None if known is None else known.exact
    if value is None or not np.isfinite(value).all():
        return None
    return tuple(int(each) for each in value.ravel())


def _gather(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    index = None if inputs[1] is None else inputs[1].exact
    if index is None:
        return None
    axis = attributes.get("axis", 0)
    return _moved(lambda ends: np.take(ends, index.astype(np.int64), axis=_axis(axis)), inputs[0])


def _axis(value: Attribute) -> int:
    return value if isinstance(value, int) else 0


def _concat(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    axis = _axis(attributes.get("axis", 0))
    values = [None if each is None else each.elements for each in inputs]
    full = [each for each in values if each is not None]
    # Elements keep their own ends if those of every part are known, else all have the widest.
    if len(full) == len(values):
        try:
            return ValueInterval(
                np.concatenate([each.low for each in full], axis),
                np.concatenate([each.high for each in full], axis),
                np.concatenate([each.all_names for each in full], axis),
                np.concatenate([each.all_terms for each in full], axis),
            )
        except ValueError:
            return None
    return _union(inputs)


def _union(inputs: Inputs) -> ValueInterval | None:
    """Any element of any input."""
    known = [each.value for each in inputs if each is not None]
    return ValueInterval.of(min(each.least for each in known), max(each.most for each in known))


def _axes(inputs: Inputs, attributes: Attributes) -> tuple[int, ...] | None:
    """The axes of Squeeze or Unsqueeze: an attribute, or the second input; ``None``: unknown."""
    given = _integers(attributes.get("axes"))
    if given is not None:
        return given
    return integers(inputs[1]) if len(inputs) > 1 else ()


def _unsqueeze(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    axes = _axes(inputs, attributes)
    return None if axes is None else _moved(lambda ends: np.expand_dims(ends, axes), inputs[0])


def _squeeze(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    axes = _axes(inputs, attributes)
    if axes is None:
        return None
    # Without axes, all dims of 1 go.
    return _moved(lambda ends: np.squeeze(ends, axes or None), inputs[0])


def _slice(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    parts = slice_parts(inputs, attributes)
    known = inputs[0]
    if known is None or known.elements is None or parts is None:
        return None
    if any(None in part for part in parts.values()):
        return None
    slices = [slice(None)] * known.elements.low.ndim
    for axis, (start, stop, step) in parts.items():
        if not -len(slices) <= axis < len(slices):
            return None
        slices[axis] = slice(start, stop, step)
    return _moved(lambda ends: ends[tuple(slices)], inputs[0])


def slice_parts(
    inputs: Inputs, attributes: Attributes
) -> dict[int, tuple[int | None, int | None, int | None]] | None:
    """Start, stop and step by axis, each ``None`` if unknown; ``None``: the axes are unknown."""
    starts, stops, axes = (_integers(attributes.get(name)) for name in ("starts", "ends", "axes"))
    # Until opset 9 (Slice-1) these are attributes, and there is no step.
    if starts is not None and stops is not None:
        pairs = zip(axes or range(len(starts)), starts, stops, strict=False)
        return {axis: (start, stop, 1) for axis, start, stop in pairs}
    rows = [inputs[index] if index < len(inputs) else None for index in range(1, 5)]
    # How many axes are cut may be known where the elements are not.
    count = least(*(each.most_elements for each in rows if each is not None))
    axes = integers(rows[2])
    if axes is None and (count is None or rows[2] is not None):
        return None
    known = [_known_integers(row) for row in rows]
    parts = {}
    for index, axis in enumerate(range(count or 0) if axes is None else axes):
        start, stop, step = (_at(known[row], index) for row in (0, 1, 3))
        parts[axis] = (start, stop, 1 if rows[3] is None else step)
    return parts


def _integers(attribute: Attribute | None) -> tuple[int, ...] | None:
    return tuple(int(each) for each in attribute) if isinstance(attribute, tuple) else None


def _known_integers(known: Known | None) -> Sequence[int | None]:
    """The elements of an input, ``None`` for those that are not known."""
    value = None if known is None else known.elements
    if value is None:
        return ()
    is_known = (value.low == value.high) & np.isfinite(value.low)
    rows = zip(value.low.ravel(), is_known.ravel(), strict=True)
    return [int(end) if is_one else None for end, is_one in rows]


def _at(values: Sequence[int | None], index: int) -> int | None:
    return values[index] if index < len(values) else None


def _transpose(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    order = attributes.get("perm")
    axes = tuple(int(each) for each in order) if isinstance(order, tuple) else None
    return _moved(lambda ends: np.transpose(ends, axes), inputs[0])


def _reshape(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    target = integers(inputs[1]) if len(inputs) > 1 else None
    # A 0 copies a dim of the input; numpy would read it as a dim of 0.
    if target is None or 0 in target:
        return None
    return _moved(lambda ends: ends.reshape(target), inputs[0])


def _expand(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    target = integers(inputs[1])
    if target is None or prod(target) > BOUNDS.elements:
        return None
    # Expand broadcasts in both directions: a dim of the input may be larger than the target's.
    return _moved(lambda ends: np.broadcast_arrays(ends, np.empty(target))[0], inputs[0])


def _of_two(
    low: Callable[[ValueInterval, ValueInterval], Ends],
    high: Callable[[ValueInterval, ValueInterval], Ends],
) -> Rule:
    """An operator on pairs of broadcast elements, by its two ends."""

    def rule(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
        known = [each for each in inputs if each is not None]
        if not known:
            return None
        are_full = all(each.elements is not None for each in known)
        values = [each.value if are_full else each.value.uniform() for each in known]
        found = values[0]
        for other in values[1:]:
            try:
                found = ValueInterval.of(low(found, other), high(found, other))
            except ValueError:
                return None
        return found

    return rule


def _added(sign: int, rule: Rule) -> Rule:
    """Add or Sub: a term and a known integer are a term again."""

    def with_terms(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
        found = rule(inputs, attributes)
        if found is None or len(inputs) != 2:  # noqa: PLR2004 - two operands
            return found
        one, other = inputs
        for known, number, is_first in ((one, other, True), (other, one, False)):
            if known is None or number is None or known.value.terms is None:
                continue
            # A number less a term is no term: a term has no sign of its own.
            if number.exact is None or known.elements is None or not (is_first or sign > 0):
                continue
            sums = np.frompyfunc(partial(_plus, sign), 2, 1)(known.value.terms, number.exact)
            return replace(found, terms=np.asarray(sums, object))
        return found

    return with_terms


def _plus(sign: int, term: Term | None, number: float) -> Term | None:
    is_exact = term is not None and isfinite(number)
    return replace(term, added=term.added + sign * int(number)) if term and is_exact else None


def _products(one: ValueInterval, other: ValueInterval) -> list[Ends]:
    pairs = [(a, b) for a in (one.low, one.high) for b in (other.low, other.high)]
    # Zero times an infinite end is zero: the end is a number that is only not known.
    return [np.where((a == 0) | (b == 0), 0.0, a * b) for a, b in pairs]


def _quotients(one: ValueInterval, other: ValueInterval) -> tuple[Ends, Ends]:
    """The ends of a quotient by numbers of one sign; infinite for others, of which one may be 0."""
    has_sign = (other.low > 0) | (other.high < 0)
    pairs = [(a, b) for a in (one.low, one.high) for b in (other.low, other.high)]
    found = [np.where(np.isinf(b), 0.0, a / np.where(b == 0, 1, b)) for a, b in pairs]
    low, high = np.minimum.reduce(found), np.maximum.reduce(found)
    return np.where(has_sign, low, -inf), np.where(has_sign, high, inf)


def _div(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    is_whole = _is_integer(inputs[0])
    quotients = _whole_quotients if is_whole else _quotients
    rule = _of_two(lambda a, b: quotients(a, b)[0], lambda a, b: quotients(a, b)[1])
    return rule(inputs, attributes)


def _is_integer(known: Known | None) -> bool:
    dtype = None if known is None else known.dtype
    return dtype is not None and dtype.is_integer


def _whole_quotients(one: ValueInterval, other: ValueInterval) -> tuple[Ends, Ends]:
    """The ends of a quotient of integers, which are divided toward zero.

    No run divides by 0, so a quotient is never further from 0 than the dividend.
    """
    divisor = _without_zero(other)
    low, high = _quotients(one, divisor)
    most = np.maximum(np.abs(one.low), np.abs(one.high))
    has_both = (divisor.low < 0) & (divisor.high > 0)
    return np.trunc(np.where(has_both, -most, low)), np.trunc(np.where(has_both, most, high))


def _without_zero(value: ValueInterval) -> ValueInterval:
    """Integers of which 0 is none, if it is one of the ends."""
    low = np.where((value.low == 0) & (value.high > 0), 1, value.low)
    high = np.where((value.high == 0) & (value.low < 0), -1, value.high)
    return ValueInterval(low, high)


def _pow(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    """Powers as ``std::pow`` has them, cast to the type of the base."""
    base, exponent = inputs
    if base is None or exponent is None:
        return None
    ends = partial(_powers, is_whole=_is_integer(exponent), most=_LARGEST.get(base.dtype, inf))
    return _of_two(lambda a, b: ends(a, b)[0], lambda a, b: ends(a, b)[1])(inputs, attributes)


_LARGEST: Final[Mapping[DType | None, int]] = MappingProxyType(
    {DType.INT32: 2**31 - 1, DType.INT64: 2**63 - 1}
)
"""A floating-point number beyond these, or one that is infinite, is cast to no certain integer."""


def _powers(
    one: ValueInterval, other: ValueInterval, *, is_whole: bool, most: float
) -> tuple[Ends, Ends]:
    """The ends of powers; infinite where they may be infinite, no number, or beyond an integer.

    A power of a positive number rises or falls in the base, and in the exponent, so its ends are
    those of the corners. Of a negative base only whole exponents have one.
    """
    low, high = _ends_of(_abs_of(one), other)
    is_exact = (other.low == other.high) & (other.low == np.rint(other.low))
    is_odd = is_exact & (np.mod(other.low, 2) == 1)
    # Of an odd number the power has the sign of the base; of an unknown one either.
    is_signed = (one.low < 0) & (is_odd | ~is_exact)
    is_negative = is_odd & (one.high <= 0)
    top = np.where(
        is_negative, -low, np.where(is_odd, np.power(np.maximum(one.high, 0), other.high), high)
    )
    bottom = np.where(is_odd & ~is_negative, -np.power(np.abs(one.low), other.low), -high)
    low, high = np.where(is_signed, bottom, low), np.where(is_signed, top, high)
    has_zero = (one.low <= 0) & (one.high >= 0)
    is_open = has_zero & (other.low < 0)
    is_open |= (one.low < 0) & ~(is_exact | is_whole)
    is_open |= np.maximum(np.abs(low), np.abs(high)) > most
    if isfinite(most):
        low, high = np.trunc(low), np.trunc(high)
    return np.where(is_open, -inf, low), np.where(is_open, inf, high)


def _bit_shift(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    """BitShift of unsigned integers, as C++ shifts them; by all bits or more it has no meaning."""
    shifted, by = inputs
    bits = None if shifted is None or shifted.dtype is None else shifted.dtype.bits
    if by is None or bits is None or by.value.most >= bits:
        return None
    if attributes.get("direction") in {"LEFT", b"LEFT"}:
        left = _of_two(
            lambda a, b: np.ldexp(a.low, b.low.astype(int)),
            lambda a, b: np.ldexp(a.high, b.high.astype(int)),
        )
        return left(inputs, attributes)
    right = _of_two(
        lambda a, b: np.floor(np.ldexp(a.low, -b.high.astype(int))),
        lambda a, b: np.floor(np.ldexp(a.high, -b.low.astype(int))),
    )
    return right(inputs, attributes)


def _abs_of(value: ValueInterval) -> ValueInterval:
    ends = np.abs(value.low), np.abs(value.high)
    has_zero = (value.low <= 0) & (value.high >= 0)
    return ValueInterval(np.where(has_zero, 0, np.minimum(*ends)), np.maximum(*ends))


def _ends_of(one: ValueInterval, other: ValueInterval) -> tuple[Ends, Ends]:
    corners = [np.power(a, b) for a in (one.low, one.high) for b in (other.low, other.high)]
    return np.minimum.reduce(corners), np.maximum.reduce(corners)


def _each(function: Callable[[Ends], Ends]) -> Rule:
    """A function of one element that does not decrease."""

    def rule(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
        if inputs[0] is None:
            return None
        value = inputs[0].value
        return ValueInterval.of(function(value.low), function(value.high))

    return rule


def _neg(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    if inputs[0] is None:
        return None
    return ValueInterval.of(-inputs[0].value.high, -inputs[0].value.low)


def _abs(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    if inputs[0] is None:
        return None
    return _abs_of(inputs[0].value)


def _clip(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    if inputs[0] is None:
        return None
    value = inputs[0].value
    low, high = _limit(inputs, attributes, 1, "min"), _limit(inputs, attributes, 2, "max")
    # min(max(x, low), high) does not decrease in any of the three.
    return ValueInterval.of(
        np.minimum(np.maximum(value.low, low.least), high.least),
        np.minimum(np.maximum(value.high, low.most), high.most),
    )


def _limit(inputs: Inputs, attributes: Attributes, index: int, name: str) -> ValueInterval:
    """A limit of Clip: an input, an attribute, or none."""
    given = attributes.get(name)
    if isinstance(given, int | float):
        return ValueInterval.of(given, given)
    known = inputs[index] if index < len(inputs) else None
    if known is None:
        return ValueInterval.of(-inf, -inf) if name == "min" else ValueInterval.of(inf, inf)
    return known.value


def _where(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    condition, one, other = inputs
    if condition is None or one is None or other is None:
        return None
    if any(each.elements is None for each in (condition, one, other)):
        # A condition that holds everywhere, or nowhere, decides all elements.
        decided = {(1.0, 1.0): one, (0.0, 0.0): other}.get(
            (condition.value.least, condition.value.most)
        )
        return _union((one, other)) if decided is None else decided.value.uniform()
    is_true, is_false = condition.value.low >= 1, condition.value.high <= 0
    try:
        low = np.where(is_true, one.value.low, other.value.low)
        high = np.where(is_true, one.value.high, other.value.high)
        either = ~(is_true | is_false)
        names = np.where(is_true, one.value.all_names, other.value.all_names)
        names = np.where(either, "", names)
        low = np.where(either, np.minimum(one.value.low, other.value.low), low)
        high = np.where(either, np.maximum(one.value.high, other.value.high), high)
    except ValueError:
        return None
    return replace(ValueInterval.of(low, high), names=names)


_Truths = Callable[[ValueInterval, ValueInterval], npt.NDArray[np.bool_]]


def _compared(holds: _Truths, fails: _Truths) -> Rule:
    """A comparison: 1 where it holds for all values, 0 where it fails for all."""
    return _of_two(
        lambda a, b: np.where(holds(a, b), 1.0, 0.0), lambda a, b: np.where(fails(a, b), 0.0, 1.0)
    )


def _mod(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    one, other = inputs
    if one is None or other is None:
        return None
    divisor, value = other.value.uniform(), one.value
    if _is_integer(one):
        divisor = _without_zero(divisor)
        if divisor.least < 0 < divisor.most:
            # A remainder is nearer to 0 than the divisor, which is 0 in no run.
            most = max(-divisor.least, divisor.most) - 1
            return ValueInterval.of(-most, most)
    if divisor.least <= 0 <= divisor.most:
        return None
    if value.least >= 0 and value.most < divisor.least:
        return value
    # An integer remainder is 1 less at most; that of fractions comes as near as one likes.
    step = 1 if one.dtype is not None and one.dtype.is_integer else 0
    most = max(abs(divisor.least), abs(divisor.most)) - step
    if attributes.get("fmod"):
        # As fmod of C: it has the sign of the dividend, and is no further from 0.
        return ValueInterval.of(
            max(-most, value.least) if value.least < 0 else 0,
            min(most, value.most) if value.most > 0 else 0,
        )
    return ValueInterval.of(0, most) if divisor.least > 0 else ValueInterval.of(-most, 0)


def _reduced(inputs: Inputs, attributes: Attributes, operator: str) -> ValueInterval | None:
    """ReduceMax, ReduceMin, ReduceProd and ReduceSum over all or known axes."""
    known = inputs[0]
    if known is None:
        return None
    axes = _axes(inputs, attributes) if len(inputs) < 2 or inputs[1] is not None else ()  # noqa: PLR2004 - the axes
    if not axes and axes is not None and attributes.get("noop_with_empty_axes"):
        return known.value
    value, keeps = known.elements, bool(attributes.get("keepdims", 1))
    reduce = _REDUCTIONS[operator]
    if value is not None and axes is not None and value.low.size:
        # The ends of a sum, minimum or maximum are those of its elements' ends; a product with a
        # negative factor falls as another one grows.
        is_monotone = operator != "ReduceProd" or value.least >= 0
        if is_monotone:
            try:
                return ValueInterval.of(
                    *(
                        reduce(ends, axis=axes or None, keepdims=keeps)
                        for ends in (value.low, value.high)
                    )
                )
            except (ValueError, TypeError):
                return None
    if operator == "ReduceSum":
        return _sum(known)
    return known.value.uniform() if operator != "ReduceProd" else None


def _sum(known: Known) -> ValueInterval:
    """The sum of some of the elements, at most of all."""
    count, value = known.most_elements, known.value
    most = inf if count is None else float(count)
    # Some elements may be left out, so an end of one sign is that of none of them.
    return ValueInterval.of(
        0 if value.least >= 0 else most * value.least, 0 if value.most <= 0 else most * value.most
    )


_REDUCTIONS: Final[Mapping[str, Callable[..., Ends]]] = {
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
}


def _shape(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    known = inputs[0]
    if known is None or known.dims is None:
        return ValueInterval.of(0, inf)
    start, stop = attributes.get("start", 0), attributes.get("end", len(known.dims))
    if not isinstance(start, int) or not isinstance(stop, int):
        return None
    return _ends(known.dims[start:stop])


def _ends(dims: DimIntervals) -> ValueInterval:
    highs = [inf if dim.high is None else dim.high for dim in dims]
    found = ValueInterval.of([dim.low for dim in dims], highs)
    return replace(found, names=np.array([dim.name for dim in dims], object))


def _size(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    known = inputs[0]
    if known is None:
        return None
    least = 0 if known.dims is None else prod(dim.low for dim in known.dims)
    most = known.most_elements
    return ValueInterval.of(least, inf if most is None else most)


def _index_of(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    """ArgMax and ArgMin: an index along the axis."""
    known = inputs[0]
    axis = _axis(attributes.get("axis", 0))
    if known is None or known.dims is None or not -len(known.dims) <= axis < len(known.dims):
        return ValueInterval.of(0, inf)
    high = known.dims[axis].high
    return ValueInterval.of(0, inf if high is None else max(high - 1, 0))


def _coordinates(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    """NonZero: an index along any axis."""
    known = inputs[0]
    if known is None or known.dims is None:
        return ValueInterval.of(0, inf)
    highs = [inf if dim.high is None else dim.high for dim in known.dims]
    return ValueInterval.of(0, max(max(highs, default=1) - 1, 0))


def _range(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    # A range goes from the start towards the limit and never beyond it.
    start, limit, _ = inputs
    return _union((start, limit))


def _cumulative(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    return None if inputs[0] is None else _sum(inputs[0])


def _filled(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    """ConstantOfShape: one number everywhere."""
    value = attributes.get("value")
    return ValueInterval.of(value, value) if isinstance(value, int | float) else None


def _scattered(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    if attributes.get("reduction", "none") != "none":
        return None
    # Which elements are replaced depends on the indices, which data decide.
    return _union((inputs[0], inputs[2]))


def _reduction(operator: str) -> Rule:
    return lambda inputs, attributes: _reduced(inputs, attributes, operator)


def _summed(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    """Sum of any number of inputs."""
    return None if None in inputs else _ADD(inputs, attributes)


def _averaged(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:
    """Mean of any number of inputs."""
    found = _summed(inputs, attributes)
    count = len(inputs)
    return None if found is None else ValueInterval.of(found.low / count, found.high / count)


def _mean(inputs: Inputs, attributes: Attributes) -> ValueInterval | None:  # noqa: ARG001 - a rule like the others
    """ReduceMean: between the least and the most element; of none it is no number."""
    known = inputs[0]
    if known is None or known.dims is None or any(dim.low == 0 for dim in known.dims):
        return None
    return known.value.uniform()


_ADD: Final = _of_two(lambda a, b: a.low + b.low, lambda a, b: a.high + b.high)
_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "Abs": _abs,
        "Add": _added(1, _ADD),
        "And": _of_two(
            lambda a, b: np.minimum(a.low, b.low), lambda a, b: np.minimum(a.high, b.high)
        ),
        "ArgMax": _index_of,
        "ArgMin": _index_of,
        "BitShift": _bit_shift,
        "Ceil": _each(np.ceil),
        "Clip": _clip,
        "Concat": _concat,
        "ConstantOfShape": _filled,
        "CumSum": _cumulative,
        "Div": _div,
        "Equal": _compared(
            lambda a, b: (a.low == a.high) & (b.low == b.high) & (a.low == b.low),
            lambda a, b: (a.high < b.low) | (a.low > b.high),
        ),
        "Exp": _each(np.exp),
        "Expand": _expand,
        "Floor": _each(np.floor),
        "Gather": _gather,
        "Greater": _compared(lambda a, b: a.low > b.high, lambda a, b: a.high <= b.low),
        "GreaterOrEqual": _compared(lambda a, b: a.low >= b.high, lambda a, b: a.high < b.low),
        "Less": _compared(lambda a, b: a.high < b.low, lambda a, b: a.low >= b.high),
        "LessOrEqual": _compared(lambda a, b: a.high <= b.low, lambda a, b: a.low > b.high),
        "Log": _each(lambda ends: np.log(np.maximum(ends, 0))),
        "Max": _of_two(
            lambda a, b: np.maximum(a.low, b.low), lambda a, b: np.maximum(a.high, b.high)
        ),
        "Mean": _averaged,
        "Min": _of_two(
            lambda a, b: np.minimum(a.low, b.low), lambda a, b: np.minimum(a.high, b.high)
        ),
        "Mod": _mod,
        "Mul": _of_two(
            lambda a, b: np.minimum.reduce(_products(a, b)),
            lambda a, b: np.maximum.reduce(_products(a, b)),
        ),
        "Neg": _neg,
        "NonZero": _coordinates,
        "Not": lambda inputs, _: (
            None
            if inputs[0] is None
            else ValueInterval.of(1 - inputs[0].value.high, 1 - inputs[0].value.low)
        ),
        "Or": _of_two(
            lambda a, b: np.maximum(a.low, b.low), lambda a, b: np.maximum(a.high, b.high)
        ),
        "Pow": _pow,
        "Range": _range,
        "ReduceMax": _reduction("ReduceMax"),
        "ReduceMean": _mean,
        "ReduceMin": _reduction("ReduceMin"),
        "ReduceProd": _reduction("ReduceProd"),
        "ReduceSum": _reduction("ReduceSum"),
        "Relu": _each(lambda ends: np.maximum(ends, 0)),
        "Reshape": _reshape,
        "Round": _each(np.round),
        "ScatterElements": _scattered,
        "ScatterND": _scattered,
        "Shape": _shape,
        "Size": _size,
        "Slice": _slice,
        "Sqrt": _each(lambda ends: np.sqrt(np.maximum(ends, 0))),
        "Squeeze": _squeeze,
        "Sub": _added(-1, _of_two(lambda a, b: a.low - b.high, lambda a, b: a.high - b.low)),
        "Sum": _summed,
        "Transpose": _transpose,
        "Unsqueeze": _unsqueeze,
        "Where": _where,
    }
)
