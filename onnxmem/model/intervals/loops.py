"""The iterations of a Loop or a Scan: how many there are at most, and what they carry.

1. A Loop runs at most its trip count; without one, as often as a counter that its condition
   compares allows.
2. A value that a Loop carries and that grows is followed from iteration to iteration. After some
   iterations it is extended as a line, which is verified where the loop ends; if it isn't one, the
   dim has no bound.
3. After a known number of iterations, a dim to which each of them adds the same number is known
   too. Then the body has the shapes of the last iteration, if none of its tensors was larger.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite
from typing import Final

import numpy as np

from onnxmem.model.control_flow import least_trips, runs_to_limit, trip_count
from onnxmem.model.graph import DType, Graph, Node
from onnxmem.model.intervals.interval import (
    DimInterval,
    Known,
    ValueInterval,
    end,
    joined,
    least,
    renamed,
    start,
    times,
    total,
)
from onnxmem.model.intervals.tensors import TensorIntervals, as_terms

_MAX_STEPS: Final = 1_000
"""Nodes that are visited for the iterations of one Loop, before a line is drawn."""

_ORDERED: Final = frozenset({DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64})
"""Types to which a counter is converted without an overflow."""

_MAX_ALL_STEPS: Final = 8_000
"""Nodes that are visited for all iterations of a model, which multiply where loops are nested; past
them nothing is known of what a Loop carries."""

_LEAST_ROUNDS: Final = 4
"""Iterations that are followed before a line is drawn through the last three."""

_HUGE: Final = 2**31 - 1
"""A trip count that exporters write for "no limit": the largest int32 or int64."""


@dataclass(slots=True)
class Iterations:
    """The iterations of a Loop or a Scan."""

    tensors: TensorIntervals
    walk: Callable[[Graph], None]
    """Finds the intervals of all outputs of a graph's nodes."""
    graph: Graph
    node: Node
    body: Graph = field(init=False)

    def __post_init__(self) -> None:
        self.body = self.node.subgraphs[0][1]

    def outputs(self) -> list[Known | None]:
        """The carried values after the last iteration, and the stacked outputs of all."""
        trips = self._trips()
        passed, states = self._passed(trips)
        if self.tensors.body_steps > _MAX_ALL_STEPS:
            return self._unfollowed(passed, states)
        after = self._run(passed, states)
        # What one iteration leaves as it was, all of them do.
        if all(_is_same(one, two) for one, two in zip(states, after, strict=False)):
            return self._collected(trips, states, after)
        tensors, first = self.tensors, states
        noted = dict(tensors.unbounded), dict(tensors.data_dims)
        states, after = self._widened(trips, passed, first)
        found = self._collected(trips, states, after)
        if not trips.number:
            return found
        # With a known number of iterations, what each of them adds to a dim gives the dim after the
        # last, not only its upper end.
        changes = [_additions(*row) for row in zip(states, after, strict=True)]
        num_carried, count = len(first), trips.number
        grown = [
            known and _after(known, begin, added, count)
            for known, begin, added in zip(found, first, changes, strict=False)
        ]
        if all(known is not None and known.exact_dims is not None for known in grown):
            last = [_after(*row, count - 1) for row in zip(states, first, changes, strict=True)]
            if self.node.onnx_op == "Loop":
                passed[0] = replace(passed[0], value=ValueInterval.of(count - 1, count - 1))
            self._walk_last(passed, last, noted)
        return [*grown, *found[num_carried:]]

    def _unfollowed(self, passed: Sequence[Known], states: Sequence[Known]) -> list[Known | None]:
        """The outputs if nothing is known of any iteration: the body is walked once."""
        states = [_anything(each) for each in states]
        before, self.tensors.distrusts = self.tensors.distrusts, True
        after = self._run(passed, states)
        self.tensors.distrusts = before
        return self._collected(DimInterval(0, None, f"{self.node.name}:iterations"), states, after)

    def _collected(
        self, trips: DimInterval, states: Sequence[Known], after: Sequence[Known]
    ) -> list[Known | None]:
        """The outputs by the carried values and by what each iteration adds."""
        results = [self.tensors.of(name) for name in self.body.outputs[self._num_conditions :]]
        count = len(states)
        found: list[Known | None] = []
        for name, before, one in zip(self.node.outputs, states, after, strict=False):
            # A Loop without an iteration returns what it was given.
            found.append(before if _is_same(before, one) else joined(before, one, name))
        axes = self.node.attributes.get("scan_output_axes", ())
        for index, each in enumerate(results[count:]):
            axis = axes[index] if isinstance(axes, tuple) and index < len(axes) else 0
            output = (
                self.node.outputs[count + index] if count + index < len(self.node.outputs) else ""
            )
            found.append(_stacked(each, trips, output, int(axis)))
        return found

    def _run(self, passed: Sequence[Known], states: Sequence[Known]) -> list[Known]:
        """Walk the body; returns the carried values after it."""
        inputs = [*passed[:2], *states] if self.node.onnx_op == "Loop" else [*states, *passed]
        for name, known in zip(self.body.inputs, inputs, strict=False):
            # A term of an earlier iteration is another number than that of its symbol in this one.
            plain = replace(known, value=replace(known.value, terms=None))
            self.tensors.known[name] = as_terms(plain, name)
            if self.tensors.distrusts:
                self.tensors.changing.add(name)
        self.walk(self.body)
        names = self.body.outputs[self._num_conditions :][: len(states)]
        return [self.tensors.of(name) for name in names]

    def _passed(self, trips: DimInterval) -> tuple[list[Known], list[Known]]:
        """What each iteration gets: of a Loop its number and condition, of a Scan slices; and the
        values carried into the first one.
        """
        node, tensors = self.node, self.tensors
        if node.onnx_op == "Loop":
            most = inf if trips.high is None else max(trips.high - 1, 0)
            # Iterations count from 0, so the last has one less than there are.
            number = Known(DType.INT64, (), ValueInterval.of(0, most))
            going = Known(DType.BOOL, (), ValueInterval.of(0, 1))
            # The elements of all tensors of a sequence may be others after an iteration.
            carried = [replace(tensors.of(name), whole=None) for name in node.inputs[2:]]
            return [number, going], carried
        count = self._num_scanned
        split = len(node.inputs) - count
        axes = node.attributes.get("scan_input_axes", ())
        slices = []
        for index, name in enumerate(node.inputs[split:]):
            known, inner = tensors.of(name), self.body.inputs[split + index]
            axis = int(axes[index]) if isinstance(axes, tuple) and index < len(axes) else 0
            dims = known.dims
            if dims is not None and -len(dims) <= axis < len(dims):
                axis %= len(dims)
                dims = (*dims[:axis], *dims[axis + 1 :])
            slices.append(renamed(Known(known.dtype, dims, known.value.uniform()), inner))
        return slices, [tensors.of(name) for name in node.inputs[:split]]

    @property
    def _num_conditions(self) -> int:
        """Outputs of the body before the carried values: of a Loop, whether it goes on."""
        return 0 if self.node.onnx_op == "Scan" else 1

    @property
    def _num_scanned(self) -> int:
        count = self.node.attributes.get("num_scan_inputs", 0)
        return count if isinstance(count, int) else 0

    def _trips(self) -> DimInterval:
        """The number of iterations."""
        node, tensors = self.node, self.tensors
        name = f"{node.name}:iterations"
        exact = trip_count(self.graph, node)
        if node.onnx_op == "Scan":
            scanned = tensors.of(node.inputs[-self._num_scanned]) if self._num_scanned else None
            axes = node.attributes.get("scan_input_axes", (0,))
            axis = int(axes[0]) if isinstance(axes, tuple) and axes else 0
            if (
                scanned is not None
                and scanned.dims
                and -len(scanned.dims) <= axis < len(scanned.dims)
            ):
                return scanned.dims[axis]
            return DimInterval(0, None, name)
        if exact is not None:
            return DimInterval.exact(exact)
        limit = tensors.of(node.inputs[0]).value if node.inputs and node.inputs[0] else None
        most = None if limit is None else end(limit.most)
        # Such a limit would bound the sizes of outputs by numbers that no run reaches.
        if most is not None and most >= _HUGE:
            most = None
        fewest = least_trips(self.graph, node)
        if limit is not None and runs_to_limit(self.graph, node):
            fewest = max(fewest, start(limit.least))
        found = DimInterval(fewest, least(most, self._counted()), name)
        if name in tensors.limits and tensors.is_kept(name, fewest):
            found = found.limited(*tensors.limits[name])
        tensors.iterations[node.name] = found.high
        return found

    def _counted(self) -> int | None:
        """The most iterations that a condition on a counter allows: ``Less(counter, limit)``."""
        rows = zip(self.body.inputs[2:], self.node.inputs[2:], self.body.outputs[1:], strict=False)
        carried = {name: (outer, after) for name, outer, after in rows}
        return self._most_true(self.body.outputs[0], carried)

    def _most_true(self, condition: str, carried: Mapping[str, tuple[str, str]]) -> int | None:
        """The most iterations while a condition holds; ``None``: that is not known."""
        node = self._producers.get(condition)
        if node is None:
            return None
        # The first operand that fails ends the loop, so any known bound holds, and the least one
        # best.
        if node.onnx_op == "And":
            return least(*(self._most_true(name, carried) for name in node.inputs))
        if node.onnx_op in {"Cast", "Identity", "Squeeze", "Reshape"}:
            return self._most_true(node.inputs[0], carried)
        if node.onnx_op == "If":
            # ``a and b`` of a script: a branch that is false ends the loop.
            ends = [body.outputs[0] for _, body in node.subgraphs if body.outputs]
            limits = [self._most_true(name, carried) for name in ends if not self._is_false(name)]
            known = [limit for limit in limits if limit is not None]
            return max(known, default=1) if len(known) == len(limits) else None
        return self._most_compared(node, carried)

    def _most_compared(self, node: Node, carried: Mapping[str, tuple[str, str]]) -> int | None:
        """The same of a comparison of a counter with a limit."""
        if node.onnx_op not in {"Less", "LessOrEqual", "Greater", "GreaterOrEqual"}:
            return None
        is_less = node.onnx_op.startswith("Less")
        counter, limit = node.inputs if is_less else node.inputs[::-1]
        most = self._most_limit(limit, carried)
        if most is None:
            return None
        # The last iteration is the one that finds the condition false.
        return self._most_counts(counter, most + node.onnx_op.endswith("Equal"), carried)

    def _is_false(self, name: str) -> bool:
        """Whether a condition never holds."""
        source = self._source(name)
        is_fixed = self._is_fixed(source) and source not in self.body.inputs
        return is_fixed and self.tensors.of(source).value.most <= 0

    @property
    def _producers(self) -> Mapping[str, Node]:
        """The nodes of the body and of the branches in it, by their outputs."""
        return {name: node for node in self.body.all_nodes() for name in node.outputs}

    def _most_counts(
        self, counter: str, limit: int, carried: Mapping[str, tuple[str, str]]
    ) -> int | None:
        """How many iterations there are if they go on while a counter is below a limit.

        In iteration i the counter is first + i x growth at least.
        """
        name = self._uncast(counter)
        step, added = self._producers.get(name), 0.0
        if step is not None and step.onnx_op == "Add":
            # The condition may be computed after the counter grew.
            # The iteration number is a counter, too: it begins at 0 and grows by 1.
            counters = {*carried, self.body.inputs[0]}
            name = next((each for each in step.inputs if each in counters), "")
            other = step.inputs[1] if step.inputs[0] == name else step.inputs[0]
            added = self.tensors.of(other).value.least if self._is_fixed(other) else -inf
        first, growth = 0.0, 1.0
        if name != self.body.inputs[0]:
            outer, after = carried.get(name, ("", ""))
            found = self._growth(name, after)
            if not outer or found is None:
                return None
            first, growth = self.tensors.of(outer).value.least, found
        first += added
        if not isfinite(first) or not isfinite(growth):
            return None
        # A sum of fractions may be rounded down.
        rounded = 0 if first.is_integer() and growth.is_integer() else 1
        return max(ceil((limit - first) / growth), 0) + 1 + rounded

    def _most_limit(self, limit: str, carried: Mapping[str, tuple[str, str]]) -> int | None:
        """The upper end of a limit, if no iteration changes it."""
        limit = self._source(limit)
        if limit in carried:
            outer, after = carried[limit]
            if self._source(after) != limit:
                return None
            limit = outer
        elif limit in self.body.inputs or not self._is_fixed(limit):
            return None
        most = self.tensors.of(limit).value.most
        return ceil(most) if isfinite(most) else None

    def _is_fixed(self, name: str) -> bool:
        """Whether a tensor is of an enclosing graph, or a constant of the body."""
        producer = self._producers.get(name)
        return producer is None or producer.onnx_op == "Constant"

    def _source(self, name: str) -> str:
        """The tensor that an Identity passes on."""
        producers = self._producers
        while name in producers and producers[name].onnx_op == "Identity":
            name = producers[name].inputs[0]
        return name

    def _uncast(self, name: str) -> str:
        """The counter of which a number is a conversion that keeps the order of numbers."""
        node = self._producers.get(name)
        while node is not None and node.onnx_op in {"Cast", "Identity"}:
            if node.onnx_op == "Cast" and self.tensors.of(name).dtype not in _ORDERED:
                return name
            name = node.inputs[0]
            node = self._producers.get(name)
        return name

    def _growth(self, name: str, after: str) -> float | None:
        """What an iteration adds to a counter at least; ``None``: it may not grow."""
        node = self._producers.get(self._source(after))
        if node is None or node.onnx_op != "Add" or name not in node.inputs:
            return None
        other = node.inputs[1] if node.inputs[0] == name else node.inputs[0]
        if not self._is_fixed(other):
            return None
        least = self.tensors.of(other).value.least
        return least if least > 0 and other not in self.body.inputs else None

    def _widened(
        self, trips: DimInterval, passed: Sequence[Known], first: Sequence[Known]
    ) -> tuple[list[Known], list[Known]]:
        """The carried values before and after any iteration."""
        tensors, names = self.tensors, self.body.inputs
        names = names[-len(first) :] if self.node.onnx_op == "Loop" else names[: len(first)]
        before, tensors.distrusts = tensors.distrusts, True
        noted = dict(tensors.unbounded), dict(tensors.data_dims)
        last_step = min(tensors.body_steps + _MAX_STEPS, _MAX_ALL_STEPS)
        # An element that was a dim before the first iteration may be another number after it.
        states = [
            replace(found := renamed(each, name), value=replace(found.value, names=None))
            for each, name in zip(first, names, strict=False)
        ]
        history = [states]
        # ``states`` has any state before one of the first ``len(history)`` iterations.
        while trips.high is None or len(history) < trips.high:
            after = self._run(passed, states)
            wider = [_union(*row) for row in zip(states, after, names, strict=False)]
            # What an iteration starts from includes what it ends with, so no later one leaves it.
            if all(_is_within(one, two) for one, two in zip(wider, states, strict=True)):
                break
            states = wider
            history.append(states)
            is_over = trips.high is None or tensors.body_steps > last_step
            if is_over and len(history) >= _LEAST_ROUNDS:
                states = self._extended(trips, passed, history)
                break
        tensors.unbounded, tensors.data_dims = noted
        # From here on the body's shapes hold for every iteration.
        after = self._run(passed, states)
        tensors.distrusts = before
        return states, after

    def _walk_last(
        self,
        passed: Sequence[Known],
        last: Sequence[Known],
        noted: tuple[Mapping[str, None], Mapping[str, int]],
    ) -> None:
        """Walk the body of the last iteration, before which the carried values are ``last``.

        The body keeps the shapes of any iteration if one of its tensors was larger in another one.
        ``noted`` are the dims without an end, and those that data decide, before this Loop.
        """
        tensors = self.tensors
        names = {each for node in self.body.all_nodes() for each in node.outputs if each}
        of_any = tensors.unbounded, tensors.data_dims, dict(tensors.known)
        iterations = dict(tensors.iterations)
        tensors.unbounded, tensors.data_dims = dict(noted[0]), dict(noted[1])
        before, tensors.distrusts = tensors.distrusts, True
        self._run(passed, last)
        # A Loop in the body may have had more iterations in an earlier one.
        tensors.distrusts, tensors.iterations = before, iterations
        for name in (*names, *self.body.inputs):
            if tensors.of(name).most_in_all != of_any[2][name].most_in_all:
                tensors.unbounded, tensors.data_dims, tensors.known = of_any
                break
        tensors.followed = True

    def _extended(
        self, trips: DimInterval, passed: Sequence[Known], history: Sequence[Sequence[Known]]
    ) -> list[Known]:
        """The carried values before the last iteration, if they grow along lines; a dim that does
        not has no upper end.
        """
        rounds = len(history)
        one, two, three = history[-3], history[-2], history[-1]
        last = None if trips.high is None else trips.high - 1
        rows = list(zip(one, two, three, strict=True))
        states = [_extrapolated(row, last, rounds - 1) for row in rows]
        # Without a last iteration, nothing may grow.
        following = (
            states if last is None else [_extrapolated(row, last + 1, rounds - 1) for row in rows]
        )
        # The lines hold if an iteration that starts from the states before the last one ends within
        # what they say of after it. A value for which that fails loses its ends, which may break
        # the line of another one that is computed from it, hence the repetition.
        for _ in range(_LEAST_ROUNDS):
            after = self._run(passed, states)
            holds = [_is_within(a, b) for a, b in zip(after, following, strict=False)]
            if all(holds):
                return states
            states, following = (
                [
                    each if is_line else _without_ends(each)
                    for each, is_line in zip(row, holds, strict=True)
                ]
                for row in (states, following)
            )
        return [_anything(each) for each in states]


