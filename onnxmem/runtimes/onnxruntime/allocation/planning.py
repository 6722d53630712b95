"""The allocation plan that onnxruntime makes when a session is loaded, emulated.

Source: ``core/framework/allocation_planner.cc`` of onnxruntime 1.31. For each output of each node,
in running order, the first rule that fits decides (``ComputeSingleStreamReusePlan``):

1. a graph output has a buffer of its own;
2. an alias is its input's buffer (``FindReusableInput``);
3. an output overwrites an input where the kernel allows it, nothing else uses the buffer and the
   two have the same size (``SameSize``);
4. an output that nobody reads has a buffer of its own;
5. an output takes a dead buffer of the same size, the one that died last first
   (``FindReusableTensor``; not with ``enable_mem_reuse=False``);
6. an output has a buffer of its own.

Same size means equal bits per element and, dim by dim, the same number or the same symbol as known
*at load*; never strings. A buffer is freed once, after the last consumer of all that share it, so
it stays in the gaps between uses; what nobody consumes stays to the end of the run
(``GenerateDeallocationPlan``).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onnxmem.model.graph import DType, Graph, Node, Role
from onnxmem.runtimes.ideal.schedules import reverse_dfs
from onnxmem.runtimes.onnxruntime.providers import CPU, ExecutionProvider

LoadShape = tuple[int | str | None, ...]
"""Dims as onnxruntime knows them at load: a number, a symbol, or neither."""
LoadShapes = Mapping[str, LoadShape | None]
"""By tensor name; absent or ``None``: unknown rank."""


@dataclass(frozen=True, slots=True)
class Step:
    """One node of a plan."""

    node: Node
    allocates: tuple[str, ...]
    """Tensors whose buffers are made here, outputs' places in order."""
    releases: tuple[str, ...]
    """Tensors whose buffers are freed after the node, by the name of their first tensor."""
    bodies: tuple["Plan", ...]
    """Of its subgraphs, each with a plan, a pattern and a frame of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What one graph allocates and frees, node by node."""

    graph: Graph
    steps: tuple[Step, ...]
    outputs: frozenset[str]
    """Buffers handed to the caller: outside the memory pattern and never freed by the run."""
    stored_outputs: tuple[str, ...]
    """Those of them that are copies of initializers, made when a run begins."""
    sized_outputs: frozenset[str]
    """Graph outputs whose dims are all numbers at load."""
    buffers: Mapping[str, str]
    """Each tensor's buffer, by the name of its first tensor."""
    sharing: Mapping[str, tuple[str, ...]]
    """The tensors of each buffer that has several, in the order of writing."""


@dataclass(frozen=True, slots=True)
class Planning:
    """The settings of a session that its plan depends on."""

    shapes: LoadShapes
    """Of the whole model, subgraphs' tensors by their scoped names."""
    provider: ExecutionProvider = CPU
    reuses_memory: bool = True
    """``enable_mem_reuse``."""


def plan(graph: Graph, planning: Planning) -> Plan:
    """Plan a graph, its nodes in the order in which onnxruntime runs them."""
    return _Planner(graph, planning).planned()


