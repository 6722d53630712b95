"""A run without its arithmetic: which branches run, how often bodies do, and what shapes follow.

onnxruntime plans a session without the values of a run; what a run does beyond its plan follows
from them. Constants, shapes and the values of inputs that are given flow through the nodes that
only work on a few whole numbers, in running order, into the subgraphs and out of them; the branch
whose condition comes out is the one that runs, and a body runs again as long as its condition comes
out true. Whatever is worked out of large or float data stays unknown, and with it the conditions
that follow from it.

A Loop whose condition is unknown may end at any time: it is taken to go on to its bound, where one
is known, and else nothing is said of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx

from onnxmem.model.constants import Array
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import Graph, Node, dtype_of
from onnxmem.model.shapes.control_flow import body_inputs
from onnxmem.model.traversal import onnx_op, subgraphs
from onnxmem.model.value_types import common, dense_type, dims_of, is_complete, merged, shape_of
from onnxmem.runtimes.onnxruntime.allocation.course import PLAIN, Branch, Course, Kind, Trips
from onnxmem.runtimes.onnxruntime.session_graph.placing import body_prefix
from onnxmem.runtimes.onnxruntime.session_graph.scope import UNKNOWN, Fact, Knowledge, Scope

MAX_ITERATIONS: Final = 1024
"""Of one Loop that are rehearsed; one that goes on is taken not to be known to end."""
MAX_TURNS: Final = 4096
"""Iterations of all Loops of a model."""
MAX_ASKED: Final = 20_000
"""Nodes of a model that are worked out; after that no Loop goes on."""
_NUMBER: Final = dense_type(onnx.TensorProto.INT64, ())
_TRUE: Final = Fact(dense_type(onnx.TensorProto.BOOL, ()), np.ones((), np.bool_))


def rehearsed(
    model: onnx.ModelProto,
    graph: Graph,
    values: Mapping[str, Array],
    max_asked: int = MAX_ASKED,
) -> Course:
    """What a run does that is fed ``values``; ``graph`` are the records read of ``model``.

    The model's ``value_info`` holds what is known of its shapes. Inputs that are left out of
    ``values`` are unknown.
    """
    if not values and not any(node.subgraphs for node in graph.nodes):
        return PLAIN
    scope = Scope()
    rehearsal = _Rehearsal(Knowledge(model), max_asked)
    rehearsal.knowledge.tell(model.graph, scope, with_types=True)
    for name, elements in values.items():
        scope.learn(name, Fact(None, elements))
    return rehearsal.run(model.graph, _Records(graph, ""), scope, is_first=True)


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of one graph; its names in the model's file have no prefix."""

    graph: Graph
    prefix: str
    nodes: dict[str, Node] = field(default_factory=dict)
    """Those with subgraphs, by the name of their first output."""

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if node.subgraphs:
                self.nodes[node.writes[0].removeprefix(self.prefix)] = node

    def body(self, node: Node, place: int) -> "_Records":
        attribute, graph = node.subgraphs[place]
        return _Records(graph, body_prefix(node, attribute, graph))


@dataclass(frozen=True, slots=True)
class _Running:
    """A node with subgraphs, in a run of its graph."""

    proto: onnx.NodeProto
    node: Node
    records: _Records
    scope: Scope
    is_first: bool
    """Whether every graph around it is fed what it is fed first."""

    def body(self, place: int) -> tuple[onnx.GraphProto, _Records]:
        """A subgraph and its records."""
        graphs = [graph for _, graph in subgraphs(self.proto)]
        return graphs[place], self.records.body(self.node, place)


@dataclass(slots=True)
class _Turns:
    """The iterations of a Loop so far."""

    number: int = 0
    courses: list[Course] = field(default_factory=list)
    carried: list[Fact] = field(default_factory=list)
    stacked: list[Fact] = field(default_factory=list)
    goes_on: Fact = UNKNOWN
    is_certain: bool = True
    """Whether every condition so far was known."""
    is_steady: bool = False
    """Whether every further iteration is like the last one."""


