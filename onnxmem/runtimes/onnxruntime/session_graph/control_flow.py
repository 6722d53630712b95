"""Simulates the control flow of a run: branches, iterations, and the shapes that follow.

onnxruntime plans a session without the values of a run, which decide the control flow. Here,
constants, shapes and known input values are propagated through the nodes that compute on a few
integers, in the order of execution, into subgraphs and out of them. The condition of an If decides
its branch, and a body runs again as long as its condition is true. Values computed from large or
float tensors stay unknown, and so do conditions that depend on them.

A Loop with an unknown condition may end at any time: it is assumed to run up to its bound, if there
is one; otherwise its number of iterations is unknown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.constants import Array
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import DType, Graph, Node, body_prefix, dtype_of
from onnxmem.model.input_values import fitted, may_be_setting
from onnxmem.model.observed import NO_RUN, BodyRuns, GraphRun
from onnxmem.model.shapes.control_flow import body_inputs
from onnxmem.model.shapes.folding import Folder
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.propagation import add_known
from onnxmem.model.traversal import NestedNames, onnx_op, subgraphs
from onnxmem.model.value_types import common, dense_type, dims_of, is_complete, merged, shape_of
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import (
    EMPTY_TRACE,
    BranchTrace,
    ControlFlowTrace,
    LoopTrace,
    TensorType,
    undecided,
)
from onnxmem.runtimes.onnxruntime.optimizer.casts import PREFIX

# --------------------------------------------------------------------------------------------------
# Known types and elements of the values in the scope of a graph.


Types = NestedNames[onnx.TypeProto]
Values = NestedNames[Array]


@dataclass(frozen=True, slots=True)
class Fact:
    """The type and the elements of a value; ``None``: unknown."""

    kind: onnx.TypeProto | None = None
    elements: Array | None = None

    def is_like(self, other: "Fact") -> bool:
        """Whether another fact about the same value says the same."""
        # Most are the same objects, since what an iteration leaves as it is stays in its scope.
        if self.kind is not other.kind and self.kind != other.kind:
            return False
        one, two = self.elements, other.elements
        if one is two:
            return True
        return one is not None and two is not None and one.tobytes() == two.tobytes()

    @property
    def truth(self) -> bool | None:
        """The value of a condition; ``None``: unknown."""
        if self.elements is None or self.elements.size != 1:
            return None
        return bool(self.elements.item())


UNKNOWN = Fact()


@dataclass(frozen=True, slots=True)
class Scope:
    """Facts by name; those of enclosing graphs come after a graph's own."""

    types: Types = field(default_factory=NestedNames)
    values: Values = field(default_factory=NestedNames)
    prefix: str = ""
    """The prefix of the graph's scoped names."""

    def inside(self, prefix: str) -> "Scope":
        """The scope of a subgraph."""
        return Scope(self.types.new_child(), self.values.new_child(), prefix)

    def fact(self, name: str) -> Fact:
        """The fact about a value."""
        return Fact(self.types.get(name), self.values.get(name))

    def learn(self, name: str, fact: Fact) -> None:
        """Add a fact about a value; its unknown parts change nothing."""
        if name and fact.kind is not None:
            self.types[name] = fact.kind
        if name and fact.elements is not None:
            self.values[name] = fact.elements


_ABSORBING: Final = {"And": False, "Or": True}
"""Operator -> the operand that decides its result, whatever the other operand is."""


