"""A run without its arithmetic: which branches run, how often bodies do, and what shapes follow.

onnxruntime plans a session without the values of a run; what a run does beyond its plan follows
from them. Constants, shapes and the values of inputs that are given flow through the nodes that
only work on a few whole numbers, in running order, into the subgraphs and out of them; the branch
whose condition comes out is the one that runs, and a body runs again as long as its condition comes
out true. Whatever is computed from large or float data stays unknown, and with it the conditions
that follow from it.

A Loop whose condition is unknown may end at any time: it is taken to go on to its bound, where one
is known, and else nothing is said of it.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.constants import Array
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import Graph, Node, dtype_of
from onnxmem.model.input_values import fitted, may_be_setting
from onnxmem.model.shapes.control_flow import body_inputs
from onnxmem.model.shapes.folding import Folder
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.propagation import add_known
from onnxmem.model.traversal import onnx_op, subgraphs
from onnxmem.model.value_types import common, dense_type, dims_of, is_complete, merged, shape_of
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import (
    EMPTY_TRACE,
    BranchTrace,
    ControlFlowTrace,
    LoopTrace,
    TensorType,
    undecided,
)
from onnxmem.runtimes.onnxruntime.session_graph.graph_paths import body_prefix

# --------------------------------------------------------------------------------------------------
# What is known of the values in sight of a graph.


Types = ChainMap[str, onnx.TypeProto]
Values = ChainMap[str, Array]


@dataclass(frozen=True, slots=True)
class Fact:
    """One value: its type and its elements, as far as they are known."""

    kind: onnx.TypeProto | None = None
    elements: Array | None = None

    def key(self) -> tuple[bytes, bytes]:
        """What tells it from another fact of the same name."""
        kind = b"" if self.kind is None else self.kind.SerializeToString()
        return kind, b"" if self.elements is None else self.elements.tobytes()

    @property
    def truth(self) -> bool | None:
        """A condition; ``None``: unknown."""
        if self.elements is None or self.elements.size != 1:
            return None
        return bool(self.elements.item())


UNKNOWN = Fact()


@dataclass(frozen=True, slots=True)
class Scope:
    """Facts by name; those of the graphs around stand behind a graph's own."""

    types: Types = field(default_factory=ChainMap)
    values: Values = field(default_factory=ChainMap)
    place: str = ""
    """What tells the names of its graph from those of others: a prefix."""

    def inside(self, place: str) -> "Scope":
        """The scope of a subgraph."""
        return Scope(self.types.new_child(), self.values.new_child(), place)

    def fact(self, name: str) -> Fact:
        """What is known of a value."""
        return Fact(self.types.get(name), self.values.get(name))

    def learn(self, name: str, fact: Fact) -> None:
        """Enter what is known of a value; what is not known stays as it was."""
        if name and fact.kind is not None:
            self.types[name] = fact.kind
        if name and fact.elements is not None:
            self.values[name] = fact.elements


_ABSORBING: Final = {"And": False, "Or": True}
"""Operator -> the condition that makes the outcome, whatever the other one is."""


