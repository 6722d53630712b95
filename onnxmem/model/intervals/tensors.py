"""The intervals of a graph's tensors while its nodes are walked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.model.intervals.interval import (
    DimInterval,
    Known,
    ValueInterval,
    least,
    numbered,
)
from onnxmem.model.intervals.limits import Limits
from onnxmem.model.intervals.sequences import SEQUENCES
from onnxmem.settings import Values


def as_terms(known: Known, name: str) -> Known:
    """The same where few integers that data decide are terms."""
    if known.dtype is None or not known.dtype.is_integer or known.elements is None:
        return known
    value = known.value.as_terms(name)
    return known if value is known.value else replace(known, value=value)


@dataclass(slots=True)
class TensorIntervals:
    """Mutable: what is known of the tensors so far, within the limits that the user set."""

    main: Graph
    limits: Limits
    values: Mapping[str, Values]
    known: dict[str, Known] = field(default_factory=dict)
    """By the scoped name of the tensor."""
    changing: set[str] = field(default_factory=set)
    """Tensors in the bodies of loops whose shape differs between iterations: the graph has that of
    the first one."""
    distrusts: bool = False
    """Whether the shapes in the graph are those of the first iteration only."""
    data_dims: dict[str, int] = field(default_factory=dict)
    """The least of each dim that data decide, by its name."""
    unbounded: dict[str, None] = field(default_factory=dict)
    learned: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Limits by the names of the dims that they were set for."""
    iterations: dict[str, int | None] = field(default_factory=dict)
    """The most of each Loop whose count the data may decide, by its name; ``None``: unbounded."""
    applied: set[str] = field(default_factory=set)
    """Limits within which a dim was put."""
    beyond: dict[str, int] = field(default_factory=dict)
    """Limits below the least of the dim that they limit, which no run keeps, and that number."""
    followed: bool = False
    """Whether the last iteration of a Loop that changes shapes is known."""
    body_steps: int = 0
    """Nodes that were visited in the bodies of loops."""

    def of(self, name: str) -> Known:
        """What is known of a tensor that exists before a node runs."""
        if name not in self.known:
            tensor = self.main.tensors[name]
            elements = self.main.values.get(name) or self.values.get(name)
            value = None
            if elements is not None and tensor.num_elements is not None:
                # A single element is that of all.
                filled = elements * tensor.num_elements if len(elements) == 1 else elements
                if len(filled) == tensor.num_elements:
                    shape = tuple(dim or 0 for dim in tensor.shape or ())
                    ends = np.array([float(each) for each in filled]).reshape(shape)
                    value = ValueInterval.of(ends, ends)
            self.known[name] = as_terms(Known.of(tensor, value), name)
        return self.known[name]

    def add(
        self, node: Node, found: Sequence[Known | None], inputs: tuple[Known | None, ...]
    ) -> None:
        """Add the outputs of a node, within the shapes of the graph and the limits."""
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            tensor = self.main.tensors[name]
            known = found[index] if index < len(found) else None
            if known is None:
                known = Known(tensor.dtype, None, ValueInterval.any_of(tensor.dtype))
            if known.count is None:
                known = self._limited(tensor, known)
                self._note(tensor, known, inputs)
                if node.subgraphs or node.onnx_op in SEQUENCES:
                    # Its elements are those of one iteration, or of any element of a sequence.
                    known = replace(known, value=replace(known.value, terms=None))
                known = as_terms(known, name)
            self.known[name] = known
            if self.distrusts and tensor.role is Role.ACTIVATION:
                self.changing.add(name)

    def _limited(self, tensor: Tensor, known: Known) -> Known:
        """An output within the shape in the graph and the limits of its dims."""
        dims = known.dims
        if tensor.shape is not None and not self.distrusts:
            # A number in the graph holds in every run. Where it has none, the interval says more.
            of_graph = numbered(tensor.shape, tensor.name)
            if dims is None or len(dims) != len(of_graph):
                dims = of_graph
            else:
                pairs = zip(dims, of_graph, strict=True)
                dims = tuple(one if two.number is None else two for one, two in pairs)
        most = known.max_elements
        if dims is not None:
            # A malformed node may have a dim below 0.
            dims = tuple(
                self._within(tensor, axis, dim.limited(0, None)) for axis, dim in enumerate(dims)
            )
        fewest = prod(dim.low for dim in dims or ())
        if tensor.name in self.limits and self.is_kept(tensor.name, fewest):
            most = least(most, self.limits[tensor.name][1])
        changed = replace(known, dims=dims, max_elements=most)
        if dims == known.dims:
            return changed
        return replace(changed, value=known.value.shaped(changed.exact_dims))

    def is_kept(self, name: str, fewest: int) -> bool:
        """Whether a run may keep a limit of the user; notes one that none keeps."""
        is_kept = self.limits[name][1] >= fewest
        if not is_kept:
            self.beyond[name] = fewest
        return is_kept

    def _within(self, tensor: Tensor, axis: int, dim: DimInterval) -> DimInterval:
        """A dim within the limits that the user set."""
        # A limit may name this dim, or the one that it is equal to. ``learned`` has it under the
        # latter, by which the next walk limits all that are equal to it.
        for name in (f"{tensor.name}:{axis}", dim.name):
            if dim.number is None and name in self.limits and self.is_kept(name, dim.low):
                self.applied.add(name)
                self.learned[dim.name] = self.limits[name]
                dim = dim.limited(*self.limits[name])
        return dim

    def _note(self, tensor: Tensor, known: Known, inputs: tuple[Known | None, ...]) -> None:
        """Note the dims that data decide, and those without an upper end."""
        follows = {dim.name for each in inputs if each and each.dims for dim in each.dims}
        is_lost = any(
            each is not None and each.count is None and each.most_elements is None
            for each in inputs
        )
        for axis, dim in enumerate(known.dims or ()):
            if dim.number is None and dim.name == f"{tensor.name}:{axis}":
                self.data_dims[dim.name] = dim.low
                # A dim of a larger tensor that is unbounded itself follows from it.
                if dim.high is None and known.most_elements is None and not is_lost:
                    self.unbounded[dim.name] = None
        if (
            known.dims is None
            and known.most_elements is None
            and not is_lost
            and not follows & {""}
        ):
            self.unbounded[tensor.name] = None