def _stacked(known: Known, trips: DimInterval, name: str, axis: int) -> Known:
    """An output of all iterations."""
    if known.dims is None:
        count = times(known.most_elements, trips.high)
        return Known(known.dtype, None, known.value.uniform(), count)
    inner = tuple(dim.named(f"{name}:{index + 1}") for index, dim in enumerate(known.dims))
    axis = axis + len(inner) + 1 if axis < 0 else axis
    stacked = trips.named(f"{name}:{axis}")
    return Known(known.dtype, (*inner[:axis], stacked, *inner[axis:]), known.value.uniform())


def _is_same(one: Known, other: Known) -> bool:
    """Whether an iteration leaves the shape of a value as it was, and its elements in their
    interval.
    """
    if one.count is not None or other.count is not None:
        return one.count == other.count and one.dims == other.dims
    is_shape = one.dims is not None and one.dims == other.dims
    has_names = one.value.names is None or np.array_equal(one.value.names, other.value.all_names)
    return is_shape and has_names and other.value.within(one.value)


def _additions(before: Known, after: Known) -> list[int | None]:
    """What an iteration adds to each dim of a carried value; ``None``: that is not known."""
    if before.dims is None or after.dims is None or len(before.dims) != len(after.dims):
        return []
    return [two.added_to(one) for one, two in zip(before.dims, after.dims, strict=True)]


