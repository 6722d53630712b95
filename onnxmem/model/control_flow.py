"""The branch that an If takes, and the number of iterations of a Loop or a Scan.

The iterations of a Loop are known if its limit and condition depend only on constants, dims and a
counter: then only the counter is simulated. tf2onnx and Keras write ``Less(counter + 1, limit)`` as
the condition, and the same limit or the largest int64 as the limit of the Loop; while loops of JAX
have no limit. The semantics are those of https://onnx.ai/onnx/operators/onnx__Loop.html:
``for (int i=0; i < max_trip_count && cond; ++i)``.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

from onnxmem.model.constants import Array
from onnxmem.model.graph import Graph, Node, Role
from onnxmem.ops.spec import known_dims

_MADE = frozenset({Role.ACTIVATION, Role.BODY_INPUT})


def without_idle_bodies(graph: Graph) -> Graph:
    """The graph without what runs in no run: branches that a constant rules out, and bodies of no
    iterations, which write no bytes.
    """
    constants = {
        node.inputs[0]: np.array(bool(condition))
        for node in graph.all_nodes()
        if node.onnx_op == "If" and (condition := _scalar(graph, node.inputs[0])) is not None
    }
    graph = without_idle_branches(graph, constants)
    return _with_idle(graph, _bodies(graph, lambda node: trip_count(graph, node) == 0))


def without_idle_branches(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """Remove the activations of branches that a known condition rules out.

    ``values`` are elements of tensors of the top-level graph. The weights of the branch stay,
    because a session loads them, and so do the tensors that it would have read: the plan of
    onnxruntime keeps them up to the If (``allocation_planner.cc`` counts the implicit inputs of all
    branches).
    """
    idle: set[str] = set()
    nodes = _running(graph, values, idle) if values else graph.nodes
    if not idle:
        return graph
    tensors = {
        name: tensor
        for name, tensor in graph.tensors.items()
        if name not in idle or tensor.role not in _MADE
    }
    return replace(graph, nodes=nodes).with_tensors(tensors)


def _running(graph: Graph, values: Mapping[str, Array], idle: set[str]) -> tuple[Node, ...]:
    """The nodes with only the branches that may run; adds what the others produce to ``idle``."""
    nodes = []
    for node in graph.nodes:
        if not node.subgraphs:
            nodes.append(node)
            continue
        branch = _branch(node, values)
        kept = []
        for attribute, inner in node.subgraphs:
            if branch in {None, attribute}:
                body = replace(inner, nodes=_running(inner, values, idle))
                kept.append((attribute, body))
            else:
                idle.update(_produced(inner))
        nodes.append(replace(node, subgraphs=tuple(kept)))
    return tuple(nodes)


def _branch(node: Node, values: Mapping[str, Array]) -> str | None:
    """The attribute of the branch that runs; ``None`` if the condition is unknown."""
    if node.onnx_op != "If" or node.inputs[0] not in values:
        return None
    condition = values[node.inputs[0]]
    if condition.size != 1:
        return None
    return "then_branch" if condition.item() else "else_branch"


def _produced(graph: Graph) -> Iterator[str]:
    """The outputs of all nodes of a graph and its subgraphs, and the inputs of subgraphs."""
    for node in graph.all_nodes():
        yield from node.writes
        for _, inner in node.subgraphs:
            yield from inner.inputs


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
"""Operators that pass on the element of a tensor with one element."""
_SCALAR_OPERATORS: Final = _KEEPS_THE_ELEMENT | _OPERATORS.keys() | {"Cast"}
_KEEPS_THE_ELEMENTS: Final = _KEEPS_THE_ELEMENT | {"Cast"}
_OF_SHAPES: Final = frozenset({"Shape", "Size"})
_OF_LISTS: Final = frozenset({"Gather", "Slice"})
"""Operators that take elements of a shape."""
_FOLLOWED_OPERATORS: Final = _SCALAR_OPERATORS | _OF_SHAPES | _OF_LISTS
_SLICE_DEFAULTS: Final = (0, 0, 0, 1)
_MAX_SOURCES: Final = 1_000
"""Tensors that are computed for one scalar; one that needs more is unknown."""
_MAX_STEPS: Final = 20_000
"""Nodes that are simulated for one Loop; a Loop that needs more has unknown iterations."""
_LARGEST: Final = 2**31
"""Larger counters are unknown, because they may overflow in a narrower type."""

_Elements = tuple[Scalar, ...]
Step = tuple[str, Sequence[str], str]
"""A node's operator, its inputs and its output."""


