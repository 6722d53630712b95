"""The types of this package: the interval of a dim, of elements, and what is known of a tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, prod
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from onnxmem.model.bounds import BOUNDS
from onnxmem.model.graph import DType, Tensor
from onnxmem.ops.spec import Dims, known_dims

Ends = npt.NDArray[np.float64]
"""Lower or upper ends of elements; infinite where there is none."""

_MOST_TERMS: Final = 16
"""Elements of a tensor that are followed as terms: of shapes, starts and stops."""
_EXACT: Final = 2**53
"""Larger integers are rounded in a float64: an end beyond it is infinite."""


@dataclass(frozen=True, slots=True)
class Term:
    """An integer that data decide: another one, and what is added to it."""

    symbol: str
    """``TENSOR[INDEX]`` of an element, ``TENSOR:AXIS`` of a dim, where it first occurs: one number
    for one symbol in every run."""
    added: int


@dataclass(frozen=True, slots=True)
class DimInterval:
    """The least and the largest number of a dim."""

    low: int
    high: int | None
    """``None``: no rule bounds it."""
    name: str = ""
    """``TENSOR:AXIS``, where the dim first occurs; dims of one name are equal in every run. Empty
    for a number."""
    term: Term | None = None
    """The dim as another one and what is added to it; ``None``: no such is known."""

    @classmethod
    def exact(cls, number: int) -> Self:
        """A dim that is known."""
        return cls(number, number)

    @property
    def number(self) -> int | None:
        """The dim, if both ends are the same."""
        return self.low if self.low == self.high else None

    def named(self, name: str) -> Self:
        """A dim of the same interval that may be another number."""
        return self if self.number is not None else replace(self, name=name, term=None)

    def after(self, source: "DimInterval", added: int) -> Self:
        """The dim where it is known to be another one and a number."""
        if self.number is not None or source.number is not None:
            return self
        before = source.term or Term(source.name, 0)
        return replace(self, term=replace(before, added=before.added + added))

    def added_to(self, source: "DimInterval") -> int | None:
        """What is added to another dim to have this one; ``None``: that is not known."""
        if self == source:
            return 0
        is_sum = self.term is not None and self.term.symbol == source.name
        return self.term.added if self.term is not None and is_sum else None

    def limited(self, low: int, high: int | None) -> Self:
        """The dim within another interval too; an upper end below the lower one wins."""
        most = least(self.high, high)
        most = None if most is None else max(most, 0)
        fewest = max(self.low, low)
        return replace(self, low=fewest if most is None else min(fewest, most), high=most)


DimIntervals = tuple[DimInterval, ...]


@dataclass(frozen=True, slots=True)
class ValueInterval:
    """The least and the largest value of the elements of a tensor.

    Both ends have the tensor's shape, or are scalars that hold for every element of a tensor that
    is large or of unknown shape.
    """

    low: Ends
    high: Ends
    names: npt.NDArray[np.object_] | None = None
    """The names of the dims that the elements are, "" for others; ``None``: they are no dims."""
    terms: npt.NDArray[np.object_] | None = None
    """The elements as terms, ``None`` for others; ``None``: none of them is a term."""

    @classmethod
    def of(cls, low: npt.ArrayLike, high: npt.ArrayLike) -> Self:
        """An interval of these ends; ends that a float64 does not represent are infinite."""
        # What is no number bounds nothing.
        least, most = np.asarray(low, np.float64), np.asarray(high, np.float64)
        return cls(
            # Beyond 2^53 a float64 no longer tells neighboring integers apart.
            np.where(np.isnan(least) | (least < -_EXACT), -inf, least),
            np.where(np.isnan(most) | (most > _EXACT), inf, most),
        )

    @classmethod
    def any_of(cls, dtype: DType | None) -> Self:
        """The values of a type."""
        return cls.of(*_LIMITS.get(dtype, (-inf, inf)))

    @property
    def least(self) -> float:
        """The lower end of all elements."""
        return float(self.low.min(initial=inf)) if self.low.size else -inf

    @property
    def most(self) -> float:
        """The upper end of all elements."""
        return float(self.high.max(initial=-inf)) if self.high.size else inf

    def uniform(self) -> "ValueInterval":
        """One interval for every element."""
        return self if self.low.ndim == 0 else ValueInterval.of(self.least, self.most)

    def shaped(self, dims: Dims | None) -> "ValueInterval":
        """The interval as that of a tensor of these dims: of each element, if they are few."""
        if dims is None or prod(dims) > BOUNDS.elements:
            return self.uniform()
        if any(not 0 <= dim <= BOUNDS.elements for dim in dims):
            return self.uniform()
        if self.low.shape == self.high.shape == dims:
            return self
        # Elements of other dims than the value's: each is somewhere between the ends of all.
        whole = self.uniform()
        return ValueInterval(np.full(dims, whole.low), np.full(dims, whole.high))

    @property
    def all_names(self) -> npt.NDArray[np.object_]:
        """The names of the dims that the elements are."""
        return np.full(self.low.shape, "", object) if self.names is None else self.names

    @property
    def all_terms(self) -> npt.NDArray[np.object_]:
        """The elements as terms, ``None`` for others."""
        return np.full(self.low.shape, None, object) if self.terms is None else self.terms

    def as_terms(self, name: str) -> "ValueInterval":
        """The same where each element that is no term is one of its own."""
        # Terms are for shapes and the like: an exact value needs none, and a long one is data.
        if self.low.size > _MOST_TERMS or np.array_equal(self.low, self.high):
            return self
        if self.terms is not None and None not in self.terms:
            return self
        terms = self.all_terms.copy().ravel()
        for index, term in enumerate(terms):
            terms[index] = term or Term(f"{name}[{index}]", 0)
        return replace(self, terms=terms.reshape(self.low.shape))

    def within(self, other: "ValueInterval") -> bool:
        """Whether every value of this interval is one of another."""
        return self.least >= other.least and self.most <= other.most


_LIMITS: Final[Mapping[DType | None, tuple[float, float]]] = {
    None: (-inf, inf),
    DType.BOOL: (0, 1),
    DType.UINT8: (0, 255),
    DType.INT8: (-128, 127),
    DType.UINT16: (0, 2**16 - 1),
    DType.INT16: (-(2**15), 2**15 - 1),
    DType.UINT32: (0, 2**32 - 1),
    DType.UINT64: (0, inf),
}


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a tensor before a run."""

    dtype: DType | None
    dims: DimIntervals | None
    """``None``: unknown rank."""
    value: ValueInterval = field(default_factory=lambda: ValueInterval.of(-inf, inf))
    max_elements: int | None = None
    """An upper end of the number of elements that may be below the product of those of the dims:
    a Reshape has the elements of its input."""
    count: DimInterval | None = None
    """Of a sequence: its length; all else is that of any element. ``None``: a tensor."""
    whole: int | None = None
    """Of a sequence: an upper end of the elements of all its tensors that may be below its length
    times those of any: pieces of a tensor have its elements."""

    @classmethod
    def of(cls, tensor: Tensor, value: ValueInterval | None = None) -> Self:
        """The shape that a graph has for a tensor."""
        dims = None if tensor.shape is None else numbered(tensor.shape, tensor.name)
        found = value or ValueInterval.any_of(tensor.dtype)
        return cls(tensor.dtype, dims, found.shaped(known_dims(tensor.shape)))

    @property
    def most_elements(self) -> int | None:
        """The upper end of the number of elements; ``None``: unbounded."""
        return least(self.max_elements, None if self.dims is None else product(self.dims))

    @property
    def most_in_all(self) -> int | None:
        """The upper end of the elements of a tensor, or of all tensors of a sequence."""
        if self.count is None:
            return self.most_elements
        # Either bound may be the tighter one.
        return least(self.whole, times(self.count.high, self.most_elements))

    @property
    def exact_dims(self) -> Dims | None:
        """The dims, if all are known."""
        return None if self.dims is None else exact(self.dims)

    @property
    def elements(self) -> ValueInterval | None:
        """The value, if each element has an interval of its own."""
        return self.value if self.value.low.shape == self.exact_dims else None

    @property
    def exact(self) -> Ends | None:
        """The elements, if all are known."""
        value = self.elements
        return value.low if value is not None and np.array_equal(value.low, value.high) else None