def _after(known: Known, first: Known, added: Sequence[int | None], trips: int) -> Known:
    """A carried value after some iterations, of which each adds the same to some dims."""
    if known.dims is None or first.dims is None:
        return known
    if not len(known.dims) == len(first.dims) == len(added):
        return known
    dims = []
    for dim, begin, number in zip(known.dims, first.dims, added, strict=True):
        grown = dim
        if number is not None:
            high = total(begin.high, trips * number)
            grown = replace(dim, low=begin.low + trips * number, high=high)
            grown = grown.after(begin, trips * number)
        dims.append(DimInterval.exact(grown.low) if grown.number is not None else grown)
    return replace(known, dims=tuple(dims))


def _is_within(one: Known, other: Known) -> bool:
    """Whether all that is known of one tensor holds for another too."""
    # Unknown dims include all dims; only a bound on the number of elements can be exceeded.
    if other.dims is None:
        is_inside = other.most_elements is None or _at_most(one.most_elements, other.most_elements)
    elif one.dims is None or len(one.dims) != len(other.dims):
        is_inside = False
    else:
        is_inside = all(
            _at_most(a.high, b.high) and a.low >= b.low
            for a, b in zip(one.dims, other.dims, strict=True)
        ) and (other.max_elements is None or _at_most(one.most_elements, other.max_elements))
    if one.count is not None and other.count is not None:
        is_inside = is_inside and _at_most(one.count.high, other.count.high)
    return is_inside and one.value.within(other.value)