@dataclass(frozen=True, slots=True)
class LoopBody:
    """The scalar part of the body of a Loop."""

    inputs: Sequence[str]
    """The iteration, the condition and the carried values."""
    outputs: Sequence[str]
    """The condition, the carried values and the scan outputs."""
    steps: Sequence[Step]
    """The nodes with one output, in topological order."""
    known: Callable[[str], Scalar | None] = field(compare=False)
    """Scalars that do not change between iterations."""

    def trips(
        self, limit: int | None, condition: Scalar, initial: Sequence[Scalar | None]
    ) -> int | None:
        """The number of iterations for the initial carried scalars; ``None`` if it is unknown.

        ``limit`` is ``None`` if the Loop has none.
        """
        if not condition:
            return 0
        if self.stays_true():
            return limit
        steps = self._deciding()
        if steps is None:
            return None
        # ``count`` iterations are done, and ``carried`` and ``going`` are what the next one gets.
        # A hostile file can make the loop endless, so the simulation has a budget.
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

    def stays_true(self) -> bool:
        """Whether the body passes its condition on unchanged, or makes it constantly true."""
        same = {step[2]: step[1][0] for step in self.steps if step[0] == "Identity"}
        last = self.outputs[0]
        # This ends: in static single assignment form a chain of Identity nodes has no cycle.
        while last in same:
            last = same[last]
        return last == self.inputs[1] or bool(self.known(last))

    def _deciding(self) -> list[Step] | None:
        """The steps on which the condition depends; ``None`` if one cannot be simulated."""
        # A carried input also depends on the matching output: that of the iteration before. So the
        # search is a fixed point over all iterations, not a walk through one.
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
        return steps if all(step[0] in _SCALAR_OPERATORS for step in steps) else None

    def _run(self, steps: Iterable[Step], values: dict[str, Scalar | None]) -> None:
        for operation, inputs, output in steps:
            values[output] = computed(operation, [self._value(name, values) for name in inputs])

    def _value(self, name: str, values: Mapping[str, Scalar | None]) -> Scalar | None:
        return values[name] if name in values else self.known(name)


def computed(operation: str, inputs: Sequence[Scalar | None]) -> Scalar | None:
    """The result of an operator on scalars; ``None`` if it is unknown."""
    first = inputs[0] if inputs else None
    if first is None:
        return None
    if operation in _KEEPS_THE_ELEMENT:
        return first
    if operation == "Cast":
        # A small integer or a condition has the same value in every type that can represent it.
        return first
    others = [each for each in inputs if each is not None]
    if operation not in _OPERATORS or len(others) < len(inputs):
        return None
    result = _OPERATORS[operation](*others)
    return result if abs(result) < _LARGEST else None


def trip_count(graph: Graph, node: Node) -> int | None:
    """The iterations of a node with subgraphs; 1 for an If; ``None`` if a run decides them."""
    if node.onnx_op == "Loop":
        found = graph.trip_counts
        if node not in found:
            found[node] = _loop_trips(graph, node)
        return found[node]
    if node.onnx_op == "Scan":
        return _scan_trips(graph, node)
    return 1


def least_trips(graph: Graph, node: Node) -> int:
    """The fewest iterations of any run: if a run decides them, 1 where a Loop's limit and first
    condition are known to let it begin, else 0.
    """
    exact = trip_count(graph, node)
    if exact is not None or node.onnx_op != "Loop":
        return exact or 0
    limit, condition = (*node.inputs, "", "")[:2]
    most = _scalar(graph, limit) if limit else 1
    going = _scalar(graph, condition) if condition else True
    return int(bool(going) and most is not None and most >= 1)