def numbered(shape: Sequence[int | None], name: str) -> DimIntervals:
    """The dims of a shape; one that is not known is any number, and named after its axis."""
    return tuple(
        DimInterval(0, None, f"{name}:{axis}") if dim is None else DimInterval.exact(dim)
        for axis, dim in enumerate(shape)
    )


def exact(dims: DimIntervals) -> Dims | None:
    """The dims as numbers, if all are known."""
    numbers = tuple(dim.number for dim in dims)
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) else None


def product(dims: Sequence[DimInterval]) -> int | None:
    """The upper end of the number of elements of a shape; ``None``: unbounded."""
    return times(*(dim.high for dim in dims))


def times(*ends: int | None) -> int | None:
    """The product of upper ends; ``None``: one is infinite, and none is 0."""
    finite = [each for each in ends if each is not None]
    # A dim of 0 leaves no element, however large the others are.
    return prod(finite) if len(finite) == len(ends) or 0 in finite else None


def least(*ends: int | None) -> int | None:
    """The least of upper ends; ``None``: all are infinite."""
    return min((each for each in ends if each is not None), default=None)


def total(*ends: int | None) -> int | None:
    """The sum of upper ends; ``None``: one is infinite."""
    finite = [each for each in ends if each is not None]
    return sum(finite) if len(finite) == len(ends) else None