def _at_most(one: int | None, other: int | None) -> bool:
    return other is None or (one is not None and one <= other)


def _union(one: Known, other: Known, name: str) -> Known:
    """Both, with names of its own; elements beyond the interval have any value."""
    found = renamed(joined(one, other, name), name)
    if found.dims is not None and one.dims is not None:
        # The product of the dims is the number of elements unless both say otherwise.
        found = replace(found, max_elements=None)
    found = replace(found, whole=None)
    # Widened at once: an interval that grew by each iteration would take as many steps as there are
    # iterations.
    value = one.value if other.value.within(one.value) else ValueInterval.any_of(found.dtype)
    return replace(found, value=value.shaped(found.exact_dims))


def _extrapolated(row: tuple[Known, Known, Known], number: int | None, last: int) -> Known:
    """What is known before an iteration, by the last three that were followed."""
    one, two, three = row
    if three.count is not None and one.count is not None and two.count is not None:
        counts = (one.count, two.count, three.count)
        three = replace(three, count=_on_line(counts, number, last))
    shapes = (one.dims, two.dims, three.dims)
    if one.dims is None or two.dims is None or three.dims is None:
        return three
    if len({len(dims) for dims in shapes if dims is not None}) > 1:
        return replace(three, dims=None)
    dims = tuple(
        _on_line(each, number, last) for each in zip(one.dims, two.dims, three.dims, strict=True)
    )
    return replace(three, dims=dims, value=three.value.uniform())


def _on_line(
    dims: tuple[DimInterval, DimInterval, DimInterval], number: int | None, last: int
) -> DimInterval:
    highs = [dim.high for dim in dims]
    known = [high for high in highs if high is not None]
    if len(known) < len(highs):
        return replace(dims[-1], high=None)
    one, two, three = known
    if one == two == three:
        return dims[-1]
    if number is None or two - one != three - two:
        return replace(dims[-1], high=None)
    return replace(dims[-1], high=three + (three - two) * max(number - last, 0))


def _anything(known: Known) -> Known:
    """Any value of the type, of any shape; of a sequence, any elements."""
    count = None if known.count is None else DimInterval(0, None, known.count.name)
    return Known(known.dtype, None, ValueInterval.any_of(known.dtype), count=count)


def _without_ends(known: Known) -> Known:
    """The same with no upper end for a dim that is not a number."""
    count = None if known.count is None else replace(known.count, high=None)
    if known.dims is None:
        return replace(known, count=count, max_elements=None)
    dims = tuple(dim if dim.number is not None else replace(dim, high=None) for dim in known.dims)
    return replace(known, dims=dims, count=count, max_elements=None)