def with_least_trips(graph: Graph) -> Graph:
    """The graph in which bodies that need not run in a run write no bytes."""
    return _with_idle(graph, _bodies(graph, lambda node: not least_trips(graph, node)))


def with_least_branches(graph: Graph) -> Graph:
    """The graph in which each If has only the branch whose tensors have the fewest bytes."""
    idle: set[str] = set()
    _least_written(graph, idle)
    return _with_idle(graph, idle)


def _with_idle(graph: Graph, idle: AbstractSet[str]) -> Graph:
    changed = {
        name: replace(graph.tensors[name], max_elements=0)
        for name in idle
        if graph.tensors[name].role is Role.ACTIVATION
    }
    return graph.with_tensors({**graph.tensors, **changed}) if changed else graph


def _bodies(graph: Graph, is_skipped: Callable[[Node], bool]) -> set[str]:
    """The tensors of bodies that are skipped."""
    found: set[str] = set()
    for node in graph.nodes:
        for _, body in node.subgraphs:
            found |= {*_written(body)} if is_skipped(node) else _bodies(body, is_skipped)
    return found


def _least_written(graph: Graph, idle: set[str]) -> int:
    """The bytes that the nodes of a graph write; adds the branches that are left out to ``idle``.

    All of them have one lifetime in a training step, so the fewest bytes are the lowest peak.
    """
    total_bytes = 0
    for node in graph.nodes:
        total_bytes += sum(graph.tensors[name].size_bytes or 0 for name in node.writes)
        bodies = [(_least_written(body, idle), body) for _, body in node.subgraphs]
        if node.onnx_op != "If":
            total_bytes += sum(size_bytes for size_bytes, _ in bodies)
        elif bodies:
            least_bytes, least = min(bodies, key=lambda each: each[0])
            total_bytes += least_bytes
            # What is idle in the branch that stays was added when its own bytes were counted.
            idle.update(name for _, body in bodies if body is not least for name in _written(body))
    return total_bytes


def _written(graph: Graph) -> Iterator[str]:
    return (name for node in graph.all_nodes() for name in node.writes)


def _loop_trips(graph: Graph, node: Node) -> int | None:
    """The iterations of a Loop, if its limit and its counter are constant."""
    limit, condition = (*node.inputs, "", "")[:2]
    most = _scalar(graph, limit)
    going = _scalar(graph, condition) if condition else True
    if (limit and most is None) or going is None:
        return None
    body = _scalars_of(graph, node)
    initial = [] if body.stays_true() else [_scalar(graph, name) for name in node.inputs[2:]]
    return body.trips(None if most is None else max(most, 0), going, initial)


def _scalars_of(graph: Graph, loop: Node) -> LoopBody:
    body = loop.subgraphs[0][1]
    return LoopBody(
        body.inputs,
        body.outputs,
        [(n.onnx_op, n.inputs, n.outputs[0]) for n in body.nodes if n.onnx_op != "Constant"],
        lambda name: _scalar(graph, name),
    )


def _scalar(graph: Graph, name: str) -> Scalar | None:
    """The value of an integer or boolean scalar that depends only on constants and known dims."""
    return _single(_computed(graph, name) if name in graph.producers else _stored(graph, name))


def _computed(graph: Graph, name: str) -> _Elements | None:
    """The elements of what a node writes."""
    found: dict[str, _Elements | None] = {}
    pending = [name]
    # Each tensor once and without recursion: a file may add a number to itself any number of times.
    while pending:
        current = pending.pop()
        if current in found:
            continue
        node = graph.producers.get(current)
        if current in graph.values:
            found[current] = _stored(graph, current)
        elif node is None or node.onnx_op not in _FOLLOWED_OPERATORS:
            found[current] = None
        elif node.onnx_op in _OF_SHAPES:
            found[current] = _of_shape(graph, node)
        elif missing := [each for each in node.inputs if each and each not in found]:
            if len(found) > _MAX_SOURCES:
                return None
            pending += (current, *missing)
        else:
            found[current] = _elements(graph, node, [found.get(each) for each in node.inputs])
    return found[name]


