"""A node with the intervals of its inputs, as the rules of operators read it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from onnxmem.model.graph import Node
from onnxmem.model.intervals.interval import (
    DimInterval,
    DimIntervals,
    Known,
    Term,
    end,
)
from onnxmem.model.intervals.values import integers

Found = Sequence[DimIntervals | None]


@dataclass(frozen=True, slots=True)
class Site:
    """A node with what is known of its inputs."""

    node: Node
    inputs: tuple[Known | None, ...]

    def known(self, index: int) -> Known | None:
        """An input; ``None`` if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def dims(self, index: int) -> DimIntervals | None:
        """The dims of an input; ``None`` if its rank is unknown."""
        known = self.known(index)
        return None if known is None else known.dims

    def most_elements(self, index: int) -> int | None:
        """The upper end of the number of elements of an input."""
        known = self.known(index)
        return None if known is None else known.most_elements

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        value = self.node.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def numbers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """An attribute of integers."""
        value = self.node.attributes.get(name)
        return tuple(int(each) for each in value) if isinstance(value, tuple) else default

    def integers(self, name: str, index: int) -> tuple[int, ...] | None:
        """Integers from an attribute, or from an input; ``None`` if they are unknown."""
        value = self.node.attributes.get(name)
        if isinstance(value, tuple):
            return tuple(int(each) for each in value)
        return integers(self.known(index))

    def axis(self, rank: int, default: int = 0) -> int | None:
        """The attribute ``axis``, counted from the front; ``None`` if it is out of range."""
        axis = self.integer("axis", default)
        return axis % rank if -rank <= axis < rank else None

    def dim(self, output: int, axis: int, low: int, high: int | None) -> DimInterval:
        """A dim of an output."""
        # An interval of one number is that number, under no name.
        if high is not None and low >= high:
            return DimInterval.exact(high)
        return DimInterval(low, high, self._name(output, axis))

    def _name(self, output: int, axis: int) -> str:
        named = self.node.outputs[output] if output < len(self.node.outputs) else ""
        return f"{named}:{axis}" if named else f"{self.node.name}/{output}:{axis}"

    def values(self, index: int) -> DimIntervals | None:
        """The elements of an input as dims; ``None`` if not each has an interval."""
        known = self.known(index)
        if known is None or known.elements is None:
            return None
        value = known.elements
        rows = zip(value.low.ravel(), value.high.ravel(), value.all_names.ravel(), strict=True)
        # -1 stands for any negative number: rules only read whether a lower end is negative.
        return tuple(
            DimInterval(int(low) if isfinite(low) else -1, end(high), name or self._name(0, axis))
            if low != high
            else DimInterval.exact(int(low))
            for axis, (low, high, name) in enumerate(rows)
        )

    def term(self, index: int, position: int) -> Term | None:
        """An element of an input as a term."""
        known = self.known(index)
        if known is None or known.elements is None or known.value.terms is None:
            return None
        terms = known.value.terms.ravel()
        return terms[position] if position < len(terms) else None


Rule = Callable[[Site], Found]


def as_dim(dim: DimInterval) -> DimInterval:
    """A value as a dim, which is not negative."""
    return replace(dim, low=max(dim.low, 0))