@dataclass(slots=True)
class Knowledge:
    """Evaluates single nodes of a model, and reads the constants and types in its graphs."""

    model: onnx.ModelProto
    num_evaluated: int = 0
    """Node evaluations so far."""
    _inference: NodeInference = field(init=False)
    _folder: Folder = field(init=False)
    _declared: dict[str, tuple[Scope, dict[str, onnx.TypeProto]]] = field(default_factory=dict)
    """By the prefix of a graph: its constants and inferred types, and the types of constants."""
    _last: dict[str, tuple[Sequence[Fact], Mapping[str, Fact]]] = field(default_factory=dict)
    """By a node's first output: the inputs of its last evaluation, and the results."""

    def __post_init__(self) -> None:
        self._inference = NodeInference(self.model)
        self._folder = Folder(self.model.opset_import)

    @property
    def opsets(self) -> Mapping[str, int]:
        """Opset versions by domain."""
        return self._inference.opsets

    def add_declared(self, graph: onnx.GraphProto, scope: Scope, *, with_types: bool) -> None:
        """Add the constants of a graph and, optionally, its inferred types.

        The types were inferred for the inputs of a first iteration, and may differ in later ones.
        """
        # Read once for each graph: a body is entered in every iteration.
        if scope.prefix not in self._declared:
            declared = Scope()
            add_known(graph, declared.types, declared.values)
            inputs = {value.name for value in graph.input}
            inputs.update(name for node in graph.node if node.input for name in node.output)
            constant = {name: kind for name, kind in declared.types.items() if name not in inputs}
            self._declared[scope.prefix] = declared, constant
        declared, constant = self._declared[scope.prefix]
        scope.values.update(declared.values)
        scope.types.update(declared.types if with_types else constant)

    def evaluate(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Add the facts about a node's outputs.

        If the types are known, only elements are computed. A node with the same inputs as at its
        last evaluation is not evaluated again.
        """
        names = [name for name in node.output[:] if name]
        is_open = not all(is_complete(scope.types.get(name)) for name in names)
        if not is_open and not self._may_be_folded(node, scope):
            return
        # Declared types of the outputs count as inputs, because inference merges with them.
        inputs = [scope.fact(name) for name in (*node.input[:], *names)]
        key = scope.prefix + names[0]
        before, made = self._last.get(key, ((), {}))
        if not _are_alike(before, inputs):
            made = dict(self._made(node, scope, is_open=is_open))
            self._last[key] = (inputs, made)
            self.num_evaluated += 1
        for name, fact in made.items():
            scope.learn(name, fact)

    def types_of(self, node: onnx.NodeProto, scope: Scope) -> Mapping[str, onnx.TypeProto]:
        """The types of a node's outputs, as far as they can be inferred."""
        found = self._inference.output_types(node, scope.types, scope.values)
        return {name: merged(scope.types.get(name), kind) for name, kind in found.items()}

    def _may_be_folded(self, node: onnx.NodeProto, scope: Scope) -> bool:
        if onnx_op(node) in {"Shape", "Size"}:
            return True
        # A node without inputs, as RandomUniform, follows from nothing known, hence ``[False]``
        # below.
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


def _are_alike(before: Sequence[Fact], now: Sequence[Fact]) -> bool:
    """Whether facts about the same values say the same; there are none at first."""
    return len(before) == len(now) and all(map(Fact.is_like, before, now))


def _absorbed(
    node: onnx.NodeProto, scope: Scope, types: Mapping[str, onnx.TypeProto]
) -> dict[str, Array]:
    """The result of And or Or if one operand decides it and the other is unknown."""
    outcome = _ABSORBING.get(onnx_op(node))
    dims = dims_of(types.get(node.output[0]))
    if outcome is None or dims is None or prod(dims) != 1:
        return {}
    is_decided = any(scope.fact(name).truth is outcome for name in node.input)
    return {node.output[0]: np.full(dims, outcome)} if is_decided else {}


# --------------------------------------------------------------------------------------------------
# The walk.


MAX_ITERATIONS: Final = 1024
"""Simulated iterations of one Loop; the end of a longer one is unknown."""
MAX_TOTAL_ITERATIONS: Final = 4096
"""Simulated iterations of all Loops of a model."""
MAX_EVALUATED: Final = 20_000
"""Evaluated nodes of a model; beyond that, no Loop starts another iteration."""
_NUMBER: Final = dense_type(onnx.TensorProto.INT64, ())
_TRUE: Final = Fact(dense_type(onnx.TensorProto.BOOL, ()), np.ones((), np.bool_))


def simulate_control_flow(
    model: onnx.ModelProto,
    graph: Graph,
    values: Mapping[str, Array],
    max_evaluated: int = MAX_EVALUATED,
    observed: GraphRun = NO_RUN,
    candidates: AbstractSet[str] = frozenset(),
) -> ControlFlowTrace:
    """The control flow of a run with these input ``values``; ``graph`` was read from ``model``.

    The model's ``value_info`` has the known shapes. Inputs without values are unknown. What was
    ``observed`` of a run decides. No Loop starts another iteration once all ``candidates``, if any,
    are known to be undecided.
    """
    is_observed = bool(observed.shapes or observed.bodies)
    # Without values and bodies there is nothing that shape inference does not have already.
    if not values and not is_observed and not any(node.subgraphs for node in graph.nodes):
        return EMPTY_TRACE
    scope = Scope()
    simulation = _Simulation(Knowledge(model), max_evaluated, set(candidates), bool(candidates))
    simulation.knowledge.add_declared(model.graph, scope, with_types=True)
    for name, elements in values.items():
        scope.learn(name, Fact(None, elements))
    records = _GraphScope(graph, "")
    return simulation.run(model.graph, records, scope, observed, is_first=True)


@dataclass(frozen=True, slots=True)
class _GraphScope:
    """One graph as read, whose names in the file have no prefix."""

    graph: Graph
    prefix: str
    nodes: dict[str, Node] = field(default_factory=dict)
    """Nodes with subgraphs, by the name of their first output."""
    bodies: dict[tuple[str, int], "_GraphScope"] = field(default_factory=dict)
    """The subgraphs that were entered, by their node and number: most are entered again."""

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if node.subgraphs:
                self.nodes[node.writes[0].removeprefix(self.prefix)] = node

    def body(self, node: Node, index: int) -> "_GraphScope":
        key = node.name, index
        if key not in self.bodies:
            attribute, graph = node.subgraphs[index]
            self.bodies[key] = _GraphScope(graph, body_prefix(node, attribute, graph))
        return self.bodies[key]


@dataclass(frozen=True, slots=True)
class _Running:
    """A node with subgraphs, in a run of its graph."""

    proto: onnx.NodeProto
    node: Node
    records: _GraphScope
    scope: Scope
    observed: BodyRuns | None
    """Its runs of a subgraph; ``None``: unknown."""
    is_first: bool
    """Whether it and all enclosing bodies are in their first iteration, or as good as."""

    def body(self, index: int) -> tuple[onnx.GraphProto, _GraphScope]:
        """A subgraph in the file and as read."""
        graphs = [graph for _, graph in subgraphs(self.proto)]
        return graphs[index], self.records.body(self.node, index)


@dataclass(slots=True)
class _Iterations:
    """The iterations of a Loop so far."""

    number: int = 0
    traces: list[ControlFlowTrace] = field(default_factory=list)
    carried: list[Fact] = field(default_factory=list)
    stacked: list[Fact] = field(default_factory=list)
    condition: Fact = UNKNOWN
    is_certain: bool = True
    """Whether every condition so far was known."""
    is_steady: bool = False
    """Whether every further iteration equals the last one."""


@dataclass(slots=True)
class _Simulation:
    """Walks the graphs of a model in the order of execution."""

    knowledge: Knowledge
    max_evaluated: int
    candidates: set[str] = field(default_factory=set)
    """Nodes of which only whether they are decided matters; without those found undecided."""
    has_candidates: bool = False
    num_iterations: int = 0
    num_later: int = 0
    """The enclosing Loops that are not in their first iteration."""

    def run(
        self,
        graph: onnx.GraphProto,
        records: _GraphScope,
        scope: Scope,
        observed: GraphRun,
        *,
        is_first: bool,
    ) -> ControlFlowTrace:
        """Walk one graph, whose scope has its inputs; afterwards it has all other values."""
        branches: dict[str, BranchTrace] = {}
        loops: dict[str, LoopTrace] = {}
        for proto in graph.node:
            node = records.nodes.get(next(filter(None, proto.output), ""))
            # Before the node, because inference merges with what is known; and after a body,
            # because its walk may have replaced an observed shape by a declared one.
            _learn_shapes(proto, records, scope, observed)
            if node is None:
                self.knowledge.evaluate(proto, scope)
                continue
            body = observed.bodies.get(next(filter(None, proto.output), ""))
            running = _Running(proto, node, records, scope, body, is_first)
            if onnx_op(proto) == "If":
                branches[node.name] = self._branch(running)
            elif onnx_op(proto) == "Loop":
                loops[node.name] = self._loop(running)
            else:
                loops[node.name] = self._scan(running)
            _learn_shapes(proto, records, scope, observed)
        return ControlFlowTrace(dict(_changed_types(graph, records, scope)), branches, loops)

    def _branch(self, running: _Running) -> BranchTrace:
        truth = running.scope.fact(running.proto.input[0]).truth
        names = [name for name, _ in running.node.subgraphs]
        wanted = None if truth is None else names.index("then_branch" if truth else "else_branch")
        seen = running.observed
        if seen is not None and seen.attribute in names:
            wanted = names.index(seen.attribute)
        if wanted is None:
            self._found_undecided(running)
        observed = seen.runs[0] if seen is not None and seen.runs else NO_RUN
        # A branch that is known not to run keeps the empty trace; without a known condition both
        # are walked, and what they have in common is learned.
        traces = [EMPTY_TRACE] * len(names)
        made: list[list[Fact]] = []
        for index in range(len(names)):
            if wanted in {None, index}:
                graph, records = running.body(index)
                inner = running.scope.inside(records.prefix)
                self.knowledge.add_declared(graph, inner, with_types=running.is_first)
                inner_run = observed if wanted == index else NO_RUN
                traces[index] = self.run(
                    graph, records, inner, inner_run, is_first=running.is_first
                )
                made.append([inner.fact(value.name) for value in graph.output])
        for name, *facts in zip(running.proto.output, *made, strict=False):
            before = running.scope.types.get(name)
            running.scope.learn(name, _merge_branches(before, facts))
        return BranchTrace(wanted, tuple(traces))

    def _scan(self, running: _Running) -> LoopTrace:
        """A Scan, or another node with a body: all iterations are equal, unless observed ones are
        not.
        """
        proto, scope = running.proto, running.scope
        graph, records = running.body(0)
        seen = () if running.observed is None else running.observed.runs
        traces = []
        # Consecutive iterations with equal shapes are one trace.
        for observed in (key for key, _ in groupby(seen)) if seen else (NO_RUN,):
            inner = scope.inside(records.prefix)
            self.knowledge.add_declared(graph, inner, with_types=running.is_first)
            for name, kind in body_inputs(proto, scope.types, self.knowledge.opsets).items():
                inner.learn(name, Fact(kind))
            traces.append(self.run(graph, records, inner, observed, is_first=running.is_first))
        if not all(is_complete(scope.types.get(name)) for name in proto.output if name):
            for name, kind in self.knowledge.types_of(proto, scope).items():
                scope.learn(name, Fact(kind))
        if seen:
            return LoopTrace(len(seen), tuple(traces))
        return LoopTrace(trip_count(running.records.graph, running.node), tuple(traces))

    def _loop(self, running: _Running) -> LoopTrace:
        limit, condition = (*running.proto.input, "", "")[:2]
        max_trips = running.scope.fact(limit).elements
        is_known = max_trips is not None and max_trips.size == 1 and max_trips.dtype.kind in "iu"
        bound = max(int(max_trips.item()), 0) if max_trips is not None and is_known else None
        first_condition = running.scope.fact(condition) if condition else _TRUE
        iterations = _Iterations(
            carried=[running.scope.fact(name) for name in running.proto.input[2:]],
            condition=first_condition,
            is_certain=first_condition.truth is not None and (not limit or bound is not None),
        )
        if running.observed is not None:
            return self._observed_loop(running, iterations, running.observed.runs)
        # As onnxruntime's LoopImpl::Execute (core/providers/cpu/controlflow/loop.cc): the condition
        # is tested before each iteration, and what the last one carries is the Loop's output.
        while self._continues(iterations, bound):
            self._iterate(running, iterations)
        number = self._number(running, iterations, bound)
        if number is None:
            return LoopTrace(None, tuple(iterations.traces[:1]), is_certain=False)
        for name, fact in _loop_outputs(running, iterations, number):
            running.scope.learn(name, fact)
        return LoopTrace(number, tuple(_without_tail(iterations.traces)), iterations.is_certain)

    def _observed_loop(
        self, running: _Running, iterations: _Iterations, runs: Sequence[GraphRun]
    ) -> LoopTrace:
        """A Loop of which each iteration was observed."""
        iterations.is_certain = True
        for run in runs:
            if iterations.number and self._is_spent:
                break
            self._iterate(running, iterations, run)
            # An unknown condition makes the simulated number of iterations uncertain; that of a run
            # is not.
            iterations.is_certain = True
        for name, fact in _loop_outputs(running, iterations, len(runs)):
            running.scope.learn(name, fact)
        return LoopTrace(len(runs), tuple(_without_tail(iterations.traces)))

    def _found_undecided(self, running: _Running) -> None:
        """Remove a candidate: the trace has it among the undecided nodes."""
        # A Loop of an unknown number of iterations keeps the trace of its first one only.
        if not self.num_later:
            self.candidates.discard(running.node.name)

    @property
    def _is_spent(self) -> bool:
        """Whether enough was simulated."""
        return (
            (self.has_candidates and not self.candidates)
            or self.knowledge.num_evaluated > self.max_evaluated
            or self.num_iterations > MAX_TOTAL_ITERATIONS
        )

    def _continues(self, iterations: _Iterations, bound: int | None) -> bool:
        if iterations.condition.truth is False or iterations.is_steady:
            return False
        # The first iteration is always simulated: the shapes in the body follow from it.
        if iterations.number and self._is_spent:
            return False
        return iterations.number < (MAX_ITERATIONS if bound is None else min(bound, MAX_ITERATIONS))

    def _number(self, running: _Running, iterations: _Iterations, bound: int | None) -> int | None:
        """The number of iterations, or a bound; ``None``: unknown."""
        if iterations.condition.truth is False or iterations.number == bound:
            return iterations.number
        # The simulation was cut short. If the iterations repeat, or nothing but the trip count can
        # end the Loop, it runs to its bound all the same.
        is_constant = trip_count(running.records.graph, running.node) == bound
        if iterations.is_certain and (iterations.is_steady or is_constant):
            return bound
        iterations.is_certain = False  # the simulation did not reach the end
        return bound if bound is not None and bound <= MAX_ITERATIONS else None

    def _iterate(
        self, running: _Running, iterations: _Iterations, observed: GraphRun = NO_RUN
    ) -> None:
        """Simulate one iteration."""
        graph, records = running.body(0)
        inner = running.scope.inside(records.prefix)
        # The condition of a body that runs is true, even if its computation is unknown.
        inputs = [Fact(_NUMBER, np.array(iterations.number)), _TRUE, *iterations.carried]
        # The inferred types of a body hold for the shapes that it was inferred with; an iteration
        # with the same shapes can use them too, and need not infer each node again.
        is_first = running.is_first and all(
            fact.kind is not None and shape_of(fact.kind) == shape_of(value.type)
            for value, fact in zip(graph.input[2:], iterations.carried, strict=False)
        )
        self.knowledge.add_declared(graph, inner, with_types=is_first)
        for value, fact in zip(graph.input, inputs, strict=False):
            inner.learn(value.name, fact)
        evaluated_before = self.knowledge.num_evaluated
        self.num_later += iterations.number > 0
        iterations.traces.append(self.run(graph, records, inner, observed, is_first=is_first))
        self.num_later -= iterations.number > 0
        condition, *made = [inner.fact(value.name) for value in graph.output]
        carried = made[: len(iterations.carried)]
        # Steady: the iteration had the inputs of the one before, nothing new was evaluated, and its
        # outputs are its inputs. So all further iterations are equal.
        is_new = self.knowledge.num_evaluated > evaluated_before or iterations.number == 0
        is_same = _are_alike(carried, iterations.carried)
        iterations.is_steady = is_same and not is_new and condition.is_like(iterations.condition)
        iterations.is_certain = iterations.is_certain and condition.truth is not None
        if not iterations.is_certain and running.observed is None:
            self._found_undecided(running)
        iterations.carried, iterations.stacked, iterations.condition = (
            carried,
            made[len(carried) :],
            condition,
        )
        iterations.number += 1
        self.num_iterations += 1


def _loop_outputs(
    running: _Running, iterations: _Iterations, number: int
) -> Iterator[tuple[str, Fact]]:
    """The loop-carried values after the last iteration, and the stacked scan outputs."""
    num_carried = len(iterations.carried)
    for name, fact in zip(running.proto.output, iterations.carried, strict=False):
        yield name, fact if iterations.is_certain else Fact(fact.kind)
    for name, fact in zip(running.proto.output[num_carried:], iterations.stacked, strict=False):
        dims = dims_of(fact.kind)
        if fact.kind is not None and dims is not None and is_complete(fact.kind):
            yield name, Fact(dense_type(fact.kind.tensor_type.elem_type, (number, *dims)))


def _without_tail(traces: list[ControlFlowTrace]) -> list[ControlFlowTrace]:
    """Traces of iterations without equal ones at the end."""
    # ``LoopTrace.trace_of`` takes the last trace for all later iterations.
    while len(traces) > 1 and traces[-1] == traces[-2]:
        traces.pop()
    return traces


def _merge_branches(before: onnx.TypeProto | None, facts: list[Fact]) -> Fact:
    """An output of an If: that of the branch that runs, or what both branches have in common."""
    types = [fact.kind for fact in facts]
    if len(facts) == 1 and types[0] is not None:
        kind = types[0] if before is None else merged(types[0], before)
        return Fact(kind, facts[0].elements)
    one, other = (*types, None)[:2]
    if one is None or other is None:
        return Fact(before)
    return Fact(common(one, other) if before is None else merged(before, common(one, other)))


def _learn_shapes(
    proto: onnx.NodeProto, records: _GraphScope, scope: Scope, observed: GraphRun
) -> None:
    """Learn the observed shapes of a node's outputs."""
    if not observed.shapes:
        return
    for name in proto.output:
        # A kernel without halves writes the same tensor in floats.
        dims = observed.shapes.get(name, observed.shapes.get(name.removeprefix(PREFIX)))
        tensor = records.graph.tensors.get(records.prefix + name)
        before = scope.types.get(name)
        if dims is None or tensor is None:
            continue
        number = 0 if before is None else before.tensor_type.elem_type
        if not number and tensor.dtype is not None:
            number = list(DType).index(tensor.dtype) + 1
        if number:
            scope.types[name] = dense_type(number, dims)


def _changed_types(
    graph: onnx.GraphProto, records: _GraphScope, scope: Scope
) -> Iterator[tuple[str, TensorType]]:
    """Tensors whose shape differs from that in the graph; the shapes of weights never do."""
    names = [value.name for value in graph.input]
    names += [name for node in graph.node if node.input for name in node.output if name]
    # The first map is that of this graph; the others are of the graphs around it.
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
# The inputs whose values would decide the control flow.


MAX_INPUTS: Final = 8
"""Small inputs that are tried, in the order of the graph's inputs."""


def deciding_inputs(
    model: onnx.ModelProto, graph: Graph, values: Mapping[str, Array], trace: ControlFlowTrace
) -> dict[str, tuple[str, ...]]:
    """By undecided node: the inputs whose values would decide it.

    The run is simulated with a value for every small input, and then without one of them at a time.
    A node that is undecided the first time depends on computed data; one that becomes undecided
    without an input depends on that input.
    """
    tensors = (graph.tensors[name] for name in graph.inputs if name not in values)
    settings = list(filter(may_be_setting, tensors))[:MAX_INPUTS]
    tried = {tensor.name: fitted(tensor, (1,)) for tensor in settings}

    def undecided_with(fixed: Mapping[str, Array]) -> set[str]:
        # All simulations together may take as long as the one that found the undecided nodes.
        share = MAX_EVALUATED // (len(tried) + 1)
        fixed = {**values, **fixed}
        found = simulate_control_flow(model, graph, fixed, share, candidates=frozenset(names))
        return set(undecided(found).names())

    names = undecided(trace).names()
    if not names or not tried:
        return {}
    never = undecided_with(tried)
    # No input decides any of them, so it is not tried which one.
    if never.issuperset(names):
        return {}
    without = {
        left_out: undecided_with({name: value for name, value in tried.items() if name != left_out})
        for left_out in tried
    }
    found = {
        name: tuple(each for each in tried if name in without[each])
        for name in names
        if name not in never
    }
    return {name: inputs for name, inputs in found.items() if inputs}