def _stored(graph: Graph, name: str) -> _Elements | None:
    """The elements of a small constant of integers; ``None`` for any other tensor."""
    stored = graph.values.get(name)
    if stored is None:
        return None
    numbers = tuple([each for each in stored if isinstance(each, int)])
    return numbers if len(numbers) == len(stored) else None


def _single(elements: _Elements | None) -> Scalar | None:
    return None if elements is None or len(elements) != 1 else elements[0]


def _elements(graph: Graph, node: Node, inputs: Sequence[_Elements | None]) -> _Elements | None:
    """The elements that a node writes, by those of its inputs; ``None``: unknown."""
    first = inputs[0] if inputs else None
    if node.onnx_op in _KEEPS_THE_ELEMENTS:
        return first
    scalars = [_single(each) for each in inputs]
    if node.onnx_op not in _OF_LISTS:
        result = computed(node.onnx_op, scalars)
        return None if result is None else (result,)
    numbers = [int(each) for each in scalars[1:] if each is not None]
    if first is None or len(numbers) < len(inputs) - 1:
        return None
    if len(graph.tensors[node.inputs[0]].shape or ()) != 1:
        return None
    return _taken(node.onnx_op, first, numbers)


def _taken(operation: str, row: _Elements, numbers: Sequence[int]) -> _Elements | None:
    """What a Gather takes by its index, or a Slice by a start, a stop, an axis and a step."""
    if operation == "Gather":
        index = numbers[0] if numbers else len(row)
        return (row[index],) if -len(row) <= index < len(row) else None
    # ONNX counts negative numbers from the end and clamps both ends, as a slice of Python does.
    start, stop, _, step = (*numbers, *_SLICE_DEFAULTS[len(numbers) :])
    # Before opset 10 a Slice has all of them as attributes.
    return row[start:stop:step] if step and len(numbers) > 1 else None


def _of_shape(graph: Graph, node: Node) -> _Elements | None:
    """The dims of a tensor, or their product; ``None`` unless every run has these dims."""
    tensor = graph.tensors[node.inputs[0]]
    # In a body, a shape may be that of the first iteration.
    is_main = any(graph.tensors[name].role is Role.INPUT for name in graph.inputs)
    is_outside = tensor.role in {Role.INPUT, Role.WEIGHT}
    is_fixed = is_outside or (is_main and tensor.name in graph.producers)
    dims = known_dims(tensor.shape)
    if dims is None or not is_fixed or tensor.is_assumed or any(tensor.dynamic):
        return None
    if node.onnx_op == "Size":
        return (prod(dims),)
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    if not isinstance(start, int) or not isinstance(end, int | None):
        return None
    return dims[start:end]


def runs_to_limit(graph: Graph, node: Node) -> bool:
    """Whether a Loop has as many iterations as its limit says in every run."""
    limit, condition = (*node.inputs, "", "")[:2]
    going = _scalar(graph, condition) if condition else True
    return bool(limit and going) and _scalars_of(graph, node).stays_true()


def _scan_trips(graph: Graph, node: Node) -> int | None:
    """The length of the first scanned input along its axis."""
    num_scanned = node.attributes.get("num_scan_inputs", 0)
    axes = node.attributes.get("scan_input_axes", (0,))
    if not isinstance(num_scanned, int) or not isinstance(axes, tuple):
        return None
    scanned = node.inputs[-num_scanned:] if 0 < num_scanned <= len(node.inputs) else ("",)
    shape = graph.tensors[scanned[0]].shape if scanned[0] else None
    axis = int(axes[0]) if axes else 0
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
