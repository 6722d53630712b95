"""How often a Loop runs whose condition follows from a counter, by running its counter alone.

tf2onnx and Keras write ``Less(counter + 1, limit)`` as the condition, with the largest int64 as the
limit of the Loop or the same number once more; JAX's while loops leave that limit out. The rule is
that of https://onnx.ai/onnx/operators/onnx__Loop.html:
``for (int i=0; i < max_trip_count && cond; ++i)``.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Scalar = int | bool

_OPERATORS: Final[Mapping[str, Callable[..., Scalar]]] = {
    "Add": operator.add,
    "And": operator.and_,
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Mul": operator.mul,
    "Not": operator.not_,
    "Or": operator.or_,
    "Sub": operator.sub,
}
_KEEPS_THE_ELEMENT: Final = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Of a tensor with one element."""
SCALAR_OPERATORS: Final = _KEEPS_THE_ELEMENT | _OPERATORS.keys() | {"Cast"}
_MAX_STEPS: Final = 20_000
"""Nodes that are run for one Loop; past these its iterations are not known."""
_LARGEST: Final = 2**31
"""Of a counter: what is larger might wrap around in a narrower type."""

Step = tuple[str, Sequence[str], str]
"""A node's operator, its inputs and its output."""


@dataclass(frozen=True, slots=True)
class LoopBody:
    """The body of a Loop, as far as scalars go."""

    inputs: Sequence[str]
    """The iteration, the condition and the carried values."""
    outputs: Sequence[str]
    """The condition, the carried values and the scan outputs."""
    steps: Sequence[Step]
    """The nodes with one output, in running order."""
    known: Callable[[str], Scalar | None] = field(compare=False)
    """The scalars that no iteration changes."""

    def trips(
        self, limit: int | None, condition: Scalar, initial: Sequence[Scalar | None]
    ) -> int | None:
        """The iterations from the carried scalars' first values; ``None`` where they do not tell.

        ``limit`` is ``None`` where the Loop has none.
        """
        if not condition:
            return 0
        if self._stays_true():
            return limit
        steps = self._deciding()
        if steps is None:
            return None
        budget = _MAX_STEPS // (len(steps) + 1)
        carried, count = list(initial), 0
        going: Scalar | None = condition
        while going and (limit is None or count < limit):
            if count > budget:
                return None
            values: dict[str, Scalar | None] = dict(
                zip(self.inputs, (count, going, *carried), strict=False)
            )
            self._run(steps, values)
            going = self._value(self.outputs[0], values)
            if going is None:
                return None
            carried = [self._value(name, values) for name in self.outputs[1 : len(self.inputs) - 1]]
            count += 1
        return count

    def _stays_true(self) -> bool:
        """Whether the condition that the first iteration is given is that of all others."""
        same = {step[2]: step[1][0] for step in self.steps if step[0] == "Identity"}
        last = self.outputs[0]
        while last in same:
            last = same[last]
        return last == self.inputs[1] or bool(self.known(last))

    def _deciding(self) -> list[Step] | None:
        """The steps that the condition follows from, over any number of iterations."""
        wanted, producers = {self.outputs[0]}, {step[2]: step for step in self.steps}
        carried = dict(zip(self.inputs[2:], self.outputs[1:], strict=False))
        pending = [self.outputs[0]]
        while pending:
            name = pending.pop()
            sources = producers[name][1] if name in producers else ()
            sources = (*sources, carried[name]) if name in carried else sources
            pending.extend(source for source in sources if source not in wanted)
            wanted.update(sources)
        steps = [step for step in self.steps if step[2] in wanted]
        return steps if all(step[0] in SCALAR_OPERATORS for step in steps) else None

    def _run(self, steps: Iterable[Step], values: dict[str, Scalar | None]) -> None:
        for operation, inputs, output in steps:
            values[output] = computed(operation, [self._value(name, values) for name in inputs])

    def _value(self, name: str, values: Mapping[str, Scalar | None]) -> Scalar | None:
        return values[name] if name in values else self.known(name)


def computed(operation: str, inputs: Sequence[Scalar | None]) -> Scalar | None:
    """What an operator makes of scalars; ``None`` where it is not known."""
    first = inputs[0] if inputs else None
    if first is None:
        return None
    if operation in _KEEPS_THE_ELEMENT:
        return first
    if operation == "Cast":
        # A small whole number or a condition is the same in any type that holds it.
        return first
    others = [each for each in inputs if each is not None]
    if operation not in _OPERATORS or len(others) < len(inputs):
        return None
    made = _OPERATORS[operation](*others)
    return made if abs(made) < _LARGEST else None