@dataclass(slots=True)
class _Rehearsal:
    """Walks the graphs of one model as a run does."""

    knowledge: Knowledge
    max_asked: int
    num_turns: int = 0

    def run(
        self, graph: onnx.GraphProto, records: _Records, scope: Scope, *, is_first: bool
    ) -> Course:
        """Walk one graph, whose inputs are in its scope; what its nodes make is there after it."""
        branches: dict[str, Branch] = {}
        trips: dict[str, Trips] = {}
        for proto in graph.node:
            node = records.nodes.get(next(filter(None, proto.output), ""))
            if node is None:
                self.knowledge.work_out(proto, scope)
                continue
            running = _Running(proto, node, records, scope, is_first)
            if onnx_op(proto) == "If":
                branches[node.name] = self._branch(running)
            elif onnx_op(proto) == "Loop":
                trips[node.name] = self._loop(running)
            else:
                trips[node.name] = self._scan(running)
        return Course(dict(_kinds(graph, records, scope)), branches, trips)

    def _branch(self, running: _Running) -> Branch:
        truth = running.scope.fact(running.proto.input[0]).truth
        names = [name for name, _ in running.node.subgraphs]
        wanted = None if truth is None else names.index("then_branch" if truth else "else_branch")
        courses = [PLAIN] * len(names)
        made: list[list[Fact]] = []
        for place in range(len(names)):
            if wanted in {None, place}:
                graph, records = running.body(place)
                inner = running.scope.inside(records.prefix)
                self.knowledge.tell(graph, inner, with_types=running.is_first)
                courses[place] = self.run(graph, records, inner, is_first=running.is_first)
                made.append([inner.fact(value.name) for value in graph.output])
        for name, *facts in zip(running.proto.output, *made, strict=False):
            before = running.scope.types.get(name)
            running.scope.learn(name, _either(before, facts))
        return Branch(wanted, tuple(courses))

    def _scan(self, running: _Running) -> Trips:
        """A Scan, or what else has a body: each of its runs is alike."""
        proto, scope = running.proto, running.scope
        graph, records = running.body(0)
        inner = scope.inside(records.prefix)
        self.knowledge.tell(graph, inner, with_types=running.is_first)
        for name, kind in body_inputs(proto, scope.types, self.knowledge.opsets).items():
            inner.learn(name, Fact(kind))
        course = self.run(graph, records, inner, is_first=running.is_first)
        if not all(is_complete(scope.types.get(name)) for name in proto.output if name):
            for name, kind in self.knowledge.types_of(proto, scope).items():
                scope.learn(name, Fact(kind))
        return Trips(trip_count(running.records.graph, running.node), (course,))

    def _loop(self, running: _Running) -> Trips:
        limit, condition = (*running.proto.input, "", "")[:2]
        asked = running.scope.fact(limit).elements
        is_known = asked is not None and asked.size == 1 and asked.dtype.kind in "iu"
        bound = max(int(asked.item()), 0) if asked is not None and is_known else None
        goes_on = running.scope.fact(condition) if condition else _TRUE
        turns = _Turns(
            carried=[running.scope.fact(name) for name in running.proto.input[2:]],
            goes_on=goes_on,
            is_certain=goes_on.truth is not None and (not limit or bound is not None),
        )
        while self._goes_on(turns, bound):
            self._turn(running, turns)
        number = self._number(running, turns, bound)
        if number is None:
            return Trips(None, tuple(turns.courses[:1]), is_certain=False)
        for name, fact in _loop_outputs(running, turns, number):
            running.scope.learn(name, fact)
        return Trips(number, tuple(_without_tail(turns.courses)), turns.is_certain)

    def _goes_on(self, turns: _Turns, bound: int | None) -> bool:
        if turns.goes_on.truth is False or turns.is_steady:
            return False
        is_spent = self.knowledge.num_asked > self.max_asked or self.num_turns > MAX_TURNS
        if turns.number and is_spent:
            return False
        return turns.number < (MAX_ITERATIONS if bound is None else min(bound, MAX_ITERATIONS))

    def _number(self, running: _Running, turns: _Turns, bound: int | None) -> int | None:
        """How often the body runs, certain or at most."""
        if turns.goes_on.truth is False or turns.number == bound:
            return turns.number
        is_constant = trip_count(running.records.graph, running.node) == bound
        if turns.is_certain and (turns.is_steady or is_constant):
            return bound
        turns.is_certain = False  # for it was not seen to end
        return bound if bound is not None and bound <= MAX_ITERATIONS else None

    def _turn(self, running: _Running, turns: _Turns) -> None:
        """Rehearse one iteration."""
        graph, records = running.body(0)
        inner = running.scope.inside(records.prefix)
        # A body that runs was told to, whatever is known of its condition.
        fed = [Fact(_NUMBER, np.array(turns.number)), _TRUE, *turns.carried]
        is_first = running.is_first and all(
            fact.kind is not None and shape_of(fact.kind) == shape_of(value.type)
            for value, fact in zip(graph.input[2:], turns.carried, strict=False)
        )
        self.knowledge.tell(graph, inner, with_types=is_first)
        for value, fact in zip(graph.input, fed, strict=False):
            inner.learn(value.name, fact)
        asked_before = self.knowledge.num_asked
        turns.courses.append(self.run(graph, records, inner, is_first=is_first))
        condition, *made = [inner.fact(value.name) for value in graph.output]
        carried = made[: len(turns.carried)]
        is_new = self.knowledge.num_asked > asked_before or turns.number == 0
        is_same = [fact.key() for fact in carried] == [fact.key() for fact in turns.carried]
        turns.is_steady = is_same and not is_new and condition.key() == turns.goes_on.key()
        turns.is_certain = turns.is_certain and condition.truth is not None
        turns.carried, turns.stacked, turns.goes_on = carried, made[len(carried) :], condition
        turns.number += 1
        self.num_turns += 1