def in_running_order(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph, whose present order gives their indices, as onnxruntime runs them.

    A depth-first walk from the leaves up to the producers, a node after all that it reads. Leaves
    are taken last index first, and at each node the producer with the highest index first. Source:
    ``core/graph/graph_viewer.cc`` (the constructor) and ``Graph::ReverseDFSFrom`` of
    ``core/graph/graph.cc``.
    """
    nodes = [node for node in graph.nodes if runs(node)]
    maker = {name: place for place, node in enumerate(nodes) for name in node.writes}
    producers = [sorted({maker[name] for name in uses(node) if name in maker}) for node in nodes]
    read = {place for places in producers for place in places}
    leaves = [place for place in range(len(nodes)) if place not in read]
    return tuple(nodes[place] for place in reverse_dfs(leaves, producers))


def runs(node: Node) -> bool:
    """Whether a node is left when a session is made: a Constant becomes an initializer."""
    return node.onnx_op != "Constant"


@dataclass(slots=True)
class _Planner:
    """One graph while its plan is made; names as in ``allocation_planner.cc``."""

    graph: Graph
    planning: Planning
    outer: tuple[str, ...] = ()
    """What a subgraph reads of the graphs around it."""
    parent: Node | None = None
    use_count: Counter[str] = field(default_factory=Counter)
    buffer: dict[str, str] = field(default_factory=dict)
    free_list: list[str] = field(default_factory=list)
    """Dead buffers, the last one to die at the end."""

    def planned(self) -> Plan:
        nodes = tuple(filter(runs, self.graph.nodes))
        self._count_uses(nodes)
        own = [self._plan_outputs(node) for node in nodes]
        kept = {name for allocates in own for name in allocates}
        releases = self._releases(nodes, kept.difference(self.graph.outputs))
        steps = tuple(
            Step(node, allocates, tuple(releases.get(place, ())), self._bodies(node))
            for place, (node, allocates) in enumerate(zip(nodes, own, strict=True))
        )
        stored = self._stored_outputs(nodes)
        shapes = self.planning.shapes
        return Plan(
            graph=self.graph,
            steps=steps,
            outputs=frozenset(self.graph.outputs) & kept.union(stored),
            stored_outputs=stored,
            sized_outputs=frozenset(n for n in self.graph.outputs if _is_sized(shapes.get(n))),
            buffers=self.buffer,
            sharing=self._sharing(),
        )

    def _sharing(self) -> Mapping[str, tuple[str, ...]]:
        tensors: dict[str, list[str]] = {}
        for name, buffer in self.buffer.items():
            if name != buffer:
                tensors.setdefault(buffer, [buffer]).append(name)
        return {buffer: tuple(names) for buffer, names in tensors.items()}

    def _stored_outputs(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Outputs that are initializers of this graph; a weight may be what a node fills."""
        elsewhere = {*self.outer, *(name for node in nodes for name in node.writes)}
        weights = (n for n in self.graph.outputs if self.graph.tensors[n].role is Role.WEIGHT)
        return tuple(name for name in dict.fromkeys(weights) if name not in elsewhere)

    def _bodies(self, node: Node) -> tuple[Plan, ...]:
        return tuple(
            _Planner(body, self.planning, node.outer_reads, node).planned()
            for _, body in node.subgraphs
        )

    def _count_uses(self, nodes: Iterable[Node]) -> None:
        """``ComputeReuseCount``: what the caller holds counts once more than its consumers."""
        made = {name for node in nodes for name in node.writes}
        for node in nodes:
            self.use_count.update(uses(node))
            self.use_count.update(node.writes)
        held = {name for name in self.use_count if name not in made}
        held.update(self.graph.inputs, self.outer)
        self.use_count.update(held)
        self.use_count.update(self.graph.outputs)
        self.buffer.update((name, name) for name in self.use_count)

    def _plan_outputs(self, node: Node) -> tuple[str, ...]:
        """Decide on the outputs of one node, then let its inputs die."""
        allocates = []
        for place, name in enumerate(node.outputs):
            if not name:
                continue
            shared = self._shared(node, place, name)
            if shared is None:
                allocates.append(name)
            else:
                self._reuse(shared, name)
        for name in (*uses(node), *node.writes):
            buffer = self.buffer[name]
            self.use_count[buffer] -= 1
            if not self.use_count[buffer]:
                self.free_list.append(buffer)
        return tuple(allocates)

    def _shared(self, node: Node, place: int, name: str) -> str | None:
        """The tensor whose buffer an output takes; ``None``: it has one of its own."""
        if name in self.graph.outputs:
            return self._passed_through(node)
        for source, target in self.planning.provider.aliases(node):
            if target == place and source < len(node.inputs) and node.inputs[source]:
                return node.inputs[source]
        for source, target in self.planning.provider.may_overwrite(node):
            if target == place and source < len(node.inputs) and node.inputs[source]:
                dying = node.inputs[source]
                if self.use_count[self.buffer[dying]] == 1 and self._same_size(dying, name):
                    return dying
        return None if self.use_count[name] == 1 else self._dead(name)

    def _passed_through(self, node: Node) -> str | None:
        """A value that a Loop's body hands on unchanged is not copied."""
        if self.parent is None or self.parent.op_type != "Loop" or node.op_type != "Identity":
            return None
        source = node.inputs[0]
        given = {*self.graph.inputs[1:], *self.outer}
        return source if source in given else None

    def _dead(self, name: str) -> str | None:
        """``FindReusableTensor``: the last buffer to die whose first tensor has the same size."""
        if not self.planning.reuses_memory or not self.planning.shapes.get(name):
            return None
        for place in range(len(self.free_list) - 1, -1, -1):
            if self._same_size(self.free_list[place], name):
                return self.free_list.pop(place)
        return None

    def _reuse(self, shared: str, name: str) -> None:
        buffer = self.buffer[shared]
        self.buffer[name] = buffer
        self.use_count[buffer] += self.use_count[name]

    def _same_size(self, one: str, other: str) -> bool:
        """``SameSize``; unknown shapes may differ."""
        bits = [element_bits(self.graph.tensors[name].dtype) for name in (one, other)]
        shapes = [self.planning.shapes.get(name) for name in (one, other)]
        if None in bits or bits[0] != bits[1] or shapes[0] is None or shapes[1] is None:
            return False
        return shapes[0] == shapes[1] and None not in shapes[0]

    def _releases(self, nodes: tuple[Node, ...], freed: set[str]) -> Mapping[int, list[str]]:
        """``GenerateDeallocationPlan``: by the place of the last node that reads a buffer."""
        last: dict[str, int] = {}
        for place, node in enumerate(nodes):
            for name in uses(node):
                last[self.buffer[name]] = place
        releases: dict[int, list[str]] = {}
        for buffer in self.buffer:
            if buffer in last and buffer in freed:
                releases.setdefault(last[buffer], []).append(buffer)
        return releases


def _is_sized(shape: LoadShape | None) -> bool:
    return shape is not None and all(isinstance(dim, int) for dim in shape)


def uses(node: Node) -> tuple[str, ...]:
    """Explicit inputs as often as they are named, and each value that the subgraphs read once."""
    return (*(name for name in node.inputs if name), *dict.fromkeys(node.outer_reads))


def element_bits(dtype: DType | None) -> int | None:
    """Bits of one element; ``None`` for strings and for what is no tensor."""
    return None if dtype is None else dtype.bits
