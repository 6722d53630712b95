"""A tiny autograd under Python's own reference counts: what a step takes, found by doing it.

It shares no code with the package. Storages tell a meter when they come and go; a gradient is
added in place if Python's reference count shows no other owner.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

Shape = tuple[int, ...]
FLOAT_BYTES = 4
ALONE = 2
"""References to an object with one variable, while they are counted."""


@dataclass(slots=True)
class Meter:
    """Live bytes, and the most of them since the last mark."""

    live_bytes: int = 0
    peak_bytes: int = 0

    def mark(self) -> int:
        """Begin a phase; return the peak of the previous one."""
        found, self.peak_bytes = self.peak_bytes, self.live_bytes
        return found


class Storage:
    """Memory that lives as long as this object."""

    __slots__ = ("meter", "size_bytes")

    def __init__(self, meter: Meter, shape: Shape) -> None:
        self.meter, self.size_bytes = meter, FLOAT_BYTES * prod(shape)
        meter.live_bytes += self.size_bytes
        meter.peak_bytes = max(meter.peak_bytes, meter.live_bytes)

    def __del__(self) -> None:
        self.meter.live_bytes -= self.size_bytes


@dataclass(slots=True, eq=False)
class Grad:
    """A gradient; a view keeps its base alive."""

    storage: Storage
    base: "Grad | None" = None


Given = list[tuple["Step", Grad]]


@dataclass(slots=True, eq=False)
class Step:
    """What one operation saves for backward; a parameter is one without inputs."""

    order: int
    shape: Shape
    targets: list["Step"] = field(default_factory=list)
    saved: list[Storage] = field(default_factory=list)
    back: Callable[[Grad], Given] = lambda _: []


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the forward pass."""

    storage: Storage
    shape: Shape
    step: Step | None
    """``None``: it needs no gradient."""


@dataclass(frozen=True, slots=True)
class Line:
    """One operation of a program: ``name = op(operands)``."""

    name: str
    op: str
    operands: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class Program:
    """Operations on an input ``x`` and parameters; what no operation reads is an output."""

    x: Shape
    parameters: dict[str, Shape]
    lines: tuple[Line, ...]

    @property
    def outputs(self) -> list[str]:
        """Names that no operation reads."""
        read = {name for line in self.lines for name in line.operands}
        return [line.name for line in self.lines if line.name not in read]


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes of one step."""

    saved: int
    forward: int
    backward: int
    optimizer: int


READS_OUTPUT = frozenset({"Relu", "Tanh", "Exp"})
READS_INPUT = frozenset({"Gelu", "HardSwish"})


@dataclass(slots=True)
class Run:
    """One step under way."""

    program: Program
    meter: Meter = field(default_factory=Meter)
    values: dict[str, Value] = field(default_factory=dict)

    def peaks(self) -> Peaks:
        """Take the step."""
        program = self.program
        self.values["x"] = Value(self.new(program.x), program.x, None)
        for name, shape in program.parameters.items():
            self.values[name] = Value(self.new(shape), shape, Step(-1, shape))
        held = list(self.values.values())
        held_bytes = self.meter.live_bytes
        self.meter.mark()
        self.forward()
        saved_bytes = self.meter.live_bytes - held_bytes
        forward_bytes = self.meter.mark()
        gradients = self.backward()
        backward_bytes = self.meter.mark()
        assert len(gradients) <= len(held)
        return Peaks(saved_bytes, forward_bytes, backward_bytes, self.meter.live_bytes)

    def new(self, shape: Shape) -> Storage:
        """Allocate."""
        return Storage(self.meter, shape)

    def forward(self) -> None:
        """Do every operation, and forget each variable after its last use."""
        left = Counter(name for line in self.program.lines for name in line.operands)
        left.update(self.program.outputs)
        for index, line in enumerate(self.program.lines):
            self.values[line.name] = self.done(index, line)
            left.subtract(line.operands)
            for name in set(line.operands):
                if not left[name]:
                    self.values.pop(name)

    def done(self, index: int, line: Line) -> Value:
        """Do one operation."""
        operands = [self.values[name] for name in line.operands]
        first = operands[0]
        storage = first.storage if line.op == "Reshape" else self.new(line.shape)
        if all(each.step is None for each in operands):
            return Value(storage, line.shape, None)
        step = Step(index, line.shape)
        step.targets = [each.step for each in operands if each.step is not None]
        step.saved = list(_saved(line.op, operands, storage))
        step.back = self.formula(line.op, operands)
        return Value(storage, line.shape, step)

    def formula(self, op: str, operands: list[Value]) -> Callable[[Grad], Given]:
        """How an operation's inputs get their gradients, the last first."""
        wanted = [(each.step, each.shape) for each in reversed(operands)]

        def back(grad: Grad) -> Given:
            given: Given = []
            for step, shape in wanted:
                if step is None:
                    continue
                if op == "Add":
                    given.append((step, grad))
                elif op == "Reshape":
                    given.append((step, Grad(grad.storage, grad)))
                else:
                    given.append((step, Grad(self.new(shape))))
            return given

        return back

    def backward(self) -> dict[Step, Grad]:
        """Go back from every output; what is left are the parameters' gradients."""
        waiting: dict[Step, Grad] = {}
        roots: list[Step] = []
        for name in reversed(self.program.outputs):
            step = self.values[name].step
            if step is not None:
                roots.append(step)
                self.accumulate(waiting, step, [Grad(self.new(step.shape))])
        steps = _reachable(roots)
        uses = Counter(target for step in steps for target in step.targets)
        for step in steps:
            given = step.back(waiting.pop(step))
            step.saved.clear()
            while given:
                target, grad = given.pop(0)
                box = [grad]
                del grad
                self.accumulate(waiting, target, box)
                uses[target] -= 1
                if target.order < 0 and not uses[target]:
                    self.settle(waiting, target)
        return waiting

    def accumulate(self, waiting: dict[Step, Grad], target: Step, box: list[Grad]) -> None:
        """Add a gradient to what waits already: over it, if nobody else has it."""
        if target not in waiting:
            waiting[target] = box.pop()
            return
        held = waiting.pop(target)
        is_alone = sys.getrefcount(held) == ALONE and sys.getrefcount(held.storage) == ALONE
        waiting[target] = held if is_alone else Grad(self.new(target.shape))
        box.clear()

    def settle(self, waiting: dict[Step, Grad], target: Step) -> None:
        """Give a parameter its gradient: a copy, if another reader has it too."""
        held = waiting.pop(target)
        is_alone = sys.getrefcount(held) == ALONE
        waiting[target] = held if is_alone else Grad(self.new(target.shape))


def _saved(op: str, operands: list[Value], storage: Storage) -> Iterator[Storage]:
    """What the formula of an operation reads."""
    if op in READS_OUTPUT:
        yield storage
    elif op in READS_INPUT:
        yield operands[0].storage
    elif op in {"Mul", "MatMul"}:
        left, right = operands
        if right.step is not None:
            yield left.storage
        if left.step is not None:
            yield right.storage


def _reachable(roots: list[Step]) -> list[Step]:
    """All operations behind some, the last first; no parameters."""
    found: dict[Step, None] = {}
    waiting = list(roots)
    while waiting:
        step = waiting.pop()
        if step.order >= 0 and step not in found:
            found[step] = None
            waiting += step.targets
    return sorted(found, key=lambda step: -step.order)