def start(number: float) -> int:
    """A lower end as the number of a dim: 0 where there is none."""
    return max(int(number), 0) if isfinite(number) else 0


def end(number: Any) -> int | None:  # noqa: ANN401 - a float of numpy or Python
    """An upper end as the number of a dim; ``None``: infinite."""
    return None if number == inf else max(int(number), 0)


def join(one: DimInterval, other: DimInterval, name: str) -> DimInterval:
    """A dim that is one of two; ``name`` is that of the joined dim if they may differ."""
    if one == other:
        return one
    # The joined dim may differ from both, so it has a name of its own.
    high = None if one.high is None or other.high is None else max(one.high, other.high)
    return DimInterval(min(one.low, other.low), high, name)


def joined(one: Known, other: Known, name: str) -> Known:
    """What is known of a tensor that is one of two, as the output of an If."""
    value = (
        one.value
        if one.value is other.value
        else ValueInterval.of(
            min(one.value.least, other.value.least), max(one.value.most, other.value.most)
        )
    )
    dtype = one.dtype or other.dtype
    count = None
    if one.count is not None and other.count is not None:
        count = join(one.count, other.count, f"{name}:length")
        # An empty sequence says nothing of its elements.
        for each, rest in ((one, other), (other, one)):
            if each.count == DimInterval.exact(0):
                return replace(rest, count=count)
    dims, counts = None, [one.most_elements, other.most_elements]
    if one.dims is not None and other.dims is not None and len(one.dims) == len(other.dims):
        pairs = enumerate(zip(one.dims, other.dims, strict=True))
        dims = tuple(join(*pair, f"{name}:{axis}") for axis, pair in pairs)
    most = most_of(counts)
    whole = None if count is None else most_of([one.most_in_all, other.most_in_all])
    return Known(dtype, dims, value, most, count, whole)


def most_of(ends: Sequence[int | None]) -> int | None:
    """The largest of upper ends; ``None``: one is infinite."""
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None


def renamed(known: Known, name: str) -> Known:
    """The same with names of its own: elements of one sequence may differ."""
    if known.dims is None:
        return known
    dims = tuple(dim.named(f"{name}:{axis}") for axis, dim in enumerate(known.dims))
    return replace(known, dims=dims)