def _loop_outputs(running: _Running, turns: _Turns, number: int) -> Iterator[tuple[str, Fact]]:
    """Carried values as the last iteration hands them on, and what the iterations stacked."""
    num_carried = len(turns.carried)
    for name, fact in zip(running.proto.output, turns.carried, strict=False):
        yield name, fact if turns.is_certain else Fact(fact.kind)
    for name, fact in zip(running.proto.output[num_carried:], turns.stacked, strict=False):
        dims = dims_of(fact.kind)
        if fact.kind is not None and dims is not None and is_complete(fact.kind):
            yield name, Fact(dense_type(fact.kind.tensor_type.elem_type, (number, *dims)))


def _without_tail(courses: list[Course]) -> list[Course]:
    """Courses of iterations without those at the end that are like the one before."""
    while len(courses) > 1 and courses[-1] == courses[-2]:
        courses.pop()
    return courses


def _either(before: onnx.TypeProto | None, facts: list[Fact]) -> Fact:
    """An output of an If: of the branch that runs, or what two branches agree on."""
    kinds = [fact.kind for fact in facts]
    if len(facts) == 1 and kinds[0] is not None:
        kind = kinds[0] if before is None else merged(kinds[0], before)
        return Fact(kind, facts[0].elements)
    one, other = (*kinds, None)[:2]
    if one is None or other is None:
        return Fact(before)
    return Fact(common(one, other) if before is None else merged(before, common(one, other)))


def _kinds(graph: onnx.GraphProto, records: _Records, scope: Scope) -> Iterator[tuple[str, Kind]]:
    """What is of another shape than the records say; those of weights hold in every run."""
    names = [value.name for value in graph.input]
    names += [name for node in graph.node if node.input for name in node.output if name]
    own = scope.types.maps[0]
    for name in names:
        proto = own.get(name)
        dims = dims_of(proto)
        if proto is None or dims is None or not is_complete(proto):
            continue
        tensor = records.graph.tensors[records.prefix + name]
        if tensor.shape != dims:
            yield tensor.name, Kind(dtype_of(proto.tensor_type.elem_type), dims)