@dataclass(slots=True)
class Knowledge:
    """Asks what is known of single nodes of one model, and of what its graphs say beforehand."""

    model: onnx.ModelProto
    num_evaluated: int = 0
    """Nodes that had to be evaluated."""
    _asker: NodeInference = field(init=False)
    _folder: Folder = field(init=False)
    _said: dict[str, Scope] = field(default_factory=dict)
    """By the place of a graph: what it says before its first node runs."""
    _last: dict[str, tuple[tuple[object, ...] | None, Mapping[str, Fact]]] = field(
        default_factory=dict
    )
    """By a node's first output: what the node was last fed, and what it made of that."""

    def __post_init__(self) -> None:
        self._asker = NodeInference(self.model)
        self._folder = Folder(self.model.opset_import)

    @property
    def opsets(self) -> Mapping[str, int]:
        """Versions of the operators by their domains."""
        return self._asker.opsets

    def learn_statements(self, graph: onnx.GraphProto, scope: Scope, *, with_types: bool) -> None:
        """Enter what a graph says of itself: its constants, and the types that were inferred.

        These are of what the graph is fed first, and may differ in a later iteration.
        """
        if scope.place not in self._said:
            said = self._said[scope.place] = Scope()
            add_known(graph, said.types, said.values)
        said = self._said[scope.place]
        fed = {value.name for value in graph.input}
        fed.update(name for node in graph.node if node.input for name in node.output)
        scope.values.update(said.values)
        scope.types.update(
            (name, kind) for name, kind in said.types.items() if with_types or name not in fed
        )

    def evaluate(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Enter what is known of a node's outputs.

        A node whose types are known is asked for elements alone, and one that is fed the same as
        before not at all.
        """
        names = [name for name in node.output if name]
        is_open = not all(is_complete(scope.types.get(name)) for name in names)
        if not is_open and not self._may_be_folded(node, scope):
            return
        fed = tuple(scope.fact(name).key() for name in (*node.input, *names))
        key = scope.place + names[0]
        before, made = self._last.get(key, (None, {}))
        if before != fed:
            made = dict(self._made(node, scope, is_open=is_open))
            self._last[key] = (fed, made)
            self.num_evaluated += 1
        for name, fact in made.items():
            scope.learn(name, fact)

    def types_of(self, node: onnx.NodeProto, scope: Scope) -> Mapping[str, onnx.TypeProto]:
        """The types of a node's outputs as far as it is known what it does."""
        found = self._asker.output_types(node, scope.types, scope.values)
        return {name: merged(scope.types.get(name), kind) for name, kind in found.items()}

    def _may_be_folded(self, node: onnx.NodeProto, scope: Scope) -> bool:
        if onnx_op(node) in {"Shape", "Size"}:
            return True
        are_known = [name in scope.values for name in node.input if name]
        return any(are_known) if onnx_op(node) in _ABSORBING else all(are_known or [False])

    def _made(
        self, node: onnx.NodeProto, scope: Scope, *, is_open: bool
    ) -> Iterable[tuple[str, Fact]]:
        types: dict[str, onnx.TypeProto] = {}
        if is_open:
            types.update(self.types_of(node, scope))
        seen = scope.types.new_child(types)
        folded = self._folder.values_of(node, scope.values, seen) or _absorbed(node, scope, seen)
        for name in filter(None, node.output):
            elements = folded.get(name)
            kind = types.get(name)
            if elements is not None and not is_complete(seen.get(name)):
                number = onnx.helper.np_dtype_to_tensor_dtype(elements.dtype)
                kind = dense_type(number, elements.shape)
            yield name, Fact(kind, elements)


def _absorbed(
    node: onnx.NodeProto, scope: Scope, types: Mapping[str, onnx.TypeProto]
) -> dict[str, Array]:
    """What a condition makes of one that is not known."""
    outcome = _ABSORBING.get(onnx_op(node))
    dims = dims_of(types.get(node.output[0]))
    if outcome is None or dims is None or prod(dims) != 1:
        return {}
    is_made = any(scope.fact(name).truth is outcome for name in node.input)
    return {node.output[0]: np.full(dims, outcome)} if is_made else {}


# --------------------------------------------------------------------------------------------------
# The walk.


MAX_ITERATIONS: Final = 1024
"""Of one Loop that are simulated; one that goes on is taken not to be known to end."""
MAX_TOTAL_ITERATIONS: Final = 4096
"""Iterations of all Loops of a model."""
MAX_EVALUATED: Final = 20_000
"""Nodes of a model that are evaluated; after that no Loop goes on."""
_NUMBER: Final = dense_type(onnx.TensorProto.INT64, ())
_TRUE: Final = Fact(dense_type(onnx.TensorProto.BOOL, ()), np.ones((), np.bool_))


def simulate_control_flow(
    model: onnx.ModelProto,
    graph: Graph,
    values: Mapping[str, Array],
    max_evaluated: int = MAX_EVALUATED,
) -> ControlFlowTrace:
    """What a run does that is fed ``values``; ``graph`` are the records read of ``model``.

    The model's ``value_info`` holds what is known of its shapes. Inputs that are left out of
    ``values`` are unknown.
    """
    if not values and not any(node.subgraphs for node in graph.nodes):
        return EMPTY_TRACE
    scope = Scope()
    simulation = _Simulation(Knowledge(model), max_evaluated)
    simulation.knowledge.learn_statements(model.graph, scope, with_types=True)
    for name, elements in values.items():
        scope.learn(name, Fact(None, elements))
    return simulation.run(model.graph, _Records(graph, ""), scope, is_first=True)


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
class _Iterations:
    """The iterations of a Loop so far."""

    number: int = 0
    traces: list[ControlFlowTrace] = field(default_factory=list)
    carried: list[Fact] = field(default_factory=list)
    stacked: list[Fact] = field(default_factory=list)
    goes_on: Fact = UNKNOWN
    is_certain: bool = True
    """Whether every condition so far was known."""
    is_steady: bool = False
    """Whether every further iteration is like the last one."""


@dataclass(slots=True)
class _Simulation:
    """Walks the graphs of one model as a run does."""

    knowledge: Knowledge
    max_evaluated: int
    num_iterations: int = 0

    def run(
        self, graph: onnx.GraphProto, records: _Records, scope: Scope, *, is_first: bool
    ) -> ControlFlowTrace:
        """Walk one graph, whose inputs are in its scope; what its nodes make is there after it."""
        branches: dict[str, BranchTrace] = {}
        loops: dict[str, LoopTrace] = {}
        for proto in graph.node:
            node = records.nodes.get(next(filter(None, proto.output), ""))
            if node is None:
                self.knowledge.evaluate(proto, scope)
                continue
            running = _Running(proto, node, records, scope, is_first)
            if onnx_op(proto) == "If":
                branches[node.name] = self._branch(running)
            elif onnx_op(proto) == "Loop":
                loops[node.name] = self._loop(running)
            else:
                loops[node.name] = self._scan(running)
        return ControlFlowTrace(dict(_kinds(graph, records, scope)), branches, loops)

    def _branch(self, running: _Running) -> BranchTrace:
        truth = running.scope.fact(running.proto.input[0]).truth
        names = [name for name, _ in running.node.subgraphs]
        wanted = None if truth is None else names.index("then_branch" if truth else "else_branch")
        traces = [EMPTY_TRACE] * len(names)
        made: list[list[Fact]] = []
        for place in range(len(names)):
            if wanted in {None, place}:
                graph, records = running.body(place)
                inner = running.scope.inside(records.prefix)
                self.knowledge.learn_statements(graph, inner, with_types=running.is_first)
                traces[place] = self.run(graph, records, inner, is_first=running.is_first)
                made.append([inner.fact(value.name) for value in graph.output])
        for name, *facts in zip(running.proto.output, *made, strict=False):
            before = running.scope.types.get(name)
            running.scope.learn(name, _either(before, facts))
        return BranchTrace(wanted, tuple(traces))

    def _scan(self, running: _Running) -> LoopTrace:
        """A Scan, or what else has a body: each of its runs is alike."""
        proto, scope = running.proto, running.scope
        graph, records = running.body(0)
        inner = scope.inside(records.prefix)
        self.knowledge.learn_statements(graph, inner, with_types=running.is_first)
        for name, kind in body_inputs(proto, scope.types, self.knowledge.opsets).items():
            inner.learn(name, Fact(kind))
        trace = self.run(graph, records, inner, is_first=running.is_first)
        if not all(is_complete(scope.types.get(name)) for name in proto.output if name):
            for name, kind in self.knowledge.types_of(proto, scope).items():
                scope.learn(name, Fact(kind))
        return LoopTrace(trip_count(running.records.graph, running.node), (trace,))

    def _loop(self, running: _Running) -> LoopTrace:
        limit, condition = (*running.proto.input, "", "")[:2]
        asked = running.scope.fact(limit).elements
        is_known = asked is not None and asked.size == 1 and asked.dtype.kind in "iu"
        bound = max(int(asked.item()), 0) if asked is not None and is_known else None
        goes_on = running.scope.fact(condition) if condition else _TRUE
        iterations = _Iterations(
            carried=[running.scope.fact(name) for name in running.proto.input[2:]],
            goes_on=goes_on,
            is_certain=goes_on.truth is not None and (not limit or bound is not None),
        )
        while self._goes_on(iterations, bound):
            self._iterate(running, iterations)
        number = self._number(running, iterations, bound)
        if number is None:
            return LoopTrace(None, tuple(iterations.traces[:1]), is_certain=False)
        for name, fact in _loop_outputs(running, iterations, number):
            running.scope.learn(name, fact)
        return LoopTrace(number, tuple(_without_tail(iterations.traces)), iterations.is_certain)

    def _goes_on(self, iterations: _Iterations, bound: int | None) -> bool:
        if iterations.goes_on.truth is False or iterations.is_steady:
            return False
        is_spent = (
            self.knowledge.num_evaluated > self.max_evaluated
            or self.num_iterations > MAX_TOTAL_ITERATIONS
        )
        if iterations.number and is_spent:
            return False
        return iterations.number < (MAX_ITERATIONS if bound is None else min(bound, MAX_ITERATIONS))

    def _number(self, running: _Running, iterations: _Iterations, bound: int | None) -> int | None:
        """How often the body runs, certain or at most."""
        if iterations.goes_on.truth is False or iterations.number == bound:
            return iterations.number
        is_constant = trip_count(running.records.graph, running.node) == bound
        if iterations.is_certain and (iterations.is_steady or is_constant):
            return bound
        iterations.is_certain = False  # for it was not seen to end
        return bound if bound is not None and bound <= MAX_ITERATIONS else None

    def _iterate(self, running: _Running, iterations: _Iterations) -> None:
        """Simulate one iteration."""
        graph, records = running.body(0)
        inner = running.scope.inside(records.prefix)
        # A body that runs was told to, whatever is known of its condition.
        fed = [Fact(_NUMBER, np.array(iterations.number)), _TRUE, *iterations.carried]
        is_first = running.is_first and all(
            fact.kind is not None and shape_of(fact.kind) == shape_of(value.type)
            for value, fact in zip(graph.input[2:], iterations.carried, strict=False)
        )
        self.knowledge.learn_statements(graph, inner, with_types=is_first)
        for value, fact in zip(graph.input, fed, strict=False):
            inner.learn(value.name, fact)
        evaluated_before = self.knowledge.num_evaluated
        iterations.traces.append(self.run(graph, records, inner, is_first=is_first))
        condition, *made = [inner.fact(value.name) for value in graph.output]
        carried = made[: len(iterations.carried)]
        is_new = self.knowledge.num_evaluated > evaluated_before or iterations.number == 0
        is_same = [fact.key() for fact in carried] == [fact.key() for fact in iterations.carried]
        iterations.is_steady = (
            is_same and not is_new and condition.key() == iterations.goes_on.key()
        )
        iterations.is_certain = iterations.is_certain and condition.truth is not None
        iterations.carried, iterations.stacked, iterations.goes_on = (
            carried,
            made[len(carried) :],
            condition,
        )
        iterations.number += 1
        self.num_iterations += 1


def _loop_outputs(
    running: _Running, iterations: _Iterations, number: int
) -> Iterator[tuple[str, Fact]]:
    """Carried values as the last iteration hands them on, and what the iterations stacked."""
    num_carried = len(iterations.carried)
    for name, fact in zip(running.proto.output, iterations.carried, strict=False):
        yield name, fact if iterations.is_certain else Fact(fact.kind)
    for name, fact in zip(running.proto.output[num_carried:], iterations.stacked, strict=False):
        dims = dims_of(fact.kind)
        if fact.kind is not None and dims is not None and is_complete(fact.kind):
            yield name, Fact(dense_type(fact.kind.tensor_type.elem_type, (number, *dims)))


def _without_tail(traces: list[ControlFlowTrace]) -> list[ControlFlowTrace]:
    """Courses of iterations without those at the end that are like the one before."""
    while len(traces) > 1 and traces[-1] == traces[-2]:
        traces.pop()
    return traces


def _either(before: onnx.TypeProto | None, facts: list[Fact]) -> Fact:
    """An output of an If: of the branch that runs, or what two branches agree on."""
    types = [fact.kind for fact in facts]
    if len(facts) == 1 and types[0] is not None:
        kind = types[0] if before is None else merged(types[0], before)
        return Fact(kind, facts[0].elements)
    one, other = (*types, None)[:2]
    if one is None or other is None:
        return Fact(before)
    return Fact(common(one, other) if before is None else merged(before, common(one, other)))


def _kinds(
    graph: onnx.GraphProto, records: _Records, scope: Scope
) -> Iterator[tuple[str, TensorType]]:
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
            yield tensor.name, TensorType(dtype_of(proto.tensor_type.elem_type), dims)


# --------------------------------------------------------------------------------------------------
# Which inputs decide what a run does, where their values are not known.


MAX_INPUTS: Final = 8
"""Small inputs that are tried, in the order of the graph's."""


def deciding_inputs(
    model: onnx.ModelProto, graph: Graph, values: Mapping[str, Array], trace: ControlFlowTrace
) -> dict[str, tuple[str, ...]]:
    """By the name of a node that is undecided: the inputs whose values would decide it.

    The run is simulated as if every small input were known, and then without each of them: what is
    undecided the first time follows from computed data, and what one of them opens again from it.
    """
    tensors = (graph.tensors[name] for name in graph.inputs if name not in values)
    settings = list(filter(may_be_setting, tensors))[:MAX_INPUTS]
    tried = {tensor.name: fitted(tensor, (1,)) for tensor in settings}

    def opened(given: Mapping[str, Array]) -> set[str]:
        share = MAX_EVALUATED // (len(tried) + 1)
        return set(
            undecided(simulate_control_flow(model, graph, {**values, **given}, share)).names()
        )

    names = undecided(trace).names()
    if not names or not tried:
        return {}
    without = {
        left_out: opened({name: value for name, value in tried.items() if name != left_out})
        for left_out in tried
    }
    never = opened(tried)
    found = {
        name: tuple(each for each in tried if name in without[each])
        for name in names
        if name not in never
    }
    return {name: inputs for name, inputs in found.items() if inputs}
